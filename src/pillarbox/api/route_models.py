"""Routes, explanations and the health of providers: requests and responses."""

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
Words = Annotated[tuple[str, ...] | None, Field(description="One must match; null or empty: any.")]
Domains = Annotated[
    tuple[str, ...] | None,
    Field(description="`example.com`, or `*.example.com` for its subdomains; null: any."),
]
Weights = Annotated[
    dict[str, StrictInt] | None,
    Field(
        description="By provider: how often it is chosen first. 0 or missing: only if the others"
        " fail. Null: in order."
    ),
]


class RouteSettings(StrictModel):
    """The settings of a route. An omitted setting is not changed; null removes a condition."""

    sender_domains: Domains = None
    recipient_domains: Domains = None
    tags: Words = None
    lanes: Annotated[
        tuple[LaneWord, ...] | None, Field(description="One must match; null or empty: any.")
    ] = None
    classes: Words = None
    kinds: Words = None
    min_size: Annotated[Octets | None, Field(description="In bytes; null: any.")] = None
    max_size: Annotated[Octets | None, Field(description="In bytes; null: any.")] = None
    weights: Weights = None
    enabled: bool = True
    before: Annotated[
        str | None, Field(description="Move it before this route of the same tenant.")
    ] = None
    place: Annotated[
        StrictInt | None, Field(ge=1, description="Move it to this position, from 1.")
    ] = None

    def given(self) -> dict[str, Any]:
        """The settings in the request, by the names of the store."""
        return self.model_dump(exclude_unset=True)


class NewRoute(RouteSettings):
    """A route to add: for all tenants if it names none, and last if it has no position."""

    name: Name
    tenant: str | None = None
    providers: Annotated[tuple[str, ...], Field(description="In the order of attempts.")]


class RouteChange(RouteSettings):
    """Changes of a route. New providers replace the old ones and their weights."""

    name: Name = ""
    providers: Annotated[tuple[str, ...], Field(description="In the order of attempts.")] = ()


class RouteProvider(BaseModel):
    name: str
    enabled: bool
    removed: Annotated[bool, Field(description="It stays in the route, but is skipped.")]
    weight: int | None


class RouteDetails(BaseModel):
    """A route: mails that match all its conditions are sent through its providers."""

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
    routes: list[RouteDetails]


class MailToExplain(StrictModel):
    """A message by its id, or the description of a mail, with `to`."""

    message_id: UUID | None = None
    from_: Annotated[
        str | None,
        Field(
            alias="from",
            max_length=MAX_FILTER_LENGTH,
            description="An address or domain; default: that of the tenant.",
        ),
    ] = None
    to: Annotated[
        str | None, Field(max_length=MAX_FILTER_LENGTH, description="An address or a domain.")
    ] = None
    tags: tuple[str, ...] = ()
    lane: LaneWord = "normal"
    class_: Annotated[
        str | None, Field(alias="class", description="Default: that of the tenant.")
    ] = None
    kind: str | None = None
    size: Octets = EMPTY
    raw: Annotated[bool, Field(description="A complete mail: by SMTP, or `raw`.")] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.message_id is None) == (self.to is None):
            raise ValueError("must contain either `message_id` or `to`")
        return self


class AnyMailToExplain(MailToExplain):
    """As for a tenant; `tenant` is the tenant of the described mail."""

    tenant: str = "default"


class RuleTried(BaseModel):
    """A rule, in the order in which rules are compared."""

    name: str
    for_: Annotated[Literal["tenant", "all"], Field(alias="for")]
    fits: bool
    misses: Annotated[str | None, Field(description="The condition that the mail does not match.")]
    has: Annotated[str | None, Field(description="The value of the mail.")]
    wants: Annotated[
        str | None,
        Field(description="The value of the rule; hidden if the rule is for all tenants."),
    ]


class ProviderObstacle(BaseModel):
    why: ObstacleReason
    said: str
    until: datetime | None


class ProviderConsidered(BaseModel):
    """A provider of the route, in the order of attempts."""

    name: str
    use: Annotated[
        CandidateUse, Field(description="`used`; `next`: if the previous ones fail; or `skipped`.")
    ]
    share: Annotated[
        float | None, Field(description="The share of mails, if the route has weights.")
    ]
    notes: Annotated[
        list[ProviderObstacle], Field(description="Why it is skipped, or why its mails wait.")
    ]


class Explained(BaseModel):
    """The route of a mail at this moment, and why it was chosen."""

    deliveries: Annotated[list[int], Field(description="The recipient numbers of the message.")]
    sender_domain: str
    recipient_domain: str
    lane: str
    class_: Annotated[str, Field(alias="class")]
    kind: str | None
    tags: list[str]
    size: int
    raw: bool
    rules: list[RuleTried]
    rule: Annotated[str | None, Field(description="The matching rule; null: no rule matches.")]
    decided_by: Literal["rule", "default_order", "person"]
    providers: list[ProviderConsidered]
    provider: Annotated[
        str | None,
        Field(description="The provider through which the mail is sent; null: none is usable now."),
    ]
    fate: Annotated[
        MailFate,
        Field(description="`leaves`; `waits`; or `fails`: no provider of its route can send it."),
    ]


class Explanations(BaseModel):
    """One explanation for each group of recipients with the same route."""

    explanations: list[Explained]


class Budget(BaseModel):
    """The costs of this month (UTC)."""

    price_per_thousand: float
    budget_per_month: float | None
    mails: Annotated[int, Field(description="The number of recipients of sent mails.")]
    spent: float
    used: Annotated[float | None, Field(description="The spent share of the budget, from 0.")]
    reserve_urgent: Annotated[int, Field(description="Percent reserved for urgent mails.")]
    reserve_normal: Annotated[int, Field(description="Percent not available to bulk mails.")]


class ProviderHealth(BaseModel):
    """The health of a provider, as shared by all processes."""

    name: str
    kind: str
    enabled: bool
    release_only: Annotated[bool, Field(description="Used only if a route or a person names it.")]
    state: Annotated[
        Literal["closed", "open", "half_open"],
        Field(description="The state of its circuit breaker."),
    ]
    reason: Annotated[str | None, Field(description="The reason of the last failure.")]
    since: datetime | None
    retry_at: Annotated[
        datetime | None, Field(description="When an open breaker allows the next attempt.")
    ]
    held_until: Annotated[
        datetime | None, Field(description="Until when the provider asked to pause.")
    ]
    opened: Annotated[
        int, Field(description="How often the breaker opened recently; the backoff grows with it.")
    ]
    checked_at: datetime | None
    check_ok: bool | None
    check_said: Annotated[str | None, Field(description="Redacted.")]
    budget: Budget | None


class ProviderHealthList(BaseModel):
    providers: list[ProviderHealth]


class ProviderEventDetails(BaseModel):
    id: int
    at: datetime
    provider: str
    kind: str
    data: dict[str, Any]


class ProviderEventList(BaseModel):
    """Newest first."""

    events: list[ProviderEventDetails]


def route_details(route: Route) -> RouteDetails:
    return RouteDetails.model_validate(route.to_json())


def explained(found: list[Explanation], *, foreign: bool) -> Explanations:
    return Explanations(
        explanations=[
            Explained.model_validate(explanation_json(explanation, foreign=foreign))
            for explanation in found
        ]
    )


def provider_health_details(use: ProviderUse, row: HealthRow) -> ProviderHealth:
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
