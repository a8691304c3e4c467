"""Stored messages: listings, and everything known about one message."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import NotFound
from pillarbox.model.delivery import LANES, ROLES, Role, State
from pillarbox.model.message import Content, Message
from pillarbox.model.retry import POLICIES
from pillarbox.store import sql
from pillarbox.store.contents import read_attachments
from pillarbox.store.masking import masked_content, masked_values
from pillarbox.store.provider_waits import outage_since
from pillarbox.store.rate_limit_wait import RateLimitWait, find_rate_limit_wait

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database, Db

SQL = sql.load("messages")
# States with a partial index of their own: listing them does not walk the history.
INDEXED = frozenset({"pending", "queued", "processing", "failed", "held"})
WAITING = (State.PENDING, State.QUEUED, State.PROCESSING)
FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
# Characters that identify a message by the beginning or end of its id. The first 8 are its time:
# fewer would match all messages of some days. The last 8 are random: among RECENT ids two are equal
# with a chance of one in a million.
SHORTEST_PART = 8
# The last group of an id: what lists print for people.
SHORT = 12
# Ids that are listed when several match.
FEW = 5
# The newest messages among which the end of an id is searched, by the primary key: about ten
# milliseconds of work, however many messages there are.
RECENT = 100_000


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages; None means any.

    `recipient`, `sender` and `subject` match a part, ignoring case.
    """

    states: Sequence[str] = ()
    tenant: str | None = None
    class_name: str | None = None
    kind: str | None = None
    tag: str | None = None
    sender: str | None = None
    recipient: str | None = None
    provider: str | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: UUID | None = None
    subject: str | None = None

    @property
    def ids(self) -> tuple[UUID, UUID]:
        """The range of ids: the first, and the one after the last."""
        first = id_at(self.since) if self.since else FIRST_ID
        end = id_at(self.until) if self.until else LAST_ID
        if self.before:
            end = min(end, self.before)
        return first, end

    @property
    def has_text_filters(self) -> bool:
        """Whether it filters by anything but states, reasons and times."""
        texts = (
            self.class_name,
            self.kind,
            self.tag,
            self.sender,
            self.subject,
            self.recipient,
            self.provider,
        )
        return any(text is not None for text in texts)


@dataclass(frozen=True, slots=True)
class MessageListItem:
    """One message in a listing; `states` are in the order of `recipients`."""

    id: UUID
    created_at: datetime
    tenant: str
    class_name: str
    kind: str | None
    priority: str
    sender: str
    subject: str
    tags: Sequence[str]
    recipients: Sequence[str]
    states: Sequence[str]
    attempts: int
    next_attempt_at: datetime | None
    reasons: Sequence[str]
    providers: Sequence[str]


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message as accepted, and the sizes of what is left of its content."""

    id: UUID
    created_at: datetime
    tenant: str
    class_name: str
    secret: bool
    kind: str | None
    priority: str
    sender: str
    to: Sequence[str]
    cc: Sequence[str]
    reply_to: Sequence[str]
    subject: str
    headers: dict[str, str]
    tags: Sequence[str]
    metadata: dict[str, Any]
    size: int
    send_at: datetime | None
    expires_at: datetime | None
    max_attempts: int | None
    idempotency_key: str | None
    retry: str | None  # the class's policy
    unknown: str | None
    max_wait: timedelta | None  # longest wait of the class for a provider; None: no limit
    content: dict[str, int] | None  # bytes by part; None when it was dropped


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    n: int
    recipient: str
    role: Role
    state: str
    attempts: int
    next_attempt_at: datetime
    claimed_at: datetime | None
    settled_at: datetime | None
    reason: str | None
    retry: str | None  # the policy followed, once it was deferred
    provider: str | None
    provider_removed: bool
    claim: int | None
    worker: int | None
    waiting_since: datetime | None  # when it first found no provider, since the last attempt


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The outcome of one attempt for one recipient; rows with equal claim and step are one attempt.

    A mail that fails over is tried through several providers in one claim; `step` counts them
    from 0.
    """

    claim: int
    step: int
    n: int
    started_at: datetime
    ended_at: datetime
    provider: str | None
    provider_removed: bool
    worker: str | None
    verdict: str
    reason: str | None
    code: int | None
    reply: str | None
    provider_message_id: str | None
    conversation: str | None


def provider_name(facts: DeliveryRecord | AttemptRecord) -> str:
    """The provider's name for people; another provider may have the name of a removed one."""
    if facts.provider is None:
        return ""
    return f"{facts.provider} (removed)" if facts.provider_removed else facts.provider


