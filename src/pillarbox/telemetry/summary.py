"""Counts of accepted, sent and failed mails: one log line per interval instead of one per mail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic

from prometheus_client import Counter as PrometheusCounter

from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.mails")
# Soon enough for a person who watches; a day of steady traffic is still a readable log.
SUMMARY_INTERVAL = 10.0
# How often counts are compared: the first mail after a silence is reported this soon.
CHECK_INTERVAL = 1.0
# The states that an attempt leaves a delivery in, and the summary's words for them.
WORDS = {"sent": "sent", "queued": "deferred", "failed": "failed", "held": "held"}
# Only the most frequent reasons are named: the rest is in `queue list`.
MAX_REASONS = 5


class MailSummary:
    """Counts of this process since the last line. Nothing is written while nothing happens."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._written = self._counts()
        self._written_at = -SUMMARY_INTERVAL

    async def check(self) -> None:
        """Write a line if something happened and the last line is an interval ago."""
        if self._clock() - self._written_at >= SUMMARY_INTERVAL:
            self.write()

    def write(self) -> None:
        """Write a line if something happened since the last."""
        counts = self._counts()
        changes = counts - self._written
        if not changes:
            return
        self._written = counts
        self._written_at = self._clock()
        fields: dict[str, object] = {}
        reasons = []
        for (kind, word), count in changes.most_common():
            if kind == "reason":
                reasons.append(f"{word}:{count}")
            else:
                fields[word] = count
        if reasons:
            fields["reasons"] = ",".join(reasons[:MAX_REASONS])
        log.info("mails", **fields)

    def _counts(self) -> Counter[tuple[str, str]]:
        counts = Counter[tuple[str, str]]()
        for _, value in _samples(self._metrics.accepted):
            counts["count", "accepted"] += value
        for labels, value in _samples(self._metrics.tenant_settled):
            if labels["state"] in WORDS:
                counts["count", WORDS[labels["state"]]] += value
        for labels, value in _samples(self._metrics.outcomes):
            if labels["reason"] != "none":
                counts["reason", labels["reason"]] += value
        return counts


def _samples(counter: PrometheusCounter) -> Iterator[tuple[dict[str, str], int]]:
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                yield sample.labels, int(sample.value)
