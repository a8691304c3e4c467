"""Provider twins as processes of their own, and mails made ready for them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp

from benchmarks import harness, mails
from benchmarks.harness import Process
from pillarbox.deliver.mime import compose
from pillarbox.deliver.transports.base import OutgoingMail, Recipient, TransportContext
from pillarbox.deliver.transports.build import build_transport
from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.deliver.transports.http_client import HttpClient
from pillarbox.deliver.transports.http_request import ProviderRequest
from pillarbox.deliver.transports.http_send import ProviderApi
from pillarbox.model.address import address_of
from pillarbox.model.message import Content, Message
from pillarbox.model.provider import Provider
from pillarbox.model.secret import Secret
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.vault import EncryptionKeyRing, generate_key
from pillarbox.testing.twins.mail import Record, read_records

LATENCY = 0.02  # seconds before each answer: an ocean away it is more, in the same city less
KEY = generate_key()  # seals the twins' secrets, for as long as this process lives
SETTINGS: dict[str, Any] = {"secret_keys": KEY}  # what every process of ours needs to open them


class TwinProcess:
    """A twin that runs: how it introduced itself, and its dials."""

    def __init__(self, child: Process, told: Mapping[str, Any], record: Path | None) -> None:
        self.child, self.record = child, record
        self.kind: str = told["kind"]
        self.url: str = told["url"]
        self.settings: dict[str, Any] = told["settings"]
        self.secret = Secret(told["secret"])
        self.webhook_secret = Secret(told["webhook_secret"]) if told["webhook_secret"] else None

    async def dial(self, **dials: Any) -> float:
        """Turn its dials; returns when, by the monotonic clock."""
        async with aiohttp.ClientSession() as session:
            answer = await session.put(f"{self.url}/_twin/dials", json=dials, raise_for_status=True)
            answer.release()
        return time.monotonic()

    async def accepted(self) -> int:
        """How many mails it has taken."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/_twin") as answer:
            return int((await answer.json())["accepted"])

    def records(self) -> list[Record]:
        """What came when."""
        if self.record is None or not self.record.exists():
            return []
        return read_records(self.record)


@asynccontextmanager
async def twin(
    kind: str, latency: float = LATENCY, record: Path | None = None
) -> AsyncIterator[TwinProcess]:
    """One twin; `record` is a file for what comes when."""
    command = [
        sys.executable,
        "-m",
        "pillarbox.testing.twins",
        kind,
        "--latency",
        str(latency),
        "--keep",
        "0",
    ]
    if record:
        record.unlink(missing_ok=True)
        command += ["--out", str(record)]
    async with harness.process(*command) as child:
        yield TwinProcess(child, json.loads(await child.line(30)), record)


async def forget(url: str) -> None:
    """Forget every mail, and all that was learned of providers."""
    await harness.empty(url)
    async with harness.connected(url) as connection:
        await connection.execute(
            "TRUNCATE pillarbox.feedback, pillarbox.provider_health, pillarbox.provider_events"
        )


async def use(url: str, *twins: TwinProcess, **settings: Any) -> list[int]:
    """Make twins the only providers; returns their numbers. `settings` are added to what they say
    of themselves.
    """
    keys = EncryptionKeyRing([Secret(KEY)])
    database = await Database.connect(url)
    try:
        await database.execute("DELETE FROM pillarbox.providers")
        return [
            await providers.add_provider(
                database,
                lambda: keys,
                one.kind,
                one.kind,
                one.settings | settings,
                one.secret,
                webhook_secret=one.webhook_secret,
            )
            for one in twins
        ]
    finally:
        await database.close()


# --- the same requests, for references that have nothing to make


def calls(one: TwinProcess, samples: Sequence[mails.Sample]) -> list[dict[str, Any]]:
    """The mails as the requests that a worker would make, signed and all."""
    api, now = _api(one), datetime.now(UTC)
    made = []
    for n, mail in enumerate(samples):
        message = Message(
            UUID(int=n),
            mails.SENDER,
            [mail.to],
            mail.subject,
            now,
        )
        parts = Content(mail.text, mail.html)
        content = b"" if api.limits.takes_parts else compose(message, parts)
        recipients = [Recipient(0, mail.to)]
        outgoing = OutgoingMail(
            message.id,
            1,
            address_of(mails.SENDER),
            recipients,
            content,
            message=message,
            parts=parts,
        )
        call = api.build_request(outgoing, recipients)
        assert isinstance(call, ProviderRequest)
        made.append(
            {"url": str(call.url), "headers": call.headers, "body": call.body.decode("latin-1")}
        )
    return made


def _api(one: TwinProcess) -> ProviderApi:
    """The requests of this twin's kind; nothing is sent through the transport."""
    provider = Provider(
        1,
        one.kind,
        one.kind,
        one.settings,
        one.secret,
    )
    context = TransportContext(1, HttpClient, _keep)
    transport = build_transport(provider, context, 1)
    assert isinstance(transport, HttpTransport)
    return transport.api


async def _keep(outgoing: OutgoingMail) -> int:
    raise AssertionError("an HTTP provider keeps no mails")
