"""Webhooks through the API, the clients and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

import pillarbox
from pillarbox.errors import NotFound, PillarboxError
from pillarbox.model.access import Scope
from pillarbox.store import webhooks
from pillarbox.testing.webhook_receiver import ReceiverDials, WebhookReceiver
from tests.harness import enqueue
from tests.integration.api.api_helpers import Api, api_of
from tests.integration.cli.cli_helpers import Cli
from tests.integration.track.test_customer_webhooks import (
    KEYS,
    call_states,
    calls,
    make_due,
    notifying,
    tell,
)

HOOK = {"url": "https://hooks.shop.example/mail"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url, **KEYS) as api:
        yield api


@pytest.fixture
async def strict(database_url: str) -> AsyncIterator[Api]:
    """As in production: only public addresses."""
    async with api_of(database_url, **KEYS | {"webhook_allow_private": "false"}) as api:
        yield api


async def test_a_webhook_from_beginning_to_end(strict: Api) -> None:
    made = await strict.shop.post("/webhooks", HOOK | {"kinds": ["message.bounced"]})
    assert made.status == 201
    secret = made.json.pop("secret")
    assert secret.startswith("whsec_")
    shown = {
        "url": HOOK["url"],
        "kinds": ["message.bounced"],
        "enabled": True,
        "disabled_reason": None,
        "waiting": 0,
    }
    assert shown.items() <= made.json.items()
    path = f"/webhooks/{made.json['id']}"
    assert (await strict.shop.get(path)).json == made.json
    assert (await strict.shop.get("/webhooks")).json == {"webhooks": [made.json]}
    changed = await strict.shop("PATCH", path, {"enabled": False, "kinds": []})
    assert (changed.json["enabled"], changed.json["disabled_reason"], changed.json["kinds"]) == (
        False,
        "person",
        [],
    )
    assert (await strict.shop.post(f"{path}/enable")).json["enabled"] is True
    rotated = (await strict.shop.post(f"{path}/rotate")).json
    assert rotated["secret"] not in ("", secret)
    assert rotated["old_secret_until"]
    assert (await strict.shop("DELETE", path)).status == 204
    assert (await strict.shop.get(path)).status == 404


@pytest.mark.parametrize(
    "url",
    ["http://hooks.shop.example/", "https://127.0.0.1/", "https://[::ffff:10.0.0.1]/", "https://localhost/", "https://0x7f.1/",
     "https://u:p@hooks.shop.example/", "https://169.254.169.254/latest/meta-data", "nonsense", ""],
)  # fmt: skip
async def test_urls_that_are_refused(strict: Api, url: str) -> None:
    answer = await strict.shop.post("/webhooks", {"url": url})
    assert (answer.status, answer.json["type"], answer.json["field"]) == (
        422,
        "/problems/invalid-setting",
        "url",
    )
    made = (await strict.shop.post("/webhooks", HOOK)).json
    assert (await strict.shop("PATCH", f"/webhooks/{made['id']}", {"url": url})).status == 422
    assert (await strict.shop.get(f"/webhooks/{made['id']}")).json["url"] == HOOK["url"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": 7},
        HOOK | {"kinds": ["message.eaten"]},
        HOOK | {"secret": "mine"},
        HOOK | {"tenant": "other"},
    ],
)
async def test_bad_requests(strict: Api, body: Any) -> None:
    assert (await strict.shop.post("/webhooks", body)).status == 422
    assert (await strict.shop.get("/webhooks")).json == {"webhooks": []}


async def test_a_tenant_has_only_so_many(strict: Api) -> None:
    for _ in range(webhooks.MAX_ENDPOINTS):
        assert (await strict.shop.post("/webhooks", HOOK)).status == 201
    assert (await strict.shop.post("/webhooks", HOOK)).json["type"] == "/problems/not-possible"
    assert (await strict.other.post("/webhooks", HOOK)).status == 201


async def test_without_a_key_secrets_cannot_be_kept(strict: Api) -> None:
    """It is the installation's fault, and told as one that asking again does not mend."""
    made = (await strict.shop.post("/webhooks", HOOK)).json
    strict.app.settings = replace(strict.app.settings, secret_keys=())
    for path, body in (("/webhooks", HOOK), (f"/webhooks/{made['id']}/rotate", None)):
        answer = await strict.shop.post(path, body)
        assert (answer.status, answer.json["type"]) == (409, "/problems/not-possible")


