"""A whole sign-in with a real `pillarbox up`: its captured mails, its HTTP door, and the command line beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import asyncpg
import pytest
from tests import PATIENCE
from tests.harness import eventually
from tests.integration.cli.cli_helpers import Cli, Process, process
from tests.integration.lifecycle.lifecycle_helpers import code_in, wrong
from tests.places import data_directory

from pillarbox.lifecycle.constant_time import DEFAULT_INTERVAL
from pillarbox.store.embedded import EmbeddedPostgres

PASSWORD = "seven green chairs"


class Server(NamedTuple):
    """A running `pillarbox up`, and the command on its database."""

    up: Process
    database_url: str
    url: str
    http: aiohttp.ClientSession

    async def cli(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints: in this process, which is another than the server's."""
        answer = await asyncio.to_thread(Cli(self.database_url), *arguments, stdin=stdin)
        return answer.out

    async def post(
        self, path: str, body: Any = None, session: str | None = None
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {session}"} if session else {}
        async with self.http.post(f"{self.url}api/v1{path}", json=body, headers=headers) as answer:
            return answer.status, await answer.json(
                content_type=None
            ) if await answer.read() else None

    async def get(self, path: str, session: str) -> int:
        async with self.http.get(
            f"{self.url}api/v1{path}", headers={"Authorization": f"Bearer {session}"}
        ) as answer:
            return answer.status

    async def query(self, sql: str, *values: Any) -> list[Any]:
        connection = await asyncpg.connect(self.database_url)
        try:
            return list(await connection.fetch(sql, *values))
        finally:
            await connection.close()

    async def captured(self, *recipients: str) -> list[int]:
        """The numbers of the captured mails to these."""
        rows = await self.query(
            "SELECT id FROM pillarbox.captured WHERE recipients && $1 ORDER BY id", recipients
        )
        return [row["id"] for row in rows]

    async def code(self, recipient: str) -> str:
        """The code in the mail to somebody, as a person reads it."""
        [number] = await eventually(lambda: self.captured(recipient), PATIENCE)
        text = await self.cli("captured", "show", str(number), "--text")
        return code_in(text)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Process, Path]]:
    """One for all tests here, and its data directory, with a short path: each has people of its own."""
    ports = ("--http", "127.0.0.1:0", "--smtp", "127.0.0.1:0")
    with data_directory() as data, process("up", "--data", str(data), *ports) as up:
        up.wait_for("Ctrl-C")
        yield up, data
        up.signal()
        assert up.end() == 0


@pytest.fixture
async def server(running: tuple[Process, Path]) -> AsyncIterator[Server]:
    up, data = running
    url = next(word for word in up.output.split() if word.startswith("http://"))
    async with aiohttp.ClientSession() as http:
        yield Server(up, EmbeddedPostgres(data / "postgres").url(), url, http)


async def administrator(server: Server, email: str) -> dict[str, str]:
    """A new one, as they log in."""
    await server.cli("admin", "create", email, "--password-stdin", stdin=PASSWORD)
    return {"email": email, "password": PASSWORD}


async def test_an_administrator_signs_in(server: Server) -> None:
    email = "root@example.com"
    login = await administrator(server, email)
    assert (await server.post("/admin/login", login | {"password": PASSWORD + "!"}))[0] == 401
    status, begun = await server.post("/admin/login", login)
    assert status == 202
    code = await server.code(email)
    challenge = begun["challenge"]
    assert (await server.post("/admin/verify", {"challenge": challenge, "code": wrong(code)}))[
        0
    ] == 422
    status, began = await server.post("/admin/verify", {"challenge": challenge, "code": code})
    assert status == 200
    session = began["session"]
    assert await server.get("/admin/tenants", session) == 200
    assert await server.get("/messages", session) == 403
    await server.cli(
        "admin", "disable", email, "--yes"
    )  # in another process, and at once in this one
    assert await server.get("/admin/tenants", session) == 401
    await server.cli("admin", "enable", email)
    session = (await server.cli("admin", "sign-in", email, "--yes")).strip()
    assert await server.get("/admin/tenants", session) == 200
    assert (await server.post("/admin/logout", session=session))[0] == 204
    assert await server.get("/admin/tenants", session) == 401
    for secret in (code, session, began["session"], PASSWORD, challenge):
        assert secret not in server.up.output


