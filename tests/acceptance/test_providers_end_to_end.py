"""Mails through twins of the providers, with a real worker: sent, retried, given up, failed over, heard of again."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from tests.acceptance.fleet import TWINS, Fleet, fleet, smtp_door
from tests.harness import attempts, deliveries, enqueue, eventually
from tests.integration.accept.submission_helpers import connected

from pillarbox.deliver.transports import mailgun, sendgrid
from pillarbox.model import retry
from pillarbox.model.provider_kind import TransportLimits
from pillarbox.model.retry import ESP, RetryPolicy
from pillarbox.route import circuit_breaker
from pillarbox.store.database import Database
from pillarbox.testing.twins import Dials
from pillarbox.testing.webhook_receiver import WebhookReceiver

# An address is bad: each provider's own words.
REFUSALS: dict[str, Any] = {
    "sendgrid": {
        "errors": [
            {
                "message": "Does not contain a valid address.",
                "field": "personalizations.0.to.1.email",
            }
        ]
    },
    "ses": {"message": "Illegal address"},
    "mailgun": {"message": "to parameter is not a valid address. please check documentation"},
}
ALL = ("sendgrid", "ses", "mailgun", "smtp")


@pytest.fixture
def no_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider stays in use however often it fails: what one mail comes to is looked at."""
    monkeypatch.setattr(circuit_breaker, "FAILURES_TO_OPEN", 1000)


# --- one provider


@pytest.mark.req("REQ-QUEUE-E003")
@pytest.mark.req("REQ-QUEUE-U003")
@pytest.mark.parametrize("kind", TWINS)
async def test_a_mail_is_sent_and_has_the_providers_id(
    database: Database, database_url: str, kind: str
) -> None:
    async with fleet(database, database_url, kind) as one:
        message_id = await enqueue(
            database, "ada@mail.example", "bob@mail.example", subject="Hello", text="Hi, you!"
        )
        rows = await one.ended(message_id, "sent", "sent", made=1)
        assert all(
            row["settled_at"] is not None and row["provider_id"] == one.ids[kind] for row in rows
        )
        mails = one[kind].mails
        assert sorted(to for mail in mails for to in mail.recipients) == [
            "ada@mail.example",
            "bob@mail.example",
        ]
        assert {mail.message_uuid for mail in mails} == {str(message_id)}
        named = {row["provider_message_id"] for row in await attempts(database, message_id)}
        assert named == {mail.id.strip("<>") for mail in mails}


@pytest.mark.req("REQ-QUEUE-E004")
@pytest.mark.req("REQ-QUEUE-E006")
@pytest.mark.req("REQ-QUEUE-S001")
@pytest.mark.req("REQ-QUEUE-E008")
@pytest.mark.parametrize("kind", TWINS)
async def test_five_retries_by_esp_then_a_dead_letter_that_can_be_sent_again(
    database: Database, database_url: str, kind: str, no_breakers: None
) -> None:
    async with fleet(database, database_url, kind) as one:
        one[kind].dials = Dials(status=503)
        message_id = await enqueue(database)
        for made, wait in enumerate(ESP.schedule(), 1):
            [row] = await one.ended(message_id, "queued", made=made)
            last = (await attempts(database, message_id))[-1]
            assert (last["verdict"], last["reason"], last["code"]) == (
                "deferred",
                "unavailable",
                503,
            )
            waits = (row["next_attempt_at"] - last["ended_at"]).total_seconds()
            assert wait * ESP.low - 1 <= waits <= wait * ESP.high + 1
            assert row["retry"] == "esp"
            await one.due()
        [row] = await one.ended(message_id, "failed", made=6)
        assert row["reason"] == "unavailable"
        one[kind].dials = Dials()
        await _reprocessed(one, str(message_id))
        await one.ended(message_id, "sent", made=1)
        assert len(await attempts(database, message_id)) == 7, "the history stays"
        assert len(one[kind].mails) == 1


async def _reprocessed(one: Fleet, message_id: str) -> None:
    """The tenant finds its dead letter and sends it again."""
    assert await one.dead_letters() == [(message_id, ["unavailable"])]
    answer = await one.api.post("/dlq/reprocess", {"message_ids": [message_id]})
    assert (answer.status, answer.json["requeued"]) == (200, 1)


