"""Prometheus metrics. A process has one `Metrics`; nothing is global.

Label values come from small fixed sets (provider names, words of Pillarbox), never from a mail: any
other value is shown as `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from pillarbox.model.delivery import State
    from pillarbox.model.outcome import Reason, Verdict

PREFIX = "pillarbox_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_LENGTH = 64  # words of Pillarbox and names of providers fit; replies of servers do not

# From a local relay's milliseconds to the ten minutes a server may think about the final dot.
ATTEMPT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)
# From an idle queue's milliseconds over retries of minutes and hours to a day.
END_TO_END_BUCKETS = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400,
)  # fmt: skip

# One mail alone, up to the most that go into one statement.
BATCH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200)
# From a fast disk's flush to the time-out of a statement.
COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60)

# From one look into the database to the longest that a large body may take to arrive.
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)

# Tenants with their own series: what a dashboard can show, and cheap for a time series database.
MAX_TENANTS = 100

LIVE = ("pending", "queued", "deferred", "processing", "failed", "held")  # states that are measured
# What a worker still has to do; scheduled mails are not a backlog.
WAITING = ("queued", "deferred", "processing")
WAKEUPS = ("notify", "poll", "trailing", "due", "settled")
SOURCES = ("http", "smtp")
CALLS = ("delivered", "retry", "failed")  # results of calls to webhooks
REFUSED = ("stripped", "abandoned")  # results of outcomes that PostgreSQL refuses
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CREDENTIALS = ("key", "login", "session", "password", "link")
AUTHENTICATION_RESULTS = ("accepted", "refused", "throttled")
CIRCUITS = ("closed", "open", "half_open")


class MetricSpec(NamedTuple):
    """One metric as the reference page lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


