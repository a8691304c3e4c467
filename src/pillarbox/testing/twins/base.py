"""The base of all twins: the server, its dials, the received mails, and posting feedback."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Literal, Self

import aiohttp

from pillarbox.testing.twins.control import PREFIX, control
from pillarbox.testing.twins.dials import Dials, FeedbackDials, Trouble
from pillarbox.testing.twins.feeder import Feeder
from pillarbox.testing.twins.mail import Recorder, TwinMail
from pillarbox.testing.twins.wire import Answer, Connection, Request, json_answer

Kind = Literal[
    "delivered",
    "bounced",
    "soft_bounced",
    "deferred",
    "dropped",
    "complained",
    "opened",
    "clicked",
    "unsubscribed",
]
Signed = tuple[dict[str, str], bytes]  # headers and body of a request with feedback
# Connections a burst of clients may have waiting; asyncio's 100 makes benchmarks with more of them
# stutter.
BACKLOG = 1024
# Seconds to wait for the response to feedback.
POST_TIMEOUT = 30.0
CALM = Dials()


class Twin(ABC):
    """A small real HTTP server that behaves like one of the services."""

    kind: ClassVar[str]
    batch: ClassVar[int] = 1  # events that the service posts in one request at most

    def __init__(
        self,
        dials: Dials | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        webhook_url: str | None = None,
        feedback: FeedbackDials | None = None,
        keep: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.dials = dials or Dials()
        self.host, self.port = host, port
        self.webhook_url = webhook_url  # where feedback is posted
        self.feedback = feedback  # what is posted by itself; None: nothing
        self.mails: list[TwinMail] = []  # accepted; with `keep`, the newest
        self.accepted = 0  # mails, in all
        self.requests = 0  # of all kinds, in all
        self.posted: Counter[int] = Counter()  # feedback by the status it was answered with
        self._keep, self._recorder = keep, recorder
        self._unread: deque[TwinMail] = deque(maxlen=keep)
        self._connections: set[Connection] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._lots = random.Random(0)

    # --- what users ask

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def dials(self) -> Dials:
        return self._dials

    @dials.setter
    def dials(self, dials: Dials) -> None:
        self._dials = replace(dials)  # `times` counts down in a copy of our own

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    @property
    @abstractmethod
    def secret(self) -> str:
        """What Provider.secret must be."""

    @property
    def webhook_secret(self) -> str | None:
        """What Provider.webhook_secret must be."""
        return None

    @abstractmethod
    def provider_settings(self) -> dict[str, Any]:
        """Provider.settings for this twin."""

    # --- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. After `stop`, it listens on the same port again."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self._arrived, self._connections),
            self.host,
            self.port,
            backlog=BACKLOG,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(POST_TIMEOUT))
        self._feeder = Feeder(self)

    async def stop(self) -> None:
        """Stop listening, cut every connection, post no more."""
        self._listener.close()
        await self._feeder.close()
        await self._session.close()
        while self._connections:
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0)
        await self._listener.wait_closed()

    # --- waiting

    async def wait_for(self, condition: Callable[[], bool], timeout: float = 60) -> None:
        """Wait until a condition on this twin holds; it is checked after every change."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise TimeoutError(
                f"not within {timeout} s; {self.requests} requests, {self.accepted} mails accepted,"
                f" feedback posted {dict(self.posted)}"
            ) from None

    async def next_mail(self, timeout: float = 60) -> TwinMail:
        """The first mail that no earlier call has returned."""
        await self.wait_for(lambda: bool(self._unread), timeout)
        return self._unread.popleft()

    def changed(self) -> None:
        """Wake the waiters: something has changed."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # --- feedback

    @abstractmethod
    def describe(
        self, mail: TwinMail, kind: Kind, recipient: str | None, more: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The service's events about a mail, for one recipient or all."""

    @abstractmethod
    def sign(self, events: Sequence[dict[str, Any]], *, forged: bool = False) -> Signed:
        """A request with these events; a forged one is signed with a wrong key."""

    def event(
        self,
        mail: TwinMail,
        kind: Kind,
        recipient: str | None = None,
        *,
        forged: bool = False,
        **more: Any,
    ) -> Signed:
        """The signed request, not sent: to duplicate, reorder or forge it. `more` replaces fields."""
        return self.sign(self.describe(mail, kind, recipient, more)[: self.batch], forged=forged)

    async def feed(
        self,
        mail: TwinMail,
        kind: Kind,
        recipient: str | None = None,
        *,
        forged: bool = False,
        **more: Any,
    ) -> int:
        """Post feedback about a mail, for one recipient or all; returns the worst status."""
        events = self.describe(mail, kind, recipient, more)
        batches = [
            events[start : start + self.batch] for start in range(0, len(events), self.batch)
        ]
        return max([await self.post(*self.sign(batch, forged=forged)) for batch in batches])

    async def post(self, headers: Mapping[str, str], body: bytes) -> int:
        """Post one request with feedback, as `event` made it; returns the status of the answer."""
        if self.webhook_url is None:
            raise ValueError(
                "the simulated server does not know where to post: set its webhook_url"
            )
        async with self._session.post(
            self.webhook_url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            await answer.read()
        self.posted[answer.status] += 1
        self.changed()
        return answer.status

    # --- serving

    @abstractmethod
    def is_send(self, request: Request) -> bool:
        """Whether a request hands over a mail."""

    @abstractmethod
    def serve(self, request: Request) -> Answer:
        """What the service answers on a good day; it keeps the mails it accepts."""

    @abstractmethod
    def failure(self, status: int) -> Answer:
        """What the service says with a status."""

    @abstractmethod
    def troubled(self, trouble: Trouble, request: Request) -> Answer:
        """What the service answers when the account is in trouble."""

    def beside(self, request: Request) -> Answer | None:
        """What the service offers beside its API; no dial touches it."""
        return None

    def keep(self, mail: TwinMail) -> None:
        """Accept a mail."""
        self.accepted += 1
        if self._recorder is not None:
            self._recorder.write(mail)
        if self._keep != 0:
            self.mails.append(mail)
            self._unread.append(mail)
            if self._keep is not None and len(self.mails) >= 2 * self._keep:
                del self.mails[: -self._keep]
        if self.feedback is not None and self.webhook_url is not None:
            self._feeder.accepted(mail, self.feedback)

    def _arrived(self, connection: Connection, request: Request) -> None:
        self.requests += 1
        if request.target.startswith(PREFIX):
            connection.answer(control(self, request))
        elif (offered := self.beside(request)) is not None:
            connection.answer(offered)
        else:
            self._answer(connection, request, self._dialled(self.is_send(request)))
        self.changed()

    def _dialled(self, send: bool) -> Dials:
        """The dials as they hold for this request."""
        dials = self._dials
        if dials.times is not None:
            if dials.times <= 0:
                return CALM
            dials.times -= send
        if dials.fails and dials.share < 1 and self._lots.random() >= dials.share:
            return Dials(latency=dials.latency)
        return dials

    def _answer(self, connection: Connection, request: Request, dials: Dials) -> None:
        if dials.drop == "before":
            connection.abort()
            return
        if dials.hang and not dials.stored:
            return
        answer = self._decide(request, dials)
        if dials.hang:
            return
        if dials.drop == "after":
            connection.abort()
        elif dials.latency:
            asyncio.get_running_loop().call_later(dials.latency, connection.answer, answer)
        else:
            connection.answer(answer)

    def _decide(self, request: Request, dials: Dials) -> Answer:
        if dials.status is not None:
            answer = self.failure(dials.status)
            if dials.body is not None:
                answer = json_answer(dials.status, dials.body)
        elif dials.trouble is not None:
            answer = self.troubled(dials.trouble, request)
        else:
            answer = self.serve(request)
        if dials.retry_after is not None:
            answer.headers = {**answer.headers, "Retry-After": f"{dials.retry_after:g}"}
        return answer

    def state(self) -> dict[str, Any]:
        """Its state, for people and other processes."""
        return {
            "kind": self.kind,
            "url": self.url,
            "accepted": self.accepted,
            "requests": self.requests,
            "connections": len(self._connections),
            "posted": {str(status): count for status, count in self.posted.items()},
            "dials": asdict(self.dials),
            "webhook_url": self.webhook_url,
        }
