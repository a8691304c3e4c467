"""How providers are, and what they have used up, as all processes see it. Workers write this; here it is read."""

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

QUERIES = sql.load("health")
SECONDS = {"second": 1, "hour": 3600, "day": 86400}


@dataclass(frozen=True, slots=True)
class HealthRow:
    """A provider's circuit breaker, its pause and its last check."""

    state: str = "closed"  # closed, open or half_open
    reason: str | None = None  # of the last failure
    since: datetime | None = None  # of the state
    retry_at: datetime | None = None  # when an open one may be probed
    held_until: datetime | None = None  # the provider asked for a pause until then
    opened: int = 0  # how often, less those forgiven
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
    used_until: datetime | None  # what has left was allowed for until then

    @property
    def seconds(self) -> int:
        return SECONDS[self.period]


@dataclass(frozen=True, slots=True)
class ProviderUse:
    """A provider, removed ones, too, with its limits and what is used of them this month (UTC) and now."""

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
    mails: (
        int  # recipients of what left through it this month; counted only where they have a price
    )
    at: datetime  # now, by the database's clock

    @property
    def price(self) -> Decimal:
        """Of one mail to one recipient."""
        return (self.price_per_thousand or Decimal(0)) / 1000

    @property
    def spent(self) -> Decimal:
        """The money of this month."""
        return self.mails * self.price

    @property
    def share(self) -> float | None:
        """How much of the budget is spent; None without one."""
        if self.budget_per_month is None:
            return None
        return float(self.spent / self.budget_per_month) if self.budget_per_month else 1.0

    @property
    def money(self) -> dict[str, Any] | None:
        """As programs see it; None where mails have no price."""
        if self.price_per_thousand is None:
            return None
        return {
            "price_per_thousand": float(self.price_per_thousand),
            "budget_per_month": None if self.budget_per_month is None else float(self.budget_per_month),
            "mails": self.mails, "spent": float(self.spent), "used": self.share,
            "reserve_urgent": self.reserve_urgent, "reserve_normal": self.reserve_normal,
        }  # fmt: skip


async def list_health(database: Database) -> dict[int, HealthRow]:
    """How providers are, by their ids; one that is missing is well."""
    rows = await database.fetch(QUERIES["list_health"])
    return {row["provider_id"]: HealthRow(*tuple(row)[1:]) for row in rows}


async def list_events(
    database: Database, provider_id: int | None = None, limit: int = 50, before: int | None = None
) -> list[ProviderEvent]:
    """What became of a provider, or of all, newest first; `before` the event with that id."""
    rows = await database.fetch(QUERIES["list_events"], provider_id, limit, before)
    return [
        ProviderEvent(
            row["id"], row["at"], row["provider"], row["kind"], json.loads(row["data"] or "{}")
        )
        for row in rows
    ]


async def list_usage(database: Database) -> dict[int, ProviderUse]:
    """What providers have used up, by their ids."""
    found = {}
    for row in await database.fetch(QUERIES["list_usage"]):
        values: dict[str, Any] = dict(row)
        limits = [
            (period, values.pop(f"rate_per_{period}"), values.pop(f"{period}_at"))
            for period in SECONDS
        ]
        rates = tuple(RateUse(*one) for one in limits if one[1] is not None)
        found[row["id"]] = ProviderUse(rates=rates, **values)
    return found
