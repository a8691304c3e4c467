"""Taking, settling and holding tokens; newest wins; using them; and what all of it costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from pillarbox.errors import (
    ExpiredToken,
    InvalidToken,
    NotFound,
    SupersededToken,
    UsedToken,
    WrongCode,
)
from pillarbox.store import messages
from pillarbox.store.database import Database
from pillarbox.store.lifecycle import DueToken, TokenCounts, TokenStore
from pillarbox.store.lifecycle_schema import install
from tests import PATIENCE
from tests.harness import enqueue, eventually, states
from tests.integration.lifecycle.lifecycle_helpers import SCHEMA, add_account, add_token, expire
from tests.integration.queue.test_query_plans import plan_of
from tests.integration.queue.test_query_plans import remember as remember_mails

WAITING = 100_000
# Handled before: enough that reading them whole would show in a plan and in the time.
HANDLED = 150_000


@pytest_asyncio.fixture
async def db(database: Database) -> AsyncIterator[Database]:
    async with database.connection() as connection:
        await install(connection, SCHEMA)
    yield database


@pytest.fixture
def tokens() -> TokenStore:
    return TokenStore(SCHEMA)


async def taken(
    tokens: TokenStore, db: Database, limit: int = 100, **more: Any
) -> list[tuple[int, str | None]]:
    """What could be taken, with the verdicts; given back at once."""
    async with db.transaction() as connection:
        return [(due.token, due.verdict) for due in await tokens.take(connection, limit, **more)]


# --- taking


async def test_taking_tells_all_that_a_mail_needs(db: Database, tokens: TokenStore) -> None:
    number = await db.fetchval(
        "INSERT INTO lifecycle.accounts (email, login, name, portal, locale, data, status)"
        " VALUES ('ada@x.example', 'ada', 'Ada', 'org', 'de-AT', '{\"team\": \"one\"}', 'active') RETURNING id"
    )
    token = await tokens.issue(db, number, "password_recovery", {"device": "phone"})
    row = await db.fetchrow("SELECT * FROM lifecycle.tokens")
    async with db.transaction() as connection:
        (due,) = await tokens.take(connection, 10)
    assert (due.token, due.account, due.action, due.number) == (
        token,
        number,
        "password_recovery",
        2,
    )
    assert (due.path, due.with_code, due.template, due.lane) == (
        "/recover",
        True,
        "forgot_password",
        0,
    )
    assert (due.secret, due.code, due.expires_at, due.created_at) == tuple(
        row[name] for name in ("secret", "code", "expires_at", "created_at")
    )
    assert (due.email, due.login, due.name, due.portal, due.locale) == (
        "ada@x.example",
        "ada",
        "Ada",
        "org",
        "de-AT",
    )
    assert (due.account_data, due.token_data, due.verdict) == (
        {"team": "one"},
        {"device": "phone"},
        None,
    )


async def test_columns_of_due_tokens_are_the_fields_in_order(
    db: Database, tokens: TokenStore
) -> None:
    """They are read by position."""
    async with db.connection() as connection:
        statement = await connection.prepare(tokens._sql.take.text)
        columns = [column.name for column in statement.get_attributes()]
    assert columns == list(DueToken._fields)


async def test_urgent_ones_come_first_and_then_by_id(db: Database, tokens: TokenStore) -> None:
    people = [await add_account(db, f"p{n}") for n in range(3)]
    active = await add_account(db, "active", "active")
    urgent = await add_token(db, active)
    bulk = await add_token(db, active, "welcome")
    found = [token for token, _ in await taken(tokens, db)]
    assert found == [urgent, *range(1, len(people) + 1), bulk]
    assert await taken(tokens, db, 2) == [(urgent, None), (1, None)]
    assert await taken(tokens, db, urgent_only=True) == [(urgent, None)]
    assert await tokens.count(db, 100) == TokenCounts(5, 1)
    assert await tokens.count(db, 3) == TokenCounts(3, 1)


async def test_verdicts(db: Database, tokens: TokenStore) -> None:
    people = {
        name: await add_account(db, name, "active")
        for name in ("good", "late", "used", "renewed", "gone", "off")
    }
    made = {name: await add_token(db, number) for name, number in people.items()}
    await expire(db, made["late"])
    await db.execute("UPDATE lifecycle.tokens SET consumed_at = 1 WHERE id = $1", made["used"])
    newer = await add_token(db, people["renewed"])
    await db.execute(
        "UPDATE lifecycle.accounts SET status = 'suspended' WHERE id = $1", people["off"]
    )
    await db.execute(
        "ALTER TABLE lifecycle.tokens DISABLE TRIGGER after_token_deleted"
    )  # a row nobody tidied away
    await db.execute("DELETE FROM lifecycle.accounts WHERE id = $1", people["gone"])
    assert dict(await taken(tokens, db)) == {
        made["good"]: None, made["late"]: "expired", made["used"]: "consumed", made["renewed"]: "superseded",
        newer: None, made["gone"]: "gone", made["off"]: "account",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("action", "eligible"),
    [
        ("activation", {"provisioned"}),
        ("password_recovery", {"active"}),
        ("email_verification", {"provisioned", "active"}),
        ("password_changed", {"active"}),
        ("invite", {"provisioned"}),
        ("sign_in_code", {"active"}),
        ("welcome", {"active"}),
    ],
)
async def test_who_is_eligible(
    db: Database, tokens: TokenStore, action: str, eligible: set[str]
) -> None:
    asked = {}
    for status in ("provisioned", "active", "suspended"):
        asked[status] = await add_token(db, await add_account(db, status, status), action)
    verdicts = dict(await taken(tokens, db))
    assert {status for status, token in asked.items() if verdicts[token] is None} == eligible
    assert {verdicts[token] for token in asked.values()} == {None, "account"}


async def test_two_collectors_never_have_the_same(db: Database, tokens: TokenStore) -> None:
    for n in range(10):
        await add_account(db, f"p{n}")
    async with db.transaction() as one, db.transaction() as other:
        first = [due.token for due in await tokens.take(one, 4)]
        second = [due.token for due in await tokens.take(other, 100)]
        assert (first, second) == ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10])
        await tokens.settle(one, [(token, "mailed", None) for token in first])
        await asyncio.wait_for(
            tokens.settle(other, [(token, "mailed", None) for token in second]), 5
        )  # jobs: not waited
    assert await taken(tokens, db) == []
    assert await db.fetchval("SELECT last_seq FROM lifecycle.jobs") in (4, 10)


async def test_what_is_not_settled_comes_again(db: Database, tokens: TokenStore) -> None:
    await add_account(db)
    assert await taken(tokens, db) == await taken(tokens, db) == [(1, None)]


# --- settling and holding


async def test_settled_ones_are_gone_and_told(db: Database, tokens: TokenStore) -> None:
    for n in range(3):
        await add_account(db, f"p{n}")
    mail = uuid4()
    async with db.transaction() as connection:
        await tokens.take(connection, 10)
        await tokens.settle(
            connection, [(1, "mailed", mail), (2, "expired", None), (3, "written", None)]
        )
    assert await tokens.count(db, 10) == TokenCounts(0, 0)
    rows = await db.fetch(
        "SELECT token, outcome, message_id FROM lifecycle.collected ORDER BY token"
    )
    assert [tuple(row) for row in rows] == [
        (1, "mailed", mail),
        (2, "expired", None),
        (3, "written", None),
    ]
    assert await db.fetchval("SELECT last_seq FROM lifecycle.jobs") == 3
    async with db.transaction() as connection:
        await tokens.settle(connection, [])
        await tokens.settle(connection, [(2, "expired", None)], "unknown_queue")
    assert await db.fetchval("SELECT last_seq FROM lifecycle.jobs") == 3


async def suspended_with_token(db: Database) -> tuple[int, int]:
    """An account that was active once, and its token."""
    number = await add_account(db, status="active")
    await db.execute("UPDATE lifecycle.accounts SET status = 'suspended' WHERE id = $1", number)
    return number, await add_token(db, number)


async def test_a_token_waits_for_its_account(db: Database, tokens: TokenStore) -> None:
    number, token = await suspended_with_token(db)
    async with db.transaction() as connection:
        await tokens.hold(
            connection,
            [(due.token, "account", None, 0) for due in await tokens.take(connection, 10)],
        )
    assert await taken(tokens, db) == []
    assert await tokens.release_due(db) == 0
    assert await tokens.set_aside(db) == []
    await db.execute("UPDATE lifecycle.accounts SET status = 'active' WHERE id = $1", number)
    assert await taken(tokens, db) == [(token, None)]


async def test_a_status_that_changes_while_a_collector_decides_is_not_lost(
    db: Database, tokens: TokenStore
) -> None:
    _, token = await suspended_with_token(db)
    async with db.transaction() as connection:
        (due,) = await tokens.take(connection, 10)
        assert due.verdict == "account"
        change = asyncio.create_task(db.execute("UPDATE lifecycle.accounts SET status = 'active'"))
        await eventually(lambda: _somebody_waits(db))
        await tokens.hold(connection, [(token, "account", None, 0)])
    await asyncio.wait_for(change, PATIENCE)
    assert await taken(tokens, db) == [(token, None)]


async def _somebody_waits(db: Database) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_held_for_an_account_it_expires(db: Database, tokens: TokenStore) -> None:
    token = await add_token(db, await add_account(db, status="suspended"))
    await expire(db, token)
    async with db.transaction() as connection:
        await tokens.take(connection, 10)
        await tokens.hold(connection, [(token, "account", None, 3600)])
    assert await tokens.release_due(db) == 1
    assert await taken(tokens, db) == [(token, "expired")]


async def test_what_cannot_be_rendered_is_set_aside_and_tried_again(
    db: Database, tokens: TokenStore
) -> None:
    for n in range(3):
        await add_account(db, f"p{n}")
    async with db.transaction() as connection:
        await tokens.take(connection, 10)
        await tokens.hold(
            connection,
            [
                (1, "rendering", "hub/activation: no such variable", 0),
                (2, "rendering", "later", 60),
            ],
        )
        await tokens.hold(connection, [])
    assert await taken(tokens, db) == [(3, None)]
    assert await tokens.count_set_aside(db, 100) == 2
    assert await tokens.count_set_aside(db, 1) == 1
    first, second = await tokens.set_aside(db)
    assert (first.token, first.problem, first.tries) == (1, "hub/activation: no such variable", 1)
    assert (first.account, first.action, first.portal, first.template) == (
        1,
        "activation",
        "hub",
        "activation",
    )
    assert (first.again_in, second.token) == (0, 2)
    assert 50 < second.again_in <= 60
    assert [one.token for one in await tokens.set_aside(db, 1)] == [1]
    assert [one.token for one in await tokens.set_aside(db, after=1)] == [2]

    assert await tokens.release_due(db) == 1
    assert await taken(tokens, db) == [(1, None), (3, None)]


async def test_set_aside_ones_are_collected_again_after_the_fix(
    db: Database, tokens: TokenStore
) -> None:
    for n in range(3):
        await add_account(db, f"p{n}")
    async with db.transaction() as connection:
        await tokens.take(connection, 10)
        await tokens.hold(connection, [(token, "rendering", "x", 3600) for token in (1, 2, 3)])
    heard = asyncio.Event()
    async with db.listening({"token_insert": heard.set}):
        assert await tokens.retry_set_aside(db, [2, 4711]) == 1
        await asyncio.wait_for(heard.wait(), PATIENCE)
    assert await taken(tokens, db) == [(2, None)]
    assert await tokens.retry_set_aside(db) == 2
    assert await tokens.count(db, 10) == TokenCounts(3, 0)


# --- newest wins


async def mailed(db: Database, tokens: TokenStore, token: int) -> UUID:
    """Take a token and mail it, as a collector does."""
    async with db.transaction() as connection:
        await tokens.take(connection, 100)
        mail = await _mail(connection)
        await tokens.supersede(connection, [token])
        await tokens.settle(connection, [(token, "mailed", mail)])
    return mail


async def _mail(connection: Any) -> UUID:
    return await enqueue(connection, **{"class": "lifecycle"})


async def test_an_older_mail_that_still_waits_is_cancelled(
    db: Database, tokens: TokenStore
) -> None:
    number = await add_account(db, status="active")
    other = await add_account(db, "other", "active")
    old = await mailed(db, tokens, await add_token(db, number))
    beside = [
        await mailed(db, tokens, await add_token(db, other)),
        await mailed(db, tokens, await add_token(db, number, "welcome")),
    ]
    newest = await add_token(db, number)
    new = await mailed(db, tokens, newest)
    assert await states(db, old) == ["cancelled"]
    assert [await states(db, mail) for mail in (*beside, new)] == [["queued"]] * 3
    story = await messages.message_details(db, old)
    assert [(event.kind, event.data) for event in story.events] == [
        ("cancelled", {"who": "lifecycle", "superseded_by": newest})
    ]
    assert (
        await db.fetchval("SELECT count(*) FROM pillarbox.contents WHERE message_id = $1", old) == 0
    )
    assert (
        await db.fetchval("SELECT reason FROM pillarbox.deliveries WHERE message_id = $1", old)
        == "cancelled"
    )


async def test_what_left_or_is_leaving_is_left_alone(db: Database, tokens: TokenStore) -> None:
    number = await add_account(db, status="active")
    for state in ("sent", "processing", "failed"):
        old = await mailed(db, tokens, await add_token(db, number))
        await db.execute(
            "UPDATE pillarbox.deliveries SET state = $2::text::pillarbox.state WHERE message_id = $1",
            old,
            state,
        )
        await mailed(db, tokens, await add_token(db, number))
        assert await states(db, old) == [state]


async def test_scheduled_ones_are_cancelled_too_and_customers_are_told(
    db: Database, tokens: TokenStore
) -> None:
    await db.execute(
        "INSERT INTO pillarbox.webhook_endpoints (id, tenant_id, url, secret)"
        " VALUES ($1, 1, 'https://x.example', '\\x00')",
        uuid4(),
    )
    number = await add_account(db, status="active")
    old = await mailed(db, tokens, await add_token(db, number))
    await db.execute("UPDATE pillarbox.deliveries SET state = 'pending' WHERE message_id = $1", old)
    await mailed(db, tokens, await add_token(db, number))
    assert await states(db, old) == ["cancelled"]
    calls = await db.fetch("SELECT message_id, kind FROM pillarbox.webhook_calls")
    assert [tuple(row) for row in calls] == [(old, "message.cancelled")]


async def test_a_mail_that_another_collector_is_making_is_cancelled_too(
    db: Database, tokens: TokenStore
) -> None:
    """The newer token's collector waits for the other's commit; else it would not see that mail."""
    number = await add_account(db, status="active")
    older = await add_token(db, number)

    async def newer_collector() -> None:
        async with db.transaction() as connection:
            (due,) = await tokens.take(connection, 10)
            assert (due.token, due.verdict) == (newer, None)
            await tokens.supersede(connection, [newer])
            await tokens.settle(connection, [(newer, "mailed", await _mail(connection))])

    async with db.transaction() as connection:
        assert [due.token for due in await tokens.take(connection, 10)] == [older]
        newer = await add_token(db, number)
        other = asyncio.create_task(newer_collector())
        await eventually(lambda: _somebody_waits(db))
        old = await _mail(connection)
        await tokens.supersede(connection, [older])
        await tokens.settle(connection, [(older, "mailed", old)])
    await asyncio.wait_for(other, PATIENCE)
    assert await states(db, old) == ["cancelled"]


# --- using


async def secret_of(db: Database, token: int) -> tuple[bytes, str]:
    row = await db.fetchrow("SELECT secret, code FROM lifecycle.tokens WHERE id = $1", token)
    assert row is not None
    return row["secret"], row["code"]


async def test_using_a_token_once(db: Database, tokens: TokenStore) -> None:
    number = await add_account(db)
    secret, _ = await secret_of(db, 1)
    state = await tokens.look(db, secret, "activation")
    assert state is not None
    assert (state.state, state.account, state.login, state.portal, state.with_code) == (
        "good",
        number,
        "ada",
        "hub",
        False,
    )
    for _ in range(3):  # looking changes nothing
        assert await tokens.look(db, secret, "activation") == state
    used = await tokens.consume(db, secret, "activation")
    assert (used.token, used.account, used.login, used.email, used.status) == (
        1,
        number,
        "ada",
        "ada@people.example",
        "active",
    )
    with pytest.raises(UsedToken, match="token 1 was used before"):
        await tokens.consume(db, secret, "activation")
    again = await tokens.look(db, secret, "activation")
    assert again is not None
    assert again.state == "used"


async def test_why_a_token_does_not_count(db: Database, tokens: TokenStore) -> None:
    number = await add_account(db, status="active")
    old, late = [await add_token(db, number, action) for action in ("invite", "welcome")]
    await add_token(db, number, "invite")
    await expire(db, late)
    for token, action, error, word in (
        (old, "invite", SupersededToken, "superseded"),
        (late, "welcome", ExpiredToken, "expired"),
    ):
        secret, _ = await secret_of(db, token)
        state = await tokens.look(db, secret, action)
        assert state is not None
        assert state.state == word
        with pytest.raises(error):
            await tokens.consume(db, secret, action)
    secret, _ = await secret_of(db, old)
    for unknown, action in (
        (b"x" * 32, "invite"),
        (secret, "activation"),
        (secret, "no_such_action"),
    ):
        assert await tokens.look(db, unknown, action) is None
        with pytest.raises(InvalidToken) as refused:
            await tokens.consume(db, unknown, action)
        assert refused.value.reason == "unknown"


async def test_wrong_codes_count_durably(db: Database, tokens: TokenStore) -> None:
    token = await add_token(db, await add_account(db, status="active"))
    secret, code = await secret_of(db, token)
    wrong = "x" + code[1:]
    for number in range(1, 4):
        with pytest.raises(WrongCode) as refused:
            await tokens.consume(db, secret, "password_recovery", wrong, tries_allowed=3)
        assert refused.value.void == (number == 3)
    state = await tokens.look(db, secret, "password_recovery", 3)
    assert state is not None
    assert (state.state, state.wrong_codes) == ("void", 3)
    with pytest.raises(WrongCode) as refused:
        await tokens.consume(db, secret, "password_recovery", code, tries_allowed=3)
    assert refused.value.void


async def test_guesses_at_once_cannot_exceed_the_limit(db: Database, tokens: TokenStore) -> None:
    token = await add_token(db, await add_account(db, status="active"))
    secret, code = await secret_of(db, token)
    wrong = [f"{(int(code) + n) % 100000:05d}" for n in range(1, 51)]
    guesses = (tokens.consume(db, secret, "password_recovery", one) for one in wrong)
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert all(isinstance(one, WrongCode) for one in answers)
    assert await db.fetchval("SELECT wrong_codes FROM lifecycle.tokens WHERE id = $1", token) == 5
    with pytest.raises(WrongCode):
        await tokens.consume(db, secret, "password_recovery", code)


async def test_of_many_who_use_a_token_at_once_one_wins(db: Database, tokens: TokenStore) -> None:
    await add_account(db)
    secret, _ = await secret_of(db, 1)
    answers = await asyncio.gather(
        *(tokens.consume(db, secret, "activation") for _ in range(10)), return_exceptions=True
    )
    assert Counter(type(one).__name__ for one in answers) == {"TokenState": 1, "UsedToken": 9}


# --- accounts and actions


async def test_finding_accounts(db: Database, tokens: TokenStore) -> None:
    number = await add_account(db, "Ada")
    found = await tokens.find_account(db, "ADA@people.EXAMPLE")
    assert found is not None
    assert (found.id, found.email, found.status, found.data) == (
        number,
        "Ada@people.example",
        "provisioned",
        {},
    )
    assert await tokens.account(db, number) == found
    lower = await add_account(db, "ada")
    for email, expected in (("ada@people.example", lower), ("Ada@people.example", number)):
        found = await tokens.find_account(db, email)
        assert found is not None
        assert found.id == expected
    assert await tokens.find_account(db, "nobody@people.example") is None
    assert await tokens.account(db, 4711) is None


async def test_actions_as_they_are(db: Database, tokens: TokenStore) -> None:
    await db.execute("INSERT INTO lifecycle.actions (name, path) VALUES ('newsletter', '/news')")
    found = {one.name: one for one in await tokens.actions(db)}
    assert list(found) == [
        "activation", "password_recovery", "email_verification", "password_changed", "invite", "sign_in_code",
        "welcome", "newsletter",
    ]  # fmt: skip
    assert found["newsletter"]._asdict() == {
        "name": "newsletter", "number": 8, "path": "/news", "with_code": False, "lane": "normal",
        "template": "newsletter", "activates": False, "lifetime_seconds": 900,
    }  # fmt: skip


async def test_issuing_for_nobody_or_nothing(db: Database, tokens: TokenStore) -> None:
    with pytest.raises(NotFound, match="no account 4711"):
        await tokens.issue(db, 4711, "invite")
    with pytest.raises(NotFound, match="no action 'nothing'"):
        await tokens.issue(db, await add_account(db), "nothing")


async def test_another_schema_is_another_world(db: Database) -> None:
    async with db.connection() as connection:
        await install(connection, "people")
    here, there = TokenStore(SCHEMA), TokenStore("people")
    number = await add_account(db, schema="people")
    assert await taken(here, db) == []
    assert await taken(there, db) == [(1, None)]
    token = await there.issue(db, number, "invite")
    secret = await db.fetchval("SELECT secret FROM people.tokens WHERE id = $1", token)
    assert (await there.consume(db, secret, "invite")).status == "active"


# --- what it costs


async def remember(db: Database) -> None:
    """Many tokens handled before and many that wait, with statistics of before they waited."""
    await db.execute("ALTER TABLE lifecycle.accounts DISABLE TRIGGER USER")
    await db.execute(
        "INSERT INTO lifecycle.accounts (email, login)"
        " SELECT n || '@x.example', n::text FROM generate_series(1, $1) AS n",
        HANDLED + WAITING,
    )
    insert = (
        "INSERT INTO lifecycle.tokens (account, action)"
        " SELECT n, 'activation' FROM generate_series($1::int, $2::int) AS n"
    )
    await db.execute(insert, 1, HANDLED)
    await db.execute(
        "INSERT INTO lifecycle.collected (token, outcome) SELECT token, 'mailed' FROM lifecycle.waiting"
    )
    await db.execute("DELETE FROM lifecycle.waiting")
    await remember_mails(db)  # and analyses
    await db.execute(insert, HANDLED + 1, HANDLED + WAITING)


async def test_large_tables_are_never_read_whole(db: Database, tokens: TokenStore) -> None:
    await remember(db)
    names = (
        "count", "take", "settle", "hold", "release_due", "await_older", "supersede", "set_aside", "count_set_aside",
        "look", "find_account", "account",
    )  # fmt: skip
    large = {
        f"all of {table}" for table in ("tokens", "accounts", "waiting", "collected", "deliveries")
    }
    for statistics in ("of before", "of now"):
        for name in names:
            found = await plan_of(db, tokens._sql[name])
            assert large.isdisjoint(found), (statistics, name, found)
        await db.execute("ANALYZE")
    assert "waiting_ready" in await plan_of(db, tokens._sql["take"])
    async with db.transaction() as connection:
        assert [due.verdict for due in await tokens.take(connection, 1000)] == [None] * 1000
