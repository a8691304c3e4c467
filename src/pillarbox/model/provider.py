"""A Provider: a configured account with its secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pillarbox.model.secret import Secret


def feedback_path(kind: str, provider_id: int) -> str:
    """The HTTP path that takes a provider's feedback."""
    return f"/webhooks/{kind}/{provider_id}"


@dataclass(frozen=True, slots=True)
class Provider:
    """A configured account; `settings` are the kind's own, without the secret."""

    id: int
    name: str
    kind: str
    settings: Mapping[str, Any]
    secret: Secret | None
    enabled: bool = True
    retry: str | None = None  # the name of a retry policy; the kind's own when not set
    webhook_secret: Secret | None = None  # what its feedback is signed with, where that is a secret
    release_only: bool = field(
        default=False, compare=False
    )  # only where a route or a person names it
    # How fast mails leave through it; the queue keeps these, so that a new limit needs no new
    # connections.
    rate_per_second: int | None = field(default=None, compare=False)
    rate_per_hour: int | None = field(default=None, compare=False)
    rate_per_day: int | None = field(default=None, compare=False)
    # What a thousand mails cost, what a month may cost, and which part of day and month is kept, in
    # percent: for urgent mails only, and for all but bulk.
    price_per_thousand: Decimal | None = field(default=None, compare=False)
    budget_per_month: Decimal | None = field(default=None, compare=False)
    reserve_urgent: int = field(default=10, compare=False)
    reserve_normal: int = field(default=20, compare=False)
