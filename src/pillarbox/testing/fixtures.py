"""Fixtures for pytest: a scripted SMTP server and the provider twins, fresh for each test.

    # conftest.py
    pytest_plugins = ["pillarbox.testing.fixtures"]

They need pytest-asyncio, in whichever mode your tests run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from pillarbox.testing.smtp import SmtpServer
from pillarbox.testing.twins import MailgunTwin, SendGridTwin, SesTwin


@pytest_asyncio.fixture
async def smtp_server() -> AsyncIterator[SmtpServer]:
    """An SMTP server on a free port of 127.0.0.1 that takes everything; turn its `faults`."""
    async with SmtpServer() as server:
        yield server


@pytest_asyncio.fixture
async def sendgrid_twin() -> AsyncIterator[SendGridTwin]:
    """SendGrid on a free port of 127.0.0.1; turn its `dials`."""
    async with SendGridTwin() as twin:
        yield twin


@pytest_asyncio.fixture
async def ses_twin() -> AsyncIterator[SesTwin]:
    """Amazon SES with SNS on a free port of 127.0.0.1."""
    async with SesTwin() as twin:
        yield twin


@pytest_asyncio.fixture
async def mailgun_twin() -> AsyncIterator[MailgunTwin]:
    """Mailgun on a free port of 127.0.0.1."""
    async with MailgunTwin() as twin:
        yield twin
