"""The summary of mails in the log of `up`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, Verdict
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics
from pillarbox.telemetry.summary import SUMMARY_INTERVAL, MailSummary


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    monkeypatch.setattr(logs, "_sink", logs.Sink("json", logs.INFO, lambda text: text, stream))
    yield stream
    logs.summarise_mails(False)


def lines(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


async def test_one_line_per_interval_and_none_in_silence(written: io.StringIO) -> None:
    metrics, now = Metrics(), [1000.0]
    summary = MailSummary(metrics, clock=lambda: now[0])
    await summary.check()
    assert lines(written) == []
    metrics.accepted_batch({"smtp": 3}, 0.1)
    for state, verdict, reason in (
        (State.SENT, Verdict.ACCEPTED, None),
        (State.SENT, Verdict.ACCEPTED, None),
        (State.QUEUED, Verdict.DEFERRED, Reason.GREYLISTED),
        (State.FAILED, Verdict.REJECTED, Reason.INVALID_RECIPIENT),
    ):
        metrics.settled_for(1, state)
        metrics.outcome("relay", verdict, reason, 0.1)
    await summary.check()  # the first after a silence is told at once
    [line] = lines(written)
    counts = {name: line[name] for name in ("event", "accepted", "sent", "deferred", "failed")}
    assert counts == {"event": "mails", "accepted": 3, "sent": 2, "deferred": 1, "failed": 1}
    assert sorted(str(line["reasons"]).split(",")) == ["greylisted:1", "invalid_recipient:1"]
    metrics.settled_for(1, State.SENT)
    now[0] += SUMMARY_INTERVAL - 1
    await summary.check()
    assert len(lines(written)) == 1
    now[0] += 1
    await summary.check()
    assert lines(written)[1]["sent"] == 1
    assert "failed" not in lines(written)[1]
    now[0] += 10 * SUMMARY_INTERVAL
    await summary.check()
    summary.write()
    assert len(lines(written)) == 2


def test_lines_about_mails_are_for_debugging_where_they_are_summed_up(written: io.StringIO) -> None:
    log = logs.get("pillarbox.test")
    log.mail("first")
    logs.summarise_mails(True)
    log.mail("second")
    logs.summarise_mails(False)
    log.mail("third")
    assert [line["event"] for line in lines(written)] == ["first", "third"]
