"""Reprocessing and discarding of dead letters, in bounded batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pillarbox.store import dlq
from pillarbox.store.dlq import SQL, FailedDelivery, OutgoingEnvelope, columns_of
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


# Blocks a delivery that the requesting key may not send.
NOT_ALLOWED = "not_allowed"


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters: of these messages or matching a filter, at most `limit`.

    `tenant_id` None: of all tenants.
    """

    tenant_id: int | None
    ids: Sequence[UUID] | None = None
    which: MessageFilter = field(default_factory=MessageFilter)
    limit: int | None = None
    dry_run: bool = False


@dataclass(slots=True)
class DeadLetterChange:
    """The result, counted in deliveries.

    `left`: would be changed, too, without the limit; unless `complete`, there may be more.
    `suppressed`: changed, but they fail again at once since their recipients are suppressed.
    `unfound`: selected messages without failed deliveries.
    """

    changed: int = 0
    left: int = 0
    complete: bool = True
    suppressed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unfound: int = 0


class CheckedDelivery(NamedTuple):
    """A dead letter, why it cannot be sent again, and whether its recipient is suppressed."""

    delivery: FailedDelivery
    blocked: str | None
    suppressed: bool


def ignore_progress(count: int) -> None:
    """The default progress callback."""


async def change(
    database: Database,
    operation: DeliveryOperation,
    selection: DeadLetterSelection,
    options: ResendOptions = AS_USUAL,
    who: Who = PERSON,
    on_progress: Callable[[int], None] = ignore_progress,
    permitted: Callable[[OutgoingEnvelope], bool] | None = None,
) -> DeadLetterChange:
    """Reprocess or discard dead letters; `on_progress` gets the number changed by each batch.

    Deliveries that cannot be sent again, or are not `permitted`, are skipped. Beyond the limit,
    what is left is counted for one more list, not to the end.
    """
    result = DeadLetterChange()
    is_first = True
    async for deliveries in _selected(database, selection, result):
        is_full = selection.limit is not None and result.changed >= selection.limit
        if is_full and not is_first:
            result.complete = False
            break
        is_first = False
        checked = await _checked(database, operation, deliveries)
        if permitted is not None:
            checked = await _permitted(database, checked, permitted)
        result.skipped.update(check.blocked for check in checked if check.blocked is not None)
        ready = [check for check in checked if check.blocked is None]
        room = len(ready)
        if selection.limit is not None:
            room = selection.limit - result.changed
        result.left += len(ready[room:])
        for batch in _batches(ready[:room]):
            keys = [check.delivery.key for check in batch]
            changed = keys
            if not selection.dry_run:
                changed = list(await apply(database, operation, keys, who, options))
            suppressed = {check.delivery.key for check in batch if check.suppressed}
            result.changed += len(changed)
            result.suppressed += len(suppressed.intersection(changed))
            on_progress(len(changed))
    return result


async def _selected(
    database: Database, selection: DeadLetterSelection, result: DeadLetterChange
) -> AsyncIterator[Sequence[FailedDelivery]]:
    if selection.ids is None:
        async for deliveries in dlq.walk(database, selection.tenant_id, selection.which):
            yield deliveries
        return
    ids = list(dict.fromkeys(selection.ids))
    rows = await database.fetch(*SQL.dead_of(tenant_id=selection.tenant_id, message_ids=ids))
    result.unfound = len(ids) - len({row["message_id"] for row in rows})
    yield [FailedDelivery(**row) for row in rows]


async def _checked(
    database: Database, operation: DeliveryOperation, deliveries: Sequence[FailedDelivery]
) -> list[CheckedDelivery]:
    """Deliveries with what blocks them; nothing blocks an operation that does not send."""
    if not operation.sends_again or not deliveries:
        return [CheckedDelivery(delivery, None, False) for delivery in deliveries]
    message_ids, numbers = columns_of([delivery.key for delivery in deliveries])
    rows = await database.fetch(
        *SQL.resend_obstacles(message_ids=message_ids, recipient_numbers=numbers)
    )
    return [
        CheckedDelivery(delivery, row["blocked"], row["suppressed"])
        for delivery, row in zip(deliveries, rows, strict=True)
    ]


async def _permitted(
    database: Database,
    checked: Sequence[CheckedDelivery],
    permitted: Callable[[OutgoingEnvelope], bool],
) -> list[CheckedDelivery]:
    """The same deliveries; those that are not permitted are blocked."""
    keys = [check.delivery.key for check in checked]
    envelopes = [envelope async for envelope in dlq.outgoing_envelopes(database, keys)]
    result = []
    for check, envelope in zip(checked, envelopes, strict=True):
        if check.blocked is None and not permitted(envelope):
            check = check._replace(blocked=NOT_ALLOWED)
        result.append(check)
    return result


def _batches(ready: Sequence[CheckedDelivery]) -> Iterator[Sequence[CheckedDelivery]]:
    for start in range(0, len(ready), BATCH):
        yield ready[start : start + BATCH]
