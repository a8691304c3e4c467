"""What happens to accounts and tokens at the edges: at the same moment, with odd values, after changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pillarbox.errors import ExpiredToken, StoreDataError
from pillarbox.lifecycle.batch_policy import CollectBatch
from pillarbox.store.database import Database
from pillarbox.store.lifecycle import TokenStore
from pillarbox.store.lifecycle_schema import check_if_installed, install, is_installed
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.lifecycle.collector_helpers import collector, issue, outcomes
from tests.integration.lifecycle.lifecycle_helpers import SCHEMA, add_account, add_token

ALL = CollectBatch(1000, "test")


@pytest_asyncio.fixture
async def db(database: Database) -> AsyncIterator[Database]:
    async with database.connection() as connection:
        await install(connection, SCHEMA)
    yield database


@pytest.fixture
def tokens() -> TokenStore:
    return TokenStore(SCHEMA)


# --- values that one token has, and all others must not suffer from


@pytest.mark.parametrize(
    "data", ['{"n": ' + "9" * 5000 + "}", '{"n": ' + "[" * 3000 + "]" * 3000 + "}"]
)
async def test_data_that_python_cannot_read_harms_no_other(
    db: Database, database_url: str, data: str
) -> None:
    await db.execute(
        "UPDATE lifecycle.accounts SET data = $1 WHERE id = $2", data, await add_account(db, "eve")
    )
    await add_account(db, "ada")
    async with collector(database_url) as (_, one):
        assert await one.collect(ALL) == 2
    assert await outcomes(db) == {"mailed": 2}, "no template asks for it"


@pytest.mark.parametrize("moment", [2**63 - 1, 1_800_000_000_000])
async def test_a_token_that_never_expires_or_in_milliseconds_is_refused(
    db: Database, moment: int
) -> None:
    number = await add_account(db, "ada", "suspended")
    with pytest.raises(StoreDataError):
        await db.execute(
            "INSERT INTO lifecycle.tokens (account, action, expires_at) VALUES ($1, 'sign_in_code', $2)",
            number,
            moment,
        )


async def test_the_latest_expiry_that_counts_harms_no_other(
    db: Database, database_url: str
) -> None:
    for status in ("suspended", "active"):
        for action in ("sign_in_code", "email_verification"):
            number = await add_account(db, f"{status}{action}", status)
            await db.execute(
                "INSERT INTO lifecycle.tokens (account, action, expires_at)"
                " VALUES ($1, $2::text::lifecycle.token_action, 253402300799)",
                number, action,
            )  # fmt: skip
    async with collector(database_url) as (_, one):
        assert await one.collect(ALL) == 4
    assert await outcomes(db) == {"mailed": 2, "held": 2}


# --- at the same moment


async def test_a_token_that_comes_while_its_account_changes_is_not_held_until_it_expires(
    db: Database, tokens: TokenStore
) -> None:
    """The change does not see the token, and whoever takes the token does not see the change."""
    number = await add_account(db, status="active")
    await db.execute("UPDATE lifecycle.accounts SET status = 'suspended' WHERE id = $1", number)
    async with db.transaction() as changing:
        await changing.execute(
            "UPDATE lifecycle.accounts SET status = 'active' WHERE id = $1", number
        )
        token = await add_token(db, number, "email_verification")
        async with db.transaction() as connection:
            (due,) = await tokens.take(connection, 10)
            assert due.verdict == "account"
            await tokens.hold(connection, [(token, "account", None, 0)])
    left = await db.fetchval(
        "SELECT extract(epoch FROM held_until - now())::float8 FROM lifecycle.waiting"
    )
    assert left <= 61, "it is looked at again soon"


async def test_two_who_add_the_same_account_at_once_get_one(db: Database) -> None:
    query = "INSERT INTO lifecycle.accounts (email, login) VALUES ('a@b.example', 'a') ON CONFLICT DO NOTHING"
    async with db.transaction() as first:
        await first.execute(query)
        second = asyncio.create_task(db.execute(query))
        await eventually(lambda: _somebody_waits(db))
    assert await asyncio.wait_for(second, PATIENCE) == 0
    assert await db.fetchval("SELECT count(*) FROM lifecycle.tokens") == 1


async def _somebody_waits(db: Database) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


# --- an address that changed


async def test_a_link_to_an_address_that_changed_does_not_count(
    db: Database, database_url: str, tokens: TokenStore
) -> None:
    """Who reads the old mailbox has proven nothing about the new one."""
    number = await add_account(db, status="active")
    token = await issue(db, number, "email_verification")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    await db.execute(
        "UPDATE lifecycle.accounts SET email = 'other@people.example' WHERE id = $1", number
    )
    secret = await db.fetchval("SELECT secret FROM lifecycle.tokens WHERE id = $1", token)
    with pytest.raises(ExpiredToken):
        await tokens.consume(db, secret, "email_verification")


async def test_a_token_that_waits_goes_to_the_new_address(
    db: Database, database_url: str, tokens: TokenStore
) -> None:
    number = await add_account(db, status="active")
    token = await issue(db, number, "email_verification")
    await db.execute(
        "UPDATE lifecycle.accounts SET email = 'other@people.example' WHERE id = $1", number
    )
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    assert await db.fetchval("SELECT recipient FROM pillarbox.deliveries") == "other@people.example"
    await db.execute("UPDATE lifecycle.accounts SET email = 'Other@people.example'")  # the same one
    secret = await db.fetchval("SELECT secret FROM lifecycle.tokens WHERE id = $1", token)
    assert (await tokens.consume(db, secret, "email_verification")).account == number


async def test_an_address_that_changes_while_a_collector_writes_waits_for_it(
    db: Database, database_url: str, tokens: TokenStore
) -> None:
    number = await add_account(db, status="active")
    token = await issue(db, number, "email_verification")
    async with db.transaction() as connection:
        (due,) = await tokens.take(connection, 10)
        assert due.email == "ada@people.example"
        change = asyncio.create_task(
            db.execute("UPDATE lifecycle.accounts SET email = 'other@people.example'")
        )
        await eventually(lambda: _somebody_waits(db))
        await tokens.settle(connection, [(token, "mailed", None)])
    await asyncio.wait_for(change, PATIENCE)
    with pytest.raises(ExpiredToken):
        await tokens.consume(db, due.secret, "email_verification")


# --- codes and keys


async def test_a_sign_in_code_lasts_no_longer_than_codes_do(
    db: Database, database_url: str
) -> None:
    """A token that is simply inserted has the original's quarter of an hour, or whatever was given."""
    number = await add_account(db, status="active")
    await add_token(db, number, "sign_in_code")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    assert await db.fetchval(
        "SELECT expires_at - created_at <= interval '10 minutes' FROM pillarbox.challenges"
    )
    assert await db.fetchval(
        "SELECT expires_at - created_at <= interval '601 seconds' FROM pillarbox.messages"
    )
    assert "10 minutes" in await db.fetchval("SELECT text FROM pillarbox.contents")


