"""The states of a delivery, read from attempts and events: all of them, in order, each with its own time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pillarbox.store.history import history
from pillarbox.store.messages import (
    AttemptRecord,
    DeliveryRecord,
    EventRecord,
    MessageDetails,
    MessageRecord,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def attempt(
    minutes: float, verdict: str, reason: str | None = None, *, claim: int = 0, step: int = 0
) -> AttemptRecord:
    return AttemptRecord(
        claim or int(minutes), step, 0, at(minutes), at(minutes + 0.5), "relay", False, "w", verdict, reason, None,
        None, None, None,
    )  # fmt: skip


def event(minutes: float, kind: str, n: int | None = 0, **data: Any) -> EventRecord:
    return EventRecord(at(minutes), n, kind, data)


def told(
    state: str,
    *happened: AttemptRecord | EventRecord,
    send_at: float | None = None,
    unknown: str = "resend",
    **facts: Any,
) -> list[tuple[float, str, str | None]]:
    """The history in minutes after noon, when the message was accepted."""
    values: dict[str, Any] = {
        "n": 0, "recipient": "a@b.example", "role": "to", "state": state, "attempts": 0, "next_attempt_at": NOON,
        "claimed_at": None, "settled_at": None, "reason": None, "retry": None, "provider": None,
        "provider_removed": False, "claim": None, "worker": None, "waiting_since": None,
    } | facts  # fmt: skip
    delivery = DeliveryRecord(**values)
    message = MessageRecord(
        UUID(int=7), NOON, "default", "transactional", False, None, "normal", "s@b.example", (), (), (), "", {}, (), {},
        1, None if send_at is None else at(send_at), None, None, None, None, unknown, None, None,
    )  # fmt: skip
    story = MessageDetails(
        message,
        [delivery],
        [one for one in happened if isinstance(one, AttemptRecord)],
        [one for one in happened if isinstance(one, EventRecord)],
    )
    return [
        ((one.at - NOON).total_seconds() / 60, one.state.value, one.reason)
        for one in history(story, delivery)
    ]


SENT = [(0, "queued", None), (5, "processing", None), (5.5, "sent", None)]


def test_a_plainly_sent_mail() -> None:
    assert told("sent", attempt(5, "accepted")) == SENT


def test_feedback_has_its_own_time() -> None:
    """A mail sent at five past, and bounced at twenty to."""
    found = told(
        "bounced", attempt(5, "accepted"), event(40, "bounced", reason="invalid_recipient")
    )
    assert found == [*SENT, (40, "bounced", "invalid_recipient")]


def test_feedback_that_changes_nothing_is_no_state() -> None:
    more = (
        event(30, "delivered"),
        event(31, "opened"),
        event(32, "complained"),
        event(33, "delivered"),
    )
    found = told("complained", attempt(5, "accepted"), *more)
    assert found == [*SENT, (30, "delivered", None), (32, "complained", None)]


def test_a_provider_whose_clock_is_behind_delivers_after_sending() -> None:
    assert told("delivered", attempt(5, "accepted"), event(5, "delivered"))[-2:] == [
        (5.5, "sent", None),
        (5.5, "delivered", None),
    ]


def test_deferrals_and_the_last_one() -> None:
    found = told(
        "failed",
        attempt(1, "deferred", "greylisted"),
        attempt(3, "deferred", "timeout"),
        settled_at=at(3.5),
    )
    assert found == [
        (0, "queued", None), (1, "processing", None), (1.5, "queued", "greylisted"), (3, "processing", None),
        (3.5, "failed", "timeout"),
    ]  # fmt: skip


def test_a_failed_mail_that_was_retried() -> None:
    found = told(
        "sent",
        attempt(1, "deferred", "timeout"),
        event(9, "retried", who="person"),
        attempt(10, "accepted"),
    )
    assert [state for _, state, _ in found] == [
        "queued",
        "processing",
        "failed",
        "queued",
        "processing",
        "sent",
    ]
    assert found[3] == (9, "queued", None)


def test_one_that_failed_over_is_processing_from_the_first_try_on() -> None:
    tries = (
        attempt(5, "deferred", "unavailable", claim=9),
        attempt(6, "accepted", claim=9, step=1),
    )
    assert told("sent", *tries) == [
        (0, "queued", None),
        (5, "processing", None),
        (6.5, "sent", None),
    ]


@pytest.mark.parametrize(("choice", "end"), [("sent", "sent"), ("failed", "failed")])
def test_a_held_mail_that_a_person_decided(choice: str, end: str) -> None:
    found = told(
        end,
        attempt(1, "unknown", "lost"),
        event(1, "unknown", claim=1),
        event(60, "released", **{"as": choice}),
    )
    assert found[-2:] == [(1.5, "held", "lost"), (60, end, None)]


def test_a_held_mail_that_feedback_decided() -> None:
    found = told("delivered", attempt(1, "unknown", "lost"), event(2, "delivered"), unknown="hold")
    assert found[-2:] == [(1.5, "held", "lost"), (2, "delivered", None)]


def test_a_scheduled_mail() -> None:
    found = told("sent", attempt(31, "accepted"), send_at=30)
    assert found == [
        (0, "pending", None),
        (30, "queued", None),
        (31, "processing", None),
        (31.5, "sent", None),
    ]
    assert told("queued", send_at=30, next_attempt_at=at(30)) == [
        (0, "pending", None),
        (30, "queued", None),
    ]


def test_a_mail_that_was_given_another_time() -> None:
    earlier = event(10, "rescheduled", send_at=at(10).isoformat())
    assert told("sent", earlier, attempt(11, "accepted"), send_at=30)[:2] == [
        (0, "pending", None),
        (10, "queued", None),
    ]
    later = event(10, "rescheduled", send_at=at(60).isoformat())
    assert told("pending", later) == [(0, "queued", None), (10, "pending", None)]


def test_what_is_in_flight_or_waits_for_a_provider() -> None:
    assert told("processing", claimed_at=at(4))[-1] == (4, "processing", None)
    assert told("pending", waiting_since=at(4), reason="no_provider")[-1] == (
        4,
        "pending",
        "no_provider",
    )


def test_one_that_was_given_up_or_cancelled() -> None:
    assert told("failed", event(9, "gave_up", reason="no_provider"))[-1] == (
        9,
        "failed",
        "no_provider",
    )
    assert told("cancelled", event(9, "cancelled", who="person"))[-1] == (9, "cancelled", None)


def test_what_retention_took_leaves_the_present_state() -> None:
    assert told("failed", settled_at=at(7), reason="timeout") == [
        (0, "queued", None),
        (7, "failed", "timeout"),
    ]
