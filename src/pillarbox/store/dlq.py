"""Dead letters: deliveries that failed, and why, with their whole history.

Whoever looks at them looks at a bounded number in one statement, however many there are.
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

QUERIES = sql.load("dlq")
# Deliveries that one statement looks at: some tens of milliseconds, however many there are and rare
# the hits.
LOOKED_AT = 10_000
# Deliveries on a page, with all their attempts: some hundred kilobytes. A message more may have a
# hundred.
MOST_ON_PAGE = 1000
MOST_RECIPIENTS = 100
# How much of a raw mail is read for its header section: four times what a mail that comes by SMTP
# may have.
HEADER_OCTETS = 256 * 1024
# So many are read at once: 25 MB at most.
LEAVING_AT_ONCE = 100
# Counting stops when so many were looked at: that takes some seconds; beyond it one need not know
# more than that.
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
    """From whom and to whom a delivery would leave; `head` begins with the header section of a raw mail.

    `cut`: the mail goes on behind `head`.
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
        """What was said last."""
        last = self.attempts[-1] if self.attempts else None
        words = [str(last.code) if last.code else None, last.reply] if last else []
        return " ".join(word for word in words if word) or None


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message of which something failed; `blocked` is what keeps it from being sent again."""

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
    """Messages that fit, and the id before which the next page begins; None at the end."""

    messages: Sequence[FailedMessage]
    next: UUID | None


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """How many deliveries failed, and why. Not `complete`: there may be more than were looked at."""

    total: int
    reasons: Mapping[str, int]
    providers: Mapping[str, int]
    complete: bool


async def page(
    database: Database, tenant_id: int | None, which: MessageFilter, limit: int
) -> FailedMessagePage:
    """One page of dead letters, newest first; with filters it can be short, or empty, before the end."""
    first, before = which.ids
    most = MOST_ON_PAGE + MOST_RECIPIENTS
    end = await _end(database, tenant_id, first, before, LOOKED_AT if _filters(which) else most)
    found = await _letters(database, tenant_id, which, end or first, before, most)
    by_message: dict[UUID, list[Key]] = defaultdict(list)
    for one in found:
        by_message[one.message_id].append(one.key)
    whole = (
        list(by_message)[:-1] if len(found) == most else list(by_message)
    )  # the last may lack some
    shown = _within(whole[:limit], by_message)
    messages = await _messages(database, shown, [key for one in shown for key in by_message[one]])
    return FailedMessagePage(messages, shown[-1] if len(shown) < len(by_message) else end)


def _within(ids: Sequence[UUID], by_message: Mapping[UUID, Sequence[Key]]) -> Sequence[UUID]:
    """As many messages as a page holds, by their deliveries; one at least."""
    total = 0
    for place, one in enumerate(ids):
        total += len(by_message[one])
        if place and total > MOST_ON_PAGE:
            return ids[:place]
    return ids


def _filters(which: MessageFilter) -> bool:
    """Whether a delivery may be passed over."""
    names = (
        which.class_name,
        which.kind,
        which.tag,
        which.sender,
        which.subject,
        which.recipient,
        which.provider,
    )
    return any(one is not None for one in (*names, which.reason))


async def _end(
    database: Database, tenant_id: int | None, first: UUID, before: UUID, count: int
) -> UUID | None:
    """Where a look at so many ends; None when that is beyond the last."""
    found: UUID | None = await database.fetchval(
        QUERIES["dead_end"], tenant_id, first, before, count
    )
    return found


async def _letters(
    database: Database,
    tenant_id: int | None,
    which: MessageFilter,
    first: UUID,
    before: UUID,
    limit: int | None,
) -> list[FailedDelivery]:
    rows = await database.fetch(
        QUERIES["dead_letters"], tenant_id, first, before, limit, which.class_name, which.kind, which.tag, which.sender,
        which.subject, which.recipient, which.provider, which.reason,
    )  # fmt: skip
    return [FailedDelivery(*row) for row in rows]


async def _messages(
    database: Database, ids: Sequence[UUID], keys: Sequence[Key]
) -> list[FailedMessage]:
    """Messages with those of their deliveries that were asked for."""
    columns = [message_id for message_id, _ in keys], [n for _, n in keys]
    tries: dict[Key, list[FailedDeliveryAttempt]] = defaultdict(list)
    for message_id, n, *rest in await database.fetch(QUERIES["dead_attempts"], *columns):
        tries[message_id, n].append(FailedDeliveryAttempt(*rest))
    deliveries: dict[UUID, list[FailedDeliveryDetails]] = defaultdict(list)
    for row in await database.fetch(QUERIES["dead_deliveries"], *columns):
        values: dict[str, Any] = dict(row) | {"role": ROLES[row["role"]]}
        message_id = values.pop("message_id")
        deliveries[message_id].append(
            FailedDeliveryDetails(**values, attempts=tries[message_id, row["n"]])
        )
    rows = await database.fetch(QUERIES["dead_messages"], list(ids))
    # One that was reprocessed since has nothing left to show.
    return [
        _message(masked_values(row), deliveries[row["id"]]) for row in rows if deliveries[row["id"]]
    ]


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
    """All dead letters that fit, newest first, as many at a time as one statement may look at."""
    first, before = which.ids
    while True:
        end = await _end(database, tenant_id, first, before, LOOKED_AT)
        yield await _letters(database, tenant_id, which, end or first, before, None)
        if end is None:
            return
        before = end


async def summary(database: Database, tenant_id: int | None, which: MessageFilter) -> FailureCounts:
    """How many fit, by reason and by the provider tried last."""
    reasons: Counter[str] = Counter()
    providers: Counter[str] = Counter()
    looked = 0
    async for letters in walk(database, tenant_id, which):
        if looked >= COUNTED:
            return FailureCounts(
                reasons.total(), dict(reasons.most_common()), dict(providers.most_common()), False
            )
        reasons.update(one.reason or "" for one in letters)
        providers.update(one.provider for one in letters if one.provider)
        looked += LOOKED_AT
    return FailureCounts(
        reasons.total(), dict(reasons.most_common()), dict(providers.most_common()), True
    )


async def provider_id(database: Database, name: str, tenant_id: int | None) -> int:
    """The provider that was chosen by its name; NotFound unless this tenant's mails may leave through it."""
    found = await database.fetchval(QUERIES["choosable"], name, tenant_id)
    if found is None:
        raise NotFound(
            f"there is no provider {name!r} that is enabled: see `pillarbox provider list`"
        )
    return int(found)


async def leaving(database: Database, keys: Sequence[Key]) -> AsyncIterator[OutgoingEnvelope]:
    """From whom and to whom deliveries would leave, in the order given."""
    for start in range(0, len(keys), LEAVING_AT_ONCE):
        some = keys[start : start + LEAVING_AT_ONCE]
        columns = [message_id for message_id, _ in some], [n for _, n in some]
        for row in await database.fetch(QUERIES["leaving"], *columns, HEADER_OCTETS):
            yield OutgoingEnvelope(
                row["sender"] or "", row["recipient"] or "", row["raw"], bool(row["cut"])
            )
