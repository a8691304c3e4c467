"""Directories for the data of PostgreSQL servers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pillarbox.store.embedded import EmbeddedPostgres


def short_directory(parent: str | None = None) -> Path:
    """A temporary directory for a server, for the caller to remove.

    Its path is short, because a Unix socket's has about 107 characters at most. Others may pass
    through it: as root, PostgreSQL runs with a uid of its own, and its data would be moved
    elsewhere.
    """
    directory = Path(tempfile.mkdtemp(prefix="pbx", dir=parent))
    directory.chmod(0o711)
    return directory


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """As `short_directory`, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="pbx", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


@contextmanager
def data_directory() -> Iterator[Path]:
    """A data directory for `up`; its PostgreSQL does not outlive the test, even if `up` is killed."""
    with temporary_directory() as directory:
        data = directory / "data"
        try:
            yield data
        finally:
            EmbeddedPostgres(data / "postgres").stop("immediate")


@contextmanager
def stopped_after_death(directory: Path) -> Iterator[None]:
    """Stop the PostgreSQL in `directory`/data and delete the directory if this process is killed."""
    script = 'cat; pid=$(head -n 1 "$1/data/postmaster.pid") && kill -QUIT "$pid"; rm -rf "$1"'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield
