"""A suppression: an address that a tenant's mails are not sent to, why, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class SuppressionReason(StrEnum):
    """Why an address is on the list, from weak to strong: of two for one address the stronger is kept."""

    MANUAL = "manual"  # somebody put it there
    HARD_BOUNCE = "hard_bounce"  # there is no such mailbox
    UNSUBSCRIBED = "unsubscribed"
    COMPLAINT = "complaint"  # the recipient called it spam


@dataclass(frozen=True, slots=True)
class SuppressionEntry:
    """What is put on the list. Without `expires_at` it stays until it is removed."""

    address: str
    reason: SuppressionReason = SuppressionReason.MANUAL
    note: str | None = None
    expires_at: datetime | None = None
    message_id: UUID | None = None  # whose feedback added it
