"""Metrics: complete, bounded in their labels, and cheap where every mail passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pillarbox.model.outcome import Reason, Verdict
from pillarbox.telemetry.metrics import LABEL_LENGTH, LIVE, METRICS, PREFIX, Metrics, bounded


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


def test_the_table_and_the_output_agree() -> None:
    families = {
        one.name: one for one in text_string_to_metric_families(Metrics().render().decode())
    }
    assert {PREFIX + name.removesuffix("_total") for name in METRICS} == set(families)
    for name, described in METRICS.items():
        family = families[PREFIX + name.removesuffix("_total")]
        assert (family.documentation, family.type) == (described.help, described.kind)
        assert described.name == name
        assert described.help.endswith(".")


def test_two_instances_share_nothing() -> None:
    one, two = Metrics(), Metrics()
    one.unknown.inc()
    assert (value(one, "unknown_total"), value(two, "unknown_total")) == (1, 0)


def test_an_outcome_is_counted_and_timed() -> None:
    metrics = Metrics()
    metrics.outcome("main", Verdict.ACCEPTED, None, 0.02)
    metrics.outcome("main", Verdict.ACCEPTED, None, 0.03)
    metrics.outcome("main", Verdict.DEFERRED, Reason.GREYLISTED, 700)
    labels = {"provider": "main", "outcome": "accepted", "reason": "none"}
    assert value(metrics, "outcomes_total", **labels) == 2
    assert (
        value(metrics, "outcomes_total", **labels | {"outcome": "deferred", "reason": "greylisted"})
        == 1
    )
    assert value(metrics, "attempt_seconds_count", provider="main") == 3
    assert value(metrics, "attempt_seconds_bucket", provider="main", le="0.025") == 1


def test_end_to_end_never_goes_below_zero() -> None:
    metrics = Metrics()
    metrics.sent_after(-0.5)
    metrics.sent_after(2)
    assert value(metrics, "end_to_end_seconds_sum") == 2
    assert value(metrics, "end_to_end_seconds_count") == 2


def test_only_claims_that_return_something_count() -> None:
    metrics = Metrics()
    metrics.claimed(0)
    metrics.claimed(30)
    assert (value(metrics, "claims_total"), value(metrics, "claimed_deliveries_total")) == (1, 30)


def test_depth_is_read_by_state_and_forgets_states_that_emptied() -> None:
    metrics = Metrics()
    metrics.depth({"queued": (5, 1.5), "deferred": (2, 9.0), "held": (4, None)}, alert=100)
    assert value(metrics, "deliveries", state="held") == 4
    assert value(metrics, "oldest_due_age_seconds") == 9
    metrics.depth({"queued": (1, -0.1)}, alert=100)
    assert [value(metrics, "deliveries", state=state) for state in LIVE] == [0, 1, 0, 0, 0, 0]
    assert value(metrics, "oldest_due_age_seconds") == 0


@pytest.mark.req("REQ-QUEUE-S003")
@pytest.mark.parametrize(
    ("by_state", "alert"),
    [
        ({"queued": (10_000, 0.0)}, 0),
        ({"queued": (10_001, 0.0)}, 1),
        ({"queued": (6_000, 0.0), "deferred": (4_000, 0.0), "processing": (1, 0.0)}, 1),
        (
            {"pending": (10**6, None), "failed": (10**6, None)},
            0,
        ),  # scheduled and dead ones are no backlog
    ],
)
def test_a_deep_queue_raises_the_alert(
    by_state: dict[str, tuple[int, float | None]], alert: int
) -> None:
    metrics = Metrics()
    metrics.depth(by_state, alert=10_000)
    assert value(metrics, "depth_alert") == alert


def test_pools_are_read_by_state() -> None:
    metrics = Metrics()
    metrics.pool("main", 10, 7)
    metrics.store_pool(8, 3)
    assert value(metrics, "pool_connections", provider="main", state="open") == 10
    assert value(metrics, "pool_connections", provider="main", state="busy") == 7
    assert value(metrics, "store_pool_connections", state="busy") == 3


def test_wakeups_start_at_zero() -> None:
    assert value(Metrics(), "wakeups_total", source="trailing") == 0


@pytest.mark.parametrize("wild", ["alice@example.com", "x" * 65, "a\nb", 'pillarbox_x{a="b"} 1\n'])
def test_a_wild_label_becomes_other_wherever_it_enters(wild: str) -> None:
    metrics = Metrics()
    metrics.outcome(wild, Verdict.REJECTED, Reason.REFUSED, 1)
    metrics.pool(wild, 1, 1)
    metrics.wakeups.labels(wild).inc()
    metrics.retention_deleted.labels(what=wild).inc()
    text = metrics.render().decode()
    assert "alice" not in text
    assert text.count('"other"') >= 5
    assert wild not in text


@given(st.none() | st.text() | st.sampled_from(Reason) | st.integers())
def test_labels_are_bounded(anything: object) -> None:
    label = bounded(anything)
    assert len(label) <= LABEL_LENGTH
    assert "@" not in label
    assert bounded(label) == label


def test_words_of_ours_stay() -> None:
    assert [bounded(one) for one in (Reason.INVALID_RECIPIENT, None, "ses-eu 1")] == [
        "invalid_recipient",
        "none",
        "ses-eu 1",
    ]


def test_no_created_series() -> None:
    metrics = Metrics()
    metrics.outcome("main", Verdict.ACCEPTED, None, 0.1)
    assert b"_created" not in metrics.render()
