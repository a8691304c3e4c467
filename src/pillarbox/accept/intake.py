"""Stores mails of HTTP and SMTP by group commit: one statement for many concurrent callers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from pillarbox.accept.prepare import PreparedMail, prepare_mail
from pillarbox.accept.request_hash_1 import request_hash_1
from pillarbox.batching import REQUEUE, Batcher, Requeue, Results
from pillarbox.errors import (
    IdempotencyConflict,
    InvalidMail,
    PillarboxError,
    StoreError,
    UnknownName,
)
from pillarbox.store import intake as store
from pillarbox.store.intake import KnownKey, NotStored, TenantKey

if TYPE_CHECKING:
    from pillarbox.accept.mail import Mail
    from pillarbox.model.access import Principal
    from pillarbox.store.database import Database
    from pillarbox.telemetry.metrics import Metrics

# A commit costs as much as storing some ten mails: with 200 it no longer matters, and callers do
# not wait long.
MAX_BATCH_MAILS = 200
# Bounds the memory of a statement on both sides; a single mail may have more.
MAX_BATCH_OCTETS = 4 * 2**20
# One is best: two share the waiting mails, so each commit carries half as many (a sixth more CPU of
# this process per mail). The second serves while the first waits for a lock on a key, or stores a
# mail of many megabytes.
STATEMENTS_AT_ONCE = 2

_FAULTS = {
    "big_metadata": ("too_big", "metadata", "may have 16 KiB", None),
    "late_send_at": ("out_of_range", "send_at", "may lie one year ahead at most", None),
    "early_expires_at": (
        "out_of_range",
        "expires_at",
        "must lie in the future and after send_at",
        "leave it out for a mail that does not expire",
    ),
}
_STORED = ("queued", "pending")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was accepted. `repeated`: it was accepted before, under the same idempotency key."""

    id: UUID
    recipients: Sequence[tuple[int, str, str]]  # recipient number, role (to, cc or bcc), address
    state: str  # queued, or pending until its send_at
    repeated: bool = False


_Outcome = tuple[UUID, str] | PillarboxError  # an id and a verdict
_Answers = list[Receipt | PillarboxError | Literal[Requeue.REQUEUE]]


