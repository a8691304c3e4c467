"""`list_unsubscribe` on its way out: the header fields that SMTP servers and HTTP providers receive."""

from __future__ import annotations

import pytest

from pillarbox.store.database import Database
from pillarbox.store.vault import generate_key
from pillarbox.testing import SmtpServer
from pillarbox.testing.twins import MailgunTwin, SendGridTwin, SesTwin, Twin
from pillarbox.testing.twins.mail import TwinMail
from tests.harness import add_smtp, add_twin, enqueue, opened, working
from tests.unsubscribing import CASES, unsubscribe_fields

EXPECTED = {f"case {number}": fields for number, (_, fields) in enumerate(CASES)}


async def enqueue_cases(database: Database) -> None:
    """A mail for each case, with its name as the subject."""
    for subject, (urls, _) in zip(EXPECTED, CASES, strict=True):
        await enqueue(database, subject=subject, list_unsubscribe=urls)


def received_fields(mail: TwinMail) -> dict[str, str]:
    """The fields that a provider received: in the MIME, or in the JSON of SendGrid."""
    if mail.mime is not None:
        return unsubscribe_fields(mail.mime)
    assert mail.body is not None
    headers: dict[str, str] = mail.body["headers"]
    return {name: value for name, value in headers.items() if name.startswith("List-")}


async def test_smtp_servers_receive_the_header_fields(
    database: Database, database_url: str
) -> None:
    async with SmtpServer() as server:
        await add_smtp(database, server)
        await enqueue_cases(database)
        async with working(database_url):
            mails = [await server.next_mail() for _ in CASES]
    assert {mail.message["Subject"]: unsubscribe_fields(mail.content) for mail in mails} == EXPECTED
    assert max(len(line) for mail in mails for line in mail.content.split(b"\r\n")) <= 998


@pytest.mark.parametrize("kind", [SendGridTwin, SesTwin, MailgunTwin])
async def test_http_providers_receive_the_header_fields(
    kind: type[Twin], database: Database, database_url: str
) -> None:
    key = generate_key()
    async with kind() as twin:
        async with opened(database_url, secret_keys=key) as app:
            await add_twin(app, twin, "esp")
        await enqueue_cases(database)
        async with working(database_url, secret_keys=key):
            mails = [await twin.next_mail() for _ in CASES]
    assert {mail.subject: received_fields(mail) for mail in mails} == EXPECTED
