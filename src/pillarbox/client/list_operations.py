"""Dead letters and suppression lists."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Unpack

from pillarbox.client import dlq_calls, suppression_calls
from pillarbox.client.dlq_calls import MAX_PER_CALL, DeadLetterFilters, MessageIds
from pillarbox.client.operations import Operations
from pillarbox.client.suppression_calls import Suppressed
from pillarbox.wire.dlq import DeadLetter, DeadLetterSummary, Discarded, Reprocessed
from pillarbox.wire.suppressions import Suppression


class DeadLetterOperations(Operations):
    """Dead letters: failed deliveries, and reprocessing them."""

    async def dead_letters(self, **filters: Unpack[DeadLetterFilters]) -> AsyncIterator[DeadLetter]:
        """The messages with failed deliveries that match, newest first; fetched page by page."""
        async for page in self._pages(lambda cursor: dlq_calls.page(filters, cursor)):
            for message in page.messages:
                yield message

    async def dead_letter_summary(self, **filters: Unpack[DeadLetterFilters]) -> DeadLetterSummary:
        """The number of failed deliveries, by reason and by provider."""
        return await self._run(dlq_calls.summary(filters))

    async def reprocess(
        self,
        message_ids: MessageIds | None = None,
        *,
        reset_retry_count: bool = True,
        via: str | None = None,
        limit: int = MAX_PER_CALL,
        dry_run: bool = False,
        **filters: Unpack[DeadLetterFilters],
    ) -> Reprocessed:
        """Queue failed deliveries again: of these messages, or all that match the filters.

        With `via`, they are sent through this provider.
        """
        call = dlq_calls.reprocess(message_ids, filters, reset_retry_count, via, limit, dry_run)
        return await self._run(call)

    async def discard(
        self,
        message_ids: MessageIds | None = None,
        *,
        limit: int = MAX_PER_CALL,
        dry_run: bool = False,
        **filters: Unpack[DeadLetterFilters],
    ) -> Discarded:
        """Discard failed deliveries: of these messages, or all that match the filters."""
        return await self._run(dlq_calls.discard(message_ids, filters, limit, dry_run))


class SuppressionOperations(Operations):
    """Suppression lists: addresses to which mails are not sent."""

    async def suppressions(
        self, *, address: str | None = None, prefix: str | None = None, reason: str | None = None
    ) -> AsyncIterator[Suppression]:
        """The suppressed addresses that match, in order; fetched page by page."""
        async for page in self._pages(
            lambda cursor: suppression_calls.page(address, prefix, reason, cursor)
        ):
            for suppression in page.suppressions:
                yield suppression

    async def suppress(
        self,
        addresses: str | Sequence[str],
        *,
        reason: str = "manual",
        note: str | None = None,
        expires_at: datetime | None = None,
    ) -> Suppressed:
        """Suppress up to 1,000 addresses, all or none."""
        return await self._run(suppression_calls.add(addresses, reason, note, expires_at))

    async def unsuppress(self, address: str) -> None:
        """Remove an address from the list; NotFound if it is not on the list."""
        return await self._run(suppression_calls.remove(address))

    async def import_suppressions(
        self, content: bytes | str, *, partial: bool = False
    ) -> Suppressed:
        """Add a list as CSV, all or none; with `partial`, invalid lines are skipped and listed."""
        return await self._run(suppression_calls.import_(content, partial))

    async def export_suppressions(self, *, reason: str | None = None) -> bytes:
        """The whole list as CSV."""
        return await self._run(suppression_calls.export(reason))
