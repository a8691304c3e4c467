"""Webhooks, and the log of the calls made to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from pillarbox.wire.fields import CallStateName, DisabledReasonName, about


@dataclass(frozen=True, slots=True)
class WebhookDetails:
    """A webhook, without its secret."""

    id: UUID
    url: str
    kinds: Sequence[str] = field(metadata=about("None: everything."))
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: DisabledReasonName | None = field(
        metadata=about(
            "`failing`: nothing but failures for days; `gone`: it answered 410; `person`: somebody did."
        )
    )
    failing_since: datetime | None = field(metadata=about("Nothing but failures since then."))
    waiting: int = field(metadata=about("Calls to be made, those that are repeated included."))
    old_secret_until: datetime | None = field(
        metadata=about("Until then calls are signed with both secrets.")
    )
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WebhookWithSecret(WebhookDetails):
    """A webhook with its new secret, which is shown this once."""

    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookList:
    webhooks: Sequence[WebhookDetails]


@dataclass(frozen=True, slots=True)
class WebhookTest:
    """How a test call went."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """A call, and how its last try ended."""

    id: UUID = field(metadata=about("As in the header `webhook-id`: the same for every try."))
    type: str
    timestamp: datetime = field(metadata=about("When that happened which is told."))
    message_id: UUID | None
    delivery_id: str | None
    state: CallStateName
    attempts: int = field(metadata=about("Since the call was made, or replayed."))
    replays: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    status: int | None = field(metadata=about("Of the last answer."))
    error: str | None = field(metadata=about("What was wrong with it; redacted."))
    seconds: float | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallPage:
    """Calls, newest first; `next_cursor` goes into `cursor` for the next page."""

    calls: Sequence[WebhookCall]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many calls will be made again."""

    replayed: int
    next_cursor: str | None = field(
        metadata=about("Where to go on when more fit: 10,000 are looked at in one request.")
    )
