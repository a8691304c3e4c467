"""`migrate` and `grant`: preparing a database."""

from __future__ import annotations

from typing import Annotated

import typer

from pillarbox.cli import output
from pillarbox.cli.command import Given, command
from pillarbox.store import catalog
from pillarbox.store.migrations import migrate as apply
from pillarbox.store.opening import open_database


def register(root: typer.Typer) -> None:
    command(root, "migrate")(migrate)
    command(root, "grant")(grant)


async def migrate(given: Given) -> None:
    """Bring the database's schema up to date. Safe to run at any time, and by several at once.

    \b
    Examples:
      pillarbox migrate --database-url postgresql://mail@db.example/mail
      pillarbox migrate --json
    """
    async with open_database(given.settings) as database, database.connection() as connection:
        applied = await apply(connection)
    if given.json:
        output.print_json([{"version": one.version, "name": one.name} for one in applied])
        return
    for one in applied:
        output.say(f"applied {one.version:04d} {one.name}")
    if not applied:
        output.say("the schema is up to date")


async def grant(
    given: Given,
    app: Annotated[str, typer.Option("--app", metavar="ROLE", help="The role your application connects as.")],
) -> None:
    """Let an application's role enqueue mails, and nothing else: it can read no message and no provider.

    \b
    Example:
      pillarbox grant --app shop
    """
    async with given.app() as opened:
        statements = await catalog.grant(opened.database, app)
    if given.json:
        output.print_json(statements)
        return
    for statement in statements:
        output.say(output.clean(statement))
