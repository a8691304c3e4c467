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
    kinds: Sequence[str] = field(metadata=about("Empty: all events."))
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: DisabledReasonName | None = field(
        metadata=about(
            "`failing`: only failures for days; `gone`: it answered 410; `person`: by request."
        )
    )
    failing_since: datetime | None = field(metadata=about("Since when every call failed."))
    waiting: int = field(metadata=about("The number of calls that are due or wait for a retry."))
    old_secret_until: datetime | None = field(
        metadata=about("Until when calls are signed with both secrets.")
    )
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WebhookWithSecret(WebhookDetails):
    """A webhook with its new secret, which is shown only once."""

    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookList:
    webhooks: Sequence[WebhookDetails]


@dataclass(frozen=True, slots=True)
class WebhookTest:
    """The result of a test call."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """A call, and the result of its last attempt."""

    id: UUID = field(metadata=about("As in the header `webhook-id`; the same for every attempt."))
    type: str
    timestamp: datetime = field(metadata=about("The time of the event."))
    message_id: UUID | None
    delivery_id: str | None
    state: CallStateName
    attempts: int = field(metadata=about("The attempts since the call was created or replayed."))
    replays: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    status: int | None = field(metadata=about("The HTTP status of the last response."))
    error: str | None = field(metadata=about("The error of the last attempt, redacted."))
    seconds: float | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallPage:
    """Calls, newest first; `next_cursor` is the `cursor` of the next page."""

    calls: Sequence[WebhookCall]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many calls will be repeated."""

    replayed: int
    next_cursor: str | None = field(
        metadata=about("Where to continue: one request considers at most 10,000 calls.")
    )
