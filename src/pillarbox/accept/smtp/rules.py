"""What a session may do: limits for all sessions, and a policy of the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# RFC 4954 4.3 and 12: what a server should take as a line of an AUTH exchange.
MAX_AUTH_LINE = 12_288
# Of an overlong line so much is skipped in the hope that it ends; no SMTP client writes
# more.
MAX_SKIPPED = 65_536
# A mail that is too big is read to its end, so that the client hears why; one this many times too
# big is not.
DISCARD_FACTOR = 4
# Input kept while a result is awaited: the shell stops reading, but a chunk may be on its way
# already (256 KiB is the most that asyncio and uvloop read at once).
MAX_HELD = 2**20


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one session; the settings `smtp_max_…` say why each is what it is."""

    message: int = 10_000_000
    recipients: int = 100
    line: int = 2048
    text_line: int = 65_536
    header: int = 131_072
    header_lines: int = 1000
    nesting: int = 100
    errors: int = 20
    commands: int = 1000
    messages: int = 10_000


class SessionPolicy(Protocol):
    """What the client may send. The checks return a reply that refuses, or None."""

    @property
    def max_message(self) -> int: ...
    @property
    def max_recipients(self) -> int: ...

    def refuse_sender(self, address: str) -> bytes | None: ...
    def refuse_recipient(self, address: str) -> bytes | None: ...


class MemoryBudget:
    """The octets of mail that all sessions together may hold in memory."""

    def __init__(self, octets: int) -> None:
        self._octets = octets
        self.taken = 0

    def take(self, octets: int) -> bool:
        """Whether there is budget; if so, it is taken."""
        if self.taken + octets > self._octets:
            return False
        self.taken += octets
        return True

    def give_back(self, octets: int) -> None:
        self.taken -= octets
