"""`provider add`: a new account. A password never stands on the command line, where others can read it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pillarbox.cli import provider_http
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.provider_options import (
    Name,
    ReleaseOnly,
    Retry,
    add,
    limit,
    positive,
    without_none,
)
from pillarbox.cli.secret_input import is_given, read_secret
from pillarbox.model.provider import Tls
from pillarbox.setting_kinds import HOST

IMPLICIT_PORT = 465  # RFC 8314


def _host(value: str) -> str:
    try:
        return str(HOST.read(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r}: must be {HOST.allowed}") from None


def register(group: typer.Typer) -> None:
    adding = typer.Typer(help="Add a provider.", no_args_is_help=True)
    command(adding, "smtp")(add_smtp)
    command(adding, "capture")(add_capture)
    provider_http.register(adding, group)
    group.add_typer(adding, name="add")


async def add_smtp(
    context: CommandContext,
    name: Name,
    host: Annotated[
        str, typer.Option("--host", parser=_host, metavar="HOST", help="The SMTP server.")
    ],
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
    tls: Annotated[
        Tls, typer.Option("--tls", help="How the connection is protected.")
    ] = Tls.STARTTLS,
    username: Annotated[
        str | None, typer.Option("--username", metavar="NAME", help="To log in with.")
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from stdin.")
    ] = False,
    password_env: Annotated[
        str | None,
        typer.Option("--password-env", metavar="VAR", help="Read the password from this variable."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Send the password without TLS; only for a network you trust."
        ),
    ] = False,
    retry: Retry = None,
    release_only: ReleaseOnly = False,
    ca_file: Annotated[
        str | None,
        typer.Option(
            "--ca-file", metavar="FILE", help="Trust this CA, too: for servers with a private one."
        ),
    ] = None,
    helo: Annotated[
        str | None,
        typer.Option(
            "--helo", metavar="NAME", help="Our name in EHLO; this machine's when not given."
        ),
    ] = None,
    connections: Annotated[
        int | None,
        limit(
            "--connections", "Most connections; worker_concurrency when not given.", min=1, max=1000
        ),
    ] = None,
    connect_timeout: Annotated[
        float | None,
        limit(
            "--connect-timeout",
            "For connecting and logging in (30s).",
            parser=positive,
            metavar="TIME",
        ),
    ] = None,
    command_timeout: Annotated[
        float | None,
        limit("--command-timeout", "For each answer (30s).", parser=positive, metavar="TIME"),
    ] = None,
    data_timeout: Annotated[
        float | None,
        limit(
            "--data-timeout",
            "For the answer to a whole mail (10m).",
            parser=positive,
            metavar="TIME",
        ),
    ] = None,
    max_messages: Annotated[
        int | None, limit("--max-messages", "Mails per connection (1000).", min=1, max=1_000_000)
    ] = None,
    max_age: Annotated[
        float | None,
        limit("--max-age", "Age of a connection (5m).", parser=positive, metavar="TIME"),
    ] = None,
    max_idle: Annotated[
        float | None,
        limit("--max-idle", "Idle time of a connection (30s).", parser=positive, metavar="TIME"),
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
    password = (
        read_secret("password", "password", password_stdin, password_env, of=username)
        if username
        else None
    )
    settings = {
        "host": host, "port": port or (IMPLICIT_PORT if tls is Tls.IMPLICIT else None), "tls": tls,
        "username": username, "ca_file": _readable(ca_file), "helo": helo, "connections": connections,
        "connect_timeout": connect_timeout, "command_timeout": command_timeout, "data_timeout": data_timeout,
        "max_messages": max_messages, "max_age": max_age, "max_idle": max_idle,
    }  # fmt: skip
    await add(
        context, name, "smtp", without_none(settings), password, retry, release_only=release_only
    )


async def add_capture(context: CommandContext, name: Name, retry: Retry = None) -> None:
    """Add a provider that keeps mails for reading and sends nothing out.

    \b
    Example:
      pillarbox provider add capture dev
    """
    await add(context, name, "capture", {}, None, retry)


def _readable(file: str | None) -> str | None:
    """The whole path of a file, which workers will read from other directories."""
    if file is None:
        return None
    if not os.access(file, os.R_OK):
        raise typer.BadParameter(f"--ca-file {file} cannot be read")
    return os.path.abspath(file)


def _check(tls: Tls, username: str | None, stdin: bool, env: str | None, insecure: bool) -> None:
    if is_given("password", stdin, env) and username is None:
        raise typer.BadParameter("a password needs a --username")
    if tls is Tls.NONE and username is not None and not insecure:
        raise typer.BadParameter(
            "--tls none would send the password in clear: use TLS, or add --insecure"
        )
