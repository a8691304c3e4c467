"""The return path of a message: an address of ours that names the message, and that nobody else can make.

A bounce comes to `b.<message>.<mac>@<domain>`. Both parts are base32 in lower case: servers may
change the case of a local part, and some do. 45 octets of the 64 that a local part may have.
"""

from __future__ import annotations

import base64
import hmac
import re
from uuid import UUID

_PURPOSE = b"pillarbox return path 1"
_MAC_BYTES = 10  # 80 bits: nobody guesses one by sending bounces
_local = re.compile(r"b\.([a-z2-7]{26})\.[a-z2-7]{16}").fullmatch


def derive_key(installation: bytes) -> bytes:
    """The key of return paths, from the installation's own."""
    return hmac.digest(installation, _PURPOSE, "sha256")


def make(message_id: UUID, domain: str, key: bytes) -> str:
    """The envelope sender of a message."""
    return f"{_local_part(message_id, key)}@{domain}"


def read(address: str, key: bytes) -> UUID | None:
    """The message that an address names; None for any other address, and for one that was not made with this key."""
    given = address.strip().strip("<>").rpartition("@")[0].lower()
    found = _local(given)
    if found is None:
        return None
    message_id = UUID(bytes=base64.b32decode(found[1].upper() + "======"))
    return message_id if hmac.compare_digest(given, _local_part(message_id, key)) else None


def _local_part(message_id: UUID, key: bytes) -> str:
    return f"b.{_encoded(message_id.bytes)}.{_encoded(_mac(message_id, key))}"


def _mac(message_id: UUID, key: bytes) -> bytes:
    return hmac.digest(key, message_id.bytes, "sha256")[:_MAC_BYTES]


def _encoded(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()
