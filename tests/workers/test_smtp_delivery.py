"""A queued mail reaches the SMTP server, built as it should be."""

from __future__ import annotations

from email.message import EmailMessage

import pytest
from tests.harness import add_smtp, attempts, enqueue, settled, working

from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer


@pytest.mark.req("REQ-QUEUE-E003")
async def test_successful_smtp_dispatch(database: Database, database_url: str) -> None:
    """The mail arrives once, with its envelope, and is `sent` with the server's words on record."""
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(
                database, "Reader <reader@mail.example>", subject="Welcome", text="Hello there"
            )
            mail = await server.next_mail()
            [delivery] = await settled(database, message_id, "sent")
    assert (mail.sender, mail.recipients) == ("sender@shop.example", ("reader@mail.example",))
    assert mail.message["Subject"] == "Welcome"
    assert mail.message.get_content().strip() == "Hello there"
    assert len(server.mails) == 1
    assert server.violations == []
    assert delivery["attempts"] == 1
    assert delivery["settled_at"] is not None
    [attempt] = await attempts(database, message_id)
    assert (attempt["verdict"], attempt["code"]) == ("accepted", 250)
    assert attempt["started_at"] <= attempt["ended_at"]


async def test_mime_multipart_construction(database: Database, database_url: str) -> None:
    """Text and HTML arrive as multipart/alternative with the standard headers; Bcc only in the envelope."""
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(
                database,
                "Zoë Reader <reader@mail.example>",
                cc=["copy@mail.example"],
                bcc=["hidden@mail.example"],
                subject="Grüße",
                text="plain ✓",
                html="<p>rich ✓</p>",
            )
            mail = await server.next_mail()
    message = mail.message
    assert isinstance(message, EmailMessage)
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert message.get_body(("plain",)).get_content().strip() == "plain ✓"
    assert message.get_body(("html",)).get_content().strip() == "<p>rich ✓</p>"
    assert message["Subject"] == "Grüße"
    assert message["From"].addresses[0].addr_spec == "sender@shop.example"
    assert message["To"].addresses[0].display_name == "Zoë Reader"
    assert str(message_id) in message["Message-ID"] or message_id.hex in message["Message-ID"]
    assert message["Date"] is not None
    assert message["Bcc"] is None
    assert b"hidden" not in mail.content
    assert mail.recipients == ("reader@mail.example", "copy@mail.example", "hidden@mail.example")
