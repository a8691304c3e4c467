"""Dead letters, and what became of reprocessing or discarding them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pillarbox.wire.fields import RoleName, about, absent, named
from pillarbox.wire.messages import MASKED_SUBJECT, NEXT, NEXT_CURSOR, AttemptSummary


@dataclass(frozen=True, slots=True)
class DeadDelivery:
    """One recipient that did not get the message."""

    id: str
    recipient: str
    role: RoleName
    reason: str | None = field(metadata=about("Why it failed."))
    error: str | None = field(metadata=about("What the provider said last, redacted."))
    failed_at: datetime | None
    provider: str | None
    attempts_made: int = field(metadata=about("Since it was last queued by a person."))
    attempts: Sequence[AttemptSummary] = field(
        metadata=about("All of them, also from before it was queued again.")
    )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of which something failed, and the deliveries that did."""

    id: UUID
    created_at: datetime
    sender: str = field(metadata=named("from"))
    subject: str = field(metadata=about(MASKED_SUBJECT))
    class_: str = field(metadata=named("class"))
    kind: str | None
    priority: str
    tags: Sequence[str]
    size: int = field(metadata=about("Octets when it is sent, roughly."))
    expires_at: datetime | None
    blocked: str | None = field(
        metadata=about("Why it cannot be sent again: `content_purged` or `expired`; null: it can.")
    )
    deliveries: Sequence[DeadDelivery]


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters, newest first. With filters a page can be short before the end: go on while there is a `next`."""

    messages: Sequence[DeadLetter]
    next_cursor: str | None = field(metadata=about(NEXT_CURSOR))
    next: str | None = field(metadata=about(NEXT))


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """How many deliveries failed."""

    total: int
    by_reason: Mapping[str, int] = field(metadata=about("Most first."))
    by_provider: Mapping[str, int] = field(
        metadata=about("By the provider tried last; most first.")
    )
    complete: bool = field(metadata=about("False: there are more, which were not counted."))
    tokens: int = field(
        metadata={
            **about(
                "Tokens of accounts that could not be made mails; not filtered, counted up to 10,000."
            ),
            **absent(0),  # before 0.2
        }
    )


@dataclass(frozen=True, slots=True)
class DeadLettersChanged:
    """What came of it, in deliveries."""

    dry_run: bool
    left: int = field(metadata=about("Fit, too, but the limit was reached: ask again."))
    complete: bool = field(
        metadata=about("False: `left` and `skipped` were not counted to the end.")
    )
    nothing_failed: int = field(
        metadata=about("Messages named that do not exist, or have nothing failed.")
    )


@dataclass(frozen=True, slots=True)
class Discarded(DeadLettersChanged):
    discarded: int


@dataclass(frozen=True, slots=True)
class Reprocessed(DeadLettersChanged):
    requeued: int
    suppressed: int = field(
        metadata=about(
            "Of those requeued: will fail again at once, their recipients being suppressed."
        )
    )
    skipped: Mapping[str, int] = field(
        metadata=about("Cannot be sent: `content_purged`, `expired`; may not: `not_allowed`.")
    )
