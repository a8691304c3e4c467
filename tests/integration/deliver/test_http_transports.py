"""SendGrid, SES and Mailgun against their twins: what answers mean, and what is known when none comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from pillarbox.deliver.transports.base import SendResult
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.errors import NotPossible, NotStarted
from pillarbox.model.message import Content
from pillarbox.model.outcome import TROUBLE, Reason, Verdict
from pillarbox.testing.certificates import make_ca
from pillarbox.testing.twins import Dials, MailgunTwin, SendGridTwin, SesTwin
from pillarbox.testing.twins.base import Twin
from tests import PATIENCE
from tests.contract.transports import calling
from tests.integration.deliver.http_helpers import (
    KEY,
    answering,
    listening,
    outgoing,
    read_request,
    to_url,
)

ON_BOTH_LOOPS = True
TWINS = [SendGridTwin, SesTwin, MailgunTwin]
KINDS = ["sendgrid", "ses", "mailgun"]


class Line(NamedTuple):
    twin: Twin
    transport: HttpTransport


@pytest_asyncio.fixture(params=TWINS, ids=KINDS)
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with request.param() as twin, calling(twin) as transport:
        yield Line(twin, transport)


def ends(report: SendResult) -> list[tuple[Verdict, Reason | None]]:
    return [(one.verdict, one.reason) for one in report.outcomes]


# --- answers


@pytest.mark.req("REQ-QUEUE-E003")
async def test_an_accepted_mail_has_the_providers_id_and_ours(line: Line) -> None:
    sent = outgoing("a@mail.example", "b@mail.example")
    report = await line.transport.send(sent)
    mail = await line.twin.next_mail()
    assert {one.provider_message_id for one in report.outcomes} == {mail.id.strip("<>")}
    assert mail.message_uuid == str(sent.message_id)
    assert mail.headers["x-pillarbox-attempt"] == f"{sent.message_id}/3"


@pytest.mark.req("REQ-QUEUE-U003")
@pytest.mark.req("REQ-QUEUE-E005")
@pytest.mark.parametrize(
    ("status", "end"),
    [
        (408, (Verdict.DEFERRED, Reason.TIMEOUT)),
        (413, (Verdict.REJECTED, Reason.TOO_BIG)),
        (429, (Verdict.DEFERRED, Reason.RATE_LIMITED)),
        (500, (Verdict.DEFERRED, Reason.UNAVAILABLE)),
        (502, (Verdict.DEFERRED, Reason.UNAVAILABLE)),
        (503, (Verdict.DEFERRED, Reason.UNAVAILABLE)),
    ],
)
async def test_statuses_mean_the_same_everywhere(
    line: Line, status: int, end: tuple[Verdict, Reason]
) -> None:
    body = {"message": "because"} if status in (408, 413) else None
    line.twin.dials = Dials(status=status, body=body)
    report = await line.transport.send(outgoing("a@mail.example", "b@mail.example"))
    assert ends(report) == [end] * 2
    assert {one.code for one in report.outcomes} == {status}
    assert line.twin.mails == []


@pytest.mark.req("REQ-QUEUE-S005")
@pytest.mark.parametrize(("said", "kept"), [(7, 7.0), (90_000, 3600.0)])
async def test_it_is_told_how_long_to_wait(line: Line, said: float, kept: float) -> None:
    line.twin.dials = Dials(status=429, retry_after=said)
    [outcome] = (await line.transport.send(outgoing())).outcomes
    assert outcome.retry_after == kept


@pytest.mark.req("REQ-QUEUE-N002")
@pytest.mark.parametrize("trouble", ["credential", "suspended", "paused", "quota"])
async def test_trouble_with_the_account_is_the_providers_not_the_mails(
    line: Line, trouble: str
) -> None:
    line.twin.dials = Dials(trouble=trouble)  # type: ignore[arg-type]
    report = await line.transport.send(outgoing())
    assert ends(report) == [(Verdict.DEFERRED, Reason(trouble))]
    assert Reason(trouble) in TROUBLE


@pytest.mark.req("REQ-QUEUE-N002")
async def test_a_sender_that_is_not_verified_is_refused_for_good() -> None:
    for kind in (SendGridTwin, SesTwin):
        async with kind(verified=["other.example"]) as twin, calling(twin) as transport:
            assert ends(await transport.send(outgoing())) == [
                (Verdict.REJECTED, Reason.BLOCKED_SENDER)
            ]
    async with MailgunTwin(others=["shop.example"]) as twin:
        twin.domain, twin.others = "mg.example.com", ["shop.example"]
        settings = twin.provider_settings
        twin.provider_settings = lambda: settings() | {"domain": "shop.example"}  # type: ignore[method-assign]
        async with calling(twin) as transport:
            assert ends(await transport.send(outgoing())) == [
                (Verdict.REJECTED, Reason.BLOCKED_SENDER)
            ]


async def test_an_address_that_the_provider_calls_invalid_does_not_take_the_others_along(
    line: Line,
) -> None:
    sent = outgoing("a@mail.example", "b@mail.example", "c@mail.example")
    bad = sent.recipients[1]._replace(address="not an address")
    sent.recipients = [sent.recipients[0], bad, sent.recipients[2]]
    report = await line.transport.send(sent)
    fine = (Verdict.ACCEPTED, None)
    assert ends(report) == [fine, (Verdict.REJECTED, Reason.INVALID_RECIPIENT), fine]
    reached = sorted(address for mail in line.twin.mails for address in mail.recipients)
    assert reached == ["a@mail.example", "c@mail.example"]
    assert report.transcript is not None


@pytest.mark.req("REQ-QUEUE-O002")
async def test_a_hundred_recipients_leave_in_as_few_calls_as_the_provider_takes(line: Line) -> None:
    names = [f"{number}@mail.example" for number in range(100)]
    report = await line.transport.send(outgoing(*names))
    assert ends(report) == [(Verdict.ACCEPTED, None)] * 100
    assert line.twin.requests == (2 if line.twin.kind == "ses" else 1)
    assert sorted(one for mail in line.twin.mails for one in mail.recipients) == sorted(names)


async def test_once_a_call_fails_the_rest_of_the_mail_waits() -> None:
    async with SesTwin() as twin, calling(twin) as transport:
        twin.dials = Dials(status=429, times=1, retry_after=9)
        report = await transport.send(outgoing(*(f"{number}@mail.example" for number in range(60))))
        assert set(ends(report)) == {(Verdict.DEFERRED, Reason.RATE_LIMITED)}
        assert {one.retry_after for one in report.outcomes} == {9.0}
        assert twin.requests == 1


# --- no answer


async def test_whoever_cannot_be_reached_got_nothing(free_port: int) -> None:
    for kind in KINDS:
        async with to_url(kind, f"http://127.0.0.1:{free_port}") as transport:
            report = await transport.send(outgoing())
            assert ends(report) == [(Verdict.DEFERRED, Reason.UNAVAILABLE)]
            assert "cannot connect" in str(report.transcript)


@pytest.mark.parametrize("drop", ["before", "after"])
async def test_an_answer_lost_after_the_mail_left_is_unknown(line: Line, drop: str) -> None:
    line.twin.dials = Dials(drop=drop)  # type: ignore[arg-type]
    report = await line.transport.send(outgoing("a@mail.example", "b@mail.example"))
    assert ends(report) == [(Verdict.UNKNOWN, Reason.LOST)] * 2
    assert "may have left" in str(report.transcript)


@pytest.mark.parametrize("kind", TWINS, ids=KINDS)
async def test_no_answer_in_time_after_the_mail_left_is_unknown(kind: type[Twin]) -> None:
    async with kind() as twin, calling(twin, timeout=1) as transport:
        twin.dials = Dials(hang=True)
        assert ends(await transport.send(outgoing())) == [(Verdict.UNKNOWN, Reason.TIMEOUT)]


async def test_a_mail_cut_off_in_the_midst_cannot_have_been_accepted() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        writer.transport.abort()

    big = Content("x" * 40_000_000)
    async with listening(talk) as url, to_url("mailgun", url) as transport:
        assert ends(await transport.send(outgoing(parts=big))) == [
            (Verdict.DEFERRED, Reason.UNAVAILABLE)
        ]


async def test_a_server_that_takes_no_bytes_times_out_without_an_unknown() -> None:
    held = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()

    big = Content("x" * 40_000_000)
    async with listening(talk) as url, to_url("mailgun", url, timeout=1) as transport:
        assert ends(await transport.send(outgoing(parts=big))) == [
            (Verdict.DEFERRED, Reason.TIMEOUT)
        ]
        held.set()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_success_whose_body_breaks_off_is_a_success(kind: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"id": "<')
        await writer.drain()

    async with listening(talk) as url, to_url(kind, url) as transport:
        assert ends(await transport.send(outgoing())) == [(Verdict.ACCEPTED, None)]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_is_not_http_leaves_the_end_unknown(kind: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"220 smtp.example ESMTP\r\n\r\n")
        await writer.drain()

    async with listening(talk) as url, to_url(kind, url) as transport:
        assert ends(await transport.send(outgoing())) == [(Verdict.UNKNOWN, Reason.PROTOCOL)]


# --- what must not happen to a secret


@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_redirect_is_not_followed(kind: str) -> None:
    asked = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1))

    async with listening(elsewhere) as trap:
        for status in (301, 302, 307, 308):
            async with (
                listening(answering(status, headers=[f"Location: {trap}/"])) as url,
                to_url(kind, url) as one,
            ):
                assert ends(await one.send(outgoing())) == [(Verdict.DEFERRED, Reason.PROTOCOL)]
    assert asked == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_certificate_that_cannot_be_verified_gets_nothing(
    kind: str, tmp_path: Path
) -> None:
    seen = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1))

    context = make_ca(tmp_path).issue("127.0.0.1").server_context()
    async with listening(talk, context) as url, to_url(kind, url) as transport:
        assert ends(await transport.send(outgoing())) == [(Verdict.DEFERRED, Reason.TLS)]
        with pytest.raises(NotPossible, match="tls"):
            await transport.check()
    assert seen == []


@pytest.mark.req("REQ-QUEUE-U005")
@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.parametrize("kind", KINDS)
async def test_the_exchange_is_recorded_without_credentials(kind: str) -> None:
    async with (
        listening(answering(503, b'{"message": "busy\\u0000"}', ["X-Request-Id: r-1"])) as url,
        to_url(kind, url) as one,
    ):
        sent = outgoing()
        transcript = str((await one.send(sent)).transcript)
    lines = transcript.splitlines()
    assert "ms → POST /v" in lines[0]
    assert f"X-Pillarbox-Attempt: {sent.message_id}/3" in transcript
    assert "bytes)" in transcript
    assert "ms ← HTTP/1.1 503" in transcript
    assert "x-request-id: r-1" in transcript
    assert "busy" in transcript
    assert KEY not in transcript
    assert "uthorization" not in transcript
    assert "AKIA" not in transcript


async def test_a_babbling_server_fills_no_memory() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with listening(talk) as url, to_url("sendgrid", url) as transport:
        report = await transport.send(outgoing())
        assert ends(report) == [(Verdict.DEFERRED, Reason.UNAVAILABLE)]
        assert len(str(report.transcript)) < 10_000
        assert len(str(report.outcomes[0].text)) <= 1_000


# --- beginning, waiting, ending


async def test_leave_is_asked_when_the_connection_stands(line: Line) -> None:
    open_when_asked = []

    def may_begin() -> bool:
        open_when_asked.append(line.transport.connections_open)
        return True

    await line.transport.send(outgoing(may_begin=may_begin))
    assert open_when_asked == [1]


async def test_nothing_arrives_of_a_mail_whose_leave_was_refused(line: Line) -> None:
    with pytest.raises(NotStarted):
        await line.transport.send(outgoing(may_begin=lambda: False))

    def broken() -> bool:
        raise RuntimeError("a fault of the caller's")

    with pytest.raises(NotStarted, match="caller's"):
        await line.transport.send(outgoing(may_begin=broken))
    assert line.twin.requests == 0
    assert (await line.transport.send(outgoing())).plainly_accepted


async def test_no_more_connections_than_allowed_and_the_others_wait_in_order(line: Line) -> None:
    line.twin.dials = Dials(latency=0.02)
    order: list[int] = []

    def noting(number: int) -> bool:
        order.append(number)
        return True

    sends = [
        line.transport.send(outgoing(may_begin=lambda number=number: noting(number)))
        for number in range(20)
    ]
    tasks = [asyncio.create_task(one) for one in sends]
    await line.twin.wait_for(lambda: line.twin.requests >= 4)
    assert line.transport.connections_busy == line.transport.connections == 4
    reports = await asyncio.gather(*tasks)
    assert all(report.plainly_accepted for report in reports)
    assert all(abs(place - number) < 4 for place, number in enumerate(order)), (
        "those under way together may overtake"
    )
    assert line.twin.open_connections == line.transport.connections_open == 4
    assert (line.transport.connections_busy, line.transport.waiting) == (0, 0)


async def test_recalled_mails_come_back_and_those_under_way_end(line: Line) -> None:
    line.twin.dials = Dials(latency=0.05)
    tasks = [asyncio.create_task(line.transport.send(outgoing())) for _ in range(10)]
    await line.twin.wait_for(lambda: line.twin.requests >= 4)
    line.transport.recall()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results] == [SendResult] * 4 + [NotStarted] * 6
    assert (await line.transport.send(outgoing())).plainly_accepted


@pytest.mark.parametrize("kind", KINDS)
async def test_a_mail_whose_connection_does_not_come_about_can_be_recalled(kind: str) -> None:
    reached, end = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()  # and never answers TLS' hello
        await end.wait()

    async with listening(talk) as url, to_url(kind, url.replace("http:", "https:")) as transport:
        task = asyncio.create_task(transport.send(outgoing()))
        doomed = asyncio.create_task(transport.send(outgoing()))
        await reached.wait()
        doomed.cancel()
        transport.recall()
        transport.recall()
        with pytest.raises(NotStarted, match="not used at the moment"):
            await asyncio.wait_for(asyncio.shield(task), PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await doomed
        assert task.cancelling() == 0
        assert transport.connections_busy == 0
        end.set()


async def test_closing_lets_those_under_way_end(line: Line) -> None:
    line.twin.dials = Dials(latency=0.05)
    tasks = [asyncio.create_task(line.transport.send(outgoing())) for _ in range(6)]
    await line.twin.wait_for(lambda: line.twin.requests >= 4)
    await line.transport.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results] == [SendResult] * 4 + [NotStarted] * 2
    with pytest.raises(NotStarted):
        await line.transport.send(outgoing())


async def test_those_who_stop_waiting_leave_their_place(line: Line) -> None:
    line.twin.dials = Dials(latency=0.05)
    tasks = [asyncio.create_task(line.transport.send(outgoing())) for _ in range(8)]
    await line.twin.wait_for(lambda: line.twin.requests >= 4)
    for task in tasks[1:6]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one).__name__ for one in results] == ["SendResult"] + ["CancelledError"] * 5 + [
        "SendResult"
    ] * 2
    assert line.transport.connections_busy == 0


async def test_a_connection_serves_many_mails(line: Line) -> None:
    for _ in range(5):
        await line.transport.send(outgoing())
    assert line.twin.open_connections == 1


# --- checks


async def test_a_check_names_the_service(line: Line) -> None:
    assert {"sendgrid": "SendGrid", "ses": "Amazon SES", "mailgun": "mg.example.com"}[
        line.twin.kind
    ] in (await line.transport.check())


@pytest.mark.parametrize("trouble", ["credential", "suspended"])
async def test_a_check_finds_trouble_with_the_account(line: Line, trouble: str) -> None:
    line.twin.dials = Dials(trouble=trouble)  # type: ignore[arg-type]
    with pytest.raises(NotPossible, match=trouble):
        await line.transport.check()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_check_of_nobody_says_so(kind: str, free_port: int) -> None:
    async with to_url(kind, f"http://127.0.0.1:{free_port}") as transport:
        with pytest.raises(NotPossible, match="unavailable: cannot connect"):
            await transport.check()
