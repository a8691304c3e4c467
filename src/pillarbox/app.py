"""The composition root: the only module that names concrete adapters and connects the rooms.

`open_app` builds an App; `serve` runs roles on it: `work` delivers, `tend` does the housekeeping,
`collect` turns tokens into mails, `serve_smtp` accepts by SMTP; `api.server` adds HTTP.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pillarbox.accept.auth import Authenticator
from pillarbox.accept.intake import Intake
from pillarbox.accept.shared_failures import SharedFailures
from pillarbox.accept.smtp.service import Ready, SmtpService
from pillarbox.deliver.gauge import Gauge
from pillarbox.deliver.health_monitor import NOTIFY_CHANNEL as HEALTH_CHANNEL
from pillarbox.deliver.health_monitor import HealthMonitor
from pillarbox.deliver.housekeeping import Housekeeping
from pillarbox.deliver.provider_config import load_provider_config
from pillarbox.deliver.provider_pool import ProviderConfig, ProviderPool
from pillarbox.deliver.provider_quota import ProviderQuota
from pillarbox.deliver.transports.base import Transport, TransportContext
from pillarbox.deliver.transports.build import build_transport
from pillarbox.deliver.transports.capture import keep_captured
from pillarbox.deliver.worker import Worker, WorkerLimits
from pillarbox.model import return_path
from pillarbox.model.message import Message
from pillarbox.model.provider import Provider
from pillarbox.model.provider_redaction import provider_redactor
from pillarbox.model.redaction import Redactor
from pillarbox.queue.dispatcher import Dispatcher
from pillarbox.queue.ledger import Ledger
from pillarbox.queue.ready_queues.postgres import PostgresReadyQueue
from pillarbox.settings import Settings
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.opening import open_database, patiently, prepare_schema
from pillarbox.store.vault import EncryptionKeyRing, key_ring
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics
from pillarbox.track.feedback.base import Feedback
from pillarbox.track.feedback.build import build_feedback
from pillarbox.track.feedback_ingest import FeedbackIngest
from pillarbox.track.feedback_receiver import FeedbackReceiver

# Below, aiohttp and Jinja, and what is built on them, are imported where they are needed: they take
# a third of the time in which a command starts, and few commands need them.
if TYPE_CHECKING:
    from pillarbox.deliver.transports.http_client import HttpClient
    from pillarbox.lifecycle.collector import Collector
    from pillarbox.lifecycle.services import LifecycleServices
    from pillarbox.track.webhook_client import WebhookClient

# How often a worker reloads providers and classes: soon enough for a person at the command line.
REFRESH_INTERVAL = 2.0
# How often a broken listening connection is opened again.
LISTEN_INTERVAL = 1.0
GAUGE_INTERVAL = 1.0
# How often feedback is processed again that arrived before its attempt was settled.
CATCH_UP_INTERVAL = 1.0


@dataclass
class App:
    """The parts of one process that commands and roles share. Each is built when first used."""

    settings: Settings
    database: Database
    redactor: Redactor
    metrics: Metrics
    installation_key: bytes = field(repr=False)  # keys of pseudonyms are derived from it
    keyless: bool = False  # whether clients on this machine need no key: in `up` only
    capture_all: bool = False  # `up --capture-all`: every mail is captured, whatever the routes
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack, init=False, repr=False)

    async def close(self) -> None:
        """Close the parts that were built."""
        await self._closing.aclose()

    @cached_property
    def supervisor(self) -> Supervisor:
        """Runs and watches the background tasks."""
        return Supervisor(self.metrics)

    @cached_property
    def intake(self) -> Intake:
        """Accepts the mails of HTTP and SMTP."""
        intake = Intake(self.database, self.metrics)
        self._closing.push_async_callback(intake.close)
        return intake

    @cached_property
    def authenticator(self) -> Authenticator:
        """Authenticates clients of HTTP and SMTP."""
        authenticator = Authenticator(
            self.database,
            self.metrics,
            failures=self.settings.auth_failures_per_minute,
            shared=SharedFailures(self.database, self.installation_key),
            development=self.keyless,
            supervisor=self.supervisor,
        )
        self._closing.push_async_callback(authenticator.close)
        return authenticator

    @cached_property
    def lifecycle(self) -> LifecycleServices:
        """The services for accounts and administrators."""
        from pillarbox.lifecycle.services import LifecycleServices

        return LifecycleServices(
            self.database, self.settings, self.metrics, self.authenticator, self.supervisor
        )

    @cached_property
    def ingest(self) -> FeedbackIngest:
        """Processes all feedback, from providers and in reports."""
        return FeedbackIngest(
            self.database, self.metrics, self.redactor, self.settings.suppression_expiry
        )

    @cached_property
    def feedback_receiver(self) -> FeedbackReceiver:
        """Verifies and processes requests with feedback from providers."""
        load = partial(providers.list_providers, self.database, self.keys)
        receiver = FeedbackReceiver(
            load, self.build_feedback, self.redactor_for, self.ingest, self.metrics
        )
        self._closing.push_async_callback(receiver.close)
        return receiver

    def build_feedback(self, provider: Provider) -> Feedback:
        """The adapter that reads the feedback of a provider."""
        return build_feedback(provider, self.settings.feedback_window)

    def build_transport(self, provider: Provider) -> Transport:
        """The adapter that sends mails through a provider. The caller must close it."""
        context = TransportContext(
            provider.id,
            lambda: self._http_client,
            partial(keep_captured, self.database, provider.id),
        )
        return build_transport(provider, context, self.settings.worker_concurrency)

    @cached_property
    def _http_client(self) -> HttpClient:
        from pillarbox.deliver.transports.http_client import HttpClient

        client = HttpClient()
        self._closing.push_async_callback(client.close)
        return client

    def redactor_for(self, provider: Provider) -> Callable[[str], str]:
        """Redaction of texts from this provider."""
        return provider_redactor(self.redactor, provider)

    def webhook_client(self) -> WebhookClient:
        """A client for calls to customers. The caller must close it."""
        from pillarbox.track.webhook_dispatcher import open_client

        return open_client(self.settings, self.redactor, version("pillarbox"))

    def housekeeping(self) -> Housekeeping:
        """The housekeeping of the queue."""
        ledger = Ledger(self.database)
        return Housekeeping(self.database, ledger, self.metrics, self.settings, self.supervisor)

    def keys(self) -> EncryptionKeyRing:
        """The keys of PILLARBOX_SECRET_KEYS; in development, of a file in `data_dir`."""
        return key_ring(self.settings)

    async def return_path_key(self) -> bytes:
        """The key that signs return paths."""
        return return_path.derive_key(await providers.redaction_key(self.database))

    async def load_providers(self) -> ProviderConfig:
        """The providers, classes and rules that the database holds now."""
        return await load_provider_config(
            self.database,
            self.keys,
            development=self.settings.is_development,
            capture_all=self.capture_all,
        )


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    start: bool = False,
    migrating: bool = False,
    keyless: bool = False,
    patient: asyncio.Event | None = None,
    owns_process: bool = False,
) -> AsyncIterator[App]:
    """Connect to the database and build what every command needs.

    See `open_database` and `App.keyless`. With `owns_process` all log lines of the process, those
    of other libraries included, are written as the settings say; without it, Pillarbox logs to the
    standard loggers of the application that embeds it.
    """
    async with open_database(settings, start=start, patient=patient) as database:
        await patiently(partial(prepare_schema, settings, database, migrating), patient)
        app = await patiently(partial(_assemble, settings, database, keyless), patient)
        if owns_process:
            logs.configure(settings.log_format, settings.log_level, app.redactor)
        else:
            logs.use_standard_logging(app.redactor)
        try:
            yield app
        finally:
            await app.close()


async def _assemble(settings: Settings, database: Database, keyless: bool) -> App:
    if settings.redaction_key:
        key = settings.redaction_key.reveal().encode()
    else:
        key = await providers.redaction_key(database)
    return App(settings, database, Redactor(key), Metrics(), key, keyless)


def build_worker(app: App, dispatcher: Dispatcher, pool: ProviderPool) -> Worker:
    settings = app.settings
    limits = WorkerLimits(
        window=settings.window,
        claim_limit=settings.claim_limit,
        bytes_in_flight=settings.worker_bytes_in_flight,
        poll=settings.worker_poll_interval,
        lease=settings.worker_lease,
        drain=settings.worker_drain_timeout,
    )
    name = f"{socket.gethostname()}:{os.getpid()}"
    return Worker(name, dispatcher, pool, app.metrics, limits, app.supervisor)


async def work(app: App, stop: asyncio.Event) -> None:
    """Deliver mail until `stop`; then drain."""
    _collect_rarely()
    supervisor = app.supervisor
    database = await app.database.for_queue()
    ledger = Ledger(database)
    ready = PostgresReadyQueue(app.database, ledger)
    pool = ProviderPool(
        app.load_providers,
        app.build_transport,
        app.redactor_for,
        ask_quota=ProviderQuota(app.database).ask,
        return_path=await patiently(partial(_return_paths, app), stop),
        supervisor=supervisor,
    )
    worker = build_worker(app, Dispatcher(ledger, ready), pool)
    health_monitor = HealthMonitor(worker.name, app.database, pool, app.metrics, supervisor)
    health_monitor.recovered = ready.wake
    gauge = Gauge(worker, pool, app.database, app.metrics, app.settings.utilisation_alert)
    background = [
        supervisor.run_every("roster", REFRESH_INTERVAL, pool.refresh, stop),
        supervisor.run_every("gauge", GAUGE_INTERVAL, gauge.read, stop),
        health_monitor.run(stop),
    ]
    if app.settings.notify:
        listen = partial(ready.listen, stop, {HEALTH_CHANNEL: health_monitor.hint})
        background.append(supervisor.run_every("listen", LISTEN_INTERVAL, listen, stop))
    tasks = [asyncio.create_task(loop) for loop in [*background, _stop_worker(worker, stop)]]
    try:
        await worker.run()  # drains before it raises, while the other loops continue
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.close()
        await database.close()


async def _return_paths(app: App) -> Callable[[Message], str] | None:
    """Makes the envelope sender of a message; None without a `return_path_domain`."""
    domain = app.settings.return_path_domain
    if domain is None:
        return None
    key = await app.return_path_key()
    return lambda message: return_path.make(message.id, domain, key)


async def serve_smtp(app: App, stop: asyncio.Event, ready: Ready | None = None) -> None:
    """Accept mail by SMTP until `stop`; `ready` gets the addresses of the listeners, by setting."""
    _collect_rarely()
    service = SmtpService(app.settings, app.authenticator, app.intake, app.metrics, app.supervisor)
    await service.run(stop, ready)


def _collect_rarely() -> None:
    # Mails make many short-lived objects and no cycles. Garbage collection after each 700 objects,
    # the default, costs 5 % of the CPU.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def tend(app: App, stop: asyncio.Event) -> None:
    """Do the housekeeping and call webhooks until `stop`; safe in any number of processes."""
    supervisor = app.supervisor
    await asyncio.gather(
        app.housekeeping().run(stop),
        supervisor.keep("webhooks", partial(notify, app, stop), stop),
        supervisor.run_every("feedback", CATCH_UP_INTERVAL, app.ingest.catch_up, stop),
    )


async def collect(app: App, stop: asyncio.Event) -> None:
    """Turn tokens of accounts into mails until `stop`, as soon as there are accounts."""
    from pillarbox.lifecycle.collector import wait_until_installed

    if await wait_until_installed(app.database, app.settings, stop):
        collector = await patiently(partial(build_collector, app), stop)
        await collector.run(stop)


async def build_collector(app: App, *, stdout: bool = False) -> Collector:
    """The collector that mails tokens, or writes them to standard output."""
    _collect_rarely()
    return await app.lifecycle.collector(stdout=stdout)


async def notify(app: App, stop: asyncio.Event) -> None:
    """Make calls to customers' webhooks until `stop`."""
    from pillarbox.track.webhook_dispatcher import WebhookDispatcher

    client = app.webhook_client()
    dispatcher = WebhookDispatcher(
        app.database, app.keys, app.settings, app.metrics, client, app.supervisor
    )
    await dispatcher.run(stop)


async def _stop_worker(worker: Worker, stop: asyncio.Event) -> None:
    await stop.wait()
    worker.stop()


async def serve(app: App, stop: asyncio.Event, *roles: Role) -> None:
    """Run roles until `stop`. One that fails or returns early stops the others; see `run_roles`."""
    named = [(getattr(role, "func", role).__name__, role(app, stop)) for role in roles]
    await app.supervisor.run_roles(named, stop)


Role = Callable[[App, asyncio.Event], Coroutine[Any, Any, None]]
