"""A key's domains hold for every request that makes a mail leave: sending, sending again, rescheduling."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillarbox.model.access import Scope
from tests.integration.api.api_helpers import EVERY, Api, Client, api_of

OWN = {"from": "a@shop.example"}
FOREIGN_RAW = b"From: ceo@evil.example\r\nSubject: raw\r\n\r\nHello\r\n"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url, worker_enabled=False) as served:
        yield served


async def restricted(api: Api, **more: Any) -> Client:
    return await api.key("shop", *EVERY, sender_domains=["shop.example"], **more)


async def send_raw(client: Client, raw: bytes) -> Any:
    content = b64encode(raw).decode()
    return await client("POST", "/messages", OWN | {"to": "ada@mail.example", "raw": content})


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"X: y\rFrom: ceo@evil.example\r\n\r\n", 422, "bare_cr"),
        (b"X: y\nFrom: ceo@evil.example\n\n", 403, "sender_domain"),
        (b"From: =?utf-8?q?ceo=40evil.example?= <a@shop.example>\r\n\r\n", 403, "sender_domain"),
        (b"From: a@shop.example\r\nSender: ceo@evil.example\r\n\r\n", 403, "sender_domain"),
        (b"From: a@shop.example\r\nnonsense\r\n\r\n", 422, "bad_header"),
        (b"From: a@shop.example\nSubject: x\n\nHello\n", 202, None),
    ],
)
async def test_raw_mails(api: Api, raw: bytes, status: int, code: str | None) -> None:
    answer = await send_raw(await restricted(api), raw)
    assert (answer.status, answer.json.get("code")) == (status, code), answer.content
    stored = await api.database.fetchval("SELECT raw FROM pillarbox.contents")
    assert stored == (raw.replace(b"\n", b"\r\n") if status == 202 else None)


async def dead(api: Api, *ids: str) -> None:
    await api.database.execute(
        "UPDATE pillarbox.deliveries SET state = 'failed', reason = 'policy' WHERE message_id = ANY ($1::uuid[])",
        list(ids),
    )


async def mails(api: Api) -> dict[str, str]:
    """A mail of the key's own domain, and three that it could not send."""
    raw = await send_raw(api.shop, FOREIGN_RAW)
    assert raw.status == 202
    return {
        "own": await api.shop.sent_id(**OWN, to=["ada@mail.example"]),
        "foreign": await api.shop.sent_id(**{"from": "a@evil.example"}, to=["ada@mail.example"]),
        "elsewhere": await api.shop.sent_id(**OWN, to=["ada@other.example"]),
        "raw": str(raw.json["id"]),
    }


async def queued(api: Api) -> set[str]:
    rows = await api.database.fetch(
        "SELECT message_id FROM pillarbox.deliveries WHERE state = 'queued'"
    )
    return {str(row[0]) for row in rows}


@pytest.mark.parametrize("by_filter", [True, False])
async def test_dead_letters(api: Api, by_filter: bool) -> None:
    key = await restricted(api, recipient_domains=["mail.example"])
    ids = await mails(api)
    await dead(api, *ids.values())
    wanted: dict[str, Any] = {"filter": {}} if by_filter else {"message_ids": list(ids.values())}
    for dry_run in (True, False):
        answer = await key.post("/dlq/reprocess", wanted | {"dry_run": dry_run})
        assert (answer.json["requeued"], answer.json["skipped"]) == (1, {"not_allowed": 3}), (
            answer.content
        )
    assert await queued(api) == {ids["own"]}
    assert (await api.shop.post("/dlq/reprocess", wanted)).json["requeued"] == 3


async def test_rescheduling(api: Api) -> None:
    key = await restricted(api, recipient_domains=["mail.example"])
    for name, message_id in (await mails(api)).items():
        answer = await key.post(
            f"/messages/{message_id}/reschedule", {"send_at": "2026-01-01T00:00:00Z"}
        )
        assert answer.status == (200 if name == "own" else 403), (name, answer.content)


async def test_resending(api: Api) -> None:
    key = await restricted(api, recipient_domains=["mail.example"])
    for name, message_id in (await mails(api)).items():
        answer = await key.post(f"/messages/{message_id}/resend")
        assert answer.status == (202 if name == "own" else 403), (name, answer.content)


async def test_a_header_section_too_long_to_read(api: Api) -> None:
    key = await restricted(api)
    answer = await send_raw(api.shop, b"X: y\r\n" * 50_000 + FOREIGN_RAW)
    assert answer.status == 202
    await dead(api, answer.json["id"])
    again = await key.post("/dlq/reprocess", {"filter": {}})
    assert (again.json["requeued"], again.json["skipped"]) == (0, {"not_allowed": 1})


async def test_the_scope_alone_is_not_enough(api: Api) -> None:
    ids = await mails(api)
    await dead(api, ids["foreign"])
    manager = await api.key("shop", Scope.MANAGE, sender_domains=["shop.example"])
    assert (await manager.post("/dlq/reprocess", {"message_ids": [ids["foreign"]]})).json[
        "requeued"
    ] == 0
