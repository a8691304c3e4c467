"""Webhooks and the calls made to them, as they are given and shown."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pillarbox.api.fields import StrictModel, Timestamp
from pillarbox.api.listing import MAX_PAGE_SIZE, Cursor, checked_cursor
from pillarbox.model.delivery import delivery_id
from pillarbox.model.webhook import CallState, DisabledReason, WebhookEventType
from pillarbox.store.webhook_log import MOST_REPLAYED, WebhookCallRecord
from pillarbox.store.webhooks import WebhookEndpoint

# Ids in one request: some tens of kilobytes.
MAX_IDS = 1000
Kinds = Annotated[
    list[WebhookEventType],
    Field(description="What to be told of; none: everything.", max_length=len(WebhookEventType)),
]
Url = Annotated[str, Field(description="Of the public internet, with https.", max_length=2048)]


class NewWebhook(StrictModel):
    """A webhook to add."""

    url: Url
    kinds: Annotated[Kinds, Field(default_factory=list)]


class WebhookChange(StrictModel):
    """What to change; what is left out stays as it is."""

    url: Url | None = None
    kinds: Kinds | None = None
    enabled: bool | None = None


class WebhookShown(BaseModel):
    """A webhook, without its secret."""

    id: UUID
    url: str
    kinds: Annotated[list[str], Field(description="None: everything.")]
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: Annotated[
        DisabledReason | None,
        Field(
            description="`failing`: nothing but failures for days; `gone`: it answered 410; `person`: somebody did."
        ),
    ]
    failing_since: Annotated[datetime | None, Field(description="Nothing but failures since then.")]
    waiting: Annotated[
        int, Field(description="Calls to be made, those that are repeated included.")
    ]
    old_secret_until: Annotated[
        datetime | None, Field(description="Until then calls are signed with both secrets.")
    ]
    created_at: datetime


class WebhookMade(WebhookShown):
    """A webhook with its new secret, which is shown this once."""

    secret: str


class WebhookList(BaseModel):
    webhooks: list[WebhookShown]


class TestShown(BaseModel):
    """How a test call went."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float


class CallShown(BaseModel):
    """A call, and how its last try ended."""

    id: Annotated[UUID, Field(description="As in the header `webhook-id`: the same for every try.")]
    type: str
    timestamp: Annotated[datetime, Field(description="When that happened which is told.")]
    message_id: UUID | None
    delivery_id: str | None
    state: CallState
    attempts: Annotated[int, Field(description="Since the call was made, or replayed.")]
    replays: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    status: Annotated[int | None, Field(description="Of the last answer.")]
    error: Annotated[str | None, Field(description="What was wrong with it; redacted.")]
    seconds: float | None
    data: dict[str, Any]


class CallPage(BaseModel):
    """Calls, newest first; `next_cursor` goes into `cursor` for the next page."""

    calls: list[CallShown]
    next_cursor: str | None


class CallQuery(BaseModel):
    """Which calls."""

    model_config = ConfigDict(extra="forbid")

    state: list[CallState] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 50
    cursor: Cursor = None


class Replay(StrictModel):
    """Which calls to make again: `calls`, or those in a state (failed, when none is given) made in a time."""

    calls: Annotated[list[UUID] | None, Field(min_length=1, max_length=MAX_IDS)] = None
    state: list[CallState] | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None
    cursor: Annotated[
        Annotated[str, Field(max_length=22)]
        | None,  # in a body it may be null, which has no length
        AfterValidator(checked_cursor),
        Field(description="`next_cursor` of the answer before."),
    ] = None

    @model_validator(mode="after")
    def _one_way(self) -> Replay:
        if self.calls is not None and (self.state or self.since or self.until or self.cursor):
            raise ValueError("give calls, or state, since and until, not both")
        if self.calls is None and self.since is None and not self.state:
            raise ValueError("say which: calls, or since, or a state")
        return self


class Replayed(BaseModel):
    """How many calls will be made again."""

    replayed: int
    next_cursor: Annotated[
        str | None,
        Field(
            description=f"Where to go on when more fit: {MOST_REPLAYED:,} are looked at in one request."
        ),
    ]


def webhook_shown(one: WebhookEndpoint) -> WebhookShown:
    given = {name: getattr(one, name) for name in WebhookShown.model_fields}
    return WebhookShown(**given | {"kinds": list(one.kinds or ())})


def call_shown(one: WebhookCallRecord) -> CallShown:
    about = None if one.message_id is None or one.n is None else delivery_id(one.message_id, one.n)
    return CallShown(
        id=one.id, type=one.kind, timestamp=one.at, message_id=one.message_id, delivery_id=about,
        state=CallState(one.state), attempts=one.attempts, replays=one.replays, next_attempt_at=one.next_at,
        last_attempt_at=one.ended_at, status=one.status, error=one.error, seconds=one.took, data=dict(one.payload),
    )  # fmt: skip
