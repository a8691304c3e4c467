"""An explanation as programs see it."""

from __future__ import annotations

from typing import Any

from pillarbox.route.explain import Candidate, CheckedRule, Explanation


def explanation_json(one: Explanation, *, foreign: bool = True) -> dict[str, Any]:
    """Plain values. Without `foreign` it hides what rules for all tenants want, which may be other tenants' domains."""
    facts = one.facts
    return {
        "deliveries": list(one.recipients),
        "sender_domain": facts.sender_domain,
        "recipient_domain": facts.recipient_domain,
        "lane": facts.lane,
        "class": facts.class_name,
        "kind": facts.kind,
        "tags": list(facts.tags),
        "size": facts.size,
        "raw": one.raw,
        "rules": [_rule(tried, foreign) for tried in one.tried],
        "rule": one.rule.name if one.rule else None,
        "decided_by": "person" if one.via is not None else "rule" if one.rule else "default_order",
        "providers": [_provider(provider) for provider in one.providers],
        "provider": one.used.name if one.used else None,
        "fate": one.fate,
    }


def _rule(tried: CheckedRule, foreign: bool) -> dict[str, Any]:
    own = tried.rule.tenant_id is not None
    return {
        "name": tried.rule.name,
        "for": "tenant" if own else "all",
        "fits": tried.misses is None,
        "misses": tried.misses,
        "has": tried.has if tried.misses else None,
        "wants": tried.wants if tried.misses and (own or foreign) else None,
    }


def _provider(one: Candidate) -> dict[str, Any]:
    notes = [{"why": note.why, "said": note.said, "until": note.until} for note in one.notes]
    return {"name": one.name, "use": one.use, "share": one.share, "notes": notes}
