"""Between the ledger's statements and its records: rows read, and arrays for parameters written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from pillarbox.model.access import Order
from pillarbox.model.fairness import LaneId, Quota
from pillarbox.model.message import Content, Message
from pillarbox.queue.records import (
    ClaimedMessage,
    DeliveryKey,
    Reference,
    Settlement,
    SettlementBatch,
    SurveyedLane,
)
from pillarbox.store.contents import read_attachments

Columns = dict[str, list[Any]]

_OUTCOMES = ("message_ids", "recipient_numbers", "claims", "verdicts", "reasons", "provider_ids")
_SETTLEMENTS = (
    *_OUTCOMES,
    "states",
    "retries",
    "delays",
    "codes",
    "replies",
    "provider_message_ids",
    "ended_ago",
    "took",
    "expires_at",
    "steps",
)
_EARLIER_ATTEMPTS = (
    "earlier_message_ids",
    "earlier_recipient_numbers",
    "earlier_claims",
    "earlier_steps",
    "earlier_provider_ids",
    "earlier_verdicts",
    "earlier_reasons",
    "earlier_codes",
    "earlier_replies",
    "earlier_provider_message_ids",
    "earlier_ended_ago",
    "earlier_took",
)
_TRANSCRIPTS = ("transcript_message_ids", "transcript_claims", "transcripts")
_EVENTS = ("event_message_ids", "event_claims", "event_kinds", "event_data")


# -- rows


def surveyed_lane(row: asyncpg.Record) -> SurveyedLane:
    return SurveyedLane(
        row["tenant_id"],
        row["lane"],
        Order(row["order_mode"]),
        row["fresh"],
        row["due_in"],
        row["is_own"],
        row["other_lease_for"],
        row["limited_for"],
        row["limited"],
        row["workers"],
    )


def claimed_message(row: asyncpg.Record, now: float) -> ClaimedMessage:
    headers = row["headers"]
    message = Message(
        row["message_id"],
        row["sender"],
        row["to"],
        row["subject"],
        row["created_at"],
        row["cc"] or (),
        row["reply_to"] or (),
        json.loads(headers) if headers else {},
    )
    content = None
    if row["has_content"]:
        attachments = read_attachments(row["attachments"])
        content = Content(row["text"], row["html"], row["raw"], attachments)
    return ClaimedMessage(
        message,
        content,
        row["claim"],
        row["recipient_numbers"],
        row["recipients"],
        row["attempts"],
        row["tenant_id"],
        row["lane"],
        row["size"],
        row["class"],
        row["kind"],
        row["max_attempts"],
        bool(row["expired"]),
        row["expires_at"],
        row["age"],
        now,
        row["tags"] or (),
        row["via"],
        row["suppressed"] or (),
    )


def delivery_key(row: asyncpg.Record) -> DeliveryKey:
    return DeliveryKey(row["message_id"], row["n"], row["claim"])


# -- parameters: one array per column


def lane_columns(lanes: Sequence[LaneId]) -> Columns:
    return _columns(("tenants", "priorities"), lanes)


def quota_columns(quotas: Sequence[Quota]) -> Columns:
    names = ("tenants", "priorities", "lane_limits", "deferred_limits")
    return _columns(
        names, [(*quota.lane.id, quota.limit, quota.deferred_limit) for quota in quotas]
    )


def reference_columns(
    quotas: Sequence[Quota], references: Mapping[LaneId, Sequence[Reference]]
) -> Columns:
    """The newest referenced message of each lane, and all of them with their lane's position."""
    newest_seqs: list[int | None] = []
    referenced: list[tuple[int, UUID]] = []
    for position, quota in enumerate(quotas, 1):
        of_lane = references.get(quota.lane.id, ())
        newest_seqs.append(max((reference.seq for reference in of_lane), default=None))
        referenced += [(position, reference.message_id) for reference in of_lane]
    names = ("referenced_positions", "referenced_messages")
    return {"newest_seqs": newest_seqs, **_columns(names, referenced)}


def batch_columns(batch: SettlementBatch) -> Columns:
    """The parameters of `settle`, but for the worker."""
    now = asyncio.get_running_loop().time()
    return {
        **_columns(_SETTLEMENTS, [_settlement(each, now) for each in batch.settlements]),
        **_columns(_EARLIER_ATTEMPTS, _earlier_attempts(batch.settlements, now)),
        **_columns(_TRANSCRIPTS, batch.transcripts),
        **_columns(_EVENTS, batch.events),
        "secret_message_ids": list(batch.secret_messages),
    }


def outcome_columns(settlements: Sequence[Settlement]) -> Columns:
    """The parameters of `settled_before`."""
    return _columns(_OUTCOMES, [_outcome(each) for each in settlements])


def key_of(settlement: Settlement) -> DeliveryKey:
    return DeliveryKey(settlement.message_id, settlement.recipient_number, settlement.claim)


def _outcome(settlement: Settlement) -> tuple[Any, ...]:
    return (
        settlement.message_id,
        settlement.recipient_number,
        settlement.claim,
        settlement.outcome.verdict,
        settlement.reason,
        settlement.provider_id,
    )


def _settlement(settlement: Settlement, now: float) -> tuple[Any, ...]:
    outcome = settlement.outcome
    return (
        settlement.message_id,
        settlement.recipient_number,
        settlement.claim,
        outcome.verdict,
        settlement.reason,
        settlement.provider_id,
        settlement.state,
        settlement.retry,
        settlement.delay,
        outcome.code,
        settlement.reply,
        outcome.provider_message_id,
        now - settlement.ended,
        settlement.took,
        settlement.expires_at,
        len(settlement.earlier),
    )


def _earlier_attempts(settlements: Sequence[Settlement], now: float) -> list[tuple[Any, ...]]:
    """The attempts before failover, each with its number within the claim."""
    return [
        (
            settlement.message_id,
            settlement.recipient_number,
            settlement.claim,
            step,
            attempt.provider_id,
            attempt.outcome.verdict,
            attempt.outcome.reason,
            attempt.outcome.code,
            attempt.reply,
            attempt.outcome.provider_message_id,
            now - attempt.ended,
            attempt.took,
        )
        for settlement in settlements
        for step, attempt in enumerate(settlement.earlier)
    ]


def _columns(names: Sequence[str], found: Sequence[Sequence[Any]]) -> Columns:
    """Rows as one array for each name."""
    if not found:
        return {name: [] for name in names}
    return dict(zip(names, map(list, zip(*found, strict=True)), strict=True))
