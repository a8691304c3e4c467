"""Looking at messages and changing what becomes of them: listing, story, raw, cancel, reschedule, resend."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from typing import Any
from uuid import UUID

import pytest

from pillarbox.api.listing import SYNONYMS
from pillarbox.api.pagination import cursor_of
from pillarbox.model.delivery import State
from pillarbox.store import message_pages, providers
from pillarbox.testing import SmtpServer
from tests.harness import add_smtp, settled, working
from tests.integration.api.api_helpers import MAIL, Api, Client


async def put(api: Api, message_id: str, n: int = 0, **columns: Any) -> None:
    """Put a delivery into a state, as a worker would have."""
    names = ", ".join(f"{name} = ${place}" for place, name in enumerate(columns, 3))
    await api.database.execute(
        f"UPDATE pillarbox.deliveries SET {names} WHERE message_id = $1 AND n = $2",
        message_id,
        n,
        *columns.values(),
    )


async def pages_of(client: Client, query: str) -> AsyncIterator[list[str]]:
    """The ids on each page, following `next` to the end."""
    path: str | None = f"/api/v1/messages?{query}"
    while path:
        answer = await client.get(path)
        assert answer.status == 200, answer.content
        yield [one["id"] for one in answer.json["messages"]]
        path = answer.json["next"]


async def listed(client: Client, query: str = "") -> list[str]:
    return [one async for page in pages_of(client, query) for one in page]


# --- listing


async def test_newest_first_and_page_by_page(api: Api) -> None:
    ids = [await api.shop.sent_id(subject=str(n)) for n in range(5)]
    await api.other.sent_id()
    assert sorted(await listed(api.shop)) == sorted(ids)
    message_pages = [page async for page in pages_of(api.shop, "limit=2")]
    assert [len(page) for page in message_pages] == [2, 2, 1]
    whole = [one for page in message_pages for one in page]
    assert whole == sorted(ids, reverse=True)


async def test_a_page_stays_what_it_is_while_mails_come_in(api: Api) -> None:
    ids = [await api.shop.sent_id() for _ in range(4)]
    first = (await api.shop.get("/messages?limit=2")).json
    newer = await api.shop.sent_id()
    second = (await api.shop.get(first["next"])).json
    assert [one["id"] for one in first["messages"] + second["messages"]] == sorted(
        ids, reverse=True
    )
    assert newer not in json.dumps(second)
    assert first["next_cursor"] in first["next"]


async def test_the_next_page_keeps_the_filters(api: Api) -> None:
    for n in range(6):
        await api.shop.sent_id(tags=["odd" if n % 2 else "even"], subject=f"a&b={n}")
    answer = await api.shop.get("/messages?tag=odd&subject=a%26b&limit=2")
    assert answer.headers["link"] == f'<{answer.json["next"]}>; rel="next"'
    assert len(await listed(api.shop, "tag=odd&subject=a%26b&limit=2")) == 3


async def test_filters(api: Api) -> None:
    plain = await api.shop.sent_id()
    special = await api.shop.sent_id(
        **{"from": "Bob <Bob@Shop.example>", "class": "bulk"}, to=["Eve@Mail.example"], subject="An OFFER",
        kind="offer", tags=["x", "y"],
    )  # fmt: skip
    await put(api, special, state="failed", reason="policy")
    for query in (
        "sender=bob@shop", "recipient=EVE@", "subject=offer", "kind=offer", "tag=y", "class=bulk", "state=failed",
        "state=failed&state=held", "state=dlq", "state=failed&tag=x&recipient=eve", "sender=bob&limit=1",
    ):  # fmt: skip
        assert await listed(api.shop, query) == [special], query
    assert await listed(api.shop, "state=queued") == [plain]
    assert await listed(api.shop, "subject=100%25") == []
    now = datetime.now(UTC)
    soon = (now + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert len(await listed(api.shop, f"until={soon}")) == 2
    assert await listed(api.shop, f"since={soon}") == []


async def test_filter_by_provider(api: Api) -> None:
    await api.shop.sent_id()
    tried = await api.shop.sent_id()
    number = await providers.add_provider(
        api.database, lambda: pytest.fail("no secret"), "relay", "capture", {}
    )
    await put(api, tried, provider_id=number)
    assert await listed(api.shop, "provider=relay") == [tried]


async def test_a_page_with_filters_looks_at_a_bounded_number(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_pages, "LOOKED_AT", 3)
    ids = [await api.shop.sent_id(kind="rare" if n in (0, 7) else "usual") for n in range(9)]
    await api.other.sent_id(kind="rare")
    found = [page async for page in pages_of(api.shop, "kind=rare")]
    assert found == [[ids[7]], [], [ids[0]], []]


@pytest.mark.parametrize("word", SYNONYMS)
async def test_other_words_for_states(api: Api, word: str) -> None:
    message_id = await api.shop.sent_id()
    await put(api, message_id, state=SYNONYMS[word].value)
    assert await listed(api.shop, f"state={word}") == [message_id]


@pytest.mark.parametrize("state", State)
async def test_every_state_is_a_filter(api: Api, state: State) -> None:
    assert (await api.shop.get(f"/messages?state={state}")).status == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("cursor=x", "cursor"),
        ("cursor=" + "A" * 21, "cursor"), ("cursor=" + "!" * 22, "cursor"), ("state=nonesuch", "state[0]"),
        ("since=yesterday", "since"), ("until=2030-01-01", "until"), ("bogus=1", "bogus"), ("sender=", "sender"),
        ("sender=%00", "sender"), ("subject=" + "x" * 400, "subject"), ("tenant=other", "tenant"),
    ],
)  # fmt: skip
async def test_questions_that_make_no_sense(api: Api, query: str, field: str) -> None:
    answer = await api.shop.get(f"/messages?{query}")
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")
    assert answer.json["field"] == field


async def test_a_cursor_is_only_a_place(api: Api) -> None:
    """It gives no access: with another tenant's, one still sees one's own."""
    await api.other.sent_id()
    mine = await api.shop.sent_id()
    await api.other.sent_id()
    cursor = cursor_of(UUID(int=2**128 - 1))
    assert [
        one["id"] for one in (await api.shop.get(f"/messages?cursor={cursor}")).json["messages"]
    ] == [mine]


# --- the story


@pytest.mark.req("REQ-QUEUE-U002")
@pytest.mark.req("REQ-QUEUE-U005")
async def test_the_whole_story(api: Api, database_url: str) -> None:
    async with SmtpServer() as server, working(database_url):
        await add_smtp(api.database, server)
        message_id = await api.shop.sent_id(to=["ada@mail.example"])
        await settled(api.database, UUID(message_id), "sent")
    told = (await api.shop.get(f"/messages/{message_id}")).json
    (delivery,) = told["deliveries"]
    assert (delivery["id"], delivery["state"], delivery["provider"]) == (
        f"{message_id}.0",
        "sent",
        "relay",
    )
    assert (delivery["attempts_made"], delivery["next_attempt_at"]) == (1, None)
    assert delivery["retry"] == {"policy": None, "max_attempts": None, "then_after_seconds": []}
    assert (delivery["waits_for"], delivery["expected_at"]) == (None, None)
    (attempt,) = delivery["attempts"]
    assert (attempt["number"], attempt["verdict"], attempt["code"]) == (1, "accepted", 250)
    assert attempt["started_at"] <= attempt["ended_at"]
    assert told["content"] == {"text": 3}
    assert told["from"] == MAIL["from"]


async def test_a_story_tells_reasons_redacted_texts_and_no_numbers_of_ours(api: Api) -> None:
    message_id = await api.shop.sent_id()
    await put(api, message_id, state="queued", attempts=1, reason="greylisted", retry="quadratic")
    await api.database.execute(
        "INSERT INTO pillarbox.attempts"
        " (message_id, n, claim, worker, started_at, ended_at, verdict, reason, code, reply)"
        " VALUES ($1, 0, 987654, 13, now(), now(), 'deferred', 'greylisted', 451, 'later <redacted:12345678>')",
        message_id,
    )
    await api.database.execute(
        "INSERT INTO pillarbox.conversations VALUES ($1, 987654, '> RCPT TO <redacted:12345678>')",
        message_id,
    )
    data = json.dumps({"claim": 987654, "worker": 13, "reason": "lost"})
    await api.database.execute(
        "INSERT INTO pillarbox.events (message_id, n, kind, data) VALUES ($1, 0, 'unknown', $2)",
        message_id,
        data,
    )
    answer = await api.shop.get(f"/messages/{message_id}")
    (delivery,) = answer.json["deliveries"]
    assert (delivery["reason"], delivery["retry"]["policy"]) == ("greylisted", "quadratic")
    assert delivery["retry"]["max_attempts"] == 10
    assert delivery["retry"]["then_after_seconds"][0] == 240
    assert delivery["attempts"][0]["reply"] == "later <redacted:12345678>"
    assert delivery["attempts"][0]["conversation"] == "> RCPT TO <redacted:12345678>"
    assert answer.json["events"][0]["data"] == {"reason": "lost"}
    assert answer.json["events"][0]["delivery"] == f"{message_id}.0"
    assert b"987654" not in answer.content


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        "00000000-0000-0000-0000-000000000000",
        "0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11",
        "%00",
        "1" * 500,
    ],
)
async def test_unknown_ids(api: Api, wrong: str) -> None:
    for method, path in (("GET", ""), ("GET", "/raw"), ("POST", "/cancel"), ("POST", "/resend")):
        answer = await api.shop(method, f"/messages/{wrong}{path}")
        assert (answer.status, answer.json["type"]) == (404, "/problems/not-found")


# --- raw, and what is secret


async def test_raw_is_the_mail_and_safe_to_open(api: Api) -> None:
    message_id = await api.shop.sent_id(html="<script>alert(1)</script>", bcc="cy@mail.example")
    answer = await api.shop.get(f"/messages/{message_id}/raw")
    assert answer.status == 200
    assert answer.headers["content-type"] == "message/rfc822"
    assert answer.headers["content-disposition"] == f'attachment; filename="{message_id}.eml"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    mail = message_from_bytes(answer.content, policy=default)
    assert (mail["subject"], mail["to"]) == ("Hello", "ada@mail.example")
    assert b"cy@mail.example" not in answer.content


async def test_a_large_mail_as_raw(api: Api) -> None:
    file = base64.b64encode(b"x" * 2**20).decode()
    message_id = await api.shop.sent_id(attachments=[{"filename": "x", "content": file}])
    assert len((await api.shop.get(f"/messages/{message_id}/raw")).content) > 2**20


async def test_a_mail_that_cannot_be_composed(api: Api) -> None:
    message_id = await api.shop.sent_id(headers={"Date": "now", "date": "then"})
    answer = await api.shop.get(f"/messages/{message_id}/raw")
    assert (answer.status, answer.json["type"]) == (409, "/problems/not-possible")


async def test_content_that_was_dropped(api: Api) -> None:
    message_id = await api.shop.sent_id()
    await api.database.execute("DELETE FROM pillarbox.contents WHERE message_id = $1", message_id)
    for method, path in (("GET", "raw"), ("POST", "resend")):
        answer = await api.shop(method, f"/messages/{message_id}/{path}")
        assert (answer.status, answer.json["type"]) == (410, "/problems/content-purged")
    assert (await api.shop.get(f"/messages/{message_id}")).json["content"] is None


async def test_secret_mails_show_nothing(api: Api) -> None:
    secret = "Your code is 314159"
    message_id = await api.shop.sent_id(subject=secret, text=secret, **{"class": "lifecycle"})
    answers = [
        await api.shop.get(path)
        for path in ("/messages", f"/messages/{message_id}", f"/messages/{message_id}/raw")
    ]
    assert [one.status for one in answers] == [200, 200, 403]
    assert all(b"314159" not in one.content for one in answers)
    assert answers[2].json["code"] == "secret"
    assert answers[1].json["subject"] == answers[0].json["messages"][0]["subject"] == "****"
    assert await listed(api.shop, "subject=314159") == []


# --- cancel


async def test_cancel(api: Api) -> None:
    message_id = await api.shop.sent_id()
    answer = await api.shop.post(f"/messages/{message_id}/cancel")
    assert answer.status == 200
    assert [(one["state"], one["changed"]) for one in answer.json["deliveries"]] == [
        ("cancelled", True)
    ]
    told = (await api.shop.get(f"/messages/{message_id}")).json
    assert (told["deliveries"][0]["state"], told["deliveries"][0]["reason"]) == (
        "cancelled",
        "cancelled",
    )
    (event,) = told["events"]
    assert (event["kind"], event["data"]["who"]) == ("cancelled", "key")
    again = await api.shop.post(f"/messages/{message_id}/cancel")
    assert (again.status, again.json["type"]) == (409, "/problems/not-possible")
    assert again.json["deliveries"][0]["state"] == "cancelled"


async def test_what_is_in_flight_cannot_be_cancelled(api: Api) -> None:
    message_id = await api.shop.sent_id()
    await put(api, message_id, state="processing", claim=1)
    answer = await api.shop.post(f"/messages/{message_id}/cancel")
    assert (answer.status, answer.json["type"]) == (409, "/problems/in-flight")
    assert answer.json["deliveries"][0]["state"] == "processing"


async def test_a_part_can_be_cancelled(api: Api) -> None:
    message_id = await api.shop.sent_id(to=["a@mail.example", "b@mail.example", "c@mail.example"])
    await put(api, message_id, 0, state="processing", claim=1)
    await put(api, message_id, 1, state="sent")
    answer = await api.shop.post(f"/messages/{message_id}/cancel")
    assert answer.status == 200
    assert [(one["state"], one["changed"]) for one in answer.json["deliveries"]] == [
        ("processing", False), ("sent", False), ("cancelled", True),
    ]  # fmt: skip


# --- reschedule


@pytest.mark.req("REQ-QUEUE-O005")
async def test_reschedule(api: Api) -> None:
    message_id = await api.shop.sent_id()
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    answer = await api.shop.post(
        f"/messages/{message_id}/reschedule", {"send_at": later.isoformat()}
    )
    assert answer.status == 200
    (one,) = answer.json["deliveries"]
    assert (one["state"], one["changed"], datetime.fromisoformat(one["next_attempt_at"])) == (
        "pending",
        True,
        later,
    )
    back = await api.shop.post(
        f"/messages/{message_id}/reschedule", {"send_at": "2001-01-01T00:00:00Z"}
    )
    assert back.json["deliveries"][0]["state"] == "queued"
    events = (await api.shop.get(f"/messages/{message_id}")).json["events"]
    assert [one["kind"] for one in events] == ["rescheduled", "rescheduled"]
    assert datetime.fromisoformat(events[0]["data"]["send_at"]) == later


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"state": "sent"}, "not-possible"), ({"state": "queued", "attempts": 1}, "not-possible"),
        ({"state": "held"}, "not-possible"), ({"state": "processing", "claim": 1}, "in-flight"),
    ],
)  # fmt: skip
async def test_too_late_to_reschedule(api: Api, columns: dict[str, Any], kind: str) -> None:
    message_id = await api.shop.sent_id()
    await put(api, message_id, **columns)
    answer = await api.shop.post(
        f"/messages/{message_id}/reschedule", {"send_at": "2001-01-01T00:00:00Z"}
    )
    assert (answer.status, answer.json["type"]) == (409, f"/problems/{kind}")


async def test_times_that_cannot_be(api: Api) -> None:
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    message_id = await api.shop.sent_id(expires_at=expires)
    for body, kind in (
        ({"send_at": expires}, "invalid-mail"),
        ({"send_at": "2999-01-01T00:00:00Z"}, "invalid-mail"),
        ({"send_at": "soon"}, "invalid-request"),
        ({}, "invalid-request"),
        ({"send_at": expires, "bogus": 1}, "invalid-request"),
    ):
        answer = await api.shop.post(f"/messages/{message_id}/reschedule", body)
        assert (answer.status, answer.json["type"]) == (422, f"/problems/{kind}"), body


# --- resend


async def test_resend_is_a_new_message_with_the_same_content(api: Api) -> None:
    message_id = await api.shop.sent_id(
        to=["Ada <ada@mail.example>"], cc="bo@mail.example", bcc="cy@mail.example", html="<b>Hi</b>", kind="k",
        tags=["t"], metadata={"a": 1}, headers={"X-A": "1"}, reply_to="r@shop.example", priority="urgent",
        attachments=[{"filename": "x", "content": "eHg="}], expires_at="2100-01-01T00:00:00Z",
    )  # fmt: skip
    await put(api, message_id, 0, state="failed", reason="policy")
    answer = await api.shop.post(f"/messages/{message_id}/resend")
    assert answer.status == 202
    new = answer.json["id"]
    assert new != message_id
    assert [one["role"] for one in answer.json["deliveries"]] == ["to", "cc", "bcc"]
    old_story, new_story = [
        (await api.shop.get(f"/messages/{one}")).json for one in (message_id, new)
    ]
    for name in (
        "from",
        "to",
        "cc",
        "reply_to",
        "subject",
        "headers",
        "class",
        "kind",
        "tags",
        "metadata",
        "priority",
    ):
        assert old_story[name] == new_story[name], name
    assert (new_story["content"], new_story["expires_at"]) == (old_story["content"], None)
    assert old_story["deliveries"][0]["state"] == "failed"
    assert (old_story["events"][-1]["kind"], old_story["events"][-1]["data"]["message"]) == (
        "resent",
        new,
    )
    assert (new_story["events"][0]["kind"], new_story["events"][0]["data"]["message"]) == (
        "resend_of",
        message_id,
    )


async def test_resend_of_a_raw_mail_and_with_a_key(api: Api) -> None:
    raw = base64.b64encode(b"From: a@shop.example\r\nSubject: Raw\r\n\r\nHi\r\n").decode()
    body = {"from": "a@shop.example", "to": "b@mail.example", "raw": raw}
    message_id = (await api.shop.post("/messages", body)).json["id"]
    key = {"Idempotency-Key": "again"}
    first, second = [
        await api.shop.post(f"/messages/{message_id}/resend", headers=key) for _ in range(2)
    ]
    assert first.status == second.status == 202
    assert first.json == second.json
    assert second.headers["idempotency-replayed"] == "true"
    assert len((await api.shop.get(f"/messages/{message_id}")).json["events"]) == 1
