"""`POST /messages`: what is accepted is committed; what breaks a rule changes nothing and says why."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pillarbox.model.access import Scope
from pillarbox.store import messages
from tests.harness import deliveries
from tests.integration.api.api_helpers import MAIL, Api


async def count(api: Api) -> int:
    return int(await api.database.fetchval("SELECT count(*) FROM pillarbox.messages"))


@pytest.mark.req("REQ-QUEUE-E001")
@pytest.mark.req("REQ-QUEUE-U004")
async def test_a_mail_is_accepted_and_stored(api: Api) -> None:
    answer = await api.shop.send(cc="Bo <bo@mail.example>", bcc=["cy@mail.example"])
    assert answer.status == 202
    message = answer.json["id"]
    assert answer.json["deliveries"] == [
        {"id": f"{message}.0", "recipient": "ada@mail.example", "role": "to", "state": "queued"},
        {"id": f"{message}.1", "recipient": "bo@mail.example", "role": "cc", "state": "queued"},
        {"id": f"{message}.2", "recipient": "cy@mail.example", "role": "bcc", "state": "queued"},
    ]
    assert answer.headers["location"] == f"/api/v1/messages/{message}"
    rows = await deliveries(api.database, message)
    assert [row["recipient"] for row in rows] == [
        "ada@mail.example",
        "bo@mail.example",
        "cy@mail.example",
    ]


@pytest.mark.req("REQ-QUEUE-O001")
@pytest.mark.req("REQ-QUEUE-O005")
async def test_every_field_arrives(api: Api) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    given = {
        "reply_to": "help@shop.example", "html": "<p>Hi!</p>", "headers": {"X-Order": "4711"}, "class": "bulk",
        "kind": "order", "tags": ["a", "b"], "metadata": {"order": 4711, "deep": {"x": [1, None]}},
        "priority": "urgent", "send_at": later.isoformat(), "expires_at": (later + timedelta(days=1)).isoformat(),
        "max_attempts": 3,
        "attachments": [
            {"filename": "a.txt", "content": base64.b64encode(b"file").decode(), "content_type": "text/plain"},
            {"filename": "i.png", "content": "iVBO\r\nRw==", "content_type": "image/png", "content_id": "logo"},
        ],
    }  # fmt: skip
    answer = await api.shop.send(**given)
    assert answer.status == 202
    assert answer.json["deliveries"][0]["state"] == "pending"
    told = (await api.shop.get(f"/messages/{answer.json['id']}")).json
    for name in ("headers", "class", "kind", "tags", "metadata", "priority", "max_attempts"):
        assert told[name] == given[name]
    assert told["reply_to"] == ["help@shop.example"]
    assert datetime.fromisoformat(told["send_at"]) == later
    content = await messages.content(api.database, answer.json["id"])
    assert content is not None
    assert [(one.filename, one.content, one.content_id) for one in content.attachments] == [
        ("a.txt", b"file", None),
        ("i.png", b"\x89PNG", "logo"),
    ]


async def test_a_raw_mail(api: Api) -> None:
    raw = b"From: a@shop.example\r\nTo: b@mail.example\r\nSubject: Raw\r\n\r\nHi \xff\r\n"
    body = {"from": "a@shop.example", "to": "b@mail.example", "raw": base64.b64encode(raw).decode()}
    answer = await api.shop.post("/messages", body)
    assert answer.status == 202
    content = await messages.content(api.database, answer.json["id"])
    assert content is not None
    assert content.raw == raw


async def test_the_sender_has_two_names_and_a_default(api: Api) -> None:
    body = {"sender": "two@shop.example", "to": "b@mail.example", "text": "Hi"}
    answer = await api.shop.post("/messages", body)
    assert answer.status == 202
    del body["sender"]
    problem = (await api.shop.post("/messages", body)).json
    assert (problem["type"], problem["field"]) == ("/problems/invalid-mail", "from")
    await api.admin("PATCH", "/admin/tenants/shop", {"default_sender": "Shop <hello@shop.example>"})
    answer = await api.shop.post("/messages", body)
    assert (await api.shop.get(f"/messages/{answer.json['id']}")).json[
        "from"
    ] == "Shop <hello@shop.example>"


BAD: list[tuple[dict[str, Any], int, str, str, str]] = [
    ({"to": "nobody"}, 422, "invalid-mail", "bad_address", "to"),
    ({"to": []}, 422, "invalid-mail", "recipient_count", "to"),
    ({"from": "x"}, 422, "invalid-mail", "bad_address", "from"),
    ({"subject": "a\nb"}, 422, "invalid-mail", "control_character", "subject"),
    ({"text": None}, 422, "invalid-mail", "empty", "text"),
    ({"text": "x" * (2**20 + 1)}, 422, "invalid-mail", "too_big", "text"),
    ({"class": "nonesuch"}, 422, "invalid-mail", "unknown_class", "class"),
    ({"metadata": {"a": "x" * 20_000}}, 422, "invalid-mail", "too_big", "metadata"),
    ({"headers": {"Subject": "x"}}, 422, "invalid-mail", "reserved_header", "headers"),
    ({"expires_at": "2001-01-01T00:00:00Z"}, 422, "invalid-mail", "out_of_range", "expires_at"),
    ({"max_attempts": 0}, 422, "invalid-mail", "out_of_range", "max_attempts"),
    ({"bogus": 1}, 422, "invalid-request", "unknown_field", "bogus"),
    ({"to": 5}, 422, "invalid-request", "bad_type", "to"),
    ({"max_attempts": "3"}, 422, "invalid-request", "bad_type", "max_attempts"),
    ({"priority": "asap"}, 422, "invalid-request", "bad_value", "priority"),
    ({"send_at": "tomorrow"}, 422, "invalid-request", "bad_value", "send_at"),
    ({"send_at": "2030-01-01T00:00:00"}, 422, "invalid-request", "bad_value", "send_at"),
    ({"send_at": 5}, 422, "invalid-request", "bad_value", "send_at"),
    ({"send_at": "9999-12-31T23:59:59-23:59"}, 422, "invalid-request", "bad_value", "send_at"),
    ({"raw": "%%%"}, 422, "invalid-request", "bad_value", "raw"),
    (
        {"attachments": [{"filename": "x"}]},
        422,
        "invalid-request",
        "missing",
        "attachments[0].content",
    ),
]


@pytest.mark.parametrize(
    ("fields", "status", "kind", "code", "field"), BAD, ids=[str(one[3:]) for one in BAD]
)
async def test_a_bad_mail_changes_nothing(
    api: Api, fields: dict[str, Any], status: int, kind: str, code: str, field: str
) -> None:
    answer = await api.shop.send(**fields)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json["type"], answer.json["code"], answer.json["field"]) == (
        f"/problems/{kind}",
        code,
        field,
    )
    assert answer.json["status"] == status
    assert answer.json["title"]
    assert await count(api) == 0


async def test_values_are_not_repeated_in_errors(api: Api) -> None:
    answer = await api.shop.send(priority="hunter2", bogus="hunter2", to={"hunter2": 1})
    assert answer.status == 422
    assert b"hunter2" not in answer.content
    assert {one["field"] for one in answer.json["errors"]} == {"priority", "bogus", "to"}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nul", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b'{"to":"\\ud800"}', b'{"\\ud800":1}',
        b'{"metadata":{"n":' + b"9" * 10_000 + b"}}", b"\x00",
    ],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
async def test_what_is_not_json(api: Api, body: bytes) -> None:
    answer = await api.shop(
        "POST", "/messages", data=body, headers={"Content-Type": "application/json"}
    )
    assert (answer.status, answer.json["type"]) == (400, "/problems/malformed")


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"null", b"NaN", b"Infinity"])
async def test_json_that_is_no_mail(api: Api, body: bytes) -> None:
    answer = await api.shop(
        "POST", "/messages", data=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status in (400, 422)
    assert answer.json["type"] in ("/problems/invalid-request", "/problems/malformed")


@pytest.mark.parametrize(
    "value", [b"NaN", b"-Infinity", b"1e999", b"1" * 4000, b'"\\u0000"', b"[" * 150 + b"]" * 150]
)
async def test_odd_values_in_metadata(api: Api, value: bytes) -> None:
    body = (
        b'{"from":"a@shop.example","to":"b@mail.example","text":"x","metadata":{"a":'
        + value
        + b"}}"
    )
    answer = await api.shop(
        "POST", "/messages", data=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status in (202, 422), answer.content


async def test_the_last_of_two_equal_names_counts(api: Api) -> None:
    body = b'{"from":"a@shop.example","to":"x@mail.example","to":"y@mail.example","text":"x"}'
    answer = await api.shop(
        "POST", "/messages", data=body, headers={"Content-Type": "application/json"}
    )
    assert [one["recipient"] for one in answer.json["deliveries"]] == ["y@mail.example"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""]
)
async def test_other_kinds_of_body_are_refused(api: Api, kind: str) -> None:
    answer = await api.shop(
        "POST", "/messages", data=b'{"to":"a@b.example"}', headers={"Content-Type": kind}
    )
    assert (answer.status, answer.json["type"]) == (415, "/problems/unsupported-media-type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"]
)
async def test_kinds_of_json(api: Api, kind: str) -> None:
    assert (await api.shop("POST", "/messages", MAIL, headers={"Content-Type": kind})).status == 202


async def test_same_key_same_request_same_answer(api: Api) -> None:
    key = {"Idempotency-Key": "order-4711"}
    first, second = [await api.shop.send(headers_=key) for _ in range(2)]
    assert (first.status, second.status) == (202, 202)
    assert first.json == second.json
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    conflict = await api.shop.send(headers_=key, subject="Another")
    assert (conflict.status, conflict.json["type"]) == (409, "/problems/idempotency-conflict")
    assert (await api.other.send(headers_=key)).json["id"] != first.json["id"]
    assert await count(api) == 2


async def test_idempotency_under_concurrency(api: Api) -> None:
    key = {"Idempotency-Key": "at once"}
    answers = await asyncio.gather(*(api.shop.send(headers_=key) for _ in range(20)))
    assert {one.status for one in answers} == {202}
    assert len({one.json["id"] for one in answers}) == 1
    assert sum("idempotency-replayed" not in one.headers for one in answers) == 1
    mixed = await asyncio.gather(
        *(
            api.shop.send(headers_={"Idempotency-Key": "mixed"}, subject=str(n % 2))
            for n in range(20)
        )
    )
    assert sorted({one.status for one in mixed}) == [202, 409]
    assert await count(api) == 2


@pytest.mark.parametrize("key", ["", "x" * 256, "täg"])
async def test_keys_that_are_none(api: Api, key: str) -> None:
    answer = await api.shop.send(headers_={"Idempotency-Key": key})
    assert (answer.status, answer.json["code"]) == (422, "bad_key")


async def test_limits_of_the_tenant_and_the_key(api: Api) -> None:
    await api.admin(
        "PATCH", "/admin/tenants/shop", {"max_recipients": 1, "sender_domains": ["shop.example"]}
    )
    assert (await api.shop.send(to=["a@b.example", "c@d.example"])).json[
        "code"
    ] == "recipient_count"
    refused = await api.shop.send(**{"from": "x@elsewhere.example"})
    assert (refused.status, refused.json["code"], refused.json["field"]) == (
        403,
        "sender_domain",
        "from",
    )
    narrow = await api.key("shop", Scope.SEND, recipient_domains=["*.mail.example"])
    assert (await narrow.send()).json["code"] == "recipient_domain"
    assert (await narrow.send(to="a@x.mail.example")).status == 202
    assert await count(api) == 1
