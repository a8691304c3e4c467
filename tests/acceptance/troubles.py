"""A whole installation with known secrets and people, and faults that repeat them."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from tests.acceptance.fleet import SETTINGS, TWINS, add_twin
from tests.harness import attempts, enqueue, eventually, working
from tests.integration.accept.submission_helpers import connected, installed
from tests.integration.api.api_helpers import Api, Client, api_of
from tests.integration.cli.cli_helpers import process

from pillarbox.app import App
from pillarbox.deliver import health_monitor
from pillarbox.model.secret import Secret
from pillarbox.store import access, providers
from pillarbox.store.database import Database
from pillarbox.store.vault import EncryptionKeyRing
from pillarbox.testing import Extensions, Faults, SmtpServer
from pillarbox.testing.certificates import CertificateAuthority, make_ca
from pillarbox.testing.smtp import Drop, Hang
from pillarbox.testing.twins import Dials, Twin
from pillarbox.testing.webhook_receiver import ReceiverDials, WebhookReceiver

TENANTS = ("shop", "other")
PEOPLE = {
    "shop": {"sender": "Sieglinde.Maier@werk.example", "recipient": "walburga.huber@post.example"},
    "other": {"sender": "ottokar+kasse@laden.example", "recipient": "Xaver.O'Brien@heim.example"},
}
BODIES = {
    "shop": "Der Schluessel liegt unter der Kuckucksuhr",
    "other": "Das Fahrrad steht hinter dem Backofen",
}
CODE = "739216-KLMR"  # of a mail of a secret class
# Of a provider that lets people choose their own: nothing that any pattern would know.
PASSWORD = "Zaun/koenig 47+11 hunter"
GUESS = "Rotkehlchen-0815-hunter"
HOOK = "eisvogel4711"  # a customer's own mark in the URL of its webhook
KINDS = (*TWINS, "smtp")


def repeated(*words: str) -> str:
    """Words as a server repeats them that was asked with them: as they are, and as they stood in the request."""
    return " ".join(
        f"{one} {quote(one, safe='')} {base64.b64encode(one.encode()).decode()} {one.lower()} {one.encode().hex()}"
        for one in words
    )


@dataclass
class World:
    """What runs, and what must not be seen."""

    database: Database
    app: App
    worker: AsyncExitStack  # ends the worker in this process
    api: Api
    relay: SmtpServer
    twins: dict[str, Twin]
    receivers: dict[str, WebhookReceiver]
    certificate: CertificateAuthority
    smtps: int
    login: tuple[str, str]
    ids: dict[str, int] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    mails: dict[UUID, str] = field(default_factory=dict)  # with their tenants
    hooks: dict[str, str] = field(default_factory=dict)  # the ids of customers' webhooks
    answers: dict[str, str] = field(default_factory=dict)  # to bad requests
    exceptions: list[str] = field(default_factory=list)

    @property
    def private(self) -> dict[str, str]:
        """The people and the words of all tenants."""
        people = {
            f"{role} of {tenant}": one
            for tenant, some in PEOPLE.items()
            for role, one in some.items()
        }
        return (
            people | {f"body of {tenant}": text for tenant, text in BODIES.items()} | {"code": CODE}
        )

    def of(self, tenant: str) -> dict[str, str]:
        return {name: word for name, word in self.private.items() if name.endswith(tenant)}

    def client(self, tenant: str) -> Client:
        return self.api.shop if tenant == "shop" else self.api.other

    def echo(self, kind: str) -> str:
        """All that a provider was ever told."""
        people = [one for some in PEOPLE.values() for one in some.values()]
        return repeated(
            *people, *(word for name, word in self.credentials.items() if name.startswith(kind))
        )

    def says(self, kind: str) -> dict[str, Any]:
        """That, in the form of any provider's errors."""
        return {
            "errors": [{"message": self.echo(kind), "field": "from"}],
            "message": self.echo(kind),
        }

    async def send(self, tenant: str, kind: str, **fields: Any) -> UUID:
        """A mail that leaves through the provider of that kind."""
        given = {
            "tenant": tenant,
            "sender": PEOPLE[tenant]["sender"],
            "text": BODIES[tenant],
            "kind": f"via-{kind}",
        }
        message_id = await enqueue(self.database, PEOPLE[tenant]["recipient"], **given | fields)
        self.mails[message_id] = tenant
        return message_id

    async def tried(self, message_id: UUID) -> None:
        await eventually(lambda: attempts(self.database, message_id))

    async def healthy(self) -> None:
        """Wait until no breaker is open: a fault is for a mail, not for a probe."""

        async def closed() -> bool:
            sample = self.app.metrics.registry.get_sample_value
            labels = [{"provider": kind, "state": "open"} for kind in KINDS]
            return not any(sample("pillarbox_provider_circuit", one) for one in labels)

        await eventually(closed)


