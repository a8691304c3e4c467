"""Feedback as it really comes: mails that leave by a worker, twins that post over HTTP, reports by API and command."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from pillarbox.model import return_path
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.retention import purge
from pillarbox.store.vault import generate_key
from pillarbox.testing import SmtpServer
from pillarbox.testing.twins import TWINS, Dials, MailgunTwin, SendGridTwin, SesTwin, Twin
from tests.contract.feedbacks import leave, twin_mail
from tests.harness import add_smtp, add_twin, enqueue, eventually, settled, states, working
from tests.integration.api.api_helpers import Api, api_of, serving
from tests.integration.cli.cli_helpers import Cli
from tests.unit import reports

ADA = reports.ADA


class Door(NamedTuple):
    """A served installation with a provider and its twin."""

    api: Api
    twin: Twin
    provider_id: int

    @property
    def url(self) -> str:
        return f"{self.api.nobody.url}/webhooks/{self.twin.kind}/{self.provider_id}"

    async def post(
        self, body: bytes, headers: dict[str, str] | None = None, url: str | None = None
    ) -> Any:
        async with self.api.nobody.session.post(
            url or self.url, data=body, headers=headers
        ) as answer:
            return answer.status, answer.headers, await answer.read()


@asynccontextmanager
async def door_of(kind: str, database_url: str, **settings: Any) -> AsyncIterator[Door]:
    async with (
        TWINS[kind]() as twin,
        api_of(database_url, secret_keys=generate_key(), **settings) as api,
    ):
        door = Door(api, twin, await add_twin(api.app, twin, kind))
        twin.webhook_url = door.url
        yield door


@pytest.fixture(params=TWINS)
async def door(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Door]:
    async with door_of(request.param, database_url) as door:
        yield door


@pytest.mark.req("REQ-QUEUE-E007")
@pytest.mark.parametrize("kind", TWINS)
async def test_a_mail_leaves_and_its_story_comes_back(database_url: str, kind: str) -> None:
    async with (
        TWINS[kind]() as twin,
        working(database_url, secret_keys=generate_key(), http="127.0.0.1:0") as app,
    ):
        provider_id = await add_twin(app, twin, kind)
        async with serving(app) as url:
            twin.webhook_url = f"{url}/webhooks/{kind}/{provider_id}"
            message_id = await enqueue(app.database, ADA, "bob@mail.example")
            await settled(app.database, message_id, "sent", "sent")
            for mail in list(twin.mails):
                for recipient in mail.recipients:
                    told = "delivered" if recipient == ADA else "bounced"
                    assert await twin.feed(mail, told, recipient) == 200
            assert await states(app.database, message_id) == ["delivered", "bounced"]


@pytest.mark.parametrize("kind", TWINS)
async def test_feedback_cancels_the_resend_of_an_unknown(database_url: str, kind: str) -> None:
    """The provider took the mail, but its answer was lost: what it tells later is the answer."""
    async with (
        TWINS[kind]() as twin,
        working(database_url, secret_keys=generate_key(), http="127.0.0.1:0") as app,
    ):
        twin.dials = Dials(drop="after", times=1)
        provider_id = await add_twin(app, twin, kind)
        async with serving(app) as url:
            twin.webhook_url = f"{url}/webhooks/{kind}/{provider_id}"
            message_id = await enqueue(app.database, ADA)
            mail = await twin.next_mail()
            assert await twin.feed(mail, "delivered") == 200
            await settled(app.database, message_id, "delivered")
            unknown = "SELECT count(*) FROM pillarbox.attempts WHERE verdict = 'unknown'"
            assert await app.database.fetchval(unknown) == 1
            assert len(twin.mails) == 1


async def left(door: Door, *recipients: str) -> Any:
    """A mail that left through the provider, as the twin knows it."""
    message_id = await enqueue(door.api.database, *recipients)
    await leave(door.api.app, message_id, door.provider_id)
    return twin_mail(message_id, *recipients)


async def test_the_answers(door: Door) -> None:
    mail = await left(door, ADA)
    assert await door.twin.feed(mail, "delivered", forged=True) == 403
    assert await states(door.api.database, UUID(mail.message_uuid)) == ["sent"]
    assert await door.twin.feed(mail, "delivered") == 200
    assert await states(door.api.database, UUID(mail.message_uuid)) == ["delivered"]
    status, headers, content = await door.post(b"garbage")
    assert (status, headers["content-type"]) == (403, "application/problem+json")
    assert json.loads(content)["type"] == "/problems/forged"
    base = door.api.nobody.url
    for path in (
        "webhooks/sendgrid/99",
        "webhooks/smtp/1",
        f"webhooks/nothing/{door.provider_id}",
        f"webhooks/ses/{2**40}",
        f"webhooks/ses/{'9' * 5000}",
    ):
        assert (await door.post(b"{}", url=f"{base}/{path}"))[0] == 404
    async with door.api.nobody.session.get(door.url) as answer:
        assert answer.status == 405


async def test_providers_call_by_any_name(door: Door) -> None:
    """The signature says who calls; the name of the host says nothing."""
    headers, body = door.twin.event(await left(door, ADA), "delivered")
    named = {"Host": "mail.public.example", "Origin": "https://elsewhere.example"}
    assert (await door.post(body, headers | named))[0] == 200
    async with door.api.nobody.session.get(
        f"{door.api.nobody.url}/healthz", headers=named
    ) as answer:
        assert answer.status == 421


async def test_a_body_that_is_too_large_is_not_read(database_url: str) -> None:
    async with door_of("sendgrid", database_url, feedback_max_body="10KiB") as door:
        assert (await door.post(b"x" * 20_000))[0] == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 1000

        async with door.api.nobody.session.post(door.url, data=chunks()) as answer:
            assert answer.status == 413


@pytest.mark.parametrize("kind", TWINS)
async def test_while_the_database_is_away_providers_are_told_to_come_back(
    stoppable: EmbeddedPostgres, kind: str
) -> None:
    async with door_of(kind, stoppable.url()) as door:
        mail = await left(door, ADA)
        headers, body = door.twin.event(mail, "delivered")
        await asyncio.to_thread(stoppable.stop, "immediate")
        status, answered, _ = await door.post(body, headers)
        assert (status, answered["retry-after"]) == (503, "5")
        await asyncio.to_thread(stoppable.start)

        async def again() -> bool:
            return (await door.post(body, headers))[0] == 200

        await eventually(again)
        assert await states(door.api.database, UUID(mail.message_uuid)) == ["delivered"]


async def test_many_requests_at_once_are_taken_together(door: Door) -> None:
    mails = [await left(door, f"reader{n}@mail.example") for n in range(30)]
    signed = [
        door.twin.event(mail, kind)
        for mail in mails
        for kind in ("delivered", "opened", "bounced", "complained")
    ]
    answers = await asyncio.gather(*(door.post(body, headers) for headers, body in signed))
    assert {status for status, *_ in answers} == {200}
    for mail in mails:
        assert await states(door.api.database, UUID(mail.message_uuid)) == ["complained"]


async def test_a_tenant_sees_the_events_of_its_mails(door: Door) -> None:
    message_id = UUID(await door.api.shop.sent_id(to=[ADA]))
    await leave(door.api.app, message_id, door.provider_id)
    assert await door.twin.feed(twin_mail(message_id, ADA), "bounced") == 200
    story = (await door.api.shop.get(f"/messages/{message_id}")).json
    [event] = story["events"]
    assert (event["kind"], event["data"]["reason"], event["data"]["hard"]) == (
        "bounced",
        "invalid_recipient",
        True,
    )
    assert story["deliveries"][0]["state"] == "bounced"


async def test_customers_are_told(door: Door) -> None:
    """In the same transaction: what feedback changes is there to be told once it is there to be seen."""
    made = await door.api.shop.post("/webhooks", {"url": "https://hooks.example/"})
    assert made.status == 201, made.content
    message_id = UUID(await door.api.shop.sent_id(to=[ADA]))
    await leave(door.api.app, message_id, door.provider_id)
    mail = twin_mail(message_id, ADA)
    for kind in ("opened", "bounced", "delivered", "complained"):
        assert await door.twin.feed(mail, kind) == 200
    calls = await door.api.database.fetch("SELECT kind FROM pillarbox.webhook_calls ORDER BY seq")
    assert [call["kind"] for call in calls] == [
        "message.opened",
        "message.bounced",
        "message.complained",
    ]


# --- reports


def report_about(message_id: UUID | str, mail: bytes = reports.POSTFIX) -> bytes:
    return mail.replace(reports.MESSAGE.hex.encode(), UUID(str(message_id)).hex.encode())


RFC822 = {"Content-Type": "message/rfc822"}


async def test_a_report_counts_like_feedback(api: Api) -> None:
    message_id = await api.shop.sent_id(to=[ADA])
    await leave(api.app, UUID(message_id), 1)
    told = {
        "kind": "bounced",
        "delivery": f"{message_id}.0",
        "reason": "invalid_recipient",
        "hard": True,
    }
    for new in (True, False):
        answer = await api.shop("POST", "/reports", data=report_about(message_id), headers=RFC822)
        assert (answer.status, answer.json) == (200, {"events": [told | {"new": new}]})
    assert await states(api.database, UUID(message_id)) == ["bounced"]
    assert await api.database.fetchval("SELECT reason FROM pillarbox.suppressions") == "hard_bounce"


async def test_a_tenant_reports_on_its_own_messages_alone(api: Api) -> None:
    message_id = await api.shop.sent_id(to=[ADA])
    await leave(api.app, UUID(message_id), 1)
    foreign = await api.other("POST", "/reports", data=report_about(message_id), headers=RFC822)
    unknown = await api.other("POST", "/reports", data=report_about(uuid4()), headers=RFC822)
    assert (foreign.status, foreign.content) == (unknown.status, unknown.content)
    assert foreign.json["events"][0]["delivery"] is None
    assert await states(api.database, UUID(message_id)) == ["sent"]
    assert await api.database.fetchval("SELECT count(*) FROM pillarbox.suppressions") == 0


@pytest.mark.parametrize(
    ("body", "kind", "status", "problem"),
    [
        (reports.AUTO_REPLY, "message/rfc822", 422, "invalid-request"),
        (b"", "message/rfc822", 422, "invalid-request"),
        (reports.POSTFIX, "application/json", 415, "unsupported-media-type"),
        (b"x" * (4 * 2**20 + 1), "message/rfc822", 413, "too-large"),
    ],
)
async def test_what_is_no_report_is_refused(
    api: Api, body: bytes, kind: str, status: int, problem: str
) -> None:
    answer = await api.shop(
        "POST", "/reports", data=io.BytesIO(body), headers={"Content-Type": kind}
    )
    assert (answer.status, answer.json["type"]) == (status, f"/problems/{problem}")


async def test_a_complaint_to_the_return_path_finds_its_message(api: Api) -> None:
    message_id = UUID(await api.shop.sent_id(to=[ADA]))
    await leave(api.app, message_id, 1)
    address = return_path.make(message_id, "bounces.example.com", await api.app.return_path_key())
    mail = reports.ARF.replace(b"<abuse@shop.example>", f"<{address}>".encode())
    assert (await api.shop("POST", "/reports", data=mail, headers=RFC822)).status == 200
    assert await states(api.database, message_id) == ["complained"]


async def test_a_bounce_to_the_return_path_of_a_mail_that_left_by_smtp(database_url: str) -> None:
    async with (
        SmtpServer() as server,
        working(database_url, return_path_domain="bounces.example.com") as app,
    ):
        await add_smtp(app.database, server)
        message_id = await enqueue(app.database, ADA)
        mail = await server.next_mail()
        assert mail.sender.endswith("@bounces.example.com")
        assert b"From: Sender <sender@shop.example>" in mail.content
        await settled(app.database, message_id, "sent")
        bounce = reports.POSTFIX.replace(
            b"To: sender@shop.example", f"To: <{mail.sender.upper()}>".encode()
        )
        key = await app.return_path_key()
        [(heard, found)] = await app.ingest.take_report(bounce, key)
        assert found is not None
        assert (heard.kind, found.message_id, found.n) == ("bounced", message_id, 0)
        assert await states(app.database, message_id) == ["bounced"]


def test_the_command_takes_reports(database_url: str, tmp_path: Any) -> None:
    cli = Cli(database_url)
    message_id = cli.send(to=ADA)
    cli.sql("UPDATE pillarbox.deliveries SET state = 'sent'")
    file = tmp_path / "bounce.eml"
    file.write_bytes(report_about(message_id))
    answer = cli("report", str(file))
    assert answer.out.strip() == f"{message_id}.0: bounced invalid_recipient permanent"
    assert "reported before" in cli("report", "-", stdin=report_about(message_id).decode()).out
    told = cli.json("report", str(file))
    assert told["events"][0] | {"new": False} == told["events"][0]
    file.write_bytes(report_about(uuid4()))
    assert "no known message" in cli("report", str(file), code=1).out
    file.write_bytes(reports.AUTO_REPLY)
    assert "neither a delivery report nor a complaint" in cli("report", str(file), code=1).err
    assert "cannot be read" in cli("report", str(tmp_path / "none.eml"), code=1).err


# --- at rest


async def test_what_was_heard_goes_with_its_message(door: Door) -> None:
    mail = await left(door, ADA)
    assert await door.twin.feed(mail, "delivered") == 200
    database = door.api.database
    await database.execute(
        "UPDATE pillarbox.feedback_tokens SET expires_at = now() - interval '1 s'"
    )
    old = UUID(int=UUID(mail.message_uuid).int & (2**80 - 1) | 1_000_000_000_000 << 80)
    for table, column in (
        ("messages", "id"),
        ("deliveries", "message_id"),
        ("feedback", "message_id"),
    ):
        await database.execute(f"UPDATE pillarbox.{table} SET {column} = $1", old)
    dropped = await purge(database, None, 86400.0, 100)
    assert dropped["messages"] == 1
    assert await database.fetchval("SELECT count(*) FROM pillarbox.feedback") == 0
    assert await database.fetchval("SELECT count(*) FROM pillarbox.feedback_tokens") == 0


async def test_a_notification_while_a_worker_has_the_mail_counts_after_it(
    database_url: str,
) -> None:
    async with (
        SendGridTwin() as twin,
        working(database_url, secret_keys=generate_key(), http="127.0.0.1:0") as app,
    ):
        provider_id = await add_twin(app, twin, "sendgrid")
        async with serving(app) as url:
            twin.webhook_url = f"{url}/webhooks/sendgrid/{provider_id}"
            twin.dials = Dials(latency=1.0)
            message_id = await enqueue(app.database, ADA)
            mail = await twin.next_mail()
            assert await states(app.database, message_id) == ["processing"]
            assert await twin.feed(mail, "delivered") == 200
            assert await states(app.database, message_id) == ["processing"]
            await settled(app.database, message_id, "delivered")


async def test_a_topic_is_confirmed_over_http(database_url: str) -> None:
    async with door_of("ses", database_url) as door:
        assert isinstance(door.twin, SesTwin)
        assert await door.twin.subscribe(topic=door.twin.topic + "2") == 403
        assert await door.twin.subscribe() == 200
        assert door.twin.confirmed == [door.twin.topic]


async def test_a_token_counts_once_for_all_processes(database_url: str) -> None:
    async with door_of("mailgun", database_url) as door:
        assert isinstance(door.twin, MailgunTwin)
        mail = await left(door, ADA)
        headers, body = door.twin.event(mail, "delivered")
        altered = json.loads(body)
        altered["event-data"] |= {"id": "another", "event": "complained"}
        both = [(headers, body), (headers, json.dumps(altered).encode())]
        answers = await asyncio.gather(*(door.post(one, head) for head, one in both * 10))
        assert sorted(status for status, *_ in answers) == [200] * 10 + [403] * 10


async def test_eventually_the_metrics_tell(door: Door) -> None:
    mail = await left(door, ADA)
    await door.twin.feed(mail, "delivered")
    await door.twin.feed(mail, "delivered", forged=True)

    async def told() -> bool:
        text = door.api.app.metrics.render().decode()
        return (
            f'pillarbox_feedback_total{{kind="delivered",provider="{door.twin.kind}"}} 1.0' in text
            and f'pillarbox_feedback_refused_total{{provider="{door.twin.kind}",reason="signature"}} 1.0'
            in text
        )

    await eventually(told)
