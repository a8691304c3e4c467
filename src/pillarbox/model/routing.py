"""Routing rules: which providers a mail may leave through, in which order. Pure, so that they can be explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pillarbox.model.access import matches

# Without a rule: providers that tell us what becomes of a mail come first, and what sends nothing out last.
DEFAULT_ORDER = ("sendgrid", "ses", "mailgun", "smtp", "capture")


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules can ask of one delivery. Domains are in lower case."""

    tenant_id: int
    sender_domain: str
    recipient_domain: str
    lane: str = "normal"
    class_name: str = "transactional"
    kind: str | None = None
    tags: Sequence[str] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """What a mail must be like; None fits all, of a list one must fit."""

    sender_domains: Sequence[str] | None = None
    recipient_domains: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    lanes: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    min_size: int | None = None
    max_size: int | None = None

    def misses(self, facts: Facts) -> str | None:
        """The first condition that the mail does not meet; None when all are met."""
        checks = (
            ("sender_domains", self.sender_domains is None or matches(facts.sender_domain, self.sender_domains)),
            ("recipient_domains",
             self.recipient_domains is None or matches(facts.recipient_domain, self.recipient_domains)),
            ("tags", self.tags is None or not set(self.tags).isdisjoint(facts.tags)),
            ("lanes", self.lanes is None or facts.lane in self.lanes),
            ("classes", self.classes is None or facts.class_name in self.classes),
            ("kinds", self.kinds is None or facts.kind in self.kinds),
            ("min_size", self.min_size is None or facts.size >= self.min_size),
            ("max_size", self.max_size is None or facts.size <= self.max_size),
        )  # fmt: skip
        return next((name for name, met in checks if not met), None)


@dataclass(frozen=True, slots=True)
class Rule:
    """A route: what fits it leaves through these providers, by id. A tenant's own rules come before all tenants'."""

    id: int
    name: str
    tenant_id: int | None
    place: int
    match: Match
    providers: Sequence[int]
    weights: Sequence[int] | None = None
    enabled: bool = True
