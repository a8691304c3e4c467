"""Batcher: one run for many callers, each with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import PATIENCE

from pillarbox import batching
from pillarbox.batching import REQUEUE, Batcher
from pillarbox.errors import NotFound, PillarboxError, StoreError


class Statements:
    """What a batcher runs: keeps the batches, and answers when told."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.open = asyncio.Event()
        self.running = 0
        self.most_running = 0

    async def run(self, asked: list[Any]) -> Sequence[Any]:
        self.batches.append(asked)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await self.open.wait()
        self.running -= 1
        return [_answer(one) for one in asked]

    async def begun(self, count: int) -> None:
        while len(self.batches) < count:
            await asyncio.sleep(0)


def _answer(one: Any) -> Any:
    return NotFound(f"no {one}") if isinstance(one, int) and one % 7 == 3 else ("answer", one)


def ask_all(batcher: Batcher[Any, Any], questions: Sequence[Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(batcher.submit(one)) for one in questions]


async def test_an_idle_batcher_runs_at_once() -> None:
    statements = Statements()
    statements.open.set()
    assert await Batcher(statements.run).submit("x") == ("answer", "x")
    assert statements.batches == [["x"]]


async def test_what_is_asked_meanwhile_goes_together() -> None:
    statements = Statements()
    batcher: Batcher[Any, Any] = Batcher(statements.run)
    first = ask_all(batcher, ["a"])
    await statements.begun(1)
    others = ask_all(batcher, ["b", "c", "d"])
    await asyncio.sleep(0)
    statements.open.set()
    assert await asyncio.gather(*first, *others) == [("answer", one) for one in "abcd"]
    assert statements.batches == [["a"], ["b", "c", "d"]]


async def test_one_statement_at_a_time_while_none_is_held_up() -> None:
    statements = Statements()
    batcher: Batcher[Any, Any] = Batcher(statements.run, max_concurrency=2)
    first = ask_all(batcher, ["a"])
    await statements.begun(1)
    others = ask_all(batcher, ["b", "c"])
    await asyncio.sleep(0)
    statements.open.set()
    await asyncio.gather(*first, *others)
    assert statements.batches == [["a"], ["b", "c"]]
    assert statements.most_running == 1


async def test_a_statement_that_is_held_up_does_not_hold_up_the_others() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def run(asked: list[str]) -> list[str]:
        if "slow" in asked:
            begun.set()
            await release.wait()
        return asked

    batcher = Batcher(run, max_concurrency=2)
    (slow,) = ask_all(batcher, ["slow"])
    await begun.wait()
    for number in range(5):  # the first of them waits a moment, the others find the way open
        assert (
            await asyncio.wait_for(batcher.submit(f"fast {number}"), PATIENCE) == f"fast {number}"
        )
    release.set()
    assert await slow == "slow"
    assert await batcher.submit("after") == "after"


async def test_no_more_statements_at_once_than_allowed() -> None:
    statements = Statements()
    batcher: Batcher[Any, Any] = Batcher(statements.run, max_items=1, max_concurrency=2)
    tasks = ask_all(batcher, range(100, 110))
    await asyncio.wait_for(statements.begun(2), PATIENCE)
    await asyncio.wait(
        tasks, timeout=3 * batching.SLOW_STATEMENT
    )  # long enough for a third to start
    statements.open.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert statements.most_running == 2
    assert len(statements.batches) == len(results) == 10


async def test_an_error_of_one_is_raised_for_it_alone() -> None:
    statements = Statements()
    statements.open.set()
    results = await asyncio.gather(
        *ask_all(Batcher(statements.run), [1, 3, 5]), return_exceptions=True
    )
    assert results[0] == ("answer", 1)
    assert isinstance(results[1], NotFound)
    assert results[2] == ("answer", 5)


async def test_an_error_of_the_statement_is_raised_for_all_of_its_batch_only() -> None:
    async def run(asked: list[str]) -> list[str]:
        if "bad" in asked:
            raise StoreError("away")
        return asked

    batcher = Batcher(run, max_items=2)
    results = await asyncio.gather(
        *ask_all(batcher, ["bad", "a", "b", "c"]), return_exceptions=True
    )
    assert [type(one) for one in results[:2]] == [StoreError, StoreError]
    assert results[2:] == ["b", "c"]
    assert await batcher.submit("d") == "d"  # and it goes on


async def test_too_few_answers_are_an_error_and_no_endless_wait() -> None:
    async def run(asked: list[str]) -> list[str]:
        return asked[1:]

    with pytest.raises(ValueError, match="shorter"):
        await asyncio.wait_for(Batcher(run).submit("a"), PATIENCE)


async def test_a_cancelled_caller_disturbs_nobody() -> None:
    statements = Statements()
    batcher: Batcher[Any, Any] = Batcher(statements.run)
    tasks = ask_all(batcher, ["a", "b", "c"])
    await statements.begun(1)
    waiting = ask_all(batcher, ["d", "e"])
    await asyncio.sleep(0)
    tasks[1].cancel()
    waiting[0].cancel()
    statements.open.set()
    results = await asyncio.gather(*tasks, *waiting, return_exceptions=True)
    assert [one for one in results if isinstance(one, tuple)] == [("answer", one) for one in "ace"]
    assert statements.batches == [
        ["a", "b", "c"],
        ["d", "e"],
    ]  # what was asked is done all the same


async def test_what_cannot_be_answered_yet_goes_first_with_the_next() -> None:
    batches = []

    async def run(asked: list[str]) -> list[Any]:
        batches.append(asked)
        first = asked[0]
        return [REQUEUE if one == "later" and first != "later" else one for one in asked]

    batcher: Batcher[str, str] = Batcher(run, max_items=3)
    results = await asyncio.gather(*ask_all(batcher, ["a", "later", "later", "b", "c"]))
    assert results == ["a", "later", "later", "b", "c"]
    assert batches == [["a", "later", "later"], ["later", "later", "b"], ["c"]]


async def test_several_at_once_keep_their_order_and_their_errors() -> None:
    statements = Statements()
    statements.open.set()
    batcher: Batcher[int, Any] = Batcher(statements.run, max_items=4)
    results = await batcher.submit_many(range(20))
    assert [
        one if isinstance(one, PillarboxError) else one[1]
        for one in results
        if not isinstance(one, NotFound)
    ] == [one for one in range(20) if one % 7 != 3]
    assert [place for place, one in enumerate(results) if isinstance(one, NotFound)] == [3, 10, 17]
    assert await batcher.submit_many([]) == []


async def test_a_foreign_error_is_raised_for_several() -> None:
    async def run(asked: list[str]) -> list[str]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Batcher(run).submit_many(["a", "b"])


async def test_callers_do_not_hang_when_the_statement_is_cancelled() -> None:
    async def run(asked: list[str]) -> list[str]:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(Batcher(run).submit("a"), PATIENCE)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=60),
    st.integers(1, 10),
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from([0, batching.SLOW_STATEMENT]),
)
@settings(max_examples=150)
def test_every_caller_gets_its_own_answer(
    asked: list[tuple[int, int]], most: int, heaviest: int, at_once: int, patience: float
) -> None:
    """Whatever the weights, the limits and the moments: own answers, bounded batches, the order kept."""
    batches: list[list[tuple[int, int]]] = []

    async def run(batch: list[tuple[int, int]]) -> list[Any]:
        batches.append(batch)
        for _ in range(batch[0][0] % 5):
            await asyncio.sleep(0)
        return [_answer(place) for place, _ in batch]

    async def scenario() -> list[Any]:
        batcher: Batcher[tuple[int, int], Any] = Batcher(
            run,
            max_items=most,
            max_weight=heaviest,
            weigh=lambda one: one[1],
            max_concurrency=at_once,
        )
        tasks = []
        for place, (weight, pauses) in enumerate(asked):
            tasks.append(asyncio.create_task(batcher.submit((place, weight))))
            for _ in range(pauses):
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "SLOW_STATEMENT", patience)
        results = asyncio.run(scenario())
    for place, result in enumerate(results):
        expected = _answer(place)
        assert result == expected or (
            type(result) is type(expected) and str(result) == str(expected)
        )
    assert [place for batch in batches for place, _ in batch] == list(range(len(asked)))
    for batch in batches:
        assert len(batch) <= most
        assert len(batch) == 1 or sum(weight for _, weight in batch) <= heaviest
