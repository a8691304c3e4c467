"""Suppression lists: the addresses that a tenant's mails are not sent to."""

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
    """An address that the tenant's mails are not sent to."""

    address: str = field(metadata=about("In lower case."))
    reason: SuppressionReasonName
    note: str | None
    message_id: UUID | None = field(metadata=about("The message whose feedback added it."))
    created_at: datetime
    expires_at: datetime | None = field(metadata=about("Null: it stays until it is removed."))


@dataclass(frozen=True, slots=True)
class SuppressionPage:
    """Addresses, in their order. With filters a page can be short before the end: go on while there is a `next`."""

    suppressions: Sequence[Suppression]
    next_cursor: str | None = field(metadata=about(NEXT_CURSOR))
    next: str | None = field(metadata=about(NEXT))


@dataclass(frozen=True, slots=True)
class SuppressionsAdded:
    """What became of the addresses given."""

    added: int
    changed: int = field(
        metadata=about("They were there, and have a stronger reason, later expiry or new note.")
    )
    unchanged: int = field(metadata=about("They were there, and stay as they were."))


@dataclass(frozen=True, slots=True)
class ImportFault:
    line: int
    code: str
    field: str
    detail: str


@dataclass(frozen=True, slots=True)
class SuppressionsImported(SuppressionsAdded):
    """What became of the lines of a file."""

    refused: int = field(
        metadata={
            **about("Lines with a fault; only where `partial` was asked for."),
            **absent(0),
        }
    )
    faults: Sequence[ImportFault] = field(
        metadata={**about(f"The first {MAX_FAULTS} of them."), **absent(())}
    )
