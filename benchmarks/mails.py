"""The mails that benchmarks send: text and HTML, 4 KB together, of real words; and ways to store
many.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle, islice
from typing import Any
from uuid import UUID

import asyncpg

import pillarbox
from pillarbox.deliver.mime import compose
from pillarbox.model.message import Content, Message

SENDER = "Example Shop <orders@shop.example>"
BATCH = 1000  # mails per enqueue_many or COPY, and per transaction
TEXT = """the of and to in your order with has been shipped from our store will arrive on Thursday please
find a summary below if you have any questions reply this message we are happy help thank for shopping us
invoice number total amount paid by card delivery address street house city country mail tracking link
returns accepted within thirty days original packaging receipt discount next purchase valid until end
month account settings change time password never share security team noticed new sign device browser
location was not you reset immediately weekly digest friends posted photos comments likes groups events
nearby weather sunny morning rain evening temperature project meeting notes agenda budget review deadline
moved Friday attached slides design"""
WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Sample:
    """One mail's parts."""

    to: str
    subject: str
    text: str
    html: str


def samples(count: int = BATCH, size: int = 4096) -> list[Sample]:
    """So many different mails of about `size` bytes each once composed, the same ones in every run."""
    dice = random.Random(42)
    headers = 600  # what composing adds
    return [_sample(dice, n, max(200, size - headers)) for n in range(count)]


def _sample(dice: random.Random, n: int, size: int) -> Sample:
    subject = f"Order {dice.randrange(10**6)}: {_words(dice, 30)}"
    paragraphs = "".join(
        f'<p style="margin:0 0 12px">{_words(dice, 180)}.</p>\n'
        for _ in range(size * 6 // 10 // 215)
    )
    html = f"<html><body><h1>{subject}</h1>\n{paragraphs}</body></html>\n"
    lines = "\n".join(_words(dice, 72) for _ in range(max(1, (size - len(html)) // 76)))
    return Sample(f"reader{n}@mail{n % 50}.example", subject, lines + "\n", html)


def _words(dice: random.Random, length: int) -> str:
    words, size = [], 0
    while size < length:
        words.append(dice.choice(WORDS))
        size += len(words[-1]) + 1
    return " ".join(words)


def finished(mails: Sequence[Sample]) -> list[bytes]:
    """The mails as bytes ready for the wire, for references that have nothing to compose."""
    now = datetime.now(UTC)
    return [
        compose(
            Message(
                UUID(int=n),
                SENDER,
                [mail.to],
                mail.subject,
                now,
            ),
            Content(mail.text, mail.html),
        )
        for n, mail in enumerate(mails)
    ]


def batches(mails: Sequence[Sample], count: int) -> Iterator[list[Sample]]:
    """`count` mails, repeating the samples, by BATCH."""
    endless = cycle(mails)
    for start in range(0, count, BATCH):
        yield list(islice(endless, min(BATCH, count - start)))


# Rows of many mails straight into the tables, where accepting them is not what is measured. Each
# takes its content from a row of `stock` in turn.
FILL = """
WITH mail AS MATERIALIZED (
  SELECT pillarbox._new_id() AS id, nextval('pillarbox.message_seq') AS seq, s.*
  FROM generate_series(1, $1::int) AS i JOIN stock s ON s.n = i % (SELECT count(*) FROM stock)
), messages AS (
  INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
  SELECT id, $3::int4, size, $4::int2, clock_timestamp(), 'transactional', $2, ARRAY[recipient], subject FROM mail
), contents AS (
  INSERT INTO pillarbox.contents (message_id, text, html, raw, attachments)
  SELECT id, text, html, raw, attachments FROM mail
)
INSERT INTO pillarbox.deliveries
  (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
SELECT id, seq, clock_timestamp(), 'queued', $3::int4, size, 0, $4::int2, 't', recipient FROM mail
"""
STOCK = """
CREATE TABLE IF NOT EXISTS stock (
  n int PRIMARY KEY, size int NOT NULL, recipient text, subject text, text text, html text, raw bytea,
  attachments jsonb
)
"""


async def stock(connection: asyncpg.Connection, mails: Sequence[Sample], **extra: Any) -> None:
    """Lay in what `fill` copies from; `extra` gives raw or attachments in place of the bodies."""
    await connection.execute(STOCK)
    await connection.execute("TRUNCATE stock")
    for n, m in enumerate(mails):
        size = 1024 + len(m.text) + len(m.html) + sum(map(len, extra.values()))
        bodies = (None, None) if "raw" in extra else (m.text, m.html)
        await connection.execute(
            "INSERT INTO stock VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            n, size, m.to, m.subject, *bodies, extra.get("raw"), extra.get("attachments"),
        )  # fmt: skip


async def fill(
    connection: asyncpg.Connection,
    count: int,
    tenant: int = 1,
    lane: int = 1,
) -> None:
    """Put so many mails into the queue, by SQL alone."""
    for start in range(0, count, 10_000):
        await connection.execute(
            FILL,
            min(10_000, count - start),
            SENDER,
            tenant,
            lane,
            timeout=600,
        )


# --- as an application does it


def given(mails: Sequence[Sample], **more: Any) -> list[pillarbox.Mail]:
    """The mails as `pillarbox.enqueue` takes them."""
    return [
        pillarbox.Mail(
            sender=SENDER,
            to=[m.to],
            subject=m.subject,
            text=m.text,
            html=m.html,
            **more,
        )
        for m in mails
    ]


async def enqueue(url: str, mails: Sequence[Sample], count: int) -> None:
    """Put so many mails into the queue by `enqueue_many`."""
    connection = await asyncpg.connect(url)
    try:
        for batch in batches(mails, count):
            async with connection.transaction():
                await pillarbox.enqueue_many(connection, given(batch))
    finally:
        await connection.close()