@dataclass(frozen=True, slots=True)
class EventRecord:
    at: datetime
    n: int | None
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """Everything known about one message."""

    message: MessageRecord
    deliveries: Sequence[DeliveryRecord]
    attempts: Sequence[AttemptRecord] = field(default_factory=list)
    events: Sequence[EventRecord] = field(default_factory=list)
    waiting: RateLimitWait | None = None  # the rate limit that holds back what is due
    # Since then no provider can be used for any mail; only set if a delivery is queued.
    outage_since: datetime | None = None

    def waits_for_provider(self, delivery: DeliveryRecord) -> datetime | None:
        """Since when a delivery waits for a provider; None if it does not."""
        if delivery.state not in WAITING:
            return None
        due = delivery.state == State.QUEUED and delivery.next_attempt_at <= datetime.now(UTC)
        if delivery.waiting_since is None and self.outage_since is not None and due:
            return max(self.outage_since, delivery.next_attempt_at)
        return delivery.waiting_since


def id_at(when: datetime) -> UUID:
    """The smallest id of a message accepted at that time: ids are ordered by their milliseconds."""
    milliseconds = min(max(int(when.timestamp() * 1000), 0), 2**48 - 1)
    return UUID(int=milliseconds << 80)


async def list_messages(
    database: Database, which: MessageFilter, limit: int
) -> list[MessageListItem]:
    """Messages, newest first; `before` continues after the last one."""
    statement = SQL.list_messages
    if which.states and INDEXED.issuperset(which.states):
        statement = SQL.list_unfinished
    first, end = which.ids
    rows = await database.fetch(
        *statement(
            first_id=first,
            end_id=end,
            limit=limit,
            tenant=which.tenant,
            class_name=which.class_name,
            kind=which.kind,
            tag=which.tag,
            sender=which.sender,
            states=list(which.states) or None,
            recipient=which.recipient,
            provider=which.provider,
            reason=which.reason,
        )
    )
    return [_listed(row) for row in rows]


def _listed(row: asyncpg.Record) -> MessageListItem:
    values = masked_values(row)
    del values["secret"]
    for name in ("tags", "reasons", "providers"):
        values[name] = values[name] or ()
    return MessageListItem(
        class_name=values.pop("class"),
        priority=LANES[values.pop("lane")],
        **values,
    )


def short_id(message_id: UUID) -> str:
    """The random end of an id; `find_message` finds it among the newest messages."""
    return message_id.hex[-SHORT:]


async def oldest_recent(database: Database) -> UUID:
    """The oldest id that `find_message` finds by its end."""
    found: UUID | None = await database.fetchval(*SQL.oldest_recent(position=RECENT))
    return found or FIRST_ID


async def find_message(database: Database, text: str) -> UUID:
    """The id that begins or ends with this text; NotFound if none or several do.

    The beginning of an id is its time, which messages of the same moment share; the end is searched
    among the newest messages.
    """
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(f"[0-9a-f]{{{SHORTEST_PART},32}}", digits):
        raise NotFound(
            f"{text!r} is not a message id: give it whole, or its first or last {SHORTEST_PART}"
            " characters or more"
        )
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    beginning = await _ids(database, SQL.find_messages(first_id=first, last_id=last))
    ending: list[UUID] = []
    if len(digits) < 32:
        ending = await _ids(database, SQL.find_recent(ending=digits, newest=RECENT))
    found = list(dict.fromkeys([*beginning, *ending]))
    if not found:
        raise NotFound(
            f"there is no message {text}: see `pillarbox queue list` (the end of an id is looked"
            f" for among the newest {RECENT:,})"
        )
    if len(found) > 1:
        raise NotFound(
            f"{text} names several messages: give more of the id\n{_candidates(beginning, ending)}"
        )
    return found[0]


async def _ids(database: Database, statement: tuple[Any, ...]) -> list[UUID]:
    return [UUID(str(row["id"])) for row in await database.fetch(*statement)]


def _candidates(begin: Sequence[UUID], end: Sequence[UUID]) -> str:
    """Matching ids, one per line; at most a few of each kind are searched."""
    lines = [f"  {message_id} begins with it" for message_id in begin]
    lines += [f"  {message_id} ends with it" for message_id in end]
    if FEW in (len(begin), len(end)):
        lines.append("  and perhaps more")
    return "\n".join(lines)


async def message_details(
    database: Database, message_id: UUID, tenant_id: int | None = None
) -> MessageDetails:
    """Everything that retention left of a message; NotFound if it is not that tenant's."""
    envelope = await message_record(database, message_id, tenant_id)
    attempts = await database.fetch(*SQL.attempts(message_id=message_id))
    events = await database.fetch(*SQL.events(message_id=message_id))
    deliveries = await deliveries_of(database, message_id, tenant_id)
    rate_limit_wait = unavailable_since = None
    if any(delivery.state == State.QUEUED for delivery in deliveries):
        rate_limit_wait = await find_rate_limit_wait(database, message_id)
        unavailable_since = await outage_since(database)
    return MessageDetails(
        envelope,
        deliveries,
        [AttemptRecord(**row) for row in attempts],
        [EventRecord(row["at"], row["n"], row["kind"], _object(row["data"])) for row in events],
        rate_limit_wait,
        unavailable_since,
    )


