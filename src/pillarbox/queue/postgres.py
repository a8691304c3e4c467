"""The queue in PostgreSQL: always the system of record, and the default."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

import asyncpg

from pillarbox.errors import StoreError
from pillarbox.model import fairness
from pillarbox.model.access import Order
from pillarbox.model.message import Content, Message
from pillarbox.model.outcome import Reason
from pillarbox.queue.base import LARGEST, ClaimedMessage, DeliveryKey, Settlement, SettlementBatch
from pillarbox.queue.lanes import SURVEY_LIMIT, LaneTracker, SurveyedLane
from pillarbox.store import sql
from pillarbox.store.contents import read_attachments
from pillarbox.store.database import Database

QUERIES = sql.load("queue")
# The most messages in one claim. The planner's estimate of its cost follows this number, which is
# in the statement, too; larger claims would save nothing, and a worker with more room claims again.
LARGEST_CLAIM = 500
# However short the lease, a heartbeat may take this many seconds: a loaded machine needs them.
SHORTEST_TIMEOUT = 1.0


class PostgresQueue:
    """See `queue.base.Queue`; one instance per worker."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes = LaneTracker(time.monotonic)
        self._aside = False
        self.worker = 0

    async def register(self, name: str, lease: float) -> int:
        self._lanes.forget()
        self._aside = False
        self.worker = await self._database.fetchval(QUERIES["register_worker"], name, lease)
        return self.worker

    async def heartbeat(self, lease: float) -> bool:
        # A connection that hangs must not use up the lease: the next try gets another.
        try:
            async with asyncio.timeout(max(lease / 4, SHORTEST_TIMEOUT)):
                return (
                    await self._database.fetchval(QUERIES["heartbeat"], self.worker, lease)
                    is not None
                )
        except TimeoutError as error:
            raise StoreError("PostgreSQL did not answer a heartbeat in time") from error

    async def claim(
        self,
        limit: int,
        size: int,
        alone: bool,
        *,
        look: bool = True,
        hinted: bool = False,
        barred: Set[fairness.LaneId] = frozenset(),
    ) -> list[ClaimedMessage]:
        limit = min(limit, LARGEST_CLAIM)
        if look or self._lanes.stale(hinted):
            await self._survey()
        quotas = self._lanes.quotas(limit, barred)
        if not quotas:
            return []
        arguments = (self.worker, *_asked(quotas), limit, size, alone)
        try:
            rows = await self._database.fetch(QUERIES["claim"], *arguments)
        except StoreError:
            self._lanes.forget()  # something may have been claimed: these lanes are not given away before it is back
            raise
        now = asyncio.get_running_loop().time()
        claims = _in_turns([_claimed(row, now) for row in rows], quotas)
        self._lanes.claimed(quotas, Counter(map(_lane, claims)), cut=size < LARGEST)
        return claims

    async def _survey(self) -> None:
        """Look where something waits, become the dispatcher of lanes that have none, and give up too many."""
        lanes = self._lanes
        if self._aside:
            await self._database.execute(QUERIES["come_back"], self.worker)
            self._aside = False
        asked = time.monotonic()
        found = await self._database.fetch(
            QUERIES["survey"], self.worker, *lanes.start, SURVEY_LIMIT
        )
        rows = [SurveyedLane(row[0], row[1], Order(row[2]), *row[3:]) for row in found]
        lanes.surveyed(rows, await self._take(lanes.wanted(rows)), asked)
        await self._give(lanes.surplus())

    async def _take(self, keys: Sequence[fairness.LaneId]) -> list[fairness.LaneId]:
        if not keys:
            return []
        taken = await self._database.fetch(QUERIES["take_lanes"], self.worker, *_columns(keys))
        return [fairness.LaneId(*row) for row in taken]

    def begin(self, claimed: ClaimedMessage) -> bool:
        if not claimed.begun and self._lanes.may_begin(_lane(claimed)):
            claimed.begun = True
            self._lanes.begun(_lane(claimed))
        return claimed.begun

    def give_back(self, claimed: ClaimedMessage) -> None:
        if not claimed.begun:
            self._lanes.returning(_lane(claimed))

    def hold(self, claimed: ClaimedMessage, seconds: float) -> None:
        self._lanes.hold(_lane(claimed), seconds)

    def end(self, claimed: ClaimedMessage) -> bool:
        return self._lanes.ended(_lane(claimed), claimed.begun)

    async def step_aside(self) -> None:
        keys = self._lanes.idle()
        if not keys and self._aside:
            return
        if await self._database.fetch(QUERIES["step_aside"], self.worker, *_columns(keys, 2)):
            self._aside = True
            self._lanes.gave(keys)

    async def _give(self, keys: Sequence[fairness.LaneId]) -> None:
        if keys:
            await self._database.execute(QUERIES["give_lanes"], self.worker, *_columns(keys))
            self._lanes.gave(keys)

    async def settle(self, batch: SettlementBatch) -> set[DeliveryKey]:
        if not batch.settlements:
            return set()
        rows = await self._database.fetch(
            QUERIES["settle"],
            self.worker,
            *_settlements(batch.settlements),
            *_columns(batch.conversations, 3),
            *_columns(batch.events, 4),
            batch.secret_messages,
            *_tries(batch.settlements),
        )
        settled = {DeliveryKey(*row) for row in rows}
        if len(settled) < len(batch.settlements):
            settled |= await self._settled_before(batch.settlements, settled)
        return settled

    async def _settled_before(
        self, settlements: Sequence[Settlement], settled: Set[DeliveryKey]
    ) -> set[DeliveryKey]:
        """Those that an earlier call has written whose answer was lost."""
        left = [
            (
                one.message_id,
                one.recipient_number,
                one.claim,
                one.outcome.verdict,
                one.reason,
                one.provider_id,
            )
            for one in settlements
            if DeliveryKey(one.message_id, one.recipient_number, one.claim) not in settled
        ]
        return {
            DeliveryKey(*row)
            for row in await self._database.fetch(QUERIES["settled_before"], *_columns(left))
        }

    async def release(self, claims: Sequence[ClaimedMessage]) -> None:
        ids = [claimed.message.id for claimed in claims]
        await self._database.execute(QUERIES["release"], ids, [claimed.claim for claimed in claims])

    async def postpone(self, claims: Sequence[tuple[ClaimedMessage, float, Reason]]) -> None:
        rows = [
            (claimed.message.id, claimed.claim, seconds, reason)
            for claimed, seconds, reason in claims
        ]
        await self._database.execute(QUERIES["postpone"], *_columns(rows))

    def may_postpone(self, claimed: ClaimedMessage) -> bool:
        return not self._lanes.is_strict(_lane(claimed))

    async def release_strays(self, known: Sequence[int]) -> int:
        return await self._database.execute(QUERIES["release_strays"], self.worker, known)

    async def retire(self) -> None:
        self._lanes.forget()
        await self._database.execute(QUERIES["retire_worker"], self.worker)

    async def reap(self, limit: int, lease: float) -> int:
        return int(await self._database.fetchval(QUERIES["reap"], limit, lease))

    async def touch(self, lease: float) -> None:
        """Note that the database is available; `lease` is what workers of this process have."""
        await self._database.fetchval(QUERIES["touch"], lease)

    async def reap_wait(self, lease: float) -> float | None:
        """Seconds until all workers whose lease ran out may be reaped; None when there are none."""
        wait: float | None = await self._database.fetchval(QUERIES["reap_wait"], lease)
        return wait

    async def promote(self, limit: int) -> int:
        """Queue scheduled deliveries whose time has come; returns how many."""
        return await self._database.execute(QUERIES["promote"], limit)

    async def forget_workers(self) -> None:
        """Delete what is known of workers that ended long ago."""
        await self._database.execute(QUERIES["forget_workers"])

    async def hint(self) -> None:
        """Wake every worker that listens, wherever it runs."""
        await self._database.execute(QUERIES["hint"])

    async def workers_alive(self) -> int:
        return int(await self._database.fetchval(QUERIES["workers_alive"]))

    async def depth(self) -> dict[str, tuple[int, float | None]]:
        """Live deliveries by state (queued ones apart from deferred ones), with the age of the oldest."""
        rows = await self._database.fetch(QUERIES["depth"])
        return {row["state"]: (row["count"], row["oldest"]) for row in rows}

    async def longest(self, most: int) -> tuple[list[tuple[int, str, int]], int]:
        """The tenants with most waiting (id, name, deliveries), and what waits in all the others."""
        rows = await self._database.fetch(QUERIES["longest"], most)
        return [(row[0], row[1], row[2]) for row in rows], rows[0][3] if rows else 0

    def next_due(self) -> float | None:
        return self._lanes.next_due


