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
    """Webhooks; they need a key with the scope `manage`."""

    async def add_webhook(self, url: str, *, kinds: str | Sequence[str] = ()) -> Webhook:
        """Add a webhook; its `secret` is returned only once. Without kinds it gets all events."""
        return await self._run(webhook_calls.add(url, kinds))

    async def webhooks(self) -> Sequence[Webhook]:
        """The webhooks of the tenant."""
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
        """Change a webhook; `enabled=True` also makes the waiting calls."""
        return await self._run(webhook_calls.change(webhook_id, url, kinds, enabled))

    async def remove_webhook(self, webhook_id: UUID | str) -> None:
        """Remove a webhook with its log and its waiting calls."""
        await self._run(webhook_calls.remove(webhook_id))

    async def rotate_webhook(self, webhook_id: UUID | str) -> Webhook:
        """Create a new `secret`; for a day, calls are signed with both."""
        return await self._run(webhook_calls.rotate(webhook_id))

    async def test_webhook(self, webhook_id: UUID | str) -> WebhookTest:
        """Make one call now; returns its result."""
        return await self._run(webhook_calls.test(webhook_id))

    async def webhook_calls(
        self, webhook_id: UUID | str, *, state: str | Sequence[str] = ()
    ) -> AsyncIterator[WebhookCall]:
        """The log of calls, newest first; fetched page by page."""
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
        """Repeat these calls, or those of a period by state (failed); returns how many."""
        pages = self._pages(
            lambda cursor: webhook_calls.replay(webhook_id, calls, state, since, until, cursor)
        )
        return sum([page.replayed async for page in pages])
