"""Dead letters: failed deliveries with their reasons and their whole history.

Every statement reads a bounded number of deliveries, however many there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import NotFound
from pillarbox.model.delivery import LANES, ROLES, Role
from pillarbox.store import sql
from pillarbox.store.masking import masked_values
from pillarbox.store.messages import MessageFilter

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("dlq")
# Deliveries that one statement reads: some tens of milliseconds, however rare the matches.
LOOKED_AT = 10_000
# Deliveries on a page, with all their attempts: some hundred kilobytes. The last message may add
# a hundred.
MAX_ON_PAGE = 1000
MAX_RECIPIENTS = 100
# Bytes of a raw mail that are read for its header section: four times the limit of SMTP submission.
HEADER_BYTES = 256 * 1024
# Deliveries whose header sections are read at once: 25 MB at most.
ENVELOPES_AT_ONCE = 100
# Counting stops after reading so many: that takes some seconds, and an exact count says no more.
COUNTED = 100_000

Key = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A failed delivery, by its key."""

    message_id: UUID
    n: int
    reason: str | None
    provider: str | None

    @property
    def key(self) -> Key:
        return self.message_id, self.n


@dataclass(frozen=True, slots=True)
class OutgoingEnvelope:
    """The sender and recipient of a delivery; `head` begins with the header section of a raw mail.

    `cut`: the raw mail is longer than `head`.
    """

    sender: str
    recipient: str
    head: bytes | None
    cut: bool


@dataclass(frozen=True, slots=True)
class FailedDeliveryAttempt:
    """One attempt at a delivery; texts are redacted."""

    started_at: datetime
    ended_at: datetime
    provider: str | None
    verdict: str
    reason: str | None
    code: int | None
    reply: str | None


