"""The hash that version 0.1.0 stored for a request by HTTP.

Keys that version 0.1.0 stored are compared with it until retention drops them. New keys are stored
with the hash of `pillarbox._request_hash`, which serves all ways in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from pillarbox.accept.checks import to_json
from pillarbox.accept.mail import Mail, listed

_DEFAULT_TYPE = "application/octet-stream"


def request_hash_1(mail: Mail) -> bytes:
    """The hash of a request, as version 0.1.0 made it."""
    lists = [
        list(listed(values)) for values in (mail.to, mail.cc, mail.bcc, mail.reply_to, mail.tags)
    ]
    times = [_time(mail.send_at), _time(mail.expires_at)]
    bodies = [_hash(mail.text), _hash(mail.html), _hash(mail.raw)]
    files = [
        (file.filename, file.content_type or _DEFAULT_TYPE, file.content_id, _hash(file.content))
        for file in mail.attachments or ()
    ]
    rest = (mail.sender, mail.subject, mail.class_, mail.kind, mail.priority, mail.max_attempts)
    named = (sorted((mail.headers or {}).items()), _canonical(mail.metadata))
    return sha256(to_json([lists, times, bodies, files, rest, named]).encode()).digest()


def _time(time: datetime | None) -> str | None:
    if time is None:
        return None
    try:
        return time.astimezone(UTC).isoformat()
    except OverflowError:
        nearest = datetime.min if time.year == 1 else datetime.max
        return nearest.replace(tzinfo=UTC).isoformat()


def _hash(body: str | bytes | None) -> str | None:
    if body is None:
        return None
    return sha256(body.encode() if isinstance(body, str) else body).hexdigest()


def _canonical(metadata: Mapping[str, Any] | None) -> str | None:
    if metadata is None:
        return None
    return json.dumps(json.loads(to_json(dict(metadata))), sort_keys=True)
