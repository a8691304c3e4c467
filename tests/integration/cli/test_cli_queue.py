"""`pillarbox queue`: listing, telling, retrying, cancelling, releasing, reaping."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import pytest

from pillarbox.cli import output
from pillarbox.store import messages
from pillarbox.store.database import Database
from pillarbox.store.messages import FIRST_ID, LAST_ID, SQL, id_at, short_id
from pillarbox.store.sql import Statement
from pillarbox.testing import SmtpServer
from pillarbox.testing.smtp import Faults
from pillarbox.testing.smtp_faults import Dial
from tests.harness import add_smtp, enqueue, settled, working
from tests.integration.cli.cli_helpers import Cli


def put(cli: Cli, message_id: str, state: str, n: int = 0, **columns: object) -> None:
    """Set a delivery's state by hand."""
    given = {"state": state, "settled_at": "now"} | columns
    sets = ", ".join(f"{name} = %s" for name in given)
    cli.sql(
        f"UPDATE pillarbox.deliveries SET {sets} WHERE message_id = %s AND n = %s",
        *given.values(),
        message_id,
        n,
    )


def facts(cli: Cli, message_id: str) -> list[tuple[object, ...]]:
    query = "SELECT state::text, attempts, reason FROM pillarbox.deliveries WHERE message_id = %s ORDER BY n"
    return cli.sql(query, message_id)


def events(cli: Cli, message_id: str) -> list[tuple[object, ...]]:
    return cli.sql(
        "SELECT kind, n, data FROM pillarbox.events WHERE message_id = %s ORDER BY id", message_id
    )


# --- list


def ids(cli: Cli, *arguments: str) -> list[str]:
    return [one["id"] for one in cli.json("queue", "list", *arguments)]


def test_listing_is_newest_first_and_pages(cli: Cli) -> None:
    sent = [cli.send() for _ in range(5)]
    assert ids(cli) == sorted(sent, reverse=True)
    first = ids(cli, "--limit", "2")
    second = ids(cli, "--limit", "2", "--before", first[-1])
    third = ids(cli, "--limit", "2", "--before", second[-1])
    assert first + second + third == sorted(sent, reverse=True)
    assert f"--before {first[-1]}" in cli("queue", "list", "--limit", "2").err


@pytest.mark.parametrize(
    ("fits", "misses"),
    [
        (["--state", "failed"], ["--state", "queued"]),
        (["--state", "sent", "--state", "failed"], ["--state", "sent", "--state", "cancelled"]),
        (["--tenant", "shop"], ["--tenant", "other"]),
        (["--recipient", "ADA@"], ["--recipient", "bob@"]),
        (["--sender", "shop.example"], ["--sender", "other.example"]),
        (["--class", "bulk"], ["--class", "transactional"]),
        (["--kind", "news"], ["--kind", "new"]),
        (["--tag", "b"], ["--tag", "c"]),
        (["--provider", "relay"], ["--provider", "other"]),
        (["--reason", "policy"], ["--reason", "refused"]),
        (["--since", "1h"], ["--since", "2999-01-01"]),
        (["--until", "2999-01-01"], ["--until", "1h"]),
        (
            ["--state", "failed", "--kind", "news", "--since", "1h"],
            ["--state", "failed", "--kind", "olds"],
        ),
    ],
)
def test_every_filter_of_the_listing(cli: Cli, fits: list[str], misses: list[str]) -> None:
    cli("tenant", "add", "shop")
    cli("provider", "add", "smtp", "relay", "--host", "x.example", "--tls", "none")
    options = ("--tenant", "shop", "--class", "bulk", "--kind", "news", "--tag", "a", "--tag", "b")
    message_id = cli.send(*options, to="Ada <ada@mail.example>")
    [(provider,)] = cli.sql("SELECT id FROM pillarbox.providers")
    put(cli, message_id, "failed", reason="policy", provider_id=provider)
    assert ids(cli, *fits) == [message_id]
    assert ids(cli, *misses) == []


def test_the_listing_has_stable_keys_and_a_table(cli: Cli) -> None:
    message_id = cli.send("--cc", "copy@mail.example", "--subject", "Hello")
    put(cli, message_id, "sent")
    [one] = cli.json("queue", "list")
    assert list(one) == [
        "id", "created_at", "tenant", "class", "kind", "priority", "sender", "subject", "tags", "recipients",
        "states", "attempts", "next_attempt_at", "reasons", "providers",
    ]  # fmt: skip
    assert one["states"] == ["sent", "queued"]
    table = cli("queue", "list").out
    assert message_id in table
    assert "1 queued, 1 sent" in table