@dataclass(frozen=True, slots=True)
class FailedDeliveryDetails:
    """A failed delivery with its whole history."""

    n: int
    recipient: str
    role: Role
    reason: str | None
    attempts_made: int  # since it was last queued
    failed_at: datetime | None
    provider: str | None
    attempts: Sequence[FailedDeliveryAttempt]

    @property
    def error(self) -> str | None:
        """The code and text of the last reply."""
        if not self.attempts:
            return None
        last = self.attempts[-1]
        parts = [str(last.code or ""), last.reply or ""]
        return " ".join(part for part in parts if part) or None


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message with failed deliveries; `blocked` says why it cannot be sent again."""

    id: UUID
    created_at: datetime
    tenant: str
    class_name: str
    secret: bool
    kind: str | None
    priority: str
    sender: str
    subject: str
    tags: Sequence[str]
    size: int
    expires_at: datetime | None
    blocked: str | None
    deliveries: Sequence[FailedDeliveryDetails]


@dataclass(frozen=True, slots=True)
class FailedMessagePage:
    """Matching messages, and the id before which the next page begins; None at the end."""

    messages: Sequence[FailedMessage]
    next: UUID | None


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """Failed deliveries by reason and provider; not `complete` if counting stopped early."""

    total: int
    reasons: Mapping[str, int]
    providers: Mapping[str, int]
    complete: bool


async def page(
    database: Database, tenant_id: int | None, which: MessageFilter, limit: int
) -> FailedMessagePage:
    """One page of dead letters, newest first; with filters it may be short before the end."""
    first, before = which.ids
    limit_of_deliveries = MAX_ON_PAGE + MAX_RECIPIENTS
    looked_at = LOOKED_AT if _filters(which) else limit_of_deliveries
    end = await _end(database, tenant_id, first, before, looked_at)
    found = await _failed_deliveries(
        database, tenant_id, which, end or first, before, limit_of_deliveries
    )
    by_message: dict[UUID, list[Key]] = defaultdict(list)
    for delivery in found:
        by_message[delivery.message_id].append(delivery.key)
    complete = list(by_message)
    if len(found) == limit_of_deliveries:
        complete.pop()  # the last message may lack some of its deliveries
    shown = _within(complete[:limit], by_message)
    keys = [key for message_id in shown for key in by_message[message_id]]
    messages = await _messages(database, shown, keys)
    is_cut = len(shown) < len(by_message)
    return FailedMessagePage(messages, shown[-1] if is_cut else end)


def _within(ids: Sequence[UUID], by_message: Mapping[UUID, Sequence[Key]]) -> Sequence[UUID]:
    """As many messages as fit on a page by their deliveries; at least one."""
    total = 0
    for index, message_id in enumerate(ids):
        total += len(by_message[message_id])
        if index and total > MAX_ON_PAGE:
            return ids[:index]
    return ids


def _filters(which: MessageFilter) -> bool:
    """Whether the filter excludes any delivery."""
    return which.has_text_filters or which.reason is not None


async def _end(
    database: Database, tenant_id: int | None, first: UUID, before: UUID, count: int
) -> UUID | None:
    """The message at which reading `count` deliveries ends; None if there are fewer."""
    found: UUID | None = await database.fetchval(
        *SQL.dead_end(tenant_id=tenant_id, first_id=first, end_id=before, position=count)
    )
    return found


async def _failed_deliveries(
    database: Database,
    tenant_id: int | None,
    which: MessageFilter,
    first: UUID,
    before: UUID,
    limit: int | None,
) -> list[FailedDelivery]:
    rows = await database.fetch(
        *SQL.dead_letters(
            tenant_id=tenant_id,
            first_id=first,
            end_id=before,
            limit=limit,
            class_name=which.class_name,
            kind=which.kind,
            tag=which.tag,
            sender=which.sender,
            subject=which.subject,
            recipient=which.recipient,
            provider=which.provider,
            reason=which.reason,
        )
    )
    return [FailedDelivery(**row) for row in rows]


async def _messages(
    database: Database, ids: Sequence[UUID], keys: Sequence[Key]
) -> list[FailedMessage]:
    """Messages with the named deliveries and their attempts."""
    message_ids, numbers = columns_of(keys)
    attempts: dict[Key, list[FailedDeliveryAttempt]] = defaultdict(list)
    for row in await database.fetch(
        *SQL.dead_attempts(message_ids=message_ids, recipient_numbers=numbers)
    ):
        values: dict[str, Any] = dict(row)
        key = values.pop("message_id"), values.pop("n")
        attempts[key].append(FailedDeliveryAttempt(**values))
    deliveries: dict[UUID, list[FailedDeliveryDetails]] = defaultdict(list)
    for row in await database.fetch(
        *SQL.dead_deliveries(message_ids=message_ids, recipient_numbers=numbers)
    ):
        values = dict(row) | {"role": ROLES[row["role"]]}
        message_id = values.pop("message_id")
        values["attempts"] = attempts[message_id, row["n"]]
        deliveries[message_id].append(FailedDeliveryDetails(**values))
    rows = await database.fetch(*SQL.dead_messages(message_ids=list(ids)))
    # A message that was reprocessed meanwhile has no failed delivery any more.
    return [
        _message(masked_values(row), deliveries[row["id"]]) for row in rows if deliveries[row["id"]]
    ]


def columns_of(keys: Sequence[Key]) -> tuple[list[UUID], list[int]]:
    """The message ids and the recipient numbers of deliveries, as two lists."""
    return [message_id for message_id, _ in keys], [number for _, number in keys]


def _message(values: dict[str, Any], deliveries: Sequence[FailedDeliveryDetails]) -> FailedMessage:
    return FailedMessage(
        class_name=values.pop("class"),
        priority=LANES[values.pop("lane")],
        tags=values.pop("tags") or (),
        deliveries=deliveries,
        **values,
    )


async def walk(
    database: Database, tenant_id: int | None, which: MessageFilter
) -> AsyncIterator[list[FailedDelivery]]:
    """All matching dead letters, newest first, in lists of what one statement reads."""
    first, before = which.ids
    while True:
        end = await _end(database, tenant_id, first, before, LOOKED_AT)
        yield await _failed_deliveries(database, tenant_id, which, end or first, before, None)
        if end is None:
            return
        before = end


async def summary(database: Database, tenant_id: int | None, which: MessageFilter) -> FailureCounts:
    """Matching dead letters counted by reason and by the last provider."""
    reasons: Counter[str] = Counter()
    providers: Counter[str] = Counter()
    looked_at = 0
    complete = True
    async for deliveries in walk(database, tenant_id, which):
        if looked_at >= COUNTED:
            complete = False
            break
        reasons.update(delivery.reason or "" for delivery in deliveries)
        providers.update(delivery.provider for delivery in deliveries if delivery.provider)
        looked_at += LOOKED_AT
    return FailureCounts(
        reasons.total(), dict(reasons.most_common()), dict(providers.most_common()), complete
    )


async def provider_id(database: Database, name: str, tenant_id: int | None) -> int:
    """The id of an enabled provider by its name; NotFound if the tenant may not use it."""
    found = await database.fetchval(*SQL.usable_provider(name=name, tenant_id=tenant_id))
    if found is None:
        raise NotFound(
            f"there is no provider {name!r} that is enabled: see `pillarbox provider list`"
        )
    return int(found)


async def outgoing_envelopes(
    database: Database, keys: Sequence[Key]
) -> AsyncIterator[OutgoingEnvelope]:
    """The sender and recipient of deliveries, in the order given."""
    for start in range(0, len(keys), ENVELOPES_AT_ONCE):
        message_ids, numbers = columns_of(keys[start : start + ENVELOPES_AT_ONCE])
        rows = await database.fetch(
            *SQL.outgoing_envelopes(
                message_ids=message_ids, recipient_numbers=numbers, max_bytes=HEADER_BYTES
            )
        )
        for row in rows:
            yield OutgoingEnvelope(
                row["sender"] or "", row["recipient"] or "", row["raw"], bool(row["cut"])
            )
