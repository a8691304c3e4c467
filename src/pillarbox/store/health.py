"""Reads the health and usage of providers, which workers write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pillarbox.store import sql

if TYPE_CHECKING:
    from pillarbox.store.database import Database

SQL = sql.load("health")
SECONDS = {"second": 1, "hour": 3600, "day": 86400}


@dataclass(frozen=True, slots=True)
class HealthRow:
    """A provider's circuit breaker, its pause and its last check."""

    state: str = "closed"  # closed, open or half_open
    reason: str | None = None  # of the last failure
    since: datetime | None = None  # of the state
    retry_at: datetime | None = None  # when an open one may be probed
    held_until: datetime | None = None  # the provider asked for a pause until then
    opened: int = 0  # how often, without forgotten openings
    checked_at: datetime | None = None
    check_ok: bool | None = None
    check_said: str | None = None  # redacted


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    id: int
    at: datetime
    provider: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RateUse:
    """One rate limit of a provider."""

    period: str  # second, hour or day
    limit: int
    used_until: datetime | None  # the rate is used up until then

    @property
    def seconds(self) -> int:
        return SECONDS[self.period]


@dataclass(frozen=True, slots=True)
class ProviderUse:
    """The limits of a provider, and what is used of them now and in this month (UTC)."""

    id: int
    name: str
    kind: str
    enabled: bool
    release_only: bool
    removed: bool
    rates: Sequence[RateUse]
    price_per_thousand: Decimal | None
    budget_per_month: Decimal | None
    reserve_urgent: int
    reserve_normal: int
    mails: int  # recipients of this month's mails; counted only if they have a price
    at: datetime  # now, by the database's clock

    @property
    def price(self) -> Decimal:
        """The price of one mail to one recipient."""
        return (self.price_per_thousand or Decimal(0)) / 1000

    @property
    def spent(self) -> Decimal:
        """What the mails of this month cost."""
        return self.mails * self.price

    @property
    def share(self) -> float | None:
        """The part of the budget that is spent; None without a budget."""
        if self.budget_per_month is None:
            return None
        if not self.budget_per_month:
            return 1.0
        return float(self.spent / self.budget_per_month)

    @property
    def money(self) -> dict[str, Any] | None:
        """Price, budget and costs as JSON; None if mails have no price."""
        if self.price_per_thousand is None:
            return None
        budget = self.budget_per_month
        return {
            "price_per_thousand": float(self.price_per_thousand),
            "budget_per_month": None if budget is None else float(budget),
            "mails": self.mails,
            "spent": float(self.spent),
            "used": self.share,
            "reserve_urgent": self.reserve_urgent,
            "reserve_normal": self.reserve_normal,
        }


async def list_health(database: Database) -> dict[int, HealthRow]:
    """The health of providers by id; a missing one is healthy."""
    found = {}
    for row in await database.fetch(*SQL.list_health()):
        values: dict[str, Any] = dict(row)
        provider_id = values.pop("provider_id")
        found[provider_id] = HealthRow(**values)
    return found


async def list_events(
    database: Database, provider_id: int | None = None, limit: int = 50, before: int | None = None
) -> list[ProviderEvent]:
    """Events of a provider, or of all, newest first; `before` the event with that id."""
    rows = await database.fetch(
        *SQL.list_events(provider_id=provider_id, limit=limit, before=before)
    )
    return [
        ProviderEvent(
            row["id"], row["at"], row["provider"], row["kind"], json.loads(row["data"] or "{}")
        )
        for row in rows
    ]


async def list_usage(database: Database) -> dict[int, ProviderUse]:
    """Limits and usage of providers by id, of removed ones, too."""
    found = {}
    for row in await database.fetch(*SQL.list_usage()):
        values: dict[str, Any] = dict(row)
        rates = []
        for period in SECONDS:
            limit, used_until = values.pop(f"rate_per_{period}"), values.pop(f"{period}_at")
            if limit is not None:
                rates.append(RateUse(period, limit, used_until))
        found[row["id"]] = ProviderUse(rates=rates, **values)
    return found