def test_a_hostile_subject_cannot_move_the_cursor(cli: Cli) -> None:
    message_id = cli.send("--subject", "a\u202eb[red]c\u009bd")
    for words in (("queue", "list"), ("queue", "show", message_id), ("queue", "list", "--json")):
        printed = cli(*words).out
        assert "\u202e" not in printed
        assert "\u009b" not in printed
    assert "[red]" in cli("queue", "list").out


# --- show


def test_a_message_is_found_by_its_beginning(cli: Cli) -> None:
    first, second = cli.send(), cli.send()
    assert cli.json("queue", "show", first[:-1])["message"]["id"] == first
    assert "several" in cli("queue", "show", first[:8], code=1).err
    assert second in cli("queue", "show", first[:8], code=1).err
    assert "not a message id" in cli("queue", "show", "0198", code=1).err
    assert "there is no message" in cli("queue", "show", "ffffffff-ffff", code=1).err


def test_a_message_is_found_by_its_end(cli: Cli) -> None:
    """The beginning of an id is its time: of mails accepted within a minute only the end tells them apart."""
    first, second = cli.send(), cli.send()
    for end in (first[-8:], short_id(UUID(first)), first[-17:], first[-12:].upper()):
        assert cli.json("queue", "show", end)["message"]["id"] == first
    cli("queue", "cancel", short_id(UUID(second)))
    assert [facts(cli, one)[0][0] for one in (first, second)] == ["queued", "cancelled"]
    assert [one["id"] for one in cli.json("queue", "list", "--before", short_id(UUID(second)))] == [
        first
    ]


def test_ids_that_fit_by_beginning_and_by_end_are_both_listed(cli: Cli) -> None:
    first = cli.send()
    other = cli.send()
    twin = str(UUID(hex=other.replace("-", "")[:20] + first.replace("-", "")[:12]))
    for table, column in (
        ("messages", "id"),
        ("contents", "message_id"),
        ("deliveries", "message_id"),
    ):
        cli.sql(f"UPDATE pillarbox.{table} SET {column} = %s WHERE {column} = %s", twin, other)
    said = cli("queue", "cancel", first.replace("-", "")[:12], code=1).err
    assert f"{first} begins with it" in said
    assert f"{twin} ends with it" in said
    assert facts(cli, first) == facts(cli, twin) == [("queued", 0, None)]


def filled(statement: Statement, **values: str) -> str:
    """A statement's text with values in place of its parameters; NULL where none is given."""
    text = statement.text
    for number, name in reversed(list(enumerate(statement.parameters, 1))):
        text = text.replace(f"${number}", values.get(name, "NULL"))
    return text


def test_the_end_of_an_id_is_looked_for_in_the_primary_key(cli: Cli) -> None:
    cli.json("send", "--from", "a@b.example", "--to", "c@d.example", "--count", "3000")
    cli.sql("VACUUM ANALYZE pillarbox.messages")
    query = filled(SQL.find_recent, ending="'0c2f0c3d7a11'", newest="100000")
    plan = "\n".join(line for (line,) in cli.sql(f"EXPLAIN {query}"))
    assert "Index Only Scan Backward using messages_pkey" in plan


