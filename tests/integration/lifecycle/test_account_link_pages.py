"""The pages behind links, over HTTP: bodies, hosts, headers, languages, looks, and where there are any at all."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pillarbox.api.accounts import MAX_BYTES
from pillarbox.app import build_collector
from pillarbox.errors import ExpiredToken, ForgedToken
from pillarbox.lifecycle import signing
from pillarbox.store import lifecycle_schema
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.lifecycle import TokenStore
from tests.harness import eventually
from tests.integration.lifecycle.lifecycle_helpers import KEY, wrong
from tests.integration.lifecycle.link_helpers import PATHS, Town, recovering, town_of

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture
async def town(database_url: str) -> AsyncIterator[Town]:
    async with town_of(database_url) as town:
        yield town


# --- bodies, hosts, headers


async def test_bodies_are_bounded(town: Town) -> None:
    link = await town.link(await town.account())
    for body in (b"token=" + b"A" * MAX_BYTES, b'{"token": "' + b"A" * MAX_BYTES + b'"}'):
        kind = "application/json" if body.startswith(b"{") else "application/x-www-form-urlencoded"
        assert (
            await town.ask("POST", link.path, data=body, headers={"Content-Type": kind})
        ).status == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await town.ask("POST", link.path, data=chunks(), headers=form)).status == 413


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"nonsense", 400), ("application/json", b"[]", 422), ("application/json", b"\xff", 400),
        ("application/json", b'{"token": 5}', 422), ("application/json", b'{"token": "x", "admin": true}', 422),
        ("text/plain", b"token=x", 415), ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/x-www-form-urlencoded", b"&" * 200, 400), ("application/x-www-form-urlencoded", b"\xff%ff", 422),
        ("application/x-www-form-urlencoded", b"&".join([b"a=b"] * 100), 400),
    ],
)  # fmt: skip
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_strange_bodies(town: Town, kind: str, body: bytes, status: int, accept: str) -> None:
    answer = await town.ask(
        "POST", "/activate", data=body, headers={"Content-Type": kind, "Accept": accept}
    )
    assert answer.status == status
    assert answer.headers["content-type"].startswith(
        "text/html" if accept == "text/html" else "application/problem+json"
    )


async def test_what_mail_programs_add_to_links_does_no_harm(town: Town) -> None:
    link = await town.link(await town.account())
    assert (await town.open(f"{link.address}&utm_source=mail&fbclid=x&token=y")).status == 200


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_headers(town: Town, accept: str) -> None:
    link = await town.link(await town.account())
    asked = {"Accept": accept}
    answers = [
        await town.ask("GET", link.address, headers=asked),
        await town.ask("GET", "/activate?token=x", headers=asked),
        await town.ask("POST", "/activate", data=link.fields(), headers=asked),
        await town.ask("PUT", "/activate", headers=asked),
    ]
    for answer in answers:
        for name, value in {
            "cache-control": "no-store", "referrer-policy": "no-referrer", "x-robots-tag": "noindex, nofollow",
            "x-content-type-options": "nosniff", "x-frame-options": "DENY",
        }.items():  # fmt: skip
            assert answer.headers.getall(name) == [value]
        (policy,) = answer.headers.getall("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert accept != "text/html" or "form-action 'self'" in policy
        assert "set-cookie" not in answer.headers


async def test_hosts_and_origins(database_url: str) -> None:
    async with town_of(database_url, http_hosts="mail.shop.example") as town:
        link = await town.link(await town.account())
        assert (await town.open(link, Host="mail.shop.example")).status == 200
        assert (await town.open(link, Host="evil.example")).status == 421
        foreign = {"Host": "mail.shop.example", "Origin": "https://evil.example"}
        assert (await town.submit(link, **foreign)).status == 403
        assert not await town.consumed(link)
        ours = {"Host": "mail.shop.example", "Origin": "https://mail.shop.example"}
        assert (await town.submit(link, **ours)).status == 200
        assert (
            await town.ask("POST", "/api/v1/messages", json={}, headers={"Origin": "null"})
        ).status == 403


# --- what is shown


@pytest.mark.parametrize("column", ["login", "name"])
async def test_nobody_runs_anything_by_a_name(town: Town, column: str) -> None:
    account = await town.account(**{"login": "ada"} | {column: HOSTILE}, status="active")
    link = await town.link(account, "password_recovery")
    pages = [
        await town.open(link),
        await town.submit(link, code=wrong(link.code)),
        await town.submit(link, code=link.code),
    ]
    assert "&lt;script&gt;" in pages[0].text
    for page in [
        *pages,
        await town.open(f"/activate?token={HOSTILE}&expires={HOSTILE}"),
        await town.open(link),
    ]:
        assert "<script" not in page.text


@pytest.mark.parametrize(
    ("locale", "accepted", "words"),
    [
        ("de-AT", "en", "Konto aktivieren"), (None, "de-CH,en;q=0.5", "Konto aktivieren"),
        ("en", "de", "Activate your account"), (None, "fr", "Activate your account"),
        ("fr", "de", "Konto aktivieren"),
    ],
)  # fmt: skip
async def test_languages(town: Town, locale: str | None, accepted: str, words: str) -> None:
    link = await town.link(await town.account(locale=locale))
    page = await town.open(link, **{"Accept-Language": accepted})
    assert words in page.text
    language = "de" if "Konto" in words else "en"
    assert f'<html lang="{language}">' in page.text
    assert page.headers["content-language"] == language
    forged = await town.open("/activate?token=x", **{"Accept-Language": accepted})
    assert ("Dieser Link ist nicht gültig" in forged.text) is (accepted.startswith("de"))


async def test_every_portal_has_its_own_look(town: Town) -> None:
    looks = []
    for portal in ("hub", "org", "agency", "nobodys"):
        page = await town.open(await town.link(await town.account(portal, portal=portal)))
        assert page.status == 200
        looks.append(page.text[page.text.index("--accent:") :][:20])
        assert portal in page.text.lower()
    assert len(set(looks)) == 4


# --- from the account to the link, and where there is one


@pytest.mark.parametrize(
    ("action", "status"), [("activation", "provisioned"), ("password_recovery", "active")]
)
async def test_the_link_in_the_mail(town: Town, action: str, status: str) -> None:
    """What the collector writes is what the pages take, code and all."""
    await town.database.execute("UPDATE pillarbox.tenants SET default_sender = 'hub@mail.example'")
    account = await town.account(status=status)
    signed = await town.link(account, action)
    await (await build_collector(town.app)).run_once(asyncio.Event())
    text = await town.database.fetchval("SELECT text FROM pillarbox.contents")
    found = re.search(r"https?://[^/\s]+(/\S+[?]token=\S+)", text)
    assert found, text
    assert found[1] == signed.address
    assert (await town.open(found[1])).status == 200
    if action == "password_recovery":
        assert signed.code in text
    assert (await town.submit(signed, code=signed.code)).status == 200


async def test_nothing_is_there_without_the_schema_until_it_is_installed(database_url: str) -> None:
    async with town_of(database_url, installed=False) as town:
        for path in PATHS:
            answer = await town.ask("GET", f"{path}?token=x")
            assert (answer.status, answer.json["type"]) == (404, "/problems/not-found")
            assert (await town.ask("POST", path, data={"token": "x"})).status == 404
        async with town.database.connection() as connection:
            await lifecycle_schema.install(connection, "lifecycle")

        async def is_there() -> bool:
            return (await town.open("/activate")).status == 422

        await eventually(is_there)


async def test_other_paths_answer_as_before(town: Town) -> None:
    assert (await town.ask("GET", "/nothing")).status == 404
    assert (await town.ask("POST", "/healthz", data={"token": "x"})).status == 405
    assert (await town.ask("GET", "/api/v1/activate")).status == 404


async def test_an_action_of_ones_own_has_a_page(town: Town) -> None:
    query = "INSERT INTO lifecycle.actions (name, path, eligible) VALUES ('close_account', '/accounts/close', '{active}')"
    await town.database.execute(query)
    account = await town.account(status="active")
    link = await town.link(account, "close_account")

    async def is_there() -> bool:
        return (await town.open(link)).status == 200

    await eventually(is_there)
    page = await town.open(link)
    assert "Please confirm" in page.text
    assert 'action="close"' in page.text
    answer = await town.use(link)
    assert answer.json == {
        "account": {"id": account, "login": "ada", "status": "active"},
        "action": "close_account",
    }


async def test_another_name_for_the_schema(database_url: str) -> None:
    async with town_of(database_url, lifecycle_schema="people") as town:
        link = await town.link(await town.account())
        assert (await town.open(link)).status == 200
        assert (await town.use(link)).status == 200


async def test_without_keys_nothing_can_be_verified(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever runs the installation is told why, in the log; a person is told to come back."""
    async with town_of(database_url, lifecycle_keys=None) as town:
        answer = await town.open(await town.link(await town.account()))
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert "We cannot check this now" in answer.text
    assert "PILLARBOX_LIFECYCLE_KEYS" not in answer.text
    assert "PILLARBOX_LIFECYCLE_KEYS" in "".join(capsys.readouterr())


