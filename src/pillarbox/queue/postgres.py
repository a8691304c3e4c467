"""The queue in PostgreSQL: always the system of record, and the default."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import asyncpg

from pillarbox.model.message import Content, Message
from pillarbox.queue.base import Account, Claimed, Key, Settlement
from pillarbox.store import sql
from pillarbox.store.contents import read_attachments
from pillarbox.store.database import Database

QUERIES = sql.load("queue")


class PostgresQueue:
    """See `queue.base.Queue`; one instance per worker."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.worker = 0

    async def register(self, name: str, lease: float) -> int:
        self.worker = await self._database.fetchval(QUERIES["register_worker"], name, lease)
        return self.worker

    async def heartbeat(self, lease: float) -> bool:
        return await self._database.fetchval(QUERIES["heartbeat"], self.worker, lease) is not None

    async def claim(self, limit: int, size: int, alone: bool) -> list[Claimed]:
        rows = await self._database.fetch(QUERIES["claim"], self.worker, limit, size, alone)
        now = asyncio.get_running_loop().time()
        return [_claimed(row, now) for row in rows]

    async def settle(self, account: Account) -> set[Key]:
        if not account.settlements:
            return set()
        rows = await self._database.fetch(QUERIES["settle"], self.worker, *_columns(account.settlements))
        if account.conversations:
            await self._database.execute(
                QUERIES["keep_conversations"], *map(list, zip(*account.conversations, strict=True))
            )
        if account.secret_messages:
            await self._database.execute(QUERIES["drop_secret_contents"], account.secret_messages)
        return {Key(*row) for row in rows}

    async def release(self, claims: Sequence[Claimed]) -> None:
        ids = [claimed.message.id for claimed in claims]
        await self._database.execute(QUERIES["release"], ids, [claimed.claim for claimed in claims])

    async def release_strays(self, known: Sequence[int]) -> int:
        return await self._database.execute(QUERIES["release_strays"], self.worker, known)

    async def retire(self) -> None:
        await self._database.execute(QUERIES["retire_worker"], self.worker)

    async def reap(self, limit: int, grace: float) -> int:
        return int(await self._database.fetchval(QUERIES["reap"], limit, grace))

    async def promote(self, limit: int) -> int:
        """Queue scheduled deliveries whose time has come; returns how many."""
        return await self._database.execute(QUERIES["promote"], limit)

    async def forget_workers(self) -> None:
        """Delete what is known of workers that ended long ago."""
        await self._database.execute(QUERIES["forget_workers"])

    async def hint(self) -> None:
        """Wake every worker that listens, wherever it runs."""
        await self._database.execute(QUERIES["hint"])

    async def workers_alive(self) -> int:
        return int(await self._database.fetchval(QUERIES["workers_alive"]))

    async def depth(self) -> dict[str, tuple[int, float | None]]:
        """Live deliveries by state (queued ones apart from deferred ones), with the age of the oldest."""
        rows = await self._database.fetch(QUERIES["depth"])
        return {row["state"]: (row["count"], row["oldest"]) for row in rows}

    async def next_due(self) -> float | None:
        return await self._database.fetchval(QUERIES["next_due"])  # type: ignore[no-any-return]


def _claimed(row: asyncpg.Record, now: float) -> Claimed:
    (message_id, claim, ns, recipients, attempts, tenant_id, size, class_name, kind, sender, to, cc, reply_to,
     subject, headers, created_at, max_attempts, expired, expires_at, age, has_content, text, html, raw,
     attachments) = row  # fmt: skip
    message = Message(
        message_id,
        sender,
        to,
        subject,
        created_at,
        cc or (),
        reply_to or (),
        json.loads(headers) if headers else {},
    )
    content = Content(text, html, raw, read_attachments(attachments)) if has_content else None
    return Claimed(
        message, content, claim, ns, recipients, attempts, tenant_id, size, class_name, kind, max_attempts,
        bool(expired), expires_at, age, now,
    )  # fmt: skip


def _columns(settlements: Sequence[Settlement]) -> list[list[Any]]:
    """The settlements as one array per column, in the order of the query's parameters."""
    now = asyncio.get_running_loop().time()
    rows = [
        (s.message_id, s.n, s.claim, s.state, s.reason, s.retry, s.delay, s.provider_id, s.outcome.verdict,
         s.outcome.code, s.reply, s.outcome.provider_message_id, now - s.ended, s.took, s.expires_at)
        for s in settlements
    ]  # fmt: skip
    return [list(column) for column in zip(*rows, strict=True)]
