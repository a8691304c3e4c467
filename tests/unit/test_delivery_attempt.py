"""A message on its way to its providers: whoever may have it never gets it again, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.deliver.attempt_result import AttemptResult, attempt
from pillarbox.deliver.provider_pool import ProviderConfig, ProviderPool
from pillarbox.deliver.transports.base import OutgoingMail, SendResult
from pillarbox.errors import NotStarted, StoreError
from pillarbox.model.message import Content, Message
from pillarbox.model.outcome import Outcome, Reason, Verdict, accepted, deferred, rejected, unknown
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kind import TransportLimits
from pillarbox.queue.records import ClaimedMessage
from pillarbox.route.circuit_breaker import FAILURES_TO_OPEN
from pillarbox.route.decide import HoldLane, Release, Stop, Wait, hold_or_postpone

# What a provider does with a mail; "some" takes every second recipient.
DOES = (
    "accept",
    "some",
    "fail",
    "refuse",
    "unknown",
    "recall",
    "give_back",
    "cancel_before",
    "cancel_after",
    "break",
)
MAY = ("yes", "soon", "later", "away", "cancel")  # what its limits say
ANSWERS: dict[str, Outcome] = {
    "accept": accepted(250),
    "fail": deferred(Reason.UNAVAILABLE, 421),
    "refuse": rejected(Reason.REFUSED, 550),
    "unknown": unknown(Reason.LOST, "?"),
}


@dataclass
class World:
    """Providers that do as the script says, one entry for each call; and who may have got the mail."""

    does: list[str]
    may: list[str]
    most: Sequence[int | None]
    got: Counter[int] = field(default_factory=Counter)
    task: asyncio.Task[Any] | None = None
    pool: ProviderPool = field(init=False)

    def __post_init__(self) -> None:
        found = [
            Provider(n, f"p{n}", "smtp", {}, None, rate_per_second=1)
            for n in range(1, len(self.most) + 1)
        ]
        self.pool = ProviderPool(
            lambda: self._book(found),
            lambda one: Scripted(self, one.id),
            lambda _: str,
            ask_quota=self._allow,
        )

    async def _book(self, found: list[Provider]) -> ProviderConfig:
        return ProviderConfig(found)

    async def _allow(
        self, provider_id: int, lane: int, recipients: int
    ) -> tuple[float, str | None]:
        said = self.may.pop(0) if self.may else "yes"
        if said == "away":
            raise StoreError("the store is away")
        if said == "cancel":
            await self.cancelled()
        return {"soon": 1.0, "later": 60.0, "next month": 30 * 86400.0}.get(
            said, 0.0
        ), "rate_per_second"

    async def cancelled(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.sleep(0)


class Scripted:
    """The transport of one provider."""

    connections = 10
    connections_open = connections_busy = 0

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.limits = TransportLimits(max_recipients=world.most[number - 1])

    async def send(self, outgoing: OutgoingMail) -> SendResult:
        world, now = self._world, asyncio.get_running_loop().time()
        does = world.does.pop(0) if world.does else "accept"
        if does == "cancel_before":
            await world.cancelled()
        if does in ("recall", "give_back") or not outgoing.may_begin():
            if does == "recall" and (channel := world.pool.channel(self._number)):
                for _ in range(FAILURES_TO_OPEN):
                    channel.failed(Reason.UNAVAILABLE)
            raise NotStarted("given back")
        taken = [
            one.n
            for place, one in enumerate(outgoing.recipients)
            if does != "some" or place % 2 == 0
        ]
        if does not in ("fail", "refuse"):
            world.got.update(taken)
        if does == "cancel_after":
            await world.cancelled()
        if does == "break":
            raise RuntimeError("a fault of ours")
        if does == "some":
            outcomes = [
                accepted(250) if one.n in taken else ANSWERS["fail"] for one in outgoing.recipients
            ]
        else:
            outcomes = [ANSWERS[does]] * len(outgoing.recipients)
        return SendResult(outcomes, now, now)

    def recall(self) -> None:
        pass

    async def check(self) -> str:
        return "ok"

    async def close(self) -> None:
        pass


def claimed(recipients: int) -> ClaimedMessage:
    people = [f"r{n}@x.test" for n in range(recipients)]
    message = Message(uuid4(), "a@x.test", people, "hi", datetime.now(UTC))
    return ClaimedMessage(
        message, Content("hi", None, None, ()), 1, range(recipients), people, [0] * recipients, 1, 1, 10,
        "transactional", None, None, False, None, 0.0, 0.0,
    )  # fmt: skip


async def travel(
    world: World, recipients: int, may_begin: list[bool]
) -> AttemptResult | Stop | BaseException:
    await world.pool.refresh()
    allowed = iter(may_begin)
    run = attempt(claimed(recipients), world.pool, lambda: next(allowed, True))
    world.task = task = asyncio.create_task(run)
    try:
        return await task
    except BaseException as error:
        return error


def checked(world: World, ended: AttemptResult | Stop | BaseException) -> None:
    assert max(world.got.values(), default=0) <= 1, f"sent twice: {world.got}"
    if not isinstance(ended, AttemptResult):
        assert isinstance(ended, Wait | Release | asyncio.CancelledError), ended
        assert not world.got, "given back to the queue although somebody may have it"
        return
    for settlement in ended.settlements:
        left = settlement.outcome.verdict in (Verdict.ACCEPTED, Verdict.UNKNOWN)
        assert left == bool(world.got[settlement.recipient_number]), settlement


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from(DOES), max_size=6),
    st.lists(st.sampled_from(MAY), max_size=4),
    st.lists(st.sampled_from((None, 1, 2, 3)), min_size=1, max_size=3),
    st.integers(1, 5),
    st.lists(st.booleans(), max_size=4),
)
def test_nobody_who_may_have_the_mail_gets_it_again(
    does: list[str], may: list[str], most: list[int | None], recipients: int, may_begin: list[bool]
) -> None:
    async def run() -> None:
        world = World(does, may, most)
        checked(world, await travel(world, recipients, may_begin))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("does", "may", "most", "may_begin"),
    [
        (["accept", "give_back"], [], [2], []),  # the second half is not begun
        (["accept"], [], [2], [True, False]),  # the lease ends between two halves
        (["cancel_after"], [], [2], []),  # a shutdown between two halves
        (
            ["accept", "recall"],
            [],
            [2, None],
            [],
        ),  # the breaker turns between two halves, and another takes over
        (
            ["some"],
            ["yes", "soon"],
            [None, None],
            [],
        ),  # half of them taken, and the next provider has no room
        (["some"], ["yes", "later"], [None, None], []),
        (
            ["some"],
            ["yes", "cancel"],
            [None, None],
            [],
        ),  # a shutdown while the next is asked for the right
        (["some"], ["yes", "away"], [None, None], []),
        ([], ["away"], [None], []),
    ],
)
async def test_in_the_midst_of_a_mail(
    does: list[str], may: list[str], most: list[int | None], may_begin: list[bool]
) -> None:
    world = World(does, may, most)
    checked(world, await travel(world, 4, may_begin))


async def test_a_limit_that_may_be_raised_is_asked_again() -> None:
    ended = await travel(World([], ["next month"], [None]), 1, [])
    assert isinstance(ended, Wait)
    assert ended.seconds <= 3600


async def test_nothing_was_taken_and_the_next_has_no_room_for_a_moment() -> None:
    """Then it is tried again in a moment, and loses no attempt."""
    ended = await travel(World(["fail"], ["yes", "soon"], [None, None]), 2, [])
    assert isinstance(ended, Wait)
    held = hold_or_postpone(ended, pool_usable=True, may_postpone=True)
    assert held == HoldLane(1.0, marked=False)