def _asked(quotas: Sequence[fairness.Quota]) -> list[list[Any]]:
    return _columns([(*quota.lane.id, quota.limit, quota.deferred_limit) for quota in quotas])


def _in_turns(
    claims: list[ClaimedMessage], quotas: Sequence[fairness.Quota]
) -> list[ClaimedMessage]:
    """Claims in the order of their acceptance, put so that higher lanes come first, and lanes of a priority in turn."""
    if len(quotas) == 1:
        return claims
    places = {quota.lane.id: place for place, quota in enumerate(quotas)}
    before: Counter[fairness.LaneId] = Counter()
    ranked = []
    for claimed in claims:
        key = _lane(claimed)
        ranked.append((key.priority, before[key], places[key], claimed))
        before[key] += 1
    return [claimed for *_, claimed in sorted(ranked, key=lambda one: one[:3])]


def _lane(claimed: ClaimedMessage) -> fairness.LaneId:
    return fairness.LaneId(claimed.tenant_id, claimed.lane)


def _claimed(row: asyncpg.Record, now: float) -> ClaimedMessage:
    (
        message_id,
        claim,
        recipient_numbers,
        recipients,
        attempts,
        via,
        suppressed,
        tenant_id,
        lane,
        size,
        class_name,
        kind,
        tags,
        sender,
        to,
        cc,
        reply_to,
        subject,
        headers,
        created_at,
        max_attempts,
        expired,
        expires_at,
        age,
        has_content,
        text,
        html,
        raw,
        attachments,
    ) = row
    message = Message(
        message_id,
        sender,
        to,
        subject,
        created_at,
        cc or (),
        reply_to or (),
        json.loads(headers) if headers else {},
    )
    content = Content(text, html, raw, read_attachments(attachments)) if has_content else None
    return ClaimedMessage(
        message,
        content,
        claim,
        recipient_numbers,
        recipients,
        attempts,
        tenant_id,
        lane,
        size,
        class_name,
        kind,
        max_attempts,
        bool(expired),
        expires_at,
        age,
        now,
        tags or (),
        via,
        suppressed or (),
    )


