"""Routing rules: which providers a mail may leave through, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pillarbox.model.access import matches


@dataclass(frozen=True, slots=True)
class MailFacts:
    """What rules can check of one delivery. Domains are in lower case."""

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
    """The conditions of a rule: None matches every mail, a list matches any of its values."""

    sender_domains: Sequence[str] | None = None
    recipient_domains: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    lanes: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    min_size: int | None = None
    max_size: int | None = None

    def misses(self, facts: MailFacts) -> str | None:
        """The name of the first condition that the mail does not meet; None if it meets all."""
        senders, recipients = self.sender_domains, self.recipient_domains
        if senders is not None and not matches(facts.sender_domain, senders):
            return "sender_domains"
        if recipients is not None and not matches(facts.recipient_domain, recipients):
            return "recipient_domains"
        if self.tags is not None and set(self.tags).isdisjoint(facts.tags):
            return "tags"
        if self.lanes is not None and facts.lane not in self.lanes:
            return "lanes"
        if self.classes is not None and facts.class_name not in self.classes:
            return "classes"
        if self.kinds is not None and facts.kind not in self.kinds:
            return "kinds"
        if self.min_size is not None and facts.size < self.min_size:
            return "min_size"
        if self.max_size is not None and facts.size > self.max_size:
            return "max_size"
        return None


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A route: mails that match leave through these providers, given by id.

    The rules of a tenant come before those for all tenants. Without weights the providers are tried
    in their order. With weights the first is drawn by weight, and the others follow, heaviest
    first; a provider of weight 0 is never drawn first.
    """

    id: int
    name: str
    tenant_id: int | None
    position: int  # among the rules of its tenant, or of those for all
    match: RuleMatch
    providers: Sequence[int]
    weights: Sequence[int] | None = None
    enabled: bool = True
