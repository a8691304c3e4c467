"""Sends one mail through an HTTP provider: requests, responses, an outcome per recipient."""

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
    """Builds the requests of one provider and reads its responses. Does no I/O."""

    @property
    def limits(self) -> TransportLimits: ...

    def build_request(
        self, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> ProviderRequest | Outcome:
        """The request that sends a mail to these recipients; an outcome if it cannot be sent.

        ValueError if the mail cannot be made into a legal one.
        """
        ...

    def interpret(self, response: ProviderResponse, now: float) -> Outcome:
        """The outcome of a response. `now` is in seconds since 1970."""
        ...

    def invalid_recipients(
        self, response: ProviderResponse, outgoing: OutgoingMail, recipients: Sequence[Recipient]
    ) -> Sequence[int]:
        """The indexes of the recipients that a response calls invalid; empty if it names none."""
        ...

    def build_check(self) -> ProviderRequest:
        """A request that proves the account and sends nothing."""
        ...

    def read_check(self, response: ProviderResponse, now: float) -> str:
        """A line for people about the response to a check; NotPossible if mails cannot be sent."""
        ...


class HttpSend:
    """Sends one mail with as few requests as the provider allows.

    A recipient that the provider calls invalid does not prevent the others.
    """

    def __init__(
        self,
        api: ProviderApi,
        client: HttpClient,
        timeout: ClientTimeout,
        outgoing: OutgoingMail,
    ) -> None:
        self._api = api
        self._client = client
        self._timeout = timeout
        self._outgoing = outgoing
        self._outcomes: dict[int, Outcome] = {}  # by index of the recipient
        self._loop = asyncio.get_running_loop()
        self._transcript = HttpTranscript(self._loop.time())
        self._task = asyncio.current_task()
        self._body: ProviderRequestBody | None = None  # of the current request
        self._withdrawn = False

    def withdraw(self, why: str) -> None:
        """Give the mail back if nothing of it was sent, as while a connection is being opened."""
        if self._body is None or self._withdrawn or self._outcomes:
            return
        if self._body.withdraw(why):
            assert self._task is not None
            self._withdrawn = self._task.cancel()

    async def run(self) -> SendResult:
        """Send to all recipients; raises NotStarted if nothing was sent to any."""
        try:
            return await self._run()
        except (asyncio.CancelledError, NotStarted):
            assert self._task is not None
            if not self._withdrawn or self._task.uncancel():  # cancelled by the caller, too
                raise
            assert self._body is not None
            raise NotStarted(self._body.refused) from None

    async def _run(self) -> SendResult:
        indexes = range(len(self._outgoing.recipients))
        limit = self._api.limits.max_recipients or len(indexes)
        groups = deque(
            list(indexes[start : start + limit]) for start in range(0, len(indexes), limit)
        )
        while groups:
            await self._send(groups.popleft(), groups)
        outcomes = [self._outcomes[index] for index in indexes]
        result = SendResult(outcomes, self._transcript.started, self._loop.time())
        if not result.plainly_accepted:
            result.transcript = self._transcript.text()
        return result

    async def _send(self, group: Sequence[int], rest: deque[list[int]]) -> None:
        """Make one request; recipients that must be sent to again go to the front of `rest`."""
        recipients = [self._outgoing.recipients[index] for index in group]
        response: ProviderResponse | None = None
        try:
            outcome, response = await self._request(recipients)
        except NotStarted as refused:
            if not self._outcomes:
                raise
            outcome = deferred(Reason.UNAVAILABLE, None, f"given back: {refused}")
        is_invalid = outcome.reason is Reason.INVALID_RECIPIENT
        if response is not None and is_invalid and len(group) > 1:
            self._separate_invalid(outcome, response, group, recipients, rest)
            return
        self._settle(group, outcome)
        if outcome.verdict in (Verdict.DEFERRED, Verdict.UNKNOWN):
            # The provider cannot send now: the other recipients need not try.
            assert outcome.reason is not None
            later = deferred(outcome.reason, outcome.code, outcome.text, outcome.retry_after)
            while rest:
                self._settle(rest.popleft(), later)

    def _separate_invalid(
        self,
        outcome: Outcome,
        response: ProviderResponse,
        group: Sequence[int],
        recipients: Sequence[Recipient],
        rest: deque[list[int]],
    ) -> None:
        """Reject the invalid recipients, and send to the others again.

        If the response does not name the invalid ones, each recipient gets a request of its own.
        """
        named = self._api.invalid_recipients(response, self._outgoing, recipients)
        invalid = {group[index] for index in named}
        self._settle(sorted(invalid), outcome)
        others = [index for index in group if index not in invalid]
        if not invalid:
            rest.extendleft([index] for index in reversed(others))
        elif others:
            rest.appendleft(others)

    def _settle(self, indexes: Sequence[int], outcome: Outcome) -> None:
        for index in indexes:
            self._outcomes[index] = outcome

    async def _request(
        self, recipients: Sequence[Recipient]
    ) -> tuple[Outcome, ProviderResponse | None]:
        outgoing, transcript = self._outgoing, self._transcript
        try:
            request = self._api.build_request(outgoing, recipients)
        except ValueError as error:
            request = rejected(Reason.MALFORMED, None, str(error))
        if isinstance(request, Outcome):
            transcript.remark(self._loop.time(), f"not sent: {request.text}")
            return request, None
        correlation = f"{outgoing.message_id}/{outgoing.attempt}"
        request.headers[CORRELATION] = correlation
        content_type = request.headers["Content-Type"]
        self._body = body = ProviderRequestBody(request.body, content_type, outgoing.may_begin)
        transcript.sent(self._loop.time(), request, correlation)
        try:
            response = await self._client.request(request, body, self._timeout)
        except FAILURES as error:
            if body.refused is not None:
                raise NotStarted(body.refused) from None
            outcome = failed(error, body)
            transcript.remark(self._loop.time(), outcome.text or "")
            return outcome, None
        transcript.received(self._loop.time(), response)
        return self._api.interpret(response, time.time()), response