@pytest.mark.req("REQ-QUEUE-S005")
@pytest.mark.req("REQ-QUEUE-E004")
@pytest.mark.parametrize("kind", TWINS)
async def test_a_pause_that_a_provider_asks_for_is_kept(
    database: Database, database_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "ESP", RetryPolicy("esp", 6, lambda made: 0.01))
    async with fleet(database, database_url, kind) as one:
        one[kind].dials = Dials(status=429, retry_after=1, times=1)
        message_id = await enqueue(database)
        await one.ended(message_id, "sent", made=2)
        first, second = await attempts(database, message_id)
        assert (first["reason"], first["code"]) == ("rate_limited", 429)
        assert (second["started_at"] - first["ended_at"]).total_seconds() >= 0.95
        one[kind].dials = Dials(status=429, retry_after=5000, times=1)
        later = await enqueue(database)
        [row] = await one.ended(later, "queued", made=1)
        [only] = await attempts(database, later)
        waits = (row["next_attempt_at"] - only["ended_at"]).total_seconds()
        assert 3590 <= waits <= 3610, "no more than an hour"
        assert await database.fetchval("SELECT state FROM pillarbox.provider_health") in (
            None,
            "closed",
        )


@pytest.mark.req("REQ-QUEUE-N002")
@pytest.mark.req("REQ-QUEUE-E005")
async def test_what_fails_for_good_is_a_dead_letter_at_once(
    database: Database, database_url: str
) -> None:
    """A sender that is not verified, with providers behind that would take it: the first that answers decides."""
    async with fleet(database, database_url, "sendgrid") as one:
        one["sendgrid"].verified = ["shop.example"]  # type: ignore[attr-defined]
        blocked = await enqueue(database, sender="spoof@elsewhere.example")
        fine = await enqueue(database)
        [row] = await one.ended(blocked, "failed", made=1)
        await one.ended(fine, "sent", made=1)
        assert row["reason"] == "blocked_sender"
        assert await one.dead_letters() == [(str(blocked), ["blocked_sender"])]
        assert (
            await database.fetchval(
                "SELECT count(*) FROM pillarbox.provider_health WHERE state <> 'closed'"
            )
            == 0
        )


# --- feedback


@pytest.mark.req("REQ-QUEUE-E007")
@pytest.mark.req("REQ-QUEUE-U002")
@pytest.mark.parametrize("kind", TWINS)
async def test_signed_feedback_moves_each_recipient_and_tells_the_customer(
    database: Database, database_url: str, kind: str
) -> None:
    people = ("ada@mail.example", "bob@mail.example", "cyd@mail.example")
    async with fleet(database, database_url, kind) as one, WebhookReceiver() as receiver:
        made = await one.api.post("/webhooks", {"url": receiver.url})
        receiver.secrets.append(made.json["secret"])
        message_id = await enqueue(database, *people)
        await one.ended(message_id, "sent", "sent", "sent")
        for person, told in zip(people, ("delivered", "bounced", "complained"), strict=True):
            [mail] = [mail for mail in one[kind].mails if person in mail.recipients]
            assert await one[kind].feed(mail, told, person) == 200  # type: ignore[arg-type]
            assert await one[kind].feed(mail, "bounced", person, forged=True) == 403
        await one.ended(message_id, "delivered", "bounced", "complained")
        await receiver.wait_for(lambda: len(receiver.calls) >= 6)
        assert all(call.told for call in receiver.calls), "a signature does not fit"
        heard = {(call.data["recipient"], call.type) for call in receiver.calls}
        ends = zip(people, ("delivered", "bounced", "complained"), strict=True)
        assert heard == {(to, "message.sent") for to in people} | {
            (to, f"message.{end}") for to, end in ends
        }
        again = await enqueue(database, *people)
        rows = await one.ended(again, "sent", "failed", "failed")
        assert [row["reason"] for row in rows] == [None, "suppressed", "suppressed"]


# --- answers that were lost


@pytest.mark.parametrize("kind", TWINS)
async def test_what_becomes_of_a_mail_whose_answer_was_lost_is_its_classes_choice(
    database: Database, database_url: str, kind: str, no_breakers: None
) -> None:
    """All three left, nobody saw the answer; what the provider tells later settles them, and cancels a resend."""
    for name in ("resend", "hold", "wait"):
        await database.execute(
            "INSERT INTO pillarbox.classes (name, unknown) VALUES ($1, $1)", name
        )
    async with fleet(database, database_url, kind) as one:
        found = {}
        for name in ("resend", "hold", "wait"):
            one[kind].dials = Dials(drop="after", times=1)
            found[name] = await enqueue(database, **{"class": name})
            [row] = await one.ended(found[name], "held" if name == "hold" else "queued", made=1)
            assert row["reason"] == "lost"
            assert await one.through(found[name]) == [(kind, "unknown", "lost")]
            [last] = await attempts(database, found[name])
            waits = (row["next_attempt_at"] - last["ended_at"]).total_seconds()
            assert name == "hold" or (waits < 31 if name == "resend" else waits > 890)
        first = {mail.message_uuid: mail for mail in one[kind].mails}
        for name in ("hold", "wait"):
            assert await one[kind].feed(first[str(found[name])], "delivered") == 200
            await one.ended(found[name], "delivered")
        await one.due()
        await one.ended(found["resend"], "sent", made=2)
        sent = Counter(mail.message_uuid for mail in one[kind].mails)
        assert sent == {str(found["resend"]): 2, str(found["hold"]): 1, str(found["wait"]): 1}


