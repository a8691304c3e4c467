"""`up`, `serve` and `worker`: the commands that stay."""

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
from pillarbox.cli.banner import banner, told
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
    command(root, "up", HTTP, *SMTP, STARTTLS, CONCURRENCY, TEMPLATE_DIRS, json=False)(up)
    command(root, "serve", HTTP, *SMTP, CONCURRENCY, TEMPLATE_DIRS, json=False)(serve)
    command(root, "worker", HTTP, CONCURRENCY, json=False)(worker)


WithDemo = Annotated[
    bool,
    typer.Option(
        "--demo",
        help="Send made-up mails through twins of SendGrid, SES and Mailgun on this machine.",
    ),
]


RequireKey = Annotated[
    bool,
    typer.Option(
        "--require-key",
        help="Ask every client for a key, those on this machine, too; without SMTP on port 1025.",
    ),
]
CaptureAll = Annotated[
    bool,
    typer.Option(
        "--capture-all", help="Keep every mail for reading; send nothing out, whatever routes say."
    ),
]


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Log a line per mail; unless given, a summary every ten seconds."
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

    Without a database URL it runs a PostgreSQL of its own, kept in the data directory; with one it
    uses that. Either way the schema is brought up to date. Ctrl-C finishes what is in flight and
    exits; what still waits is there next time.

    With its own PostgreSQL every process on this machine has full access to the HTTP API without a
    key, and hands mail over by SMTP on 127.0.0.1:1025, without TLS and with any login or none. To
    Pillarbox a proxy on this machine is such a process, and so is everybody who comes through it:
    use --require-key before you put one in front, or `serve`.

    While no other provider was ever configured, mails are captured for reading. From then on they
    leave, or wait visibly while none can be used; --capture-all captures them all the same, in this
    process.

    --demo also starts servers that behave like SendGrid, Amazon SES and Mailgun, and sends a mail through them
    every two seconds; some bounce, some are complained about. Nothing leaves the machine, and all of it ends with
    Ctrl-C.

    \b
    Examples:
      pillarbox up
      pillarbox up --capture-all
      pillarbox up --demo --data /tmp/demo
      pillarbox up --require-key
      pillarbox up --smtp-starttls 2525     for applications that insist on STARTTLS
      pillarbox up --data /tmp/second --http 127.0.0.1:8026 --smtp 127.0.0.1:1026
      PILLARBOX_DATABASE_URL=postgresql://mail@db.example/mail pillarbox up
    """
    logs.catch_uncaught()
    settings = context.settings
    embedded = settings.database_url is None
    if demo and not embedded:
        raise SettingsError(
            "--demo runs with Pillarbox's own PostgreSQL only: leave out --database-url"
        )
    if demo and capture_all:
        raise typer.BadParameter("give --demo or --capture-all, not both")
    keyless = settings.is_development and not require_key
    if embedded and keyless and settings.smtp is None:
        settings = replace(settings, smtp=DEVELOPMENT_SMTP)
    logs.summarise_mails(not verbose)
    stop, running = asyncio.Event(), False
    try:
        with foreground(), stopping(stop), _sole(settings.data_dir, embedded):
            _check_ports(settings)
            if embedded:
                output.note(f"starting PostgreSQL in {settings.data_dir / 'postgres'}")
            patient = None if embedded else stop
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
        if (
            running or not stop.is_set()
        ):  # else Ctrl-C while PostgreSQL was being made reached its programs, too
            raise
    output.note("stopped")
    return 0


async def _run_all(app: App, stop: asyncio.Event, demo: bool) -> None:
    """All roles of `up`, on a database that is ready."""
    from pillarbox.cli.demo import (
        demonstration,
    )  # only here: it brings servers that no other command needs

    settings = app.settings
    await patiently(partial(ensure_provider, app, development=settings.is_development), stop)
    key = await patiently(partial(ensure_development_key, app), stop)
    async with demonstration(app, wanted=demo) as shown:
        book = await app.load_providers()
        found = [one for one in book.providers if book.captures or kind_of(one.kind).sends_out]
        roles = ["api", *(["smtp"] if settings.smtp_addresses else [])]
        doors = _doors(roles, partial(banner, app, found, key, shown))
        more = [
            *([work] if settings.worker_enabled else []),
            *([collect] if has_keys(settings) else []),
        ]
        more += [shown.run] if shown else []
        more += [_keep_postgres_running] if settings.database_url is None else []
        summary = MailSummary(app.metrics)
        more.append(
            lambda app, stop: app.supervisor.run_every(
                "summary", CHECK_INTERVAL, summary.check, stop
            )
        )
        try:
            await run_together(app, stop, *doors, tend, *more)
        finally:
            summary.write()


def _check_ports(settings: Settings, *, http: bool = True, smtp: bool = True) -> None:
    """Report ports in use before anything starts."""
    check_free(
        ({"http": settings.http_address} if http else {})
        | (settings.smtp_addresses if smtp else {})
    )


async def _keep_postgres_running(app: App, stop: asyncio.Event) -> None:
    await keep_embedded_running(app.settings, app.supervisor, stop)


Roles = Annotated[
    str | None,
    typer.Option(
        "--roles",
        metavar="ROLES",
        show_default=False,
        help="Some of api, smtp, worker and collector, separated by commas; all that are configured unless given.",
    ),
]


async def serve(context: CommandContext, roles: Roles = None) -> int:
    """Run a process of a production installation until Ctrl-C, on a database that was prepared with `migrate`.

    Roles are `api` (HTTP), `smtp` (where smtp_submission, smtp_tls or smtp say), `worker`
    (delivering, and the chores of the database) and `collector` (mails of accounts, where
    lifecycle_keys are set and the schema is installed). Any number of processes may have any of
    them.

    \b
    Examples:
      pillarbox serve
      pillarbox serve --roles api,smtp --http 0.0.0.0:8025 --smtp-submission 0.0.0.0:587
      pillarbox serve --roles worker --concurrency 20
    """
    chosen = _chosen(context.settings, roles)
    _check_ports(context.settings, http="api" in chosen, smtp="smtp" in chosen)

    def all_roles(app: App) -> list[Role]:
        doors = _doors(chosen, partial(told, app, chosen))
        return [
            *doors,
            *([work, tend] if "worker" in chosen else []),
            *([collect] if "collector" in chosen else []),
        ]

    return await stay(context.settings, all_roles)


def _chosen(settings: Settings, roles: str | None) -> list[str]:
    """The roles of a process: those asked for, or all that the settings allow."""
    able = {"api": True, "smtp": bool(settings.smtp_addresses), "worker": settings.worker_enabled,
            "collector": has_keys(settings)}  # fmt: skip
    if roles is None:
        return [role for role in ROLES if able[role]]
    words = {word.strip() for word in roles.split(",")}
    if not words <= set(ROLES):
        raise typer.BadParameter(f"{roles!r}: give some of {', '.join(ROLES)}, separated by commas")
    if "smtp" in words and not able["smtp"]:
        raise SettingsError(
            "there is nowhere to listen for SMTP: give --smtp-submission or --smtp-tls HOST:PORT"
        )
    return [role for role in ROLES if role in words]


def _doors(roles: Sequence[str], ready: Callable[[dict[str, str]], None]) -> list[Role]:
    """The roles that listen; once all of them do, `ready` gets where."""
    places: dict[str, str] = {}
    wanted = {"api", "smtp"} & set(roles)

    def listening(role: str, where: Mapping[str, str]) -> None:
        places.update(where)
        wanted.discard(role)
        if not wanted:
            ready(places)

    doors: dict[str, Role] = {
        "api": partial(serve_http, ready=lambda url: listening("api", {"http": url})),
        "smtp": partial(serve_smtp, ready=partial(listening, "smtp")),
    }
    if not wanted:
        ready(places)
    return [doors[role] for role in roles if role in doors]


async def worker(context: CommandContext) -> int:
    """Deliver mail until Ctrl-C: one process, as many as you like on as many machines as you like.

    \b
    Examples:
      pillarbox worker
      pillarbox worker --database-url postgresql://mail@db.example/mail --concurrency 20
      pillarbox worker --http 127.0.0.1:9100     with /metrics, /healthz and /readyz
    """

    with_http = (
        context.settings.sources.get("http") == "flag"
    )  # a worker needs no port unless asked for
    _check_ports(context.settings, http=with_http, smtp=False)

    def roles(app: App) -> list[Role]:
        return [work, tend, *([serve_http] if with_http else [])]

    return await stay(context.settings, roles)


async def stay(settings: Settings, roles: Callable[[App], list[Role]]) -> int:
    """Run roles on an existing database, which may come later, until a signal."""
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
        if running or not stop.is_set():  # else it was stopped while it waited for the database
            raise
    output.note("stopped")
    return 0


@contextmanager
def _sole(directory: Path, embedded: bool) -> Iterator[None]:
    """Whoever runs the embedded database also stops it, so there can be only one at a time."""
    if not embedded:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / "up.lock", "w")  # noqa: SIM115 -- closed below, which also unlocks it
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
