"""Verifies webhook calls of Pillarbox, in the application that receives them."""

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
    """The event in a webhook call; InvalidWebhook unless it was signed recently with the secret.

    Pass the body exactly as it arrived. A call can arrive more than once, always with the same
    header `webhook-id`.
    """
    content = body.encode() if isinstance(body, str) else bytes(body)
    verify(headers, content, Secret(secret.strip()), time.time(), tolerance)
    try:
        event: dict[str, Any] = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidWebhook("the body is not JSON") from None
    return event