class Intake:
    """Group commit: concurrent callers share one statement and one commit. One per process."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._shared = database
        # A pool of its own, so that slow readers cannot delay accepting.
        self._own: Database | None = None
        self._opening = asyncio.Lock()
        self._metrics = metrics
        self._ahead: float | None = None  # seconds; ids follow the database's clock
        self._batcher: Batcher[PreparedMail, Receipt] = Batcher(
            self._run,
            max_items=MAX_BATCH_MAILS,
            max_weight=MAX_BATCH_OCTETS,
            weigh=lambda item: item.row.size,
            max_concurrency=STATEMENTS_AT_ONCE,
        )

    async def accept(
        self, principal: Principal, mail: Mail, *, received: str | None = None, source: str = "http"
    ) -> Receipt:
        """Check a mail and store it; returns when it is committed.

        `received` is the value of a Received header for a raw mail. Raises InvalidMail,
        UnknownName, IdempotencyConflict or NotAllowed if nothing was stored, and StoreError if that
        is not known.
        """
        return await self._batcher.submit(prepare_mail(principal, mail, received, source))

    async def accept_many(
        self, principal: Principal, mails: Sequence[Mail], *, source: str = "http"
    ) -> list[Receipt | PillarboxError]:
        """Check mails and store the good ones; returns a receipt or an error for each, in order."""
        results = [_item_or_error(principal, mail, source) for mail in mails]
        items = [result for result in results if isinstance(result, PreparedMail)]
        answers = iter(await self._batcher.submit_many(items))
        return [next(answers) if isinstance(result, PreparedMail) else result for result in results]

    async def close(self) -> None:
        """Close the connections; nothing may be accepted any more."""
        if self._own is not None:
            await self._own.close()

    async def _run(self, items: list[PreparedMail]) -> Results[Receipt]:
        started_at = time.perf_counter()
        database = self._own or await self._open()
        chosen = _first_of_each_key(items)
        outcomes = await self._store(database, [items[index] for index in chosen])
        answers: _Answers = [REQUEUE] * len(items)
        failed: dict[TenantKey, StoreError] = {}  # keys that could not be stored
        for index, outcome in zip(chosen, outcomes, strict=True):
            item = items[index]
            answers[index] = _answer(item, outcome)
            if item.key is not None and isinstance(outcome, StoreError):
                failed[item.key] = outcome
        self._count(answers, items, time.perf_counter() - started_at)
        if REQUEUE in answers:
            await self._look_up(database, items, answers, failed)
        return answers

    async def _open(self) -> Database:
        async with self._opening:
            if self._own is None:
                self._own = await self._shared.for_queue(STATEMENTS_AT_ONCE)
            return self._own

    async def _store(self, database: Database, items: list[PreparedMail]) -> list[_Outcome]:
        """Store mails with one statement, or one by one if a mail made the statement fail."""
        if self._ahead is None:
            self._ahead = await store.clock(database) - time.time()
        ids = store.new_ids(len(items), time.time() + self._ahead)
        try:
            verdicts, now = await store.accept(database, ids, [item.row for item in items])
        except NotStored as error:
            if len(items) == 1:
                return [error.reason]
            return await self._store_each(database, items)
        self._ahead = now - time.time()
        return list(zip(ids, verdicts, strict=True))

    async def _store_each(self, database: Database, items: list[PreparedMail]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        for item in items:
            try:
                outcomes += await self._store(database, [item])
            except StoreError as error:  # of this one alone: those before it are stored
                outcomes.append(error)
        return outcomes

    async def _look_up(
        self,
        database: Database,
        items: list[PreparedMail],
        answers: _Answers,
        failed: dict[TenantKey, StoreError],
    ) -> None:
        """Answer mails whose key was used before.

        A mail stays in the queue if its key is free after all, because a bad mail had it.
        """
        repeated = []
        for index, item in enumerate(items):
            if answers[index] is REQUEUE and item.key is not None:
                if item.key in failed:
                    answers[index] = failed[item.key]
                else:
                    repeated.append(index)
        if not repeated:
            return
        try:
            found = await store.known_keys(database, [items[index].row for index in repeated])
        except StoreError as error:  # the rest of the batch is stored
            for index in repeated:
                answers[index] = error
            return
        for index, known in zip(repeated, found, strict=True):
            if known is not None:
                answers[index] = _repeated(items[index], known)

    def _count(self, answers: Results[Receipt], items: list[PreparedMail], seconds: float) -> None:
        stored = [
            item.source
            for item, answer in zip(items, answers, strict=True)
            if isinstance(answer, Receipt)
        ]
        self._metrics.accepted_batch(Counter(stored), seconds)


def _item_or_error(principal: Principal, mail: Mail, source: str) -> PreparedMail | PillarboxError:
    try:
        return prepare_mail(principal, mail, None, source)
    except PillarboxError as error:
        return error


def _first_of_each_key(items: list[PreparedMail]) -> Sequence[int]:
    """The indexes of mails for one statement: the first with each key, and all without a key."""
    seen: set[TenantKey] = set()
    chosen = []
    for index, item in enumerate(items):
        if item.key is None:
            chosen.append(index)
        elif item.key not in seen:
            seen.add(item.key)
            chosen.append(index)
    return chosen


def _answer(
    item: PreparedMail, outcome: _Outcome
) -> Receipt | PillarboxError | Literal[Requeue.REQUEUE]:
    """The answer for a mail; REQUEUE if its key must be looked up."""
    if isinstance(outcome, PillarboxError):
        return outcome
    message_id, verdict = outcome
    if verdict == "known_key":
        return REQUEUE
    if verdict not in _STORED:
        return _fault(verdict, item.row.class_name)
    return Receipt(message_id, item.recipients, verdict)


def _fault(verdict: str, class_name: str) -> InvalidMail:
    if verdict == "unknown_class":
        return UnknownName(
            "unknown_class",
            "class",
            f"there is no class '{class_name[:100]}'",
            "see: pillarbox class list",
        )
    return InvalidMail(*_FAULTS[verdict])


def _repeated(item: PreparedMail, known: KnownKey) -> Receipt | PillarboxError:
    is_same = known.is_same
    if known.hash_of_0_1_0 is not None:
        is_same = known.hash_of_0_1_0 == request_hash_1(item.mail)
    if not is_same:
        return IdempotencyConflict(
            "idempotency_conflict",
            "idempotency_key",
            "the key was used before, for a different mail",
            "use a new key for a new mail",
        )
    state = "queued"
    if known.is_scheduled:
        state = "pending"
    return Receipt(known.message_id, item.recipients, state, repeated=True)
