"""Classifies outcomes: is it the provider's fault, and should the mail fail over to another one?"""

from __future__ import annotations

from pillarbox.model.outcome import TROUBLE, Outcome, Reason, Verdict

_PROVIDER_FAULTS = TROUBLE | {Reason.TLS, Reason.TIMEOUT, Reason.PROTOCOL}
# Limits of one provider: size, format, addresses.
_PROVIDER_LIMITS = frozenset({Reason.TOO_BIG, Reason.UNSUPPORTED})
_SERVICE_CLOSING = 421  # SMTP: the server closes the connection


def is_provider_fault(outcome: Outcome) -> bool:
    """Whether the next mail would get the same answer. An unknown outcome counts as a fault."""
    if outcome.verdict is Verdict.UNKNOWN:
        return True
    if outcome.verdict is not Verdict.DEFERRED:
        return False
    if outcome.reason is Reason.UNAVAILABLE:
        # Any other 4xx code is about this recipient or this mail.
        code = outcome.code
        return code is None or code == _SERVICE_CLOSING or code >= 500
    return outcome.reason in _PROVIDER_FAULTS


def cannot_take(outcome: Outcome) -> bool:
    """Whether this provider can never take the mail, and another one perhaps can."""
    return outcome.verdict is Verdict.REJECTED and outcome.reason in _PROVIDER_LIMITS


def should_fail_over(outcome: Outcome) -> bool:
    """Whether another provider gets the mail at once: this one took nothing, and is at fault."""
    if cannot_take(outcome):
        return True
    return outcome.verdict is Verdict.DEFERRED and is_provider_fault(outcome)
