"""The page /recover sets a new password by the application's endpoint; the link counts only once that accepted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillarbox.errors import SettingsError
from pillarbox.lifecycle.signing import secret_of
from pillarbox.settings import load
from pillarbox.store.lifecycle import TokenStore
from pillarbox.testing.webhook_receiver import WebhookReceiver
from tests.integration.lifecycle.lifecycle_helpers import wrong
from tests.integration.lifecycle.link_helpers import Answer, Link, Town, recovering, town_of

SECRET = base64.b64encode(bytes(range(32))).decode()
PASSWORD = "correct horse 7 battery & staple"


@pytest.fixture
async def endpoint() -> AsyncIterator[WebhookReceiver]:
    """The application's endpoint."""
    async with WebhookReceiver(secrets=[f"whsec_{SECRET}"]) as receiver:
        yield receiver


@pytest.fixture
async def town(database_url: str, endpoint: WebhookReceiver) -> AsyncIterator[Town]:
    hook = {
        "recovery_hook_url": endpoint.url,
        "recovery_hook_secret": SECRET,
        "recovery_hook_timeout": "20s",
    }
    async with town_of(database_url, **hook) as town:
        yield town


async def submit(town: Town, link: Link, code: str | None = None, **fields: str) -> Answer:
    """Press the button of the page, as a browser without JavaScript does."""
    typed = {"code": code or link.code, "password": PASSWORD, "password_again": PASSWORD} | fields
    headers = {"Accept": "text/html,*/*", "Origin": "null", "Sec-Fetch-Site": "same-origin"}
    return await town.ask("POST", link.path, data=link.fields() | typed, headers=headers)


async def test_a_person_sets_a_new_password(town: Town, endpoint: WebhookReceiver) -> None:
    link = await recovering(town)
    page = await town.open(link)
    assert page.status == 200
    assert page.text.count(' type="password"') == 2
    assert "<script" not in page.text
    assert not endpoint.calls
    done = await submit(town, link)
    assert (done.status, "Your password is changed" in done.text) == (200, True)
    [call] = endpoint.calls
    account = {"id": link.account, "login": "ada", "email": f"{b'ada'.hex()}@mail.example"}
    assert call.type == "account.password_recovery"
    assert call.data == {"account": account, "token": link.id, "password": PASSWORD}
    assert await town.consumed(link)
    assert "used before" in (await submit(town, link)).text
    assert len(endpoint.calls) == 1


async def test_programs_do_it_with_json(town: Town, endpoint: WebhookReceiver) -> None:
    link = await recovering(town)
    shown = await town.ask("GET", link.address, headers={"Accept": "application/json"})
    assert shown.json["with_password"] is True
    answer = await town.use(link, code=link.code, password=PASSWORD)
    assert (answer.status, answer.json["action"]) == (200, "password_recovery")
    assert endpoint.calls[0].data["password"] == PASSWORD


async def test_a_refusal_is_shown_and_the_link_still_works(
    town: Town, endpoint: WebhookReceiver
) -> None:
    link = await recovering(town)
    endpoint.dials.status, endpoint.dials.body = (
        422,
        '{"detail": "At least <b>20</b> characters, please."}',
    )
    refused = await submit(town, link)
    assert refused.status == 422
    assert "At least &lt;b&gt;20&lt;/b&gt; characters, please." in refused.text
    assert PASSWORD not in refused.text
    assert (
        f'name="code" value="{link.code}"' in refused.text
    )  # only the password is asked for again
    program = await town.use(link, code=link.code, password=PASSWORD)
    assert (program.status, program.json["type"]) == (422, "/problems/password")
    assert not await town.consumed(link)
    endpoint.dials.body = "not JSON"
    assert "This password was not accepted" in (await submit(town, link)).text
    endpoint.dials.status = 204
    assert (await submit(town, link)).status == 200
    assert await town.consumed(link)


@pytest.mark.parametrize(
    "dials", [{"status": 500}, {"status": 404}, {"redirect": "http://127.0.0.1:9/"}, {"drop": True}]
)
async def test_what_the_endpoint_does_not_do_uses_nothing(
    town: Town, endpoint: WebhookReceiver, dials: dict[str, Any]
) -> None:
    link = await recovering(town)
    for name, value in dials.items():
        setattr(endpoint.dials, name, value)
    answer = await submit(town, link)
    assert (answer.status, "it still works" in answer.text) == (503, True)
    assert not await town.consumed(link)
    for name in dials:
        setattr(endpoint.dials, name, {"status": 200, "redirect": None, "drop": False}[name])
    assert (await submit(town, link)).status == 200


