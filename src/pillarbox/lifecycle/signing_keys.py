"""The keys that sign links: of the setting lifecycle_keys; in development, of a file beside the embedded database."""

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

FILE = "lifecycle.key"


def has_keys(settings: Settings) -> bool:
    """Whether this process can sign links."""
    return bool(settings.lifecycle_keys) or settings.database_url is None


def key_ring(settings: Settings) -> SigningKeyRing:
    """The keys that sign and verify links; SecretError where there are none."""
    if settings.lifecycle_keys:
        return SigningKeyRing(
            [(key_bytes(one.key), _moment(one.until)) for one in settings.lifecycle_keys]
        )
    if settings.database_url is None:
        return SigningKeyRing([key_bytes(load_or_create_key_file(settings.data_dir / FILE))])
    raise SecretError(
        "no key that signs links: set PILLARBOX_LIFECYCLE_KEYS (make one with `pillarbox keys generate`)"
    )


def _moment(day: date | None) -> float | None:
    """When that day begins, in UTC."""
    return None if day is None else datetime.combine(day, time.min, UTC).timestamp()
