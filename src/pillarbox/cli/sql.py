"""`sql`: PostgreSQL's own shell on the database in use, without looking for a URL, a password or psql."""

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
    typer.Argument(metavar="[STATEMENT]", help="SQL to carry out; read from stdin unless given."),
]
ShowUrl = Annotated[
    bool,
    typer.Option(
        "--url", help="Print the URL of the embedded database for other programs, and end."
    ),
]


async def sql(context: CommandContext, statement: Statement = None, url: ShowUrl = False) -> None:
    """Talk SQL with the database in use: a statement, a script on stdin, or a session on a terminal.

    It is psql, which comes with Pillarbox. A script ends at its first error, with exit code 3.

    \b
    Examples:
      pillarbox sql "SELECT state, count(*) FROM pillarbox.deliveries GROUP BY state"
      pillarbox sql < script.sql
      pillarbox sql
      export DB="$(pillarbox sql --url)"     for psycopg, asyncpg, psql and the like
    """
    place = running_url(context.settings)
    if url:
        if context.settings.database_url is not None:
            raise NotPossible(
                "the URL is the one that you gave as database_url: it is not printed, for its password"
            )
        print(place)
        return
    place, password = _without_password(place)
    options = [
        "--pset=pager=off",
        *(() if sys.stdin.isatty() and statement is None else ("-v", "ON_ERROR_STOP=1")),
    ]
    arguments = [
        str(_psql()),
        *options,
        "-d",
        place,
        *(("-c", statement) if statement is not None else ()),
    ]
    sys.stdout.flush()
    os.execve(arguments[0], arguments, os.environ | ({"PGPASSWORD": password} if password else {}))  # noqa: S606


def _psql() -> Path:
    try:
        return bundled_binaries() / "psql"
    except SettingsError:  # without the extra `embedded`
        found = shutil.which("psql")
        if found is None:
            raise NotPossible("there is no psql: install PostgreSQL's client programs") from None
        return Path(found)


def _without_password(url: str) -> tuple[str, str | None]:
    """A URL that everybody may see in the list of processes, and the password that was in it."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    query = parse_qsl(parts.query)
    hidden = unquote(password) or dict(query).get("password")
    shown = urlencode([(name, value) for name, value in query if name != "password"])
    return f"{parts.scheme}://{user}{at}{host}{parts.path}?{shown}", hidden
