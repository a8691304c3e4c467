"""Accounts and tokens in the database: what defaults and triggers do, and what they refuse."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from tests.harness import eventually
from tests.integration.lifecycle.lifecycle_helpers import add_account, add_token, expire, prepared

# Pearson's chi-square of k - 1 degrees of freedom exceeds these in one of a million runs.
CHI_SQUARE_9 = 45.08
CHI_SQUARE_255 = 379.3


@pytest_asyncio.fixture
async def people(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await prepared(database_url)
    yield connection
    await connection.close()


async def account(people: asyncpg.Connection, number: int) -> asyncpg.Record:
    return await people.fetchrow("SELECT * FROM accounts WHERE id = $1", number)


def chi_square(counts: Counter[Any], kinds: int) -> float:
    expected = counts.total() / kinds
    return sum((counts[kind] - expected) ** 2 / expected for kind in counts) + expected * (
        kinds - len(counts)
    )


# --- accounts


async def test_the_columns_are_those_of_the_seed_in_its_order_and_then_ours(
    people: asyncpg.Connection,
) -> None:
    columns = await people.fetch(
        "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) AS names"
        " FROM information_schema.columns WHERE table_schema = 'lifecycle' GROUP BY table_name"
    )
    found = {row["table_name"]: row["names"] for row in columns}
    assert found["accounts"] == [
        "id", "email", "status", "login", "created_at", "status_changed_at", "activated_at", "suspended_at",
        "unsuspended_at", "portal", "locale", "name", "data",
    ]  # fmt: skip
    assert found["tokens"] == [
        "id", "action", "secret", "code", "account", "expires_at", "consumed_at", "created_at", "data", "wrong_codes",
        "hook_until",
    ]  # fmt: skip
    assert found["jobs"] == ["job_type", "last_seq"]
    assert [tuple(row) for row in await people.fetch("SELECT * FROM jobs")] == [("mailroom", 0)]
    assert not {"secret", "code"} & {*found["token_log"], *found["account_log"]}


async def test_the_seeds_indexes_and_triggers_are_there_under_their_names(
    people: asyncpg.Connection,
) -> None:
    indexes = {
        row[0]
        for row in await people.fetch(
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'lifecycle'"
        )
    }
    assert {"accounts_id_status_idx", "tokens_id_expires_consumed_action_idx"} <= indexes
    triggers = {
        row[0] for row in await people.fetch("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
    }
    names = {
        "before_account_insert",
        "before_account_status_change",
        "after_token_consumed",
        "after_token_inserted",
    }
    assert names <= triggers
    functions = {
        row[0]
        for row in await people.fetch(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'lifecycle'::regnamespace"
        )
    }
    assert {f"trg_{name}" for name in names} <= functions


async def test_a_provisioned_account_comes_with_an_activation_token(
    people: asyncpg.Connection,
) -> None:
    before = int(time.time())
    number = await add_account(people)
    tokens = await people.fetch("SELECT * FROM tokens")
    assert [(row["account"], row["action"]) for row in tokens] == [(number, "activation")]
    (token,) = tokens
    assert len(token["secret"]) == 32
    assert len(token["code"]) == 5
    assert token["code"].isdigit()
    assert token["expires_at"] - token["created_at"] == 900
    assert before - 1 <= token["created_at"] <= time.time() + 1
    assert token["consumed_at"] is None


async def test_others_come_without_one(people: asyncpg.Connection) -> None:
    number = await add_account(people, status="active")
    assert await people.fetchval("SELECT count(*) FROM tokens") == 0
    assert (await account(people, number))["activated_at"] is not None


async def test_the_token_goes_with_its_account(people: asyncpg.Connection) -> None:
    transaction = people.transaction()
    await transaction.start()
    number = await add_account(people)
    await transaction.rollback()
    assert await people.fetchval("SELECT count(*) FROM tokens") == 0
    assert await people.fetchval("SELECT count(*) FROM waiting") == 0

    number = await add_account(people)
    await people.execute("DELETE FROM accounts WHERE id = $1", number)
    for table in ("tokens", "waiting", "collected"):
        assert await people.fetchval(f"SELECT count(*) FROM {table}") == 0


@pytest.mark.parametrize("conflict", ["DO NOTHING", "(email) DO UPDATE SET name = 'Ada'"])
async def test_an_account_that_is_there_gets_no_second_token(
    people: asyncpg.Connection, conflict: str
) -> None:
    await add_account(people)
    await people.execute(
        f"INSERT INTO accounts (email, login) VALUES ('ada@people.example', 'ada') ON CONFLICT {conflict}"
    )
    assert await people.fetchval("SELECT count(*) FROM tokens") == 1


async def test_a_token_without_an_account_is_refused_at_the_end(people: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await add_token(people, 4711)


async def test_statuses_leave_their_times(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    await people.execute("UPDATE accounts SET status = 'active' WHERE id = $1", number)
    active = await account(people, number)
    assert active["activated_at"] == active["status_changed_at"] is not None
    await people.execute("UPDATE accounts SET status = 'suspended' WHERE id = $1", number)
    suspended = await account(people, number)
    assert suspended["suspended_at"] == suspended["status_changed_at"] is not None
    assert suspended["unsuspended_at"] is None
    await people.execute("UPDATE accounts SET status = 'active' WHERE id = $1", number)
    back = await account(people, number)
    assert (back["status"], back["suspended_at"]) == ("active", None)
    assert back["unsuspended_at"] is not None
    assert back["activated_at"] == active["activated_at"]


async def test_the_same_status_again_changes_nothing(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    await people.execute("UPDATE accounts SET status = 'provisioned' WHERE id = $1", number)
    assert (await account(people, number))["status_changed_at"] is None


async def test_unsuspending_what_was_never_activated_provisions_it(
    people: asyncpg.Connection,
) -> None:
    number = await add_account(people)
    await people.execute("UPDATE accounts SET status = 'suspended' WHERE id = $1", number)
    await people.execute("UPDATE accounts SET status = 'active' WHERE id = $1", number)
    back = await account(people, number)
    assert (back["status"], back["activated_at"], back["suspended_at"]) == (
        "provisioned",
        None,
        None,
    )
    assert back["unsuspended_at"] is not None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("portal", "../hub"),
        ("portal", ""),
        ("locale", "de_AT"),
        ("locale", "x"),
        ("locale", "en/../.."),
        ("data", "[1]"),
    ],
)
async def test_bad_values_are_refused(people: asyncpg.Connection, column: str, value: str) -> None:
    number = await add_account(people)
    cast = "jsonb" if column == "data" else "text"
    with pytest.raises(asyncpg.CheckViolationError):
        await people.execute(
            f"UPDATE accounts SET {column} = $1::text::{cast} WHERE id = $2", value, number
        )


# --- secrets and codes


async def test_codes_are_uniform_and_secrets_differ(people: asyncpg.Connection) -> None:
    await add_account(people, status="active")
    await people.execute(
        "INSERT INTO tokens (account, action) SELECT 1, 'password_recovery' FROM generate_series(1, 5000)"
    )
    rows = await people.fetch("SELECT secret, code FROM tokens")
    assert len({row["secret"] for row in rows}) == 5000
    codes = [row["code"] for row in rows]
    assert all(len(code) == 5 and code.isdigit() for code in codes)
    for place in range(5):
        assert chi_square(Counter(code[place] for code in codes), 10) < CHI_SQUARE_9
    assert len(set(codes)) > 4750  # of 100,000: 4,877 are expected
    for place in (0, 15, 31):
        assert chi_square(Counter(row["secret"][place] for row in rows), 256) < CHI_SQUARE_255


async def test_a_sign_in_code_is_made_when_it_is_mailed(people: asyncpg.Connection) -> None:
    token = await add_token(people, await add_account(people, status="active"), "sign_in_code")
    assert await people.fetchval("SELECT code FROM tokens WHERE id = $1", token) is None


# --- consuming


CONSUME = "UPDATE tokens SET consumed_at = extract(epoch FROM now()) WHERE id = $1"


async def refusal(people: asyncpg.Connection, query: str, *arguments: Any) -> tuple[str, str]:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await people.fetch(query, *arguments)
    return str(refused.value.sqlstate), str(refused.value.message)


async def test_consuming_an_activation_token_activates_once(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    await people.execute(CONSUME, 1)
    active = await account(people, number)
    assert active["status"] == "active"
    assert active["activated_at"] is not None
    assert await refusal(people, CONSUME, 1) == ("PB410", "token 1 was used before")
    assert await refusal(people, "UPDATE tokens SET consumed_at = NULL") == (
        "PB410",
        "token 1 was used before",
    )


async def test_consuming_another_token_activates_nobody(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    await people.execute(CONSUME, await add_token(people, number, "email_verification"))
    assert (await account(people, number))["status"] == "provisioned"
    await people.execute(CONSUME, await add_token(people, number, "invite"))
    assert (await account(people, number))["status"] == "active"


async def test_consuming_does_not_unsuspend(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    await people.execute("UPDATE accounts SET status = 'suspended'")
    await people.execute(CONSUME, 1)
    assert (await account(people, number))["status"] == "suspended"


async def test_a_late_token_is_refused(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    await expire(people, 1)
    assert await refusal(people, CONSUME, 1) == ("PB411", "token 1 has expired")
    assert (await account(people, number))["status"] == "provisioned"


async def test_only_the_newest_counts(people: asyncpg.Connection) -> None:
    number = await add_account(people, status="active")
    older, newer = await add_token(people, number), await add_token(people, number)
    await add_token(people, number, "email_verification")  # another action
    await add_token(people, await add_account(people, "bob", "active"))  # another account
    assert await refusal(people, CONSUME, older) == (
        "PB412",
        f"token {older} was superseded by a newer one",
    )
    await people.execute(CONSUME, newer)


CONSUME_TOKEN = (
    "SELECT consume_token((SELECT secret FROM tokens WHERE id = $1), $2::text::token_action, $3)"
)


async def test_the_function_consumes_with_the_code(people: asyncpg.Connection) -> None:
    number = await add_account(people, status="active")
    token = await add_token(people, number)
    code = await people.fetchval("SELECT code FROM tokens WHERE id = $1", token)
    assert await people.fetchval(CONSUME_TOKEN, token, "password_recovery", code) == number
    sqlstate, _ = await refusal(people, CONSUME_TOKEN, token, "password_recovery", code)
    assert sqlstate == "PB410"
    assert (await refusal(people, CONSUME_TOKEN, token, "activation", code))[0] == "PB404"
    assert (await refusal(people, "SELECT consume_token('\\x00', 'activation')"))[0] == "PB404"


async def test_wrong_codes_are_counted_and_the_sixth_try_is_void(
    people: asyncpg.Connection,
) -> None:
    token = await add_token(people, await add_account(people, status="active"))
    code = await people.fetchval("SELECT code FROM tokens WHERE id = $1", token)
    wrong = f"{(int(code) + 1) % 100000:05d}"
    for given in (wrong, None, "", code + "0", wrong):
        assert await people.fetchval(CONSUME_TOKEN, token, "password_recovery", given) is None
    void = ("PB413", f"token {token} is void: its code was wrong too often")
    assert await refusal(people, CONSUME_TOKEN, token, "password_recovery", code) == void
    assert await people.fetchval("SELECT consumed_at FROM tokens WHERE id = $1", token) is None


async def test_of_two_who_consume_at_once_one_wins(
    people: asyncpg.Connection, database_url: str
) -> None:
    await add_account(people)
    others = [await asyncpg.connect(database_url) for _ in range(4)]
    secret = await people.fetchval("SELECT secret FROM tokens")
    query = "SELECT lifecycle.consume_token($1, 'activation')"
    results = await asyncio.gather(
        *(one.fetchval(query, secret) for one in others), return_exceptions=True
    )
    assert Counter(type(one) is int or getattr(one, "sqlstate", None) for one in results) == {
        True: 1,
        "PB410": 3,
    }
    for one in others:
        await one.close()


async def test_issued_tokens_live_as_long_as_their_action_says(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    token = await people.fetchval("SELECT issue_token($1, 'invite', '{\"team\": \"x\"}')", number)
    row = await people.fetchrow(
        "SELECT expires_at - created_at AS lifetime, data FROM tokens WHERE id = $1", token
    )
    assert abs(row["lifetime"] - 604800) <= 1
    assert row["data"] == '{"team": "x"}'
    assert await refusal(people, "SELECT issue_token(4711, 'invite')") == (
        "PB404",
        "there is no account 4711",
    )


# --- notifications, and what waits


async def test_an_inserted_token_notifies_once_for_each_transaction(
    people: asyncpg.Connection, database_url: str
) -> None:
    heard: list[str] = []
    listening = await asyncpg.connect(database_url)
    await listening.add_listener(
        "token_insert", lambda _connection, _pid, channel, _payload: heard.append(channel)
    )
    await add_account(people, "a")
    await add_account(people, "b")
    async with people.transaction():
        await add_account(people, "c")
        await add_account(people, "d")
    await people.execute(
        "INSERT INTO tokens (account, action) SELECT 1, 'invite' WHERE false"
    )  # nothing

    async def three() -> bool:
        await listening.fetchval("SELECT 1")
        return len(heard) >= 3

    await eventually(three)
    await listening.fetchval("SELECT 1")
    assert heard == ["token_insert"] * 3
    assert [
        tuple(row)
        for row in await people.fetch("SELECT token, lane, held FROM waiting ORDER BY token")
    ] == [(token, 1, None) for token in (1, 2, 3, 4)]
    await listening.close()


async def test_urgent_actions_wait_in_the_urgent_lane(people: asyncpg.Connection) -> None:
    number = await add_account(people, status="active")
    for action in ("password_recovery", "sign_in_code", "welcome"):
        await add_token(people, number, action)
    assert [row[0] for row in await people.fetch("SELECT lane FROM waiting ORDER BY token")] == [
        0,
        0,
        1,
    ]


async def test_a_change_of_status_releases_what_was_held(people: asyncpg.Connection) -> None:
    number = await add_account(people)
    held = "UPDATE waiting SET held = $1, held_until = now() + interval '1 hour' RETURNING token"
    await people.fetch(held, "account")
    await people.execute("UPDATE accounts SET name = 'Ada' WHERE id = $1", number)
    assert await people.fetchval("SELECT held FROM waiting") == "account"
    await people.execute("UPDATE accounts SET status = 'active' WHERE id = $1", number)
    assert await people.fetchval("SELECT held FROM waiting") is None
    await people.fetch(held, "rendering")
    await people.execute("UPDATE accounts SET status = 'suspended' WHERE id = $1", number)
    assert await people.fetchval("SELECT held FROM waiting") == "rendering"


# --- actions


async def test_a_row_makes_an_action(people: asyncpg.Connection) -> None:
    number = await add_account(people, status="active")
    await people.execute(
        "INSERT INTO actions (name, path, lane) VALUES ('newsletter', '/news', 'bulk'), ('survey', NULL, 'bulk')"
    )
    rows = await people.fetch(
        "SELECT name, number, template FROM actions WHERE number > 7 ORDER BY number"
    )
    assert [tuple(row) for row in rows] == [
        ("newsletter", 8, "newsletter"),
        ("survey", 9, "survey"),
    ]
    token = await add_token(people, number, "newsletter")
    assert await people.fetchval("SELECT lane FROM waiting WHERE token = $1", token) == 2
    await people.execute("INSERT INTO actions (name) VALUES ('survey') ON CONFLICT DO NOTHING")


async def test_an_action_is_neither_renamed_nor_removed(people: asyncpg.Connection) -> None:
    for query in (
        "DELETE FROM actions WHERE name = 'invite'",
        "UPDATE actions SET name = 'x' WHERE name = 'invite'",
    ):
        assert await refusal(people, query) == (
            "PB409",
            "action invite cannot be renamed or removed",
        )
    await people.execute("UPDATE actions SET name = name, eligible = '{}' WHERE name = 'invite'")


async def test_a_token_of_an_action_without_a_row_is_refused(people: asyncpg.Connection) -> None:
    number = await add_account(people, status="active")
    await people.execute("ALTER TYPE token_action ADD VALUE 'stray'")
    sqlstate, text = await refusal(
        people, "INSERT INTO tokens (account, action) VALUES ($1, 'stray')", number
    )
    assert (sqlstate, "no row in the table actions" in text) == ("PB404", True)


@pytest.mark.parametrize(
    ("column", "value"),
    [("path", "/api/../x"), ("path", "no-slash"), ("name", "Bad"), ("lane", "x")],
)
async def test_bad_actions_are_refused(people: asyncpg.Connection, column: str, value: str) -> None:
    row = {"name": "fine"} | {column: value}
    places = ", ".join(f"${place}" for place in range(1, len(row) + 1))
    with pytest.raises(asyncpg.CheckViolationError):
        await people.execute(
            f"INSERT INTO actions ({', '.join(row)}) VALUES ({places})", *row.values()
        )


# --- views


async def test_the_logs_have_real_times_and_tell_what_became_of_tokens(
    people: asyncpg.Connection,
) -> None:
    number = await add_account(people)
    shown = await people.fetchrow("SELECT created_at, activated_at, status FROM account_log")
    assert abs(shown["created_at"].timestamp() - time.time()) < 60
    assert (shown["activated_at"], shown["status"]) == (None, "provisioned")
    await people.execute(CONSUME, 1)
    older, newer, late = [
        await add_token(people, number, action) for action in ("invite", "invite", "welcome")
    ]
    await expire(people, late)
    await people.execute("INSERT INTO collected (token, outcome) VALUES ($1, 'mailed')", newer)
    await people.execute("DELETE FROM waiting WHERE token = $1", newer)
    rows = await people.fetch("SELECT id, status, outcome FROM token_log ORDER BY id")
    assert [tuple(row) for row in rows] == [
        (1, "used", "waiting"), (older, "superseded", "waiting"),
        (newer, "open", "mailed"), (late, "expired", "waiting"),
    ]  # fmt: skip
