"""What people do to deliveries: retry, cancel, release; in bounded batches, each change told as an event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import UUID

from pillarbox.errors import NotPossible
from pillarbox.store.database import Database
from pillarbox.store.messages import QUERIES, Filter, id_at, states_of
from pillarbox.store.messages import story as story_of

# Deliveries per statement: it stays well under a second, and workers wait for none of its locks longer than that.
BATCH = 500
# The states each operation takes deliveries from.
RETRYABLE = ("failed",)
CANCELLABLE = ("pending", "queued", "held")
RELEASABLE = ("held",)

Keys = Sequence[tuple[UUID, int]]
Change = Callable[[Database, Keys], Awaitable[Keys]]


async def retry(database: Database, keys: Keys) -> Keys:
    """Queue failed deliveries again, all their attempts before them; returns those that were."""
    return await _requeue(database, keys, "failed", "retried", {"who": "person"})


async def cancel(database: Database, keys: Keys) -> Keys:
    """Cancel deliveries that wait or are held; returns those that were."""
    return await _finish(
        database, keys, CANCELLABLE, "cancelled", "cancelled", "cancelled", {"who": "person"}
    )


async def resend(database: Database, keys: Keys) -> Keys:
    """Queue held deliveries again: a person accepts that they may arrive twice."""
    return await _requeue(database, keys, "held", "released", {"who": "person", "as": "resend"})


async def settle_as_sent(database: Database, keys: Keys) -> Keys:
    """End held deliveries as sent: a person knows that they arrived."""
    return await _finish(
        database, keys, RELEASABLE, "sent", None, "released", {"who": "person", "as": "sent"}
    )


async def settle_as_failed(database: Database, keys: Keys) -> Keys:
    """End held deliveries as failed: a person knows that they did not arrive."""
    return await _finish(
        database, keys, RELEASABLE, "failed", "lost", "released", {"who": "person", "as": "failed"}
    )


RELEASES: dict[str, Change] = {"resend": resend, "sent": settle_as_sent, "failed": settle_as_failed}


async def _requeue(database: Database, keys: Keys, state: str, event: str, data: dict[str, str]) -> Keys:
    rows = await database.fetch(QUERIES["requeue"], *_columns(keys), state, event, json.dumps(data))
    if rows:
        await database.execute(QUERIES["wake"])
    return [(row["message_id"], row["n"]) for row in rows]


async def _finish(
    database: Database,
    keys: Keys,
    states: Sequence[str],
    to: str,
    reason: str | None,
    event: str,
    data: dict[str, str],
) -> Keys:
    rows = await database.fetch(
        QUERIES["finish"], *_columns(keys), list(states), to, reason, event, json.dumps(data)
    )
    if rows:
        await database.execute(QUERIES["drop_secret_contents"], list({row["message_id"] for row in rows}))
    return [(row["message_id"], row["n"]) for row in rows]


def _columns(keys: Keys) -> tuple[list[UUID], list[int]]:
    return [message_id for message_id, _ in keys], [n for _, n in keys]


async def change_message(
    database: Database,
    change: Change,
    message_id: UUID,
    states: Sequence[str],
    what: str,
    n: int | None = None,
) -> Keys:
    """Change the deliveries of one message (or only number `n`) that are in these states; NotPossible if none is."""
    story = await story_of(database, message_id)
    keys = [(message_id, one.n) for one in story.deliveries if one.state in states and n in (None, one.n)]
    if change in (retry, resend) and keys and story.message.content is None:
        raise NotPossible(f"message {message_id} cannot be sent again: its content was dropped")
    changed = await change(database, keys) if keys else []
    if not changed:
        now = await states_of(database, [message_id])
        raise NotPossible(f"nothing of message {message_id} can be {what}: {_words(now)}")
    return changed


def _words(states: dict[str, int]) -> str:
    if set(states) == {"processing"}:
        return "it is in flight, too late for that; see what becomes of it with `pillarbox queue show`"
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


async def count(database: Database, which: Filter, sendable: bool, most: int) -> int:
    """How many deliveries fit, at most `most`."""
    return len(await database.fetch(QUERIES["select_deliveries"], *_selection(which, sendable, most)))


async def change_all(database: Database, change: Change, which: Filter, sendable: bool) -> AsyncIterator[int]:
    """Change every delivery that fits, batch by batch; yields how many each batch changed.

    `which.until` must be set: what is accepted while this runs is left alone.
    """
    assert which.until is not None
    while rows := await database.fetch(QUERIES["select_deliveries"], *_selection(which, sendable, BATCH)):
        changed = await change(database, [(row["message_id"], row["n"]) for row in rows])
        yield len(changed)
        if not changed:
            return


def _selection(which: Filter, sendable: bool, limit: int) -> tuple[object, ...]:
    first, end = which.ids
    if which.until is not None:
        end = min(end, id_at(which.until))
    return (
        list(which.states), limit, first, end, which.tenant, which.class_name, which.kind, which.reason, which.provider,
        sendable,
    )  # fmt: skip
