"""The authenticator: who asks, asked anew each time, with failures made to wait."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from pillarbox.accept import auth
from pillarbox.accept.auth import NOTE_INTERVAL, PEER_FACTOR, Authenticator, network_of
from pillarbox.errors import StoreError, Throttled, Unauthorized
from pillarbox.model.access import Scope
from pillarbox.store import access, tenants
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import migrate
from pillarbox.telemetry.metrics import Metrics
from tests.conftest import server_binaries
from tests.harness import eventually, opened
from tests.places import short_directory

MOST = 3
HERE, THERE = "192.0.2.1", "198.51.100.7"
UNKNOWN = "pbx_zzzzzzzzzz_" + "a" * 43


class Counting(Database):
    """A database that counts what it is asked."""

    asked = 0

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        self.asked += 1
        return await super().fetch(query, *arguments)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counting(database: Database, database_url: str) -> Counting:
    return Counting(database.pool, database_url, True)


@pytest_asyncio.fixture
async def keeper(counting: Counting, clock: Clock) -> AsyncIterator[Authenticator]:
    keeper = Authenticator(counting, Metrics(), failures=MOST, clock=clock)
    yield keeper
    await keeper.close()


async def key(database: Database, name: str = "website") -> str:
    return (await access.add_key(database, "default", name, [Scope.SEND]))[1].reveal()


def wrong(token: str) -> str:
    return token[:-1] + ("a" if token[-1] != "a" else "b")


async def failing(times: int, call: Callable[[], Awaitable[Any]]) -> None:
    for _ in range(times):
        with pytest.raises(Unauthorized):
            await call()


def count(keeper: Authenticator, kind: str, result: str) -> float:
    return keeper._metrics.authentications.labels(kind, result)._value.get()  # type: ignore[no-any-return]


# --- who asks


async def test_a_key_and_a_login_open(keeper: Authenticator, database: Database) -> None:
    who = await keeper.by_key(await key(database), HERE)
    assert (who.kind, who.name) == ("key", "website")
    facts, password = await access.add_login(database, "default", "printer")
    who = await keeper.by_login(facts.username, password.reveal(), HERE)
    assert (who.kind, who.name) == ("login", "printer")
    assert count(keeper, "key", "accepted") == count(keeper, "login", "accepted") == 1


async def test_every_refusal_sounds_the_same(
    keeper: Authenticator, database: Database, counting: Counting
) -> None:
    """Whether a prefix or a user name exists shows neither in the words nor in the statements made."""
    token = await key(database)
    revoked = await key(database, "old")
    await database.execute("UPDATE pillarbox.api_keys SET revoked_at = now() WHERE name = 'old'")
    answers = []
    for one in (wrong(token), UNKNOWN, revoked):
        before = counting.asked
        with pytest.raises(Unauthorized) as caught:
            await keeper.by_key(one, HERE)
        answers.append((str(caught.value), counting.asked - before))
    assert answers == [("the key is not valid", 1)] * 3
    facts, _ = await access.add_login(database, "default", "printer")
    words = set()
    for username in (facts.username, "nobody@default", "nobody"):
        with pytest.raises(Unauthorized) as caught:
            await keeper.by_login(username, "a" * 43, THERE)
        words.add(str(caught.value))
    assert len(words) == 1


@pytest.mark.parametrize(
    "given", ["", "pbx_", "x" * 100_000, "pbx_zzzzzzzzzz_\0", "Bearer x", "é", "\udc80"]
)
async def test_what_cannot_be_a_key_is_not_asked_about(
    keeper: Authenticator, counting: Counting, given: str
) -> None:
    before = counting.asked
    with pytest.raises(Unauthorized):
        await keeper.by_key(given, HERE)
    with pytest.raises(Unauthorized):
        await keeper.by_login(given, given, HERE)
    assert counting.asked == before


async def test_revoking_works_at_once(keeper: Authenticator, database: Database) -> None:
    token = await key(database)
    await keeper.by_key(token, HERE)
    [facts] = await access.list_keys(database)
    await access.revoke_key(database, facts.id)
    with pytest.raises(Unauthorized):
        await keeper.by_key(token, HERE)


async def test_expiry_works_at_once(keeper: Authenticator, database: Database) -> None:
    token = await key(database)
    await keeper.by_key(token, HERE)
    await database.execute("UPDATE pillarbox.api_keys SET expires_at = now()")
    with pytest.raises(Unauthorized):
        await keeper.by_key(token, HERE)


async def test_a_changed_tenant_shows_at_once(keeper: Authenticator, database: Database) -> None:
    token = await key(database)
    assert (await keeper.by_key(token, HERE)).tenant.max_recipients is None  # type: ignore[union-attr]
    await tenants.change_tenant(database, "default", max_recipients=2)
    assert (await keeper.by_key(token, HERE)).tenant.max_recipients == 2  # type: ignore[union-attr]


async def test_many_callers_share_statements(
    keeper: Authenticator, database: Database, counting: Counting
) -> None:
    tokens = [await key(database, f"k{number}") for number in range(20)]
    before = counting.asked
    found = await asyncio.gather(*(keeper.by_key(tokens[n % 20], HERE) for n in range(1000)))
    assert [one.name for one in found] == [f"k{n % 20}" for n in range(1000)]
    assert counting.asked - before <= 10
    assert count(keeper, "key", "accepted") == 1000


async def test_good_and_bad_together_get_their_own_answers(
    keeper: Authenticator, database: Database
) -> None:
    token = await key(database)
    asked = [keeper.by_key(token if n % 2 else wrong(token), f"203.0.113.{n}") for n in range(100)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, Unauthorized) for one in answers[0::2])
    assert all(one.name == "website" for one in answers[1::2])  # type: ignore[union-attr]


# --- too many failures


async def test_after_so_many_failures_it_waits(
    keeper: Authenticator, counting: Counting, clock: Clock
) -> None:
    await failing(MOST, lambda: keeper.by_key(UNKNOWN, HERE))
    before = counting.asked
    with pytest.raises(Throttled) as caught:
        await keeper.by_key(UNKNOWN, HERE)
    assert 0 < caught.value.retry_after <= 60
    assert counting.asked == before
    assert count(keeper, "key", "throttled") == 1
    await failing(1, lambda: keeper.by_key(UNKNOWN, THERE))
    clock.now += caught.value.retry_after
    await failing(1, lambda: keeper.by_key(UNKNOWN, HERE))


async def test_what_has_no_form_of_a_key_waits_too(keeper: Authenticator) -> None:
    await failing(MOST, lambda: keeper.by_key("guess", HERE))
    with pytest.raises(Throttled):
        await keeper.by_key("another", HERE)


async def test_logins_wait_by_their_names(keeper: Authenticator, database: Database) -> None:
    facts, password = await access.add_login(database, "default", "printer")
    await failing(MOST, lambda: keeper.by_login("nobody@default", "a" * 43, HERE))
    with pytest.raises(Throttled):
        await keeper.by_login("nobody@default", "a" * 43, HERE)
    assert await keeper.by_login(facts.username, password.reveal(), HERE)


async def test_a_stranger_at_the_same_address_locks_nobody_out(
    keeper: Authenticator, database: Database
) -> None:
    """By wrong tries at one name; only those who never showed a right key meet the address's own bound."""
    known, other = await key(database), await key(database, "other")
    await keeper.by_key(known, HERE)
    await failing(MOST, lambda: keeper.by_key(wrong(known), HERE))
    with pytest.raises(Throttled):
        await keeper.by_key(wrong(known), HERE)
    assert await keeper.by_key(known, HERE)
    assert await keeper.by_key(other, HERE)


