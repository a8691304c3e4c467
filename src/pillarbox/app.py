"""The composition root: the only place that names concrete adapters and puts the rooms together."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from asyncpg import PostgresError

from pillarbox.accept.door import Doorkeeper
from pillarbox.accept.intake import Intake
from pillarbox.accept.smtp.service import Ready, SmtpService
from pillarbox.deliver.gauge import Gauge
from pillarbox.deliver.loops import run_every, wait
from pillarbox.deliver.mime import compose
from pillarbox.deliver.reaper import Chores
from pillarbox.deliver.roster import Roster
from pillarbox.deliver.transports.base import Parcel, Recipient, Report, Transport
from pillarbox.deliver.transports.capture import CaptureTransport
from pillarbox.deliver.transports.smtp import SmtpTransport
from pillarbox.deliver.wakeup import Wakeup, listen
from pillarbox.deliver.worker import Pace, Worker
from pillarbox.errors import NotPossible, SchemaMismatch, SecretError, SettingsError, StoreError
from pillarbox.model.access import Scope
from pillarbox.model.address import address_of
from pillarbox.model.delivery import MessageClass
from pillarbox.model.message import Content, Message
from pillarbox.model.provider import Provider, SmtpSettings, Tls
from pillarbox.model.redaction import Redactor
from pillarbox.model.secret import masked
from pillarbox.queue.postgres import PostgresQueue
from pillarbox.setting_kinds import show_url
from pillarbox.settings import Settings
from pillarbox.store import access, providers, tenants
from pillarbox.store.database import Database
from pillarbox.store.embedded import EmbeddedPostgres
from pillarbox.store.migrations import check_schema, migrate
from pillarbox.store.vault import KeyRing, load_or_create_key_file, read_private_file, write_private_file
from pillarbox.telemetry import logs
from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.app")
T = TypeVar("T")
# How often a worker looks for new providers and classes: soon enough for a person at the command line.
REFRESH_INTERVAL = 2.0
# How often a broken listening connection is opened again.
LISTEN_INTERVAL = 1.0
GAUGE_INTERVAL = 1.0
# Pause between tries to reach a database that is away at the start.
CONNECT_PAUSE = 1.0


@dataclass(slots=True)
class App:
    """What every command needs: the store, the keys, the redactor, the metrics."""

    settings: Settings
    database: Database
    redactor: Redactor
    metrics: Metrics
    _intake: Intake | None = field(default=None, init=False, repr=False)
    _doorkeeper: Doorkeeper | None = field(default=None, init=False, repr=False)

    @property
    def intake(self) -> Intake:
        """The one way in for all mails that are handed over to this process."""
        if self._intake is None:
            self._intake = Intake(self.database, self.metrics)
        return self._intake

    @property
    def doorkeeper(self) -> Doorkeeper:
        """The one who tells who asks, for all doors of this process."""
        if self._doorkeeper is None:
            settings = self.settings
            self._doorkeeper = Doorkeeper(
                self.database,
                self.metrics,
                failures=settings.auth_failures_per_minute,
                development=settings.is_development,
            )
        return self._doorkeeper

    async def close(self) -> None:
        """Close what was opened on the way."""
        if self._doorkeeper is not None:
            await self._doorkeeper.close()
        if self._intake is not None:
            await self._intake.close()

    def keys(self) -> KeyRing:
        """The key ring of PILLARBOX_SECRET_KEYS; in development, of a file beside the embedded database."""
        if self.settings.secret_keys:
            return KeyRing(self.settings.secret_keys)
        if self.settings.database_url is None:
            return KeyRing([load_or_create_key_file(self.settings.data_dir / "secret.key")])
        raise SecretError("no secret key: set PILLARBOX_SECRET_KEYS (make one with `pillarbox keys generate`)")

    def build_transport(self, provider: Provider) -> Transport:
        """The adapter for a provider's kind."""
        if provider.kind == "smtp":
            return SmtpTransport(smtp_settings(provider, self.settings.worker_concurrency))
        if provider.kind == "capture":
            return CaptureTransport(self._keep(provider.id))
        raise NotPossible(f"provider {provider.name!r} is of an unknown kind {provider.kind!r}")

    def _keep(self, provider_id: int) -> Callable[[Parcel], Any]:
        async def keep(parcel: Parcel) -> int:
            recipients = [recipient.address for recipient in parcel.recipients]
            return await providers.capture(
                self.database, provider_id, parcel.message_id, parcel.sender, recipients, parcel.content
            )

        return keep

    def redactor_for(self, provider: Provider) -> Callable[[str], str]:
        """Redaction of what a provider says; its own secret is masked, should it repeat it."""
        host, username = provider.settings.get("host"), provider.settings.get("username")
        redact: Callable[[str], str] = self.redactor.hosts(host) if host else self.redactor
        if (secret := provider.secret) is None:
            return redact
        return lambda text: redact(masked(text, secret, username))

    async def try_out(self, provider: Provider, message: Message, content: Content) -> Report:
        """Send one mail through one provider at once, past the queue."""
        recipients = [Recipient(n, address_of(mailbox)) for n, mailbox in enumerate(message.to)]
        mail = compose(message, content)
        transport = self.build_transport(provider)
        try:
            return await transport.send(Parcel(message.id, 0, address_of(message.sender), recipients, mail))
        finally:
            await transport.close()

    async def reap(self) -> int:
        """Take back the claims of workers whose lease ran out, once; returns how many."""
        return await Chores(self.database, PostgresQueue(self.database), self.metrics, self.settings).reap()

    async def load_providers(self) -> tuple[list[Provider], dict[str, MessageClass]]:
        """What the roster needs to know, secrets opened."""
        found = await providers.list_providers(self.database, self.keys)
        return found, await providers.list_classes(self.database)


