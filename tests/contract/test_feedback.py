"""The contract of the Feedback port, and of what becomes of what is heard: for every provider alike."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
from tests.contract.feedbacks import ADA, BOB, World, leave, posted, twin_mail, world_of
from tests.harness import add_twin, enqueue

from pillarbox.errors import Forged, NotFound
from pillarbox.model.provider_kinds import KINDS
from pillarbox.store import providers
from pillarbox.testing.twins import SesTwin
from pillarbox.track.feedback.sns import SnsCertificates
from pillarbox.track.feedback_receiver import UnreadableFeedback


@pytest.fixture(params=[kind.name for kind in KINDS.values() if kind.feedback])
async def world(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[World]:
    async with world_of(request.param, database_url) as world:
        yield world


# --- what is said


@pytest.mark.req("REQ-QUEUE-E007")
@pytest.mark.parametrize(
    ("told", "kind", "state"),
    [
        ("delivered", "delivered", "delivered"),
        ("bounced", "bounced", "bounced"),
        ("complained", "complained", "complained"),
        ("dropped", "dropped", "bounced"),
        ("deferred", "deferred", "sent"),
        ("opened", "opened", "sent"),
        ("clicked", "clicked", "sent"),
        ("unsubscribed", "unsubscribed", "sent"),
    ],
)
async def test_what_a_provider_tells_becomes_an_event_and_a_state(
    world: World, told: str, kind: str, state: str
) -> None:
    mail = await world.sent()
    assert await world.tell(mail, told) == 1
    assert (await world.kinds(mail), await world.states(mail)) == ([kind], [state])
    assert world.metric("feedback_total", provider=world.twin.kind, kind=kind) == 1


async def test_a_bounce_for_now_is_no_reason_to_suppress(world: World) -> None:
    mail = await world.sent()
    await world.tell(mail, "soft_bounced")
    assert await world.app.database.fetchval("SELECT count(*) FROM pillarbox.suppressions") == 0


@pytest.mark.parametrize(
    ("told", "reason"),
    [("bounced", "hard_bounce"), ("complained", "complaint"), ("unsubscribed", "unsubscribed")],
)
async def test_addresses_that_want_no_mail_are_suppressed(
    world: World, told: str, reason: str
) -> None:
    mail = await world.sent(BOB)
    await world.tell(mail, told)
    [row] = await world.app.database.fetch("SELECT * FROM pillarbox.suppressions")
    assert (row["tenant_id"], row["address"], row["reason"]) == (1, BOB.lower(), reason)
    assert str(row["message_id"]) == mail.message_uuid


async def test_a_bounce_says_why(world: World) -> None:
    mail = await world.sent()
    await world.tell(mail, "bounced")
    [row] = await world.app.database.fetch(
        "SELECT d.reason, e.data FROM pillarbox.deliveries d, pillarbox.events e"
    )
    data = json.loads(row["data"])
    assert row["reason"] == data["reason"] == "invalid_recipient"
    assert (data["provider"], data["hard"]) == (world.twin.kind, True)
    assert "5.1.1" in data["text"]


async def test_only_the_recipient_it_is_about_changes(world: World) -> None:
    mail = await world.sent(ADA, BOB, "eve@mail.example")
    await world.tell(mail, "bounced", BOB.upper())
    assert await world.states(mail) == ["sent", "bounced", "sent"]


async def test_an_address_is_known_in_both_spellings_of_its_domain(world: World) -> None:
    mail = await world.sent("ada@bücher.example", ADA)
    await world.tell(mail, "delivered", "ada@xn--bcher-kva.example")
    assert await world.states(mail) == ["delivered", "sent"]


async def test_what_is_kept_names_nobody(world: World) -> None:
    mail = await world.sent()
    for kind in ("delivered", "bounced", "complained", "clicked"):
        await world.tell(mail, kind)
    rows = await world.app.database.fetch(
        "SELECT data::text || coalesce(raw::text, '') AS kept FROM pillarbox.feedback"
        " UNION ALL SELECT data::text FROM pillarbox.events"
    )
    assert len(rows) == 8
    for row in rows:
        for secret in (ADA, "Hello", "sender@shop.example", "192.0.2.1"):
            assert secret not in row["kept"]


# --- who says it


async def refused(
    world: World, signed: tuple[dict[str, str], bytes], reason: str | None = None
) -> None:
    """It is refused and changes nothing."""
    before = await world.everything()
    with pytest.raises(Forged) as raised:
        await world.take(signed)
    assert await world.everything() == before
    assert reason is None or raised.value.reason == reason
    assert (
        world.metric("feedback_refused_total", provider=world.twin.kind, reason=raised.value.reason)
        == 1
    )


async def test_a_forged_request_changes_nothing(world: World) -> None:
    mail = await world.sent()
    await refused(world, world.twin.event(mail, "bounced", forged=True), "signature")


async def test_a_request_without_a_signature_changes_nothing(world: World) -> None:
    mail = await world.sent()
    _, body = world.twin.event(mail, "bounced")
    given = json.loads(body)
    if isinstance(given, dict):
        for name in ("Signature", "signature"):
            given.pop(name, None)
    await refused(world, ({}, json.dumps(given).encode()))


async def test_a_request_altered_by_one_byte_changes_nothing(world: World) -> None:
    """Mailgun signs its token, not the body: there the token is altered, and the next test shows the rest."""
    mail = await world.sent()
    headers, body = world.twin.event(mail, "delivered")
    mark = b'"token": "' if world.twin.kind == "mailgun" else str(mail.message_uuid).encode()[:10]
    place = body.index(mark) + len(mark)
    altered = body[:place] + (b"0" if body[place : place + 1] != b"0" else b"1") + body[place + 1 :]
    await refused(world, (headers, altered), "signature")


async def test_a_token_is_good_for_one_body(database_url: str) -> None:
    async with world_of("mailgun", database_url) as world:
        mail = await world.sent()
        headers, body = world.twin.event(mail, "delivered")
        assert await world.take((headers, body)) == 1
        event = json.loads(body)
        event["event-data"] |= {"event": "complained", "id": "another"}
        await refused(world, (headers, json.dumps(event).encode()), "replayed")
        assert (
            await world.take((headers, body)) == 1
        )  # the very same is welcome, and changes nothing
        assert await world.kinds(mail) == ["delivered"]


@pytest.mark.parametrize("later", [2 * 86400, -3600])
async def test_a_request_of_another_time_is_refused(world: World, later: float) -> None:
    mail = await world.sent()
    [provider] = await providers.list_providers(world.app.database, world.app.keys)
    feedback = world.app.build_feedback(provider)
    with pytest.raises(Forged) as raised:
        await feedback.verify(posted(*world.twin.event(mail, "bounced")), time.time() + later)
    await feedback.close()
    assert raised.value.reason == "stale"


async def test_a_provider_without_a_key_believes_nobody(world: World) -> None:
    await world.app.database.execute(
        "UPDATE pillarbox.providers SET settings = settings - 'webhook_key' - 'topics', webhook_secret = NULL"
    )
    mail = await world.sent()
    await refused(world, world.twin.event(mail, "bounced"), "no_key")


async def test_a_request_for_another_kind_or_number_finds_nobody(world: World) -> None:
    signed = posted(*world.twin.event(await world.sent(), "bounced"))
    for kind, number in ((world.twin.kind, world.provider_id + 1), ("smtp", world.provider_id)):
        with pytest.raises(NotFound):
            await world.app.feedback_receiver.take(kind, number, signed)


async def test_a_provider_says_nothing_about_mails_that_it_never_had(world: World) -> None:
    """Whoever owns an account could name any message: only those count that were handed to it."""
    other = await add_twin(world.app, world.twin, "another")
    message_id = await enqueue(world.app.database, ADA)
    await leave(world.app, message_id, other)
    mail = twin_mail(message_id, ADA)
    before = await world.everything()
    assert await world.tell(mail, "bounced") == 1
    assert await world.everything() == before
    assert world.metric("feedback_unmatched_total") == 1
    assert await world.take(world.twin.event(mail, "bounced"), other) == 1
    assert await world.states(mail) == ["bounced"]


# --- twice, late, in any order, about nothing, and nonsense


async def test_what_is_told_twice_counts_once(world: World) -> None:
    mail = await world.sent()
    signed = world.twin.event(mail, "complained")
    assert [await world.take(signed), await world.take(signed)] == [1, 1]
    assert await world.kinds(mail) == ["complained"]
    assert world.metric("feedback_total", provider=world.twin.kind, kind="complained") == 1


@pytest.mark.req("REQ-QUEUE-U002")
@pytest.mark.parametrize(
    "order", list(itertools.permutations(["delivered", "bounced", "complained"]))
)
async def test_the_order_of_arrival_does_not_matter(world: World, order: tuple[str, ...]) -> None:
    mail = await world.sent()
    for kind in order:
        await world.tell(mail, kind)
    assert await world.states(mail) == ["complained"]
    assert await world.kinds(mail) == list(order)


async def test_a_late_delivery_does_not_undo_a_bounce(world: World) -> None:
    mail = await world.sent()
    await world.tell(mail, "bounced")
    await world.tell(mail, "delivered")
    assert await world.states(mail) == ["bounced"]


async def test_feedback_about_no_message_of_ours_is_counted(world: World) -> None:
    before = await world.everything()
    assert await world.tell(twin_mail(uuid4(), ADA), "bounced") == 1
    assert await world.everything() == before
    assert world.metric("feedback_unmatched_total") == 1


GARBAGE = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"[" * 100_000,
    b"\xff\xfe\x00",
    b'{"signature": 1}',
    b'{"Type": ["x"]}',
    b"[1,2]",
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_is_refused(world: World, body: bytes) -> None:
    await refused(world, ({}, body))


@pytest.mark.parametrize(
    "events",
    [
        [1, None, "x", {}, {"event": 7}, {"event": ["x"]}, {"event": "bounce"}],
        [{"event": "bounce", "sg_event_id": "x" * 10**6}],
    ],
)
async def test_true_nonsense_changes_nothing(database_url: str, events: list[object]) -> None:
    async with world_of("sendgrid", database_url) as world:
        assert await world.take(world.twin.sign(events)) == 0  # type: ignore[arg-type]
        with pytest.raises(UnreadableFeedback):
            await world.take(world.twin.sign({"not": "a list"}))  # type: ignore[arg-type]


async def test_half_a_letter_in_a_link_does_not_hold_up_the_rest(database_url: str) -> None:
    """PostgreSQL takes none: the whole batch, others' feedback too, would be refused again and again."""
    async with world_of("sendgrid", database_url) as world:
        mail = await world.sent()
        [event] = world.twin.describe(mail, "clicked", mail.recipients[0], {})
        signed = world.twin.sign(
            [event | {"url": "http://\ud800.example/", "why": "\ud800 is half a letter"}]
        )
        assert await world.take(signed) == 1  # type: ignore[arg-type]
        assert await world.kinds(mail) == ["clicked"]