async def test_a_wrong_code_is_counted_and_the_endpoint_hears_nothing(
    town: Town, endpoint: WebhookReceiver
) -> None:
    link = await recovering(town)
    for tried in range(5):
        answer = await submit(town, link, wrong(link.code))
        assert ("That is not the code" in answer.text) == (tried < 4)
    assert "Too many wrong codes" in (await submit(town, link)).text
    assert not endpoint.calls


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"password_again": "another"}, "are not the same"),
        ({"password": "", "password_again": ""}, "was not accepted"),
        ({"password": "x" * 257, "password_again": "x" * 257}, "was not accepted"),
        ({"password": "a\nb", "password_again": "a\nb"}, "was not accepted"),
    ],
)
async def test_what_is_no_password_reaches_nobody(
    town: Town, endpoint: WebhookReceiver, fields: dict[str, str], said: str
) -> None:
    link = await recovering(town)
    answer = await submit(town, link, **fields)
    assert (answer.status, said in answer.text) == (422, True)
    assert not endpoint.calls
    assert not await town.consumed(link)
    assert (
        await town.database.fetchval(
            "SELECT wrong_codes FROM lifecycle.tokens WHERE id = $1", link.id
        )
        == 0
    )


async def test_two_at_once_set_one_password(town: Town, endpoint: WebhookReceiver) -> None:
    link = await recovering(town)
    answers = await asyncio.gather(*(submit(town, link) for _ in range(5)))
    assert [one.status for one in answers].count(200) == 1
    assert len(endpoint.calls) == 1


async def test_a_link_that_was_used_is_kept_for_nobody(
    town: Town, endpoint: WebhookReceiver
) -> None:
    """Else one who looked at it before, and comes after, would have another password set."""
    link = await recovering(town)
    tokens, secret = TokenStore("lifecycle"), secret_of(link.token)
    assert await tokens.reserve(town.database, secret, "password_recovery", 60)
    assert not await tokens.reserve(town.database, secret, "password_recovery", 60)
    busy = await submit(town, link)
    assert (busy.status, endpoint.calls) == (503, [])
    await tokens.let_go(town.database, secret, "password_recovery")
    assert (await submit(town, link)).status == 200
    assert not await tokens.reserve(town.database, secret, "password_recovery", 60)


async def test_the_password_is_neither_kept_nor_logged(
    town: Town, endpoint: WebhookReceiver, capfd: pytest.CaptureFixture[str]
) -> None:
    link = await recovering(town)
    for status in (500, 422, 200):
        endpoint.dials.status = status
        await submit(town, link)
    assert PASSWORD not in "".join(capfd.readouterr())
    tables = await town.database.fetch(
        "SELECT format('%I.%I', table_schema, table_name) AS name FROM information_schema.tables"
        " WHERE table_schema IN ('pillarbox', 'lifecycle') AND table_type = 'BASE TABLE'"
    )
    for table in tables:
        query = f"SELECT count(*) FROM {table['name']} t WHERE strpos(t::text, 'correct horse') > 0"
        assert await town.database.fetchval(query) == 0


async def test_other_pages_ask_for_no_password(town: Town, endpoint: WebhookReceiver) -> None:
    link = await town.link(await town.account("bob"))
    assert ' type="password"' not in (await town.open(link)).text
    refused = await town.use(link, password=PASSWORD)
    assert (refused.status, refused.json["field"]) == (422, "password")
    assert (await town.use(link)).status == 200
    assert not endpoint.calls


async def test_without_a_hook_the_page_says_who_sets_the_password(database_url: str) -> None:
    async with town_of(database_url) as town:
        link = await recovering(town)
        page = await town.open(link)
        assert ' type="password"' not in page.text
        assert "You then choose a new password at Hub, not here." in page.text
        assert (await town.use(link, code=link.code, password=PASSWORD)).status == 422
        assert "there you choose a new password" in (await town.submit(link, code=link.code)).text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"recovery_hook_url": "https://shop.example/hook"}, "recovery_hook_secret"),
        (
            {"recovery_hook_url": "http://shop.example/hook", "recovery_hook_secret": SECRET},
            "https://",
        ),
        ({"recovery_hook_url": "shop.example", "recovery_hook_secret": SECRET}, "must be a URL"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load({}, overrides=given)