@asynccontextmanager
async def world_of(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    certificate = make_ca(tmp_path)
    issued = certificate.issue()
    settings = SETTINGS | {"log_level": "debug"}
    tls = {
        "smtp_tls": "127.0.0.1:0",
        "smtp_certificate": issued.certificate,
        "smtp_private_key": issued.key,
    }
    facts, login = await access.add_login(database, "default", "printer")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        relay = await enter(SmtpServer(extensions=Extensions(any_login=True, mechanisms=["PLAIN"])))
        twins = {kind: await enter(twin()) for kind, twin in TWINS.items()}
        twins["mailgun"].api_key = PASSWORD  # type: ignore[attr-defined]
        ids = {kind: await add_twin(database, twin, timeout=1) for kind, twin in twins.items()}
        keys = EncryptionKeyRing([Secret(str(settings["secret_keys"]))])
        given = {
            "host": relay.host,
            "port": relay.port,
            "tls": "none",
            "username": "me",
            "command_timeout": 1,
        }
        ids["smtp"] = await providers.add_provider(
            database, lambda: keys, "smtp", "smtp", given, Secret(PASSWORD)
        )
        for kind, number in ids.items():
            await database.execute(
                "INSERT INTO pillarbox.routes (name, place, kinds, providers)"
                " VALUES ($1, 1, ARRAY[$1], ARRAY[$2::int])",
                f"via-{kind}", number,
            )  # fmt: skip
        door = await enter(installed(database_url, **settings | tls))
        api = await enter(api_of(database_url, **settings))
        receivers = {tenant: await enter(WebhookReceiver()) for tenant in TENANTS}
        worker = await enter(AsyncExitStack())
        app = await worker.enter_async_context(working(database_url, **settings))
        one = World(database, app, worker, api, relay, twins, receivers, certificate, door.ports["smtp_tls"],
                    (facts.username, login.reveal()), ids)  # fmt: skip
        one.credentials = {kind: twin.secret for kind, twin in twins.items()} | {
            "smtp": PASSWORD, "mailgun's hook": twins["mailgun"].webhook_secret or "", "login": login.reveal(),
            "guess": GUESS, "sealing": str(settings["secret_keys"]), "admin": api.admin.key or "",
            "shop's key": api.shop.key or "", "other's key": api.other.key or "",
        }  # fmt: skip
        for kind, twin in twins.items():
            twin.webhook_url = f"{api.nobody.url}/webhooks/{kind}/{ids[kind]}"
        for tenant, receiver in receivers.items():
            made = await one.client(tenant).post(
                "/webhooks", {"url": f"{receiver.url}?mark={HOOK}-{tenant}"}
            )
            one.hooks[tenant] = made.json["id"]
            one.credentials[f"{tenant}'s hook"] = made.json["secret"].removeprefix("whsec_")
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: one.exceptions.append(repr(context))
        )
        await eventually(
            lambda: database.fetchval(
                "SELECT count(*) = 4 FROM pillarbox.provider_health WHERE check_ok"
            )
        )
        monkeypatch.setattr(health_monitor, "CHECK_INTERVAL", 3600.0)
        yield one


# --- faults


