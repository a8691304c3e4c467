"""One statement for many callers: what is asked while one runs goes with the next (group commit, shared look-ups)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from pillarbox.errors import PillarboxError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Asked, Answer]):
    """Answers concurrent callers together: `run` gets what they asked and returns an answer for each, in order.

    Nothing waits for a timer: an idle batcher runs at once, a busy one gathers while its statements run. An answer
    that is an error of ours is raised for its caller alone; if `run` itself raises, all of its batch get that error.
    """

    def __init__(
        self,
        run: Callable[[list[Asked]], Awaitable[Sequence[Answer | PillarboxError]]],
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
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, asked: Asked) -> Answer:
        """The answer to one question. Cancelling the caller does not undo what was asked."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if len(self._running) < self._at_once:
            task = asyncio.create_task(self._work())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                answers = await self._run([asked for asked, _ in batch])
            except Exception as error:
                for _, future in batch:
                    _fail(future, error)
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    if isinstance(answer, PillarboxError):
                        _fail(future, answer)
                    elif not future.done():
                        future.set_result(answer)

    def _take(self) -> list[tuple[Asked, asyncio.Future[Answer]]]:
        batch, weight = [], 0
        while self._waiting and len(batch) < self._most and (not batch or weight < self._heaviest):
            batch.append(self._waiting.popleft())
            weight += self._weigh(batch[-1][0])
        return batch


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
