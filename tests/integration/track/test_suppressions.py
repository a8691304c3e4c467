"""Suppression lists: adding, merging, removing, pages, files, expiry, and that nothing is sent to who is on one."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pillarbox.accept.suppressions import COLUMNS, SuppressionFault, read, written
from pillarbox.api import suppression_files
from pillarbox.model.access import Scope
from pillarbox.model.suppression import SuppressionEntry, SuppressionReason
from pillarbox.store import suppressions as store
from pillarbox.store.database import Database
from pillarbox.store.retention import purge
from pillarbox.testing import SmtpServer
from tests.harness import add_smtp, enqueue, settled, working
from tests.integration.api.api_helpers import Answer, Api, Client
from tests.integration.cli.cli_helpers import Cli

SOON, LATER = (datetime(2090 + n, 1, 1, tzinfo=UTC) for n in (0, 1))


async def put(
    database: Database, *entries: SuppressionEntry, tenant_id: int = 1
) -> store.SuppressionCounts:
    return await store.add(database, tenant_id, entries)


async def addresses(database: Database, tenant_id: int = 1) -> list[str]:
    found = await store.page(database, tenant_id, store.SuppressionFilter(), 1000)
    return [one.address for one in found.found]


# --- the store


async def test_an_address_is_added_once_whatever_its_case(database: Database) -> None:
    added = await put(
        database,
        SuppressionEntry("Ada@Mail.example"),
        SuppressionEntry("ada@mail.EXAMPLE"),
        SuppressionEntry("bo@mail.example"),
    )
    assert added == (2, 0, 0)
    assert await put(database, SuppressionEntry("ADA@mail.example")) == (0, 0, 1)
    assert await addresses(database) == ["ada@mail.example", "bo@mail.example"]
    assert await addresses(database, 2) == []


@pytest.mark.parametrize("stronger", SuppressionReason)
@pytest.mark.parametrize("weaker", SuppressionReason)
async def test_the_stronger_reason_stays(
    database: Database, weaker: SuppressionReason, stronger: SuppressionReason
) -> None:
    expected = max(weaker, stronger, key=list(SuppressionReason).index)
    await put(database, SuppressionEntry("a@x.example", weaker))
    await put(database, SuppressionEntry("a@x.example", stronger))
    await put(
        database, SuppressionEntry("b@x.example", weaker), SuppressionEntry("b@x.example", stronger)
    )
    found = (await store.page(database, 1, store.SuppressionFilter(), 10)).found
    assert [one.reason for one in found] == [expected, expected]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(None, SOON, None), (SOON, None, None), (SOON, LATER, LATER), (LATER, SOON, LATER)],
)
async def test_the_later_expiry_stays(
    database: Database, first: Any, second: Any, kept: Any
) -> None:
    await put(database, SuppressionEntry("a@x.example", expires_at=first, note="first"))
    await put(database, SuppressionEntry("a@x.example", expires_at=second))
    one = await store.find(database, 1, "A@x.example")
    assert one is not None
    assert (one.expires_at, one.note) == (kept, "first")


async def expire(database: Database) -> None:
    await database.execute(
        "UPDATE pillarbox.suppressions SET expires_at = now() - interval '1 second'"
    )


async def test_what_has_expired_counts_for_nothing_and_goes(database: Database) -> None:
    await put(
        database,
        SuppressionEntry("a@x.example", SuppressionReason.COMPLAINT, "old"),
        SuppressionEntry("b@x.example"),
        SuppressionEntry("c@x.example"),
    )
    await expire(database)
    assert await addresses(database) == []
    assert await store.find(database, 1, "a@x.example") is None
    assert await put(database, SuppressionEntry("a@x.example", expires_at=SOON)) == (1, 0, 0)
    one = await store.find(database, 1, "a@x.example")
    assert one is not None
    assert (one.reason, one.note, one.expires_at) == ("manual", None, SOON)
    assert (await purge(database, None, None, 1))["suppressions"] == 2
    assert await database.fetchval("SELECT array_agg(address) FROM pillarbox.suppressions") == [
        "a@x.example"
    ]


async def test_nothing_is_sent_to_a_suppressed_address(
    database: Database, database_url: str
) -> None:
    await put(database, SuppressionEntry("gone@mail.example"))
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database, "Gone@Mail.example", "here@mail.example")
            rows = await settled(database, message_id, "failed", "sent")
        assert rows[0]["reason"] == "suppressed"
        assert [mail.recipients for mail in server.mails] == [("here@mail.example",)]


async def test_looking_an_address_up_stays_on_its_index(database: Database) -> None:
    """What the claim asks for every recipient costs the same with a long list, and next to nothing with none."""
    lookup = """EXPLAIN (FORMAT JSON) SELECT d.n, (
      SELECT coalesce(s.expires_at > now(), true) FROM pillarbox.suppressions s
      WHERE s.tenant_id = d.tenant_id AND s.address = lower(d.recipient) LIMIT 1) FROM pillarbox.deliveries d"""
    for _ in range(2):
        assert "suppressions_pkey" in await database.fetchval(lookup)
        await database.execute(
            """INSERT INTO pillarbox.suppressions (tenant_id, address, reason)
               SELECT 1, n || '@x.example', 'manual' FROM generate_series(1, 20000) AS n ON CONFLICT DO NOTHING"""
        )
        await database.execute("ANALYZE pillarbox.suppressions")


# --- CSV


def entries(text: str) -> list[SuppressionEntry | SuppressionFault]:
    return list(read(io.StringIO(text, newline="")))


def test_a_file_with_and_without_a_head() -> None:
    plain = [
        SuppressionEntry("a@x.example"),
        SuppressionEntry("b@x.example", SuppressionReason.COMPLAINT, "said so", SOON),
    ]
    assert entries("a@x.example\n\nb@x.example,complaint,said so,2090-01-01T00:00:00Z\n") == plain
    assert entries("\ufeffNote,Address\r\n,a@x.example\r\n") == [SuppressionEntry("a@x.example")]
    assert entries('address,note\n"a@x.example","said ""no"", twice"\n') == [
        SuppressionEntry("a@x.example", SuppressionReason.MANUAL, 'said "no", twice')
    ]
    assert entries("") == []


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ("nobody", "bad_address", "address"), ("Ada <a@x.example>", "bad_address", "address"),
        (",manual", "bad_address", "address"), ("a@x.example,because", "bad_value", "reason"),
        ("a@x.example,,,tomorrow", "bad_value", "expires_at"), ("a@x.example,,,2090-01-01", "bad_value", "expires_at"),
        ("a@x.example,,,2090-01-01T00:00", "bad_value", "expires_at"),
        ("a@x.example,,,2020-01-01T00:00Z", "out_of_range", "expires_at"),
        ("a@x.example,,,9999-12-31T23:59-12:00", "bad_value", "expires_at"),
        ("a@x.example,,,,", "bad_value", "line"), ('"a@x.example', "bad_value", "line"),
        (f"a@x.example,,{'x' * 501}", "bad_value", "note"), ('a@x.example,,"two\nlines"', "bad_value", "note"),
        ("a@x.exa\0mple", "control_character", "address"),
    ],
)  # fmt: skip
def test_faults_are_told_by_their_lines(line: str, code: str, field: str) -> None:
    first, second = entries(f"ok@x.example\n{line}\n")
    assert first == SuppressionEntry("ok@x.example")
    assert isinstance(second, SuppressionFault)
    assert (second.code, second.field) == (code, field)
    assert second.line == (3 if "two\n" in line else 2)


def test_an_address_is_no_formula_for_those_who_open_the_file() -> None:
    evil = "=cmd|'/c_calc'!a0@mail.example"
    text = written([COLUMNS, (evil, "hard_bounce", "@sum(1)", None)])
    assert not any(cell[:1] in "=+-@" for cell in text.splitlines()[1].split(",") if cell)
    [entry] = entries(text)
    assert (entry.address, entry.note) == (evil, "@sum(1)")


def test_a_file_comes_back_as_it_was_written() -> None:
    rows = [
        ("a@x.example", "manual", 'a "note", with commas', None),
        ('"b c"@x.example', "complaint", None, SOON),
    ]
    expected = [SuppressionEntry(one[0], SuppressionReason(one[1]), one[2], one[3]) for one in rows]
    assert entries(written([COLUMNS, *rows])) == expected


# --- HTTP


async def add(client: Client, *given: Any) -> Answer:
    return await client.post(
        "/suppressions",
        {"suppressions": [{"address": one} if isinstance(one, str) else one for one in given]},
    )


async def listed(client: Client, query: str = "") -> list[str]:
    path: str | None = f"/api/v1/suppressions?{query}"
    found = []
    while path:
        answer = await client.get(path)
        assert answer.status == 200, answer.content
        found += [one["address"] for one in answer.json["suppressions"]]
        path = answer.json["next"]
    return found


async def test_add_list_and_remove(api: Api) -> None:
    rich = {
        "address": "Bo@x.example",
        "reason": "unsubscribed",
        "note": "n",
        "expires_at": "2090-01-01T00:00:00Z",
    }
    assert (await add(api.shop, "ada@x.example", rich)).json == {
        "added": 2,
        "changed": 0,
        "unchanged": 0,
    }
    assert (await add(api.shop, "BO@x.example")).json == {"added": 0, "changed": 1, "unchanged": 0}
    [one] = (await api.shop.get("/suppressions?address=BO@x.example")).json["suppressions"]
    assert one.pop("created_at")
    assert one == {
        "address": "bo@x.example", "reason": "unsubscribed", "note": "n", "message_id": None, "expires_at": None,
    }  # fmt: skip
    assert await listed(api.shop, "limit=1") == ["ada@x.example", "bo@x.example"]
    assert await listed(api.other) == []
    assert (await api.shop("DELETE", "/suppressions/Ada%40X.example")).status == 204
    assert (await api.shop("DELETE", "/suppressions/ada@x.example")).status == 404
    assert (await api.shop("DELETE", "/suppressions/import")).status == 404
    assert await listed(api.shop) == ["bo@x.example"]
    await add(api.shop, "a/b@x.example")
    assert (await api.shop("DELETE", "/suppressions/a/b@x.example")).status == 204


async def test_filters_and_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(
        api.shop,
        *(f"{n:02}@x.example" for n in range(20)),
        {"address": "z@x.example", "reason": "complaint"},
    )
    monkeypatch.setattr(store, "LOOKED_AT", 3)
    assert await listed(api.shop, "prefix=1&limit=4") == [f"{n}@x.example" for n in range(10, 20)]
    assert await listed(api.shop, "prefix=Z") == ["z@x.example"]
    assert await listed(api.shop, "reason=complaint") == ["z@x.example"]
    assert await listed(api.shop, "address=z@x.example&reason=manual") == []
    assert len(await listed(api.shop, "limit=7")) == 21
    answer = await api.shop.get("/suppressions?limit=1")
    assert answer.headers["link"] == f'<{answer.json["next"]}>; rel="next"'
    for query in ("reason=because", "limit=0", "cursor=!", "cursor=AA", "tenant=other", "prefix="):
        assert (await api.shop.get(f"/suppressions?{query}")).status == 422, query


async def test_one_bad_address_and_none_is_added(api: Api) -> None:
    answer = await add(
        api.shop,
        "ok@x.example",
        "nobody",
        {"address": "a@x.example", "expires_at": "2020-01-01T00:00Z"},
    )
    assert (answer.status, answer.json["type"], answer.json["code"]) == (
        422,
        "/problems/invalid-request",
        "bad_address",
    )
    assert [one["field"] for one in answer.json["errors"]] == [
        "suppressions[1].address",
        "suppressions[2].expires_at",
    ]
    assert b"nobody" not in answer.content
    assert await listed(api.shop) == []
    assert (await add(api.shop)).status == 422
    assert (await add(api.shop, *["a@x.example"] * 1001)).status == 422
    long = [f"{n:04}{'x' * 50}@{'y' * 60}.{'z' * 60}.example" for n in range(1000)]
    assert (await add(api.shop, *({"address": one, "note": "n" * 500} for one in long))).json[
        "added"
    ] == 1000


async def load(
    client: Client, text: str | bytes, query: str = "", kind: str = "text/csv; charset=utf-8"
) -> Answer:
    data = text.encode() if isinstance(text, str) else text
    return await client(
        "POST", f"/suppressions/import{query}", headers={"Content-Type": kind}, data=data
    )


async def test_a_file_is_imported_whole_or_not_at_all(api: Api) -> None:
    text = "address,reason\na@x.example,complaint\nnobody,manual\nb@x.example,why\nc@x.example,\n"
    answer = await load(api.shop, text)
    assert (answer.status, answer.json["field"], answer.json["code"]) == (
        422,
        "line 3",
        "bad_address",
    )
    assert [one["field"] for one in answer.json["errors"]] == ["line 3", "line 4"]
    assert await listed(api.shop) == []
    answer = await load(api.shop, text, "?partial=true")
    assert (answer.json["added"], answer.json["refused"]) == (2, 2)
    assert [(one["line"], one["code"]) for one in answer.json["faults"]] == [
        (3, "bad_address"),
        (4, "bad_value"),
    ]
    assert await listed(api.shop) == ["a@x.example", "c@x.example"]


async def test_files_that_are_none(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await load(api.shop, b"\xff\xfe")).json["type"] == "/problems/malformed"
    assert (await load(api.shop, "{}", kind="application/json")).json[
        "type"
    ] == "/problems/unsupported-media-type"
    monkeypatch.setattr(suppression_files, "MAX_LINES", 2)
    assert (await load(api.shop, "a@x.example\nb@x.example\nc@x.example\n")).status == 413
    monkeypatch.setattr(suppression_files, "MAX_BYTES", 10)
    assert (await load(api.shop, "a@x.example\n")).status == 413
    assert await listed(api.shop) == []


async def test_what_is_exported_can_be_imported(api: Api) -> None:
    many = [
        SuppressionEntry(f"{n}@x.example", SuppressionReason.COMPLAINT, f'say "{n}", please', SOON)
        for n in range(2500)
    ]
    await store.add(api.database, 2, many)
    answer = await api.shop.get("/suppressions/export")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert len(list(csv.reader(io.StringIO(answer.content.decode())))) == 2501
    assert (await load(api.other, answer.content)).json["added"] == 2500
    assert (await api.other.get("/suppressions/export")).content == answer.content
    assert (
        await api.shop.get("/suppressions/export?reason=manual")
    ).content == b"address,reason,note,expires_at\n"


async def test_who_may_see_and_change_the_list(api: Api) -> None:
    reader, sender = await api.key("shop", Scope.READ), await api.key("shop", Scope.SEND)
    assert (await reader.get("/suppressions")).status == 200
    assert (await reader.get("/suppressions/export")).status == 200
    assert (await sender.get("/suppressions")).status == 403
    assert (await add(reader, "a@x.example")).status == 403
    assert (await load(reader, "a@x.example")).status == 403
    assert (await reader("DELETE", "/suppressions/a@x.example")).status == 403


# --- the command line


def on_list(cli: Cli, *arguments: str) -> list[str]:
    return [one["address"] for one in cli.json("suppression", "list", *arguments)]


def test_the_command(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    words = (
        "--tenant",
        "shop",
        "--reason",
        "unsubscribed",
        "--note",
        "by phone",
        "--expires",
        "30d",
    )
    assert cli.json("suppression", "add", "Ada@x.example", "bo@x.example", *words) == {
        "added": 2, "changed": 0, "unchanged": 0,
    }  # fmt: skip
    assert on_list(cli, "--tenant", "shop") == ["ada@x.example", "bo@x.example"]
    assert on_list(cli) == []
    assert on_list(cli, "--tenant", "shop", "--prefix", "B") == ["bo@x.example"]
    assert on_list(cli, "--tenant", "shop", "--reason", "manual") == []
    assert on_list(cli, "--tenant", "shop", "--address", "ADA@x.example") == ["ada@x.example"]
    assert on_list(cli, "--tenant", "shop", "--limit", "1") == ["ada@x.example"]
    shown = cli("suppression", "list", "--tenant", "shop", "--limit", "1")
    assert "by phone" in shown.out
    assert "--after ada@x.example" in shown.err
    assert on_list(cli, "--tenant", "shop", "--after", "ada@x.example") == ["bo@x.example"]
    assert "1 removed" in cli("suppression", "remove", "ADA@x.example", "--tenant", "shop").out
    assert (
        "not on the list"
        in cli("suppression", "remove", "ada@x.example", "--tenant", "shop", code=1).err
    )
    assert "there is no tenant" in cli("suppression", "list", "--tenant", "nonesuch", code=1).err
    assert "'wrong' is not a legal" in cli("suppression", "add", "a@x.example", "wrong", code=1).err
    assert "not a legal e-mail address" in cli("suppression", "add", "nobody", code=1).err


def test_files_at_the_command_line(cli: Cli, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("".join(f"{n}@x.example,complaint\n" for n in range(2500)))
    bad.write_text("address\na@x.example\nnobody\n")
    assert cli.json("suppression", "import", str(good)) == {
        "added": 2500, "changed": 0, "unchanged": 0, "refused": 0,
    }  # fmt: skip
    answer = cli("suppression", "import", str(bad), code=1)
    assert "line 3: address:" in answer.err
    assert "nothing was added" in answer.err
    assert on_list(cli, "--prefix", "a") == []
    assert (
        "1 added, 0 changed, 0 unchanged, 1 refused"
        in cli("suppression", "import", str(bad), "--partial", code=1).out
    )
    exported = cli("suppression", "export").out
    assert len(exported.splitlines()) == 2502
    cli("tenant", "add", "shop")
    assert (
        "2,501 added" in cli("suppression", "import", "-", "--tenant", "shop", stdin=exported).out
    )
    copy = tmp_path / "copy.csv"
    assert (
        "2,501 addresses written" in cli("suppression", "export", str(copy), "--tenant", "shop").err
    )
    assert copy.read_text() == exported
    lines = cli("suppression", "export", "--reason", "manual", "--json").out.splitlines()
    assert [json.loads(line)["address"] for line in lines] == ["a@x.example"]
    assert "cannot be read" in cli("suppression", "import", str(tmp_path / "none.csv"), code=1).err
    assert (
        "cannot be written"
        in cli("suppression", "export", str(tmp_path / "no" / "such.csv"), code=1).err
    )


async def test_an_import_that_breaks_off_leaves_nothing(database: Database) -> None:
    many = [SuppressionEntry(f"{n}@x.example") for n in range(1500)]

    async def broken() -> None:
        async with database.transaction() as connection:
            async for _ in store.add_to(connection, 1, many):
                raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await broken()
    assert await addresses(database) == []
