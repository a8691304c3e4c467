"""Suppression lists: addresses to which a tenant's mails are not sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pillarbox.wire.fields import SuppressionReasonName, about, absent
from pillarbox.wire.messages import NEXT, NEXT_CURSOR

# Faults listed in the answer to an import.
MAX_FAULTS = 100


@dataclass(frozen=True, slots=True)
class Suppression:
    """A suppressed address: the tenant's mails are not sent to it."""

    address: str = field(metadata=about("In lower case."))
    reason: SuppressionReasonName
    note: str | None
    message_id: UUID | None = field(metadata=about("The message whose feedback added the address."))
    created_at: datetime
    expires_at: datetime | None = field(metadata=about("Null: it does not expire."))


@dataclass(frozen=True, slots=True)
class SuppressionPage:
    """Addresses, in alphabetical order.

    With filters a page can be short before the end: continue while there is a `next`.
    """

    suppressions: Sequence[Suppression]
    next_cursor: str | None = field(metadata=about(NEXT_CURSOR))
    next: str | None = field(metadata=about(NEXT))


@dataclass(frozen=True, slots=True)
class SuppressionsAdded:
    """Numbers of addresses."""

    added: int
    changed: int = field(
        metadata=about(
            "Already suppressed; now with a stronger reason, a later expiry or a new note."
        )
    )
    unchanged: int = field(metadata=about("Already suppressed, and not changed."))


@dataclass(frozen=True, slots=True)
class ImportFault:
    """An invalid line of the file; the first line has number 1."""

    line: int
    code: str
    field: str
    detail: str


@dataclass(frozen=True, slots=True)
class SuppressionsImported(SuppressionsAdded):
    """Numbers of lines of the file."""

    refused: int = field(
        metadata={
            **about("Invalid lines; not zero only with `partial`."),
            **absent(0),
        }
    )
    faults: Sequence[ImportFault] = field(
        metadata={**about(f"The first {MAX_FAULTS} invalid lines."), **absent(())}
    )