# fmt: off
_SPECS = (
    MetricSpec("deliveries", "gauge", ("state",),
        "Deliveries by state: the queue's depth. Deferred deliveries are counted separately."),
    MetricSpec("oldest_due_age_seconds", "gauge", (),
        "How long the oldest due delivery has been waiting."),
    MetricSpec("depth_alert", "gauge", (),
        "1 while more deliveries wait than the setting depth_alert allows."),
    MetricSpec("claims_total", "counter", (),
        "Claims that returned at least one delivery."),
    MetricSpec("claimed_deliveries_total", "counter", (),
        "Deliveries claimed."),
    MetricSpec("outcomes_total", "counter", ("provider", "outcome", "reason"),
        "Settled attempts, per recipient."),
    MetricSpec("attempt_seconds", "histogram", ("provider",),
        "Time from passing a mail to a transport to its outcome."),
    MetricSpec("end_to_end_seconds", "histogram", (),
        "Time from accepting a mail to its being sent."),
    MetricSpec("unknown_total", "counter", (),
        "Attempts with an unknown outcome: each may lead to a second send."),
    MetricSpec("reaped_total", "counter", (),
        "Deliveries released from workers whose lease expired."),
    MetricSpec("stale_settlements_total", "counter", (),
        "Outcomes not settled because the claim had been lost."),
    MetricSpec("pool_connections", "gauge", ("provider", "state"),
        "Connections to a provider: open, and busy among them."),
    MetricSpec("provider_circuit", "gauge", ("provider", "state"),
        "1 for the current state of a provider's circuit breaker."),
    MetricSpec("provider_pace", "gauge", ("provider",),
        "Mails that a provider gets at the same time; lower after the provider asked for less."),
    MetricSpec("provider_budget_used", "gauge", ("provider",),
        "Share of the month's budget that is used up: 0 to 1."),
    MetricSpec("failovers_total", "counter", ("from", "to", "reason"),
        "Mails that moved to the next provider of their route."),
    MetricSpec("store_pool_connections", "gauge", ("state",),
        "Connections to PostgreSQL: open, and busy among them."),
    MetricSpec("tenant_waiting", "gauge", ("tenant",),
        "Waiting deliveries of the tenants with the most; all others are `other`."),
    MetricSpec("tenant_settled_total", "counter", ("tenant", "state"),
        "Deliveries settled, by tenant and new state."),
    MetricSpec("workers", "gauge", (),
        "Workers that hold a lease, in all processes."),
    MetricSpec("worker_utilisation", "gauge", (),
        "Share of the in-flight window in use, averaged: 0 to 1."),
    MetricSpec("worker_in_flight", "gauge", (),
        "Mails claimed and not yet settled by this worker."),
    MetricSpec("worker_window", "gauge", (),
        "Most mails that this worker holds at a time: at most so many become unknown by kill -9."),
    MetricSpec("wakeups_total", "counter", ("source",),
        "Why an idle worker polled: notify, poll, trailing, due, settled."),
    MetricSpec("retention_deleted_total", "counter", ("what",),
        "Rows that retention deleted."),
    MetricSpec("webhook_calls_total", "counter", ("result",),
        "Calls to customers' webhooks, by result."),
    MetricSpec("webhook_waiting", "gauge", (),
        "Calls that wait, of enabled webhooks."),
    MetricSpec("webhook_disabled_total", "counter", ("reason",),
        "Webhooks disabled because they failed or were gone."),
    MetricSpec("authentications_total", "counter", ("kind", "result"),
        "Authentications over HTTP and SMTP, by kind of credential and result."),
    MetricSpec("http_requests_total", "counter", ("route", "method", "status"),
        "Requests answered, by class of status."),
    MetricSpec("http_request_seconds", "histogram", ("route",),
        "Time from a request's head to the end of its answer."),
    MetricSpec("accepted_total", "counter", ("source",),
        "Messages accepted over http and smtp."),
    MetricSpec("accept_batch_messages", "histogram", (),
        "Messages that were committed together."),
    MetricSpec("accept_commit_seconds", "histogram", (),
        "Time from collecting a batch of messages to its commit."),
    MetricSpec("smtp_connections", "gauge", ("listener",),
        "Open SMTP connections."),
    MetricSpec("smtp_sessions_total", "counter", ("listener",),
        "SMTP connections accepted."),
    MetricSpec("http_connections_shed_total", "counter", ("how",),
        "HTTP connections closed while idle or refused because of a limit."),
    MetricSpec("smtp_turned_away_total", "counter", ("listener",),
        "SMTP connections refused because of a limit."),
    MetricSpec("smtp_messages_total", "counter", ("listener", "code"),
        "Mails answered after their content, by class of reply: 2xx accepted."),
    MetricSpec("smtp_refusals_total", "counter", ("listener", "code"),
        "Commands refused and sessions closed, by reply code."),
    MetricSpec("smtp_login_failures_total", "counter", ("listener",),
        "Failed logins over SMTP."),
    MetricSpec("smtp_accept_seconds", "histogram", ("listener",),
        "Time from the end of a mail to its commit."),
    MetricSpec("feedback_total", "counter", ("provider", "kind"),
        "New feedback from providers and reports; repetitions are not counted."),
    MetricSpec("feedback_refused_total", "counter", ("provider", "reason"),
        "Requests with feedback that were refused: without a valid signature, or too old."),
    MetricSpec("feedback_unmatched_total", "counter", (),
        "Feedback that matches no message of this installation."),
    MetricSpec("collected_total", "counter", ("outcome",),
        "Tokens collected, by outcome; held tokens are collected again later."),
    MetricSpec("collect_batch_seconds", "histogram", (),
        "Time from claiming a batch of tokens to its commit."),
    MetricSpec("tokens_waiting", "gauge", (),
        "Tokens that could be collected now, counted up to 100,000."),
    MetricSpec("task_failures_total", "counter", ("task",),
        "Errors of background tasks; each was retried, or ended the process."),
    MetricSpec("settlement_refusals_total", "counter", ("result",),
        "Outcomes that PostgreSQL refused: `stripped` were written without texts,"
        " `abandoned` become unknown."),
    MetricSpec("template_fallbacks_total", "counter", (),
        "Mails rendered in another language than requested."),
)
# fmt: on
METRICS: dict[str, MetricSpec] = {spec.name: spec for spec in _SPECS}


def bounded(value: object) -> str:
    """A label value as text: `none` for None, `other` for what cannot be a name or a known word."""
    if value is None:
        return "none"
    text = str(value)
    if len(text) <= LABEL_LENGTH and "@" not in text and text.isprintable():
        return text
    return "other"


class _Bounded:
    """Bounds every label value."""

    def labels(self, *values: Any, **named: Any) -> Any:
        named = {key: bounded(value) for key, value in named.items()}
        return super().labels(*map(bounded, values), **named)  # type: ignore[misc]


class _BoundedCounter(_Bounded, Counter):
    pass


class _BoundedGauge(_Bounded, Gauge):
    pass


