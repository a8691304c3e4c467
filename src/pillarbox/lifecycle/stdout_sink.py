"""Writes tokens to standard output, in the format of the original collector.

A line is a batch: `action,email,login,secret,code` for each token, one after the other; the secret
is the signed one. A field with a comma, a quote or a line end is quoted as RFC 4180 requires.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pillarbox.errors import NotPossible
from pillarbox.lifecycle.mail_sink import SinkResult
from pillarbox.lifecycle.signing import SignedPath, sign

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.lifecycle.mail_sink import TokenCodes
    from pillarbox.lifecycle.one_time_codes import IssuedCode
    from pillarbox.lifecycle.signing import SigningKeyRing
    from pillarbox.store.lifecycle import DueToken

# A writable pipe accepts this many bytes without blocking (POSIX: PIPE_BUF).
WRITE_SIZE = 4096
# Seconds between two checks whether a writer that waits for its reader should give up.
CHECK_INTERVAL = 0.2
_NEEDS_QUOTES = frozenset(',"\r\n')
Fields = tuple[str, str, str, str, str]


def line_of(fields: Iterable[str]) -> bytes:
    """The line of a batch."""
    line = ",".join(fields) + "\n"
    return line.encode("utf-8", "surrogatepass")


def fields_of(
    due: DueToken,
    keys: SigningKeyRing,
    issued: IssuedCode | None = None,
) -> Fields:
    """The five fields of a token; a notice has no link, and so no secret.

    Raises ValueError if the link is signed with a code and the token has none.
    """
    secret = ""
    if due.path is not None:
        secret = sign(
            SignedPath(due.path, due.with_code),
            due.secret,
            due.code,
            keys,
        )
    code = due.code or ""
    if issued is not None:
        code = issued.code
    return str(due.number), quoted(due.email), quoted(due.login), secret, quoted(code)


def quoted(field: str) -> str:
    """A field as RFC 4180 requires it."""
    if _NEEDS_QUOTES.isdisjoint(field):
        return field
    escaped = field.replace('"', '""')
    return f'"{escaped}"'


class PipeWriter:
    """Writes whole lines to a file descriptor, in a thread that `give_up` can end."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Stop waiting for a slow reader."""
        self._given_up.set()

    def write(self, line: bytes) -> None:
        """Write a line; NotPossible if there is no reader, which may have read a part of it."""
        remaining = memoryview(line)
        while remaining:
            if self._given_up.is_set():
                raise NotPossible(
                    "standard output is not being read; unwritten tokens are collected again"
                )
            written = self._write_some(remaining)
            remaining = remaining[written:]

    def _write_some(self, remaining: memoryview) -> int:
        """Write what fits without a long wait; return the number of bytes."""
        _, writable, _ = select.select(
            [],
            [self._descriptor],
            [],
            CHECK_INTERVAL,
        )
        if not writable:
            return 0
        try:
            return os.write(self._descriptor, remaining[:WRITE_SIZE])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise NotPossible(
                "the reader of standard output has gone; unwritten tokens are collected again"
            ) from None
        except OSError as error:
            raise NotPossible(f"standard output cannot be written: {error.strerror}") from None


class StdoutSink:
    """Writes tokens to standard output; they are settled in the same transaction, afterwards."""

    at_once = 1  # lines are written one after the other

    def __init__(
        self,
        keys: SigningKeyRing,
        codes: TokenCodes,
        pipe: PipeWriter,
    ) -> None:
        self._keys = keys
        self._codes = codes
        self._pipe = pipe

    async def send(self, connection: asyncpg.Connection, batch: Sequence[DueToken]) -> SinkResult:
        """Write a batch as a line; NotPossible, and nothing is settled, without a reader."""
        result = SinkResult([], [])
        issued = await self._codes.issue(
            connection,
            batch,
            time.time(),
            result,
        )
        fields = list[str]()
        for due in result.without_result(batch):
            try:
                fields += fields_of(due, self._keys, issued.get(due.token))
            except ValueError as error:  # the code that the link is signed with is missing
                result.set_aside(due.token, str(error))
            else:
                result.settled.append((due.token, "written", None))
        if fields:
            await asyncio.to_thread(self._pipe.write, line_of(fields))
        return result

    def give_up(self) -> None:
        self._pipe.give_up()
