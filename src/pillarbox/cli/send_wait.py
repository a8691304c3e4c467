"""`send --wait`: follows mails until they are settled, with a line for each deferral."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.cli import output
from pillarbox.model.delivery import FINISHED, State
from pillarbox.store.health import HealthRow, list_health
from pillarbox.store.messages import Deferral, deferrals_of, states_of
from pillarbox.store.providers import list_providers
from pillarbox.store.statistics import list_workers

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SETTLED = {*FINISHED, State.HELD}
POLL = 0.1
# After this time without an attempt, the reason for the wait is shown.
QUIET = 3.0


class DeliveryWatch:
    """Polls the states of some mails; `print_line` gets the lines for people."""

    def __init__(
        self, database: Database, ids: Sequence[UUID], print_line: Callable[[str], None]
    ) -> None:
        self._database = database
        self._ids = ids
        self._print_line = print_line
        self._printed: set[tuple[str | None, str, int]] = set()

    async def run(self, timeout: float) -> dict[str, int]:
        """Wait until everything is settled, at most `timeout`; return the deliveries by state."""
        now = asyncio.get_running_loop().time
        began = now()
        quiet = True
        while True:
            states = await states_of(self._database, self._ids)
            if SETTLED.issuperset(states) or now() - began > timeout:
                return states
            for deferral in await deferrals_of(self._database, self._ids):
                quiet = False
                self._print_deferral(deferral)
            if quiet and now() - began > QUIET and set(states) & {State.QUEUED, State.PENDING}:
                quiet = False
                self._print_line(
                    f"still waiting after {output.span(QUIET)}: {await self._obstacle(states)}"
                )
            await asyncio.sleep(POLL)

    def _print_deferral(self, deferral: Deferral) -> None:
        """Print a line for each deferral of one mail; of several mails, one for each reason."""
        attempts = 0
        if deferral.recipient:
            attempts = deferral.attempts
        key = (deferral.recipient, deferral.reason, attempts)
        if key in self._printed:
            return
        self._printed.add(key)
        line = deferral.recipient or output.counted(deferral.count, "delivery")
        line += ": deferred"
        if deferral.attempts:
            line += f" after {output.counted(deferral.attempts, 'attempt')}"
        line += f" ({deferral.reason}), next try {output.ahead(deferral.next_attempt_at)}"
        self._print_line(output.clean(line))

    async def _obstacle(self, states: dict[str, int]) -> str:
        """Why there was no attempt yet."""
        if State.QUEUED not in states:
            return "it is scheduled for later"
        if not any(one.lease_left > 0 for one in await list_workers(self._database)):
            return "no worker is running; start one with `pillarbox up` or `pillarbox worker`"
        health = await list_health(self._database)
        enabled = [one for one in await list_providers(self._database) if one.enabled]
        if not enabled:
            return "no provider is enabled; see `pillarbox provider list`"
        opened = [one for one in enabled if health.get(one.id, HealthRow()).state == "open"]
        if len(opened) == len(enabled):
            names = ", ".join(f"{one.name} ({health[one.id].reason})" for one in opened)
            return f"no provider can be used now: {names}; each is probed at least every 30 s"
        return "it is in the queue; see `pillarbox queue stats`"