class _BoundedHistogram(_Bounded, Histogram):
    pass


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.deliveries = self._gauge("deliveries")
        self.oldest_due_age = self._gauge("oldest_due_age_seconds")
        self.depth_alert = self._gauge("depth_alert")
        self.claims = self._counter("claims_total")
        self.claimed_deliveries = self._counter("claimed_deliveries_total")
        self.outcomes = self._counter("outcomes_total")
        self.attempt_seconds = self._histogram("attempt_seconds", ATTEMPT_BUCKETS)
        self.end_to_end_seconds = self._histogram("end_to_end_seconds", END_TO_END_BUCKETS)
        self.unknown = self._counter("unknown_total")
        self.reaped = self._counter("reaped_total")
        self.stale_settlements = self._counter("stale_settlements_total")
        self.pool_connections = self._gauge("pool_connections")
        self.provider_circuit = self._gauge("provider_circuit")
        self.pace = self._gauge("provider_pace")
        self.budget_used = self._gauge("provider_budget_used")
        self.failovers = self._counter("failovers_total")
        self.store_pool_connections = self._gauge("store_pool_connections")
        self.tenant_waiting = self._gauge("tenant_waiting")
        self.tenant_settled = self._counter("tenant_settled_total")
        self._tenants: dict[int, str] = {}
        self._tenant_settled: dict[tuple[int, str], _Inc] = {}
        self.workers = self._gauge("workers")
        self.utilisation = self._gauge("worker_utilisation")
        self.in_flight = self._gauge("worker_in_flight")
        self.window = self._gauge("worker_window")
        self.wakeups = self._counter("wakeups_total")
        self.retention_deleted = self._counter("retention_deleted_total")
        self.webhook_calls = self._counter("webhook_calls_total")
        self.webhook_waiting = self._gauge("webhook_waiting")
        self.webhook_disabled = self._counter("webhook_disabled_total")
        self.authentications = self._counter("authentications_total")
        self.http_requests = self._counter("http_requests_total")
        self.http_request_seconds = self._histogram("http_request_seconds", REQUEST_BUCKETS)
        self._answered: dict[tuple[str, str, int], tuple[_Inc, _Observe]] = {}
        self.accepted = self._counter("accepted_total")
        self.accept_batch = self._histogram("accept_batch_messages", BATCH_BUCKETS)
        self.accept_commit = self._histogram("accept_commit_seconds", COMMIT_BUCKETS)
        self.smtp_connections = self._gauge("smtp_connections")
        self.smtp_sessions = self._counter("smtp_sessions_total")
        self.http_connections_shed = self._counter("http_connections_shed_total")
        self.smtp_turned_away = self._counter("smtp_turned_away_total")
        self.smtp_messages = self._counter("smtp_messages_total")
        self.smtp_refusals = self._counter("smtp_refusals_total")
        self.smtp_login_failures = self._counter("smtp_login_failures_total")
        self.smtp_accept_seconds = self._histogram("smtp_accept_seconds", COMMIT_BUCKETS)
        self.feedback = self._counter("feedback_total")
        self.feedback_refused = self._counter("feedback_refused_total")
        self.feedback_unmatched = self._counter("feedback_unmatched_total")
        self.collected = self._counter("collected_total")
        self.collect_seconds = self._histogram("collect_batch_seconds", COMMIT_BUCKETS)
        self.tokens_waiting = self._gauge("tokens_waiting")
        self.task_failures = self._counter("task_failures_total")
        self.settlement_refusals = self._counter("settlement_refusals_total")
        self.template_fallbacks = self._counter("template_fallbacks_total")
        self._settled: dict[tuple[str, str, str | None], tuple[_Inc, _Observe]] = {}
        for source in WAKEUPS:  # a rate needs the zero before the first
            self.wakeups.labels(source)
        for result in CALLS:
            self.webhook_calls.labels(result)
        for credential, result in product(CREDENTIALS, AUTHENTICATION_RESULTS):
            self.authentications.labels(credential, result)
        for source in SOURCES:
            self.accepted.labels(source)
        for result in REFUSED:
            self.settlement_refusals.labels(result)

    def outcome(
        self, provider: str, verdict: Verdict, reason: Reason | None, seconds: float
    ) -> None:
        """One settled attempt at one recipient. Called for every mail: children are cached."""
        # Not the enums themselves: the hash of an enum is a Python call.
        key = (provider, verdict._value_, reason and reason._value_)
        count, observe = self._settled.get(key) or self._children(key)
        count()
        observe(seconds)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request was answered; `route` is its template."""
        if method not in METHODS:
            method = "other"
        key = (route, method, status // 100)
        count, observe = self._answered.get(key) or self._answer_children(key)
        count()
        observe(seconds)

    def sent_after(self, seconds: float) -> None:
        """A mail was sent, so long after it was accepted."""
        self.end_to_end_seconds.observe(max(0.0, seconds))  # two clocks may disagree by a moment

    def accepted_batch(self, by_source: Mapping[str, int], seconds: float) -> None:
        """Messages were committed together; a batch of replays only is not counted."""
        for source, count in by_source.items():
            self.accepted.labels(source).inc(count)
        if by_source:
            self.accept_batch.observe(sum(by_source.values()))
            self.accept_commit.observe(seconds)

    def collected_batch(self, by_outcome: Mapping[str, int], seconds: float) -> None:
        """Tokens were collected together."""
        for outcome, count in by_outcome.items():
            self.collected.labels(outcome).inc(count)
        self.collect_seconds.observe(seconds)

    def smtp_accepted(self, listener: str) -> Callable[[float], None]:
        """A function to call for each mail that a listener accepted, with the seconds it took."""
        count = self.smtp_messages.labels(listener, "2xx").inc
        observe = self.smtp_accept_seconds.labels(listener).observe

        def accepted(seconds: float) -> None:
            count()
            observe(seconds)

        return accepted

    def smtp_refused(self, listener: str, code: str, whole_mail: bool) -> None:
        """A listener refused a whole mail, or something else, with this reply code."""
        if whole_mail:
            self.smtp_messages.labels(listener, f"{code[0]}xx").inc()
        else:
            self.smtp_refusals.labels(listener, code).inc()

    def waiting_by_tenant(self, waiting: Sequence[tuple[int, str, int]], others: int) -> None:
        """A reading of the longest queues: tenant id, name, count; and the count of all others."""
        for tenant, name, _ in waiting:
            if len(self._tenants) < MAX_TENANTS:
                self._tenants.setdefault(tenant, name)
        shown = dict.fromkeys(self._tenants.values(), 0)
        for tenant, _, count in waiting:
            if tenant in self._tenants:
                shown[self._tenants[tenant]] = count
            else:
                others += count
        for name, count in shown.items():
            self.tenant_waiting.labels(name).set(count)
        self.tenant_waiting.labels("other").set(others)

    def settled_for(self, tenant: int, state: State) -> None:
        """One delivery of a tenant was settled. Called for every mail: children are cached."""
        key = (tenant, state._value_)
        count = self._tenant_settled.get(key)
        if count is None:
            name = self._tenants.get(tenant)
            count = self.tenant_settled.labels(name or "other", state._value_).inc
            if name:  # a name may come with the next reading
                self._tenant_settled[key] = count
        count()

    def claimed(self, deliveries: int) -> None:
        """A claim returned; empty claims are not counted."""
        if deliveries:
            self.claims.inc()
            self.claimed_deliveries.inc(deliveries)

    def depth(self, by_state: Mapping[str, tuple[int, float | None]], alert: int) -> None:
        """A reading of the queue: count and age of the oldest, by state; others are empty."""
        for state in LIVE:
            self.deliveries.labels(state).set(by_state.get(state, (0, None))[0])
        waiting = sum(by_state.get(state, (0, None))[0] for state in WAITING)
        self.depth_alert.set(waiting > alert)
        ages = (by_state.get(state, (0, None))[1] for state in ("queued", "deferred"))
        self.oldest_due_age.set(max(0.0, *(age or 0.0 for age in ages)))

    def pool(self, provider: str, open_now: int, busy: int) -> None:
        """A reading of one provider's connections."""
        self.pool_connections.labels(provider, "open").set(open_now)
        self.pool_connections.labels(provider, "busy").set(busy)

    def circuit(self, provider: str, state: str) -> None:
        """The state of a provider's breaker."""
        for circuit in CIRCUITS:
            self.provider_circuit.labels(provider, circuit).set(circuit == state)

    def store_pool(self, open_now: int, busy: int) -> None:
        """A reading of the connections to PostgreSQL."""
        self.store_pool_connections.labels("open").set(open_now)
        self.store_pool_connections.labels("busy").set(busy)

    def render(self) -> bytes:
        """Everything in Prometheus' text format; serve it as CONTENT_TYPE."""
        return generate_latest(_WithoutCreated(self.registry))

    def _children(self, key: tuple[str, str, str | None]) -> tuple[_Inc, _Observe]:
        provider, verdict, reason = key
        pair = (
            self.outcomes.labels(provider, verdict, reason).inc,
            self.attempt_seconds.labels(provider).observe,
        )
        self._settled[key] = pair
        return pair

    def _answer_children(self, key: tuple[str, str, int]) -> tuple[_Inc, _Observe]:
        route, method, status = key
        pair = (
            self.http_requests.labels(route, method, f"{status}xx").inc,
            self.http_request_seconds.labels(route).observe,
        )
        self._answered[key] = pair
        return pair

    def _counter(self, name: str) -> Counter:
        spec = METRICS[name]
        return _BoundedCounter(PREFIX + name, spec.help, spec.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        spec = METRICS[name]
        return _BoundedGauge(PREFIX + name, spec.help, spec.labels, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        spec = METRICS[name]
        return _BoundedHistogram(
            PREFIX + name, spec.help, spec.labels, registry=self.registry, buckets=buckets
        )


_Inc = Callable[[], None]
_Observe = Callable[[float], None]


class _WithoutCreated(Collector):
    """A registry without the `_created` series, which double the output and are not used."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():  # new objects at each call
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            yield family
