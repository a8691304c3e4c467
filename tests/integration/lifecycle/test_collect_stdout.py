"""`pillarbox collect --stdout` as a process: the original's lines, its environment, and readers that go away."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import select
from collections.abc import Iterator

import pytest

from pillarbox.lifecycle.signing import verify
from pillarbox.store.database import Database
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.lifecycle.collector_helpers import (
    Running,
    accounts,
    activate,
    issue,
    outcomes,
    running,
    until,
)
from tests.integration.lifecycle.lifecycle_helpers import KEY, install

KEYS = [bytes.fromhex(KEY)]


@pytest.fixture(autouse=True)
async def _installed(database: Database) -> None:
    await install(database)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: its reading and its writing end."""
    ends = os.pipe()
    yield ends
    for one in ends:
        with contextlib.suppress(OSError):
            os.close(one)


async def read_lines(reader: int, count: int, seconds: float = PATIENCE) -> list[str]:
    """So many lines from a pipe; quoted line ends must not be in them."""
    os.set_blocking(reader, False)
    read = bytearray()

    async def there() -> bool:
        with contextlib.suppress(BlockingIOError):
            read.extend(os.read(reader, 1 << 20))
        return read.count(b"\n") >= count

    await eventually(there, seconds)
    return read.decode().splitlines()


def tokens_of(line: str) -> list[list[str]]:
    [row] = csv.reader(io.StringIO(line, newline=""), strict=True)
    return [row[place : place + 5] for place in range(0, len(row), 5)]


async def test_the_originals_lines_and_environment(
    database: Database, database_url: str, pipe: tuple[int, int]
) -> None:
    limits = {
        "MAILROOM_BATCH_LIMIT": "2",
        "MAILROOM_BATCH_TIMEOUT": "60000",
        "MAILROOM_HEALTHCHECK_INTERVAL": "1000",
    }
    names = {"MAILROOM_CHANNEL_NAME": "token_insert", "MAILROOM_QUEUE_NAME": "mailroom"}
    async with running(database_url, "--stdout", stdout=pipe[1], **limits, **names) as one:
        await one.says("collecting tokens")
        [account] = await accounts(database, 1)
        await issue(database, account, "activation")
        [line] = await read_lines(pipe[0], 1)
        [[number, email, login, secret, code]] = tokens_of(line)
        row = await database.fetchrow(
            "SELECT secret, code FROM lifecycle.tokens ORDER BY id DESC LIMIT 1"
        )
        assert row is not None
        assert (number, email, login, code) == ("1", "u1@mail.example", "u1", row["code"])
        assert verify(secret, "activation", None, KEYS) == row["secret"]
        await until(database, written=1, superseded=1)
        one.signal()
        assert await one.end() == 0
    assert await database.fetchval("SELECT count(*) FROM pillarbox.messages") == 0


async def test_a_login_with_commas_quotes_and_line_ends(
    database: Database, database_url: str, pipe: tuple[int, int]
) -> None:
    logins = ["a,b", 'say "hi"', "one\ntwo", '",\r\n,"', "plain"]
    for place, login in enumerate(logins):
        await database.execute(
            "INSERT INTO lifecycle.accounts (email, login) VALUES ($1, $2)",
            f"{place}@mail.example",
            login,
        )
    async with running(database_url, "--stdout", "--once", stdout=pipe[1]) as one:
        assert await one.end() == 0
    os.close(pipe[1])
    with open(pipe[0], newline="", encoding="utf-8", closefd=False) as file:
        [row] = csv.reader(file, strict=True)
    assert row[2::5] == logins
    assert row[1::5] == [f"{place}@mail.example" for place in range(5)]
    assert row[0::5] == ["1"] * 5
    secrets = await database.fetch("SELECT secret FROM lifecycle.tokens ORDER BY id")
    assert [verify(one, "activation", None, KEYS) for one in row[3::5]] == [
        each["secret"] for each in secrets
    ]


