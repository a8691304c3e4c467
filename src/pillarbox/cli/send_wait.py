"""`send --wait`: follow mails until they are settled, with a line whenever one is deferred or waits."""

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
# A mail that is in the queue for so long without an attempt waits for something: a person wants to
# know for what.
QUIET = 3.0


class DeliveryWatch:
    """Polls the states of some mails; `tell` gets the lines for people."""

    def __init__(
        self, database: Database, ids: Sequence[UUID], tell: Callable[[str], None]
    ) -> None:
        self._database = database
        self._ids = ids
        self._tell = tell
        self._told: set[tuple[str | None, str, int]] = set()

    async def run(self, timeout: float) -> dict[str, int]:
        """Wait until everything is settled, or for so long; the deliveries by state."""
        now = asyncio.get_running_loop().time
        began = now()
        quiet = True
        while True:
            states = await states_of(self._database, self._ids)
            if SETTLED.issuperset(states) or now() - began > timeout:
                return states
            for deferral in await deferrals_of(self._database, self._ids):
                quiet = False
                self._tell_once(deferral)
            if quiet and now() - began > QUIET and set(states) & {State.QUEUED, State.PENDING}:
                quiet = False
                self._tell(
                    f"still waiting after {output.span(QUIET)}: {await self._obstacle(states)}"
                )
            await asyncio.sleep(POLL)

    def _tell_once(self, one: Deferral) -> None:
        """A line for each deferral of one mail; of several mails, one for each reason."""
        key = (one.recipient, one.reason, one.attempts if one.recipient else 0)
        if key in self._told:
            return
        self._told.add(key)
        who = one.recipient or output.counted(one.count, "delivery")
        made = f" after {output.counted(one.attempts, 'attempt')}" if one.attempts else ""
        self._tell(
            output.clean(
                f"{who}: deferred{made} ({one.reason}), next try {output.ahead(one.next_attempt_at)}"
            )
        )

    async def _obstacle(self, states: dict[str, int]) -> str:
        """Why nothing was tried yet, as far as can be seen from here."""
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
