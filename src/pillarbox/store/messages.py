"""Messages as people look at them: listings, and the whole story of one."""

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
from pillarbox.store.rate_limit_wait import RateLimitWait, waiting

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.store.database import Database, Db

QUERIES = sql.load("messages")
# States with a partial index of their own: listing them does not walk the history.
INDEXED = frozenset({"pending", "queued", "processing", "failed", "held"})
WAITING = (State.PENDING, State.QUEUED, State.PROCESSING)
FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
# Characters of an id that name a message, from its beginning or its end. The first 8 are its time:
# fewer would name everything of some days. The last 8 are random: among RECENT ids two alike are a
# chance of one in a million.
SHORTEST_PART = 8
# The last group of an id: what lists print for people.
SHORT = 12
# Ids that are listed when several fit.
FEW = 5
# The newest messages among which the end of an id is looked for, by the primary key: some ten
# milliseconds of work, however many there are.
RECENT = 100_000


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages; None means any. `recipient`, `sender` and `subject` match a part, ignoring case."""

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
        """The ids in question: the first, and the one after the last."""
        first = id_at(self.since) if self.since else FIRST_ID
        end = id_at(self.until) if self.until else LAST_ID
        return first, min(end, self.before) if self.before else end


@dataclass(frozen=True, slots=True)
class MessageListItem:
    """One message in a listing; `states` go with `recipients`."""

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
    """A message as accepted, and what is left of its content."""

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
    max_wait: timedelta | None  # how long the class lets it wait for a provider; None: for ever
    content: dict[str, int] | None  # octets by part; None when it was dropped


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
    """How one attempt ended for one recipient. Rows with the same claim and step are one attempt.

    A mail that fails over is tried through several providers in one claim: `step` counts these,
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
    """The provider's name for people; another may have that name since it was removed."""
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
    outage_since: datetime | None = (
        None  # no provider can be used for any mail since then; told of queued ones only
    )

    def waits_for_provider(self, delivery: DeliveryRecord) -> datetime | None:
        """Since when a delivery waits for a provider; None: it does not."""
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
    """Messages newest first. Continue after the last one with `before`."""
    indexed = which.states and INDEXED.issuperset(which.states)
    rows = await database.fetch(
        QUERIES["list_unfinished" if indexed else "list_messages"],
        *which.ids, limit, which.tenant, which.class_name, which.kind, which.tag, which.sender,
        list(which.states) or None, which.recipient, which.provider, which.reason,
    )  # fmt: skip
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
    """The end of an id, which is random: `find_message` finds it among the newest messages."""
    return message_id.hex[-SHORT:]


async def oldest_recent(database: Database) -> UUID:
    """The oldest id whose end `find_message` looks at."""
    found: UUID | None = await database.fetchval(QUERIES["oldest_recent"], RECENT)
    return found or FIRST_ID


async def find_message(database: Database, text: str) -> UUID:
    """The id that begins or ends like this; NotFound when there is none, or more than one.

    The beginning of an id is its time and names all messages of that moment; the end is looked for
    among the newest.
    """
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(f"[0-9a-f]{{{SHORTEST_PART},32}}", digits):
        raise NotFound(
            f"{text!r} is not a message id: give it whole, or its first or last {SHORTEST_PART} characters or more"
        )
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    begin = [row["id"] for row in await database.fetch(QUERIES["find_messages"], first, last)]
    end = []
    if len(digits) < 32:
        end = [row["id"] for row in await database.fetch(QUERIES["find_recent"], digits, RECENT)]
    found = dict.fromkeys([*begin, *end])
    if not found:
        raise NotFound(
            f"there is no message {text}: see `pillarbox queue list` (the end of an id is looked for among the"
            f" newest {RECENT:,})"
        )
    if len(found) > 1:
        raise NotFound(
            f"{text} names several messages: give more of the id\n{_candidates(begin, end)}"
        )
    return UUID(str(next(iter(found))))


def _candidates(begin: Sequence[UUID], end: Sequence[UUID]) -> str:
    """Ids that fit, with how: at most a few of each are looked up."""
    lines = [f"  {one} begins with it" for one in begin] + [f"  {one} ends with it" for one in end]
    if FEW in (len(begin), len(end)):
        lines.append("  and perhaps more")
    return "\n".join(lines)


