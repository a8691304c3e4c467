"""Whose fault an outcome was: a provider's own makes it less healthy, and sends the mail elsewhere."""

from __future__ import annotations

from pillarbox.model.outcome import TROUBLE, Outcome, Reason, Verdict

_OWN = TROUBLE | {Reason.TLS, Reason.TIMEOUT, Reason.PROTOCOL}
_LIMITS = frozenset(
    {Reason.TOO_BIG, Reason.UNSUPPORTED}
)  # of the provider: size, format, addresses
_LEAVING = 421  # SMTP: the server closes the connection


def is_providers_fault(outcome: Outcome) -> bool:
    """Whether the provider did not do its part: another mail would fare no better. An unknown end is its fault, too."""
    if outcome.verdict is Verdict.UNKNOWN:
        return True
    if outcome.verdict is not Verdict.DEFERRED:
        return False
    if (
        outcome.reason is Reason.UNAVAILABLE
    ):  # with another 4xx it speaks of this recipient, or this mail
        return outcome.code is None or outcome.code == _LEAVING or outcome.code >= 500
    return outcome.reason in _OWN


def cannot_take(outcome: Outcome) -> bool:
    """Whether this provider can never take the mail, but another perhaps can."""
    return outcome.verdict is Verdict.REJECTED and outcome.reason in _LIMITS


def goes_elsewhere(outcome: Outcome) -> bool:
    """Whether another provider should have the mail at once: nothing of it was taken, and waiting helps little."""
    return cannot_take(outcome) or (
        outcome.verdict is Verdict.DEFERRED and is_providers_fault(outcome)
    )