async def test_an_address_has_a_bound_of_its_own(
    keeper: Authenticator, database: Database, clock: Clock, counting: Counting
) -> None:
    known, late = await key(database), await key(database, "late")
    await keeper.by_key(known, HERE)
    for number in range(MOST * PEER_FACTOR):
        await failing(1, lambda number=number: keeper.by_key(f"pbx_{number:010}_" + "a" * 43, HERE))  # type: ignore[misc]
    before = counting.asked
    with pytest.raises(Throttled):
        await keeper.by_key(late, HERE)
    assert counting.asked == before
    assert await keeper.by_key(known, HERE)
    assert await keeper.by_key(late, THERE)
    clock.now += 60
    assert await keeper.by_key(late, HERE)


async def test_a_revoked_key_is_no_longer_known(keeper: Authenticator, database: Database) -> None:
    token = await key(database)
    await keeper.by_key(token, HERE)
    await database.execute("UPDATE pillarbox.api_keys SET revoked_at = now()")
    await failing(MOST, lambda: keeper.by_key(token, HERE))
    with pytest.raises(Throttled):
        await keeper.by_key(token, HERE)


async def test_a_flood_reaches_the_database_in_two_batches_at_most(
    keeper: Authenticator, counting: Counting
) -> None:
    before = counting.asked
    answers = await asyncio.gather(
        *(keeper.by_key(UNKNOWN, HERE) for _ in range(2000)), return_exceptions=True
    )
    assert {type(one) for one in answers} == {Unauthorized, Throttled}
    assert counting.asked - before <= 2


async def test_a_success_in_between_forgives_nothing(
    keeper: Authenticator, database: Database
) -> None:
    """Or whoever has one key could try others without end."""
    token = await key(database)
    for _ in range(MOST):
        await failing(1, lambda: keeper.by_key(wrong(token), HERE))
        await keeper.by_key(token, HERE)
    with pytest.raises(Throttled):
        await keeper.by_key(wrong(token), HERE)


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_what_failures_are_counted_by(peer: str, counted: str) -> None:
    assert network_of(peer) == counted


