"""What people and keys do to deliveries: retry, discard, cancel, release, reschedule; each change told as an event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason
from pillarbox.model.retry import POLICIES
from pillarbox.store import messages
from pillarbox.store.messages import QUERIES, MessageFilter

if TYPE_CHECKING:
    from pillarbox.store.database import Database, Db
    from pillarbox.store.messages import DeliveryRecord

# Deliveries per statement: it stays well under a second, and workers wait for its locks no longer
# than that.
BATCH = 500

Keys = Sequence[tuple[UUID, int]]
# Who did it, as the event tells: a person at the command line, or a key by its name.
Who = Mapping[str, str]
PERSON: Who = {"who": "person"}


@dataclass(frozen=True, slots=True)
class DeliveryOperation:
    """What a person can do to deliveries: from which states, to which, why, and as what it is told."""

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
        return json.dumps({**who, "as": self.how} if self.how else who)


RETRY = DeliveryOperation("retried", (State.FAILED,), State.QUEUED, "retried")
# As RETRY, with more to choose; and giving dead letters up.
REPROCESS = DeliveryOperation("reprocessed", (State.FAILED,), State.QUEUED, "reprocessed")
DISCARD = DeliveryOperation(
    "discarded", (State.FAILED,), State.CANCELLED, "discarded", reason=Reason.CANCELLED
)
# A mail of an account that is rendered again from its token, as another message.
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
# A person knows, or accepts that the mail may arrive twice.
RELEASES = {
    "resend": DeliveryOperation("released", (State.HELD,), State.QUEUED, "released", "resend"),
    "sent": DeliveryOperation("released", (State.HELD,), State.SENT, "released", "sent"),
    "failed": DeliveryOperation(
        "released", (State.HELD,), State.FAILED, "released", "failed", Reason.LOST
    ),
}


@dataclass(frozen=True, slots=True)
class ResendOptions:
    """How deliveries are sent again: through a provider of a person's choice, and with which count of attempts.

    `keep_attempts`: those made before still count, but one more is always left.
    """

    provider_id: int | None = None
    provider: str | None = None
    keep_attempts: bool = False

    @property
    def limits(self) -> Mapping[str, int]:
        """How many attempts the policies allow; another provider may follow any of them, so the strictest counts."""
        least = min(one.max_attempts for one in POLICIES.values())
        return {
            name: one.max_attempts if self.provider_id is None else least
            for name, one in POLICIES.items()
        }

    def told(self) -> dict[str, str]:
        """What the event tells of it."""
        return {"via": self.provider} if self.provider else {}


AS_USUAL = ResendOptions()


async def apply(
    database: Db,
    operation: DeliveryOperation,
    keys: Keys,
    who: Who = PERSON,
    manner: ResendOptions = AS_USUAL,
) -> Keys:
    """Carry an operation out on deliveries; returns those that were in a state to take it."""
    columns = [message_id for message_id, _ in keys], [n for _, n in keys]
    takes, event, data = (
        list(operation.takes),
        operation.event,
        operation.data({**who, **manner.told()}),
    )
    if operation.sends_again:
        limits = list(manner.limits), list(manner.limits.values())
        rows = await database.fetch(
            QUERIES["requeue"],
            *columns,
            takes,
            event,
            data,
            manner.provider_id,
            manner.keep_attempts,
            *limits,
        )
        await database.execute(QUERIES["wake"])
    else:
        rows = await database.fetch(
            QUERIES["finish"], *columns, takes, operation.to, operation.reason, event, data
        )
    return [(row["message_id"], row["n"]) for row in rows]


async def change_message(
    database: Database, operation: DeliveryOperation, message_id: UUID, n: int | None = None
) -> Keys:
    """Change the deliveries of one message (or only number `n`) that can be; NotPossible if none can."""
    story = await messages.story(database, message_id)
    keys = [
        (message_id, one.n)
        for one in story.deliveries
        if one.state in operation.takes and n in (None, one.n)
    ]
    if keys and operation.sends_again:
        _check_sendable(story.message)
    changed = await apply(database, operation, keys) if keys else []
    if not changed:
        states = await messages.states_of(database, [message_id])
        raise NotPossible(
            f"nothing of message {message_id} can be {operation.word}: {_words(states)}"
        )
    return changed


@dataclass(frozen=True, slots=True)
class MessageChange:
    """What was asked of one message came to: its deliveries as they are now, and the numbers of those changed."""

    deliveries: Sequence[DeliveryRecord]
    changed: frozenset[int]


async def cancel(database: Database, message_id: UUID, tenant_id: int, who: Who) -> MessageChange:
    """Cancel what can be of a tenant's message."""
    deliveries = await _deliveries(database, message_id, tenant_id)
    keys = [(message_id, one.n) for one in deliveries if one.state in CANCEL.takes]
    changed = await apply(database, CANCEL, keys, who) if keys else []
    return await _changed(database, message_id, deliveries, [n for _, n in changed])


async def reschedule(
    database: Database, message_id: UUID, tenant_id: int, send_at: datetime, who: Who
) -> MessageChange:
    """Let a tenant's message wait until then, as far as it was not tried yet; a time that has passed sends it now."""
    deliveries = await _deliveries(database, message_id, tenant_id)
    numbers = [one.n for one in deliveries]
    data = json.dumps({**who, "send_at": send_at.astimezone(UTC).isoformat()})
    rows = await database.fetch(QUERIES["reschedule"], message_id, numbers, send_at, data)
    if rows:
        await database.execute(QUERIES["wake"])
    return await _changed(database, message_id, deliveries, [row["n"] for row in rows])


async def _deliveries(database: Database, message_id: UUID, tenant_id: int) -> list[DeliveryRecord]:
    deliveries = await messages.deliveries_of(database, message_id, tenant_id)
    if not deliveries:
        raise NotFound(f"there is no message {message_id}")
    return deliveries


async def _changed(
    database: Database, message_id: UUID, before: Sequence[DeliveryRecord], numbers: Sequence[int]
) -> MessageChange:
    """The deliveries as they are now: even where nothing was changed, a worker may have been quicker."""
    return MessageChange(
        await messages.deliveries_of(database, message_id) or before, frozenset(numbers)
    )


async def tell(database: Database, message_id: UUID, kind: str, data: Mapping[str, str]) -> None:
    """Record an event of a whole message."""
    await database.execute(QUERIES["tell"], message_id, kind, json.dumps(dict(data)))


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
    database: Database, operation: DeliveryOperation, which: MessageFilter, most: int
) -> int:
    """How many deliveries an operation would change, at most `most`."""
    rows = await database.fetch(QUERIES["select_deliveries"], *_selection(operation, which, most))
    return len(rows)


async def change_all(
    database: Database, operation: DeliveryOperation, which: MessageFilter
) -> AsyncIterator[int]:
    """Change every delivery that fits, batch by batch; yields how many each batch changed.

    `which.until` must be set: what is accepted while this runs is left alone.
    """
    assert which.until is not None
    selection = _selection(operation, which, BATCH)
    while rows := await database.fetch(QUERIES["select_deliveries"], *selection):
        changed = await apply(database, operation, [(row["message_id"], row["n"]) for row in rows])
        yield len(changed)
        if not changed:  # others took them all meanwhile, and hold them
            return


def _selection(
    operation: DeliveryOperation, which: MessageFilter, limit: int
) -> tuple[object, ...]:
    states = list(which.states or operation.takes)
    names = which.tenant, which.class_name, which.kind, which.reason, which.provider
    return states, limit, *which.ids, *names, operation.sends_again