def smtp_settings(provider: Provider, connections: int) -> SmtpSettings:
    """A provider's stored settings as the transport wants them."""
    known = {field.name for field in fields(SmtpSettings)}
    unknown = set(provider.settings) - known
    if unknown:
        raise SettingsError(f"provider {provider.name!r} has unknown settings: {', '.join(sorted(unknown))}")
    values = {"connections": connections} | dict(provider.settings)
    return replace(SmtpSettings(**values), tls=Tls(values.get("tls", Tls.STARTTLS)), password=provider.secret)


@asynccontextmanager
async def open_app(
    settings: Settings, *, start: bool = False, migrating: bool = False, patient: asyncio.Event | None = None
) -> AsyncIterator[App]:
    """Connect to the database and put together what every command needs; see `open_database`."""
    async with open_database(settings, start=start, patient=patient) as database:
        await patiently(partial(_prepare, database, migrating), patient)
        app = await patiently(partial(_assemble, settings, database), patient)
        try:
            yield app
        finally:
            await app.close()


@asynccontextmanager
async def open_database(
    settings: Settings, *, start: bool = False, patient: asyncio.Event | None = None
) -> AsyncIterator[Database]:
    """Connect to the database, whatever its schema.

    `start` starts the embedded one and stops it at the end. With `patient`, wait for one that is away until that event
    is set, as a service does that starts before its database.
    """
    server = None
    url = settings.database_url
    if url is None:
        server = _embedded(settings)
        if start:
            await asyncio.to_thread(server.start)
        elif not server.running():
            raise StoreError(
                f"no database: nothing runs in {settings.data_dir}. Start it with `pillarbox up`, or name a database"
                " with --database-url or PILLARBOX_DATABASE_URL"
            )
        url = server.url()
    try:
        database = await _connect_patiently(settings, url, patient) if patient else await _connect(settings, url)
        try:
            yield database
        finally:
            await database.close()
    finally:
        if server and start:
            await asyncio.to_thread(server.stop)


async def _connect(settings: Settings, url: str) -> Database:
    try:
        return await Database.connect(
            url, least=settings.pool_min, most=settings.pool_max, statement_cache=settings.statement_cache
        )
    except (StoreError, PostgresError) as error:  # away, or it does not let us in
        reason = str(error).removeprefix("PostgreSQL: ")
        raise StoreError(f"cannot connect to {show_url(url)}: {reason}") from error


async def _connect_patiently(settings: Settings, url: str, stop: asyncio.Event) -> Database:
    while True:
        try:
            return await _connect(settings, url)
        except StoreError as error:
            if stop.is_set() or not isinstance(error.__cause__, StoreError):  # it is there, but does not let us in
                raise
            place = show_url(url).rpartition("@")[2]
            log.warning("waiting for the database", database=place, error=str(error.__cause__))
            await wait(stop, CONNECT_PAUSE)


async def patiently(call: Callable[[], Awaitable[T]], stop: asyncio.Event | None) -> T:
    """Make a call of a start, again while the database is away: it may go just after it came. Without `stop`, once."""
    while True:
        try:
            return await call()
        except SchemaMismatch:
            raise
        except StoreError as error:
            if stop is None or stop.is_set():
                raise
            log.warning("waiting for the database", error=str(error))
            await wait(stop, CONNECT_PAUSE)


def place_of(settings: Settings) -> str:
    """The URL of the database in use, for people: without its password."""
    return show_url(settings.database_url or _embedded(settings).url())


def _embedded(settings: Settings) -> EmbeddedPostgres:
    return EmbeddedPostgres(settings.data_dir / "postgres")