async def message_record(
    database: Database, message_id: UUID, tenant_id: int | None = None
) -> MessageRecord:
    """A message as accepted; NotFound if it does not exist or is another tenant's."""
    return _envelope(masked_values(await _row(database, message_id, tenant_id)))


async def for_resending(
    database: Database, message_id: UUID, tenant_id: int
) -> tuple[MessageRecord, Content | None]:
    """A message and its content, not masked: to send it again, never to show it."""
    row = await _row(database, message_id, tenant_id)
    stored = await database.fetchrow(*SQL.content(message_id=message_id))
    return _envelope(dict(row)), None if stored is None else _content(stored)


async def _row(database: Database, message_id: UUID, tenant_id: int | None) -> asyncpg.Record:
    row = await database.fetchrow(*SQL.message(id=message_id, tenant_id=tenant_id))
    if row is None:
        raise NotFound(f"there is no message {message_id}: see `pillarbox queue list`")
    return row


async def deliveries_of(
    database: Db, message_id: UUID, tenant_id: int | None = None
) -> list[DeliveryRecord]:
    """The deliveries of a message in order; empty if it does not exist or is another tenant's."""
    rows = await database.fetch(*SQL.deliveries(message_id=message_id, tenant_id=tenant_id))
    return [DeliveryRecord(**{**row, "role": ROLES[row["role"]]}) for row in rows]


def _envelope(values: dict[str, Any]) -> MessageRecord:
    for name in ("cc", "reply_to", "tags"):
        values[name] = values[name] or ()
    sizes = {name: values.pop(f"{name}_size") for name in ("text", "html", "raw")}
    sizes["attachments"] = values.pop("attachment_count")
    content = None
    if values.pop("has_content"):
        content = {name: size for name, size in sizes.items() if size}
    return MessageRecord(
        class_name=values.pop("class"),
        priority=LANES[values.pop("lane")],
        headers=_object(values.pop("headers")),
        metadata=_object(values.pop("metadata")),
        content=content,
        **values,
    )


def _object(stored: str | None) -> dict[str, Any]:
    if not stored:
        return {}
    try:
        return dict(json.loads(stored))
    except RecursionError:  # PostgreSQL holds deeper objects than Python reads
        return {"not_shown": "nested too deeply"}


async def content(database: Database, message_id: UUID) -> Content | None:
    """The content of a message as it may be shown; None when it was dropped."""
    row = await database.fetchrow(*SQL.content(message_id=message_id))
    if row is None:
        return None
    return masked_content(_content(row)) if row["secret"] else _content(row)


def _content(row: asyncpg.Record) -> Content:
    return Content(
        row["text"],
        row["html"],
        row["raw"],
        read_attachments(row["attachments"]),
    )


def message_of(envelope: MessageRecord) -> Message:
    """The message as the composer takes it."""
    return Message(
        envelope.id,
        envelope.sender,
        envelope.to,
        envelope.subject,
        envelope.created_at,
        envelope.cc,
        envelope.reply_to,
        envelope.headers,
    )


def policy_of(delivery: DeliveryRecord, envelope: MessageRecord) -> str | None:
    """The retry policy of a delivery; None before the first attempt if the class has none."""
    return delivery.retry or envelope.retry


def remaining(delivery: DeliveryRecord, envelope: MessageRecord) -> list[float]:
    """The waits after the next attempt, without jitter."""
    policy = POLICIES.get(policy_of(delivery, envelope) or "")
    if policy is None or delivery.state not in WAITING:
        return []
    return policy.schedule(envelope.max_attempts)[delivery.attempts :]


async def states_of(database: Database, message_ids: Sequence[UUID]) -> dict[str, int]:
    """The deliveries of these messages, counted by state."""
    rows = await database.fetch(*SQL.states(message_ids=list(message_ids)))
    return {row["state"]: row["count"] for row in rows}


@dataclass(frozen=True, slots=True)
class Deferral:
    """Deferred deliveries: of one message by recipient, of several messages by reason only."""

    recipient: str | None
    reason: str
    count: int
    attempts: int
    next_attempt_at: datetime


async def deferrals_of(database: Database, message_ids: Sequence[UUID]) -> list[Deferral]:
    """The deferred deliveries of these messages."""
    rows = await database.fetch(*SQL.deferrals(message_ids=list(message_ids)))
    return [Deferral(**row) for row in rows]
