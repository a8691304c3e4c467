"""An explanation of a route as JSON."""

from __future__ import annotations

from typing import Any

from pillarbox.route.explain import Candidate, CheckedRule, Explanation


def explanation_json(explanation: Explanation, *, foreign: bool = True) -> dict[str, Any]:
    """Plain values. Without `foreign`, the conditions of rules for all tenants are hidden.

    These may name domains of other tenants.
    """
    facts, rule, used = explanation.facts, explanation.rule, explanation.used
    return {
        "deliveries": list(explanation.recipients),
        "sender_domain": facts.sender_domain,
        "recipient_domain": facts.recipient_domain,
        "lane": facts.lane,
        "class": facts.class_name,
        "kind": facts.kind,
        "tags": list(facts.tags),
        "size": facts.size,
        "raw": explanation.raw,
        "rules": [_rule_json(checked, foreign) for checked in explanation.rules],
        "rule": rule and rule.name,
        "decided_by": _decided_by(explanation),
        "providers": [_provider_json(candidate) for candidate in explanation.providers],
        "provider": used and used.name,
        "fate": explanation.fate,
    }


def _decided_by(explanation: Explanation) -> str:
    if explanation.via is not None:
        return "person"
    if explanation.rule is not None:
        return "rule"
    return "default_order"


def _rule_json(checked: CheckedRule, foreign: bool) -> dict[str, Any]:
    is_own = checked.rule.tenant_id is not None
    found: dict[str, Any] = {
        "name": checked.rule.name,
        "for": "all",
        "fits": checked.misses is None,
        "misses": checked.misses,
        "has": None,
        "wants": None,
    }
    if is_own:
        found["for"] = "tenant"
    if checked.misses:
        found["has"] = checked.has
        if is_own or foreign:
            found["wants"] = checked.wants
    return found


def _provider_json(candidate: Candidate) -> dict[str, Any]:
    notes = [
        {"why": obstacle.why, "said": obstacle.text, "until": obstacle.until}
        for obstacle in candidate.obstacles
    ]
    return {
        "name": candidate.name,
        "use": candidate.use,
        "share": candidate.share,
        "notes": notes,
    }
