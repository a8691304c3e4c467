"""Every parser of feedback with a twin that signs like its provider, and mails that have left through it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.harness import add_twin, enqueue, opened

from pillarbox.app import App
from pillarbox.store.vault import generate_key
from pillarbox.testing.twins import TWINS, Twin, TwinMail
from pillarbox.track.feedback.base import SignedRequest

ADA, BOB = "ada@mail.example", "Bob@Mail.example"


async def leave(
    app: App,
    message_id: UUID,
    provider_id: int | None,
    state: str = "sent",
    verdict: str = "accepted",
) -> None:
    """Put a message in the state in which an attempt through a provider left it."""
    await app.database.execute(
        "WITH tried AS (UPDATE pillarbox.deliveries SET state = $2::pillarbox.state, attempts = 1, provider_id = $3,"
        " settled_at = now() WHERE message_id = $1 RETURNING *)"
        " INSERT INTO pillarbox.attempts (message_id, n, claim, provider_id, started_at, ended_at, verdict)"
        " SELECT message_id, n, 1, $3, now(), now(), $4 FROM tried WHERE state <> 'processing'",
        message_id, state, provider_id, verdict,
    )  # fmt: skip


def twin_mail(message_id: UUID, *recipients: str) -> TwinMail:
    """The mail as the twin got it."""
    name = f"twin-{secrets.token_hex(6)}"
    return TwinMail(name, "sender@shop.example", recipients, "Hello", None, None, str(message_id), {},
                    {"pillarbox_message": str(message_id)})  # fmt: skip


@dataclass(slots=True)
class World:
    """An installation with one provider of a kind, and its twin."""

    app: App
    twin: Twin
    provider_id: int

    async def sent(
        self, *recipients: str, state: str = "sent", verdict: str = "accepted"
    ) -> TwinMail:
        """A mail that left through the provider."""
        message_id = await enqueue(self.app.database, *(recipients or (ADA,)))
        await leave(self.app, message_id, self.provider_id, state, verdict)
        return twin_mail(message_id, *(recipients or (ADA,)))

    async def take(
        self, signed: tuple[dict[str, str], bytes], provider_id: int | None = None
    ) -> int:
        return await self.app.feedback_receiver.take(
            self.twin.kind, provider_id or self.provider_id, posted(*signed)
        )

    async def tell(
        self, mail: TwinMail, kind: Any, recipient: str | None = None, **more: Any
    ) -> int:
        return await self.take(self.twin.event(mail, kind, recipient or mail.recipients[0], **more))

    async def states(self, mail: TwinMail) -> list[str]:
        rows = await self.app.database.fetch(
            "SELECT state FROM pillarbox.deliveries WHERE message_id = $1 ORDER BY n",
            UUID(mail.message_uuid),
        )
        return [row["state"] for row in rows]

    async def kinds(self, mail: TwinMail) -> list[str]:
        """The events of a message, in the order in which they were heard."""
        rows = await self.app.database.fetch(
            "SELECT kind FROM pillarbox.events WHERE message_id = $1 ORDER BY id",
            UUID(mail.message_uuid),
        )
        return [row["kind"] for row in rows]

    async def everything(self) -> list[Any]:
        """All that feedback may change."""
        tables = ("deliveries", "events", "feedback", "suppressions")
        return [
            [
                row["row"]
                for row in await self.app.database.fetch(
                    f"SELECT t::text AS row FROM pillarbox.{one} t ORDER BY 1"
                )
            ]
            for one in tables
        ]

    def metric(self, name: str, **labels: str) -> float:
        return self.app.metrics.registry.get_sample_value(f"pillarbox_{name}", labels) or 0.0


def posted(headers: dict[str, str], body: bytes) -> SignedRequest:
    return SignedRequest({name.lower(): value for name, value in headers.items()}, body)


@asynccontextmanager
async def world_of(kind: str, database_url: str) -> AsyncIterator[World]:
    async with TWINS[kind]() as twin, opened(database_url, secret_keys=generate_key()) as app:
        yield World(app, twin, await add_twin(app, twin, kind))
