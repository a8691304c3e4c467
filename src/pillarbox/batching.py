"""Group commit: one statement serves all callers that wait."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final, Generic, Literal, TypeVar

from pillarbox.errors import PillarboxError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Requeue(Enum):
    """The type of REQUEUE."""

    REQUEUE = "requeue"


# A statement that takes this long waits: for a lock, for the disk, for a mail of many megabytes.
SLOW_STATEMENT = 0.05
# The result of an item that `run` could not finish: it goes first in the next batch.
REQUEUE: Final = Requeue.REQUEUE
Results = Sequence[Result | PillarboxError | Literal[Requeue.REQUEUE]]


class Batcher(Generic[Item, Result]):
    """Runs the items of concurrent callers together: `run` returns one result per item, in order.

    An idle batcher runs at once; a busy one collects items while its statement runs. Two statements
    at a time would only halve the batches, but when one takes longer than SLOW_STATEMENT another
    may start, up to `max_concurrency`, so that one slow statement does not delay every caller.

    A result that is a PillarboxError is raised for its caller alone. If `run` itself raises, every
    caller of that batch gets the error. A batch has at most `max_items` items with at most
    `max_weight` in total; a single heavier item forms a batch alone.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Awaitable[Results[Result]]],
        *,
        max_items: int = 200,
        max_weight: int = 8 * 2**20,
        weigh: Callable[[Item], int] = lambda _: 0,
        max_concurrency: int = 1,
    ) -> None:
        self._run = run
        self._max_items = max_items
        self._max_weight = max_weight
        self._weigh = weigh
        self._max_concurrency = max_concurrency
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._running = 0  # tasks that run statements, or wait for one
        self._collecting = 0  # the number of the task that takes the next batch; 0: no task
        self._numbers = itertools.count(1)
        self._started_at = 0.0  # when the collecting task began its last statement
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    async def submit(self, item: Item) -> Result:
        """The result of one item. Cancelling the caller does not cancel the item."""
        return await self._put(item)

    async def submit_many(self, items: Sequence[Item]) -> list[Result | PillarboxError]:
        """The results of several items, in order; a PillarboxError takes the place of a result."""
        futures = [self._put(item) for item in items]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, PillarboxError):
                raise result
        return results  # type: ignore[return-value]  # only results and PillarboxErrors are left

    def _put(self, item: Item) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._running < self._max_concurrency:
            if not self._collecting:
                self._start()
            elif self._timer is None:
                self._timer = loop.call_later(SLOW_STATEMENT, self._start_another, loop)
        return future

    def _start(self) -> None:
        self._running += 1
        self._collecting = next(self._numbers)
        task = asyncio.create_task(self._work(self._collecting))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Serve waiting callers after an unexpected error, which goes to the loop's handler."""
        self._tasks.discard(task)
        if not task.cancelled() and self._waiting and not self._running:
            self._start()

    def _start_another(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start one more statement if the last has run for too long."""
        self._timer = None
        if not self._waiting or self._running >= self._max_concurrency:
            return
        remaining = self._started_at + SLOW_STATEMENT - loop.time()
        if remaining <= 0 or not self._collecting:
            self._start()
        else:
            self._timer = loop.call_later(remaining, self._start_another, loop)

    async def _work(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Until another task has taken over, or nothing waits.
            while self._waiting and self._collecting in (number, 0):
                self._collecting = number
                self._started_at = loop.time()
                await self._run_batch(self._take_batch())
        finally:
            # Here, not in a callback: an item put in between would wait forever.
            self._running -= 1
            if self._collecting == number:
                self._collecting = 0

    async def _run_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
            requeued = [
                entry
                for entry, result in zip(batch, results, strict=True)
                if not _finish(entry[1], result)
            ]
        except Exception as error:
            for _, future in batch:
                _fail(future, error)
        except BaseException:  # the loop is being shut down
            for _, future in batch:
                future.cancel()
            raise
        else:
            self._waiting.extendleft(reversed(requeued))

    def _take_batch(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch = [self._waiting.popleft()]
        weight = self._weigh(batch[0][0])
        while self._waiting and len(batch) < self._max_items:
            weight += self._weigh(self._waiting[0][0])
            if weight > self._max_weight:
                break
            batch.append(self._waiting.popleft())
        return batch


def _finish(
    future: asyncio.Future[Result], result: Result | PillarboxError | Literal[Requeue.REQUEUE]
) -> bool:
    """Give the caller its result; false if the item has to run again."""
    if result is REQUEUE:
        return False
    if isinstance(result, PillarboxError):
        _fail(future, result)
    elif not future.done():  # the caller may have been cancelled
        future.set_result(result)
    return True


def _fail(future: asyncio.Future[Result], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
