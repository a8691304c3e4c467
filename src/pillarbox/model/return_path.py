"""The return path of a message: a signed address that contains the message's id (VERP).

A bounce comes to `b.<message>.<mac>@<domain>`. Both parts are base32 in lower case, because some
servers change the case of a local part. It has 45 of the 64 bytes that a local part may have.
"""

from __future__ import annotations

import base64
import hmac
import re
from uuid import UUID

_PURPOSE = b"pillarbox return path 1"
_MAC_BYTES = 10  # 80 bits: too many to guess by sending bounces
_local = re.compile(r"b\.([a-z2-7]{26})\.[a-z2-7]{16}").fullmatch


def derive_key(installation: bytes) -> bytes:
    """The key of return paths, derived from the installation's key."""
    return hmac.digest(installation, _PURPOSE, "sha256")


def make(message_id: UUID, domain: str, key: bytes) -> str:
    """The envelope sender of a message."""
    return f"{_local_part(message_id, key)}@{domain}"


def read(address: str, key: bytes) -> UUID | None:
    """The message id in an address; None if the address was not made with this key."""
    given = address.strip().strip("<>").rpartition("@")[0].lower()
    found = _local(given)
    if found is None:
        return None
    message_id = UUID(bytes=base64.b32decode(found[1].upper() + "======"))
    if not hmac.compare_digest(given, _local_part(message_id, key)):
        return None
    return message_id


def _local_part(message_id: UUID, key: bytes) -> str:
    return f"b.{_encoded(message_id.bytes)}.{_encoded(_mac(message_id, key))}"


def _mac(message_id: UUID, key: bytes) -> bytes:
    return hmac.digest(key, message_id.bytes, "sha256")[:_MAC_BYTES]


def _encoded(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()