async def test_a_key_that_retired_is_said_to_be_the_problem(
    db: Database, database_url: str
) -> None:
    await add_account(db)
    async with collector(database_url, lifecycle_keys="deadbeef" * 8 + "@2020-01-01") as (_, one):
        await one.collect(ALL)
    assert "have expired" in await db.fetchval("SELECT problem FROM lifecycle.waiting")


# --- beginning anew


@pytest.mark.parametrize("more", ["", ", lifecycle.tokens, lifecycle.waiting, lifecycle.collected"])
async def test_emptied_tables_begin_anew(db: Database, database_url: str, more: str) -> None:
    """As the tests of an application do between each other: ids come again, and mean something else then."""
    await add_account(db, "ada")
    async with collector(database_url) as (_, one):
        await one.collect(ALL)
    await add_account(db, "bob")
    await db.execute(f"TRUNCATE lifecycle.accounts{more} RESTART IDENTITY CASCADE")
    assert [await add_account(db, name) for name in ("cyd", "dan")] == [1, 2]
    assert await outcomes(db) == {"waiting": 2}


async def test_a_schema_of_that_name_that_is_others_is_as_good_as_none(database: Database) -> None:
    """Who never asked for accounts starts as before, whatever else is in the database."""
    async with database.connection() as connection:
        await connection.execute(
            "CREATE SCHEMA lifecycle; CREATE TABLE lifecycle.migrations (id int, batch int)"
        )
        assert not await is_installed(connection, SCHEMA)
        await check_if_installed(connection, SCHEMA)
        await connection.execute("CREATE ROLE pb_edge_stranger")
        try:
            await connection.execute("SET ROLE pb_edge_stranger")
            assert not await is_installed(connection, SCHEMA)
        finally:
            await connection.execute("RESET ROLE; DROP ROLE pb_edge_stranger")
