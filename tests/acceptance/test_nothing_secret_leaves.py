"""A whole installation with known secrets and people, under faults that repeat them; then all that left is searched."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from pathlib import Path
from uuid import UUID

import pytest
from tests.acceptance import troubles
from tests.acceptance.fleet import SETTINGS, TWINS
from tests.acceptance.leaks import leaks, spellings, tables
from tests.acceptance.troubles import (
    BODIES,
    CODE,
    HOOK,
    KINDS,
    PASSWORD,
    PEOPLE,
    TENANTS,
    World,
    world_of,
)
from tests.integration.api.api_helpers import Client
from tests.integration.cli.cli_helpers import Cli

from pillarbox.api.v1 import description
from pillarbox.deliver import health_monitor
from pillarbox.route import circuit_breaker, decide
from pillarbox.store.database import Database
from pillarbox.testing.twins import Dials


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakers, checks and mails that stepped aside come back soon."""
    for module, name, value in (
        (circuit_breaker, "FIRST_WAIT", 0.1), (circuit_breaker, "LONGEST_WAIT", 0.2), (health_monitor, "CHECK_INTERVAL", 0.6),
        (decide, "SHORTEST_POSTPONE", 0.1), (decide, "LONGEST_POSTPONE", 0.2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


async def told(one: World, client: Client) -> dict[str, str]:
    """All that the API shows to one who asks, of his own and of others."""
    values = [
        {"name": tenant, "route_id": "1", "webhook_id": one.hooks[tenant]} for tenant in TENANTS
    ]
    values += [values[0] | {"message_id": str(one_id)} for one_id in one.mails]
    answers: dict[str, str] = {}
    for path, methods in description()["paths"].items():
        if "get" not in methods:
            continue
        for asked in {path.format_map(defaultdict(str, some)) for some in values}:
            answer = await client.get(asked)
            answers[f"GET {asked}"] = f"{answer.status} {answer.headers} {answer.content.decode()}"
    return answers


def commands(database_url: str, message_ids: list[UUID]) -> dict[str, str]:
    """What operators are shown."""
    cli = Cli(database_url)
    cli.env["PILLARBOX_SECRET_KEYS"] = str(SETTINGS["secret_keys"])
    lines = [
        "config",
        "provider list --json",
        "provider health --json",
        "dlq list --json",
        "queue list --json",
    ]
    lines += [f"provider show {kind} --json" for kind in KINDS] + [
        f"queue show {one}" for one in message_ids[:40]
    ]
    found = {line: cli(*line.split()) for line in lines}
    found |= {f"provider test {kind}": cli("provider", "test", kind, code=1) for kind in TWINS}
    return {line: answer.out + answer.err for line, answer in found.items()}


@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.req("REQ-QUEUE-U005")
async def test_nothing_secret_leaves(
    database: Database,
    database_url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world_of(database, database_url, tmp_path, monkeypatch) as one:
        for trouble in (
            troubles.checks_fail,
            troubles.providers_fail,
            troubles.relay_fails,
            troubles.feedback_is_odd,
            troubles.doors_get_rubbish,
            troubles.secrets_are_sent,
            troubles.customers_fail,
        ):
            await trouble(one)
        other_process = await troubles.another_process(one, database_url)
        shown = {tenant: await told(one, one.client(tenant)) for tenant in TENANTS}
        shown |= {"admin": await told(one, one.api.admin), "bad requests": one.answers}
        for kind, twin in one.twins.items():
            twin.dials = Dials(status=401, body=one.says(kind))
        typed = await asyncio.to_thread(commands, database_url, list(one.mails))
        operator = {"Authorization": f"Bearer {one.api.admin.key}"}
        async with one.api.nobody.session.get(
            one.api.nobody.url + "/metrics", headers=operator
        ) as answer:
            metrics = {"/metrics": await answer.text(), "worker": one.app.metrics.render().decode()}
        await troubles.store_fails(one)
    kept, others = await tables(database)
    out, err = capfd.readouterr()
    logged = {
        "out": out,
        "log": err,
        "log of another process": other_process,
        "exceptions": "\n".join(one.exceptions),
    }
    calls = {
        tenant: {
            f"webhook {n}": f"{call.headers} {call.body.decode()}"
            for n, call in enumerate(receiver.calls)
        }
        for tenant, receiver in one.receivers.items()
    }

    assert err.count("attempt settled") > 30
    assert other_process.count("attempt settled") >= 1
    assert len(others["conversations.lines"]) > 1000
    everywhere = logged | metrics | others
    assert leaks(one.private, everywhere) == []
    hidden = {"mark": HOOK}
    assert (
        leaks(
            hidden,
            {name: text for name, text in everywhere.items() if name != "webhook_endpoints.url"},
        )
        == []
    )
    told_all = {
        f"{name} to {who}": text
        for who, some in (shown | {"typed": typed}).items()
        for name, text in some.items()
    }
    called = {
        f"{name} to {who}": text for who, some in calls.items() for name, text in some.items()
    }
    assert leaks(one.credentials, everywhere | kept | told_all | called) == []
    for tenant, foreign in (("shop", "other"), ("other", "shop")):
        assert calls[tenant]
        assert (
            leaks(one.of(foreign) | {"mark": f"{HOOK}-{foreign}"}, shown[tenant] | calls[tenant])
            == []
        )
        assert leaks({"code": CODE} | {"body": BODIES[tenant]}, calls[tenant]) == []
    assert leaks({"code": CODE}, told_all) == []


# --- the searcher itself


@pytest.mark.parametrize(
    "word", [PEOPLE["other"]["recipient"], PASSWORD, "SG.abcdefgh-1234.xYz_0123456789"]
)
def test_what_is_searched_for_is_found(word: str) -> None:
    loose, exact = spellings(word)
    for spelling in (*loose, *exact):
        [leak] = leaks({"it": word}, {"here": f"said <{spelling}>", "there": "said <nothing>"})
        assert leak[:2] == ("it", "here")
    for prefix in (b"", b"\0", b"me\0", b"api:"):
        hidden = base64.b64encode(prefix + word.encode() + b" and more").decode()
        assert leaks({"it": word}, {"here": hidden})
    assert leaks({"it": word}, {"here": word.upper(), "there": word[:-3]}) == leaks(
        {"it": word}, {"here": word.upper()}
    )