async def test_scopes(strict: Api) -> None:
    for scope in (Scope.SEND, Scope.READ):
        asked = await strict.key("shop", scope)
        assert (await asked.get("/webhooks")).status == 403
        assert (await asked.post("/webhooks", HOOK)).status == 403


async def test_trying_one_out(api: Api, receiver: WebhookReceiver) -> None:
    made = (await api.shop.post("/webhooks", {"url": receiver.url})).json
    receiver.secrets = [made["secret"]]
    path = f"/webhooks/{made['id']}"
    answer = (await api.shop.post(f"{path}/test")).json
    assert (answer["delivered"], answer["status"], answer["error"]) == (True, 200, None)
    (call,) = receiver.calls
    assert (call.type, call.data) == ("webhook.test", {"webhook_id": made["id"]})
    receiver.dials = ReceiverDials(status=500, body="broken")
    await api.shop("PATCH", path, {"enabled": False})
    answer = (await api.shop.post(f"{path}/test")).json
    assert (answer["delivered"], answer["error"]) == (False, "answered 500: broken")
    assert (await api.shop.get(path)).json["failing_since"] is None
    log = (await api.shop.get(f"{path}/calls")).json["calls"]
    assert [(one["type"], one["state"], one["status"]) for one in log] == [
        ("webhook.test", "failed", 500), ("webhook.test", "delivered", 200),
    ]  # fmt: skip
    assert (await api.shop.post(f"{path}/replay", {"state": ["failed"]})).json == {
        "replayed": 0,
        "next_cursor": None,
    }


async def test_a_test_reaches_no_private_address(strict: Api, receiver: WebhookReceiver) -> None:
    owner = await strict.database.fetchval("SELECT id FROM pillarbox.tenants WHERE name = 'shop'")
    endpoint, _ = await webhooks.add_endpoint(strict.database, strict.app.keys, owner, receiver.url)
    answer = (await strict.shop.post(f"/webhooks/{endpoint.id}/test")).json
    assert (answer["delivered"], answer["status"]) == (False, None)
    assert receiver.calls == []


async def test_the_log_and_replaying(api: Api, receiver: WebhookReceiver) -> None:
    made = (await api.shop.post("/webhooks", {"url": receiver.url})).json
    path = f"/webhooks/{made['id']}"
    messages = [await enqueue(api.database, tenant="shop") for _ in range(5)]
    for message_id in messages:
        await tell(api.database, message_id, "message.sent")
    await api.database.execute(
        "UPDATE pillarbox.webhook_calls SET state = 'failed', error = 'answered 500', status = 500"
    )
    first = (await api.shop.get(f"{path}/calls?limit=3")).json
    second = (await api.shop.get(f"{path}/calls?limit=3&cursor={first['next_cursor']}")).json
    listed = [*first["calls"], *second["calls"]]
    assert ([len(first["calls"]), len(second["calls"])], second["next_cursor"]) == ([3, 2], None)
    assert [one["message_id"] for one in listed] == [str(one) for one in reversed(messages)]
    assert {one["delivery_id"] for one in listed} == {f"{one}.0" for one in messages}
    assert (await api.shop.get(f"{path}/calls?state=delivered")).json["calls"] == []
    assert (await api.shop.get(f"{path}/calls?state=eaten")).status == 422
    assert (await api.shop.get(f"{path}/calls?cursor=what")).status == 422
    for body in (
        {},
        {"calls": [listed[0]["id"]], "state": ["failed"]},
        {"calls": []},
        {"until": "2030-01-01T00:00:00Z"},
    ):
        assert (await api.shop.post(f"{path}/replay", body)).status == 422
    this = {"calls": [listed[0]["id"]], "state": None, "since": None, "until": None, "cursor": None}
    assert (await api.shop.post(f"{path}/replay", this)).json["replayed"] == 1
    assert (await api.shop.post(f"{path}/replay", {"since": "2030-01-01T00:00:00Z"})).json[
        "replayed"
    ] == 0
    assert (await api.shop.post(f"{path}/replay", {"state": ["failed"]})).json == {
        "replayed": 4,
        "next_cursor": None,
    }
    async with notifying(api.app):
        await receiver.wait_for(lambda: len(receiver.calls) == 5)
        await call_states(api.database, *["delivered"] * 5)


