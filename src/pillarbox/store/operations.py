"""Operations on deliveries: retry, discard, cancel, release, reschedule; each writes an event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason
from pillarbox.model.retry import POLICIES
from pillarbox.store import messages
from pillarbox.store.messages import SQL, MessageFilter

if TYPE_CHECKING:
    from pillarbox.store.database import Database, Db
    from pillarbox.store.messages import DeliveryRecord

# Deliveries per statement: it takes well under a second, and workers wait no longer for its locks.
BATCH = 500

Keys = Sequence[tuple[UUID, int]]
# Who did it, for the event: a person at the command line, or a key by its name.
Who = Mapping[str, str]
PERSON: Who = {"who": "person"}


@dataclass(frozen=True, slots=True)
class DeliveryOperation:
    """An operation on deliveries: the states it takes, the new state, the reason and the event."""

    word: str
    takes: Sequence[State]
    to: State
    event: str
    how: str | None = None
    reason: Reason | None = None

    @property
    def sends_again(self) -> bool:
        return self.to is State.QUEUED

    def data(self, who: Who) -> str:
        """The data of the event, as JSON."""
        data = dict(who)
        if self.how:
            data["as"] = self.how
        return json.dumps(data)


RETRY = DeliveryOperation("retried", (State.FAILED,), State.QUEUED, "retried")
# As RETRY, with more options.
REPROCESS = DeliveryOperation("reprocessed", (State.FAILED,), State.QUEUED, "reprocessed")
DISCARD = DeliveryOperation(
    "discarded", (State.FAILED,), State.CANCELLED, "discarded", reason=Reason.CANCELLED
)
# A lifecycle mail that is rendered again from its token, as another message.
RESEND = DeliveryOperation(
    "resent", (State.FAILED,), State.CANCELLED, "resent", reason=Reason.CANCELLED
)
CANCEL = DeliveryOperation(
    "cancelled",
    (State.PENDING, State.QUEUED, State.HELD),
    State.CANCELLED,
    "cancelled",
    reason=Reason.CANCELLED,
)
# A person knows the outcome, or accepts that the mail may arrive twice.
RELEASES = {
    "resend": DeliveryOperation("released", (State.HELD,), State.QUEUED, "released", "resend"),
    "sent": DeliveryOperation("released", (State.HELD,), State.SENT, "released", "sent"),
    "failed": DeliveryOperation(
        "released", (State.HELD,), State.FAILED, "released", "failed", Reason.LOST
    ),
}


@dataclass(frozen=True, slots=True)
class ResendOptions:
    """How deliveries are sent again: through which provider, and with which count of attempts.

    `keep_attempts`: earlier attempts still count, but at least one more is made.
    """

    provider_id: int | None = None
    provider: str | None = None
    keep_attempts: bool = False

    @property
    def limits(self) -> Mapping[str, int]:
        """The attempts that each policy allows; with a chosen provider, the strictest limit."""
        limits = {name: policy.max_attempts for name, policy in POLICIES.items()}
        if self.provider_id is None:
            return limits
        return dict.fromkeys(limits, min(limits.values()))

    def event_data(self) -> dict[str, str]:
        """What the event says about the options."""
        return {"via": self.provider} if self.provider else {}


AS_USUAL = ResendOptions()


async def apply(
    database: Db,
    operation: DeliveryOperation,
    keys: Keys,
    who: Who = PERSON,
    options: ResendOptions = AS_USUAL,
) -> Keys:
    """Apply an operation to deliveries; returns those whose state allowed it."""
    message_ids = [message_id for message_id, _ in keys]
    numbers = [number for _, number in keys]
    data = operation.data({**who, **options.event_data()})
    if operation.sends_again:
        rows = await database.fetch(
            *SQL.requeue(
                message_ids=message_ids,
                recipient_numbers=numbers,
                states=list(operation.takes),
                event=operation.event,
                data=data,
                provider_id=options.provider_id,
                keep_attempts=options.keep_attempts,
                policies=list(options.limits),
                max_attempts=list(options.limits.values()),
            )
        )
        await database.execute(*SQL.wake())
    else:
        rows = await database.fetch(
            *SQL.finish(
                message_ids=message_ids,
                recipient_numbers=numbers,
                states=list(operation.takes),
                new_state=operation.to,
                reason=operation.reason,
                event=operation.event,
                data=data,
            )
        )
    return [(row["message_id"], row["n"]) for row in rows]


async def change_message(
    database: Database, operation: DeliveryOperation, message_id: UUID, n: int | None = None
) -> Keys:
    """Change deliveries of a message (or only number `n`); NotPossible if no state allows it."""
    details = await messages.message_details(database, message_id)
    keys = [
        (message_id, delivery.n)
        for delivery in details.deliveries
        if delivery.state in operation.takes and n in (None, delivery.n)
    ]
    if keys and operation.sends_again:
        _check_sendable(details.message)
    changed: Keys = []
    if keys:
        changed = await apply(database, operation, keys)
    if not changed:
        states = await messages.states_of(database, [message_id])
        raise NotPossible(
            f"nothing of message {message_id} can be {operation.word}: {_words(states)}"
        )
    return changed


@dataclass(frozen=True, slots=True)
class MessageChange:
    """The deliveries of a message after an operation, and the numbers of the changed ones."""

    deliveries: Sequence[DeliveryRecord]
    changed: frozenset[int]


async def cancel(database: Database, message_id: UUID, tenant_id: int, who: Who) -> MessageChange:
    """Cancel the deliveries of a tenant's message that can be cancelled."""
    deliveries = await _deliveries(database, message_id, tenant_id)
    keys = [(message_id, delivery.n) for delivery in deliveries if delivery.state in CANCEL.takes]
    changed: Keys = []
    if keys:
        changed = await apply(database, CANCEL, keys, who)
    return await _changed(database, message_id, deliveries, [number for _, number in changed])


