"""The ReadyQueue port: where ready work waits. Adapters are in `ready_queues/`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pillarbox.model.fairness import LaneId, Quota
from pillarbox.queue.records import ClaimedMessage, SurveyedLane


class ReadyQueue(Protocol):
    """Tells one worker which lanes have ready work, and claims it for quotas.

    An adapter decides how soon work is found, never what may be claimed: every claim is made by the
    ledger, with all of its checks. An adapter may miss work for a time and may name work that is
    gone; it must find everything that is due in the end.
    """

    async def listen(self, stop: asyncio.Event) -> None:
        """Receive news of ready work until `stop`, or until the connection is lost."""
        ...

    async def wait(self, poll: float, due_in: float | None) -> str:
        """Wait until work may be ready: at most `poll` seconds, or `due_in` if that is sooner.

        Returns the reason (a label of `pillarbox_wakeups_total`); `settled` means that no survey is
        needed.
        """
        ...

    def wake(self) -> None:
        """Work may be ready: end the current wait, or the next."""
        ...

    def resume(self) -> None:
        """A lane that was surveyed may go on: end the wait, with no need for a survey."""
        ...

    def take_hint(self) -> bool:
        """Whether news came while nothing waited for it; asking clears it."""
        ...

    async def survey(self, after: LaneId, limit: int) -> list[SurveyedLane]:
        """Up to `limit` lanes with waiting mails, in the order of their ids, from `after` on."""
        ...

    async def claim(
        self, quotas: Sequence[Quota], limit: int, max_bytes: int, allow_oversized: bool
    ) -> list[ClaimedMessage]:
        """Claim up to the quota of each lane; together `limit` messages of `max_bytes`.

        With `allow_oversized` the first may be larger. The messages come in the order of
        acceptance.
        """
        ...

    async def acknowledge(self, claims: Sequence[ClaimedMessage]) -> None:
        """The ledger has committed what became of these claims: settled, released or postponed.

        Never raises: what is not acknowledged is named again, and claims nothing.
        """
        ...
