"""Tokens that could not be mailed: refused at once by `issue_token`, set aside at once by triggers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pillarbox.errors import InvalidMail, NotFound
from pillarbox.lifecycle.rendering import Templates
from pillarbox.store.database import Database
from pillarbox.store.lifecycle import TokenStore
from tests.integration.lifecycle.collector_helpers import (
    activate,
    collecting,
    collector,
    issue,
    mailed,
    outcomes,
    until,
)
from tests.integration.lifecycle.lifecycle_helpers import add_token, install, new_account

TOKENS = TokenStore("lifecycle")


@pytest.fixture(autouse=True)
async def installed(database: Database) -> None:
    await install(database)


async def account(database: Database, login: str = "ada", **columns: Any) -> int:
    """An active account without a token."""
    given = {"email": f"{login}@mail.example", "login": login} | columns
    number = await new_account(database, **given)
    await activate(database, number)
    return number


async def registered(database: Database) -> dict[str, bool]:
    rows = await database.fetch(
        "SELECT portal || '/' || kind AS name, available FROM lifecycle.templates"
    )
    return {row["name"]: row["available"] for row in rows}


async def problems(database: Database) -> dict[str, Any]:
    """Why the tokens of each login wait."""
    rows = await database.fetch(
        "SELECT a.login, l.outcome, l.problem FROM lifecycle.token_log l JOIN lifecycle.accounts a ON a.id = l.account"
    )
    return {row["login"]: (row["outcome"], row["problem"]) for row in rows}


def write_template(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "en.subject").write_text("Hello\n")
    (folder / name / "en.txt").write_text("Hello {{ account.name }}\n")


async def test_a_collector_registers_its_templates(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    write_template(tmp_path, "shop/welcome")
    async with collector(database_url, template_dirs=tmp_path):
        assert await registered(database) == dict.fromkeys(Templates([tmp_path]).names(), True)
    shutil.rmtree(tmp_path / "shop")
    async with collector(database_url, template_dirs=tmp_path):
        found = await registered(database)
        assert [name for name, available in found.items() if not available] == ["shop/welcome"]


async def test_several_register_at_once(database: Database, database_url: str) -> None:
    names = Templates().names()
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(TOKENS.register_templates(database, names))
    assert len(await registered(database)) == len(names)
    assert await TOKENS.register_templates(database, names) == 0


async def test_a_running_collector_registers_what_came_and_went(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    ada = await account(database, portal="shop")
    settings = {"template_dirs": tmp_path, "worker_poll_interval": "100ms"}
    async with collecting(database_url, **settings):
        async with asyncio.timeout(60):
            while not await registered(database):
                await asyncio.sleep(0.05)
        with pytest.raises(NotFound, match="portal shop"):
            await TOKENS.issue(database, ada, "welcome")
        write_template(tmp_path, "shop/welcome")
        async with asyncio.timeout(60):
            while not (await registered(database)).get("shop/welcome"):
                await asyncio.sleep(0.05)
        await issue(database, ada, "welcome")
        await until(database, 60, mailed=1)
        shutil.rmtree(tmp_path / "shop")
        async with asyncio.timeout(60):
            while (await registered(database))["shop/welcome"]:
                await asyncio.sleep(0.05)


async def test_a_token_that_could_not_be_mailed_is_refused(
    database: Database, database_url: str
) -> None:
    known = await account(database)
    lost = await account(database, "lost", portal="nowhere")
    broken = await account(database, "broken", email="not an address")
    async with collector(database_url):
        pass
    await database.execute(
        "INSERT INTO lifecycle.actions (name, path) VALUES ('close_account', '/close')"
    )
    for number, action, state, code, field in (
        (lost, "welcome", "PB404", "unknown_portal", "portal"),
        (known, "close_account", "PB404", "unknown_template", "action"),
        (broken, "welcome", "PB400", "bad_address", "email"),
    ):
        with pytest.raises(asyncpg.PostgresError) as told:
            await issue(database, number, action)
        assert (told.value.sqlstate, told.value.constraint_name, told.value.column_name) == (
            state,
            code,
            field,
        )
        assert told.value.hint
        assert "not an address" not in str(told.value)
    with pytest.raises(NotFound, match="template list"):
        await TOKENS.issue(database, lost, "welcome")
    with pytest.raises(InvalidMail, match="not a legal e-mail address"):
        await TOKENS.issue(database, broken, "welcome")
    assert await outcomes(database) == {}
    assert await issue(database, known, "welcome")


async def test_an_account_is_inserted_whatever_becomes_of_its_mail(
    database: Database, database_url: str
) -> None:
    async with collector(database_url) as (_, one):
        await new_account(database, email="ada@mail.example", login="fine")
        await new_account(database, email="bob@mail.example", login="lost", portal="nowhere")
        await new_account(database, email="not an address", login="broken")
        found = await problems(database)
        assert found.pop("fine") == ("waiting", None)
        assert found == {
            "lost": ("set_aside", "portal: no collector has templates of the portal nowhere"),
            "broken": ("set_aside", "email: not a legal e-mail address"),
        }
        await one.run_once(asyncio.Event())
        assert await outcomes(database) == {"mailed": 1, "set_aside": 2}
        await database.execute(
            "UPDATE lifecycle.accounts SET portal = 'hub', email = login || '@mail.example'"
        )
        await TOKENS.retry_set_aside(database)
        await one.run_once(asyncio.Event())
        assert await outcomes(database) == {"mailed": 3}
        assert set(await mailed(database)) == {
            "ada@mail.example",
            "lost@mail.example",
            "broken@mail.example",
        }


async def test_an_inserted_token_is_set_aside_at_once(
    database: Database, database_url: str
) -> None:
    lost = await account(database, "lost", portal="nowhere")
    async with collector(database_url):
        await add_token(database, lost, "welcome")
    assert (await problems(database))["lost"][0] == "set_aside"


async def test_before_a_collector_has_started_nothing_is_known_of_templates(
    database: Database,
) -> None:
    lost = await account(database, "lost", portal="nowhere")
    broken = await account(database, "broken", email="not an address")
    assert await issue(database, lost, "welcome")
    assert (await problems(database))["lost"] == ("waiting", None)
    with pytest.raises(InvalidMail):
        await TOKENS.issue(database, broken, "welcome")
