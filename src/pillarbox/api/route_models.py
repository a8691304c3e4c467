"""Routes, explanations and the health of providers as they are given and shown."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from pillarbox.api.fields import MAX_FILTER_LENGTH, Name, StrictInt, StrictModel
from pillarbox.model.access_settings import MAX_INTEGER
from pillarbox.route.explain import CandidateUse, Explanation, MailFate, ObstacleReason
from pillarbox.route.explain_json import explanation_json
from pillarbox.route.explain_query import EMPTY
from pillarbox.store.health import HealthRow, ProviderUse
from pillarbox.store.routes import Route

LaneWord = Literal["urgent", "normal", "bulk"]
Octets = Annotated[StrictInt, Field(ge=0, le=MAX_INTEGER)]
Words = Annotated[tuple[str, ...] | None, Field(description="One must fit; null or empty: any.")]
Domains = Annotated[
    tuple[str, ...] | None,
    Field(description="`example.com`, or `*.example.com` for its subdomains; null: any."),
]
Weights = Annotated[
    dict[str, StrictInt] | None,
    Field(
        description="By provider: the first is drawn by them. 0 or none: when the others cannot. Null: in order."
    ),
]


class RouteSettings(StrictModel):
    """What can be said about a route. What is left out stays as it is; null takes a condition away."""

    sender_domains: Domains = None
    recipient_domains: Domains = None
    tags: Words = None
    lanes: Annotated[
        tuple[LaneWord, ...] | None, Field(description="One must fit; null or empty: any.")
    ] = None
    classes: Words = None
    kinds: Words = None
    min_size: Annotated[Octets | None, Field(description="In octets; null: any.")] = None
    max_size: Annotated[Octets | None, Field(description="In octets; null: any.")] = None
    weights: Weights = None
    enabled: bool = True
    before: Annotated[
        str | None, Field(description="Put it before this route of the same tenant.")
    ] = None
    place: Annotated[StrictInt | None, Field(ge=1, description="Put it at this place.")] = None

    def given(self) -> dict[str, Any]:
        """What was given, by the names that the store has for it."""
        return self.model_dump(exclude_unset=True)


class NewRoute(RouteSettings):
    """A route to add. Without a tenant it is for all; it stands last unless it is put somewhere."""

    name: Name
    tenant: str | None = None
    providers: Annotated[
        tuple[str, ...], Field(description="In the order in which they are tried.")
    ]


class RouteChange(RouteSettings):
    """What to change of a route. Providers given anew have no weights but those given with them."""

    name: Name = ""
    providers: Annotated[
        tuple[str, ...], Field(description="In the order in which they are tried.")
    ] = ()


class RouteProvider(BaseModel):
    name: str
    enabled: bool
    removed: Annotated[bool, Field(description="It stays in the route, and is passed over.")]
    weight: int | None


class RouteShown(BaseModel):
    """A route: mails that meet all its conditions leave through its providers."""

    id: int
    name: str
    tenant: Annotated[str | None, Field(description="Null: for all tenants, after their own.")]
    place: int
    enabled: bool
    sender_domains: tuple[str, ...] | None
    recipient_domains: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    classes: tuple[str, ...] | None
    kinds: tuple[str, ...] | None
    min_size: int | None
    max_size: int | None
    providers: list[RouteProvider]
    created_at: datetime


class RouteList(BaseModel):
    routes: list[RouteShown]


class MailToExplain(StrictModel):
    """A message by its id; or a mail that nobody has sent yet, with `to`."""

    message_id: UUID | None = None
    from_: Annotated[
        str | None,
        Field(
            alias="from",
            max_length=MAX_FILTER_LENGTH,
            description="An address or domain; else the tenant's default.",
        ),
    ] = None
    to: Annotated[
        str | None, Field(max_length=MAX_FILTER_LENGTH, description="An address or a domain.")
    ] = None
    tags: tuple[str, ...] = ()
    lane: LaneWord = "normal"
    class_: Annotated[
        str | None, Field(alias="class", description="Else the tenant's default.")
    ] = None
    kind: str | None = None
    size: Octets = EMPTY
    raw: Annotated[bool, Field(description="A finished mail: by SMTP, or `raw`.")] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.message_id is None) == (self.to is None):
            raise ValueError("give `message_id`, or describe a mail with `to`")
        return self


class AnyMailToExplain(MailToExplain):
    """As for a tenant; `tenant` says whose mail it is that is described."""

    tenant: str = "default"


class RuleTried(BaseModel):
    """A rule that was looked at, in order."""

    name: str
    for_: Annotated[Literal["tenant", "all"], Field(alias="for")]
    fits: bool
    misses: Annotated[str | None, Field(description="The condition that the mail does not meet.")]
    has: Annotated[str | None, Field(description="What the mail has there.")]
    wants: Annotated[
        str | None, Field(description="What the rule wants; hidden where it is for all.")
    ]


class Obstacle(BaseModel):
    why: ObstacleReason
    said: str
    until: datetime | None


class ProviderConsidered(BaseModel):
    """A provider of the route, in the order in which they are tried."""

    name: str
    use: Annotated[
        CandidateUse, Field(description="`used`; `next`: if those before it fail; or `skipped`.")
    ]
    share: Annotated[
        float | None, Field(description="Of the mails, where they are drawn by weight.")
    ]
    notes: Annotated[
        list[Obstacle], Field(description="Why it is skipped, or what makes its mails wait.")
    ]


class Explained(BaseModel):
    """Which route a mail takes now, and why."""

    deliveries: Annotated[list[int], Field(description="Of a message: the recipients' numbers.")]
    sender_domain: str
    recipient_domain: str
    lane: str
    class_: Annotated[str, Field(alias="class")]
    kind: str | None
    tags: list[str]
    size: int
    raw: bool
    rules: list[RuleTried]
    rule: Annotated[str | None, Field(description="The one that fits; null: none does.")]
    decided_by: Literal["rule", "default_order", "person"]
    providers: list[ProviderConsidered]
    provider: Annotated[
        str | None, Field(description="The one that the mail leaves through; null: none now.")
    ]
    fate: Annotated[
        MailFate,
        Field(description="`leaves`; `waits`; or `fails`: no provider of its route can carry it."),
    ]


class Explanations(BaseModel):
    """One for each way that recipients of the message go."""

    explanations: list[Explained]


class Budget(BaseModel):
    """Money of this month (UTC)."""

    price_per_thousand: float
    budget_per_month: float | None
    mails: Annotated[int, Field(description="Recipients of what left.")]
    spent: float
    used: Annotated[
        float | None, Field(description="The part of the budget that is spent, from 0 on.")
    ]
    reserve_urgent: Annotated[int, Field(description="In percent: only for urgent mails.")]
    reserve_normal: Annotated[int, Field(description="In percent: not for bulk mails.")]


class ProviderHealth(BaseModel):
    """How a provider is, as all processes see it."""

    name: str
    kind: str
    enabled: bool
    release_only: Annotated[
        bool, Field(description="Used only where a route or a person names it.")
    ]
    state: Annotated[
        Literal["closed", "open", "half_open"], Field(description="Of its circuit breaker.")
    ]
    reason: Annotated[str | None, Field(description="Of the last failure.")]
    since: datetime | None
    retry_at: Annotated[datetime | None, Field(description="When an open one is tried again.")]
    held_until: Annotated[datetime | None, Field(description="It asked for a pause until then.")]
    opened: Annotated[
        int, Field(description="How often it opened lately: the more, the longer it waits.")
    ]
    checked_at: datetime | None
    check_ok: bool | None
    check_said: Annotated[str | None, Field(description="Redacted.")]
    budget: Budget | None


class ProviderHealthList(BaseModel):
    providers: list[ProviderHealth]


class ProviderEventShown(BaseModel):
    id: int
    at: datetime
    provider: str
    kind: str
    data: dict[str, Any]


class ProviderEventList(BaseModel):
    """Newest first."""

    events: list[ProviderEventShown]


def route_shown(one: Route) -> RouteShown:
    return RouteShown.model_validate(one.shown())


def explained(found: list[Explanation], *, foreign: bool) -> Explanations:
    return Explanations(
        explanations=[
            Explained.model_validate(explanation_json(one, foreign=foreign)) for one in found
        ]
    )


def health_shown(use: ProviderUse, row: HealthRow) -> ProviderHealth:
    budget = Budget(**use.money) if use.money else None
    values = {name: getattr(row, name) for name in HealthRow.__slots__}
    return ProviderHealth(
        name=use.name,
        kind=use.kind,
        enabled=use.enabled,
        release_only=use.release_only,
        budget=budget,
        **values,
    )