async def test_very_many_events_in_one_request(database_url: str) -> None:
    async with world_of("sendgrid", database_url) as world:
        mail = await world.sent(*(f"reader{n}@mail.example" for n in range(100)))
        events = [event for kind in ("delivered", "opened") for one in mail.recipients
                  for event in world.twin.describe(mail, kind, one, {})] * 6  # fmt: skip
        assert await world.take(world.twin.sign(events)) == 1200
        assert set(await world.states(mail)) == {"delivered"}
        assert len(await world.kinds(mail)) == 200


# --- what was unknown


@pytest.mark.parametrize("state", ["queued", "held", "failed"])
@pytest.mark.parametrize(
    ("told", "then"),
    [("delivered", "delivered"), ("bounced", "bounced"), ("deferred", "sent"), ("opened", "sent")],
)
async def test_feedback_settles_an_unknown_and_cancels_its_resend(
    world: World, state: str, told: str, then: str
) -> None:
    mail = await world.sent(state=state, verdict="unknown")
    await world.tell(mail, told)
    assert await world.states(mail) == [then]


async def test_feedback_does_not_settle_what_was_only_deferred(world: World) -> None:
    mail = await world.sent(state="queued", verdict="deferred")
    await world.tell(mail, "delivered")
    assert await world.states(mail) == ["queued"]