def _settlements(settlements: Sequence[Settlement]) -> list[list[Any]]:
    """The settlements as one array per column, in the order of the query's parameters."""
    now = asyncio.get_running_loop().time()
    return _columns(
        [
            (
                s.message_id,
                s.recipient_number,
                s.claim,
                s.state,
                s.reason,
                s.retry,
                s.delay,
                s.provider_id,
                s.outcome.verdict,
                s.outcome.code,
                s.reply,
                s.outcome.provider_message_id,
                now - s.ended,
                s.took,
                s.expires_at,
            )
            for s in settlements
        ]
    )


def _tries(settlements: Sequence[Settlement]) -> list[list[Any]]:
    """The number of each settlement's last try, and what came of those before it, as arrays."""
    now = asyncio.get_running_loop().time()
    earlier = [
        (
            s.message_id,
            s.recipient_number,
            s.claim,
            step,
            one.provider_id,
            one.outcome.verdict,
            one.outcome.reason,
            one.outcome.code,
            one.reply,
            one.outcome.provider_message_id,
            now - one.ended,
            one.took,
        )
        for s in settlements
        for step, one in enumerate(s.earlier)
    ]
    return [[len(s.earlier) for s in settlements], *_columns(earlier, 12)]


def _columns(rows: Sequence[Sequence[Any]], width: int = 0) -> list[list[Any]]:
    """Rows as one array per column; `width` columns if there are no rows."""
    if not rows:
        return [[] for _ in range(width)]
    return [list(column) for column in zip(*rows, strict=True)]
