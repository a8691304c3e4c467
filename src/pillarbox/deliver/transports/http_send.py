"""One mail's way through an HTTP provider: calls, responses, and an outcome for each recipient."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from aiohttp import ClientTimeout

from pillarbox.deliver.transports.base import OutgoingMail, Recipient, SendResult
from pillarbox.deliver.transports.http_client import FAILURES, HttpClient, failed
from pillarbox.deliver.transports.http_request import (
    CORRELATION,
    HttpTranscript,
    ProviderRequest,
    ProviderRequestBody,
)
from pillarbox.deliver.transports.http_responses import ProviderResponse
from pillarbox.errors import NotStarted
from pillarbox.model.outcome import Outcome, Reason, Verdict, deferred, rejected
from pillarbox.model.provider_kind import TransportLimits


class ProviderApi(Protocol):
    """One provider's way of being asked and of answering. Does no I/O."""

    @property
    def limits(self) -> TransportLimits: ...

    def build_request(
        self, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> ProviderRequest | Outcome:
        """The call that hands over a mail for these recipients; an outcome when it cannot carry it.

        ValueError when the mail cannot be made into a legal one.
        """
        ...

    def interpret(self, response: ProviderResponse, now: float) -> Outcome:
        """What a response means. `now` is in seconds since 1970."""
        ...

    def invalid_recipients(
        self, response: ProviderResponse, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> Sequence[int]:
        """Whom of the recipients, by place, a response calls invalid; empty when it does not say whom."""
        ...

    def build_check(self) -> ProviderRequest:
        """A call that proves the account and sends nothing."""
        ...

    def read_check(self, response: ProviderResponse, now: float) -> str:
        """A line for people about a check's response; NotPossible when mails cannot leave."""
        ...


class HttpSend:
    """As few calls as the provider allows. A recipient that it calls invalid does not take the others along."""

    def __init__(
        self, api: ProviderApi, client: HttpClient, timeout: ClientTimeout, outgoing: OutgoingMail
    ) -> None:
        self._api = api
        self._client = client
        self._timeout = timeout
        self._outgoing = outgoing
        self._outcomes: dict[int, Outcome] = {}
        self._loop = asyncio.get_running_loop()
        self._record = HttpTranscript(self._loop.time())
        self._task = asyncio.current_task()
        self._body: ProviderRequestBody | None = None  # of the call under way
        self._withdrawn = False

    def withdraw(self, why: str) -> None:
        """Give the mail back if nothing of it was sent yet, as when the connection is still being made."""
        if (
            self._body is not None
            and not self._withdrawn
            and not self._outcomes
            and self._body.withdraw(why)
        ):
            assert self._task is not None
            self._withdrawn = self._task.cancel()

    async def run(self) -> SendResult:
        """Send to all; raises NotStarted when nothing was sent to anybody."""
        try:
            return await self._run()
        except (asyncio.CancelledError, NotStarted):
            assert self._task is not None
            if not self._withdrawn or self._task.uncancel():  # somebody else cancelled it, too
                raise
            assert self._body is not None
            raise NotStarted(self._body.refused) from None

    async def _run(self) -> SendResult:
        recipients = self._outgoing.recipients
        places = range(len(recipients))
        most = self._api.limits.max_recipients or len(places)
        groups = deque(list(places[at : at + most]) for at in range(0, len(places), most))
        while groups:
            await self._send(groups.popleft(), groups)
        report = SendResult(
            [self._outcomes[place] for place in places], self._record.started, self._loop.time()
        )
        if not report.plainly_accepted:
            report.transcript = self._record.text()
        return report

    async def _send(self, group: Sequence[int], rest: deque[list[int]]) -> None:
        """One call; what it leaves open goes to the front of `rest`."""
        recipients = [self._outgoing.recipients[place] for place in group]
        try:
            outcome, response = await self._call(recipients)
        except NotStarted as refused:
            if not self._outcomes:
                raise
            outcome, response = deferred(Reason.UNAVAILABLE, None, f"given back: {refused}"), None
        if response is not None and outcome.reason is Reason.INVALID_RECIPIENT and len(group) > 1:
            self._single_out(outcome, response, group, recipients, rest)
            return
        self._settle(group, outcome)
        if outcome.verdict in (
            Verdict.DEFERRED,
            Verdict.UNKNOWN,
        ):  # the provider's state: the others need not try it
            assert outcome.reason is not None
            later = deferred(outcome.reason, outcome.code, outcome.text, outcome.retry_after)
            while rest:
                self._settle(rest.popleft(), later)

    def _single_out(
        self,
        outcome: Outcome,
        response: ProviderResponse,
        group: Sequence[int],
        recipients: Sequence[Recipient],
        rest: deque[list[int]],
    ) -> None:
        """Nobody got it because of some: these are refused, the others go again; one by one if it says not whom."""
        blamed = {
            group[place]
            for place in self._api.invalid_recipients(response, self._outgoing, recipients)
        }
        self._settle(sorted(blamed), outcome)
        others = [place for place in group if place not in blamed]
        if not blamed:
            rest.extendleft([place] for place in reversed(others))
        elif others:
            rest.appendleft(others)

    def _settle(self, places: Sequence[int], outcome: Outcome) -> None:
        for place in places:
            self._outcomes[place] = outcome

    async def _call(
        self, recipients: Sequence[Recipient]
    ) -> tuple[Outcome, ProviderResponse | None]:
        outgoing, record = self._outgoing, self._record
        try:
            call = self._api.build_request(outgoing, recipients)
        except ValueError as error:
            call = rejected(Reason.MALFORMED, None, str(error))
        if isinstance(call, Outcome):
            record.remark(self._loop.time(), f"not sent: {call.text}")
            return call, None
        correlation = f"{outgoing.message_id}/{outgoing.attempt}"
        call.headers[CORRELATION] = correlation
        self._body = body = ProviderRequestBody(
            call.body, call.headers["Content-Type"], outgoing.may_begin
        )
        record.asked(self._loop.time(), call, correlation)
        try:
            response = await self._client.request(call, body, self._timeout)
        except FAILURES as error:
            if body.refused is not None:
                raise NotStarted(body.refused) from None
            outcome = failed(error, body)
            record.remark(self._loop.time(), outcome.text or "")
            return outcome, None
        record.answered(self._loop.time(), response)
        return self._api.interpret(response, time.time()), response
