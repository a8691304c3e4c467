"""Tokens as lines on standard output, as the original collector writes them: for a sender that reads them.

A line is a batch: `action,email,login,secret,code` for each token, one after the other; the secret
is the signed one. A field with a comma, a quote or a line end is quoted as RFC 4180 says.
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

# What a pipe that can be written to takes without blocking (POSIX: PIPE_BUF).
PIECE = 4096
# How often a writer that waits for its reader looks whether it should give up, in seconds.
LOOK = 0.2
_NEEDS_QUOTES = frozenset(',"\r\n')


def line_of(fields: Iterable[str]) -> bytes:
    """The fields of a batch as a line."""
    return (",".join(fields) + "\n").encode("utf-8", "surrogatepass")


def fields_of(
    due: DueToken, keys: SigningKeyRing, made: IssuedCode | None = None
) -> tuple[str, str, str, str, str]:
    """A token's five fields: a notice has no link, and so no secret. ValueError if it has a link and lacks its code."""
    secret = ""
    if due.path is not None:
        secret = sign(SignedPath(due.path, due.with_code), due.secret, due.code, keys)
    code = made.code if made else due.code or ""
    return str(due.number), quoted(due.email), quoted(due.login), secret, quoted(code)


def quoted(field: str) -> str:
    """A field as RFC 4180 wants it."""
    return field if _NEEDS_QUOTES.isdisjoint(field) else '"' + field.replace('"', '""') + '"'


class PipeWriter:
    """Writes whole lines to a file descriptor; made for a thread, which `give_up` frees if nobody reads."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Stop waiting for a reader that does not read."""
        self._given_up.set()

    def write(self, line: bytes) -> None:
        """Hand a line to whoever reads; NotPossible if nobody does: then part of it may have been read."""
        left = memoryview(line)
        while left:
            if self._given_up.is_set():
                raise NotPossible("nobody reads standard output; what was not written comes again")
            left = left[self._some(left) :]

    def _some(self, left: memoryview) -> int:
        """Write as much as goes without waiting for long; returns how much."""
        _, ready, _ = select.select([], [self._descriptor], [], LOOK)
        if not ready:
            return 0
        try:
            return os.write(self._descriptor, left[:PIECE])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise NotPossible(
                "nobody reads standard output any more; what was not written comes again"
            ) from None
        except OSError as error:
            raise NotPossible(f"standard output cannot be written: {error.strerror}") from None


class StdoutSink:
    """Writes tokens to standard output, in the transaction that took them: they are settled once they were written."""

    at_once = 1  # lines come one after the other

    def __init__(self, keys: SigningKeyRing, codes: TokenCodes, pipe: PipeWriter) -> None:
        self._keys = keys
        self._codes = codes
        self._pipe = pipe

    async def send(self, connection: asyncpg.Connection, batch: Sequence[DueToken]) -> SinkResult:
        """Write a batch as a line; NotPossible, and nothing is settled, if nobody reads it."""
        done = SinkResult([], [])
        made = await self._codes.make(connection, batch, time.time(), done)
        fields = list[str]()
        for due in done.left_of(batch):
            try:
                fields += fields_of(due, self._keys, made.get(due.token))
            except ValueError as error:  # a code is missing that its link is signed with
                done.set_aside(due.token, str(error))
            else:
                done.settled.append((due.token, "written", None))
        if fields:
            await asyncio.to_thread(self._pipe.write, line_of(fields))
        return done

    def give_up(self) -> None:
        self._pipe.give_up()
