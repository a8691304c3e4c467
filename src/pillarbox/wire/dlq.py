"""Dead letters, and the results of reprocessing or discarding them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pillarbox.wire.fields import RoleName, about, absent, named
from pillarbox.wire.messages import MASKED_SUBJECT, NEXT, NEXT_CURSOR, AttemptSummary


@dataclass(frozen=True, slots=True)
class DeadDelivery:
    """A failed delivery."""

    id: str
    recipient: str
    role: RoleName
    reason: str | None = field(metadata=about("Why it failed."))
    error: str | None = field(metadata=about("The code and text of the last reply, redacted."))
    failed_at: datetime | None
    provider: str | None
    attempts_made: int = field(metadata=about("The attempts since a person last queued it."))
    attempts: Sequence[AttemptSummary] = field(
        metadata=about("All attempts, including those before it was queued again.")
    )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message with failed deliveries."""

    id: UUID
    created_at: datetime
    sender: str = field(metadata=named("from"))
    subject: str = field(metadata=about(MASKED_SUBJECT))
    class_: str = field(metadata=named("class"))
    kind: str | None
    priority: str
    tags: Sequence[str]
    size: int = field(metadata=about("The approximate size in bytes when it is sent."))
    expires_at: datetime | None
    blocked: str | None = field(
        metadata=about("Why it cannot be sent again: `content_purged` or `expired`; null: it can.")
    )
    deliveries: Sequence[DeadDelivery]


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters, newest first.

    With filters a page can be short before the end: continue while there is a `next`.
    """

    messages: Sequence[DeadLetter]
    next_cursor: str | None = field(metadata=about(NEXT_CURSOR))
    next: str | None = field(metadata=about(NEXT))


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """How many deliveries failed."""

    total: int
    by_reason: Mapping[str, int] = field(metadata=about("The largest number first."))
    by_provider: Mapping[str, int] = field(
        metadata=about("By the provider of the last attempt; the largest number first.")
    )
    complete: bool = field(
        metadata=about("False: counting stopped at a limit, and there are more.")
    )
    tokens: int = field(
        metadata={
            **about(
                "Tokens of accounts for which no mail could be created; unfiltered, at most 10,000."
            ),
            **absent(0),  # before 0.2
        }
    )


@dataclass(frozen=True, slots=True)
class DeadLettersChanged:
    """Numbers of deliveries."""

    dry_run: bool
    left: int = field(metadata=about("Matching deliveries beyond the limit: repeat the request."))
    complete: bool = field(
        metadata=about("False: `left` and `skipped` were not counted completely.")
    )
    nothing_failed: int = field(
        metadata=about("Messages in `message_ids` that do not exist, or have no failed delivery.")
    )


@dataclass(frozen=True, slots=True)
class Discarded(DeadLettersChanged):
    discarded: int


@dataclass(frozen=True, slots=True)
class Reprocessed(DeadLettersChanged):
    requeued: int
    suppressed: int = field(
        metadata=about("How many of `requeued` will fail again: their recipients are suppressed.")
    )
    skipped: Mapping[str, int] = field(
        metadata=about("By reason: `content_purged`, `expired` or `not_allowed`.")
    )