async def test_it_works_again_when_the_database_is_back(stoppable: EmbeddedPostgres) -> None:
    async with town_of(stoppable.url()) as town:
        link = await town.link(await town.account())
        await asyncio.to_thread(stoppable.stop, "immediate")
        assert (await town.use(link)).status == 503
        await asyncio.to_thread(stoppable.start)

        async def works() -> bool:
            return (await town.use(link)).status == 200

        await eventually(works)
        assert await town.status(link.account) == "active"


async def test_uses_and_failures_are_counted(town: Town) -> None:
    link = await town.link(await town.account())
    await town.use(link._replace(token="A" * 86))
    await town.use(link)
    metrics = town.app.metrics.render().decode()
    assert 'pillarbox_authentications_total{kind="link",result="accepted"} 1.0' in metrics
    assert 'pillarbox_authentications_total{kind="link",result="refused"} 1.0' in metrics
    assert 'route="/activate"' in metrics
    assert link.token not in metrics


# --- an application's own page, as the guide has it

GUIDE = Path(__file__).parents[3] / "docs/how-to/lifecycle-mails.md"


@pytest.fixture
async def role(database: Database) -> AsyncIterator[str]:
    """A role that may do what `pillarbox grant --app` grants, and has a table of its own."""
    name = f"app_{uuid4().hex[:8]}"
    await database.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER PASSWORD '{name}'")
    await database.execute("CREATE TABLE public.users (account bigint, password text)")
    await database.execute(f"GRANT SELECT, INSERT, UPDATE ON public.users TO {name}")
    yield name
    await database.execute(f"DROP OWNED BY {name}")
    await database.execute(f"DROP ROLE {name}")


