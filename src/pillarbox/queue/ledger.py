"""The ledger in PostgreSQL, the system of record: leases, lanes, claims and their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from pillarbox.errors import StoreError
from pillarbox.model.fairness import LaneId, Quota
from pillarbox.model.outcome import Reason
from pillarbox.queue import ledger_rows as rows
from pillarbox.queue.records import (
    ClaimedMessage,
    DeliveryKey,
    Reference,
    Settlement,
    SettlementBatch,
    SurveyedLane,
)
from pillarbox.store import sql
from pillarbox.store.database import Database

SQL = sql.load("queue")
# The most messages in one claim. The planner's estimate of its cost follows this number, which is
# in the statement, too; larger claims would save nothing, and a worker with more room claims again.
LARGEST_CLAIM = 500
# However short the lease, a heartbeat may take this many seconds: a loaded machine needs them.
SHORTEST_TIMEOUT = 1.0


class Ledger:
    """One worker's access to the record; housekeeping uses it without a lease.

    Claims are leased: `register` begins a lease, `heartbeat` extends it for everything that the
    worker holds. When the lease runs out, `reap` (in any process) takes the claims away, and
    settling them later has no effect. Every method can raise StoreError; then the call had no
    effect or its full effect, and it can be repeated.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.worker = 0  # the id of the current lease; 0 before the first

    # -- the worker's lease

    async def register(self, name: str, lease: float) -> int:
        """Begin a lease under a new worker id."""
        self.worker = await self._database.fetchval(*SQL.register_worker(name=name, lease=lease))
        return self.worker

    async def heartbeat(self, lease: float) -> bool:
        """Extend the lease, even if it has run out; False when the reaper has taken it away.

        The worker must register again then.
        """
        # A connection that hangs must not use up the lease: the next try gets another.
        try:
            async with asyncio.timeout(max(lease / 4, SHORTEST_TIMEOUT)):
                statement = SQL.heartbeat(worker=self.worker, lease=lease)
                worker = await self._database.fetchval(*statement)
        except TimeoutError as error:
            raise StoreError("PostgreSQL did not answer a heartbeat in time") from error
        return worker is not None

    async def retire(self) -> None:
        """End the lease; nothing is held any more."""
        statement = SQL.retire_worker(worker=self.worker)
        await self._database.execute(*statement)

    # -- lanes

    async def survey(self, after: LaneId, limit: int) -> list[SurveyedLane]:
        """Up to `limit` lanes with waiting mails, in the order of their ids, from `after` on."""
        statement = SQL.survey(
            worker=self.worker, tenant=after.tenant, priority=after.priority, limit=limit
        )
        found = await self._database.fetch(*statement)
        return [rows.surveyed_lane(row) for row in found]

    async def survey_lanes(self, lanes: Sequence[LaneId]) -> list[SurveyedLane]:
        """These lanes, without those in which no mail waits."""
        statement = SQL.survey_lanes(worker=self.worker, **rows.lane_columns(lanes))
        found = await self._database.fetch(*statement)
        return [rows.surveyed_lane(row) for row in found]

    async def take_lanes(self, lanes: Sequence[LaneId]) -> list[LaneId]:
        """Become the dispatcher of those lanes that have none; returns the lanes taken."""
        statement = SQL.take_lanes(worker=self.worker, **rows.lane_columns(lanes))
        taken = await self._database.fetch(*statement)
        return [LaneId(row["tenant_id"], row["lane"]) for row in taken]

    async def give_lanes(self, lanes: Sequence[LaneId]) -> None:
        """Let other workers dispatch these lanes, and notify them."""
        statement = SQL.give_lanes(worker=self.worker, **rows.lane_columns(lanes))
        await self._database.execute(*statement)

    async def step_aside(self, lanes: Sequence[LaneId]) -> bool:
        """Give these lanes to other workers and take none for now; False if there are no others."""
        statement = SQL.step_aside(worker=self.worker, **rows.lane_columns(lanes))
        others = await self._database.fetch(*statement)
        return bool(others)

    async def come_back(self) -> None:
        """Take lanes again after stepping aside."""
        statement = SQL.come_back(worker=self.worker)
        await self._database.execute(*statement)

    # -- claims

    async def claim(
        self,
        quotas: Sequence[Quota],
        limit: int,
        max_bytes: int,
        allow_oversized: bool,
        references: Mapping[LaneId, Sequence[Reference]] | None = None,
    ) -> list[ClaimedMessage]:
        """Claim up to the quota of each lane; together `limit` messages of `max_bytes`.

        With `allow_oversized` the first may be larger. The messages come in the order of
        acceptance. `references` of a broker are a hint: a fifo or strict lane gives its oldest due
        messages up to the newest referenced one; a parallel lane, and every lane of its retries,
        gives the referenced ones. A lane without references gives whatever is due.
        """
        common = {
            "worker": self.worker,
            "max_messages": limit,
            "max_bytes": max_bytes,
            "allow_oversized": allow_oversized,
            **rows.quota_columns(quotas),
        }
        if references is None:
            statement = SQL.claim(**common)
        else:
            hints = rows.reference_columns(quotas, references)
            statement = SQL.claim_referenced(**common, **hints)
        found = await self._database.fetch(*statement)
        now = asyncio.get_running_loop().time()
        return [rows.claimed_message(row, now) for row in found]

    async def unclaimable(self, references: Iterable[Reference]) -> set[Reference]:
        """The references to messages that have no delivery queued and due."""
        by_message = {reference.message_id: reference for reference in references}
        found = await self._database.fetch(*SQL.unclaimable(message_ids=list(by_message)))
        return {by_message[row["id"]] for row in found}

    async def settle(self, batch: SettlementBatch) -> set[DeliveryKey]:
        """Write outcomes and everything that belongs to them, or nothing; returns what is written.

        That includes what an earlier call has written whose answer was lost. Claims that are
        missing had been taken away: nothing of them is written.
        """
        if not batch.settlements:
            return set()
        statement = SQL.settle(worker=self.worker, **rows.batch_columns(batch))
        found = await self._database.fetch(*statement)
        settled = set(map(rows.delivery_key, found))
        if len(settled) < len(batch.settlements):
            settled |= await self._settled_before(batch.settlements, settled)
        return settled

    async def _settled_before(
        self, settlements: Sequence[Settlement], settled: set[DeliveryKey]
    ) -> set[DeliveryKey]:
        """What an earlier call has written whose answer was lost."""
        missing = [each for each in settlements if rows.key_of(each) not in settled]
        found = await self._database.fetch(*SQL.settled_before(**rows.outcome_columns(missing)))
        return set(map(rows.delivery_key, found))

    async def release(self, claims: Sequence[ClaimedMessage]) -> None:
        """Give claims back untouched: nothing of them was sent."""
        message_ids = [claimed.message.id for claimed in claims]
        statement = SQL.release(
            message_ids=message_ids, claims=[claimed.claim for claimed in claims]
        )
        await self._database.execute(*statement)

    async def postpone(self, claims: Sequence[tuple[ClaimedMessage, float, Reason]]) -> None:
        """Let messages of which nothing was sent wait for so many seconds, with the reason.

        Others may overtake them, except with 0 seconds.
        """
        statement = SQL.postpone(
            message_ids=[claimed.message.id for claimed, _, _ in claims],
            claims=[claimed.claim for claimed, _, _ in claims],
            seconds=[seconds for _, seconds, _ in claims],
            reasons=[reason for _, _, reason in claims],
        )
        await self._database.execute(*statement)

    async def release_strays(self, known_claims: Sequence[int]) -> int:
        """Give back claims whose answer was lost: all but the known ones. Not while claiming."""
        statement = SQL.release_strays(worker=self.worker, known_claims=known_claims)
        return await self._database.execute(*statement)

    # -- housekeeping, in any process

    async def reap(self, limit: int, lease: float) -> int:
        """Take back claims of workers whose lease ran out; returns how many deliveries.

        Only after the database has been available for as long as the worker's lease, and for
        `lease` seconds: before that, a worker may not have been able to renew its lease.
        """
        statement = SQL.reap(limit=limit, lease=lease)
        return int(await self._database.fetchval(*statement))

    async def reap_wait(self, lease: float) -> float | None:
        """Seconds until all workers whose lease ran out may be reaped; None if there are none."""
        statement = SQL.reap_wait(lease=lease)
        wait: float | None = await self._database.fetchval(*statement)
        return wait

    async def touch(self, lease: float) -> None:
        """Note that the database is available; `lease` is that of this process's workers."""
        statement = SQL.touch(lease=lease)
        await self._database.fetchval(*statement)

    async def promote(self, limit: int) -> int:
        """Queue scheduled deliveries whose time has come; returns how many."""
        statement = SQL.promote(limit=limit)
        return await self._database.execute(*statement)

    async def forget_workers(self) -> None:
        """Delete workers that ended long ago."""
        await self._database.execute(*SQL.forget_workers())

    async def wake_workers(self) -> None:
        """Wake every worker that listens, in any process."""
        await self._database.execute(*SQL.wake_workers())

    # -- measuring

    async def workers_alive(self) -> int:
        return int(await self._database.fetchval(*SQL.workers_alive()))

    async def depth(self) -> dict[str, tuple[int, float | None]]:
        """Live deliveries by state (queued apart from deferred), with the age of the oldest."""
        found = await self._database.fetch(*SQL.depth())
        return {row["state"]: (row["count"], row["oldest"]) for row in found}

    async def longest_backlogs(self, limit: int) -> tuple[list[tuple[int, str, int]], int]:
        """The tenants with most waiting (id, name, deliveries), and what waits in all others."""
        statement = SQL.longest_backlogs(limit=limit)
        found = await self._database.fetch(*statement)
        tenants = [(row["id"], row["name"], row["count"]) for row in found]
        return tenants, found[0]["others"] if found else 0