async def test_neighbours_in_ipv6_are_one(keeper: Authenticator) -> None:
    for number in range(MOST):
        await failing(1, lambda number=number: keeper.by_key(UNKNOWN, f"2001:db8::{number}"))  # type: ignore[misc]
    with pytest.raises(Throttled):
        await keeper.by_key(UNKNOWN, "2001:db8::ffff")


async def test_what_it_remembers_is_bounded(
    keeper: Authenticator, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED", 5)
    for number in range(12):
        await keeper.by_key(await key(database, f"k{number}"), HERE)
    assert len(keeper._valid) == len(keeper._noted) == 5


# --- last use


async def test_use_is_noted_beside_the_request(keeper: Authenticator, database: Database) -> None:
    token = await key(database)
    facts, password = await access.add_login(database, "default", "printer")
    await keeper.by_key(token, HERE)
    await keeper.by_login(facts.username, password.reveal(), HERE)

    async def noted() -> bool:
        [one], [two] = await access.list_keys(database), await access.list_logins(database)
        return bool(one.last_used_at and two.last_used_at)

    await eventually(noted)


async def test_use_is_noted_once_a_minute(
    keeper: Authenticator, database: Database, clock: Clock
) -> None:
    token = await key(database)
    await keeper.by_key(token, HERE)
    await keeper.close()
    await database.execute("UPDATE pillarbox.api_keys SET last_used_at = now() - interval '1 hour'")
    [before] = await access.list_keys(database)
    await keeper.by_key(token, HERE)
    await keeper.close()
    assert [before] == await access.list_keys(database)
    clock.now += NOTE_INTERVAL
    await keeper.by_key(token, HERE)
    await keeper.close()
    assert [before] != await access.list_keys(database)


async def test_failures_are_no_use(keeper: Authenticator, database: Database) -> None:
    token = await key(database)
    await failing(1, lambda: keeper.by_key(wrong(token), HERE))
    await keeper.close()
    [facts] = await access.list_keys(database)
    assert facts.last_used_at is None


# --- development


async def test_the_keyless_door_is_shut_unless_this_is_development(database_url: str) -> None:
    async with opened(database_url) as app:
        with pytest.raises(Unauthorized, match="key add"):
            await app.authenticator.development()
    async with opened(database_url, development="on") as app:
        who = await app.authenticator.development()
        assert app.authenticator is app.authenticator
    assert who.tenant
    assert (who.kind, who.tenant.name, who.scopes) == ("development", "default", set(Scope))


async def test_the_keyless_door_shares_statements(database_url: str) -> None:
    async with opened(database_url, development="on") as app:
        found = await asyncio.gather(*(app.authenticator.development() for _ in range(500)))
    assert {one.kind for one in found} == {"development"}


# --- the database is away


@pytest_asyncio.fixture
async def mortal() -> AsyncIterator[tuple[EmbeddedPostgres, Database]]:
    """A server that a test may stop."""
    directory = short_directory()
    server = EmbeddedPostgres(directory / "data", server_binaries(), {"fsync": "off"})
    try:
        await asyncio.to_thread(server.start)
        database = await Database.connect(server.url())
        async with database.connection() as connection:
            await migrate(connection)
        yield server, database
        await database.close()
    finally:
        server.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)


async def test_while_the_database_is_away_nobody_is_blamed(
    mortal: tuple[EmbeddedPostgres, Database],
) -> None:
    server, database = mortal
    token = await key(database)
    keeper = Authenticator(database, Metrics(), failures=MOST, development=True)
    await keeper.by_key(token, HERE)
    await keeper.close()
    await asyncio.to_thread(server.stop, "immediate")
    for _ in range(MOST * 2):
        with pytest.raises(StoreError):
            await keeper.by_key(token, HERE)
        with pytest.raises(StoreError):
            await keeper.by_key(UNKNOWN, HERE)
        with pytest.raises(StoreError):
            await keeper.development()
    assert count(keeper, "key", "refused") == count(keeper, "key", "throttled") == 0
    await asyncio.to_thread(server.start)
    assert await keeper.by_key(token, HERE)
    await failing(1, lambda: keeper.by_key(UNKNOWN, HERE))


async def test_a_use_that_cannot_be_noted_harms_nobody(
    mortal: tuple[EmbeddedPostgres, Database],
) -> None:
    server, database = mortal
    who = await access.find_keys(database, [await key(database)])
    keeper = Authenticator(database, Metrics(), failures=MOST)
    await asyncio.to_thread(server.stop, "immediate")
    assert who[0]
    keeper._use(who[0])
    await keeper.close()
