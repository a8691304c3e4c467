"""Behind proxies: locality grants nothing on `serve`; forwarded addresses are believed of trusted proxies alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from pillarbox.model.access import Scope
from tests.integration.api.api_helpers import Api, Client, api_of, new_key
from tests.integration.api.reverse_proxy import reverse_proxy
from tests.integration.cli.cli_helpers import Cli, Process, process

# What nobody may see without a key, and how it is refused.
CLOSED = {
    "/": 401, "/metrics": 401, "/captured": 403, "/captured/1": 403, "/api/v1/messages": 401,
    "/api/v1/admin/tenants": 401, "/api/v1/dlq": 401, "/api/v1/keys": 401,
}  # fmt: skip
PUBLIC = {"/healthz": 200, "/problems": 200, "/problems/unauthorized": 200}


async def statuses(
    session: aiohttp.ClientSession, url: str, paths: object, key: str | None = None
) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found = {}
    for path in paths:  # type: ignore[attr-defined]
        async with session.get(url + path, headers=headers) as answer:
            found[path] = answer.status
    return found


async def page(client: Client, path: str, **headers: str) -> int:
    async with client.session.get(f"{client.url}{path}", headers=headers) as answer:
        return answer.status


def url_of(serving: Process) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", serving.wait_for("http://127.0.0.1:"))
    assert found
    return found[0]


# --- what locality grants


@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_serve_grants_nothing_to_this_machine_nor_to_a_proxy(
    command: str, database_url: str
) -> None:
    """Also where `development` is on: no setting makes `serve` and `worker --http` trust an address."""
    env = {"PILLARBOX_DATABASE_URL": database_url, "PILLARBOX_DEVELOPMENT": "on"}
    options = ("--roles", "api") if command == "serve" else ()
    with process(command, *options, "--http", "127.0.0.1:0", env=env) as serving:
        serving_url = await asyncio.to_thread(port_told, serving)
        async with aiohttp.ClientSession() as session, reverse_proxy(serving_url) as proxy:
            for url in (serving_url, proxy):
                assert await statuses(session, url, CLOSED) == CLOSED
                assert await statuses(session, url, PUBLIC) == PUBLIC
                ready = await statuses(session, url, ["/readyz"])
                assert ready["/readyz"] in (
                    200,
                    503,
                )  # anybody may ask; a busy machine may not be ready
                async with session.post(f"{url}/webhooks/sendgrid/1", data=b"[]") as answer:
                    assert (
                        answer.status == 404
                    )  # no such provider: asked for a signature, not for a key
                async with session.post(
                    f"{url}/api/v1/messages", json={"to": "a@b.example"}
                ) as answer:
                    assert answer.status == 401


def port_told(serving: Process) -> str:
    """Where it listens: `serve` says so when it is ready, every process logs it."""
    printed = serving.wait_for("listening")
    found = re.search(r"listening.*?port\D+(\d+)", printed)
    assert found, printed
    return f"http://127.0.0.1:{found[1]}"


async def test_up_trusts_this_machine_and_says_so_until_keys_are_required(
    database_url: str, tmp_path: Path
) -> None:
    env = {
        "PILLARBOX_DATABASE_URL": database_url,
        "PILLARBOX_DEVELOPMENT": "on",
        "PILLARBOX_WORKER_ENABLED": "false",
    }
    key = await asyncio.to_thread(Cli(database_url), "key", "add", "--name", "k", "--scope", "read")
    async with aiohttp.ClientSession() as session:
        with process("up", "--http", "127.0.0.1:0", env=env) as up:
            printed = await asyncio.to_thread(up.wait_for, "Ctrl-C")
            assert "every process on this machine, a proxy included, has full access" in " ".join(
                printed.split()
            )
            async with reverse_proxy(
                url_of(up)
            ) as proxy:  # which is why the banner and the documentation say so
                found = await statuses(session, proxy, CLOSED)
                assert found == dict.fromkeys(CLOSED, 200) | {"/captured/1": 404}
        with process("up", "--require-key", "--http", "127.0.0.1:0", env=env) as up:
            printed = await asyncio.to_thread(up.wait_for, "Ctrl-C")
            assert "full access" not in printed
            async with reverse_proxy(url_of(up)) as proxy:
                for url in (url_of(up), proxy):
                    assert await statuses(session, url, CLOSED) == CLOSED
                    found = await statuses(session, url, ["/api/v1/messages"], key.out.strip())
                    assert found == {"/api/v1/messages": 200}
        with process(
            "up", "--require-key", "--http", "127.0.0.1:0", "--smtp", "127.0.0.1:0", env=env
        ) as up:
            assert up.end() == 1
            assert "mail without a login is for development" in up.output


# --- pages that tell about all tenants


async def test_the_status_page_is_for_administrators(api: Api) -> None:
    assert await page(api.nobody, "/") == 401
    assert await page(api.nobody, "/", Authorization=f"Bearer {api.shop.key}") == 403
    assert await page(api.nobody, "/", Authorization=f"Bearer {api.admin.key}") == 200
    assert await page(api.nobody, "/captured", Authorization=f"Bearer {api.admin.key}") == 403


async def test_metrics_need_a_key_of_their_own_or_an_administrators(api: Api) -> None:
    made = await api.admin.post("/admin/keys", {"name": "prometheus", "scopes": ["metrics"]})
    assert (made.status, made.json["scopes"], made.json["tenant"]) == (201, ["metrics"], None)
    scraper = api.nobody.using(made.json["secret"])
    bearer = {"Authorization": f"Bearer {scraper.key}"}
    assert await page(api.nobody, "/metrics", **bearer) == 200
    assert await page(api.nobody, "/metrics", Authorization=f"Bearer {api.admin.key}") == 200
    assert await page(api.nobody, "/metrics", Authorization=f"Bearer {api.shop.key}") == 403
    assert await page(api.nobody, "/metrics") == 401
    assert await page(api.nobody, "/", **bearer) == 403
    for path in ("/messages", "/keys", "/admin/tenants", "/dlq"):
        assert (await scraper.get(path)).status == 403
    assert (await scraper.send()).status == 403


async def test_a_metrics_key_is_of_no_tenant_and_can_nothing_else(api: Api) -> None:
    mixed = (["metrics", "admin"], ["metrics", "send"])
    for scopes in mixed:
        answer = await api.admin.post("/admin/keys", {"name": "k", "scopes": scopes})
        assert (answer.status, answer.json["code"]) == (422, "bad_scope")
    answer = await api.admin.post("/admin/tenants/shop/keys", {"name": "k", "scopes": ["metrics"]})
    assert (answer.status, answer.json["code"]) == (422, "bad_scope")
    assert (await api.shop.post("/keys", {"name": "k", "scopes": ["metrics"]})).status == 403


def test_the_command_makes_a_metrics_key(cli: Cli) -> None:
    made = cli.json("key", "add", "--name", "prometheus", "--scope", "metrics")
    assert (made["tenant"], made["scopes"]) == (None, ["metrics"])
    cli("key", "add", "--name", "p", "--scope", "metrics", "--tenant", "default", code=2)
    assert "bad_scope" not in cli("key", "list").out
    assert "(installation)" in cli("key", "list").out


async def test_metrics_may_be_opened(database_url: str) -> None:
    async with api_of(database_url, metrics_access="open") as api:
        assert await page(api.nobody, "/metrics") == 200
        assert await page(api.nobody, "/") == 401


async def test_in_development_headers_of_proxies_are_not_local(database_url: str) -> None:
    async with api_of(database_url, development="on", http_hosts="mail.example") as api:
        assert await page(api.nobody, "/captured") == 200
        for headers in ({"Host": "mail.example"}, {"X-Forwarded-For": "10.0.0.1"}):
            assert await page(api.nobody, "/captured", **headers) == 403
            assert await page(api.nobody, "/captured/1", **headers) == 403
            assert await page(api.nobody, "/", **headers) == 401


async def test_in_development_a_trusted_proxy_is_not_local(database_url: str) -> None:
    async with api_of(database_url, development="on", trusted_proxies="127.0.0.1") as api:
        assert (
            await page(api.nobody, "/") == 401
        )  # who is named as a proxy is no client on this machine


# --- forwarded addresses


async def failures(client: Client, count: int, **headers: str) -> list[int]:
    return [(await client.get("/messages", headers=headers)).status for _ in range(count)]


@pytest.mark.parametrize("header", ["X-Forwarded-For: {}", "Forwarded: for={};proto=https"])
async def test_failures_are_counted_for_the_client_behind_a_trusted_proxy(
    database_url: str, header: str
) -> None:
    settings = {"auth_failures_per_minute": 2, "trusted_proxies": "10.9.0.0/16, 127.0.0.1"}
    async with api_of(database_url, **settings) as api:
        token = await new_key(api.database, "shop", Scope.READ)
        wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
        async with (
            reverse_proxy(api.nobody.url, header.format("192.0.2.1")) as first,
            reverse_proxy(api.nobody.url, header.format("192.0.2.2")) as second,
        ):
            one, other = (
                Client(api.nobody.session, first, wrong),
                Client(api.nobody.session, second, wrong),
            )
            assert await failures(one, 4) == [401, 401, 429, 429]
            assert await failures(other, 3) == [401, 401, 429]
            assert (await other.using(api.shop.key).get("/messages")).status == 200


async def test_nobody_else_chooses_whose_failures_are_counted(database_url: str) -> None:
    async with api_of(
        database_url, auth_failures_per_minute=2, trusted_proxies="192.0.2.0/24"
    ) as api:
        wrong = api.nobody.using("pbx_aaaaaaaaaa_" + "A" * 43)
        spoofed = [
            {"X-Forwarded-For": f"198.51.100.{n}", "Forwarded": f"for=198.51.100.{n}"}
            for n in range(4)
        ]
        assert [(await failures(wrong, 1, **one))[0] for one in spoofed] == [401, 401, 429, 429]