async def providers_fail(one: World) -> None:
    """Every provider refuses, limits, breaks, hangs and hangs up, and repeats what it knows."""
    faults = [
        Dials(status=401), Dials(status=429, retry_after=0), Dials(status=500), Dials(status=400), Dials(status=302),
        Dials(hang=True), Dials(drop="before"), Dials(drop="after"),
    ]  # fmt: skip
    for number, fault in enumerate(faults):
        await one.healthy()
        for kind, twin in one.twins.items():
            twin.dials = replace(fault, times=1, body=one.says(kind) if fault.status else None)
        for message_id in [await one.send(TENANTS[number % 2], kind) for kind in one.twins]:
            await one.tried(message_id)


async def checks_fail(one: World) -> None:
    """Asked how they are, they repeat it, too."""
    for kind, twin in one.twins.items():
        twin.dials = Dials(status=401, body=one.says(kind))
    one.relay.faults = Faults(auth=f"535 5.7.8 {one.echo('smtp')[-900:]}")
    health_monitor.CHECK_INTERVAL = 0.0
    failed = "SELECT count(*) = 4 FROM pillarbox.provider_health WHERE NOT check_ok"
    await eventually(lambda: one.database.fetchval(failed))
    health_monitor.CHECK_INTERVAL = 3600.0
    for twin in one.twins.values():
        twin.dials = Dials()
    one.relay.faults = Faults()


async def relay_fails(one: World) -> None:
    """So does the relay, in its own words."""
    echo = one.echo("smtp")[-900:]  # a line of SMTP is short
    faults = [
        Faults(auth=[f"535 5.7.8 {echo}"]), Faults(mail=[f"550 5.7.1 {echo}"]), Faults(rcpt=[f"451 4.3.0 {echo}"]),
        Faults(rcpt=[lambda _, to: f"550 5.1.1 no mailbox for {to}"]), Faults(body=[f"554 5.7.1 {echo}"]),
        Faults(body=[Drop(stored=True)]), Faults(mail=[Hang()]), Faults(data=[f"421 4.3.2 {echo}"]),
    ]  # fmt: skip
    for number, fault in enumerate(faults):
        await one.healthy()
        one.relay.faults = fault
        await one.tried(await one.send(TENANTS[number % 2], "smtp"))
    one.relay.faults = Faults()


async def feedback_is_odd(one: World) -> None:
    """Bounces that quote people, forged ones, duplicates, and what nobody understands."""
    for kind, twin in one.twins.items():
        twin.dials = Dials()
        echo = one.echo(kind)
        status = {"code": 550, "message": echo, "description": echo}
        more: dict[str, Any] = {
            "sendgrid": {
                "reason": f"550 5.1.1 {echo}",
                "category": [echo],
                "subject": BODIES["shop"],
            },
            "ses": {"bounceSubType": echo, "feedbackId": echo},
            "mailgun": {"reason": echo, "delivery-status": status},
        }[kind]
        for tenant in TENANTS:
            message_id = await one.send(tenant, kind)
            await twin.wait_for(
                lambda twin=twin, wanted=str(message_id): twin.mails[-1].message_uuid == wanted
            )
            mail = twin.mails[-1]
            assert await twin.feed(mail, "bounced", forged=True, **more) == 403
            assert await twin.feed(mail, "bounced", **more) == 200
            await one.database.execute("DELETE FROM pillarbox.suppressions")
        async with one.api.nobody.session.post(str(twin.webhook_url), data=echo.encode()) as answer:
            assert answer.status == 403


async def refused(
    one: World,
    client: Client,
    *statuses: int,
    method: str = "POST",
    path: str = "/messages",
    **more: Any,
) -> None:
    """A request that gets no better answer; which is kept."""
    answer = await client(method, path, **more)
    assert answer.status in statuses, answer.content
    one.answers[f"{len(one.answers)} {method} {path}"] = (
        f"{answer.headers} {answer.content.decode()}"
    )


