"""What most tests of the edges begin with; a test that needs more says so in a fixture of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pillarbox.testing.webhook_receiver import WebhookReceiver
from tests.integration.api.api_helpers import Api, api_of
from tests.integration.cli.cli_helpers import Cli


@pytest_asyncio.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """The API on the test's database, with clients of two tenants."""
    async with api_of(database_url) as api:
        yield api


@pytest.fixture
def cli(database_url: str) -> Cli:
    """The command line on the test's database."""
    return Cli(database_url)


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as receiver:
        yield receiver
