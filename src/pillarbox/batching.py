"""One statement for many callers: what is asked while one runs goes with the next (group commit, shared look-ups)."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final, Generic, Literal, TypeVar

from pillarbox.errors import PillarboxError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Again(Enum):
    """The type of AGAIN."""

    AGAIN = "again"


# A statement that takes so long waits for something: for a lock, for the disk, for a mail of many
# megabytes.
PATIENCE = 0.05
# The answer of a `run` that cannot answer yet: what was asked goes with the next batch, before all
# that waits.
AGAIN: Final = Again.AGAIN
Answers = Sequence[Answer | PillarboxError | Literal[Again.AGAIN]]


class Batcher(Generic[Asked, Answer]):
    """Answers concurrent callers together: `run` gets what they asked and returns an answer for each, in order.

    An idle batcher runs at once, a busy one gathers while its statement runs: two at a time would only halve the
    batches. But when one takes longer than PATIENCE another may start, up to `at_once`, so that one caller's
    trouble does not become everybody's. An answer that is an error of ours is raised for its caller alone; if
    `run` itself raises, all of its batch get that error. A batch has at most `most` questions that weigh at most
    `heaviest` together, unless a single one does.
    """

    def __init__(
        self,
        run: Callable[[list[Asked]], Awaitable[Answers[Answer]]],
        *,
        most: int = 200,
        heaviest: int = 8 * 2**20,
        weigh: Callable[[Asked], int] = lambda _: 0,
        at_once: int = 1,
    ) -> None:
        self._run = run
        self._most = most
        self._heaviest = heaviest
        self._weigh = weigh
        self._at_once = at_once
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._running = 0  # tasks that run statements, or wait for one
        self._gathering = 0  # the number of the one that takes what is waiting next; 0: none does
        self._numbers = itertools.count(1)
        self._begun = 0.0  # when its last statement was
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    async def ask(self, asked: Asked) -> Answer:
        """The answer to one question. Cancelling the caller does not undo what was asked."""
        return await self._put(asked)

    async def ask_many(self, asked: Sequence[Asked]) -> list[Answer | PillarboxError]:
        """The answers to several questions, in order; errors of ours stand in their places."""
        futures = [self._put(one) for one in asked]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, PillarboxError):
                raise answer
        return answers  # type: ignore[return-value]  # what is left are answers and errors of ours

    def _put(self, asked: Asked) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((asked, future))
        if self._running < self._at_once:
            if not self._gathering:
                self._start()
            elif self._timer is None:
                self._timer = loop.call_later(PATIENCE, self._relieve, loop)
        return future

    def _start(self) -> None:
        self._running += 1
        self._gathering = next(self._numbers)
        task = asyncio.create_task(self._work(self._gathering))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Serve who still waits after an unexpected error, too; the error itself goes to the loop's handler."""
        self._tasks.discard(task)
        if not task.cancelled() and self._waiting and not self._running:
            self._start()

    def _relieve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start one more statement if the last has run for too long."""
        self._timer = None
        if not self._waiting or self._running >= self._at_once:
            return
        left = self._begun + PATIENCE - loop.time()
        if left <= 0 or not self._gathering:
            self._start()
        else:
            self._timer = loop.call_later(left, self._relieve, loop)

    async def _work(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting and self._gathering in (
                number,
                0,
            ):  # no other has taken over meanwhile
                self._gathering = number
                self._begun = loop.time()
                await self._work_off(self._take())
        finally:
            # Here, not when the loop finds the task done: who asks in between would wait for ever.
            self._running -= 1
            if self._gathering == number:
                self._gathering = 0

    async def _work_off(self, batch: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._run([asked for asked, _ in batch])
            again = [
                one
                for one, answer in zip(batch, answers, strict=True)
                if not _settle(one[1], answer)
            ]
        except Exception as error:
            for _, future in batch:
                _fail(future, error)
        except BaseException:  # the loop is being shut down
            for _, future in batch:
                future.cancel()
            raise
        else:
            self._waiting.extendleft(reversed(again))

    def _take(self) -> list[tuple[Asked, asyncio.Future[Answer]]]:
        batch = [self._waiting.popleft()]
        weight = self._weigh(batch[0][0])
        while self._waiting and len(batch) < self._most:
            weight += self._weigh(self._waiting[0][0])
            if weight > self._heaviest:
                break
            batch.append(self._waiting.popleft())
        return batch


def _settle(
    future: asyncio.Future[Answer], answer: Answer | PillarboxError | Literal[Again.AGAIN]
) -> bool:
    """Give the caller its answer; false if there is none yet."""
    if answer is AGAIN:
        return False
    if isinstance(answer, PillarboxError):
        _fail(future, answer)
    elif not future.done():  # the caller may have gone
        future.set_result(answer)
    return True


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