async def test_the_guides_own_page(
    town: Town, role: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINK_KEYS", b64encode(bytes.fromhex(KEY)).decode())
    blocks = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (source,) = [one for one in blocks if "def reset_password" in one]
    guide: dict[str, Any] = {}
    exec(compile(source, "guide", "exec"), guide)
    async with town.database.connection() as connection:
        await TokenStore("lifecycle").grant(connection, role)
    link = await recovering(town)
    await town.database.execute("INSERT INTO public.users VALUES ($1, 'old')", link.account)

    def reset(token: str, expires: str, code: str) -> bool:
        with psycopg.connect(database_url, user=role, password=role) as application:
            return bool(guide["reset_password"](application, token, expires, code, "new"))

    async def password() -> str:
        return str(await town.database.fetchval("SELECT password FROM public.users"))

    assert await asyncio.to_thread(reset, link.token, link.expires, wrong(link.code)) is False
    assert (
        await town.database.fetchval(
            "SELECT wrong_codes FROM lifecycle.tokens WHERE id = $1", link.id
        )
        == 1
    )
    with pytest.raises(ForgedToken):
        await asyncio.to_thread(reset, "A" * 86, link.expires, link.code)
    late = signing.sign_expiry(link.token, 1, bytes.fromhex(KEY))
    with pytest.raises(ExpiredToken):
        await asyncio.to_thread(reset, link.token, late, link.code)
    assert await password() == "old"
    assert await asyncio.to_thread(reset, link.token, link.expires, link.code) is True
    assert await password() == "new"
    with pytest.raises(psycopg.Error, match="used before"):
        await asyncio.to_thread(reset, link.token, link.expires, link.code)
    assert (await town.use(link, code=link.code)).reason == "used"
