"""The keys that sign links: from the setting lifecycle_keys, or a file in development."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import TYPE_CHECKING

from pillarbox.errors import SecretError
from pillarbox.lifecycle.signing import SigningKeyRing
from pillarbox.setting_kinds import key_bytes
from pillarbox.store.vault import load_or_create_key_file

if TYPE_CHECKING:
    from datetime import date

    from pillarbox.settings import Settings

# Beside the embedded database.
FILE = "lifecycle.key"


def has_keys(settings: Settings) -> bool:
    """Whether this process can sign links."""
    return bool(settings.lifecycle_keys) or settings.database_url is None


def key_ring(settings: Settings) -> SigningKeyRing:
    """The keys that sign and verify links; SecretError without any."""
    if settings.lifecycle_keys:
        keys = [(key_bytes(key.key), _start_of(key.until)) for key in settings.lifecycle_keys]
        return SigningKeyRing(keys)
    if settings.database_url is None:
        key = load_or_create_key_file(settings.data_dir / FILE)
        return SigningKeyRing([key_bytes(key)])
    raise SecretError(
        "no key signs links: set PILLARBOX_LIFECYCLE_KEYS"
        " (make a key with `pillarbox keys generate`)"
    )


def _start_of(day: date | None) -> float | None:
    """The beginning of a day in UTC, in epoch seconds."""
    if day is None:
        return None
    return datetime.combine(day, time.min, UTC).timestamp()
