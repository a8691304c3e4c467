"""For whoever is called: was it us?"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from pillarbox.errors import InvalidWebhook
from pillarbox.model.secret import Secret
from pillarbox.model.webhook import TOLERANCE, verify


def verify_webhook(
    headers: Mapping[str, str], body: bytes | str, secret: str, *, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """What a webhook call says, if it was signed with the secret, and lately; else InvalidWebhook.

    Give the body as it arrived, byte for byte. Calls are made at least once: whoever must not act
    twice remembers the header `webhook-id`.
    """
    content = body.encode() if isinstance(body, str) else bytes(body)
    verify(headers, content, Secret(secret.strip()), time.time(), tolerance)
    try:
        told: dict[str, Any] = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidWebhook("the body is not JSON") from None
    return told
