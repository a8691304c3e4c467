"""What is left of a provider's rates and budget for one lane: the lanes above have a part of it for themselves. Pure.

`pillarbox._spend` in store/migrations/0009_routes.sql decides; tests/integration/route/test_routes.py holds the two
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from pillarbox.route.explain import ExhaustedLimit, ObstacleReason

# Seconds that are no wait; as in pillarbox._wait.
SLIGHT = 0.001


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of so many mails in so many seconds, and until when what has left was allowed for."""

    most: int
    seconds: int
    used_until: datetime | None
    reserved: bool = False  # whether lanes have their parts of it


@dataclass(frozen=True, slots=True)
class Usage:
    """What a provider has used up, and what is reserved of it, in percent."""

    rates: Sequence[Rate] = ()
    spent: Decimal = Decimal(0)
    price: Decimal = Decimal(0)  # of one more
    budget: Decimal | None = None
    reserve_urgent: int = 10
    reserve_normal: int = 20


def kept_from(lane: str, reserve_urgent: int, reserve_normal: int) -> Decimal:
    """The part of a limit that is not for mails of a lane: bulk ones leave both reserves, normal ones the first."""
    percent = {"urgent": 0, "normal": reserve_urgent}.get(lane, reserve_urgent + reserve_normal)
    return Decimal(percent) / 100


def used_up(usage: Usage, lane: str, now: datetime) -> list[ExhaustedLimit]:
    """The limits that keep one more mail of a lane from leaving now, with their ends; the budget first."""
    kept = kept_from(lane, usage.reserve_urgent, usage.reserve_normal)
    found = []
    if usage.budget is not None and usage.spent + usage.price > usage.budget * (1 - kept):
        found.append(ExhaustedLimit(ObstacleReason.BUDGET, next_month(now)))
    waits = [_wait(rate, kept if rate.reserved else Decimal(0), now) for rate in usage.rates]
    if longest := max(waits, default=0.0):
        found.append(ExhaustedLimit(ObstacleReason.RATE, now + timedelta(seconds=longest)))
    return found


def _wait(rate: Rate, kept: Decimal, now: datetime) -> float:
    """Seconds until one more may leave: a tenth of the limit, and at least one, may leave in one go."""
    burst = max(1, rate.most // 10)
    mine = burst - int(burst * kept)
    used = max(0.0, (rate.used_until - now).total_seconds()) if rate.used_until is not None else 0.0
    wait = used - (mine - 1) * rate.seconds / rate.most
    return wait if wait > SLIGHT else 0.0


def next_month(now: datetime) -> datetime:
    """When the month (UTC) is over."""
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1)
