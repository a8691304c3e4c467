"""Retry policies: pure functions of the number of attempts made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pillarbox.model.provider_kinds import kind_of

MINUTE = 60.0
# A provider may ask for any wait; more than an hour would look like a lost mail.
LONGEST_RETRY_AFTER = 3600.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits `wait(k)` seconds after attempt k, times a jitter between `low` and `high`."""

    name: str
    max_attempts: int
    wait: Callable[[int], float]
    low: float = 1.0
    high: float = 1.0

    def exhausted(self, attempts: int, limit: int | None = None) -> bool:
        """Whether no attempt is left; the message's own `limit` overrides that of the policy."""
        if limit is None:
            limit = self.max_attempts
        return attempts >= limit

    def delay(
        self,
        attempts: int,
        limit: int | None = None,
        chance: float = 0.5,
        retry_after: float | None = None,
    ) -> float | None:
        """Seconds until the next attempt; None if no attempt is left."""
        if self.exhausted(attempts, limit):
            return None
        jitter = self.low + (self.high - self.low) * chance
        asked_for = min(retry_after or 0.0, LONGEST_RETRY_AFTER)
        return max(self.wait(attempts) * jitter, asked_for)

    def schedule(self, limit: int | None = None) -> list[float]:
        """The waits without jitter."""
        return [self.wait(attempt) for attempt in range(1, limit or self.max_attempts)]


def _steps(*seconds: float) -> Callable[[int], float]:
    return lambda attempts: seconds[min(attempts, len(seconds)) - 1]


# For SMTP servers, which may greylist or be down for hours: 1, 4, 9 … minutes, ten attempts.
QUADRATIC = RetryPolicy("quadratic", 10, lambda attempts: attempts * attempts * MINUTE)
# For HTTP providers, which recover in seconds: five retries, each wait halved at most by jitter.
ESP = RetryPolicy("esp", 6, _steps(30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE), 0.5, 1.0)
# For account mails: the first attempt at once, then these.
LIFECYCLE = RetryPolicy(
    "lifecycle", 5, _steps(MINUTE, 5 * MINUTE, 30 * MINUTE, 120 * MINUTE), 0.9, 1.1
)

POLICIES = {policy.name: policy for policy in (QUADRATIC, ESP, LIFECYCLE)}


def policy_for(kind: str, name: str | None = None) -> RetryPolicy:
    """The named policy, or the default one of a provider kind."""
    return POLICIES.get(name or "") or POLICIES[kind_of(kind).retry]