async def doors_get_rubbish(one: World) -> None:
    """Bad mails, bad keys, bad logins: by HTTP and by SMTP."""
    for tenant in TENANTS:
        client, people = one.client(tenant), PEOPLE[tenant]
        bad = {
            "from": people["sender"],
            "to": [f"<{people['recipient']}"],
            "subject": client.key,
            "text": 7,
        }
        await refused(one, client, 422, body=bad | {"nothing": client.key})
        await refused(one, client, 422, body=[client.key, people])
        await refused(one, client, 422, body=bad | {"to": [client.key]})
        await refused(one, client, 404, 422, path=f"/messages/{client.key}/resend", body={})
        await refused(
            one,
            one.api.nobody.using(GUESS),
            401,
            method="GET",
            path=f"/messages?recipient={client.key}",
        )
        await refused(one, client, 401, headers={"Authorization": f"Basic {client.key}"})
    context = one.certificate.client_context()
    username, password = one.login
    for word, code in ((GUESS, "535"), (password, "235")):
        async with connected(one.smtps, tls=context) as client:
            plain = base64.b64encode(f"\0{username}\0{word}".encode())
            assert (await client.say(b"AUTH PLAIN " + plain + b"\r\n")).startswith(code)
            for line in (
                f"MAIL FROM:<{PEOPLE['shop']['sender']} {word}",
                f"RCPT TO:{PEOPLE['shop']['recipient']}",
            ):
                assert (await client.say(line.encode() + b"\r\n"))[0] == "5"


async def store_fails(one: World) -> None:
    """PostgreSQL refuses rows, and shows them in its errors; connections are cut."""
    for table, rule in (("contents", "text NOT LIKE '%broken%'"), ("suppressions", "note IS NULL")):
        await one.database.execute(
            f"ALTER TABLE pillarbox.{table} ADD CONSTRAINT odd CHECK ({rule}) NOT VALID"
        )
    for tenant in TENANTS:
        people, client = PEOPLE[tenant], one.client(tenant)
        mail = {
            "from": people["sender"],
            "to": [people["recipient"]],
            "subject": CODE,
            "text": f"{BODIES[tenant]} broken {CODE}",
        }
        await refused(one, client, 422, 503, body=mail)
        noted = [{"address": people["recipient"], "note": BODIES[tenant]}]
        await refused(one, client, 422, 503, path="/suppressions", body={"suppressions": noted})
    await one.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )


async def customers_fail(one: World) -> None:
    """Receivers of webhooks repeat what they got."""
    for tenant, receiver in one.receivers.items():
        said = repeated(PEOPLE[tenant]["recipient"], one.credentials[f"{tenant}'s hook"])
        receiver.dials = ReceiverDials(status=500, body=said, times=3)
        before = len(receiver.calls)
        await one.send(tenant, "smtp")
        await receiver.wait_for(
            lambda receiver=receiver, before=before: len(receiver.calls) > before
        )


async def secrets_are_sent(one: World) -> None:
    """Mails of a secret class: refused, lost and sent."""
    for kind, twin in one.twins.items():
        await one.healthy()
        twin.dials = Dials(status=400, body=one.says(kind), times=1)
        for _ in range(2):
            message_id = await one.send(
                "shop",
                kind,
                text=f"Ihr Code: {CODE}",
                subject=f"Code {CODE}",
                **{"class": "lifecycle"},
            )
            await one.tried(message_id)


async def another_process(one: World, database_url: str) -> str:
    """A worker as a process of its own meets the same; what it printed."""
    await one.worker.aclose()
    environment = {
        f"PILLARBOX_{name.upper()}": str(value)
        for name, value in SETTINGS.items()
        if name != "smtp"
    }
    environment |= {
        "PILLARBOX_DATABASE_URL": database_url,
        "PILLARBOX_LOG_LEVEL": "debug",
        "PILLARBOX_LOG_FORMAT": "json",
    }
    with process("worker", env=environment) as worker:
        await asyncio.to_thread(worker.wait_for, "worker registered")
        for kind, twin in one.twins.items():
            twin.dials = Dials(status=500, body=one.says(kind), times=1)
        for message_id in [await one.send("shop", kind) for kind in KINDS]:
            await one.tried(message_id)
        worker.signal(signal.SIGTERM)
        await asyncio.to_thread(worker.end)
        return worker.output
