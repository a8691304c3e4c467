"""`sql`: runs psql on the database in use."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import typer

from pillarbox.cli.command import CommandContext, command
from pillarbox.errors import NotPossible, SettingsError
from pillarbox.store.embedded import bundled_binaries
from pillarbox.store.opening import running_url


def register(root: typer.Typer) -> None:
    command(root, "sql", json=False)(sql)


Statement = Annotated[
    str | None,
    typer.Argument(metavar="[STATEMENT]", help="SQL to run; read from stdin by default."),
]
ShowUrl = Annotated[
    bool,
    typer.Option(
        "--url", help="Print the URL of the embedded database for other programs, and exit."
    ),
]


async def sql(context: CommandContext, statement: Statement = None, url: ShowUrl = False) -> None:
    """Run SQL on the database in use: a statement, a script on stdin, or a session on a terminal.

    It runs psql, which comes with Pillarbox. A script ends at its first error, with exit code 3.

    \b
    Examples:
      pillarbox sql "SELECT state, count(*) FROM pillarbox.deliveries GROUP BY state"
      pillarbox sql < script.sql
      pillarbox sql
      export DB="$(pillarbox sql --url)"     for psycopg, asyncpg, psql and the like
    """
    database_url = running_url(context.settings)
    if url:
        if context.settings.database_url is not None:
            raise NotPossible(
                "the URL is the setting database_url: it is not printed because of its password"
            )
        print(database_url)
        return
    database_url, password = _without_password(database_url)
    arguments = [str(_psql()), "--pset=pager=off"]
    is_session = sys.stdin.isatty() and statement is None
    if not is_session:
        arguments += ["-v", "ON_ERROR_STOP=1"]
    arguments += ["-d", database_url]
    if statement is not None:
        arguments += ["-c", statement]
    environment = dict(os.environ)
    if password:
        environment["PGPASSWORD"] = password
    sys.stdout.flush()
    os.execve(arguments[0], arguments, environment)  # noqa: S606


def _psql() -> Path:
    try:
        return bundled_binaries() / "psql"
    except SettingsError:  # without the extra `embedded`
        found = shutil.which("psql")
        if found is None:
            raise NotPossible("psql is missing: install PostgreSQL's client programs") from None
        return Path(found)


def _without_password(url: str) -> tuple[str, str | None]:
    """The URL without its password, because all users see the process list; and the password."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    query = parse_qsl(parts.query)
    hidden = unquote(password) or dict(query).get("password")
    shown = urlencode([(name, value) for name, value in query if name != "password"])
    return f"{parts.scheme}://{user}{at}{host}{parts.path}?{shown}", hidden