async def test_feedback_waits_for_the_attempt_to_be_settled(world: World) -> None:
    mail = await world.sent(state="processing")
    await world.tell(mail, "bounced")
    assert (await world.states(mail), await world.kinds(mail)) == (["processing"], [])
    assert await world.app.ingest.catch_up() == 0
    await leave(world.app, UUID(mail.message_uuid), world.provider_id)
    assert await world.app.ingest.catch_up() == 1
    assert (await world.states(mail), await world.kinds(mail)) == (["bounced"], ["bounced"])
    assert await world.app.ingest.catch_up() == 0


async def test_what_waited_counts_only_if_the_provider_had_the_mail(world: World) -> None:
    mail = await world.sent(state="processing")
    await world.tell(mail, "bounced")
    await leave(world.app, UUID(mail.message_uuid), world.provider_id + 1)
    assert await world.app.ingest.catch_up() == 0
    assert (await world.states(mail), await world.kinds(mail)) == (["sent"], [])
    assert await world.app.database.fetchval("SELECT count(*) FROM pillarbox.feedback") == 0


async def test_the_body_of_a_secret_mail_goes_when_feedback_settles_it(world: World) -> None:
    message_id = await enqueue(world.app.database, ADA, **{"class": "lifecycle"})
    await leave(world.app, message_id, world.provider_id, "queued", "unknown")
    await world.tell(twin_mail(message_id, ADA), "delivered")
    assert await world.app.database.fetchval("SELECT count(*) FROM pillarbox.contents") == 0


