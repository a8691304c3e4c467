"""Dead letters and suppression lists in `pillarbox.Client`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Unpack

from pillarbox.client import dlq_calls, suppression_calls
from pillarbox.client.asking import Asking
from pillarbox.client.dlq_calls import (
    MAX_PER_CALL,
    DeadLetter,
    DeadLetterFilters,
    DeadLetterSummary,
    Discarded,
    MessageIds,
    Reprocessed,
)
from pillarbox.client.suppression_calls import Suppressed, Suppression


class DeadLetterCalls(Asking):
    """What failed, and sending it again."""

    def dead_letters(self, **filters: Unpack[DeadLetterFilters]) -> Iterator[DeadLetter]:
        """Messages of which something failed and that fit, newest first; fetched page by page as you go on."""
        for page in self._pages(lambda cursor: dlq_calls.page(filters, cursor)):
            yield from page.messages

    def dead_letter_summary(self, **filters: Unpack[DeadLetterFilters]) -> DeadLetterSummary:
        """How many deliveries failed, by reason and by provider."""
        return self._run(dlq_calls.summary(filters))

    def reprocess(
        self,
        message_ids: MessageIds | None = None,
        *,
        reset_retry_count: bool = True,
        via: str | None = None,
        limit: int = MAX_PER_CALL,
        dry_run: bool = False,
        **filters: Unpack[DeadLetterFilters],
    ) -> Reprocessed:
        """Queue what failed again: of these messages, or all that fits the filters; through the provider `via`."""
        call = dlq_calls.reprocess(message_ids, filters, reset_retry_count, via, limit, dry_run)
        return self._run(call)

    def discard(
        self,
        message_ids: MessageIds | None = None,
        *,
        limit: int = MAX_PER_CALL,
        dry_run: bool = False,
        **filters: Unpack[DeadLetterFilters],
    ) -> Discarded:
        """Give up what failed: of these messages, or all that fits the filters."""
        return self._run(dlq_calls.discard(message_ids, filters, limit, dry_run))


class SuppressionCalls(Asking):
    """Addresses that mails are not sent to."""

    def suppressions(
        self, *, address: str | None = None, prefix: str | None = None, reason: str | None = None
    ) -> Iterator[Suppression]:
        """Suppressed addresses that fit, in their order; fetched page by page as you go on."""
        for page in self._pages(
            lambda cursor: suppression_calls.page(address, prefix, reason, cursor)
        ):
            yield from page.suppressions

    def suppress(
        self,
        addresses: str | Sequence[str],
        *,
        reason: str = "manual",
        note: str | None = None,
        expires_at: datetime | None = None,
    ) -> Suppressed:
        """Put up to 1,000 addresses on the list, all or none."""
        return self._run(suppression_calls.add(addresses, reason, note, expires_at))

    def unsuppress(self, address: str) -> None:
        """Take an address off the list; NotFound if it is not on it."""
        return self._run(suppression_calls.remove(address))

    def import_suppressions(self, content: bytes | str, *, partial: bool = False) -> Suppressed:
        """Add a list as CSV, all or none; with `partial`, lines with a fault are passed over, and told."""
        return self._run(suppression_calls.import_(content, partial))

    def export_suppressions(self, *, reason: str | None = None) -> bytes:
        """The whole list as CSV."""
        return self._run(suppression_calls.export(reason))
