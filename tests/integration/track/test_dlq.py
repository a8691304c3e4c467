"""Dead letters: looking at them, counting them, sending them again, giving them up; by HTTP and at the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from pillarbox.model.access import Scope
from pillarbox.model.retry import POLICIES
from pillarbox.model.suppression import SuppressionEntry
from pillarbox.store import dlq, dlq_change, operations, providers, suppressions
from pillarbox.store.database import Database
from pillarbox.store.messages import FIRST_ID, LAST_ID
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from tests.harness import add_smtp, attempts, enqueue, settled, states, working
from tests.integration.api.api_helpers import Api, Client
from tests.integration.api.test_api_plans import remember, scans
from tests.integration.cli.cli_helpers import Cli


async def fail(database: Database, message_id: Any, n: int = 0, **columns: Any) -> None:
    """Let a delivery have failed, as a worker would have."""
    given = {
        "state": "failed",
        "reason": "policy",
        "settled_at": datetime.now(UTC),
        "attempts": 1,
    } | columns
    names = ", ".join(f"{name} = ${place}" for place, name in enumerate(given, 3))
    query = f"UPDATE pillarbox.deliveries SET {names} WHERE message_id = $1 AND n = $2"
    await database.execute(query, message_id, n, *given.values())


async def attempt(
    database: Database, message_id: Any, claim: int, verdict: str, reply: str, n: int = 0
) -> None:
    await database.execute(
        """INSERT INTO pillarbox.attempts (message_id, n, claim, started_at, ended_at, verdict, reason, code, reply)
           VALUES ($1, $2, $3, now(), now(), $4, 'policy', 550, $5)""",
        message_id, n, claim, verdict, reply,
    )  # fmt: skip


async def dead(api: Api, client: Client | None = None, **fields: Any) -> str:
    """A message that failed; returns its id."""
    columns = fields.pop("columns_", {})
    message_id = await (client or api.shop).sent_id(**fields)
    await fail(api.database, message_id, **columns)
    return message_id


async def provider(database: Database, name: str, **columns: Any) -> int:
    number = await providers.add_provider(
        database, lambda: pytest.fail("no secret"), name, "capture", {}
    )
    if columns:
        await database.execute(
            "UPDATE pillarbox.providers SET enabled = $2 WHERE id = $1", number, columns["enabled"]
        )
    return number


async def listed(client: Client, query: str = "") -> list[str]:
    path: str | None = f"/api/v1/dlq?{query}"
    found = []
    while path:
        answer = await client.get(path)
        assert answer.status == 200, answer.content
        found += [one["id"] for one in answer.json["messages"]]
        path = answer.json["next"]
    return found


async def reprocess(client: Client, **body: Any) -> Any:
    answer = await client.post("/dlq/reprocess", body)
    assert answer.status == 200, answer.content
    return answer.json


async def facts(database: Database, message_id: Any) -> list[tuple[Any, ...]]:
    rows = await database.fetch(
        "SELECT state::text, attempts, reason, via FROM pillarbox.deliveries WHERE message_id = $1::uuid ORDER BY n",
        message_id,
    )
    return [tuple(row) for row in rows]


async def events(database: Database, message_id: Any) -> list[tuple[Any, ...]]:
    rows = await database.fetch(
        "SELECT kind, n, data FROM pillarbox.events WHERE message_id = $1::uuid", message_id
    )
    return [(row["kind"], row["n"], json.loads(row["data"])) for row in rows]


# --- looking at them


@pytest.mark.req("REQ-QUEUE-E006")
@pytest.mark.req("REQ-QUEUE-S001")
async def test_a_mail_that_was_tried_too_often_is_a_dead_letter_with_its_history(
    api: Api, database: Database, database_url: str
) -> None:
    async with SmtpServer(
        Faults(recipients={"busy@mail.example": "451 4.7.1 come back, busy@mail.example"})
    ) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await api.shop.sent_id(
                to=["busy@mail.example", "fine@mail.example"], max_attempts=2
            )
            await settled(database, message_id, "queued", "sent")  # type: ignore[arg-type]
            await database.execute(
                "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'queued'"
            )
            await settled(database, message_id, "failed", "sent")  # type: ignore[arg-type]
    [one] = (await api.shop.get("/dlq")).json["messages"]
    assert (one["id"], one["subject"], one["from"], one["blocked"]) == (
        message_id, "Hello", "Shop <hello@shop.example>", None,
    )  # fmt: skip
    [delivery] = one["deliveries"]
    assert (delivery["id"], delivery["recipient"]) == (f"{message_id}.0", "busy@mail.example")
    assert (delivery["attempts_made"], delivery["provider"]) == (2, "relay")
    assert delivery["reason"]
    assert [(each["number"], each["verdict"], each["code"]) for each in delivery["attempts"]] == [
        (1, "deferred", 451), (2, "deferred", 451),
    ]  # fmt: skip
    assert delivery["error"].startswith("451 ")
    assert "busy@" not in json.dumps([delivery["error"], delivery["attempts"]])


async def test_every_filter(api: Api) -> None:
    number = await provider(api.database, "relay")
    plain = await dead(api, columns_={"reason": "timeout"})
    special = await dead(
        api, **{"from": "Bob <Bob@Shop.example>", "class": "bulk"}, to=["Eve@Mail.example"], subject="An OFFER",
        kind="offer", tags=["x", "y"], columns_={"provider_id": number},
    )  # fmt: skip
    await dead(api, api.other)
    await api.shop.sent_id()
    assert await listed(api.shop) == [special, plain]
    for query in (
        "reason=policy", "recipient=EVE@", "sender=bob@shop", "subject=offer", "tag=y", "kind=offer", "class=bulk",
        "provider=relay", "reason=policy&tag=x&limit=1",
    ):  # fmt: skip
        assert await listed(api.shop, query) == [special], query
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert await listed(api.shop, f"until={soon}&limit=1") == [special, plain]
    assert await listed(api.shop, f"since={soon}") == []
    for query in (
        "reason=nonesuch",
        "limit=101",
        "limit=0",
        "cursor=x",
        "tenant=other",
        "state=failed",
        "subject=",
    ):
        assert (await api.shop.get(f"/dlq?{query}")).status == 422, query


async def test_only_what_fits_of_a_message_is_shown(api: Api) -> None:
    message_id = await dead(api, to=["a@x.example", "b@x.example", "c@x.example"])
    await fail(api.database, message_id, 2, reason="timeout")
    [one] = (await api.shop.get("/dlq?reason=timeout")).json["messages"]
    assert [each["recipient"] for each in one["deliveries"]] == ["c@x.example"]
    [one] = (await api.shop.get("/dlq")).json["messages"]
    assert [each["recipient"] for each in one["deliveries"]] == ["a@x.example", "c@x.example"]


async def test_secret_subjects_are_masked_and_not_searched(api: Api) -> None:
    await dead(api, **{"class": "lifecycle"}, subject="code 314159")
    answer = await api.shop.get("/dlq")
    assert answer.json["messages"][0]["subject"] == "****"
    assert b"314159" not in answer.content
    assert await listed(api.shop, "subject=314") == []


async def test_pages_look_at_a_bounded_number(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [
        await dead(api, kind="rare" if n in (0, 7) else "usual", to=["a@x.example", "b@x.example"])
        for n in range(9)
    ]
    for one in ids:
        await fail(api.database, one, 1)
    monkeypatch.setattr(dlq, "LOOKED_AT", 3)
    assert await listed(api.shop, "kind=rare") == [ids[7], ids[0]]
    assert await listed(api.shop, "limit=2") == ids[::-1]
    monkeypatch.setattr(dlq, "MAX_ON_PAGE", 3)
    monkeypatch.setattr(dlq, "MAX_RECIPIENTS", 2)
    assert await listed(api.shop) == ids[::-1]
    answer = await api.shop.get("/dlq")
    assert len(answer.json["messages"]) == 1
    assert answer.headers["link"] == f'<{answer.json["next"]}>; rel="next"'


@pytest.mark.parametrize("name", ["dead_letters", "dead_end"])
async def test_looking_does_not_walk_the_history(database: Database, name: str) -> None:
    await remember(database)
    await database.execute("UPDATE pillarbox.deliveries SET state = 'failed' WHERE tenant_id = 2")
    await database.execute("VACUUM ANALYZE")
    statement = getattr(dlq.SQL, name)
    values = {
        "tenant_id": 2,
        "first_id": FIRST_ID,
        "end_id": LAST_ID,
        "limit": 1000,
        "position": 1000,
    }
    text, *given = statement(**{name: values.get(name) for name in statement.parameters})
    async with database.transaction() as connection:
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        text = await connection.fetchval("EXPLAIN (FORMAT JSON) " + text, *given)
    found = set(scans(json.loads(text)[0]["Plan"]))
    assert {"deliveries_state", "deliveries_failed"} & found
    assert {"all of messages", "all of deliveries"}.isdisjoint(found)


async def test_counts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    number = await provider(api.database, "relay")
    for reason in ("policy", "policy", "timeout"):
        await dead(
            api, columns_={"reason": reason, "provider_id": number if reason == "policy" else None}
        )
    await dead(api, api.other)
    assert (await api.shop.get("/dlq/summary")).json == {
        "total": 3, "by_reason": {"policy": 2, "timeout": 1}, "by_provider": {"relay": 2}, "complete": True,
        "tokens": 0,
    }  # fmt: skip
    assert (await api.shop.get("/dlq/summary?reason=timeout")).json["total"] == 1
    monkeypatch.setattr(dlq, "LOOKED_AT", 1)
    monkeypatch.setattr(dlq, "COUNTED", 2)
    assert (await api.shop.get("/dlq/summary")).json["complete"] is False


# --- sending them again


@pytest.mark.req("REQ-QUEUE-E008")
async def test_reprocessing_starts_a_fresh_count_and_keeps_the_history(
    api: Api, database: Database, database_url: str
) -> None:
    faults = Faults(recipients={"gone@mail.example": "550 5.1.1 no such user"})
    async with SmtpServer(faults) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await api.shop.sent_id(to=["gone@mail.example", "fine@mail.example"])
            await settled(database, message_id, "failed", "sent")  # type: ignore[arg-type]
            server.faults = Faults()
            assert await reprocess(api.shop, message_ids=[message_id]) == {
                "dry_run": False, "requeued": 1, "left": 0, "complete": True, "suppressed": 0, "skipped": {},
                "nothing_failed": 0,
            }  # fmt: skip
            rows = await settled(database, message_id, "sent", "sent")  # type: ignore[arg-type]
    assert [row["attempts"] for row in rows] == [1, 1]
    kept = await attempts(database, message_id)  # type: ignore[arg-type]
    assert [(row["n"], row["verdict"]) for row in kept] == [
        (0, "rejected"),
        (0, "accepted"),
        (1, "accepted"),
    ]
    assert await events(database, message_id) == [
        ("reprocessed", 0, {"who": "key", "name": "key0"})
    ]
    story = (await api.shop.get(f"/messages/{message_id}")).json
    assert [one["verdict"] for one in story["deliveries"][0]["attempts"]] == [
        "rejected",
        "accepted",
    ]
    assert await listed(api.shop) == []


@pytest.mark.req("REQ-QUEUE-E008")
async def test_reprocessing_by_a_filter_in_bounded_calls(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "LOOKED_AT", 4)
    ids = [
        await dead(api, columns_={"reason": "policy" if n % 2 else "timeout"}) for n in range(12)
    ]
    purged, expired = ids[1], ids[3]
    await api.database.execute("DELETE FROM pillarbox.contents WHERE message_id = $1", purged)
    await api.database.execute(
        "UPDATE pillarbox.messages SET expires_at = now() WHERE id = $1", expired
    )
    foreign = await dead(api, api.other)
    body = {"filter": {"reason": "policy"}, "limit": 1}
    would = await reprocess(api.shop, **body, dry_run=True)
    assert (would["dry_run"], would["requeued"], would["left"], would["complete"]) == (
        True,
        1,
        1,
        False,
    )
    assert len(await listed(api.shop)) == 12
    total = 0
    for _ in range(10):
        answer = await reprocess(api.shop, **body)
        total += answer["requeued"]
        if answer["complete"] and not answer["left"]:
            break
    assert total == 4
    assert answer["skipped"] == {"content_purged": 1, "expired": 1}
    assert sorted(await listed(api.shop, "reason=policy")) == sorted([purged, expired])
    assert (await reprocess(api.shop, filter={}))["requeued"] == 6
    assert await listed(api.other) == [foreign]


async def test_blocked_letters_say_so(api: Api) -> None:
    purged, expired = await dead(api), await dead(api)
    await api.database.execute("DELETE FROM pillarbox.contents WHERE message_id = $1", purged)
    await api.database.execute(
        "UPDATE pillarbox.messages SET expires_at = now() WHERE id = $1", expired
    )
    found = (await api.shop.get("/dlq")).json["messages"]
    assert [one["blocked"] for one in found] == ["expired", "content_purged"]
    answer = await reprocess(
        api.shop, message_ids=[purged, expired, str(uuid4()), await api.shop.sent_id(), purged]
    )
    assert (answer["requeued"], answer["skipped"]) == (0, {"content_purged": 1, "expired": 1})
    assert answer["nothing_failed"] == 2


async def test_what_is_still_suppressed_is_said_to_fail_again(api: Api) -> None:
    message_id = await dead(
        api, to=["Ada@mail.example", "bo@mail.example"], columns_={"reason": "suppressed"}
    )
    await fail(api.database, message_id, 1)
    await suppressions.add(api.database, 2, [SuppressionEntry("ada@mail.example")])
    answer = await reprocess(api.shop, message_ids=[message_id])
    assert (answer["requeued"], answer["suppressed"]) == (2, 1)


@pytest.mark.parametrize(
    ("made", "retry", "most", "left"),
    [
        (10, "quadratic", None, 9),  # all were made: one more
        (3, "quadratic", None, 3),
        (1, None, None, 1),
        (
            10,
            None,
            None,
            min(one.max_attempts for one in POLICIES.values()) - 1,
        ),  # lost: nobody knows the policy
        (2, "quadratic", 2, 1),
        (1, None, 1, 0),
    ],
)
async def test_attempts_that_still_count_leave_one_more(
    api: Api, made: int, retry: str | None, most: int | None, left: int
) -> None:
    message_id = await dead(api, max_attempts=most, columns_={"attempts": made, "retry": retry})
    await reprocess(api.shop, message_ids=[message_id], reset_retry_count=False)
    assert await facts(api.database, message_id) == [("queued", left, None, None)]
    row = await api.database.fetchrow("SELECT retry FROM pillarbox.deliveries")
    assert row is not None
    assert row["retry"] == retry


async def test_another_provider_may_be_chosen(api: Api) -> None:
    relay, theirs, off = [await provider(api.database, name) for name in ("relay", "theirs", "off")]
    await api.database.execute("UPDATE pillarbox.providers SET enabled = false WHERE id = $1", off)
    await api.database.execute(
        "INSERT INTO pillarbox.routes (tenant_id, name, place, providers) VALUES (3, 'own', 1, ARRAY[$1::int])",
        theirs,
    )
    message_id = await dead(api, columns_={"attempts": 9, "retry": "quadratic"})
    refused = []
    for name in ("theirs", "off", "nonesuch"):
        answer = await api.shop.post(
            "/dlq/reprocess", {"message_ids": [message_id], "provider": name}
        )
        assert (answer.status, answer.json["code"], answer.json["field"]) == (
            422,
            "unknown_provider",
            "provider",
        )
        refused.append(answer.content)
    assert len(set(refused)) == 1
    await reprocess(api.shop, message_ids=[message_id], provider="relay", reset_retry_count=False)
    strictest = min(one.max_attempts for one in POLICIES.values())
    assert await facts(api.database, message_id) == [("queued", strictest - 1, None, relay)]
    assert (await events(api.database, message_id))[0][2] == {
        "who": "key",
        "name": "key0",
        "via": "relay",
    }
    assert (await api.shop.get(f"/messages/{message_id}")).json["events"][0]["data"][
        "via"
    ] == "relay"
    await fail(api.database, message_id)
    await reprocess(api.shop, message_ids=[message_id])
    assert await facts(api.database, message_id) == [("queued", 0, None, None)]
    own = await dead(api, api.other)
    assert (await reprocess(api.other, message_ids=[own], provider="theirs"))["requeued"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {}, {"message_ids": []}, {"message_ids": ["x"]}, {"message_ids": [str(uuid4())], "filter": {}},
        {"message_ids": [str(uuid4()) for _ in range(1001)]}, {"filter": {"state": "failed"}},
        {"filter": {}, "limit": 0}, {"filter": {}, "limit": 1001}, {"filter": {"reason": "why"}},
        {"filter": {}, "bogus": 1}, {"filter": {"since": "yesterday"}},
    ],
)  # fmt: skip
async def test_what_makes_no_sense_changes_nothing(api: Api, body: dict[str, Any]) -> None:
    message_id = await dead(api)
    for path in ("/dlq/reprocess", "/dlq/discard"):
        assert (await api.shop.post(path, body)).status == 422
    assert await listed(api.shop) == [message_id]


# --- giving them up


async def test_discarding(api: Api) -> None:
    first, second, foreign = (
        await dead(api),
        await dead(api, kind="news"),
        await dead(api, api.other),
    )
    secret = await dead(api, **{"class": "lifecycle"})
    answer = await api.shop.post("/dlq/discard", {"filter": {"kind": "news"}, "dry_run": True})
    assert answer.json == {
        "dry_run": True,
        "discarded": 1,
        "left": 0,
        "complete": True,
        "nothing_failed": 0,
    }
    assert (await api.shop.post("/dlq/discard", {"filter": {"kind": "news"}})).json[
        "discarded"
    ] == 1
    assert await facts(api.database, second) == [("cancelled", 1, "cancelled", None)]
    assert await events(api.database, second) == [("discarded", 0, {"who": "key", "name": "key0"})]
    answer = await api.shop.post("/dlq/discard", {"message_ids": [first, second, foreign, secret]})
    assert (answer.json["discarded"], answer.json["nothing_failed"]) == (2, 2)
    kept = await api.database.fetch("SELECT message_id::text FROM pillarbox.contents")
    assert secret not in {row["message_id"] for row in kept}
    assert await listed(api.shop) == []
    assert await listed(api.other) == [foreign]


async def test_who_may_look_and_change(api: Api) -> None:
    reader, sender = await api.key("shop", Scope.READ), await api.key("shop", Scope.SEND)
    assert (await reader.get("/dlq")).status == 200
    assert (await reader.get("/dlq/summary")).status == 200
    assert (await sender.get("/dlq")).status == 403
    for path in ("/dlq/reprocess", "/dlq/discard"):
        assert (await reader.post(path, {"filter": {}})).status == 403
        assert (await api.admin.post(path, {"filter": {}})).status == 403


async def test_two_at_once_change_each_letter_once(api: Api) -> None:
    for _ in range(30):
        await dead(api)
    answers = await asyncio.gather(*(reprocess(api.shop, filter={}) for _ in range(4)))
    assert sum(one["requeued"] for one in answers) == 30
    assert (
        await api.database.fetchval(
            "SELECT count(*) FROM pillarbox.events WHERE kind = 'reprocessed'"
        )
        == 30
    )


# --- the command line


async def test_listing_at_the_command_line(database: Database, database_url: str) -> None:
    cli = Cli(database_url)
    await database.execute("INSERT INTO pillarbox.tenants (name) VALUES ('shop')")
    ids = [
        await enqueue(database, subject="Hello", tenant="shop" if n else "default")
        for n in range(3)
    ]
    for one in ids:
        await fail(database, one)
    await attempt(database, ids[2], 1, "deferred", "later")
    await attempt(database, ids[2], 2, "rejected", "5.7.1 never")
    found = await asyncio.to_thread(cli.json, "dlq", "list")
    assert [one["id"] for one in found] == [str(one) for one in reversed(ids)]
    assert [one["reply"] for one in found[0]["deliveries"][0]["attempts"]] == [
        "later",
        "5.7.1 never",
    ]
    shown = await asyncio.to_thread(cli, "dlq", "list", "--limit", "1")
    assert "550 5.7.1 never" in shown.out
    assert f"--before {ids[2]}" in shown.err
    more = await asyncio.to_thread(
        cli.json, "dlq", "list", "--tenant", "shop", "--before", str(ids[2])
    )
    assert [one["id"] for one in more] == [str(ids[1])]
    assert await asyncio.to_thread(cli.json, "dlq", "list", "--reason", "timeout") == []
    assert (
        "not a reason"
        in (await asyncio.to_thread(cli, "dlq", "list", "--reason", "timeuot", code=2)).err
    )
    assert (await asyncio.to_thread(cli.json, "dlq", "summary"))["reasons"] == {"policy": 3}
    assert "3 deliveries failed" in (await asyncio.to_thread(cli, "dlq", "summary")).out
    assert (await asyncio.to_thread(cli.json, "dlq", "show", str(ids[2])))["message"]["id"] == str(
        ids[2]
    )
    assert (
        "there is no tenant"
        in (await asyncio.to_thread(cli, "dlq", "list", "--tenant", "none", code=1)).err
    )


async def test_changing_at_the_command_line(database: Database, database_url: str) -> None:
    cli = Cli(database_url)

    async def run(*arguments: str, **more: Any) -> Any:
        return await asyncio.to_thread(cli, "dlq", *arguments, **more)

    relay = await provider(database, "relay")
    ids = [await enqueue(database, f"{n}@mail.example") for n in range(6)]
    for one in ids:
        await fail(database, one, attempts=10, retry="quadratic")
    await database.execute("DELETE FROM pillarbox.contents WHERE message_id = $1", ids[0])
    await suppressions.add(database, 1, [SuppressionEntry("1@mail.example")])
    dry = await run("reprocess", "--all", "--dry-run")
    assert "5 deliveries would be reprocessed" in dry.out
    assert "1 left out: content_purged" in dry.err
    assert "1 of them will fail again" in dry.err
    assert (
        "5 deliveries will be reprocessed"
        in (await run("reprocess", "--all", code=1, stdin="n\n")).err
    )
    assert (await states(database, ids[5])) == ["failed"]
    told = await asyncio.to_thread(
        cli.json,
        "dlq",
        "reprocess",
        "--all",
        "--yes",
        "--limit",
        "2",
        "--via",
        "relay",
        "--keep-attempts",
    )
    assert (told["reprocessed"], told["left"], told["skipped"]) == (2, 3, {"content_purged": 1})
    assert await facts(database, ids[5]) == [("queued", 4, None, relay)]
    assert await events(database, ids[5]) == [("reprocessed", 0, {"who": "person", "via": "relay"})]
    assert "1 delivery reprocessed" in (await run("reprocess", str(ids[3]))).out
    assert "without failed deliveries" in (await run("reprocess", str(ids[3]), code=1)).err
    assert "no provider" in (await run("reprocess", str(ids[2]), "--via", "none", code=1)).err
    assert "1 delivery discarded" in (await run("discard", str(ids[2]))).out
    assert "2 deliveries discarded" in (await run("discard", "--all", "--yes")).out
    assert await facts(database, ids[0]) == [("cancelled", 10, "cancelled", None)]
    await run("reprocess", code=2)
    await run("discard", str(ids[0]), "--all", code=2)


async def test_many_are_changed_batch_by_batch(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "LOOKED_AT", 7)
    monkeypatch.setattr(dlq_change, "BATCH", 3)
    for _ in range(20):
        await fail(database, await enqueue(database, "a@x.example", "b@x.example"))
    heard: list[int] = []
    done = await dlq_change.change(
        database,
        operations.REPROCESS,
        dlq_change.DeadLetterSelection(None),
        on_progress=heard.append,
    )
    assert (done.changed, done.left, done.complete) == (20, 0, True)
    assert sum(heard) == 20
    assert max(heard) == 3
