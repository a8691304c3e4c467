"""How a message's content is stored, and read back."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from pillarbox.model.message import Attachment


def read_attachments(stored: str | None) -> Sequence[Attachment]:
    """The attachments of a content row, from their JSON."""
    if not stored:
        return ()
    return [
        Attachment(
            item["filename"],
            base64.b64decode(item["content"]),
            item.get("content_type") or "application/octet-stream",
            item.get("content_id"),
        )
        for item in json.loads(stored)
    ]
