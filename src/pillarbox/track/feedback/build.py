"""Builds what reads a provider's feedback, as the record of its kind says."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from pillarbox.errors import NotPossible
from pillarbox.model.provider_kinds import kind_of

if TYPE_CHECKING:
    from pillarbox.model.provider import Provider
    from pillarbox.track.feedback.base import Feedback


def build_feedback(provider: Provider, window: float) -> Feedback:
    """The Feedback of a provider; requests older than `window` seconds are refused."""
    reference = kind_of(provider.kind).feedback
    if reference is None:
        raise NotPossible(f"provider {provider.name!r} of kind {provider.kind!r} sends no feedback")
    feedback: Feedback = resolve_name(reference)(provider, window)
    return feedback
