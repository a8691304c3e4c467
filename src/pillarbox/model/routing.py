"""Routing rules: which providers a mail may leave through, in which order. Pure, so that they can be explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pillarbox.model.access import matches


@dataclass(frozen=True, slots=True)
class MailFacts:
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
class RuleMatch:
    """What a mail must be like; None fits all, of a list one must fit."""

    sender_domains: Sequence[str] | None = None
    recipient_domains: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    lanes: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    min_size: int | None = None
    max_size: int | None = None

    def misses(self, facts: MailFacts) -> str | None:
        """The first condition that the mail does not meet, by its name; None when all are met."""
        if self.sender_domains is not None and not matches(
            facts.sender_domain, self.sender_domains
        ):
            return "sender_domains"
        if self.recipient_domains is not None and not matches(
            facts.recipient_domain, self.recipient_domains
        ):
            return "recipient_domains"
        if self.tags is not None and set(self.tags).isdisjoint(facts.tags):
            return "tags"
        return self._misses_a_word(facts) or self._misses_the_size(facts.size)

    def _misses_a_word(self, facts: MailFacts) -> str | None:
        if self.lanes is not None and facts.lane not in self.lanes:
            return "lanes"
        if self.classes is not None and facts.class_name not in self.classes:
            return "classes"
        return "kinds" if self.kinds is not None and facts.kind not in self.kinds else None

    def _misses_the_size(self, size: int) -> str | None:
        if self.min_size is not None and size < self.min_size:
            return "min_size"
        return "max_size" if self.max_size is not None and size > self.max_size else None


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A route: what fits it leaves through these providers, by id. A tenant's own rules come before all tenants'.

    Without weights the providers are tried in their order. With weights the first is drawn by them,
    the others follow from heavy to light; one of weight 0 is never drawn, and takes over when the
    others cannot.
    """

    id: int
    name: str
    tenant_id: int | None
    position: int  # among the rules of its tenant, or of those for all
    match: RuleMatch
    providers: Sequence[int]
    weights: Sequence[int] | None = None
    enabled: bool = True