# --- SNS


@pytest.fixture
async def sns(database_url: str) -> AsyncIterator[tuple[World, SesTwin]]:
    async with world_of("ses", database_url) as world:
        assert isinstance(world.twin, SesTwin)
        yield world, world.twin


@pytest.mark.parametrize("version", ["1", "2"])
async def test_both_versions_of_signatures_are_known(
    sns: tuple[World, SesTwin], version: str
) -> None:
    world, twin = sns
    twin.signature_version = version
    mail = await world.sent()
    await world.tell(mail, "delivered")
    assert await world.states(mail) == ["delivered"]
    twin.signature_version = "3"
    await refused(world, twin.event(mail, "bounced"), "signature")


async def test_an_expected_topic_is_confirmed(sns: tuple[World, SesTwin]) -> None:
    world, twin = sns
    assert await world.take(twin.confirmation()) == 0
    assert twin.confirmed == [twin.topic]
    assert await world.take(twin.confirmation("UnsubscribeConfirmation")) == 0
    assert twin.confirmed == [twin.topic]


async def test_no_other_topic_is_confirmed_or_believed(sns: tuple[World, SesTwin]) -> None:
    world, twin = sns
    other = twin.topic + "-of-others"
    await refused(world, twin.confirmation(topic=other), "topic")
    await refused_again(
        world,
        twin.sign(twin.describe(await world.sent(), "bounced", None, {}), topic=other),
        "topic",
    )
    assert twin.confirmed == []


async def refused_again(world: World, signed: tuple[dict[str, str], bytes], reason: str) -> None:
    before = await world.everything()
    with pytest.raises(Forged) as raised:
        await world.take(signed)
    assert (raised.value.reason, await world.everything()) == (reason, before)


async def test_a_forged_confirmation_is_not_followed(sns: tuple[World, SesTwin]) -> None:
    world, twin = sns
    await refused(world, twin.confirmation(forged=True), "signature")
    assert twin.confirmed == []


