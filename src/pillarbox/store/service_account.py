"""Runs the embedded PostgreSQL without root privileges when Pillarbox runs as root.

PostgreSQL refuses to run as root. The server gets a private numeric uid without a name, which no
other process uses, and files that this uid can reach. Permissions of existing directories are never
changed: data below a directory that only root may enter is moved to a directory of Pillarbox's own,
and a symbolic link stays behind.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pillarbox.errors import StoreError

# No distribution assigns these numbers to people, services or containers (systemd's list calls them
# unused), and they exist in user namespaces with 65,536 numbers, too.
PRIVATE_UIDS = range(60578, 61184)
# For data, sockets and programs that the private uid cannot reach where they are; the first usable
# one. The owner is checked.
SHARED_DIRECTORIES = (Path("/var/lib/pillarbox"), Path("/var/tmp/pillarbox"))  # noqa: S108


def uids_in_use() -> set[int]:
    """The uids of all processes: real, effective, saved and of the file system."""
    found = set[int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            line = next(line for line in status.read_text().splitlines() if line.startswith("Uid:"))
            found.update(map(int, line.split()[1:]))
    return found


def choose_uid(directory: Path) -> int:
    """A free private uid for the server in `directory`; the owner of its data if possible."""
    taken = uids_in_use()
    taken |= {user.pw_uid for user in pwd.getpwall()}
    taken |= {group.gr_gid for group in grp.getgrall()}
    with contextlib.suppress(FileNotFoundError):
        owner = directory.stat().st_uid
        if owner in PRIVATE_UIDS and owner not in taken:
            return owner
    first = int.from_bytes(hashlib.sha256(str(directory).encode()).digest()[:4])
    for step in range(len(PRIVATE_UIDS)):
        uid = PRIVATE_UIDS[(first + step) % len(PRIVATE_UIDS)]
        if uid not in taken:
            return uid
    raise StoreError(
        f"all user ids from {PRIVATE_UIDS.start} to {PRIVATE_UIDS.stop - 1} are in use, so"
        " PostgreSQL cannot get one of its own: run `pillarbox up` as an ordinary user, or name a"
        " database with --database-url"
    )


def user_for_initdb() -> pwd.struct_passwd:
    """A named user, which initdb needs, without a process that could read what initdb writes."""
    busy = uids_in_use()
    users = [user for user in pwd.getpwall() if user.pw_uid != 0 and user.pw_uid not in busy]
    if not users:
        raise StoreError(
            "PostgreSQL's initdb needs a user that runs no process, and every user in /etc/passwd"
            " but root runs one: run `pillarbox up` as an ordinary user, or name a database with"
            " --database-url"
        )
    return min(users, key=lambda user: user.pw_name != "nobody")


def can_enter(directory: Path) -> bool:
    """Whether an unprivileged uid can pass through `directory` and all directories above it."""
    directories = (directory, *directory.parents)
    return all(each.stat().st_mode & stat.S_IXOTH for each in directories)


def give(path: Path, uid: int) -> None:
    """Change the owner of `path` and everything in it; links are changed, not followed."""
    try:
        os.chown(path, uid, uid, follow_symlinks=False)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be given to user id {uid}, which PostgreSQL would run as"
            f" ({error.strerror}): run `pillarbox up` as an ordinary user, or name a database with"
            " --database-url"
        ) from None
    for folder, directories, files in os.walk(path):
        for name in (*directories, *files):
            os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)


def shared_directory() -> Path:
    """A directory that every user may pass through and only root may write to."""
    reasons = []
    for directory in SHARED_DIRECTORIES:
        try:
            directory.mkdir(mode=0o711, exist_ok=True)
            found = directory.lstat()
        except OSError as error:
            reasons.append(f"{directory}: {error.strerror}")
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            reasons.append(f"{directory}: other users may write to it")
        elif not can_enter(directory):
            reasons.append(f"{directory}: other users may not enter it")
        else:
            return directory
    raise StoreError(
        f"no directory for PostgreSQL, which cannot run as root ({'; '.join(reasons)}): choose one"
        " that other users may enter with --data DIR, run `pillarbox up` as an ordinary user, or"
        " name a database with --database-url"
    )


def reachable_data(directory: Path) -> Path:
    """The directory of the data, moved if the private uid could not reach it.

    A link `<name>.moving` points to the target from before the first file is moved until the link
    takes the name of the data, so that a crash in between loses nothing.
    """
    moving = directory.with_name(directory.name + ".moving")
    if moving.is_symlink():
        _finish_move(directory, moving)
    if directory.is_symlink():
        return directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    if can_enter(directory.parent.resolve()):
        return directory.parent.resolve() / directory.name
    home = Path(tempfile.mkdtemp(prefix="data-", dir=shared_directory()))
    home.chmod(0o711)
    target = home / directory.name
    moving.symlink_to(target)
    if directory.exists():
        _move(directory, target)
    else:
        target.mkdir(mode=0o700)
    _finish_move(directory, moving)
    return target


def _move(directory: Path, target: Path) -> None:
    if directory.stat().st_dev == target.parent.stat().st_dev:
        directory.rename(target)
        return
    copy = target.with_name(target.name + ".copying")
    shutil.copytree(directory, copy, symlinks=True)
    os.sync()  # the copy must be on the disk before the original goes
    copy.rename(target)


def _finish_move(directory: Path, moving: Path) -> None:
    if not moving.resolve().exists():  # nothing was moved: the data is still in its old place
        shutil.rmtree(moving.resolve().parent, ignore_errors=True)
        moving.unlink()
        return
    if directory.is_dir() and not directory.is_symlink():
        shutil.rmtree(directory)
    moving.rename(directory)


def reachable_programs(binaries: Path) -> Path:
    """PostgreSQL's programs where every uid can run them: in place, or as a shared copy."""
    if can_enter(binaries.resolve()) and all(_is_public(path) for path in _samples(binaries)):
        return binaries
    with (binaries / "postgres").open("rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()[:16]
    shared = shared_directory() / f"postgresql-{digest}"
    if not shared.exists():
        with _scratch(shared) as scratch:
            _copy_programs(binaries, scratch / "copy")
            with contextlib.suppress(OSError):  # another process was faster
                (scratch / "copy").rename(shared)
    return shared / binaries.relative_to(binaries.parents[2])


def _copy_programs(binaries: Path, target: Path) -> None:
    """Copy an installation of a wheel, with the libraries beside its package."""
    package, packages = binaries.parents[1], binaries.parents[2]
    libraries = package.with_name(package.name + ".libs")
    for source in (binaries.parent, libraries):
        if source.exists():
            copy = target / source.relative_to(packages)
            shutil.copytree(source, copy, copy_function=_link_or_copy, symlinks=True)
    for folder, _, _ in os.walk(target):
        os.chmod(folder, 0o755)  # noqa: S103 -- programs, no data


def _samples(binaries: Path) -> Iterator[Path]:
    """Paths that an installation with a strict umask would hide from other users."""
    yield binaries / "postgres"
    for path in (binaries.parent / "lib", binaries.parent / "share"):
        if path.exists():
            yield path


def _is_public(path: Path) -> bool:
    return path.stat().st_mode & 0o005 == 0o005


@contextlib.contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix=beside.name + ".", dir=beside.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    mode = os.stat(source).st_mode
    needed = 0o005 if mode & stat.S_IXUSR else 0o004
    if mode & needed == needed:
        with contextlib.suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)
    os.chmod(target, 0o755 if mode & stat.S_IXUSR else 0o644)
