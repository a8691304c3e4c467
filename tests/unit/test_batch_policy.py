"""When batches are collected: the original's limit and timeout, or what the rate suggests."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from pillarbox.lifecycle.batch_policy import (
    MAX_BATCH,
    MAX_WAIT,
    BatchLimits,
    BatchPolicy,
    CollectBatch,
    WaitForTokens,
)
from pillarbox.lifecycle.collector import batch_limits
from pillarbox.lifecycle.signing import SigningKeyRing, verify
from pillarbox.lifecycle.stdout_sink import fields_of, line_of
from pillarbox.settings import load
from pillarbox.store.lifecycle import DueToken

KEYS = SigningKeyRing([bytes.fromhex("deadbeef" * 8)])


def opened(rule: BatchLimits, now: float = 0.0) -> BatchPolicy:
    """One that found nothing when it began."""
    policy = BatchPolicy(rule)
    assert policy.look(0, 0, now) == WaitForTokens(None)
    return policy


def test_the_originals_demonstration() -> None:
    """Limit 3, timeout 5 s, five accounts: three at once, two five seconds after they were seen."""
    policy = opened(BatchLimits(3, 5.0))
    assert policy.look(3, 0, 10.0) == CollectBatch(3, "max reached")
    policy.collected(3)
    assert policy.look(2, 0, 10.25) == WaitForTokens(5.0)
    assert policy.look(2, 0, 12.25) == WaitForTokens(3.0)
    assert policy.look(2, 0, 15.25) == CollectBatch(3, "timeout")
    policy.collected(2)
    assert policy.look(0, 0, 15.5) == WaitForTokens(None)


def test_the_first_of_a_batch_says_how_long_it_waits() -> None:
    policy = opened(BatchLimits(10, 5.0))
    assert policy.look(1, 0, 100.0) == WaitForTokens(5.0)
    assert policy.look(9, 0, 104.0) == WaitForTokens(1.0)
    assert policy.look(9, 0, 105.0) == CollectBatch(10, "timeout")


def test_what_waited_before_we_came_is_collected_at_once() -> None:
    policy = BatchPolicy(BatchLimits(3, 5.0))
    for left, taken in ((7, 3), (4, 3), (1, 1)):
        assert policy.look(min(left, 3), 0, 0.0) == CollectBatch(3, "start")
        policy.collected(taken)
    assert policy.look(1, 0, 1.0) == WaitForTokens(5.0)
    policy.reopened()
    assert policy.look(1, 0, 2.0) == CollectBatch(3, "start")


def test_the_urgent_ones_do_not_wait_for_others() -> None:
    policy = opened(BatchLimits(10, 5.0))
    assert policy.look(3, 0, 1.0) == WaitForTokens(5.0)
    assert policy.look(4, 1, 2.0) == CollectBatch(10, "urgent", urgent_only=True)
    policy.collected(1, was_urgent_only=True)
    assert policy.look(3, 0, 3.0) == WaitForTokens(3.0), "the others wait on"
    assert opened(BatchLimits(10, 5.0, urgent_waits=True)).look(4, 1, 2.0) == WaitForTokens(5.0), (
        "the original knows no hurry"
    )


def test_a_rare_token_does_not_wait() -> None:
    policy = opened(BatchLimits())
    for now in range(10, 100, 10):
        assert isinstance(policy.look(1, 0, float(now)), CollectBatch)
        policy.collected(1)
        assert policy.look(0, 0, now + 0.01) == WaitForTokens(None)


def arriving(
    policy: BatchPolicy, per_second: float, seconds: float, begin: float = 0.0
) -> list[tuple[int, float]]:
    """Let tokens arrive evenly, looking every 5 ms; returns each batch with how long its first token waited."""
    batches, waiting, arrived, since = list[tuple[int, float]](), 0, 0, 0.0
    for tick in range(int(seconds / 0.005)):
        now = begin + tick * 0.005
        come = int(tick * 0.005 * per_second) - arrived
        since = now if waiting == 0 and come else since
        waiting, arrived = waiting + come, arrived + come
        match policy.look(min(waiting, MAX_BATCH), 0, now):
            case CollectBatch(limit, _, _):
                taken = min(waiting, limit)
                batches.append((taken, now - since))
                waiting -= taken
                policy.collected(taken)
    return batches


@pytest.mark.parametrize(
    ("per_second", "least", "most"),
    [(10, 1, 1), (100, 1, 6), (500, 20, 90), (2000, 300, 600), (4000, 700, 1000)],
)
def test_batches_follow_the_rate_within_limits(per_second: float, least: int, most: int) -> None:
    policy = opened(BatchLimits())
    arriving(policy, per_second, 5.0)
    later = arriving(policy, per_second, 5.0, begin=5.0)
    assert policy.rate == pytest.approx(per_second, rel=0.5)
    sizes = sorted(size for size, _ in later)
    assert least <= sizes[len(sizes) // 2] <= most
    assert max(wait for _, wait in later) <= MAX_WAIT + 0.01


def test_a_backlog_leaves_in_the_largest_batches() -> None:
    policy = BatchPolicy(BatchLimits())
    for turn in range(100):
        assert policy.look(MAX_BATCH, 0, turn * 0.1) == CollectBatch(MAX_BATCH, "start")
        policy.collected(MAX_BATCH)


def test_the_rate_is_forgotten_when_nothing_comes() -> None:
    policy = opened(BatchLimits())
    arriving(policy, 2000, 3.0)
    policy.look(0, 0, 60.0)
    assert isinstance(policy.look(1, 0, 70.0), CollectBatch)


@pytest.mark.parametrize(
    ("env", "stdout", "rule"),
    [
        ({}, False, BatchLimits()),
        (
            {"MAILROOM_BATCH_LIMIT": "3", "MAILROOM_BATCH_TIMEOUT": "5000"},
            False,
            BatchLimits(3, 5.0),
        ),
        ({"MAILROOM_BATCH_LIMIT": "1000"}, False, BatchLimits(1000, None)),
        ({}, True, BatchLimits(10, 5.0, urgent_waits=True)),
        ({"MAILROOM_BATCH_TIMEOUT": "0"}, True, BatchLimits(10, 0.0, urgent_waits=True)),
        (
            {"MAILROOM_BATCH_LIMIT": "100", "MAILROOM_BATCH_TIMEOUT": "1s"},
            True,
            BatchLimits(100, 1.0, urgent_waits=True),
        ),
    ],
)
def test_the_settings_say_how(env: dict[str, str], stdout: bool, rule: BatchLimits) -> None:
    assert batch_limits(load(env), stdout=stdout) == rule


# --- the line of `--stdout`


def due(**values: Any) -> DueToken:
    given: dict[str, Any] = {
        "token": 1, "account": 1, "action": "activation", "number": 1, "path": "/activate", "with_code": False,
        "secret": bytes(range(32)), "code": "78092", "expires_at": 2_000_000_000, "created_at": 1, "name": None,
        "email": "ann@mail.example", "login": "ann", "portal": "hub", "locale": None, "template": "activation",
        "lane": 1, "account_data": {}, "token_data": {}, "verdict": None,
    }  # fmt: skip
    return DueToken(**given | values)


def test_a_line_as_the_original_writes_it() -> None:
    secret = bytes([*range(31), 32])
    recovery = due(number=2, path="/recover", with_code=True, secret=secret, code="00042")
    fields = [*fields_of(due(), KEYS), *fields_of(recovery, KEYS)]
    assert line_of(fields) == (
        b"1,ann@mail.example,ann,"
        b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_6nSHtQPxHcOGxB4n-lTJ33ia2qnzaGyWZbJr5ajT1Lw,78092,"
        b"2,ann@mail.example,ann,"
        b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHiBMGNDRPmFBDs3BV0xOyXRWEYpEcQ2cXltILUdkxpYQXg,00042\n"
    )


@pytest.mark.parametrize(
    "login", ["a,b", 'say "hi"', "one\ntwo", "one\r\ntwo", '",\n"', " spaced ", "Zoë", ""]
)
def test_any_login_survives_a_reader_of_csv(login: str) -> None:
    line = line_of([*fields_of(due(login=login), KEYS), *fields_of(due(token=2), KEYS)]).decode()
    [row] = csv.reader(io.StringIO(line, newline=""), strict=True)
    assert len(row) == 10
    assert row[:3] == ["1", "ann@mail.example", login]
    assert verify(row[3], "activation", None, KEYS) == bytes(range(32))
    assert row[7] == "ann"


def test_a_notice_has_no_secret_and_a_link_without_its_code_is_refused() -> None:
    assert fields_of(due(action="welcome", number=7, path=None, code=None), KEYS)[3:] == ("", "")
    with pytest.raises(ValueError, match="code"):
        fields_of(due(path="/recover", with_code=True, code=None), KEYS)