async def story(
    database: Database, message_id: UUID, tenant_id: int | None = None
) -> MessageDetails:
    """The whole story of a message, as far as retention left it; with a tenant, only if the message is its own."""
    envelope = await envelope_of(database, message_id, tenant_id)
    attempts = await database.fetch(QUERIES["attempts"], message_id)
    events = await database.fetch(QUERIES["events"], message_id)
    deliveries = await deliveries_of(database, message_id, tenant_id)
    queued = any(one.state == State.QUEUED for one in deliveries)
    return MessageDetails(
        envelope,
        deliveries,
        [AttemptRecord(**dict(one)) for one in attempts],
        [EventRecord(one["at"], one["n"], one["kind"], _object(one["data"])) for one in events],
        await waiting(database, message_id) if queued else None,
        await outage_since(database) if queued else None,
    )


async def envelope_of(
    database: Database, message_id: UUID, tenant_id: int | None = None
) -> MessageRecord:
    """A message as accepted; NotFound if there is none, or none of that tenant."""
    return _envelope(masked_values(await _row(database, message_id, tenant_id)))


async def for_resending(
    database: Database, message_id: UUID, tenant_id: int
) -> tuple[MessageRecord, Content | None]:
    """A message and its content, not masked: to send it again, never to show it."""
    row = await _row(database, message_id, tenant_id)
    stored = await database.fetchrow(QUERIES["content"], message_id)
    return _envelope(dict(row)), None if stored is None else _content(stored)


async def _row(database: Database, message_id: UUID, tenant_id: int | None) -> asyncpg.Record:
    row = await database.fetchrow(QUERIES["message"], message_id, tenant_id)
    if row is None:
        raise NotFound(f"there is no message {message_id}: see `pillarbox queue list`")
    return row


async def deliveries_of(
    database: Db, message_id: UUID, tenant_id: int | None = None
) -> list[DeliveryRecord]:
    """The deliveries of a message, in order; none if there is no such message, or none of that tenant."""
    rows = await database.fetch(QUERIES["deliveries"], message_id, tenant_id)
    return [DeliveryRecord(**dict(one) | {"role": ROLES[one["role"]]}) for one in rows]


def _envelope(values: dict[str, Any]) -> MessageRecord:
    for name in ("cc", "reply_to", "tags"):
        values[name] = values[name] or ()
    sizes = {name: values.pop(f"{name}_size") for name in ("text", "html", "raw")}
    sizes["attachments"] = values.pop("attachment_count")
    has_content = values.pop("has_content")
    return MessageRecord(
        class_name=values.pop("class"),
        priority=LANES[values.pop("lane")],
        headers=_object(values.pop("headers")),
        metadata=_object(values.pop("metadata")),
        content={name: size for name, size in sizes.items() if size} if has_content else None,
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
    row = await database.fetchrow(QUERIES["content"], message_id)
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
    one = envelope
    return Message(
        one.id, one.sender, one.to, one.subject, one.created_at, one.cc, one.reply_to, one.headers
    )


def policy_of(delivery: DeliveryRecord, envelope: MessageRecord) -> str | None:
    """The retry policy followed; None while no provider was asked and the class has none of its own."""
    return delivery.retry or envelope.retry


def remaining(delivery: DeliveryRecord, envelope: MessageRecord) -> list[float]:
    """The waits still ahead after the next attempt, without their jitter."""
    policy = POLICIES.get(policy_of(delivery, envelope) or "")
    if policy is None or delivery.state not in WAITING:
        return []
    return policy.schedule(envelope.max_attempts)[delivery.attempts :]


async def states_of(database: Database, message_ids: Sequence[UUID]) -> dict[str, int]:
    """How many deliveries of these messages are in which state."""
    rows = await database.fetch(QUERIES["states"], list(message_ids))
    return {row["state"]: row["count"] for row in rows}


@dataclass(frozen=True, slots=True)
class Deferral:
    """Deliveries that wait again: of one message by recipient, of several (no recipient) by reason."""

    recipient: str | None
    reason: str
    count: int
    attempts: int
    next_attempt_at: datetime


async def deferrals_of(database: Database, message_ids: Sequence[UUID]) -> list[Deferral]:
    """What deliveries of these messages wait for again."""
    return [Deferral(*row) for row in await database.fetch(QUERIES["deferrals"], list(message_ids))]