PEM = "/SimpleNotificationService-" + 32 * "0" + ".pem"
FOREIGN = [
    "https://sns.us-east-1.amazonaws.com.evil.example" + PEM,
    "https://evil.example/https://sns.us-east-1.amazonaws.com" + PEM,
    "https://sns.us-east-1.amazonaws.com@evil.example" + PEM,
    "https://evil.example#sns.us-east-1.amazonaws.com" + PEM,
    "https://sns.eu-west-1.amazonaws.com" + PEM,  # not the topic's region
    "https://sns.us-east-1.amazonaws.com:444" + PEM,
    "https://sns.us-east-1.amazonaws.com/other.pem",
    "https://sns.us-east-1.amazonaws.com" + PEM + "?x=1",
    "http://sns.us-east-1.amazonaws.com" + PEM,
    "https://s3.amazonaws.com" + PEM,
    "http://169.254.169.254/latest/meta-data",
    "file:///etc/passwd",
    "https://[::1" + PEM,
    "",
]


@pytest.mark.parametrize("url", FOREIGN)
async def test_certificates_come_from_amazon_alone(sns: tuple[World, SesTwin], url: str) -> None:
    world, twin = sns
    requests = twin.requests
    twin.certificate_url = url or " "
    await refused(world, twin.event(await world.sent(), "bounced"), "certificate")
    assert twin.requests == requests


async def test_a_certificate_is_fetched_once(sns: tuple[World, SesTwin]) -> None:
    world, twin = sns
    mail = await world.sent()
    requests = twin.requests
    for kind in ("delivered", "bounced", "complained"):
        await world.tell(mail, kind)
    assert twin.requests == requests + 1


async def test_strangers_do_not_make_us_fetch_for_ever(sns: tuple[World, SesTwin]) -> None:
    world, twin = sns
    mail = await world.sent()
    requests = twin.requests
    for number in range(30):
        twin.certificate_url = f"{twin.url}/{number}.pem"
        with pytest.raises(Forged):
            await world.tell(mail, "bounced")
    assert twin.requests == requests + 10


async def test_strangers_do_not_make_us_forget_a_good_certificate(
    sns: tuple[World, SesTwin],
) -> None:
    _, twin = sns
    certificates = SnsCertificates(twin.url)
    try:
        good = json.loads(twin.sign([{}])[1])
        now = time.time()
        await certificates.key_of(good, now)
        for number in range(40):  # over some minutes, as many as are fetched at all
            with pytest.raises(Forged):
                await certificates.key_of(
                    good | {"SigningCertURL": f"{twin.url}/{number}.pem"}, now + number * 6
                )
        requests = twin.requests
        assert await certificates.key_of(good, now + 240)
        assert twin.requests == requests
        assert await certificates.key_of(good, now + 86401), (
            "though others used up what may be fetched in a minute"
        )
    finally:
        await certificates.close()


async def test_nobody_speaks_of_anothers_mail_by_its_message_id(sns: tuple[World, SesTwin]) -> None:
    """Senders choose the Message-ID of finished mails: one who repeats another's must not make that one bounce."""
    world, twin = sns
    mail = await world.sent()
    await world.app.database.execute(
        "UPDATE pillarbox.attempts SET provider_message_id = $1", mail.id
    )
    for theirs, state in (("0102-of-another-mail", "sent"), (mail.id, "bounced")):
        events = twin.describe(mail, "bounced", "nobody@mail.example", {"identity": True})
        events[0]["mail"]["headers"] = [
            {"name": "Message-ID", "value": f"<{mail.message_uuid}@shop.example>"}
        ]
        events[0]["mail"]["messageId"] = theirs
        await world.take(twin.sign(events))
        assert await world.states(mail) == [state]


async def test_notifications_of_an_identity_are_found_by_the_message_id(
    sns: tuple[World, SesTwin],
) -> None:
    world, twin = sns
    mail = await world.sent()
    events = twin.describe(mail, "bounced", ADA, {"identity": True})
    events[0]["mail"]["headers"].append(
        {"name": "Message-ID", "value": f"<{mail.message_uuid.replace('-', '')}@shop.example>"}
    )
    events[0]["mail"]["commonHeaders"]["messageId"] = "<other@amazonses.com>"
    await world.take(twin.sign(events))
    assert await world.states(mail) == ["bounced"]
