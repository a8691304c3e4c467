"""The start messages of `up` and `serve`."""

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
Rows = list[tuple[str, object]]
LISTENERS = {
    "smtp": "any login or none",
    "smtp_starttls": "STARTTLS, any login or none",
    "smtp_submission": "STARTTLS and login",
    "smtp_tls": "TLS and login",
}


def print_roles(app: App, roles: Sequence[str], addresses: Mapping[str, str]) -> None:
    """Print the start message of `serve`."""
    output.say(
        Text(f"Pillarbox {version('pillarbox')} serves: {', '.join(roles)}", style="bold green")
    )
    output.pairs(
        [
            *_describe_addresses(addresses),
            ("database", shown_url(app.settings)),
            ("stop", "Ctrl-C"),
        ]
    )


def _describe_addresses(addresses: Mapping[str, str]) -> Rows:
    rows: Rows = []
    for name, address in addresses.items():
        if name in LISTENERS:
            address = f"{address} ({LISTENERS[name]})"
        rows.append((name, address))
    return rows


def print_banner(
    app: App,
    providers: Sequence[Provider],
    key: Path | None,
    demo: Demo | None,
    addresses: Mapping[str, str],
) -> None:
    """Print the start message of `up`: addresses, settings, and commands to try."""
    settings = app.settings
    output.say(Text(f"Pillarbox {version('pillarbox')} is up", style="bold green"))
    rows = _describe_addresses(addresses)
    rows.append(("database", shown_url(settings)))
    if settings.database_url is None:
        rows.append(("data", _data(settings)))
    rows.append(("smtp ca", _ca_file(settings)))
    if app.keyless:
        rows.append(("access", KEYLESS))
    if key:
        rows.append(("key", f"in {key}"))
    provider = next((provider for provider in providers if provider.enabled), None)
    rows.append(("provider", _describe_provider(provider)))
    if demo:
        demo.begin(addresses["http"])
        rows.append(("demo", demo.described()))
    rows.append(("worker", _worker(settings)))
    send = ["--from", "me@example.com", "--to", "you@example.com", "--wait"]
    rows.append(("try it", _command_line(settings, "send", *send)))
    if provider and not kind_of(provider.kind).sends_out:
        rows.append(("then", _command_line(settings, "captured", "list")))
    rows.append(("stop", "Ctrl-C"))
    output.pairs(rows)


def _command_line(settings: Settings, command: str, *arguments: str) -> str:
    """A command line for the data directory in use."""
    data: list[str] = []
    if settings.database_url is None and settings.data_dir != DEFAULTS["data_dir"]:
        data = ["--data", str(settings.data_dir)]
    if command == "captured":
        return shlex.join([*_program(), command, *arguments, *data])
    return shlex.join([*_program(), command, *data, *arguments])


def _data(settings: Settings) -> str:
    directory = settings.data_dir.resolve()
    postgres = embedded_data(settings)
    if postgres.parent == directory:
        return str(directory)
    return f"{directory}, and PostgreSQL's in {postgres}"


def _program() -> list[str]:
    """The command that runs this program; its virtual environment may not be on the path."""
    if shutil.which("pillarbox"):
        return ["pillarbox"]
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return [os.path.relpath(program)]
    python = sys.executable
    if Path(python).is_relative_to(Path.cwd()):
        python = os.path.relpath(python)
    return [python, "-m", "pillarbox"]


def _ca_file(settings: Settings) -> str | None:
    """The CA file for clients of smtp_starttls, if Pillarbox made the certificate."""
    if "smtp_starttls" not in settings.smtp_addresses or settings.smtp_certificate is not None:
        return None
    from pillarbox.accept.smtp import development_certificate  # only here: it takes long to import

    return str(development_certificate.paths_in(settings.data_dir).ca.resolve())


def _describe_provider(provider: Provider | None) -> str:
    if provider is None:
        return "none: mails wait. Add one with `pillarbox provider add`"
    kind = kind_of(provider.kind)
    if not kind.sends_out:
        return f"{provider.name} (captures mails, sends nothing)"
    words = [provider.kind, kind.server(provider.settings)]
    return f"{provider.name} ({', '.join(filter(None, words))})"


def _worker(settings: Settings) -> str:
    if not settings.worker_enabled:
        return "off in this process (worker_enabled)"
    return f"{output.counted(settings.worker_concurrency, 'connection')} per provider"
