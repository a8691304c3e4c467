"""Enqueueing in the caller's own transaction, on the connections of every library we support."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from pillarbox import Attachment, Mail, enqueue, enqueue_many
from pillarbox.accept import statements
from pillarbox.errors import IdempotencyConflict, InvalidMail, UnknownName
from tests import PATIENCE


def mail(number: int = 1, **fields: Any) -> Mail:
    defaults = {
        "sender": "Shop <shop@example.com>",
        "to": f"user{number}@example.net",
        "subject": "Hello",
    }
    return Mail(**(defaults | {"text": "A body"} | fields))


@dataclass
class Caller:
    """A connection, and how its application ends a transaction on it."""

    connection: Any
    commit: Callable[[], Awaitable[None] | None]
    rollback: Callable[[], Awaitable[None] | None]


async def done(result: Any) -> Any:
    """The value of a synchronous call, or of an awaited one."""
    return await result if hasattr(result, "__await__") else result


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Caller(connection, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield Caller(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def by_psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(connection, connection.commit, connection.rollback)


def dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def by_sqlalchemy(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield Caller(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def by_sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield Caller(session, session.commit, session.rollback)


@asynccontextmanager
async def by_sqlalchemy_asyncpg(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dialect(url, "asyncpg"), poolclass=NullPool)
    async with engine.connect() as connection:
        yield Caller(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def by_sqlalchemy_async_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dialect(url, "asyncpg"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Caller(session, session.commit, session.rollback)


@asynccontextmanager
async def by_sqlalchemy_psycopg_async(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dialect(url, "psycopg"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Caller(session, session.commit, session.rollback)


WAYS = [
    by_asyncpg, by_asyncpg_pool, by_psycopg, by_psycopg_async, by_sqlalchemy, by_sqlalchemy_session,
    by_sqlalchemy_asyncpg, by_sqlalchemy_async_session, by_sqlalchemy_psycopg_async,
]  # fmt: skip
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("by_"))

RICH = mail(
    to=["Ünal <ünal@example.net>", "b@example.net"],
    cc="c@example.net",
    bcc=["d@example.net"],
    reply_to="r@example.com",
    subject="Grüße, 'quoted' \\ 100% :not $1",
    text="Zeile eins\r\nZeile zwei %s :x $1",
    html="<p>é</p>",
    headers={"X-Campaign": "spring"},
    attachments=[Attachment("a.bin", bytes(range(256)), "image/png", "logo@x")],
    class_="bulk",
    kind="newsletter",
    priority="bulk",
    send_at=datetime.datetime(
        2020, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2))
    ),
    expires_at=datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC),
    max_attempts=3,
    idempotency_key="key",
    tags=["one", "two"],
    metadata={"order": 7, "nested": [None, 1.5, "é"]},
)


async def stored(connection: asyncpg.Connection, id: uuid.UUID) -> dict[str, Any]:
    row = await connection.fetchrow(
        "SELECT m.*, c.text, c.html, c.raw, c.attachments FROM pillarbox.messages m"
        " JOIN pillarbox.contents c ON c.message_id = m.id WHERE m.id = $1",
        id,
    )
    volatile = ("id", "created_at", "request_hash")
    return {name: value for name, value in row.items() if name not in volatile}


@every_way
async def test_commit_and_rollback(
    way: Any, database_url: str, connection: asyncpg.Connection
) -> None:
    async with way(database_url) as caller:
        await done(enqueue(caller.connection, mail()))
        assert await connection.fetchval("SELECT count(*) FROM pillarbox.messages") == 0
        await done(caller.rollback())
    async with way(database_url) as caller:
        id = await done(enqueue(caller.connection, mail()))
        assert isinstance(id, uuid.UUID)
        assert id.version == 7
        await done(caller.commit())
    assert await connection.fetchval("SELECT array_agg(id) FROM pillarbox.messages") == [id]
    row = await connection.fetchrow(
        "SELECT message_id, recipient, state, n, role FROM pillarbox.deliveries"
    )
    assert tuple(row) == (id, "user1@example.net", "queued", 0, b"t")


@every_way
async def test_every_field_arrives_by_every_way(
    way: Any, database_url: str, connection: asyncpg.Connection
) -> None:
    raw = mail(text=None, raw=b"Subject: \xff\r\n\r\nbody", subject=None)
    async with way(database_url) as caller:
        one = await done(enqueue(caller.connection, RICH))
        raw_one = await done(enqueue(caller.connection, raw))
        (again, raw_again) = await done(enqueue_many(caller.connection, [RICH, raw]))
        await done(caller.commit())
    assert again == one  # the same key and the same mail, whichever way it came
    assert await stored(connection, raw_one) == await stored(connection, raw_again)
    found = await stored(connection, one)
    assert (found["subject"], found["text"], found["to"]) == (
        RICH.subject,
        RICH.text,
        list(RICH.to),
    )
    assert (found["send_at"], found["expires_at"]) == (RICH.send_at, RICH.expires_at)
    assert (found["tags"], found["max_attempts"], found["lane"]) == (["one", "two"], 3, 2)
    recipients = await connection.fetch(
        "SELECT n, role, recipient FROM pillarbox.deliveries WHERE message_id = $1 ORDER BY n", one
    )
    assert [tuple(row) for row in recipients] == [
        (0, b"t", "ünal@example.net"), (1, b"t", "b@example.net"), (2, b"c", "c@example.net"),
        (3, b"b", "d@example.net"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"html": "<p>"},
        {"subject": None},
        {"class_": "bulk", "priority": "urgent"},
        {"text": "é" * 200_000},
    ],
)
async def test_one_and_several_store_the_same(fields: Any, connection: asyncpg.Connection) -> None:
    given = mail(to="Näme <user@example.net>", **fields)
    one = await enqueue(connection, given)
    (of_many,) = await enqueue_many(connection, [given])
    (of_mixed, _) = await enqueue_many(connection, [given, RICH])
    assert (
        await stored(connection, one)
        == await stored(connection, of_many)
        == await stored(connection, of_mixed)
    )
    rows = await connection.fetch(
        "SELECT d.state, d.tenant_id, d.size, n, d.lane, role, recipient, claim, next_attempt_at = created_at"
        " FROM pillarbox.deliveries d JOIN pillarbox.messages m ON m.id = message_id WHERE m.id = ANY ($1)",
        [one, of_many, of_mixed],
    )
    assert len(rows) == 3
    assert len(set(map(tuple, rows))) == 1


@every_way
async def test_a_bad_mail_does_not_abort_the_transaction(way: Any, database_url: str) -> None:
    async with way(database_url) as caller:
        with pytest.raises(InvalidMail) as caught:
            await done(enqueue(caller.connection, mail(to="nobody")))
        assert (caught.value.code, caught.value.field) == ("bad_address", "to")
        await done(enqueue(caller.connection, mail()))
        await done(caller.commit())


@every_way
async def test_errors_of_the_database_are_ours(way: Any, database_url: str) -> None:
    async with way(database_url) as caller:
        with pytest.raises(UnknownName, match="no class 'golden'") as caught:
            await done(enqueue(caller.connection, mail(class_="golden")))
        assert (caught.value.code, caught.value.field) == ("unknown_class", "class")
        assert caught.value.hint == "see: pillarbox class list"
        await done(caller.rollback())
    async with way(database_url) as caller:
        await done(enqueue(caller.connection, mail(idempotency_key="k")))
        with pytest.raises(IdempotencyConflict):
            await done(enqueue(caller.connection, mail(2, idempotency_key="k")))
        await done(caller.rollback())


@every_way
async def test_several_mails(
    way: Any, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "MAX_CHUNK_MAILS", 3)
    async with way(database_url) as caller:
        mails = (mail(number, kind="rarer" if number == 4 else None) for number in range(8))
        ids = await done(enqueue_many(caller.connection, mails))
        assert await done(enqueue_many(caller.connection, [])) == []
        await done(caller.commit())
    rows = await connection.fetch(
        "SELECT message_id, recipient FROM pillarbox.deliveries ORDER BY seq"
    )
    assert [tuple(row) for row in rows] == [
        (id, f"user{n}@example.net") for n, id in enumerate(ids)
    ]


@every_way
@pytest.mark.parametrize(
    ("wrong", "error", "code"),
    [
        ({"to": "nobody"}, InvalidMail, "bad_address"),
        ({"tenant": "who"}, UnknownName, "unknown_tenant"),
    ],
)
async def test_the_error_says_which_of_several(
    way: Any, wrong: Any, error: Any, code: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "MAX_CHUNK_MAILS", 3)
    mails = [mail(number, **(wrong if number == 4 else {})) for number in range(8)]
    async with way(database_url) as caller:
        with pytest.raises(error, match=r"^mails\[4\]\.") as caught:
            await done(enqueue_many(caller.connection, mails))
        assert (caught.value.position, caught.value.code) == (4, code)
        await done(caller.rollback())


async def test_several_are_all_or_none_in_autocommit(
    database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "MAX_CHUNK_MAILS", 3)
    mails = [mail(number, class_="transactional" if number < 7 else "none") for number in range(8)]
    engine = sqlalchemy.create_engine(dialect(database_url, "psycopg"), poolclass=NullPool)
    async_engine = create_async_engine(dialect(database_url, "asyncpg"), poolclass=NullPool)
    with (
        psycopg.connect(database_url, autocommit=True) as plain,
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alchemy,
    ):
        async with (
            await psycopg.AsyncConnection.connect(database_url, autocommit=True) as plain_async,
            async_engine.connect() as alchemy_async,
        ):
            alchemy_async = await alchemy_async.execution_options(isolation_level="AUTOCOMMIT")
            for caller in (connection, plain, plain_async, alchemy, alchemy_async):
                with pytest.raises(UnknownName) as caught:
                    await done(enqueue_many(caller, mails))
                assert caught.value.position == 7
                assert await connection.fetchval("SELECT count(*) FROM pillarbox.messages") == 0
            await done(enqueue_many(alchemy_async, mails[:4]))
    assert await connection.fetchval("SELECT count(*) FROM pillarbox.messages") == 4


async def test_chunks_are_bounded_by_octets(connection: asyncpg.Connection) -> None:
    mails = [mail(number, text="x" * 1_000_000) for number in range(9)]
    chunks = [call for _, call in statements.calls_for(mails)]
    assert [len(chunk.values[1]) for chunk in chunks] == [4, 4, 1]
    async with connection.transaction():
        assert len(await enqueue_many(connection, mails)) == 9


@pytest.mark.parametrize("connection_like", [object(), "postgresql://", None, asyncpg.create_pool])
def test_an_unsupported_connection_is_named(connection_like: Any) -> None:
    with pytest.raises(TypeError, match=r"supported are asyncpg .* psycopg 3 .* SQLAlchemy 2"):
        enqueue(connection_like, mail())


async def test_a_codec_of_the_application_does_not_interfere(
    connection: asyncpg.Connection,
) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=repr, decoder=str, schema="pg_catalog")
    one = await enqueue(connection, RICH)
    assert await enqueue_many(connection, [RICH]) == [one]


class TestIdempotency:
    async def test_the_same_mail_again_gives_the_same_id(
        self, connection: asyncpg.Connection
    ) -> None:
        first = await enqueue(connection, RICH)
        await connection.execute("SET timezone = 'Asia/Tokyo'; SET bytea_output = 'escape'")
        assert await enqueue(connection, RICH) == first
        assert await connection.fetchval("SELECT count(*) FROM pillarbox.deliveries") == 4

    async def test_concurrent_duplicates_become_one(self, database_url: str) -> None:
        async with asyncpg.create_pool(database_url, min_size=10, max_size=10) as pool:
            ids = await asyncio.gather(*(self._enqueue(pool) for _ in range(40)))
            assert len(set(ids)) == 1
            assert await pool.fetchval("SELECT count(*) FROM pillarbox.contents") == 1

    @staticmethod
    async def _enqueue(pool: asyncpg.Pool) -> uuid.UUID:
        async with pool.acquire() as connection, connection.transaction():
            return await enqueue(connection, mail(idempotency_key="same"))

    async def test_the_second_waits_and_takes_over_when_the_first_rolls_back(
        self, connection: asyncpg.Connection, database_url: str
    ) -> None:
        transaction = connection.transaction()
        await transaction.start()
        first = await enqueue(connection, mail(idempotency_key="k"))
        other = await asyncpg.connect(database_url)
        second = asyncio.create_task(enqueue(other, mail(idempotency_key="k")))
        await blocked(connection, other)
        await transaction.rollback()
        assert await second != first
        await other.close()

    async def test_repeatable_read_asks_to_try_again(
        self, connection: asyncpg.Connection, database_url: str
    ) -> None:
        other = await asyncpg.connect(database_url)
        async with other.transaction(isolation="repeatable_read"):
            await other.fetch("SELECT 1 FROM pg_class LIMIT 1")
            id = await enqueue(connection, mail(idempotency_key="k"))
            with pytest.raises(asyncpg.SerializationError):
                await enqueue(other, mail(idempotency_key="k"))
        async with other.transaction(isolation="repeatable_read"):
            assert await enqueue(other, mail(idempotency_key="k")) == id
        await other.close()

    async def test_keys_are_a_tenants_own(self, connection: asyncpg.Connection) -> None:
        await connection.execute("INSERT INTO pillarbox.tenants (name) VALUES ('other')")
        first = await enqueue(connection, mail(idempotency_key="k"))
        assert await enqueue(connection, mail(2, idempotency_key="k", tenant="other")) != first


async def blocked(watcher: asyncpg.Connection, waiting: asyncpg.Connection) -> None:
    """Wait until the connection waits for a lock."""
    async with asyncio.timeout(PATIENCE):
        while not await watcher.fetchval(
            "SELECT cardinality(pg_blocking_pids($1))", waiting.get_server_pid()
        ):
            await asyncio.sleep(0.005)


async def test_the_tenants_default_sender(connection: asyncpg.Connection) -> None:
    with pytest.raises(InvalidMail) as caught:
        await enqueue(connection, mail(sender=None))
    assert (caught.value.code, caught.value.field) == ("bad_address", "sender")
    await connection.execute("UPDATE pillarbox.tenants SET default_sender = 'd@example.com'")
    await enqueue(connection, mail(sender=None))
    assert await connection.fetchval("SELECT sender FROM pillarbox.messages") == "d@example.com"


@pytest.mark.req("REQ-QUEUE-O005")
async def test_scheduled_mails_are_pending(connection: asyncpg.Connection) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    await enqueue(connection, mail(send_at=later))
    row = await connection.fetchrow("SELECT state, next_attempt_at FROM pillarbox.deliveries")
    assert tuple(row) == ("pending", later)


async def test_an_address_given_twice_is_delivered_to_once(connection: asyncpg.Connection) -> None:
    await enqueue(
        connection, mail(to=["a@x.example", "A <a@x.example>"], cc="a@x.example", bcc="b@x.example")
    )
    rows = await connection.fetch("SELECT n, role, recipient FROM pillarbox.deliveries ORDER BY n")
    assert [tuple(row) for row in rows] == [(0, b"t", "a@x.example"), (1, b"b", "b@x.example")]


async def test_new_ids_are_in_order_within_a_millisecond(connection: asyncpg.Connection) -> None:
    made = await connection.fetch(
        "SELECT pillarbox._new_id() AS id, pg_sleep(0.00001) FROM generate_series(1, 500)"
    )
    ids = [row["id"] for row in made]
    assert sorted(ids) == ids
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    now = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    assert abs((ids[0].int >> 80) / 1000 - now) < 5
