"""Explains which provider a mail takes, and why: what router and workers decide. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pillarbox.model.routing import MailFacts, RoutingRule
from pillarbox.route.circuit_breaker import CircuitState
from pillarbox.route.decide import LONGEST_PAUSE, SHORT_WAIT
from pillarbox.route.router import Router

# Mails wait for a provider whose rate, or whose pause, ends so soon; else they go to the next.
SHORT_RATE_WAIT = timedelta(seconds=SHORT_WAIT)
SHORT_PAUSE = timedelta(seconds=LONGEST_PAUSE)


class CandidateUse(StrEnum):
    USED = "used"  # the mail leaves through it
    NEXT = "next"  # if the providers before it fail
    SKIPPED = "skipped"


class MailFate(StrEnum):
    """What happens to a mail now."""

    LEAVES = "leaves"
    WAITS = "waits"  # until a provider of its route can be used
    FAILS = "fails"  # no provider of its route can carry it, now or later


class ObstacleReason(StrEnum):
    """Why a provider is skipped, or what limits its use; a short list, for programs."""

    REMOVED = "removed"
    DISABLED = "disabled"
    RAW = "raw"  # it cannot carry finished mails
    TOO_BIG = "too_big"
    BREAKER_OPEN = "breaker_open"
    PAUSED = "paused"  # by its own request
    BUDGET = "budget"
    RATE = "rate"
    HALF_OPEN = "half_open"  # one mail at a time


# A provider that cannot carry a mail never will; an absent one decides nothing.
NEVER = frozenset({ObstacleReason.RAW, ObstacleReason.TOO_BIG})
ABSENT = frozenset({ObstacleReason.REMOVED, ObstacleReason.DISABLED})


@dataclass(frozen=True, slots=True)
class ExhaustedLimit:
    """A limit that is used up for mails of one lane."""

    why: ObstacleReason  # BUDGET or RATE
    until: datetime


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    """The status of a provider, as far as it decides about one mail."""

    id: int
    name: str
    kind: str
    enabled: bool = True
    removed: bool = False
    max_bytes: int | None = None
    takes_parts: bool = False
    circuit: CircuitState = CircuitState.CLOSED
    reason: str | None = None  # of the last failure
    retry_at: datetime | None = None
    held_until: datetime | None = None
    exhausted: Sequence[ExhaustedLimit] = ()


@dataclass(frozen=True, slots=True)
class CheckedRule:
    """A rule that was checked: the condition that the mail misses, or None if the rule matches."""

    rule: RoutingRule
    misses: str | None
    has: str = ""  # the value of the mail
    wants: str = ""  # the values of the rule


class Obstacle(NamedTuple):
    """What stands in the way of using a provider; `skips`: mails go to the next one."""

    why: ObstacleReason
    text: str
    until: datetime | None = None
    skips: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """One provider of the route, in the order in which they are tried."""

    id: int
    name: str
    kind: str
    use: CandidateUse
    obstacles: Sequence[Obstacle] = ()
    share: float | None = None  # of the mails, if the rule has weights


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which rule decides about a mail, and which provider it takes."""

    facts: MailFacts
    rules: Sequence[CheckedRule]
    rule: RoutingRule | None  # None: no rule matches, the default order applies
    providers: Sequence[Candidate]
    raw: bool = False
    via: int | None = None  # the provider that a person chose
    recipients: Sequence[int] = field(default=())  # numbers of a message's deliveries

    @property
    def used(self) -> Candidate | None:
        """The provider that the mail leaves through; None: it waits or fails."""
        for candidate in self.providers:
            if candidate.use is CandidateUse.USED:
                return candidate
        return None

    @property
    def fate(self) -> MailFate:
        if self.used is not None:
            return MailFate.LEAVES
        main = {candidate.obstacles[0].why for candidate in self.providers if candidate.obstacles}
        if main & NEVER and main <= NEVER | ABSENT:
            return MailFate.FAILS
        return MailFate.WAITS


def explain(
    router: Router,
    facts: MailFacts,
    statuses: Mapping[int, ProviderStatus],
    now: datetime,
    *,
    chance: float = 0.0,
    raw: bool = False,
    via: int | None = None,
    recipients: Sequence[int] = (),
) -> Explanation:
    """Explain a mail with these facts; `via` is the provider that a person chose for it.

    `chance` draws one of several weighted providers; 0 gives the most likely order.
    """
    if via is not None and via in statuses and not statuses[via].removed:
        providers = _candidates([via], {}, facts, statuses, now, raw)
        return Explanation(facts, (), None, providers, raw, via, recipients)
    choice = router.choose(facts, chance)
    shares = _shares(choice.rule)
    providers = _candidates(choice.providers, shares, facts, statuses, now, raw)
    rules = _checked_rules(router, facts)
    return Explanation(facts, rules, choice.rule, providers, raw, None, recipients)


