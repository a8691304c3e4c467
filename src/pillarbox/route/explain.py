"""Why a mail leaves through which provider: what the router and the workers decide, told to people. Pure."""

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
SOON = timedelta(seconds=SHORT_WAIT)
PATIENCE = timedelta(seconds=LONGEST_PAUSE)


class CandidateUse(StrEnum):
    USED = "used"  # the mail leaves through it
    NEXT = "next"  # if those before it fail
    SKIPPED = "skipped"


class MailFate(StrEnum):
    """What becomes of a mail now."""

    LEAVES = "leaves"
    WAITS = "waits"  # until a provider of its route can be used
    FAILS = "fails"  # no provider of its route can carry it, now or later


class ObstacleReason(StrEnum):
    """Why a provider is skipped, or what is special about its use; a short list, for programs."""

    REMOVED = "removed"
    DISABLED = "disabled"
    RAW = "raw"  # it cannot carry finished mails
    TOO_BIG = "too_big"
    BREAKER_OPEN = "breaker_open"
    PAUSED = "paused"  # it asked for it
    BUDGET = "budget"
    RATE = "rate"
    HALF_OPEN = "half_open"  # one mail at a time, to see


# A provider that cannot carry a mail never will; one that is not there stands in nobody's way.
NEVER, ABSENT = (
    frozenset({ObstacleReason.RAW, ObstacleReason.TOO_BIG}),
    frozenset({ObstacleReason.REMOVED, ObstacleReason.DISABLED}),
)


@dataclass(frozen=True, slots=True)
class ExhaustedLimit:
    """A limit that is used up for mails of one lane."""

    why: ObstacleReason  # BUDGET or RATE
    until: datetime


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    """How a provider stands now, as far as it decides about one mail."""

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
    used_up: Sequence[ExhaustedLimit] = ()


@dataclass(frozen=True, slots=True)
class CheckedRule:
    """A rule that was looked at: the condition that the mail does not meet, or None when it fits."""

    rule: RoutingRule
    misses: str | None
    has: str = ""  # the mail
    wants: str = ""  # the rule