# --- several providers


@pytest.mark.req("REQ-QUEUE-S007")
@pytest.mark.req("REQ-QUEUE-E009")
async def test_the_default_order_is_followed_down_to_the_relay(
    database: Database, database_url: str, no_breakers: None
) -> None:
    async with fleet(database, database_url, *ALL) as one:
        trouble: list[tuple[str, str, str]] = []
        for kind, after in zip(ALL, (*ALL[1:], None), strict=True):
            message_id = await enqueue(database)
            [row] = await one.ended(message_id, "sent", made=1)
            assert row["provider_id"] == one.ids[kind]
            await one.failed_over(message_id, *trouble)
            if after is not None:
                one[kind].dials = Dials(status=500)
                trouble.append((kind, after, "unavailable"))
        assert [len(one[kind].mails) for kind in ALL[:3]] == [1, 1, 1]
        assert len(one.relay.mails) == 1
        said = await database.fetchval(
            "SELECT lines FROM pillarbox.conversations WHERE message_id = $1", message_id
        )
        assert [said.count(f"--- {kind}\n") for kind in ALL[:3]] == [1, 1, 1], (
            "the whole way can be read back"
        )


@pytest.mark.req("REQ-QUEUE-S002")
@pytest.mark.parametrize("trouble", ["credential", "suspended", "paused", "quota"])
async def test_trouble_with_an_account_sends_all_mails_elsewhere(
    database: Database, database_url: str, trouble: Any
) -> None:
    async with fleet(database, database_url, "sendgrid", "ses") as one:
        one["sendgrid"].dials = Dials(trouble=trouble)
        first = await enqueue(database)
        await one.ended(first, "sent", made=1)
        await one.failed_over(first, ("sendgrid", "ses", trouble))
        state = "SELECT state FROM pillarbox.provider_health WHERE provider_id = $1 AND reason = $2"
        await eventually(lambda: _is_open(database, state, one.ids["sendgrid"], trouble))
        asked = one["sendgrid"].requests
        second = await enqueue(database)
        await one.ended(second, "sent", made=1)
        await one.failed_over(second)
        assert one["sendgrid"].requests == asked, "it was not asked again"


async def _is_open(database: Database, query: str, *arguments: Any) -> bool:
    return await database.fetchval(query, *arguments) == "open"


# --- what a provider cannot carry, or may not


@pytest.mark.req("REQ-QUEUE-S006")
async def test_a_mail_too_big_for_one_provider_leaves_through_the_next(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mailgun.MailgunApi, "limits", TransportLimits(max_bytes=5_000, max_recipients=100)
    )
    async with fleet(database, database_url, "mailgun", "smtp") as one:
        large, small = await enqueue(database, text="x" * 6_000), await enqueue(database)
        assert [row["provider_id"] for row in await one.ended(large, "sent", made=1)] == [
            one.ids["smtp"]
        ]
        assert [row["provider_id"] for row in await one.ended(small, "sent", made=1)] == [
            one.ids["mailgun"]
        ]


@pytest.mark.req("REQ-QUEUE-S006")
async def test_a_mail_too_big_for_all_fails_for_good(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mailgun.MailgunApi, "limits", TransportLimits(max_bytes=5_000, max_recipients=100)
    )
    async with fleet(database, database_url, "mailgun") as one:
        message_id = await enqueue(database, text="x" * 6_000)
        assert [row["reason"] for row in await one.ended(message_id, "failed", made=1)] == [
            "too_big"
        ]
        assert one["mailgun"].mails == []