async def test_a_call_of_another_webhook_is_not_replayed_by_its_id(
    api: Api, receiver: WebhookReceiver
) -> None:
    theirs = (await api.shop.post("/webhooks", {"url": receiver.url})).json
    mine = (await api.other.post("/webhooks", {"url": receiver.url})).json
    await tell(api.database, await enqueue(api.database, tenant="shop"), "message.sent")
    await api.database.execute("UPDATE pillarbox.webhook_calls SET state = 'failed'")
    call = (await api.shop.get(f"/webhooks/{theirs['id']}/calls")).json["calls"][0]["id"]
    answer = await api.other.post(f"/webhooks/{mine['id']}/replay", {"calls": [call]})
    assert (answer.status, answer.json["replayed"]) == (200, 0)
    assert [row["state"] for row in await calls(api.database)] == ["failed"]


async def test_removing_one_takes_its_calls_along(api: Api, receiver: WebhookReceiver) -> None:
    made = (await api.shop.post("/webhooks", {"url": receiver.url})).json
    await tell(api.database, await enqueue(api.database, tenant="shop"), "message.sent")
    await api.shop("DELETE", f"/webhooks/{made['id']}")
    assert await calls(api.database) == []


async def test_the_clients(api: Api, receiver: WebhookReceiver) -> None:
    key, url = api.shop.key, api.nobody.url

    def talk(client: pillarbox.Client) -> Any:
        made = client.add_webhook(receiver.url, kinds=["message.sent", "message.bounced"])
        assert made.secret
        assert made.secret not in repr(made)
        receiver.secrets = [made.secret]
        assert [one.id for one in client.webhooks()] == [made.id]
        assert client.get_webhook(made.id).secret is None
        assert client.change_webhook(made.id, enabled=False).enabled is False
        changed = client.change_webhook(made.id, kinds="message.sent", enabled=True)
        assert (changed.enabled, changed.kinds) == (True, ("message.sent",))
        assert client.rotate_webhook(made.id).secret
        assert client.test_webhook(made.id).delivered
        return made

    with pillarbox.Client(url, key) as client:
        made = await asyncio.to_thread(talk, client)
        await tell(api.database, await enqueue(api.database, tenant="shop"), "message.sent")
        await api.database.execute(
            "UPDATE pillarbox.webhook_calls SET state = 'failed' WHERE message_id IS NOT NULL"
        )
        found = await asyncio.to_thread(lambda: list(client.webhook_calls(made.id, state="failed")))
        assert [one.type for one in found] == ["message.sent"]
        assert (
            await asyncio.to_thread(lambda: client.replay_webhook(made.id, calls=[found[0].id]))
            == 1
        )
        await api.database.execute(
            "UPDATE pillarbox.webhook_calls SET state = 'failed' WHERE message_id IS NOT NULL"
        )
        assert await asyncio.to_thread(client.replay_webhook, made.id) == 1
    async with pillarbox.AsyncClient(url, key) as other:
        assert [one.type async for one in other.webhook_calls(made.id)] == [
            "message.sent",
            "webhook.test",
        ]
        assert (await other.test_webhook(made.id)).status == 200
        assert await other.replay_webhook(made.id) == 0
        await other.remove_webhook(made.id)
        with pytest.raises(NotFound):
            await other.get_webhook(made.id)
        with pytest.raises(PillarboxError):
            await other.add_webhook("ftp://x")


@pytest.fixture
def cli(database_url: str) -> Cli:
    cli = Cli(database_url)
    cli.env |= {"PILLARBOX_SECRET_KEYS": KEYS["secret_keys"]}
    return cli


