"""`provider add`: a new account. A password never stands on the command line, where others can read it."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Annotated, Any

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import Given, command
from pillarbox.errors import SecretError
from pillarbox.model.provider import Tls
from pillarbox.model.retry import POLICIES
from pillarbox.model.secret import Secret
from pillarbox.setting_kinds import HOST
from pillarbox.store import providers

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME", help="What to call it.")]
IMPLICIT_PORT = 465  # RFC 8314


def _policy(value: str) -> str:
    if value not in POLICIES:
        raise typer.BadParameter(f"{value!r}: must be one of {', '.join(POLICIES)}")
    return value


def _host(value: str) -> str:
    try:
        return str(HOST.read(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r}: must be {HOST.allowed}") from None


def _positive(value: str) -> float:
    if (found := options.seconds(value)) <= 0:
        raise typer.BadParameter(f"{value!r}: must be more than nothing")
    return found


Retry = Annotated[
    str | None,
    typer.Option("--retry", metavar="POLICY", parser=_policy, help="quadratic (default), esp or lifecycle."),
]


def _limit(flag: str, help: str, **more: Any) -> Any:
    return typer.Option(flag, help=help, rich_help_panel="Limits", show_default=False, **more)


def register(group: typer.Typer) -> None:
    adding = typer.Typer(help="Add a provider.", no_args_is_help=True)
    command(adding, "smtp")(add_smtp)
    command(adding, "capture")(add_capture)
    group.add_typer(adding, name="add")


async def add_smtp(
    given: Given,
    name: Name,
    host: Annotated[str, typer.Option("--host", parser=_host, metavar="HOST", help="The SMTP server.")],
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            metavar="PORT",
            help="587, or 465 with --tls implicit.",
            show_default=False,
        ),
    ] = None,
    tls: Annotated[Tls, typer.Option("--tls", help="How the connection is protected.")] = Tls.STARTTLS,
    username: Annotated[str | None, typer.Option("--username", metavar="NAME", help="To log in with.")] = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    password_env: Annotated[
        str | None,
        typer.Option("--password-env", metavar="VAR", help="Read the password from this variable."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the password without TLS; only for a network you trust.")
    ] = False,
    retry: Retry = None,
    ca_file: Annotated[
        str | None,
        typer.Option("--ca-file", metavar="FILE", help="Trust this CA, too: for servers with a private one."),
    ] = None,
    helo: Annotated[
        str | None,
        typer.Option("--helo", metavar="NAME", help="Our name in EHLO; this machine's when not given."),
    ] = None,
    connections: Annotated[
        int | None,
        _limit("--connections", "Most connections; worker_concurrency when not given.", min=1, max=1000),
    ] = None,
    connect_timeout: Annotated[
        float | None,
        _limit("--connect-timeout", "For connecting and logging in (30s).", parser=_positive, metavar="TIME"),
    ] = None,
    command_timeout: Annotated[
        float | None, _limit("--command-timeout", "For each answer (30s).", parser=_positive, metavar="TIME")
    ] = None,
    data_timeout: Annotated[
        float | None,
        _limit("--data-timeout", "For the answer to a whole mail (10m).", parser=_positive, metavar="TIME"),
    ] = None,
    max_messages: Annotated[
        int | None, _limit("--max-messages", "Mails per connection (1000).", min=1, max=1_000_000)
    ] = None,
    max_age: Annotated[
        float | None, _limit("--max-age", "Age of a connection (5m).", parser=_positive, metavar="TIME")
    ] = None,
    max_idle: Annotated[
        float | None,
        _limit("--max-idle", "Idle time of a connection (30s).", parser=_positive, metavar="TIME"),
    ] = None,
) -> None:
    """Add an SMTP server. The password is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add smtp relay --host smtp.example.com --username me
      pillarbox provider add smtp relay --host smtp.example.com --tls implicit \\
        --username me --password-env SMTP_PW
      pillarbox provider add smtp local --host 127.0.0.1 --port 1025 --tls none
    """
    _check(tls, username, password_stdin, password_env, insecure)
    password = _password(username, password_stdin, password_env)
    given_settings = {
        "host": host, "port": port or (IMPLICIT_PORT if tls is Tls.IMPLICIT else None), "tls": tls,
        "username": username, "ca_file": _readable(ca_file), "helo": helo, "connections": connections,
        "connect_timeout": connect_timeout, "command_timeout": command_timeout, "data_timeout": data_timeout,
        "max_messages": max_messages, "max_age": max_age, "max_idle": max_idle,
    }  # fmt: skip
    settings = {key: value for key, value in given_settings.items() if value is not None}
    await _add(given, name, "smtp", settings, password, retry)


async def add_capture(given: Given, name: Name, retry: Retry = None) -> None:
    """Add a provider that keeps mails for reading and sends nothing out.

    \b
    Example:
      pillarbox provider add capture dev
    """
    await _add(given, name, "capture", {}, None, retry)


async def _add(
    given: Given, name: str, kind: str, settings: dict[str, Any], password: Secret | None, retry: str | None
) -> None:
    async with given.app() as app:
        number = await providers.add_provider(app.database, app.keys, name, kind, settings, password, retry)
    if given.json:
        output.print_json({"id": number, "name": name, "kind": kind})
    else:
        output.say(f"added {kind} provider {name}; try it with `pillarbox provider test {name}`")


def _readable(file: str | None) -> str | None:
    """The whole path of a file, which workers will read from other directories."""
    if file is None:
        return None
    if not os.access(file, os.R_OK):
        raise typer.BadParameter(f"--ca-file {file} cannot be read")
    return os.path.abspath(file)


def _check(tls: Tls, username: str | None, stdin: bool, env: str | None, insecure: bool) -> None:
    if stdin and env:
        raise typer.BadParameter("give --password-stdin or --password-env, not both")
    if (stdin or env) and username is None:
        raise typer.BadParameter("a password needs a --username")
    if tls is Tls.NONE and username is not None and not insecure:
        raise typer.BadParameter("--tls none would send the password in clear: use TLS, or add --insecure")


def _password(username: str | None, stdin: bool, env: str | None) -> Secret | None:
    """The password from where it was said to be; asked for on a terminal."""
    if username is None:
        return None
    if stdin:
        found = sys.stdin.readline().rstrip("\r\n")
    elif env:
        found = os.environ.get(env, "")
    elif sys.stdin.isatty():
        found = getpass.getpass(f"password of {username}: ")
    else:
        raise typer.BadParameter("no password: give --password-stdin or --password-env VAR")
    if not found:
        raise SecretError(f"the password is empty{f': is {env} set?' if env else ''}")
    return Secret(found)
