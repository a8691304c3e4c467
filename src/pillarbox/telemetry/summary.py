"""What became of mails, in one log line per interval instead of one per mail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic

from prometheus_client import Counter as PrometheusCounter

from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.mails")
# A person who watches sees that something happens; a day of steady traffic is still a readable log.
SUMMARY_INTERVAL = 10.0
# How often it is looked: the first mail after a silence is told of this soon.
LOOK_INTERVAL = 1.0
# The states that an attempt leaves a delivery in, in the words of the summary.
WORDS = {"sent": "sent", "queued": "deferred", "failed": "failed", "held": "held"}
# Only the first of these reasons are named: the rest is in `queue list`.
MOST_REASONS = 5


class MailSummary:
    """Counts of this process since the last line. Nothing is written while nothing happens."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._told = self._counts()
        self._told_at = -SUMMARY_INTERVAL

    async def look(self) -> None:
        """Write a line if something happened and the last line is an interval ago."""
        if self._clock() - self._told_at >= SUMMARY_INTERVAL:
            self.tell()

    def tell(self) -> None:
        """Write a line if something happened since the last."""
        counts = self._counts()
        news = counts - self._told
        if not news:
            return
        self._told, self._told_at = counts, self._clock()
        reasons = [(word, count) for (kind, word), count in news.most_common() if kind == "reason"]
        fields: dict[str, object] = {
            word: count for (kind, word), count in news.items() if kind == "count"
        }
        if reasons:
            fields["reasons"] = ",".join(
                f"{word}:{count}" for word, count in reasons[:MOST_REASONS]
            )
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