async def reschedule(
    database: Database, message_id: UUID, tenant_id: int, send_at: datetime, who: Who
) -> MessageChange:
    """Schedule the untried deliveries of a tenant's message; a time in the past sends them now."""
    deliveries = await _deliveries(database, message_id, tenant_id)
    rows = await database.fetch(
        *SQL.reschedule(
            message_id=message_id,
            recipient_numbers=[delivery.n for delivery in deliveries],
            send_at=send_at,
            data=json.dumps({**who, "send_at": send_at.astimezone(UTC).isoformat()}),
        )
    )
    if rows:
        await database.execute(*SQL.wake())
    return await _changed(database, message_id, deliveries, [row["n"] for row in rows])


async def _deliveries(database: Database, message_id: UUID, tenant_id: int) -> list[DeliveryRecord]:
    deliveries = await messages.deliveries_of(database, message_id, tenant_id)
    if not deliveries:
        raise NotFound(f"there is no message {message_id}")
    return deliveries


async def _changed(
    database: Database, message_id: UUID, before: Sequence[DeliveryRecord], numbers: Sequence[int]
) -> MessageChange:
    """The deliveries as they are now; a worker may have changed them meanwhile."""
    return MessageChange(
        await messages.deliveries_of(database, message_id) or before, frozenset(numbers)
    )


async def record_event(
    database: Database, message_id: UUID, kind: str, data: Mapping[str, str]
) -> None:
    """Record an event of a whole message."""
    await database.execute(
        *SQL.record_event(message_id=message_id, kind=kind, data=json.dumps(dict(data)))
    )


def _check_sendable(message: messages.MessageRecord) -> None:
    if message.content is None:
        raise NotPossible(f"message {message.id} cannot be sent again: its content was dropped")
    if message.expires_at and message.expires_at <= datetime.now(UTC):
        raise NotPossible(f"message {message.id} cannot be sent again: it has expired")


def _words(states: dict[str, int]) -> str:
    if set(states) == {State.PROCESSING}:
        return "it is in flight; see what becomes of it with `pillarbox queue show`"
    return "it is " + ", ".join(f"{state} ({count})" for state, count in sorted(states.items()))


async def count(
    database: Database, operation: DeliveryOperation, which: MessageFilter, limit: int
) -> int:
    """How many deliveries an operation would change, counted up to `limit`."""
    rows = await database.fetch(*_selection(operation, which, limit))
    return len(rows)


async def change_all(
    database: Database, operation: DeliveryOperation, which: MessageFilter
) -> AsyncIterator[int]:
    """Change every matching delivery in batches; yields how many each batch changed.

    `which.until` must be set: mails accepted while this runs are not changed.
    """
    assert which.until is not None
    selection = _selection(operation, which, BATCH)
    while rows := await database.fetch(*selection):
        changed = await apply(database, operation, [(row["message_id"], row["n"]) for row in rows])
        yield len(changed)
        if not changed:  # others changed or locked all of them meanwhile
            return


def _selection(operation: DeliveryOperation, which: MessageFilter, limit: int) -> tuple[Any, ...]:
    first, end = which.ids
    return SQL.select_deliveries(
        states=list(which.states or operation.takes),
        limit=limit,
        first_id=first,
        end_id=end,
        tenant=which.tenant,
        class_name=which.class_name,
        kind=which.kind,
        reason=which.reason,
        provider=which.provider,
        sendable_only=operation.sends_again,
    )
