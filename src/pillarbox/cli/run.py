"""`up` and `worker`: the commands that stay."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from pillarbox.api.server import serve_http
from pillarbox.app import App, Role, ensure_provider, open_app, place_of, serve, tend, work
from pillarbox.cli import output
from pillarbox.cli.command import CONCURRENCY, HTTP, INTERRUPTED, Given, command
from pillarbox.cli.signals import foreground, stopping
from pillarbox.errors import NotPossible, SettingsError, StoreError
from pillarbox.settings import DEFAULTS, Settings
from pillarbox.store import providers
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    import typer

    from pillarbox.model.provider import Provider


def register(root: typer.Typer) -> None:
    command(root, "up", HTTP, CONCURRENCY, json=False)(up)
    command(root, "worker", HTTP, CONCURRENCY, json=False)(worker)


async def up(given: Given) -> int:
    """Start everything: database, HTTP and a worker, until Ctrl-C.

    Without a database URL it runs a PostgreSQL of its own, kept in the data directory; with one it uses
    that. Either way the schema is brought up to date. Ctrl-C finishes what is in flight and exits; what
    still waits is there next time.

    \b
    Examples:
      pillarbox up
      pillarbox up --data /tmp/second --http 127.0.0.1:8026
      PILLARBOX_DATABASE_URL=postgresql://mail@db.example/mail pillarbox up
    """
    logs.catch_uncaught()
    settings = given.settings
    embedded = settings.database_url is None
    stop = asyncio.Event()
    try:
        with foreground(), stopping(stop), _sole(settings.data_dir, embedded):
            if embedded:
                output.note(f"starting PostgreSQL in {settings.data_dir / 'postgres'}")
            async with open_app(settings, start=embedded, migrating=True, patient=None if embedded else stop) as app:
                await ensure_provider(app, development=embedded)
                found = await providers.list_providers(app.database)
                roles: list[Role] = [partial(serve_http, ready=partial(_banner, app, found)), tend]
                if settings.worker_enabled:
                    roles.append(work)
                await serve(app, stop, *roles)
    except asyncio.CancelledError:
        return INTERRUPTED
    except StoreError:
        if not stop.is_set():  # Ctrl-C while PostgreSQL was being made reaches its programs, too
            raise
    output.note("stopped")
    return 0


async def worker(given: Given) -> int:
    """Deliver mail until Ctrl-C: one process, as many as you like on as many machines as you like.

    \b
    Examples:
      pillarbox worker
      pillarbox worker --database-url postgresql://mail@db.example/mail --concurrency 20
      pillarbox worker --http 127.0.0.1:9100     with /metrics, /healthz and /readyz
    """
    logs.catch_uncaught()
    stop = asyncio.Event()
    try:
        with stopping(stop):
            async with open_app(given.settings, patient=stop) as app:
                await ensure_provider(app, development=False)
                roles: list[Role] = [work, tend]
                if given.settings.sources.get("http") == "flag":  # a worker needs no port unless asked for
                    roles.append(serve_http)
                await serve(app, stop, *roles)
    except asyncio.CancelledError:
        return INTERRUPTED
    except StoreError:
        if not stop.is_set():  # stopped while it waited for the database
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
        raise SettingsError(f"{directory} cannot be used: {error.strerror}. Choose another with --data DIR") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotPossible(
                f"another `pillarbox up` uses {directory}: choose another directory with --data DIR"
            ) from None
        yield


def _banner(app: App, found: list[Provider], url: str) -> None:
    """Where things are, and what to do first."""
    settings = app.settings
    embedded = settings.database_url is None
    output.say(Text(f"Pillarbox {version('pillarbox')} is up", style="bold green"))
    again = [] if settings.data_dir == DEFAULTS["data_dir"] else ["--data", str(settings.data_dir)]
    send = [
        _program(),
        "send",
        *(again if embedded else ()),
        "--from",
        "me@example.com",
        "--to",
        "you@example.com",
        "--wait",
    ]
    read = [_program(), "captured", "list", *(again if embedded else ())]
    using = next((one for one in found if one.enabled), None)
    output.pairs(
        [
            ("http", url),
            ("database", place_of(settings)),
            ("data", str(settings.data_dir.resolve()) if embedded else None),
            ("provider", _describe(using)),
            ("worker", _worker(settings)),
            ("try it", shlex.join(send)),
            ("then", shlex.join(read) if using and using.kind == "capture" else None),
            ("stop", "Ctrl-C"),
        ]
    )


def _program() -> str:
    """How to call this program from here: it may stand in a virtual environment that is not on the path."""
    return "pillarbox" if shutil.which("pillarbox") else os.path.relpath(sys.argv[0])


def _describe(provider: Provider | None) -> str:
    if provider is None:
        return "none: mails wait. Add one with `pillarbox provider add`"
    if provider.kind == "capture":
        return f"{provider.name} (keeps mails for reading, sends nothing out)"
    return f"{provider.name} ({provider.kind}, {provider.settings.get('host')})"


def _worker(settings: Settings) -> str:
    if not settings.worker_enabled:
        return "off in this process (worker_enabled)"
    return f"{settings.worker_concurrency} connections per provider"
