"""What every transport promises (see the Transport port), shown with each adapter of transports.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from uuid import uuid4

import pytest
import pytest_asyncio
from tests import PATIENCE
from tests.contract.transports import ADAPTERS, Desk

from pillarbox.deliver.mime import compose
from pillarbox.deliver.transports.base import OutgoingMail, Recipient
from pillarbox.errors import NotStarted
from pillarbox.model.message import Content, Message
from pillarbox.model.outcome import Verdict
from pillarbox.model.provider_kinds import KINDS

TEXT = "hello\r\n.\r\nend\r\n"


@pytest_asyncio.fixture(params=KINDS)
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with ADAPTERS[request.param]() as ready:
        yield ready
        await asyncio.wait_for(ready.transport.close(), PATIENCE)


def outgoing(*recipients: str, may_begin: Callable[[], bool] = lambda: True) -> OutgoingMail:
    to = recipients or ("b@x.test",)
    message, parts = Message(uuid4(), "a@x.test", to, "hello", datetime.now(UTC)), Content(TEXT)
    numbered = [Recipient(number, address) for number, address in enumerate(to)]
    return OutgoingMail(
        message.id, 1, "a@x.test", numbered, compose(message, parts), may_begin, message, parts
    )


async def test_a_mail_arrives_with_its_envelope_and_content(desk: Desk) -> None:
    await desk.transport.send(outgoing("b@x.test", "c@x.test"))
    assert desk.arrived() == [("a@x.test", ("b@x.test", "c@x.test"), TEXT)]


@pytest.mark.req("REQ-QUEUE-U003")
async def test_a_report_has_one_outcome_for_each_recipient(desk: Desk) -> None:
    before = asyncio.get_running_loop().time()
    report = await desk.transport.send(outgoing("b@x.test", "c@x.test", "d@x.test"))
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.ACCEPTED] * 3
    assert report.plainly_accepted
    assert report.transcript is None
    assert before <= report.started <= report.ended <= asyncio.get_running_loop().time()


async def test_many_at_once_each_arrive_once(desk: Desk) -> None:
    names = [f"{number}@x.test" for number in range(100)]
    reports = await asyncio.gather(*(desk.transport.send(outgoing(name)) for name in names))
    assert all(report.plainly_accepted for report in reports)
    assert sorted(recipients for _, recipients, _ in desk.arrived()) == sorted(
        (name,) for name in names
    )


async def test_a_mail_that_may_not_begin_is_given_back(desk: Desk) -> None:
    with pytest.raises(NotStarted):
        await desk.transport.send(outgoing(may_begin=lambda: False))
    assert desk.arrived() == []


async def test_the_right_to_begin_is_asked_before_anything_can_be_accepted(desk: Desk) -> None:
    arrived_when_asked = []

    def may_begin() -> bool:
        arrived_when_asked.append(len(desk.arrived()))
        return True

    await desk.transport.send(outgoing(may_begin=may_begin))
    assert set(arrived_when_asked) == {0}


@pytest.mark.req("REQ-QUEUE-U003")
async def test_a_failing_provider_is_reported_not_raised(desk: Desk) -> None:
    desk.fail()
    report = await desk.transport.send(outgoing("b@x.test", "c@x.test"))
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DEFERRED] * 2
    assert all(outcome.reason for outcome in report.outcomes)
    assert not report.plainly_accepted
    assert desk.arrived() == []


async def test_cancelling_one_leaves_the_others_alone(desk: Desk) -> None:
    tasks = [
        asyncio.create_task(desk.transport.send(outgoing(f"{number}@x.test")))
        for number in range(10)
    ]
    await asyncio.sleep(0)
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(3), asyncio.CancelledError)
    assert all(
        not isinstance(result, BaseException) and result.plainly_accepted for result in results
    )


async def test_check_says_a_line_for_people(desk: Desk) -> None:
    line = await desk.transport.check()
    assert line
    assert "\n" not in line
    assert desk.arrived() == []


async def test_closing_twice_is_closing_once(desk: Desk) -> None:
    await desk.transport.send(outgoing())
    await desk.transport.close()
    await desk.transport.close()