@pytest.mark.req("REQ-QUEUE-S006")
async def test_a_mail_that_only_grows_too_big_for_the_providers_format_leaves_through_the_next(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SendGrid counts its JSON, which can be far larger than the mail: known only when it is made."""
    monkeypatch.setattr(sendgrid, "MAX_REQUEST", 20_000)
    async with fleet(database, database_url, "sendgrid", "ses") as one:
        message_id = await enqueue(database, text="\x01" * 6_000)
        assert [row["provider_id"] for row in await one.ended(message_id, "sent", made=1)] == [
            one.ids["ses"]
        ]


@pytest.mark.req("REQ-QUEUE-S006")
@pytest.mark.parametrize("behind", ["ses", None])
async def test_a_finished_mail_passes_sendgrid_by(
    database: Database, database_url: str, behind: str | None
) -> None:
    """A mail by SMTP is sent byte for byte, signed or not; SendGrid would write its own."""
    kinds = ("sendgrid", behind) if behind else ("sendgrid",)
    async with (
        fleet(database, database_url, *kinds) as one,
        smtp_door(one.app) as port,
        connected(port) as client,
    ):
        said = await client.mail(b"Subject: hello\r\nX-Signed: by me\r\n\r\nbyte for byte\r\n")
        message_id = UUID(said.split()[-1])
        if behind:
            await one.ended(message_id, "sent", made=1)
            assert b"X-Signed: by me\r\n\r\nbyte for byte" in (one[behind].mails[0].mime or b"")
        else:
            assert [row["reason"] for row in await one.ended(message_id, "failed", made=1)] == [
                "unsupported"
            ]
            [attempt] = await attempts(database, message_id)
            assert attempt["reply"] == "sendgrid takes no finished mails"
        assert one["sendgrid"].requests <= 1, "but for a check"


@pytest.mark.req("REQ-QUEUE-O002")
async def test_a_hundred_recipients_leave_in_calls_of_fifty(
    database: Database, database_url: str, no_breakers: None
) -> None:
    """The first call fails: those of the second have their mail, and only the others are tried again."""
    people = [f"reader{n}@mail.example" for n in range(100)]
    async with fleet(database, database_url, "ses") as one:
        one["ses"].dials = Dials(status=503, times=1)
        message_id = await enqueue(database, *people)
        rows = await one.ended(message_id, *["queued"] * 50, *["sent"] * 50, made=1)
        assert {row["reason"] for row in rows[:50]} == {"unavailable"}
        await one.due()
        await one.ended(message_id, *["sent"] * 100)
        assert [len(mail.recipients) for mail in one["ses"].mails] == [50, 50]
        assert Counter(to for mail in one["ses"].mails for to in mail.recipients) == Counter(people)
        named = {row["provider_message_id"] for row in await attempts(database, message_id)}
        assert named == {None, *(mail.id for mail in one["ses"].mails)}


@pytest.mark.req("REQ-QUEUE-O002")
@pytest.mark.parametrize("kind", TWINS)
async def test_one_bad_address_does_not_take_the_others_along(
    database: Database, database_url: str, kind: str
) -> None:
    """The provider refuses the whole call for one recipient; outcomes stay those of each."""
    people = ["ada@mail.example", "bob@mail.example", "cyd@mail.example"]
    async with fleet(database, database_url, kind) as one:
        one[kind].dials = Dials(status=400, body=REFUSALS[kind], times=1)
        message_id = await enqueue(database, *people)
        if kind == "sendgrid":  # it says whom
            rows = await one.ended(message_id, "sent", "failed", "sent", made=1)
            assert rows[1]["reason"] == "invalid_recipient"
        else:  # it does not: they are tried one by one
            await one.ended(message_id, "sent", "sent", "sent", made=1)
            assert [mail.recipients for mail in one[kind].mails] == [(to,) for to in people]


async def test_a_budget_that_is_used_up_sends_mails_elsewhere_or_lets_them_wait(
    database: Database, database_url: str
) -> None:
    """A mail costs 1: SES may spend 10 a month, of which the last is for urgent ones; Mailgun 2, for any."""
    await database.execute(
        "ALTER TABLE pillarbox.providers ALTER price_per_thousand SET DEFAULT 1000,"
        " ALTER budget_per_month SET DEFAULT 10"
    )
    async with fleet(database, database_url, "ses", "mailgun") as one:
        await database.execute(
            "INSERT INTO pillarbox.provider_spending VALUES ($1, date_trunc('month', now() AT TIME ZONE 'UTC'), 7)",
            one.ids["mailgun"],
        )
        ids = [await enqueue(database) for _ in range(11)]
        for message_id in ids:
            await one.ended(message_id, "sent", made=1)
        assert (len(one["ses"].mails), len(one["mailgun"].mails)) == (9, 2)
        late = await enqueue(database)

        async def aside() -> bool:
            [row] = await deliveries(database, late)
            return (row["state"], row["reason"], row["attempts"]) == ("pending", "budget", 0)

        await eventually(aside)
        urgent = await enqueue(database, priority="urgent")
        [row] = await one.ended(urgent, "sent", made=1)
        assert row["provider_id"] == one.ids["ses"]
