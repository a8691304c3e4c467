"""Messages: sending, reading, changing them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Unpack
from uuid import UUID

from pillarbox.accept.mail import Mail
from pillarbox.client import calls
from pillarbox.client.batches import Batches, Results
from pillarbox.client.calls import Filters, Sent, TemplateOptions
from pillarbox.client.operations import Operations
from pillarbox.errors import PillarboxError
from pillarbox.wire.messages import Changes, FullMessage, MessageSummary


class MessageOperations(Operations):
    """The operations on messages."""

    async def send(self, mail: Mail, **template: Unpack[TemplateOptions]) -> Sent:
        """Submit a mail; returns when it is committed.

        With `template`, the template makes the subject, text and html: the mail has none of them.
        """
        return await self._run(calls.send(mail, template))

    async def send_many(
        self, mails: Iterable[Mail], *, idempotency_key: str | None = None
    ) -> Results:
        """Submit several mails; returns for each, in order, what was accepted or its error.

        If a whole call fails before anything was accepted, its error is raised instead.
        """
        batches = Batches(list(mails), idempotency_key)
        for positions, call in batches.calls():
            try:
                batches.put(positions, await self._run(call))
            except PillarboxError as error:
                batches.fail(positions, error)
        return batches.results()

    async def get(self, message_id: UUID | str) -> FullMessage:
        """A message with its deliveries, attempts and events."""
        return await self._run(calls.get(message_id))

    def list(self, **filters: Unpack[Filters]) -> AsyncIterator[MessageSummary]:
        """The messages that match all filters, newest first; pages are fetched as you iterate."""
        return self._walk(calls.checked_filters(filters))

    async def raw(self, message_id: UUID | str) -> bytes:
        """The mail as it is sent."""
        return await self._run(calls.raw(message_id))

    async def cancel(self, message_id: UUID | str) -> Changes:
        """Cancel the deliveries that were not sent yet; NotPossible if there are none."""
        return await self._run(calls.cancel(message_id))

    async def reschedule(self, message_id: UUID | str, send_at: datetime) -> Changes:
        """Reschedule the deliveries that were not tried yet; NotPossible if there are none."""
        return await self._run(calls.reschedule(message_id, send_at))

    async def resend(self, message_id: UUID | str, *, idempotency_key: str | None = None) -> Sent:
        """Send a message once more, as a new one; NotPossible if its content was deleted."""
        return await self._run(calls.resend(message_id, idempotency_key))

    async def _walk(self, filters: Sequence[tuple[str, str]]) -> AsyncIterator[MessageSummary]:
        async for page in self._pages(lambda cursor: calls.page(filters, cursor)):
            for message in page.messages:
                yield message
