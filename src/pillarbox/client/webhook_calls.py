"""The calls of the API for webhooks, without I/O."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pillarbox.accept.mail import listed
from pillarbox.client import api_call
from pillarbox.client.api_call import ApiCall, HttpRequest, HttpResponse
from pillarbox.client.reading import read
from pillarbox.wire.webhooks import CallPage, Replayed, WebhookDetails, WebhookTest

PAGE = 200


@dataclass(frozen=True, slots=True)
class Webhook(WebhookDetails):
    """A webhook of the tenant; `secret` is None unless this call created it."""

    secret: str | None = None

    def __repr__(self) -> str:
        return f"Webhook({str(self.id)!r}, {self.url!r}, enabled={self.enabled})"


def add(url: str, kinds: str | Sequence[str]) -> ApiCall[Webhook]:
    # Not repeatable: it would add a second webhook.
    body = {"url": url, "kinds": list(listed(kinds))}
    return api_call.send_json("POST", "/webhooks", body, Webhook, repeatable=False)


def list_all() -> ApiCall[Sequence[Webhook]]:
    return ApiCall(HttpRequest("GET", "/webhooks"), _webhooks)


def _webhooks(response: HttpResponse) -> Sequence[Webhook]:
    return tuple(read(Webhook, each) for each in json.loads(response.body)["webhooks"])


def get(webhook_id: uuid.UUID | str) -> ApiCall[Webhook]:
    return api_call.get(_path(webhook_id), Webhook)


def change(
    webhook_id: uuid.UUID | str,
    url: str | None,
    kinds: str | Sequence[str] | None,
    enabled: bool | None,
) -> ApiCall[Webhook]:
    body: dict[str, Any] = {}
    if url is not None:
        body["url"] = url
    if kinds is not None:
        body["kinds"] = list(listed(kinds))
    if enabled is not None:
        body["enabled"] = enabled
    return api_call.send_json("PATCH", _path(webhook_id), body, Webhook)


def remove(webhook_id: uuid.UUID | str) -> ApiCall[None]:
    return api_call.delete(_path(webhook_id))


def rotate(webhook_id: uuid.UUID | str) -> ApiCall[Webhook]:
    # Not repeatable: a second rotation would discard the secret before.
    path = _path(webhook_id, "/rotate")
    return api_call.send_json("POST", path, None, Webhook, repeatable=False)


def test(webhook_id: uuid.UUID | str) -> ApiCall[WebhookTest]:
    return api_call.send_json("POST", _path(webhook_id, "/test"), None, WebhookTest)


def page(
    webhook_id: uuid.UUID | str, state: str | Sequence[str], cursor: str | None
) -> ApiCall[CallPage]:
    states = [("state", each) for each in listed(state)]
    parameters = [("limit", PAGE), *states, ("cursor", cursor)]
    return api_call.get(_path(webhook_id, "/calls"), CallPage, parameters)


def replay(
    webhook_id: uuid.UUID | str,
    calls: Sequence[uuid.UUID | str] | None,
    state: str | Sequence[str],
    since: datetime | None,
    until: datetime | None,
    cursor: str | None,
) -> ApiCall[Replayed]:
    """Repeat calls; without `calls`, those that failed or are in `state`."""
    body: dict[str, Any] = {}
    if calls is not None:
        body["calls"] = [str(each) for each in calls]
    else:
        body["state"] = list(listed(state)) or ["failed"]
        if since is not None:
            body["since"] = since.isoformat()
        if until is not None:
            body["until"] = until.isoformat()
        if cursor:
            body["cursor"] = cursor
    return api_call.send_json("POST", _path(webhook_id, "/replay"), body, Replayed)


def _path(webhook_id: uuid.UUID | str, rest: str = "") -> str:
    return f"/webhooks/{uuid.UUID(str(webhook_id))}{rest}"