async def test_recovery_codes_get_in_when_mail_is_broken(server: Server) -> None:
    email = "second@example.com"
    login = await administrator(server, email)
    codes = (await server.cli("admin", "recovery-codes", email, "--yes")).split()
    await server.cli("provider", "disable", "capture")
    try:
        _, begun = await server.post("/admin/login", login)
        proof = {"challenge": begun["challenge"], "recovery_code": codes[3]}
        status, began = await server.post("/admin/verify", proof)
        assert status == 200
        assert await server.get("/admin/tenants", began["session"]) == 200
        _, begun = await server.post("/admin/login", login)
        assert (await server.post("/admin/verify", proof | {"challenge": begun["challenge"]}))[
            0
        ] == 422
    finally:
        await server.cli("provider", "enable", "capture")


async def with_accounts(server: Server, *emails: str) -> None:
    query = "INSERT INTO lifecycle.accounts (email, login, status) SELECT e, e, 'active' FROM unnest($1::text[]) e"
    await server.query(query, emails)


async def test_a_person_with_an_account_signs_in_and_a_guesser_does_not(server: Server) -> None:
    await with_accounts(server, "ada@mail.example", "bob@mail.example")
    status, begun = await server.post("/sign-in", {"email": "Ada@mail.example"})
    assert status == 202
    code = await server.code("ada@mail.example")
    assert (await server.post("/sign-in", {"email": "ada@mail.example"}))[1]["challenge"] == begun[
        "challenge"
    ]
    status, verified = await server.post(
        "/sign-in/verify", {"challenge": begun["challenge"], "code": code}
    )
    assert (status, verified["account"]["email"]) == (200, "ada@mail.example")
    _, begun = await server.post("/sign-in", {"email": "bob@mail.example"})
    code = await server.code("bob@mail.example")
    guesses = [f"{(int(code) + n) % 10**6:06}" for n in range(1, 51)]
    answers = await asyncio.gather(
        *(
            server.post("/sign-in/verify", {"challenge": begun["challenge"], "code": one})
            for one in guesses
        )
    )
    assert {status for status, _ in answers} == {422}
    assert sum(not answer["void"] for _, answer in answers) == 4
    status, answer = await server.post(
        "/sign-in/verify", {"challenge": begun["challenge"], "code": code}
    )
    assert (status, answer["void"]) == (422, True)  # the right one comes too late
    assert (
        len(await server.captured("ada@mail.example"))
        == len(await server.captured("bob@mail.example"))
        == 1
    )


async def test_nobody_learns_who_has_an_account(server: Server) -> None:
    known = [f"known{n}@mail.example" for n in range(8)]
    await with_accounts(server, *known)
    times: dict[bool, list[float]] = {True: [], False: []}
    answers = set()
    await server.post("/sign-in", {"email": "first@mail.example"})
    for email in known:
        for asked in (email, email.replace("known", "other")):
            begun = time.perf_counter()
            status, answer = await server.post("/sign-in", {"email": asked})
            times[asked == email].append(time.perf_counter() - begun)
            answers.add((status, tuple(answer), len(answer["challenge"]), answer["expires_in"]))
    assert answers == {(202, ("challenge", "expires_in"), 43, 600)}
    assert min(times[True] + times[False]) >= DEFAULT_INTERVAL - 0.01

    async def all_there() -> bool:
        return len(await server.captured(*known)) == len(known)

    await eventually(all_there, PATIENCE)
    assert (
        await server.captured(
            "first@mail.example", *(email.replace("known", "other") for email in known)
        )
        == []
    )
