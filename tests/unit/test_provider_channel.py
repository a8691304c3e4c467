"""One provider's channel: who waits for room, who is given back, and what counts for its breaker."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from pillarbox.deliver.provider_channel import PIPELINE, ProviderChannel
from pillarbox.deliver.transports.base import OutgoingMail, Recipient, SendResult
from pillarbox.errors import NotStarted
from pillarbox.model.fairness import LaneId
from pillarbox.model.outcome import Outcome, Reason, accepted, deferred, rejected, unknown
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kind import TransportLimits
from pillarbox.route.circuit_breaker import (
    FAILURES_TO_OPEN,
    SUCCESSES_TO_CLOSE,
    CircuitBreaker,
    CircuitState,
)
from pillarbox.route.decide import SHORT_WAIT

LANE = LaneId(1, 1)
RELAY = Provider(1, "relay", "smtp", {}, None)


class Desk:
    """A transport whose answers the test gives, one by one."""

    limits = TransportLimits()
    connections_open = connections_busy = 0

    def __init__(self, connections: int = 10) -> None:
        self.connections = connections
        self.out: list[asyncio.Future[Outcome]] = []
        self.recalled = 0

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.out.append(future)
        started = asyncio.get_running_loop().time()
        outcome = await future
        return SendResult([outcome], started, asyncio.get_running_loop().time())

    def recall(self) -> None:
        self.recalled += 1

    async def check(self) -> str:
        return "ok"

    async def close(self) -> None:
        pass

    def answer(self, outcome: Outcome) -> None:
        self.out.pop(0).set_result(outcome)


def outgoing() -> OutgoingMail:
    return OutgoingMail(uuid4(), 1, "a@x.test", [Recipient(0, "b@x.test")], b"hi")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def open_channel(desk: Desk) -> ProviderChannel:
    return ProviderChannel(RELAY, desk, str)


async def settle_down() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def send(channel: ProviderChannel, count: int) -> list[asyncio.Task[SendResult]]:
    tasks = [asyncio.create_task(channel.send(outgoing(), LANE)) for _ in range(count)]
    await settle_down()
    return tasks


async def answer_all(desk: Desk, outcome: Outcome) -> None:
    while desk.out:
        desk.answer(outcome)
        await settle_down()


async def test_the_transport_has_one_mail_more_than_connections_each(desk: Desk) -> None:
    channel = open_channel(desk)
    tasks = await send(channel, 50)
    assert len(desk.out) == desk.connections * PIPELINE
    assert channel.held == 50
    await answer_all(desk, accepted(250))
    assert all(task.done() for task in tasks)
    assert channel.held == 0


async def test_failures_in_a_row_open_and_give_back_what_waits(desk: Desk) -> None:
    channel = open_channel(desk)
    turned: list[CircuitState] = []
    channel.changed = lambda one: turned.append(one.breaker.circuit)
    for _ in range(FAILURES_TO_OPEN):
        [task] = await send(channel, 1)
        assert channel.unusable_for() is None
        desk.answer(deferred(Reason.UNAVAILABLE))
        await task
    assert channel.unusable_for() is not None
    assert turned == [CircuitState.OPEN]
    assert desk.recalled == 1
    with pytest.raises(NotStarted):
        await channel.send(outgoing(), LANE)


@pytest.mark.parametrize(
    "outcome",
    [
        rejected(Reason.INVALID_RECIPIENT, 550),
        deferred(Reason.GREYLISTED, 451),
        deferred(Reason.UNAVAILABLE, 450),
    ],
)
async def test_what_is_not_its_fault_does_not_count(desk: Desk, outcome: Outcome) -> None:
    channel = open_channel(desk)
    for _ in range(FAILURES_TO_OPEN):
        await send(channel, 1)
        desk.answer(outcome)
        await settle_down()
    assert channel.breaker.circuit is CircuitState.CLOSED


async def test_trouble_with_the_account_opens_at_once(desk: Desk) -> None:
    channel = open_channel(desk)
    await send(channel, 1)
    desk.answer(deferred(Reason.CREDENTIAL, 535))
    await settle_down()
    assert channel.breaker.circuit is CircuitState.OPEN


async def test_unknown_ends_count_as_failures(desk: Desk) -> None:
    channel = open_channel(desk)
    await send(channel, FAILURES_TO_OPEN)
    await answer_all(desk, unknown(Reason.LOST))
    assert channel.breaker.circuit is CircuitState.OPEN


async def test_half_open_lets_one_through_at_a_time_until_it_is_sure(desk: Desk) -> None:
    channel = open_channel(desk)
    channel.adopt(CircuitBreaker(CircuitState.HALF_OPEN))
    tasks = await send(channel, 10)
    for _ in range(SUCCESSES_TO_CLOSE):
        assert len(desk.out) == 1
        desk.answer(accepted(250))
        await settle_down()
    assert channel.breaker.circuit is CircuitState.CLOSED
    assert len(desk.out) == 10 - SUCCESSES_TO_CLOSE
    await answer_all(desk, accepted(250))
    assert all(task.done() for task in tasks)


async def test_a_failure_while_half_open_gives_all_back(desk: Desk) -> None:
    channel = open_channel(desk)
    channel.adopt(CircuitBreaker(CircuitState.HALF_OPEN))
    tasks = await send(channel, 5)
    desk.answer(deferred(Reason.TIMEOUT))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], SendResult)
    assert all(isinstance(result, NotStarted) for result in results[1:])
    assert channel.held == 0


async def test_a_provider_that_asks_for_less_gets_half_and_slowly_more(desk: Desk) -> None:
    channel = open_channel(desk)
    await send(channel, 1)
    desk.answer(deferred(Reason.RATE_LIMITED, 451, retry_after=0.0))
    await settle_down()
    assert channel.limiter.limit == 5
    tasks = await send(channel, 20)
    assert len(desk.out) == 5
    for _ in range(6):
        desk.answer(accepted(250))
        await settle_down()
    assert len(desk.out) == 6
    await answer_all(desk, accepted(250))
    assert all(task.done() for task in tasks)
    assert channel.breaker.circuit is CircuitState.CLOSED


async def test_a_short_pause_is_waited_for_here_and_a_long_one_is_not(desk: Desk) -> None:
    channel = open_channel(desk)
    channel.pause(0.05)
    assert channel.unusable_for() is None
    [task] = await send(channel, 1)
    assert desk.out == []
    while not desk.out:
        await asyncio.sleep(0.01)
    desk.answer(accepted(250))
    await task
    channel.pause(SHORT_WAIT + 10)
    assert channel.unusable_for() == pytest.approx(SHORT_WAIT + 10, abs=1)


async def test_what_hangs_counts_before_it_times_out(desk: Desk) -> None:
    channel = open_channel(desk)
    await send(channel, FAILURES_TO_OPEN)
    channel.count_slow_mails()
    assert channel.breaker.failures == 0
    for number in channel._in_flight:
        channel._in_flight[number] -= channel.breaker.slow_after
    channel.count_slow_mails()
    assert channel.breaker.circuit is CircuitState.OPEN
    channel.count_slow_mails()  # each counts once
    assert channel.breaker.opened == 1
    await answer_all(desk, accepted(250))  # late, and no probe
    assert channel.breaker.circuit is CircuitState.OPEN


async def test_what_waits_behind_a_hung_connection_counts_too() -> None:
    desk = Desk(connections=1)
    channel = open_channel(desk)
    tasks = await send(channel, 5)
    for number in channel._in_flight:
        channel._in_flight[number] -= channel.breaker.slow_after
    for _ in range(FAILURES_TO_OPEN):
        channel.count_slow_mails()
    assert channel.breaker.circuit is CircuitState.OPEN
    await settle_down()
    assert sum(task.done() for task in tasks) == 5 - PIPELINE
    await answer_all(desk, accepted(250))
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_provider_that_still_answers_is_not_hung(desk: Desk) -> None:
    channel = open_channel(desk)
    await send(channel, 5)
    for number in channel._in_flight:
        channel._in_flight[number] -= channel.breaker.slow_after
    desk.answer(accepted(250))
    await settle_down()
    channel.count_slow_mails()
    assert channel.breaker.circuit is CircuitState.CLOSED


async def test_cancelling_who_waits_frees_its_place(desk: Desk) -> None:
    channel = open_channel(desk)
    channel.adopt(CircuitBreaker(CircuitState.HALF_OPEN))
    first, second, third = await send(channel, 3)
    second.cancel()
    await settle_down()
    desk.answer(accepted(250))
    await settle_down()
    assert first.done()
    assert len(desk.out) == 1
    third.cancel()
    await settle_down()
    assert channel.held == 0


async def test_limits_that_say_no_keep_claims_small(desk: Desk) -> None:
    provider = Provider(1, "relay", "smtp", {}, None, rate_per_second=10)
    answers = [(0.0, None), (0.1, "rate_per_second")]

    async def allow(lane: int, recipients: int) -> tuple[float, str | None]:
        return answers.pop(0)

    channel = ProviderChannel(provider, desk, str, allow)
    assert channel.claimable() is None
    assert await channel.use_quota(1, 1) == (0.0, None)
    assert channel.claimable() is None
    assert await channel.use_quota(1, 1) == (0.1, "rate_per_second")
    assert channel.claimable() == 1


async def test_what_waits_is_given_back_when_its_provider_is_replaced(desk: Desk) -> None:
    """As when its settings change during a pause: nobody would let it in any more."""
    channel = open_channel(desk)
    channel.pause(SHORT_WAIT)
    [task] = await send(channel, 1)
    assert not task.done()
    await channel.close()
    with pytest.raises(NotStarted):
        await asyncio.wait_for(task, 1)
    with pytest.raises(NotStarted):
        await asyncio.wait_for(channel.send(outgoing(), LANE), 1)


async def test_a_channel_that_was_replaced_tells_nothing_of_its_successor(desk: Desk) -> None:
    """As when a wrong password was mended: mails that are still out with the old one must not stop the others."""
    channel = open_channel(desk)
    turned: list[ProviderChannel] = []
    channel.changed = turned.append
    [task] = await send(channel, 1)
    await channel.close()
    desk.answer(deferred(Reason.CREDENTIAL, 535))
    await task
    assert turned == []


async def test_another_lanes_mail_does_not_wait_behind_all_that_wait(desk: Desk) -> None:
    channel = open_channel(desk)
    crowd = await send(channel, 50)
    single = asyncio.create_task(channel.send(outgoing(), LaneId(2, 1)))
    await settle_down()
    desk.answer(accepted(250))
    await settle_down()
    for _ in range(desk.connections * PIPELINE):
        desk.answer(accepted(250))
        await settle_down()
    assert single.done()
    assert sum(task.done() for task in crowd) == desk.connections * PIPELINE
    await answer_all(desk, accepted(250))
    assert all(task.done() for task in crowd)


async def test_nobody_overtakes_who_was_let_in_and_has_not_run_yet() -> None:
    """Order of a lane: two places get free at once, one mail waits, and the next comes in the same moment."""
    order: list[int] = []

    class Noting(Desk):
        async def send(self, outgoing: OutgoingMail) -> SendResult:
            order.append(outgoing.attempt)
            return await super().send(outgoing)

    desk = Noting(connections=1)
    channel = open_channel(desk)

    def begin(number: int) -> asyncio.Task[SendResult]:
        one = OutgoingMail(uuid4(), number, "a@x.test", [Recipient(0, "b@x.test")], b"hi")
        return asyncio.create_task(channel.send(one, LANE))

    tasks = [begin(number) for number in range(3)]
    await settle_down()
    for number in range(3, 60):
        while desk.out:
            desk.answer(accepted(250))
        tasks.append(begin(number))
        for _ in range(number % 4):
            await asyncio.sleep(0)
    await answer_all(desk, accepted(250))
    await asyncio.gather(*tasks)
    assert order == sorted(order) == list(range(60))