def test_the_command_line(cli: Cli) -> None:
    cli("tenant", "add", "shop")
    made = cli.json("webhook", "add", HOOK["url"], "--tenant", "shop", "--kind", "message.bounced")
    assert made["secret"].startswith("whsec_")
    assert (made["tenant"], made["kinds"], "tenant_id" in made) == (
        "shop",
        ["message.bounced"],
        False,
    )
    spoken = cli("webhook", "add", HOOK["url"])
    assert "whsec_" in spoken.out
    assert [one["id"] for one in cli.json("webhook", "list", "--tenant", "shop")] == [made["id"]]
    assert len(cli.json("webhook", "list")) == 2
    assert "secret" not in cli.json("webhook", "show", made["id"])
    assert HOOK["url"] in cli("webhook", "list").out
    assert (
        "disabled (person)"
        in (cli("webhook", "disable", made["id"]), cli("webhook", "show", made["id"]))[1].out
    )
    assert cli.json("webhook", "enable", made["id"], "--tenant", "shop")["enabled"] is True
    assert cli.json("webhook", "rotate", made["id"])["secret"] != made["secret"]
    assert cli.json("keys", "rotate")["secrets"] == 3
    assert "no webhook" in cli("webhook", "show", made["id"], "--tenant", "default", code=1).err
    assert cli.json("webhook", "calls", made["id"]) == []
    assert cli.json("webhook", "replay", made["id"], "--yes") == {"replayed": 0}
    assert cli("webhook", "replay", made["id"], "--call", made["id"], "--state", "failed", code=2)
    assert "removed" in cli("webhook", "remove", made["id"], "--yes").out
    assert "see `pillarbox webhook list`" in cli("webhook", "show", made["id"], code=1).err


def test_the_command_line_says_how_to_allow_it(cli: Cli) -> None:
    for url in ("https://127.0.0.1/", "https://localhost/x"):
        assert "PILLARBOX_WEBHOOK_ALLOW_PRIVATE" in cli("webhook", "add", url, code=1).err
    assert "https://" in cli("webhook", "add", "http://shop.example/", code=1).err


def test_trying_out_and_replaying_by_command(cli: Cli, free_port: int) -> None:
    cli.env |= {"PILLARBOX_WEBHOOK_ALLOW_PRIVATE": "true"}
    made = cli.json("webhook", "add", f"http://127.0.0.1:{free_port}/")
    assert "not delivered: no connection" in cli("webhook", "test", made["id"], code=1).err
    assert cli.json("webhook", "test", made["id"], code=1)["delivered"] is False
    cli.sql(
        "INSERT INTO pillarbox.webhook_calls (id, endpoint_id, message_id, n, kind, at, payload, state, next_at)"
        " SELECT gen_random_uuid(), %s, gen_random_uuid(), 0, 'message.sent', now(), '{}', 'failed', now()"
        " FROM generate_series(1, 3)",
        made["id"],
    )
    cli.sql("UPDATE pillarbox.webhook_calls SET id = pillarbox._new_id()")
    failed = cli.json("webhook", "calls", made["id"], "--state", "failed")
    assert len(failed) == 5
    assert cli.json("webhook", "replay", made["id"], "--call", failed[0]["id"])["replayed"] in (
        0,
        1,
    )
    assert "calls will be repeated" in cli("webhook", "replay", made["id"], "--yes").out
    assert len(cli.json("webhook", "calls", made["id"], "--state", "waiting")) == 3


async def test_enabling_makes_what_waited_due(api: Api, receiver: WebhookReceiver) -> None:
    made = (await api.shop.post("/webhooks", {"url": receiver.url})).json
    await tell(api.database, await enqueue(api.database, tenant="shop"), "message.sent")
    await api.database.execute(
        "UPDATE pillarbox.webhook_calls SET next_at = now() + interval '5 hours'"
    )
    await api.shop("PATCH", f"/webhooks/{made['id']}", {"enabled": False})
    async with notifying(api.app):
        await make_due(api.database)
        await api.shop.post(f"/webhooks/{made['id']}/enable")
        await receiver.wait_for(lambda: len(receiver.calls) == 1)
