"""Webhooks and their calls: requests, and the records made of the rows of the store."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pillarbox.api.fields import StrictModel, Timestamp
from pillarbox.api.pagination import MAX_PAGE_SIZE, Cursor, checked_cursor
from pillarbox.model.delivery import delivery_id
from pillarbox.model.secret import Secret
from pillarbox.model.webhook import CallState, WebhookEventType
from pillarbox.store.webhook_log import WebhookCallRecord
from pillarbox.store.webhooks import WebhookEndpoint
from pillarbox.wire.webhooks import WebhookCall, WebhookDetails, WebhookWithSecret

# Ids in one request: some tens of kilobytes.
MAX_IDS = 1000
Kinds = Annotated[
    list[WebhookEventType],
    Field(description="The events to report; empty: all.", max_length=len(WebhookEventType)),
]
Url = Annotated[str, Field(description="A public https URL.", max_length=2048)]


class NewWebhook(StrictModel):
    """A webhook to add."""

    url: Url
    kinds: Annotated[Kinds, Field(default_factory=list)]


class WebhookChange(StrictModel):
    """The changes; an omitted field is not changed."""

    url: Url | None = None
    kinds: Kinds | None = None
    enabled: bool | None = None


class CallQuery(BaseModel):
    """Filters of the log of calls."""

    model_config = ConfigDict(extra="forbid")

    state: list[CallState] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 50
    cursor: Cursor = None


class Replay(StrictModel):
    """The calls to repeat: `calls`, or those in a state (default: failed) and a period."""

    calls: Annotated[list[UUID] | None, Field(min_length=1, max_length=MAX_IDS)] = None
    state: list[CallState] | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None
    cursor: Annotated[
        Annotated[str, Field(max_length=22)]
        | None,  # in a body it may be null, which has no length
        AfterValidator(checked_cursor),
        Field(description="`next_cursor` of the previous response."),
    ] = None

    @model_validator(mode="after")
    def _one_way(self) -> Replay:
        if self.calls is not None and (self.state or self.since or self.until or self.cursor):
            raise ValueError("must contain either calls, or state, since and until")
        if self.calls is None and self.since is None and not self.state:
            raise ValueError("must contain calls, since or state")
        return self


def webhook_details(endpoint: WebhookEndpoint) -> WebhookDetails:
    return WebhookDetails(
        id=endpoint.id,
        url=endpoint.url,
        kinds=endpoint.kinds or (),
        enabled=endpoint.enabled,
        disabled_at=endpoint.disabled_at,
        disabled_reason=endpoint.disabled_reason,
        failing_since=endpoint.failing_since,
        waiting=endpoint.waiting,
        old_secret_until=endpoint.old_secret_until,
        created_at=endpoint.created_at,
    )


def webhook_with_secret(endpoint: WebhookEndpoint, secret: Secret) -> WebhookWithSecret:
    details = webhook_details(endpoint)
    values = {each.name: getattr(details, each.name) for each in fields(details)}
    return WebhookWithSecret(**values, secret=secret.reveal())


def webhook_call(call: WebhookCallRecord) -> WebhookCall:
    delivery = None
    if call.message_id is not None and call.n is not None:
        delivery = delivery_id(call.message_id, call.n)
    return WebhookCall(
        id=call.id,
        type=call.kind,
        timestamp=call.at,
        message_id=call.message_id,
        delivery_id=delivery,
        state=call.state,
        attempts=call.attempts,
        replays=call.replays,
        next_attempt_at=call.next_at,
        last_attempt_at=call.ended_at,
        status=call.status,
        error=call.error,
        seconds=call.took,
        data=call.payload,
    )
