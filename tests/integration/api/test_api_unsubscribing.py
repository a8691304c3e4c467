"""`list_unsubscribe` by HTTP: the mail has the header fields, and so has the mail that is resent."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from tests.harness import enqueue
from tests.integration.api.api_helpers import MAIL, Api
from tests.unsubscribing import CASES, HTTPS, INJECTION, MAILTO, OTHER_HTTPS, unsubscribe_fields

RAW = b64encode(b"From: a@shop.example\r\nSubject: x\r\n\r\nHi\r\n").decode()
# What is refused, with the code and the field of the problem.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"list_unsubscribe": INJECTION}, "bad_url", "list_unsubscribe"),
    ({"list_unsubscribe": [HTTPS, f"{HTTPS}>, <{OTHER_HTTPS}"]}, "bad_url", "list_unsubscribe"),
    ({"list_unsubscribe": "ftp://shop.example/u"}, "bad_url", "list_unsubscribe"),
    ({"list_unsubscribe": "https://shop.example/{{id}}"}, "bad_url", "list_unsubscribe"),
    ({"list_unsubscribe": ""}, "bad_url", "list_unsubscribe"),
    ({"list_unsubscribe": [HTTPS] * 11}, "too_many", "list_unsubscribe"),
    ({"list_unsubscribe": f"{HTTPS}{'y' * 1000}"}, "too_long", "list_unsubscribe"),
    ({"list_unsubscribe": 5}, "bad_type", "list_unsubscribe"),
    ({"list_unsubscribe": [HTTPS, 5]}, "bad_type", "list_unsubscribe[1]"),
    (
        {"list_unsubscribe": HTTPS, "headers": {"List-Unsubscribe": "<x>"}},
        "reserved_header",
        "headers",
    ),
    (
        {"list_unsubscribe": MAILTO, "headers": {"list-unsubscribe-post": "x"}},
        "reserved_header",
        "headers",
    ),
    ({"list_unsubscribe": HTTPS, "raw": RAW, "text": None, "subject": None}, "raw_and_parts", "raw"),
]  # fmt: skip


async def fields_of(api: Api, message_id: str) -> dict[str, str]:
    """The header fields of the mail as it would be sent."""
    answer = await api.shop.get(f"/messages/{message_id}/raw")
    assert answer.status == 200
    return unsubscribe_fields(answer.content)


@pytest.mark.parametrize(("urls", "expected"), CASES)
async def test_a_mail_has_the_header_fields_also_when_resent(
    api: Api, urls: list[str], expected: dict[str, str]
) -> None:
    sent = await api.shop.sent_id(list_unsubscribe=urls)
    assert await fields_of(api, sent) == expected
    shown = (await api.shop.get(f"/messages/{sent}")).json["headers"]
    assert shown == expected
    resent = await api.shop.post(f"/messages/{sent}/resend")
    assert resent.status == 202
    assert resent.json["id"] != sent
    assert await fields_of(api, resent.json["id"]) == expected


async def test_one_string_is_a_list_of_one(api: Api) -> None:
    sent = await api.shop.sent_id(list_unsubscribe=CASES[0][0][0])
    assert await fields_of(api, sent) == CASES[0][1]


async def test_as_many_headers_as_allowed_can_be_resent(api: Api) -> None:
    headers = {f"X-{number}": "x" for number in range(48)}
    sent = await api.shop.sent_id(list_unsubscribe=HTTPS, headers=headers)
    assert (await api.shop.post(f"/messages/{sent}/resend")).status == 202
    refused = await api.shop.send(list_unsubscribe=HTTPS, headers=headers | {"X-48": "x"})
    assert (refused.status, refused.json["code"]) == (422, "too_many")


@pytest.mark.parametrize(("fields", "code", "field"), REFUSED)
async def test_refused(api: Api, fields: dict[str, Any], code: str, field: str) -> None:
    answer = await api.shop.send(**fields)
    assert (answer.status, answer.json["code"], answer.json["field"]) == (422, code, field)
    assert await api.database.fetchval("SELECT count(*) FROM pillarbox.messages") == 0


async def test_each_mail_of_a_batch_has_its_own(api: Api) -> None:
    items = [MAIL | {"list_unsubscribe": urls} for urls, _ in CASES]
    items.insert(1, MAIL | {"list_unsubscribe": INJECTION})
    answer = await api.shop.post("/messages/batch", {"messages": items})
    results = answer.json["results"]
    refused = results.pop(1)
    assert (refused["status"], refused["problem"]["code"]) == (422, "bad_url")
    found = [await fields_of(api, result["message"]["id"]) for result in results]
    assert found == [expected for _, expected in CASES]


async def test_a_mail_for_many_recipients(api: Api) -> None:
    """All have the same URLs; a placeholder is refused, since it would not be replaced."""
    message = {"from": "a@shop.example", "text": "Hi {{name}}", "list_unsubscribe": HTTPS}
    recipients = [
        {"to": f"r{number}@mail.example", "substitutions": {"name": "x"}} for number in range(2)
    ]
    body = {"message": message, "recipients": recipients}
    answer = await api.shop.post("/messages/batch", body)
    for result in answer.json["results"]:
        assert await fields_of(api, result["message"]["id"]) == CASES[0][1]
    message["list_unsubscribe"] = "https://shop.example/u/{{name}}"
    refused = await api.shop.post("/messages/batch", body)
    assert [result["problem"]["code"] for result in refused.json["results"]] == ["bad_url"] * 2


async def test_it_belongs_to_the_request_of_an_idempotency_key(api: Api) -> None:
    """By HTTP and by SQL: the same URLs are a replay, other URLs a conflict."""
    key = {"Idempotency-Key": "newsletter"}
    sent = await api.shop.sent_id(headers_=key, list_unsubscribe=HTTPS)
    assert await api.shop.sent_id(headers_=key, list_unsubscribe=[HTTPS]) == sent
    conflict = await api.shop.send(headers_=key, list_unsubscribe=MAILTO)
    assert conflict.status == 409
    assert (await api.shop.send(headers_=key)).status == 409
    by_sql = await enqueue(
        api.database,
        *MAIL["to"],
        sender=MAIL["from"],
        tenant="shop",
        idempotency_key="newsletter",
        list_unsubscribe=[HTTPS],
    )
    assert str(by_sql) == sent
