"""Databases made ahead: a test finds one ready, and leaves it behind to be dropped while the next one runs."""

from __future__ import annotations

import uuid
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg

# The next test's, and the one after it, should that begin at once.
READY = 2


class PreparedDatabases:
    """Clones of a template, made and dropped by a thread of their own."""

    def __init__(self, url: str, template: str) -> None:
        self._admin = psycopg.connect(url, autocommit=True)
        self._template = template
        self._thread = ThreadPoolExecutor(1)
        self._ready: deque[Future[str]] = deque(
            self._thread.submit(self._make) for _ in range(READY)
        )

    def take(self) -> str:
        """The name of a fresh database."""
        self._ready.append(self._thread.submit(self._make))
        return self._ready.popleft().result()

    def give_back(self, name: str) -> None:
        self._thread.submit(drop, self._admin, name)

    def _make(self) -> str:
        return make(self._admin, self._template)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._admin.close()


def make(admin: psycopg.Connection, template: str) -> str:
    """Clone a template at once; returns the name of the clone."""
    name = f"test_{uuid.uuid4().hex}"
    # Without fsync copying files is faster than logging pages. PostgreSQL 14 knows no other way.
    strategy = "STRATEGY file_copy" if admin.info.server_version >= 150000 else ""
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")
    return name


def drop(admin: psycopg.Connection, name: str) -> None:
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
