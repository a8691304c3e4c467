"""Mails of secret classes are masked by every function of the store that reads messages for people."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import pillarbox
from pillarbox.model.message import Attachment, Content
from pillarbox.model.secret import MASK
from pillarbox.store import dlq, message_pages, messages
from pillarbox.store.database import Database
from pillarbox.store.masking import MASKED_BODY, masked_content
from pillarbox.store.messages import MessageFilter
from tests.harness import enqueue

WORD = "Zaunkoenig-31337"  # in the subject, every body, the file and the header of the raw mail
SOURCE = Path(pillarbox.__file__).parent
Read = Callable[[Database, UUID], Awaitable[Any]]


async def _tenant(database: Database) -> int:
    return int(await database.fetchval("SELECT id FROM pillarbox.tenants WHERE name = 'default'"))


async def _page(database: Database, message_id: UUID) -> Any:
    return await message_pages.page(database, await _tenant(database), MessageFilter(), 10)


async def _dead_letters(database: Database, message_id: UUID) -> Any:
    return await dlq.page(database, None, MessageFilter(), 10)


# Every function that reads a subject or a content to be shown.
READERS: dict[str, Read] = {
    "list_messages": lambda database, _: messages.list_messages(database, MessageFilter(), 10),
    "list_unfinished": lambda database, _: messages.list_messages(
        database, MessageFilter(states=["failed"]), 10
    ),
    "page": _page,
    "dead_messages": _dead_letters,
    "message": messages.message_record,
    "story": messages.message_details,
    "content": messages.content,
}
# Statements that name a subject or a content, but show none: they send it, hash that of a new
# request, compare it with a filter that no secret subject matches, or check the header of a raw
# mail against sender domains.
NOT_READERS = {"claim_heads", "known_keys", "dead_letters", "outgoing_envelopes"}


async def _mail(database: Database, kind: str, secret: bool) -> UUID:
    await database.execute(
        "INSERT INTO pillarbox.classes (name, secret) VALUES ('codes', $1)", secret
    )
    if kind == "raw":
        raw = (
            f"From: shop@example.com\r\nTo: a@example.com\r\nSubject: your\r\n code {WORD}\r\n"
            f"X-Id: 7\r\n\r\nYour code is {WORD}\r\n"
        )
        message_id = await enqueue(
            database,
            "a@example.com",
            **{"class": "codes", "raw": raw.encode(), "subject": WORD, "text": None},
        )
    else:
        message_id = await enqueue(
            database,
            "a@example.com",
            **{
                "class": "codes",
                "subject": WORD,
                "text": f"It is {WORD}",
                "html": f"<b>{WORD}</b>",
            },
        )
    await database.execute(
        "UPDATE pillarbox.deliveries SET state = 'failed', reason = 'policy', settled_at = $2"
        " WHERE message_id = $1",
        message_id,
        datetime.now(UTC),
    )
    return message_id


@pytest.mark.parametrize("kind", ["bodies", "raw"])
@pytest.mark.parametrize("secret", [True, False])
async def test_no_reader_shows_a_secret_mail(database: Database, kind: str, secret: bool) -> None:
    message_id = await _mail(database, kind, secret)
    shown = {name: repr(await read(database, message_id)) for name, read in READERS.items()}
    assert {name for name, text in shown.items() if WORD in text} == (
        set() if secret else shown.keys()
    )
    assert secret == all(MASK in text for text in shown.values())


@pytest.mark.parametrize("secret", [True, False])
async def test_a_mail_that_is_sent_again_is_whole(database: Database, secret: bool) -> None:
    message_id = await _mail(database, "bodies", secret)
    message, content = await messages.for_resending(database, message_id, await _tenant(database))
    assert message.subject == WORD
    assert content is not None
    assert WORD in (content.text or "")


def test_only_resending_reads_mails_that_are_not_masked() -> None:
    users = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if re.search(r"\bfor_resending\b", file.read_text("utf-8"))
    }
    assert users == {"store/messages.py", "store/masking.py", "api/resend.py"}


def test_every_statement_that_reads_subjects_or_contents_is_known() -> None:
    """A new statement is masked and one of READERS, or shows nothing and is one of NOT_READERS."""
    found = set()
    for file in (SOURCE / "store" / "sql").glob("*.sql"):
        for statement in re.split(
            r"^-- (?:name|part): ", file.read_text("utf-8"), flags=re.MULTILINE
        )[1:]:
            name, _, text = statement.partition("\n")
            code = re.sub(r"--[^\n]*|::\w+", "", text)
            reads = re.search(r"\bpillarbox\.(messages|contents)\b", code)
            if reads and re.search(r"\b(subject|html|raw|attachments)\b", code):
                found.add(name)
    assert found - NOT_READERS == READERS.keys() - {"story"}


def test_what_is_left_of_a_secret_content() -> None:
    file = Attachment("code.txt", WORD.encode(), "text/plain")
    assert masked_content(Content(text=WORD, attachments=[file])) == Content(text=MASKED_BODY)
    assert masked_content(Content(html=WORD)) == Content(html=MASKED_BODY)
    raw = f"SUBJECT: {WORD}\r\n\t{WORD}\r\nTo: a@example.com\r\n\r\n{WORD}".encode()
    assert masked_content(Content(raw=raw)).raw == (
        f"Subject: {MASK}\nTo: a@example.com\n\n{MASKED_BODY}\n".encode()
    )
