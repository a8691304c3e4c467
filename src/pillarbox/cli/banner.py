"""What `up` and `serve` say when they are ready."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from pillarbox.app import App
from pillarbox.cli import output
from pillarbox.model.provider_kinds import kind_of
from pillarbox.settings import DEFAULTS, Settings
from pillarbox.store.opening import embedded_data, shown_url

if TYPE_CHECKING:
    from pillarbox.cli.demo import Demo
    from pillarbox.model.provider import Provider

KEYLESS = (
    "every process on this machine, a proxy included, has full access without a key (--require-key)"
)
LISTENERS = {
    "smtp": "any login or none",
    "smtp_starttls": "STARTTLS, any login or none",
    "smtp_submission": "STARTTLS and login",
    "smtp_tls": "TLS and login",
}


def told(app: App, roles: Sequence[str], places: Mapping[str, str]) -> None:
    """What a process of `serve` says when it is ready."""
    output.say(
        Text(f"Pillarbox {version('pillarbox')} serves: {', '.join(roles)}", style="bold green")
    )
    output.pairs([*_shown(places), ("database", shown_url(app.settings)), ("stop", "Ctrl-C")])


def _shown(places: Mapping[str, str]) -> list[tuple[str, object]]:
    return [
        (name, f"{where} ({LISTENERS[name]})" if name in LISTENERS else where)
        for name, where in places.items()
    ]


def banner(
    app: App, found: list[Provider], key: Path | None, demo: Demo | None, places: Mapping[str, str]
) -> None:
    """Where things are, and what to do first."""
    if demo:
        demo.begin(places["http"])
    settings = app.settings
    embedded = settings.database_url is None
    output.say(Text(f"Pillarbox {version('pillarbox')} is up", style="bold green"))
    again = [] if settings.data_dir == DEFAULTS["data_dir"] else ["--data", str(settings.data_dir)]
    send = [
        *_program(),
        "send",
        *(again if embedded else ()),
        "--from",
        "me@example.com",
        "--to",
        "you@example.com",
        "--wait",
    ]
    read = [*_program(), "captured", "list", *(again if embedded else ())]
    using = next((one for one in found if one.enabled), None)
    output.pairs(
        [
            *_shown(places),
            ("database", shown_url(settings)),
            ("data", _data(settings) if embedded else None),
            ("smtp ca", _ca_file(settings)),
            ("access", KEYLESS if app.keyless else None),
            ("key", f"in {key}" if key else None),
            ("provider", _describe(using)),
            ("demo", demo.described() if demo else None),
            ("worker", _worker(settings)),
            ("try it", shlex.join(send)),
            ("then", shlex.join(read) if using and not kind_of(using.kind).sends_out else None),
            ("stop", "Ctrl-C"),
        ]
    )


def _data(settings: Settings) -> str:
    directory, postgres = settings.data_dir.resolve(), embedded_data(settings)
    return (
        str(directory)
        if postgres.parent == directory
        else f"{directory}, and PostgreSQL's in {postgres}"
    )


def _program() -> list[str]:
    """How to call this program from here: it may stand in a virtual environment that is not on the path."""
    if shutil.which("pillarbox"):
        return ["pillarbox"]
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return [os.path.relpath(program)]
    python = Path(sys.executable)
    here = python.is_relative_to(Path.cwd())
    return [os.path.relpath(python) if here else str(python), "-m", "pillarbox"]


def _ca_file(settings: Settings) -> str | None:
    """What clients of smtp_starttls have to trust, where the certificate is one that we made."""
    if "smtp_starttls" not in settings.smtp_addresses or settings.smtp_certificate is not None:
        return None
    from pillarbox.accept.smtp import development_certificate  # only here: it takes long to import

    return str(development_certificate.paths_in(settings.data_dir).ca.resolve())


def _describe(provider: Provider | None) -> str:
    if provider is None:
        return "none: mails wait. Add one with `pillarbox provider add`"
    kind = kind_of(provider.kind)
    if not kind.sends_out:
        return f"{provider.name} (keeps mails for reading, sends nothing out)"
    words = [provider.kind, kind.server(provider.settings)]
    return f"{provider.name} ({', '.join(filter(None, words))})"


def _worker(settings: Settings) -> str:
    if not settings.worker_enabled:
        return "off in this process (worker_enabled)"
    return f"{output.counted(settings.worker_concurrency, 'connection')} per provider"
