"""`up`, `serve` and `worker`: the commands that run until they are stopped."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pillarbox.app import (
    App,
    Role,
    collect,
    open_app,
    serve_smtp,
    tend,
    work,
)
from pillarbox.app import serve as run_together
from pillarbox.cli import output
from pillarbox.cli.banner import print_banner, print_roles
from pillarbox.cli.command import (
    CONCURRENCY,
    HTTP,
    INTERRUPTED,
    TEMPLATE_DIRS,
    CommandContext,
    command,
    setting,
)
from pillarbox.cli.first_run import ensure_development_key, ensure_provider
from pillarbox.cli.signals import foreground, stopping
from pillarbox.errors import NotPossible, SettingsError, StoreError
from pillarbox.lifecycle.signing_keys import has_keys
from pillarbox.model.provider_kinds import kind_of
from pillarbox.settings import Settings
from pillarbox.sockets import check_free
from pillarbox.store.opening import keep_embedded_running, patiently
from pillarbox.telemetry import logs
from pillarbox.telemetry.summary import CHECK_INTERVAL, MailSummary

SMTP = tuple(
    setting(name, "--" + name.replace("_", "-"), "HOST:PORT")
    for name in ("smtp", "smtp_submission", "smtp_tls")
)
STARTTLS = setting("smtp_starttls", "--smtp-starttls", "PORT")
# The usual port of programs that catch mail in development.
DEVELOPMENT_SMTP = "127.0.0.1:1025"
ROLES = ("api", "smtp", "worker", "collector")


async def serve_http(
    app: App, stop: asyncio.Event, ready: Callable[[str], None] | None = None
) -> None:
    """Answer HTTP until `stop`; see `pillarbox.api.server`."""
    from pillarbox.api import server  # only here: FastAPI takes half a second to import

    await server.serve_http(app, stop, ready)


def register(root: typer.Typer) -> None:
    command(
        root,
        "up",
        HTTP,
        *SMTP,
        STARTTLS,
        CONCURRENCY,
        TEMPLATE_DIRS,
        json=False,
    )(up)
    command(
        root,
        "serve",
        HTTP,
        *SMTP,
        CONCURRENCY,
        TEMPLATE_DIRS,
        json=False,
    )(serve)
    command(
        root,
        "worker",
        HTTP,
        CONCURRENCY,
        json=False,
    )(worker)


WithDemo = Annotated[
    bool,
    typer.Option(
        "--demo",
        help="Send sample mails through simulated servers of SendGrid, SES and Mailgun.",
    ),
]


RequireKey = Annotated[
    bool,
    typer.Option(
        "--require-key",
        help="Require a key from every client, also on this machine; no SMTP on port 1025.",
    ),
]
CaptureAll = Annotated[
    bool,
    typer.Option(
        "--capture-all", help="Capture every mail and send nothing, independent of routes."
    ),
]


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Log a line per mail instead of a summary every ten seconds."
    ),
]


async def up(
    context: CommandContext,
    demo: WithDemo = False,
    require_key: RequireKey = False,
    capture_all: CaptureAll = False,
    verbose: Verbose = False,
) -> int:
    """Start everything: database, HTTP, SMTP and a worker, until Ctrl-C.

    Without a database URL it runs an embedded PostgreSQL in the data directory. In both cases the
    schema is updated. Ctrl-C finishes the mails in flight and exits; the other mails stay in the
    queue.

    With the embedded PostgreSQL every process on this machine has full access to the HTTP API
    without a key, and can submit mail by SMTP on 127.0.0.1:1025, without TLS and with any login or
    none. This includes a proxy on this machine and all its clients: use --require-key before you
    put a proxy in front, or use `serve`.

    Mails are captured until another provider is configured for the first time. From then on they
    are sent, or wait visibly while no provider can be used; --capture-all captures them anyway, in
    this process.

    --demo also starts servers that behave like SendGrid, Amazon SES and Mailgun, and sends a mail
    through them every two seconds; some bounce, some cause complaints. Nothing leaves the machine,
    and everything ends with Ctrl-C.

    \b
    Examples:
      pillarbox up
      pillarbox up --capture-all
      pillarbox up --demo --data /tmp/demo
      pillarbox up --require-key
      pillarbox up --smtp-starttls 2525     for applications that require STARTTLS
      pillarbox up --data /tmp/second --http 127.0.0.1:8026 --smtp 127.0.0.1:1026
      PILLARBOX_DATABASE_URL=postgresql://mail@db.example/mail pillarbox up
    """
    logs.catch_uncaught()
    settings = context.settings
    embedded = settings.database_url is None
    _check_demo(demo, capture_all, embedded)
    keyless = settings.is_development and not require_key
    if embedded and keyless and settings.smtp is None:
        settings = replace(settings, smtp=DEVELOPMENT_SMTP)
    logs.summarise_mails(not verbose)
    stop, running = asyncio.Event(), False
    try:
        with foreground(), stopping(stop), _sole(settings.data_dir, embedded):
            _check_ports(settings)
            patient: asyncio.Event | None = stop
            if embedded:
                output.note(f"starting PostgreSQL in {settings.data_dir / 'postgres'}")
                patient = None
            async with open_app(
                settings,
                start=embedded,
                migrating=True,
                keyless=keyless,
                patient=patient,
                owns_process=True,
            ) as app:
                running = True
                app.capture_all = capture_all
                await _run_all(app, stop, demo)
    except asyncio.CancelledError:
        return INTERRUPTED
    except StoreError:
        # Ctrl-C while PostgreSQL is being installed also reaches its processes: not an error.
        if running or not stop.is_set():
            raise
    output.note("stopped")
    return 0


def _check_demo(demo: bool, capture_all: bool, embedded: bool) -> None:
    if demo and not embedded:
        raise SettingsError("--demo needs the embedded PostgreSQL: leave out --database-url")
    if demo and capture_all:
        raise typer.BadParameter("give --demo or --capture-all, not both")


async def _run_all(app: App, stop: asyncio.Event, demo: bool) -> None:
    """Run all roles of `up` on an open database."""
    # Imported here: no other command needs its servers.
    from pillarbox.cli.demo import demonstration

    settings = app.settings
    await patiently(partial(ensure_provider, app, development=settings.is_development), stop)
    key = await patiently(partial(ensure_development_key, app), stop)
    async with demonstration(app, wanted=demo) as shown:
        config = await app.load_providers()
        providers = config.providers
        if not config.captures:
            providers = [provider for provider in providers if kind_of(provider.kind).sends_out]
        listeners = ["api"]
        if settings.smtp_addresses:
            listeners.append("smtp")
        roles = _listeners(
            listeners,
            partial(
                print_banner,
                app,
                providers,
                key,
                shown,
            ),
        )
        roles.append(tend)
        if settings.worker_enabled:
            roles.append(work)
        if has_keys(settings):
            roles.append(collect)
        if shown:
            roles.append(shown.run)
        if settings.database_url is None:
            roles.append(_keep_postgres_running)
        summary = MailSummary(app.metrics)
        roles.append(
            lambda app, stop: app.supervisor.run_every(
                "summary",
                CHECK_INTERVAL,
                summary.check,
                stop,
            )
        )
        try:
            await run_together(app, stop, *roles)
        finally:
            summary.write()


def _check_ports(settings: Settings, *, http: bool = True, smtp: bool = True) -> None:
    """Report ports in use before anything starts."""
    addresses = {}
    if http:
        addresses["http"] = settings.http_address
    if smtp:
        addresses |= settings.smtp_addresses
    check_free(addresses)


async def _keep_postgres_running(app: App, stop: asyncio.Event) -> None:
    await keep_embedded_running(app.settings, app.supervisor, stop)


Roles = Annotated[
    str | None,
    typer.Option(
        "--roles",
        metavar="ROLES",
        show_default=False,
        help="Some of api, smtp, worker, collector, with commas; by default all configured ones.",
    ),
]


async def serve(context: CommandContext, roles: Roles = None) -> int:
    """Run a process of a production installation until Ctrl-C.

    The database must be prepared with `migrate`. Roles are `api` (HTTP), `smtp` (at
    smtp_submission, smtp_tls and smtp), `worker` (delivery and housekeeping) and `collector`
    (lifecycle mails, if lifecycle_keys are set and the schema is installed). Any number of
    processes can have any of them.

    \b
    Examples:
      pillarbox serve
      pillarbox serve --roles api,smtp --http 0.0.0.0:8025 --smtp-submission 0.0.0.0:587
      pillarbox serve --roles worker --concurrency 20
    """
    chosen = _chosen(context.settings, roles)
    _check_ports(context.settings, http="api" in chosen, smtp="smtp" in chosen)

    def all_roles(app: App) -> list[Role]:
        running = _listeners(chosen, partial(print_roles, app, chosen))
        if "worker" in chosen:
            running += [work, tend]
        if "collector" in chosen:
            running.append(collect)
        return running

    return await stay(context.settings, all_roles)


def _chosen(settings: Settings, roles: str | None) -> list[str]:
    """The requested roles, or all that the settings allow."""
    configured = {
        "api": True,
        "smtp": bool(settings.smtp_addresses),
        "worker": settings.worker_enabled,
        "collector": has_keys(settings),
    }
    if roles is None:
        return [role for role in ROLES if configured[role]]
    words = {word.strip() for word in roles.split(",")}
    if not words <= set(ROLES):
        raise typer.BadParameter(f"{roles!r}: give some of {', '.join(ROLES)}, separated by commas")
    if "smtp" in words and not configured["smtp"]:
        raise SettingsError(
            "no address to listen on for SMTP: give --smtp-submission or --smtp-tls HOST:PORT"
        )
    return [role for role in ROLES if role in words]


def _listeners(roles: Sequence[str], ready: Callable[[dict[str, str]], None]) -> list[Role]:
    """The roles that listen; once all of them do, `ready` gets their addresses."""
    addresses: dict[str, str] = {}
    missing = {"api", "smtp"} & set(roles)

    def listening(role: str, listened: Mapping[str, str]) -> None:
        addresses.update(listened)
        missing.discard(role)
        if not missing:
            ready(addresses)

    listeners: dict[str, Role] = {
        "api": partial(serve_http, ready=lambda url: listening("api", {"http": url})),
        "smtp": partial(serve_smtp, ready=partial(listening, "smtp")),
    }
    if not missing:
        ready(addresses)
    return [listeners[role] for role in roles if role in listeners]


async def worker(context: CommandContext) -> int:
    """Deliver mails until Ctrl-C. Any number of workers can run, on any number of machines.

    \b
    Examples:
      pillarbox worker
      pillarbox worker --database-url postgresql://mail@db.example/mail --concurrency 20
      pillarbox worker --http 127.0.0.1:9100     with /metrics, /healthz and /readyz
    """
    # A worker listens only with --http.
    with_http = context.settings.sources.get("http") == "flag"
    _check_ports(context.settings, http=with_http, smtp=False)
    roles: list[Role] = [work, tend]
    if with_http:
        roles.append(serve_http)
    return await stay(context.settings, lambda app: roles)


async def stay(settings: Settings, roles: Callable[[App], list[Role]]) -> int:
    """Run roles until a signal, on a database that may become available later."""
    logs.catch_uncaught()
    stop, running = asyncio.Event(), False
    try:
        with stopping(stop):
            async with open_app(settings, patient=stop, owns_process=True) as app:
                await patiently(partial(ensure_provider, app, development=False), stop)
                running = True
                await run_together(app, stop, *roles(app))
    except asyncio.CancelledError:
        return INTERRUPTED
    except StoreError:
        if running or not stop.is_set():  # otherwise it was stopped before the database was there
            raise
    output.note("stopped")
    return 0


@contextmanager
def _sole(directory: Path, embedded: bool) -> Iterator[None]:
    """Hold a lock: the process that runs the embedded database also stops it."""
    if not embedded:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / "up.lock", "w")  # noqa: SIM115 -- closing it below unlocks it
    except OSError as error:
        raise SettingsError(
            f"{directory} cannot be used: {error.strerror}. Choose another with --data DIR"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotPossible(
                f"another `pillarbox up` uses {directory}: choose another directory with --data DIR"
            ) from None
        yield
