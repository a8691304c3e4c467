"""Webhooks in the API: what is asked, and how answers are read. Pure, as `calls`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from pillarbox.accept.mail import listed
from pillarbox.client.calls import JSON, ApiCall, HttpRequest, nothing, reading
from pillarbox.client.reading import read
from pillarbox.wire.webhooks import CallPage, Replayed, WebhookDetails, WebhookTest

PAGE = 200


@dataclass(frozen=True, slots=True)
class Webhook(WebhookDetails):
    """A webhook of the tenant; `secret` is None unless this call created it."""

    secret: str | None = None

    def __repr__(self) -> str:
        return f"Webhook({str(self.id)!r}, {self.url!r}, enabled={self.enabled})"


@dataclass(frozen=True, slots=True)
class _WebhookList:
    webhooks: Sequence[Webhook]


def add(url: str, kinds: str | Sequence[str]) -> ApiCall[Webhook]:
    # Done twice there would be two.
    body = {"url": url, "kinds": list(listed(kinds))}
    return ApiCall(
        HttpRequest("POST", "/webhooks", json.dumps(body).encode(), JSON, repeatable=False),
        reading(Webhook),
    )


def list_all() -> ApiCall[Sequence[Webhook]]:
    return ApiCall(
        HttpRequest("GET", "/webhooks"),
        lambda answer: read(_WebhookList, json.loads(answer.body)).webhooks,
    )


def get(webhook_id: uuid.UUID | str) -> ApiCall[Webhook]:
    return ApiCall(HttpRequest("GET", _path(webhook_id)), reading(Webhook))


def change(
    webhook_id: uuid.UUID | str,
    url: str | None,
    kinds: str | Sequence[str] | None,
    enabled: bool | None,
) -> ApiCall[Webhook]:
    given = {
        "url": url,
        "kinds": None if kinds is None else list(listed(kinds)),
        "enabled": enabled,
    }
    body = {name: value for name, value in given.items() if value is not None}
    return ApiCall(
        HttpRequest("PATCH", _path(webhook_id), json.dumps(body).encode(), JSON), reading(Webhook)
    )


def remove(webhook_id: uuid.UUID | str) -> ApiCall[None]:
    return ApiCall(HttpRequest("DELETE", _path(webhook_id), repeatable=False), nothing)


def rotate(webhook_id: uuid.UUID | str) -> ApiCall[Webhook]:
    # Done twice the first secret would be the old one, and lost.
    return ApiCall(
        HttpRequest("POST", _path(webhook_id, "/rotate"), repeatable=False), reading(Webhook)
    )


def test(webhook_id: uuid.UUID | str) -> ApiCall[WebhookTest]:
    return ApiCall(HttpRequest("POST", _path(webhook_id, "/test")), reading(WebhookTest))


def page(
    webhook_id: uuid.UUID | str, state: str | Sequence[str], cursor: str | None
) -> ApiCall[CallPage]:
    wanted = [("limit", str(PAGE)), *(("state", one) for one in listed(state))]
    query = urlencode([*wanted, *([("cursor", cursor)] if cursor else [])])
    path = f"{_path(webhook_id, '/calls')}?{query}"
    return ApiCall(HttpRequest("GET", path), reading(CallPage))


def replay(
    webhook_id: uuid.UUID | str,
    calls: Sequence[uuid.UUID | str] | None,
    state: str | Sequence[str],
    since: datetime | None,
    until: datetime | None,
    cursor: str | None,
) -> ApiCall[Replayed]:
    """Make calls again; without `calls`, those that failed or are in `state`."""
    body: dict[str, Any] = {"calls": [str(one) for one in calls]} if calls is not None else {}
    if calls is None:
        body["state"] = list(listed(state)) or ["failed"]
        times = {"since": since, "until": until}
        body |= {name: at.isoformat() for name, at in times.items() if at is not None}
        body |= {"cursor": cursor} if cursor else {}
    request = HttpRequest("POST", _path(webhook_id, "/replay"), json.dumps(body).encode(), JSON)
    return ApiCall(request, reading(Replayed))


def _path(webhook_id: uuid.UUID | str, rest: str = "") -> str:
    return f"/webhooks/{uuid.UUID(str(webhook_id))}{rest}"
