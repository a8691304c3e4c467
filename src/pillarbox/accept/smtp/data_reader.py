"""Reads the content of a mail after DATA: finds its end, and bounds the memory it takes."""

from __future__ import annotations

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.content import refuse_content
from pillarbox.accept.smtp.rules import MemoryBudget, SessionLimits

_END = b"\r\n.\r\n"
# What is kept of a body that is read to be thrown away: its end may have begun.
_TAIL = len(_END) - 1


class DataReader:
    """Takes chunks until the end: CRLF.CRLF, and nothing else."""

    __slots__ = ("_budget", "_held", "_kept", "_most", "content", "octets", "refusal")

    def __init__(self, most: int, budget: MemoryBudget) -> None:
        self.content = b""
        self.octets = 0  # as it came
        self.refusal: bytes | None = None
        self._most = most
        self._budget = budget
        self._held = 0
        self._kept: bytearray | None = None

    def feed(self, data: bytes, start: int) -> int:
        """Read data from `start`; returns the position after the mail's end, or -1 before it."""
        kept = self._kept
        if kept is None:
            end = data.find(_END, start)
            # Most mails come in one chunk.
            if end >= 0 and not data.startswith(b".\r\n", start):
                self.content = data[start : end + 2]
                self.octets = len(self.content)
                return end + len(_END)
            # The line end of DATA: the dot may follow at once.
            kept = self._kept = bytearray(b"\r\n")
        before = len(kept)
        kept += data[start:] if start else data
        end = kept.find(_END, max(before - _TAIL, 0))
        if end < 0:
            self.octets += len(data) - start
            self._bound(kept)
            return -1
        after = start + end + len(_END) - before
        self.octets += after - start - len(b".\r\n")
        self.content = bytes(memoryview(kept)[2 : end + 2])
        self._kept = None
        return after

    @property
    def least_octets(self) -> int:
        """The least size of an unfinished mail: the dot and CR of its end may have come already."""
        return self.octets - 2

    def _bound(self, kept: bytearray) -> None:
        """Stop keeping a mail that exceeds the limit or the budget, but read it to its end."""
        if self.refusal is None:
            # On the wire a line of dots is a third longer than it is.
            if self.octets > self._most * 4 // 3 + 16:
                self.refusal = replies.TOO_BIG
            elif not self._take_memory(len(kept)):
                self.refusal = replies.BUSY
        if self.refusal is not None:
            del kept[:-_TAIL]

    def judge(self, limits: SessionLimits) -> bytes | None:
        """After the end: the reply that refuses the mail, or None; removes the added dots."""
        if self.refusal is None:
            self.content = _without_dots(self.content)
            if len(self.content) > self._most:
                return replies.TOO_BIG
            if not self._take_memory(len(self.content)):
                return replies.BUSY
            return refuse_content(self.content, limits)
        return self.refusal

    def _take_memory(self, octets: int) -> bool:
        if octets > self._held:
            if not self._budget.take(octets - self._held):
                return False
            self._held = octets
        return True

    def release(self) -> None:
        """Return the memory to the budget."""
        self._budget.give_back(self._held)
        self._held = 0


def _without_dots(content: bytes) -> bytes:
    """Take away the dots that keep lines from being taken for the end (RFC 5321 4.5.2)."""
    if content.startswith(b"."):
        content = content[1:]
    return content.replace(b"\r\n.", b"\r\n")