async def test_every_action_has_its_number(
    database: Database, database_url: str, pipe: tuple[int, int]
) -> None:
    [account] = await accounts(database, 1)
    await activate(database, account)
    for action in ("password_recovery", "email_verification", "welcome", "sign_in_code"):
        await issue(database, account, action)
    async with running(database_url, "--stdout", "--once", stdout=pipe[1]) as one:
        assert await one.end() == 0
    [line] = await read_lines(pipe[0], 1)
    by_number = {number: (secret, code) for number, _, _, secret, code in tokens_of(line)}
    assert set(by_number) == {"2", "3", "6", "7"}
    assert verify(by_number["2"][0], "password_recovery", by_number["2"][1], KEYS)
    assert verify(by_number["3"][0], "email_verification", None, KEYS)
    assert by_number["7"][0] == ""
    assert by_number["6"][0] == ""
    assert len(by_number["6"][1]) == 6, "made just now, as in a mail"


async def test_a_reader_that_is_gone_settles_nothing(
    database: Database, database_url: str, pipe: tuple[int, int]
) -> None:
    os.close(pipe[0])
    await accounts(database, 3)
    async with running(database_url, "--stdout", stdout=pipe[1]) as one:
        assert await one.end() == 1
        assert "the reader of standard output has gone" in one.said
        assert "Traceback" not in one.said
    assert await outcomes(database) == {"waiting": 3}


async def test_a_reader_that_does_not_read_holds_up_no_end(
    database: Database, database_url: str, pipe: tuple[int, int]
) -> None:
    """The batch is larger than the pipe: what was not written whole is not settled, and written again whole."""
    await accounts(database, 1000)
    begun = {"PILLARBOX_WORKER_DRAIN_TIMEOUT": "200ms"}
    async with running(
        database_url, "--stdout", "--batch-limit", "1000", stdout=pipe[1], **begun
    ) as one:
        await one.says("processing rows")
        await eventually(lambda: full(pipe[1]))
        one.signal()
        assert await one.end() == 1
    assert await outcomes(database) == {"waiting": 1000}
    rest = tokens_to_end(pipe)
    async with running(
        database_url, "--stdout", "--once", "--batch-limit", "1000", stdout=pipe[1]
    ) as two:
        [line] = await read_lines(pipe[0], 1)
        assert await two.end() == 0
    assert rest
    assert len(tokens_of(line)) == 1000
    assert await outcomes(database) == {"written": 1000}


async def full(writer: int) -> bool:
    return not select.select([], [writer], [], 0)[1]


def tokens_to_end(pipe: tuple[int, int]) -> bytes:
    """What is in a pipe now."""
    os.set_blocking(pipe[0], False)
    found = b""
    while True:
        try:
            found += os.read(pipe[0], 1 << 20)
        except BlockingIOError:
            return found


async def test_sigterm_ends_it_with_nothing_half_done(
    database: Database, database_url: str, pipe: tuple[int, int]
) -> None:
    """What was written is settled, and what waits is still there."""
    limits = {"MAILROOM_BATCH_LIMIT": "50", "MAILROOM_BATCH_TIMEOUT": "60000"}
    await accounts(database, 2000)
    async with running(database_url, "--stdout", stdout=pipe[1], **limits) as one:
        read = asyncio.create_task(read_lines(pipe[0], 5))
        await read
        one.signal()
        rest = asyncio.create_task(drain(pipe[0], one))
        assert await one.end() == 0
        lines = read.result() + (await rest).splitlines()
    written = [token for line in lines for token in tokens_of(line)]
    counts = await outcomes(database)
    assert counts["written"] == len(written) < 2000
    assert counts["waiting"] == 2000 - len(written)
    assert len({token[1] for token in written}) == len(written)


async def drain(reader: int, one: Running) -> str:
    """Read a pipe until its writer ended."""
    found = bytearray()
    while True:
        ended = one.has_ended
        try:
            found += os.read(reader, 1 << 20)
        except BlockingIOError:
            if ended:
                return found.decode()
            await asyncio.sleep(0.01)
