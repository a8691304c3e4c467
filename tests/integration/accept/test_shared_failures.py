"""Failed logins are counted by all processes together, without a trace of who failed, and without the database too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pillarbox.accept.auth import PEER_FACTOR, Authenticator
from pillarbox.accept.shared_failures import SharedFailures
from pillarbox.errors import StoreError, Throttled, Unauthorized
from pillarbox.model.access import Scope
from pillarbox.store import access, auth_failures
from pillarbox.store.database import Database
from pillarbox.telemetry.metrics import Metrics
from tests.integration.cli.cli_helpers import Cli, process

MOST = 4
HERE, THERE = "192.0.2.1", "198.51.100.7"
KEY = b"k" * 32


def keeper_on(database: Database) -> Authenticator:
    return Authenticator(database, Metrics(), failures=MOST, shared=SharedFailures(database, KEY))


@pytest_asyncio.fixture
async def keepers(database: Database) -> AsyncIterator[list[Authenticator]]:
    """Doorkeepers that share a database, as those of three processes do."""
    made = [keeper_on(database) for _ in range(3)]
    yield made
    for one in made:
        await one.close()


async def answer(call: Callable[[], Awaitable[Any]]) -> str:
    try:
        await call()
    except (Unauthorized, Throttled) as error:
        return type(error).__name__
    return "in"


def wrong(token: str) -> str:
    return token[:-1] + ("a" if token[-1] != "a" else "b")


async def test_processes_count_together(keepers: list[Authenticator], database: Database) -> None:
    token = (await access.add_key(database, "default", "website", [Scope.SEND]))[1].reveal()
    answers = [
        await answer(lambda n=n: keepers[n % 3].by_key(wrong(token), HERE)) for n in range(9)
    ]  # type: ignore[misc]
    assert answers == ["Unauthorized"] * MOST + ["Throttled"] * (9 - MOST)
    for keeper in keepers:  # all of them have learned it, and let in who comes from elsewhere
        assert await answer(lambda keeper=keeper: keeper.by_key(token, HERE)) == "Throttled"  # type: ignore[misc]
        assert await answer(lambda keeper=keeper: keeper.by_key(token, THERE)) == "in"  # type: ignore[misc]


async def test_an_address_has_one_bound_for_all_processes(
    keepers: list[Authenticator], database: Database
) -> None:
    guesses = [f"pbx_{number:010d}_{'a' * 43}" for number in range(MOST * PEER_FACTOR + 6)]
    answers = [
        await answer(lambda n=n, one=one: keepers[n % 3].by_key(one, HERE))
        for n, one in enumerate(guesses)
    ]  # type: ignore[misc]
    assert answers == ["Unauthorized"] * MOST * PEER_FACTOR + ["Throttled"] * 6


async def test_administrators_passwords_too(keepers: list[Authenticator]) -> None:
    refusals = [
        await keepers[n % 3].refuse("password", HERE, "root@corp.example") for n in range(MOST + 3)
    ]
    assert [type(one).__name__ for one in refusals] == ["Unauthorized"] * MOST + ["Throttled"] * 3
    for keeper in keepers:
        with pytest.raises(Throttled):
            keeper.throttle("password", HERE, "root@corp.example")


async def test_success_costs_nothing(keepers: list[Authenticator], database: Database) -> None:
    token = (await access.add_key(database, "default", "website", [Scope.SEND]))[1].reveal()
    await keepers[0].by_key(token, HERE)
    assert await database.fetchval("SELECT count(*) FROM pillarbox.auth_failures") == 0


async def test_nobody_can_be_read_from_the_table(
    keepers: list[Authenticator], database: Database
) -> None:
    await keepers[0].refuse("password", HERE, "root@corp.example")
    rows = await database.fetch("SELECT place FROM pillarbox.auth_failures")
    assert len(rows) == 2
    assert all(len(row["place"]) == 16 for row in rows)
    assert not any(
        word in row["place"] for row in rows for word in (b"root", b"corp", HERE.encode())
    )


async def test_a_minute_later_all_is_forgotten(
    keepers: list[Authenticator], database: Database
) -> None:
    for _ in range(MOST + 1):
        await keepers[0].refuse("password", HERE, "root@corp.example")
    await database.execute(
        "UPDATE pillarbox.auth_failures SET began_at = now() - interval '61 seconds'"
    )
    assert isinstance(await keepers[1].refuse("password", HERE, "root@corp.example"), Unauthorized)
    assert set(await database.fetch("SELECT failures FROM pillarbox.auth_failures")) == {(1,)}
    await database.execute(
        "UPDATE pillarbox.auth_failures SET began_at = now() - interval '61 seconds'"
    )
    assert await auth_failures.purge(database, 1) == 1
    assert await auth_failures.purge(database, 100) == 1


async def test_guessing_does_not_fill_the_table(database: Database) -> None:
    now = 0.0
    shared = SharedFailures(database, KEY, lambda: now)
    await shared.add(*((f"{n}",) for n in range(100)))
    await database.execute(
        "UPDATE pillarbox.auth_failures SET began_at = now() - interval '61 seconds'"
    )
    now = 61.0
    await shared.add(("another",))
    assert await database.fetchval("SELECT count(*) FROM pillarbox.auth_failures") == 1


async def test_many_at_once_count_each(keepers: list[Authenticator], database: Database) -> None:
    await asyncio.gather(
        *(keeper.refuse("password", HERE, f"{n % 7}@x") for n in range(30) for keeper in keepers)
    )
    counts = [
        row["failures"]
        for row in await database.fetch("SELECT failures FROM pillarbox.auth_failures")
    ]
    assert (max(counts), sum(counts)) == (90, 180)


async def test_without_the_database_a_process_counts_for_itself(
    keepers: list[Authenticator], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise StoreError("PostgreSQL: cannot execute INSERT in a read-only transaction")

    monkeypatch.setattr(auth_failures, "add", away)
    for keeper in keepers[:2]:
        for _ in range(MOST):
            assert isinstance(
                await keeper.refuse("password", HERE, "root@corp.example"), Unauthorized
            )
        with pytest.raises(Throttled):
            keeper.throttle("password", HERE, "root@corp.example")


async def test_two_processes(database_url: str) -> None:
    """`serve` twice on one database: a key may be guessed as often as at one of them."""
    made = await asyncio.to_thread(
        Cli(database_url), "key", "add", "--name", "k", "--scope", "read"
    )
    headers = {"Authorization": f"Bearer {wrong(made.out.strip())}"}
    env = {"PILLARBOX_DATABASE_URL": database_url, "PILLARBOX_AUTH_FAILURES_PER_MINUTE": str(MOST)}
    options = ("serve", "--roles", "api", "--http", "127.0.0.1:0")
    with process(*options, env=env) as first, process(*options, env=env) as second:
        printed = [await asyncio.to_thread(one.wait_for, "Ctrl-C") for one in (first, second)]
        urls = [
            match[0] for match in (re.search(r"http://[^/]+/", text) for text in printed) if match
        ]
        async with aiohttp.ClientSession(headers=headers) as session:

            async def ask(url: str) -> int:
                async with session.get(url + "api/v1/messages") as found:
                    return found.status

            assert len(urls) == 2
            assert [await ask(urls[n % 2]) for n in range(MOST + 4)] == [401] * MOST + [429] * 4