def _checked_rules(router: Router, facts: MailFacts) -> list[CheckedRule]:
    """The rules up to the one that matches."""
    checked: list[CheckedRule] = []
    for rule in router.rules_for(facts.tenant_id):
        missed = rule.match.misses(facts)
        if missed is None:
            checked.append(CheckedRule(rule, None))
            break
        wants = _text(getattr(rule.match, missed))
        checked.append(CheckedRule(rule, missed, _value_of(facts, missed), wants))
    return checked


def _value_of(facts: MailFacts, condition: str) -> str:
    """What the mail has for a condition of a rule."""
    values: dict[str, object] = {
        "sender_domains": facts.sender_domain,
        "recipient_domains": facts.recipient_domain,
        "tags": facts.tags,
        "lanes": facts.lane,
        "classes": facts.class_name,
        "kinds": facts.kind,
        "min_size": facts.size,
        "max_size": facts.size,
    }
    return _text(values[condition])


def _text(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return "none"
    return str(value)


def _shares(rule: RoutingRule | None) -> dict[int, float]:
    if rule is None or rule.weights is None:
        return {}
    total = sum(rule.weights)
    if not total:
        return {}
    weighted = zip(rule.providers, rule.weights, strict=True)
    return {provider_id: weight / total for provider_id, weight in weighted}


def _candidates(
    providers: Sequence[int],
    shares: Mapping[int, float],
    facts: MailFacts,
    statuses: Mapping[int, ProviderStatus],
    now: datetime,
    raw: bool,
) -> list[Candidate]:
    candidates: list[Candidate] = []
    next_use = CandidateUse.USED
    for provider_id in providers:
        status = statuses.get(provider_id)
        if status is None:
            status = ProviderStatus(provider_id, f"#{provider_id}", "", removed=True)
        found = obstacles(status, facts.size, now, raw)
        use = CandidateUse.SKIPPED
        if not any(obstacle.skips for obstacle in found):
            use, next_use = next_use, CandidateUse.NEXT
        share = shares.get(provider_id)
        candidates.append(Candidate(status.id, status.name, status.kind, use, found, share))
    return candidates


def obstacles(status: ProviderStatus, size: int, now: datetime, raw: bool) -> list[Obstacle]:
    """What keeps a mail from leaving through a provider, or makes it wait; the main one first."""
    if status.removed:
        return [Obstacle(ObstacleReason.REMOVED, "was removed")]
    if not status.enabled:
        return [Obstacle(ObstacleReason.DISABLED, "is disabled")]
    found = []
    if raw and status.takes_parts:
        found.append(Obstacle(ObstacleReason.RAW, "cannot carry raw mails"))
    if status.max_bytes is not None and size > status.max_bytes:
        text = f"takes at most {status.max_bytes:,} bytes"
        found.append(Obstacle(ObstacleReason.TOO_BIG, text))
    found += _breaker_obstacles(status)
    if status.held_until is not None and status.held_until > now:
        paused = _temporary(
            ObstacleReason.PAUSED, "asked for a pause", status.held_until, now, SHORT_PAUSE
        )
        found.append(paused)
    for limit in status.exhausted:
        text = f"its {limit.why} is used up"
        found.append(_temporary(limit.why, text, limit.until, now, SHORT_RATE_WAIT))
    return found


def _breaker_obstacles(status: ProviderStatus) -> list[Obstacle]:
    after = f" after {status.reason}" if status.reason else ""
    if status.circuit is CircuitState.OPEN:
        text = f"its breaker is open{after}"
        return [Obstacle(ObstacleReason.BREAKER_OPEN, text, status.retry_at)]
    if status.circuit is CircuitState.HALF_OPEN:
        text = f"is being tried again{after}: one mail at a time"
        return [Obstacle(ObstacleReason.HALF_OPEN, text, None, skips=False)]
    return []


def _temporary(
    why: ObstacleReason, text: str, until: datetime, now: datetime, short: timedelta
) -> Obstacle:
    """An obstacle with an end: mails wait for it if that is soon."""
    if until - now <= short:
        return Obstacle(why, f"{text}; mails wait for it", until, skips=False)
    return Obstacle(why, text, until)
