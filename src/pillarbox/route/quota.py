"""What is left of a provider's rates and budget for a lane; higher lanes have reserves. Pure.

`pillarbox._spend` decides when mails are sent, in SQL; this tells people what it would decide.
tests/integration/route/test_routes.py compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from pillarbox.route.explain import ExhaustedLimit, ObstacleReason

# A shorter wait counts as none; as in pillarbox._wait.
NEGLIGIBLE = 0.001


@dataclass(frozen=True, slots=True)
class RateUsage:
    """A rate of `limit` mails in so many seconds, and until when it is used up."""

    limit: int
    seconds: int
    used_until: datetime | None
    reserved: bool = False  # whether higher lanes have reserves in it


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a provider has used up, and its reserves in percent."""

    rates: Sequence[RateUsage] = ()
    spent: Decimal = Decimal(0)
    price: Decimal = Decimal(0)  # of one more mail
    budget: Decimal | None = None
    reserve_urgent: int = 10
    reserve_normal: int = 20


def reserved_from(lane: str, reserve_urgent: int, reserve_normal: int) -> Decimal:
    """The part of a limit that mails of a lane must leave to higher lanes."""
    if lane == "urgent":
        percent = 0
    elif lane == "normal":
        percent = reserve_urgent
    else:
        percent = reserve_urgent + reserve_normal
    return Decimal(percent) / 100


def exhausted_limits(usage: QuotaUsage, lane: str, now: datetime) -> list[ExhaustedLimit]:
    """The limits that keep one more mail of a lane from leaving now; the budget first."""
    reserved = reserved_from(lane, usage.reserve_urgent, usage.reserve_normal)
    found = []
    if usage.budget is not None:
        available = usage.budget * (1 - reserved)
        if usage.spent + usage.price > available:
            found.append(ExhaustedLimit(ObstacleReason.BUDGET, next_month(now)))
    longest = max((_wait(rate, reserved, now) for rate in usage.rates), default=0.0)
    if longest:
        found.append(ExhaustedLimit(ObstacleReason.RATE, now + timedelta(seconds=longest)))
    return found


def _wait(rate: RateUsage, reserved: Decimal, now: datetime) -> float:
    """Seconds until one more mail may leave. A tenth of the limit may leave in one burst."""
    if rate.used_until is None:
        return 0.0
    burst = max(1, rate.limit // 10)
    if rate.reserved:
        burst -= int(burst * reserved)
    used = max(0.0, (rate.used_until - now).total_seconds())
    wait = used - (burst - 1) * rate.seconds / rate.limit
    return wait if wait > NEGLIGIBLE else 0.0


def next_month(now: datetime) -> datetime:
    """When the month (UTC) ends."""
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1)
