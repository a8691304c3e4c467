"""The SMTP transport against a scripted server: what it says, and what each answer means."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter

import pytest

from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.errors import NotStarted
from pillarbox.model.outcome import Reason, Verdict
from pillarbox.testing.sink import Sink
from pillarbox.testing.smtp import Extensions, Faults, Session, Trickle
from tests.integration.deliver.smtp_helpers import (
    MAIL,
    outgoing,
    send,
    send_one,
    settings_for,
    talking,
    told,
)

ACCEPTED = (Verdict.ACCEPTED, None)
PIPELINING = pytest.mark.parametrize("pipelining", [True, False])


# --- what is said ---


@PIPELINING
async def test_a_mail_arrives_as_it_was(pipelining: bool) -> None:
    async with talking(extensions=Extensions(pipelining=pipelining)) as (server, transport):
        [report] = await send(transport, outgoing("b@x.test", "c@x.test"))
        mail = await server.next_mail()
    assert told(report) == [ACCEPTED, ACCEPTED]
    assert report.plainly_accepted
    assert report.transcript is None
    assert report.started <= report.ended
    assert report.outcomes[0].code == 250
    assert (mail.sender, mail.recipients, mail.content) == (
        "a@x.test",
        ("b@x.test", "c@x.test"),
        MAIL,
    )
    assert mail.parameters == {"SIZE": str(len(MAIL))}
    assert mail.helo == "client.test"
    assert server.violations == []


@pytest.mark.parametrize(
    ("content", "arrives"),
    [
        (b".begins: with a dot\r\n\r\n.\r\n..\r\nx\r\n", None),
        (b"Subject: x\r\n\r\nno line end", b"Subject: x\r\n\r\nno line end\r\n"),
        (b"Subject: x\r\n\r\n.", b"Subject: x\r\n\r\n.\r\n"),
        (b"Subject: x\r\n\r\n" + b"." * 900 + b"\r\n.\r\n", None),
        (b"Subject: x\r\n\r\n" + b".y\r\n" * 100_000, None),  # several slices, all of them stuffed
        (b"Subject: x\r\n\r\n" + b"y" * 98 + b"\r\n" + (b"z" * 98 + b"\r\n") * 5000, None),
    ],
)
async def test_content_survives_transparency(content: bytes, arrives: bytes | None) -> None:
    async with talking() as (server, transport):
        assert (await send_one(transport, outgoing(content=content))).verdict is Verdict.ACCEPTED
        assert (await server.next_mail()).content == (arrives or content)
    assert server.violations == []


async def test_the_envelope_goes_out_in_one_group_and_the_next_behind_the_content() -> None:
    """Each dial waits for bytes that come early only from a pipelining client."""

    async def whole_envelope(session: Session, argument: str) -> None:
        while b"DATA\r\n" not in session.wire.buffer:
            await session.wire.more()

    async def next_envelope(session: Session, argument: str) -> None:
        while session.mails < 4 and b"DATA\r\n" not in session.wire.buffer:
            await session.wire.more()

    async with talking(Faults(mail=whole_envelope, body=next_envelope), connections=1) as (
        server,
        transport,
    ):
        reports = await send(transport, *(outgoing(f"{number}@x.test") for number in range(5)))
    assert [told(report) for report in reports] == [[ACCEPTED]] * 5
    assert [mail.recipients[0] for mail in server.mails] == [
        f"{number}@x.test" for number in range(5)
    ]
    assert server.connections == 1
    assert server.violations == []


@PIPELINING
async def test_replies_in_single_bytes(pipelining: bool) -> None:
    slow = Faults(mail=Trickle(), rcpt=Trickle("250-one\n250 two"), data=Trickle(), body=Trickle())
    async with talking(slow, Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        reports = await send(transport, outgoing(), outgoing())
    assert [told(report) for report in reports] == [[ACCEPTED]] * 2
    assert server.violations == []


async def test_a_server_from_before_1995() -> None:
    async with talking(extensions=Extensions(helo_only=True)) as (server, transport):
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
        assert (await server.next_mail()).parameters == {}
    assert server.violations == []


@pytest.mark.req("REQ-QUEUE-E003")
async def test_the_servers_name_for_the_mail_is_kept() -> None:
    async with talking(Faults(body="250 2.0.0 Ok: queued as 4B1C2D")) as (_, transport):
        outcome = await send_one(transport)
    assert (outcome.code, outcome.provider_message_id) == (250, "4B1C2D")
    assert outcome.text == "2.0.0 Ok: queued as 4B1C2D"


async def test_a_big_body_is_neither_copied_nor_buffered() -> None:
    big = MAIL + (b"x" * 98 + b"\r\n") * 262_000  # 25 MiB, what large providers take
    async with Sink() as sink:
        transport = SmtpTransport(settings_for(sink))
        tracemalloc.start()
        try:
            outcome = await send_one(transport, outgoing(content=big))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await transport.close()
    assert outcome.verdict is Verdict.ACCEPTED
    assert peak < 5_000_000


# --- what the server cannot carry ---


@pytest.mark.req("REQ-QUEUE-S006")
async def test_size_is_respected_without_sending() -> None:
    async with talking(extensions=Extensions(size=1000)) as (server, transport):
        outcome = await send_one(transport, outgoing(content=MAIL + b"x" * 1000))
        assert (outcome.verdict, outcome.reason) == (Verdict.REJECTED, Reason.TOO_BIG)
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert Counter(line[:4] for line in server.commands)["MAIL"] == 1


@pytest.mark.parametrize(
    ("extensions", "content", "outcome"),
    [
        (Extensions(), "Subject: x\r\n\r\nü\r\n", ACCEPTED),
        (Extensions(), "Subject: ü\r\n\r\nx\r\n", ACCEPTED),
        (
            Extensions(eight_bit_mime=False),
            "Subject: x\r\n\r\nü\r\n",
            (Verdict.REJECTED, Reason.UNSUPPORTED),
        ),
        (
            Extensions(smtputf8=False),
            "Subject: ü\r\n\r\nx\r\n",
            (Verdict.REJECTED, Reason.UNSUPPORTED),
        ),
        (Extensions(eight_bit_mime=False, smtputf8=False), "Subject: x\r\n\r\nx\r\n", ACCEPTED),
    ],
)
async def test_eight_bit_content(
    extensions: Extensions, content: str, outcome: tuple[Verdict, Reason | None]
) -> None:
    async with talking(extensions=extensions) as (server, transport):
        [report] = await send(transport, outgoing(content=content.encode()))
    assert told(report) == [outcome]
    assert len(server.mails) == (outcome == ACCEPTED)
    assert server.violations == []


async def test_addresses_beyond_ascii() -> None:
    async with talking() as (server, transport):
        await send_one(transport, outgoing("zoë@bücher.example"))
        await send_one(transport, outgoing("zoe@bücher.example"))
    assert [mail.recipients for mail in server.mails] == [
        ("zoë@bücher.example",),
        ("zoe@xn--bcher-kva.example",),
    ]
    assert ["SMTPUTF8" in mail.parameters for mail in server.mails] == [True, False]
    async with talking(extensions=Extensions(smtputf8=False)) as (server, transport):
        [report] = await send(transport, outgoing("zoë@x.test", "b@bücher.example"))
    assert told(report) == [(Verdict.REJECTED, Reason.UNSUPPORTED), ACCEPTED]
    assert server.mails[0].recipients == ("b@xn--bcher-kva.example",)
    assert server.violations == []


@pytest.mark.parametrize(
    "address",
    [
        "b@x.test>\r\nRCPT TO:<evil@x.test",
        "b@x.test\nDATA",
        "b c@x.test",
        "b@x.test>",
        "b\x00@x.test",
    ],
)
async def test_addresses_cannot_inject_commands(address: str) -> None:
    async with talking() as (server, transport):
        [report] = await send(transport, outgoing(address, "good@x.test"))
        assert told(report) == [(Verdict.REJECTED, Reason.MALFORMED), ACCEPTED]
        outcome = await send_one(transport, outgoing(sender=address))
        assert (outcome.verdict, outcome.reason) == (Verdict.REJECTED, Reason.MALFORMED)
    assert [mail.recipients for mail in server.mails] == [("good@x.test",)]
    assert not any("evil" in line for line in server.commands)
    assert server.violations == []


# --- refusals ---


@PIPELINING
@pytest.mark.parametrize("stage", ["mail", "rcpt", "data", "body"])
@pytest.mark.parametrize(
    ("reply", "verdict", "reason"),
    [
        ("451 4.3.0 later", Verdict.DEFERRED, Reason.UNAVAILABLE),
        ("554 5.5.0 never", Verdict.REJECTED, Reason.REFUSED),
        (
            "450-4.7.1 Greylisted\n450 4.7.1 try again in 300 seconds",
            Verdict.DEFERRED,
            Reason.GREYLISTED,
        ),
        ("530 5.7.0 Authentication required", Verdict.DEFERRED, Reason.CREDENTIAL),
    ],
)
async def test_a_refusal_is_reported_and_the_next_mail_goes_through(
    stage: str, reply: str, verdict: Verdict, reason: Reason, pipelining: bool
) -> None:
    faults = Faults(**{stage: [reply]})
    async with talking(faults, Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        first, second, third = await send(
            transport, outgoing(), outgoing("c@x.test"), outgoing("d@x.test")
        )
    assert told(first) == [(verdict, reason)]
    assert first.outcomes[0].code == int(reply[:3])
    assert first.outcomes[0].retry_after == (300 if "300" in reply else None)
    assert told(second) == told(third) == [ACCEPTED]
    assert [mail.recipients for mail in server.mails] == [("c@x.test",), ("d@x.test",)]
    assert server.connections == 1
    assert server.violations == []


@PIPELINING
async def test_each_recipient_has_an_outcome_of_its_own(pipelining: bool) -> None:
    faults = Faults(recipients={"no@x.test": "550 5.1.1 nobody", "later@x.test": "452 4.2.2 full"})
    async with talking(faults, Extensions(pipelining=pipelining)) as (server, transport):
        [report] = await send(
            transport, outgoing("a@x.test", "no@x.test", "b@x.test", "later@x.test")
        )
    assert told(report) == [
        ACCEPTED,
        (Verdict.REJECTED, Reason.INVALID_RECIPIENT),
        ACCEPTED,
        (Verdict.DEFERRED, Reason.MAILBOX_FULL),
    ]
    assert [outcome.code for outcome in report.outcomes] == [250, 550, 250, 452]
    assert [mail.recipients for mail in server.mails] == [("a@x.test", "b@x.test")]
    assert server.violations == []


async def test_a_final_refusal_speaks_only_for_recipients_that_were_accepted() -> None:
    faults = Faults(recipients={"no@x.test": "550 5.1.1 nobody"}, body="451 4.3.0 later")
    async with talking(faults) as (_, transport):
        [report] = await send(transport, outgoing("no@x.test", "b@x.test"))
    assert [outcome.code for outcome in report.outcomes] == [550, 451]


@PIPELINING
@pytest.mark.parametrize("says_354", [True, False])
async def test_nobody_accepted(pipelining: bool, says_354: bool) -> None:
    """Even if the server asks for content all the same, none is sent; the connection stays usable."""
    refused = {"b@x.test": "550 5.1.1 nobody", "c@x.test": "450 4.2.1 later"}
    faults = Faults(recipients=refused, data_without_recipients=says_354)
    async with talking(faults, Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        first, second = await send(
            transport, outgoing("b@x.test", "c@x.test"), outgoing("d@x.test")
        )
        third = await send_one(transport, outgoing("e@x.test"))
    assert [outcome.code for outcome in first.outcomes] == [550, 450]
    assert told(second) == [ACCEPTED]
    assert third.verdict is Verdict.ACCEPTED
    assert [(mail.recipients, mail.content) for mail in server.mails] == [
        (("d@x.test",), MAIL),
        (("e@x.test",), MAIL),
    ]
    assert server.connections == 1
    assert server.violations == []


@pytest.mark.req("REQ-QUEUE-U005")
async def test_conversations_are_kept_for_what_went_wrong() -> None:
    faults = Faults(
        recipients={"no@x.test": "550 5.1.1 nobody\x07 here"}, body=["451 4.3.0 later", None]
    )
    async with talking(faults) as (server, transport):
        [report] = await send(transport, outgoing("no@x.test", "b@x.test"))
        [partial] = await send(transport, outgoing("no@x.test", "b@x.test"))
    lines = (report.transcript or "").splitlines()
    assert lines[0] == f"→ (connect to 127.0.0.1:{server.port}, tls none)"
    assert lines[1].startswith("← 220 smtp.test")
    assert "PIPELINING" in lines[2]
    said = [line.split(" ms ", 1)[1] for line in lines[3:]]
    assert said == [
        f"→ MAIL FROM:<a@x.test> SIZE={len(MAIL)}",
        "→ RCPT TO:<no@x.test>",
        "→ RCPT TO:<b@x.test>",
        "→ DATA",
        "← 250 2.1.0 sender OK",
        "← 550 5.1.1 nobody� here",
        "← 250 2.1.5 recipient OK",
        "← 354 end with a dot",
        f"→ ({len(MAIL)} bytes)",
        "← 451 4.3.0 later",
    ]
    assert told(partial)[1] == ACCEPTED
    assert "← 250 2.0.0 stored as" in (partial.transcript or "")


async def test_a_very_long_conversation_keeps_its_beginning_and_end() -> None:
    async with talking(Faults(body="451 4.3.0 later")) as (_, transport):
        [report] = await send(transport, outgoing(*(f"{number}@x.test" for number in range(1000))))
    transcript = report.transcript or ""
    assert len(transcript) < 21_000
    assert "MAIL FROM" in transcript
    assert "451 4.3.0 later" in transcript
    assert len(report.outcomes) == 1000


# --- the right to begin ---


async def test_a_mail_that_may_not_begin_is_given_back_unsaid() -> None:
    async with talking() as (server, transport):
        with pytest.raises(NotStarted):
            await transport.send(outgoing("late@x.test", may_begin=lambda: False))
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
    assert not any("late" in line for line in server.commands)


@PIPELINING
async def test_the_right_to_begin_is_asked_again_before_the_content(pipelining: bool) -> None:
    answers = iter([True, False])
    async with talking(extensions=Extensions(pipelining=pipelining), connections=1) as (
        server,
        transport,
    ):
        late = transport.send(outgoing("late@x.test", may_begin=lambda: next(answers)))
        results = await asyncio.gather(late, send_one(transport), return_exceptions=True)
    assert isinstance(results[0], NotStarted)
    assert results[1].verdict is Verdict.ACCEPTED
    assert any("late" in line for line in server.commands)
    assert [mail.recipients for mail in server.mails] == [("b@x.test",)]
    assert server.connections == 2  # only hanging up takes 354 back


async def test_a_broken_may_begin_harms_nobody_else() -> None:
    def broken() -> bool:
        raise ValueError("boom")

    async with talking() as (_, transport):
        with pytest.raises(NotStarted, match="boom"):
            await transport.send(outgoing(may_begin=broken))
        assert (await send_one(transport)).verdict is Verdict.ACCEPTED