class Obstacle(NamedTuple):
    """What stands in a provider's way, in a word and in words; soon over or not."""

    why: ObstacleReason
    said: str
    until: datetime | None = None
    skips: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """One provider of the route, in the order in which they are tried."""

    id: int
    name: str
    kind: str
    use: CandidateUse
    notes: Sequence[Obstacle] = ()
    share: float | None = None  # of the mails, where they are drawn by weight


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which rule decides about a mail, and which provider."""

    facts: MailFacts
    tried: Sequence[CheckedRule]
    rule: RoutingRule | None  # None: none fits, the default order holds
    providers: Sequence[Candidate]
    raw: bool = False
    via: int | None = None  # a person's choice, before all rules
    recipients: Sequence[int] = field(default=())  # of a message: the deliveries it is about

    @property
    def used(self) -> Candidate | None:
        """The provider that the mail leaves through; None: it waits."""
        return next((one for one in self.providers if one.use is CandidateUse.USED), None)

    @property
    def fate(self) -> MailFate:
        if self.used is not None:
            return MailFate.LEAVES
        first = {one.notes[0].why for one in self.providers if one.notes}
        return MailFate.FAILS if first & NEVER and first <= NEVER | ABSENT else MailFate.WAITS


def explain(
    router: Router,
    facts: MailFacts,
    standings: Mapping[int, ProviderStatus],
    now: datetime,
    *,
    chance: float = 0.0,
    raw: bool = False,
    via: int | None = None,
    recipients: Sequence[int] = (),
) -> Explanation:
    """What becomes of a mail with these facts; `via` is the provider that a person chose for it, if one did.

    `chance` draws among weighted providers; without one the heaviest comes first, the order that is most likely.
    """
    if via is not None and via in standings and not standings[via].removed:
        return Explanation(
            facts,
            (),
            None,
            _considered([via], {}, facts, standings, now, raw),
            raw,
            via,
            recipients,
        )
    chosen = router.choose(facts, chance)
    shares = _shares(chosen.rule)
    providers = _considered(chosen.providers, shares, facts, standings, now, raw)
    return Explanation(facts, _tried(router, facts), chosen.rule, providers, raw, None, recipients)


def _tried(router: Router, facts: MailFacts) -> list[CheckedRule]:
    """The rules up to the one that fits."""
    tried: list[CheckedRule] = []
    for rule in router.rules_for(facts.tenant_id):
        missed = rule.match.misses(facts)
        if missed is None:
            return [*tried, CheckedRule(rule, None)]
        tried.append(
            CheckedRule(rule, missed, _has(facts, missed), _words(getattr(rule.match, missed)))
        )
    return tried


def _has(facts: MailFacts, condition: str) -> str:
    """What the mail has where a rule wants something else."""
    values: dict[str, object] = {
        "sender_domains": facts.sender_domain, "recipient_domains": facts.recipient_domain, "tags": facts.tags,
        "lanes": facts.lane, "classes": facts.class_name, "kinds": facts.kind, "min_size": facts.size,
        "max_size": facts.size,
    }  # fmt: skip
    return _words(values[condition])


def _words(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    return (", ".join(map(str, value)) or "none") if isinstance(value, Sequence) else str(value)


def _shares(rule: RoutingRule | None) -> dict[int, float]:
    if rule is None or rule.weights is None or not (total := sum(rule.weights)):
        return {}
    return {
        provider: weight / total
        for provider, weight in zip(rule.providers, rule.weights, strict=True)
    }


def _considered(
    providers: Sequence[int],
    shares: Mapping[int, float],
    facts: MailFacts,
    standings: Mapping[int, ProviderStatus],
    now: datetime,
    raw: bool,
) -> list[Candidate]:
    considered: list[Candidate] = []
    use = CandidateUse.USED
    for provider in providers:
        one = standings.get(provider) or ProviderStatus(provider, f"#{provider}", "", removed=True)
        notes = obstacles(one, facts.size, now, raw)
        skipped = any(note.skips for note in notes)
        mine = CandidateUse.SKIPPED if skipped else use
        considered.append(Candidate(one.id, one.name, one.kind, mine, notes, shares.get(provider)))
        use = use if skipped else CandidateUse.NEXT
    return considered


def obstacles(one: ProviderStatus, size: int, now: datetime, raw: bool) -> list[Obstacle]:
    """What keeps a mail of this size from leaving through a provider, or makes it wait; the weightiest first."""
    if one.removed:
        return [Obstacle(ObstacleReason.REMOVED, "was removed")]
    if not one.enabled:
        return [Obstacle(ObstacleReason.DISABLED, "is disabled")]
    found = []
    if raw and one.takes_parts:
        found.append(Obstacle(ObstacleReason.RAW, "cannot carry raw mails"))
    if one.max_bytes is not None and size > one.max_bytes:
        found.append(Obstacle(ObstacleReason.TOO_BIG, f"takes at most {one.max_bytes:,} octets"))
    found += _breaker(one, now)
    if one.held_until is not None and one.held_until > now:
        found.append(
            _passing(ObstacleReason.PAUSED, "asked for a pause", one.held_until, now, PATIENCE)
        )
    found += [
        _passing(used.why, f"its {used.why} is used up", used.until, now, SOON)
        for used in one.used_up
    ]
    return found


def _breaker(one: ProviderStatus, now: datetime) -> list[Obstacle]:
    after = f" after {one.reason}" if one.reason else ""
    if one.circuit is CircuitState.OPEN:
        return [Obstacle(ObstacleReason.BREAKER_OPEN, f"its breaker is open{after}", one.retry_at)]
    if one.circuit is CircuitState.HALF_OPEN:
        return [
            Obstacle(
                ObstacleReason.HALF_OPEN,
                f"is being tried again{after}: one mail at a time",
                None,
                skips=False,
            )
        ]
    return []


def _passing(
    why: ObstacleReason, said: str, until: datetime, now: datetime, patience: timedelta
) -> Obstacle:
    """Something that passes: mails wait for it if that is soon."""
    if until - now <= patience:
        return Obstacle(why, f"{said}; mails wait for it", until, skips=False)
    return Obstacle(why, said, until)
