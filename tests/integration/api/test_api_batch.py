"""`POST /messages/batch`: many mails in one call, each with a result of its own."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox.store import messages
from tests.integration.api.api_helpers import MAIL, Answer, Api


async def batch(api: Api, body: Any, key: str | None = None) -> Answer:
    return await api.shop.post(
        "/messages/batch", body, headers={"Idempotency-Key": key} if key else {}
    )


def statuses(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.content
    return [one["status"] for one in answer.json["results"]]


@pytest.mark.req("REQ-QUEUE-O002")
async def test_a_hundred_messages(api: Api) -> None:
    answer = await batch(api, {"messages": [MAIL | {"subject": str(n)} for n in range(100)]})
    assert statuses(answer) == [202] * 100
    assert (answer.json["accepted"], answer.json["refused"]) == (100, 0)
    rows = await api.database.fetch("SELECT id, subject FROM pillarbox.messages")
    subjects = {str(row["id"]): row["subject"] for row in rows}
    assert [subjects[one["message"]["id"]] for one in answer.json["results"]] == [
        str(n) for n in range(100)
    ]
    assert answer.json["results"][0]["message"]["deliveries"][0]["recipient"] == "ada@mail.example"


async def test_the_order_of_a_batch_is_the_order_of_acceptance(api: Api) -> None:
    answer = await batch(api, {"messages": [MAIL] * 50})
    rows = await api.database.fetch("SELECT message_id FROM pillarbox.deliveries ORDER BY seq")
    assert [str(row["message_id"]) for row in rows] == [
        one["message"]["id"] for one in answer.json["results"]
    ]


async def test_a_bad_one_does_not_spoil_the_others(api: Api) -> None:
    bad: list[Any] = [MAIL | {"to": "nobody"}, MAIL | {"bogus": 1}, 5, MAIL | {"class": "nonesuch"}]
    answer = await batch(api, {"messages": [MAIL, *bad, MAIL]})
    assert statuses(answer) == [202, 422, 422, 422, 422, 202]
    problems = [one["problem"] for one in answer.json["results"][1:5]]
    assert [(one["type"], one["field"]) for one in problems] == [
        ("/problems/invalid-mail", "to"), ("/problems/invalid-request", "messages[2].bogus"),
        ("/problems/invalid-request", "messages[3]"), ("/problems/invalid-mail", "class"),
    ]  # fmt: skip
    assert await api.database.fetchval("SELECT count(*) FROM pillarbox.messages") == 2


@pytest.mark.req("REQ-QUEUE-O002")
async def test_substitutions(api: Api) -> None:
    message = MAIL | {
        "subject": "Hi {{name}}",
        "text": "{{ name }}: {{n}} left",
        "html": "<p>{{name}}</p> {{n}} {name} {{ two words }}",
    }
    del message["to"]
    recipients = [
        {"to": "Ada <ada@mail.example>", "substitutions": {"name": "A&B <i>", "n": 3}},
        {
            "to": ["bo@mail.example", "cy@mail.example"],
            "substitutions": {"name": "{{n}}", "n": 4.5},
        },
        {"to": "x@mail.example", "substitutions": {"name": "x"}},
        {"to": "x@mail.example", "substitutions": {"name": "x", "n": 1, "more": 2}},
        {"to": "x@mail.example"},
        {"to": "nobody", "substitutions": {"name": "x", "n": 1}},
    ]
    answer = await batch(api, {"message": message, "recipients": recipients})
    assert statuses(answer) == [202, 202, 422, 422, 422, 422]
    codes = [one["problem"]["code"] for one in answer.json["results"][2:]]
    assert codes == [
        "missing_substitution",
        "unknown_substitution",
        "missing_substitution",
        "bad_address",
    ]
    first, second = [one["message"]["id"] for one in answer.json["results"][:2]]
    content = await messages.content(api.database, first)
    assert content is not None
    assert (content.text, content.html) == (
        "A&B <i>: 3 left",
        "<p>A&amp;B &lt;i&gt;</p> 3 {name} {{ two words }}",
    )
    assert (await api.shop.get(f"/messages/{first}")).json["subject"] == "Hi A&B <i>"
    second_story = (await api.shop.get(f"/messages/{second}")).json
    assert second_story["subject"] == "Hi {{n}}"  # what was put in is not looked at again
    assert len(second_story["deliveries"]) == 2


async def test_a_value_cannot_break_out_of_the_subject(api: Api) -> None:
    body = {"message": {"from": "a@shop.example", "subject": "{{x}}", "text": "x"}}
    answer = await batch(
        api,
        body
        | {"recipients": [{"to": "a@b.example", "substitutions": {"x": "a\r\nBcc: v@w.example"}}]},
    )
    assert statuses(answer) == [422]
    assert answer.json["results"][0]["problem"]["code"] == "control_character"


async def test_few_letters_do_not_become_many(api: Api) -> None:
    message = {"from": "a@shop.example", "text": "{{a}}" * 100_000}
    recipients = [{"to": "a@b.example", "substitutions": {"a": "x" * 100_000}}] * 100
    answer = await batch(api, {"message": message, "recipients": recipients})
    assert statuses(answer) == [422] * 100
    assert answer.json["results"][0]["problem"]["code"] == "too_big"


async def test_a_file_for_everybody_has_a_limit(api: Api) -> None:
    file = {"filename": "x", "content": "eHh4" * 2**20}
    message = {"from": "a@shop.example", "text": "x", "attachments": [file]}
    answer = await batch(
        api, {"message": message, "recipients": [{"to": f"a{n}@b.example"} for n in range(100)]}
    )
    assert (answer.status, answer.json["code"]) == (422, "too_big")
    assert await api.database.fetchval("SELECT count(*) FROM pillarbox.messages") == 0


@pytest.mark.parametrize(
    "body",
    [
        {}, {"messages": []}, {"messages": [MAIL] * 101}, {"message": MAIL}, {"recipients": [{"to": "a@b.example"}]},
        {"messages": [MAIL], "message": MAIL}, {"message": MAIL, "recipients": []},
        {"message": MAIL, "recipients": [{"to": "a@b.example"}]},
        {"message": {"text": "x"}, "recipients": [{"to": "a@b.example"}] * 101}, {"bogus": 1},
    ],
    ids=lambda body: str(body)[:40],
)  # fmt: skip
async def test_what_is_no_batch(api: Api, body: Any) -> None:
    answer = await batch(api, body)
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")


async def test_a_key_for_the_whole_batch(api: Api) -> None:
    body = {"messages": [MAIL | {"subject": str(n)} for n in range(3)]}
    first, second = [await batch(api, body, "b1") for _ in range(2)]
    assert [one["repeated"] for one in first.json["results"]] == [False] * 3
    assert [one["repeated"] for one in second.json["results"]] == [True] * 3
    assert [one["message"] for one in first.json["results"]] == [
        one["message"] for one in second.json["results"]
    ]
    body["messages"][1]["subject"] = "changed"
    third = await batch(api, body, "b1")
    assert statuses(third) == [202, 409, 202]
    assert third.json["results"][1]["problem"]["type"] == "/problems/idempotency-conflict"
    assert await api.database.fetchval("SELECT count(*) FROM pillarbox.messages") == 3
    alone = await api.shop.send(headers_={"Idempotency-Key": "b1"})
    assert "idempotency-replayed" not in alone.headers
