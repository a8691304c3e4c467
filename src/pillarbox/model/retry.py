"""When to try again: three named policies, as pure functions of the attempts made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pillarbox.model.provider_kinds import kind_of

MINUTE = 60.0
# A provider may ask for any wait; more than an hour would look like a lost mail.
LONGEST_RETRY_AFTER = 3600.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A schedule: `wait(k)` seconds after the k-th attempt, times a jitter between `low` and `high`."""

    name: str
    max_attempts: int
    wait: Callable[[int], float]
    low: float = 1.0
    high: float = 1.0

    def exhausted(self, attempts: int, limit: int | None = None) -> bool:
        """Whether `attempts` made are all there may be; a message's own `limit` overrides the policy's."""
        return attempts >= (self.max_attempts if limit is None else limit)

    def delay(
        self,
        attempts: int,
        limit: int | None = None,
        chance: float = 0.5,
        retry_after: float | None = None,
    ) -> float | None:
        """Seconds until the next attempt after `attempts` made, or None when there is none."""
        if self.exhausted(attempts, limit):
            return None
        wait = self.wait(attempts) * (self.low + (self.high - self.low) * chance)
        return max(wait, min(retry_after or 0.0, LONGEST_RETRY_AFTER))

    def schedule(self, limit: int | None = None) -> list[float]:
        """The waits without jitter, for people."""
        return [self.wait(attempt) for attempt in range(1, limit or self.max_attempts)]


def _steps(*seconds: float) -> Callable[[int], float]:
    return lambda attempts: seconds[min(attempts, len(seconds)) - 1]


# For SMTP servers: 1, 4, 9 … minutes, ten attempts.
QUADRATIC = RetryPolicy("quadratic", 10, lambda attempts: attempts * attempts * MINUTE)
# For HTTP providers: five retries with half a wait of jitter.
ESP = RetryPolicy("esp", 6, _steps(30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE), 0.5, 1.0)
# For mails of an account's life: the first attempt at once, then these.
LIFECYCLE = RetryPolicy(
    "lifecycle", 5, _steps(MINUTE, 5 * MINUTE, 30 * MINUTE, 120 * MINUTE), 0.9, 1.1
)

POLICIES = {policy.name: policy for policy in (QUADRATIC, ESP, LIFECYCLE)}


def policy_for(kind: str, name: str | None = None) -> RetryPolicy:
    """The policy of a provider of this kind: the one named, or the kind's own."""
    return POLICIES.get(name or "") or POLICIES[kind_of(kind).retry]
