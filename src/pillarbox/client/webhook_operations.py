"""Webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from uuid import UUID

from pillarbox.client import webhook_calls
from pillarbox.client.operations import Operations
from pillarbox.client.webhook_calls import Webhook
from pillarbox.wire.webhooks import WebhookCall, WebhookTest


class WebhookOperations(Operations):
    """The methods that need a key with the scope `manage`."""

    async def add_webhook(self, url: str, *, kinds: str | Sequence[str] = ()) -> Webhook:
        """Add a webhook; its `secret` is told this once. Without kinds it is told of everything."""
        return await self._run(webhook_calls.add(url, kinds))

    async def webhooks(self) -> Sequence[Webhook]:
        """The tenant's webhooks."""
        return await self._run(webhook_calls.list_all())

    async def get_webhook(self, webhook_id: UUID | str) -> Webhook:
        return await self._run(webhook_calls.get(webhook_id))

    async def change_webhook(
        self,
        webhook_id: UUID | str,
        *,
        url: str | None = None,
        kinds: str | Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> Webhook:
        """Change what is given; `enabled=True` also makes the calls that waited."""
        return await self._run(webhook_calls.change(webhook_id, url, kinds, enabled))

    async def remove_webhook(self, webhook_id: UUID | str) -> None:
        """Remove a webhook with its log and the calls that wait."""
        await self._run(webhook_calls.remove(webhook_id))

    async def rotate_webhook(self, webhook_id: UUID | str) -> Webhook:
        """Make a new `secret`; for a day calls are signed with the old one, too."""
        return await self._run(webhook_calls.rotate(webhook_id))

    async def test_webhook(self, webhook_id: UUID | str) -> WebhookTest:
        """Make one call now, and say how it went."""
        return await self._run(webhook_calls.test(webhook_id))

    async def webhook_calls(
        self, webhook_id: UUID | str, *, state: str | Sequence[str] = ()
    ) -> AsyncIterator[WebhookCall]:
        """The log of calls, newest first; fetched page by page as you go on."""
        async for page in self._pages(lambda cursor: webhook_calls.page(webhook_id, state, cursor)):
            for call in page.calls:
                yield call

    async def replay_webhook(
        self,
        webhook_id: UUID | str,
        *,
        calls: Sequence[UUID | str] | None = None,
        state: str | Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Make calls again: these, or those that failed (or are in `state`) in a time; returns how many."""
        pages = self._pages(
            lambda cursor: webhook_calls.replay(webhook_id, calls, state, since, until, cursor)
        )
        return sum([page.replayed async for page in pages])
