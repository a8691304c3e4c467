"""What people and keys do to dead letters: send them again, or give them up; many in bounded batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pillarbox.store import dlq
from pillarbox.store.dlq import LOOKED_AT, QUERIES, FailedDelivery, OutgoingEnvelope
from pillarbox.store.messages import MessageFilter
from pillarbox.store.operations import (
    AS_USUAL,
    BATCH,
    PERSON,
    DeliveryOperation,
    ResendOptions,
    Who,
    apply,
)

if TYPE_CHECKING:
    from pillarbox.store.database import Database


# What blocks a delivery that the key which asks may not send.
NOT_ALLOWED = "not_allowed"


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters: of these messages, or all that fit; at most so many. `tenant_id` None: of all tenants."""

    tenant_id: int | None
    ids: Sequence[UUID] | None = None
    which: MessageFilter = field(default_factory=MessageFilter)
    limit: int | None = None
    dry_run: bool = False


@dataclass(slots=True)
class DeadLetterChange:
    """What came of it, in deliveries.

    `left`: would be changed, too, but for the limit; unless `complete`, there may be more. `suppressed`: those among
    the changed that will fail again at once, for their recipients are on the suppression list. `unfound`: messages
    that were named and have nothing failed.
    """

    changed: int = 0
    left: int = 0
    complete: bool = True
    suppressed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unfound: int = 0


class CheckedDelivery(NamedTuple):
    """A dead letter, what keeps it from being sent again, and whether its recipient is suppressed."""

    letter: FailedDelivery
    blocked: str | None
    suppressed: bool


def nobody_listens(count: int) -> None:
    pass


async def change(
    database: Database,
    operation: DeliveryOperation,
    wanted: DeadLetterSelection,
    manner: ResendOptions = AS_USUAL,
    who: Who = PERSON,
    told: Callable[[int], None] = nobody_listens,
    permitted: Callable[[OutgoingEnvelope], bool] | None = None,
) -> DeadLetterChange:
    """Reprocess or discard dead letters; `told` hears how many were changed, batch by batch.

    What cannot be sent again is skipped, and so is what may not be: what is not `permitted`. Beyond
    the limit, what is left is counted a little further, not to the end.
    """
    result = DeadLetterChange()
    looked = 0
    async for letters in _chosen(database, wanted, result):
        if looked and wanted.limit is not None and result.changed >= wanted.limit:
            result.complete = False
            break
        looked += LOOKED_AT
        judged = await _judged(database, operation, letters)
        if permitted is not None:
            judged = await _permitted(database, judged, permitted)
        ready = [one for one in judged if one.blocked is None]
        result.skipped.update(one.blocked for one in judged if one.blocked is not None)
        room = len(ready) if wanted.limit is None else wanted.limit - result.changed
        for some in _batches(ready[:room]):
            keys = [one.letter.key for one in some]
            changed = (
                keys if wanted.dry_run else await apply(database, operation, keys, who, manner)
            )
            result.changed += len(changed)
            result.suppressed += len(
                {one.letter.key for one in some if one.suppressed}.intersection(changed)
            )
            told(len(changed))
        result.left += len(ready[room:])
    return result


async def _chosen(
    database: Database, wanted: DeadLetterSelection, result: DeadLetterChange
) -> AsyncIterator[Sequence[FailedDelivery]]:
    if wanted.ids is None:
        async for letters in dlq.walk(database, wanted.tenant_id, wanted.which):
            yield letters
        return
    ids = list(dict.fromkeys(wanted.ids))
    rows = await database.fetch(QUERIES["dead_of"], wanted.tenant_id, ids)
    result.unfound = len(ids) - len({row["message_id"] for row in rows})
    yield [FailedDelivery(*row) for row in rows]


async def _judged(
    database: Database, operation: DeliveryOperation, letters: Sequence[FailedDelivery]
) -> list[CheckedDelivery]:
    """What stands in the way; nothing does where it need not be sent."""
    if not operation.sends_again or not letters:
        return [CheckedDelivery(one, None, False) for one in letters]
    columns = [one.message_id for one in letters], [one.n for one in letters]
    rows = await database.fetch(QUERIES["judge"], *columns)
    return [CheckedDelivery(one, *row) for one, row in zip(letters, rows, strict=True)]


async def _permitted(
    database: Database,
    judged: Sequence[CheckedDelivery],
    permitted: Callable[[OutgoingEnvelope], bool],
) -> list[CheckedDelivery]:
    """The same, with those blocked that may not leave."""
    leaving = [one async for one in dlq.leaving(database, [one.letter.key for one in judged])]
    return [
        one if one.blocked or permitted(what) else one._replace(blocked=NOT_ALLOWED)
        for one, what in zip(judged, leaving, strict=True)
    ]


def _batches(ready: Sequence[CheckedDelivery]) -> Iterator[Sequence[CheckedDelivery]]:
    for start in range(0, len(ready), BATCH):
        yield ready[start : start + BATCH]