def test_lists_on_a_terminal_print_ids_that_commands_take(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = cli.send(), cli.send()
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    shown = cli("queue", "list").out
    assert old not in shown
    assert {short_id(UUID(old)), short_id(UUID(new))} <= set(shown.split())
    monkeypatch.setattr(messages, "RECENT", 1)  # only the newest is found by its end
    shown = cli("queue", "list").out
    assert {old, short_id(UUID(new))} <= set(shown.split())


@pytest.mark.req("REQ-QUEUE-U002")
async def test_the_whole_story(database: Database, database_url: str) -> None:
    """Of two recipients one is refused for good, one for now: both ends, and what was said, are told."""
    cli = Cli(database_url)
    replies: dict[str, Dial] = {
        "gone@mail.example": "550 5.1.1 no such user",
        "busy@mail.example": "451 4.7.1 greylisted",
    }
    async with SmtpServer(Faults(recipients=replies)) as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(
                database, "gone@mail.example", "busy@mail.example", text="the text"
            )
            await settled(database, message_id, "failed", "queued")
    story = await asyncio.to_thread(cli.json, "queue", "show", str(message_id))
    assert [one["state"] for one in story["deliveries"]] == ["failed", "queued"]
    assert story["deliveries"][1]["retry"] == "quadratic"
    assert story["deliveries"][1]["then_after_seconds"] == [60.0 * k * k for k in range(2, 10)]
    assert [one["verdict"] for one in story["attempts"]] == ["rejected", "deferred"]
    assert "RCPT TO" in story["attempts"][0]["conversation"]
    told = (await asyncio.to_thread(cli, "queue", "show", str(message_id))).out
    for words in (
        "the text",
        "550",
        "451",
        "RCPT TO",
        "via relay",
        "quadratic",
        "accepted",
        "4m, 9m",
    ):
        assert words in told, words
    conversation = "".join(one["conversation"] for one in story["attempts"])
    assert "gone@" not in conversation


def test_the_composed_mail(cli: Cli) -> None:
    message_id = cli.send("--subject", "Hello", "--text", "the text")
    raw = cli("queue", "show", message_id, "--raw").raw
    assert raw.startswith(b"From: sender@shop.example\r\n")
    assert b"\r\n\r\nthe text\r\n" in raw
    cli.sql("DELETE FROM pillarbox.contents")
    assert "was dropped" in cli("queue", "show", message_id, "--raw", code=1).err
    assert "dropped" in cli("queue", "show", message_id).out


def test_bodies_of_secret_classes_are_masked(cli: Cli) -> None:
    message_id = cli.send(
        "--class", "lifecycle", "--text", "code 314159", "--html", "<b>314159</b>"
    )
    for more in ((), ("--raw",), ("--json",)):
        assert "314159" not in cli("queue", "show", message_id, *more).out
    assert "masked" in cli("queue", "show", message_id).out


# --- retry


@pytest.mark.req("REQ-QUEUE-E008")
def test_retry_gives_all_attempts_back(cli: Cli) -> None:
    message_id = cli.send("--cc", "copy@mail.example")
    put(cli, message_id, "failed", attempts=10, reason="refused", retry="quadratic")
    put(cli, message_id, "sent", 1, attempts=1)
    assert cli.json("queue", "retry", message_id) == {"id": message_id, "retried": [0]}
    assert facts(cli, message_id) == [("queued", 0, None), ("sent", 1, None)]
    assert events(cli, message_id) == [("retried", 0, {"who": "person"})]
    assert "sent (1)" in cli("queue", "retry", message_id, code=1).err


def test_what_lost_its_content_cannot_be_retried(cli: Cli) -> None:
    message_id = cli.send()
    put(cli, message_id, "failed")
    cli.sql("DELETE FROM pillarbox.contents")
    assert "content was dropped" in cli("queue", "retry", message_id, code=1).err
    assert "0 deliveries retried" in cli("queue", "retry", "--all", "--yes").out
    assert facts(cli, message_id) == [("failed", 0, None)]


@pytest.mark.req("REQ-QUEUE-E008")
def test_retry_all_asks_first_and_keeps_to_its_filters(cli: Cli) -> None:
    many = cli.json("send", "--from", "a@b.example", "--to", "c@d.example", "--count", "1100")[
        "ids"
    ]
    cli.sql(
        "UPDATE pillarbox.deliveries SET state = 'failed', settled_at = now(), reason = 'credential'"
    )
    other = cli.send()
    put(cli, other, "failed", reason="policy")
    assert (
        "1,100 deliveries will be retried"
        in cli("queue", "retry", "--all", "--reason", "credential", code=1, stdin="n\n").err
    )
    assert cli.json("queue", "retry", "--all", "--reason", "credential", "--yes") == {
        "retried": len(many)
    }
    assert facts(cli, other) == [("failed", 0, "policy")]
    assert cli.sql("SELECT count(*) FROM pillarbox.events WHERE kind = 'retried'") == [(1100,)]
    cli("queue", "retry", code=2)
    cli("queue", "retry", other, "--all", code=2)
    cli("queue", "retry", "--all", "--state", "sent", code=2)


# --- cancel


@pytest.mark.parametrize("state", ["pending", "queued", "held"])
def test_cancel(cli: Cli, state: str) -> None:
    message_id = cli.send()
    put(cli, message_id, state)
    cli("queue", "cancel", message_id)
    assert facts(cli, message_id) == [("cancelled", 0, "cancelled")]
    assert events(cli, message_id) == [("cancelled", 0, {"who": "person"})]


def test_what_is_in_flight_cannot_be_cancelled(cli: Cli) -> None:
    message_id = cli.send("--cc", "copy@mail.example")
    put(cli, message_id, "processing", claim=1, worker=1, settled_at=None)
    answer = cli("queue", "cancel", message_id, code=1)
    assert "1 delivery" in answer.out
    assert "in flight cannot be cancelled" in answer.err
    assert [row[0] for row in facts(cli, message_id)] == ["processing", "cancelled"]
    put(cli, message_id, "processing", 1, claim=1, worker=1, settled_at=None)
    assert "it is in flight" in cli("queue", "cancel", message_id, code=1).err


def test_cancel_one_delivery_or_many(cli: Cli) -> None:
    message_id = cli.send("--cc", "copy@mail.example")
    cli("queue", "cancel", message_id, "--delivery", "1")
    assert [row[0] for row in facts(cli, message_id)] == ["queued", "cancelled"]
    news = cli.send("--kind", "news")
    assert cli.json("queue", "cancel", "--all", "--kind", "news", "--yes") == {"cancelled": 1}
    assert [row[0] for row in facts(cli, news) + facts(cli, message_id)] == [
        "cancelled",
        "queued",
        "cancelled",
    ]


def test_cancelling_drops_secret_bodies(cli: Cli) -> None:
    cli("queue", "cancel", cli.send("--class", "lifecycle"))
    kept = cli.send()
    cli("queue", "cancel", kept)
    assert cli.sql("SELECT message_id::text FROM pillarbox.contents") == [(kept,)]


# --- release


@pytest.mark.parametrize(
    ("how", "state", "attempts", "reason"),
    [("resend", "queued", 0, None), ("sent", "sent", 1, None), ("failed", "failed", 1, "lost")],
)
def test_release(cli: Cli, how: str, state: str, attempts: int, reason: str | None) -> None:
    message_id = cli.send()
    put(cli, message_id, "held", attempts=1, reason="lost")
    cli("queue", "release", message_id, code=2)
    cli("queue", "release", message_id, f"--{how}")
    assert facts(cli, message_id) == [(state, attempts, reason)]
    assert events(cli, message_id) == [("released", 0, {"who": "person", "as": how})]
    cli("queue", "release", message_id, f"--{how}", code=1)


def test_release_all(cli: Cli) -> None:
    for _ in range(3):
        put(cli, cli.send(), "held")
    assert cli.json("queue", "release", "--all", "--sent", "--yes") == {"released": 3}


# --- reap and stats


def test_reap_takes_back_what_the_dead_held(cli: Cli) -> None:
    message_id = cli.send()
    [(worker,)] = cli.sql(
        "INSERT INTO pillarbox.workers (name, lease_until) VALUES ('dead', now() - interval '1 hour') RETURNING id"
    )
    put(cli, message_id, "processing", claim=7, worker=worker, claimed_at="now", settled_at=None)
    cli.env["PILLARBOX_WORKER_LEASE"] = (
        "1s"  # also how long the command waits, so that live workers can report
    )
    assert cli.json("queue", "reap") == {"reaped": 1}
    assert facts(cli, message_id) == [("queued", 1, "lost")]
    assert "0 deliveries" in cli("queue", "reap").out


def test_stats(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    cli("provider", "add", "capture", "dev")
    states = ["queued", "pending", "failed", "held", "sent", "sent"]
    for state in states:
        put(cli, cli.send(), state)
    cli.send("--tenant", "shop")
    deferred = cli.send("--tenant", "shop")
    put(cli, deferred, "queued", attempts=2, settled_at=None)
    numbers = cli.json("queue", "stats")
    assert numbers["states"] == {
        "pending": 1,
        "queued": 2,
        "deferred": 1,
        "processing": 0,
        "held": 1,
        "failed": 1,
    }
    assert numbers["last_hour"] == {"sent": 2, "failed": 1}
    assert numbers["tenants"]["shop"]["deferred"] == 1
    assert numbers["oldest_due_seconds"] > 0
    assert numbers["providers"] == [{"name": "dev", "kind": "capture", "enabled": True}]
    assert cli.json("queue", "stats", "--tenant", "shop")["states"]["failed"] == 0
    shown = cli("queue", "stats").out
    assert "no worker is running" in shown
    assert "DEFERRED" in shown


def test_listing_dead_letters_does_not_walk_the_history(cli: Cli) -> None:
    """The plan for failed deliveries touches their own index only."""
    cli.json("send", "--from", "a@b.example", "--to", "c@d.example", "--count", "3000")
    cli.sql("UPDATE pillarbox.deliveries SET state = 'sent', settled_at = now()")
    put(cli, cli.send(), "failed")
    cli.sql("ANALYZE pillarbox.deliveries")
    query = filled(
        SQL.list_unfinished,
        first_id=f"'{FIRST_ID}'::uuid",
        end_id=f"'{LAST_ID}'::uuid",
        limit="20",
        states="'{failed}'",
    )
    plan = "\n".join(line for (line,) in cli.sql(f"EXPLAIN {query}"))
    assert "deliveries_state" in plan
    assert "Seq Scan on deliveries" not in plan


def test_ids_are_ordered_by_time() -> None:
    assert id_at(datetime(1970, 1, 1, tzinfo=UTC)) == UUID(int=0)
    assert id_at(datetime(1960, 1, 1, tzinfo=UTC)) == UUID(int=0)
    assert id_at(datetime(2026, 1, 1, tzinfo=UTC)) < id_at(
        datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    )
