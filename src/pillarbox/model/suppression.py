"""Suppressions: addresses to which a tenant's mails are not sent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class SuppressionReason(StrEnum):
    """Why an address is on the list, from weak to strong: the stronger of two reasons is kept."""

    MANUAL = "manual"  # added by a person
    HARD_BOUNCE = "hard_bounce"  # the mailbox does not exist
    UNSUBSCRIBED = "unsubscribed"
    COMPLAINT = "complaint"  # the recipient reported spam


@dataclass(frozen=True, slots=True)
class SuppressionEntry:
    """An address to add to the list. Without `expires_at` it stays until it is removed."""

    address: str
    reason: SuppressionReason = SuppressionReason.MANUAL
    note: str | None = None
    expires_at: datetime | None = None
    message_id: UUID | None = None  # the message whose feedback added it