async def _prepare(database: Database, migrating: bool) -> None:
    async with database.connection() as connection:
        if migrating:
            await migrate(connection)
        else:
            await check_schema(connection)


async def _assemble(settings: Settings, database: Database) -> App:
    given = settings.redaction_key
    key = given.reveal().encode() if given else await providers.redaction_key(database)
    redactor = Redactor(key)
    logs.configure(settings.log_format, settings.log_level, redactor)
    return App(settings, database, redactor, Metrics())


async def ensure_provider(app: App, *, development: bool) -> None:
    """Add a first provider where there is none: SMTP_HOST's, or in development one that captures."""
    settings = app.settings
    if settings.smtp_from_address:
        await tenants.set_default_sender(app.database, _mailbox(settings.smtp_from_name, settings.smtp_from_address))
    if await providers.list_providers(app.database, None):
        return
    if settings.smtp_host:
        given = {"host": settings.smtp_host, "port": settings.smtp_port, "tls": Tls.OPPORTUNISTIC}
        await providers.add_provider(app.database, app.keys, "default", "smtp", given)
    elif development:
        await providers.add_provider(app.database, app.keys, "capture", "capture", {})


async def ensure_development_key(app: App) -> Path | None:
    """With the embedded database, the file with a key of the tenant `default`; made where it is not there."""
    if app.settings.database_url is not None or not app.settings.is_development:
        return None
    path = app.settings.data_dir / "development.key"
    token = read_private_file(path)
    if token is None or (await access.find_keys(app.database, [token]))[0] is None:
        for old in await access.list_keys(app.database, "default", name="development"):
            await access.revoke_key(app.database, old.id)
        made = await access.add_key(app.database, "default", "development", [Scope.SEND, Scope.READ, Scope.MANAGE])
        write_private_file(path, made[1].reveal())
    return path


def _mailbox(name: str | None, address: str) -> str:
    return f"{name} <{address}>" if name else address


def build_worker(app: App, queue: PostgresQueue, roster: Roster, wakeup: Wakeup) -> Worker:
    settings = app.settings
    pace = Pace(
        window=settings.window,
        claim_limit=settings.claim_limit,
        bytes_in_flight=settings.worker_bytes_in_flight,
        poll=settings.worker_poll_interval,
        lease=settings.worker_lease,
        drain=settings.worker_drain_timeout,
    )
    return Worker(f"{socket.gethostname()}:{os.getpid()}", queue, roster, app.metrics, wakeup, pace)


async def work(app: App, stop: asyncio.Event) -> None:
    """Deliver mail until `stop`; then drain."""
    _collect_rarely()
    wakeup = Wakeup()
    database = await app.database.for_queue()
    queue = PostgresQueue(database)
    roster = Roster(app.load_providers, app.build_transport, app.redactor_for)
    worker = build_worker(app, queue, roster, wakeup)
    gauge = Gauge(worker, roster, app.database, app.metrics, app.settings.utilisation_alert)
    background = [
        run_every("roster", REFRESH_INTERVAL, roster.refresh, stop),
        run_every("gauge", GAUGE_INTERVAL, gauge.read, stop),
    ]
    if app.settings.notify:
        background.append(run_every("listen", LISTEN_INTERVAL, partial(listen, app.database, wakeup, stop), stop))
    async with asyncio.TaskGroup() as group:
        for loop in background:
            group.create_task(loop)
        group.create_task(_stop_worker(worker, stop))
        await worker.run()
        stop.set()
    await roster.close()
    await database.close()


async def serve_smtp(app: App, stop: asyncio.Event, ready: Ready | None = None) -> None:
    """Take mail by SMTP until `stop`; `ready` gets where it listens, by setting, once somebody can connect."""
    _collect_rarely()
    await SmtpService(app.settings, app.doorkeeper, app.intake, app.metrics).run(stop, ready)


def _collect_rarely() -> None:
    # Mails make many short-lived objects and no cycles: looking for cycles after each 700 objects cost 5 %.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def tend(app: App, stop: asyncio.Event) -> None:
    """Do the chores until `stop`: any number of processes may, whether they deliver or not."""
    await Chores(app.database, PostgresQueue(app.database), app.metrics, app.settings).run(stop)


async def _stop_worker(worker: Worker, stop: asyncio.Event) -> None:
    await stop.wait()
    worker.stop()


async def serve(app: App, stop: asyncio.Event, *roles: Role) -> None:
    """Run the roles (`work`, `tend`, and the edges' own) until `stop`; if one fails, the others are stopped too."""
    tasks = [asyncio.create_task(role(app, stop)) for role in roles]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


Role = Callable[[App, asyncio.Event], Coroutine[Any, Any, None]]
