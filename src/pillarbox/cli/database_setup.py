"""`migrate` and `grant`: preparing a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command, setting
from pillarbox.store import adoption, catalog, lifecycle_schema, lineage
from pillarbox.store.lifecycle import TokenStore
from pillarbox.store.migrations import migrate as apply
from pillarbox.store.opening import open_database

if TYPE_CHECKING:
    from pillarbox.settings import Settings

LIFECYCLE_SCHEMA = setting("lifecycle_schema", "--lifecycle-schema", "NAME")
# The migration since which the makers of keys are on record: what may exceed its maker is told
# once.
PARENTS = "parents"
# What can be installed beside the queue.
PARTS = ("lifecycle",)


def register(root: typer.Typer) -> None:
    command(root, "migrate", LIFECYCLE_SCHEMA)(migrate)
    command(root, "grant", LIFECYCLE_SCHEMA)(grant)


Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="PART", show_default=False, help="Install this, too: lifecycle."
    ),
]


Adopt = Annotated[
    str | None,
    typer.Option(
        "--adopt",
        metavar="SCHEMA",
        show_default=False,
        help="Take over the original collector's tables in this schema.",
    ),
]


async def migrate(context: CommandContext, parts: Parts = None, adopt: Adopt = None) -> None:
    """Bring the database's schema up to date. Safe to run at any time, and by several at once.

    With `--with lifecycle` it also makes the schema of accounts and tokens, from which activation,
    recovery and the other mails of an account's life leave. Once that is there, it is brought up to
    date without being named.

    With `--adopt SCHEMA` the tables of the original collector (tetsuo/mailroom) in that schema
    become the tables of accounts and tokens, where they are and with all their rows. Stop that
    collector first: the tables are locked meanwhile.

    \b
    Examples:
      pillarbox migrate --database-url postgresql://mail@db.example/mail
      pillarbox migrate --with lifecycle
      pillarbox migrate --with lifecycle --lifecycle-schema people
      pillarbox migrate --with lifecycle --adopt public
      pillarbox migrate --json
    """
    schema = (
        _adopted(context.settings, parts, adopt) if adopt else context.settings.lifecycle_schema
    )
    for part in parts or []:
        if part not in PARTS:
            raise typer.BadParameter(
                f"{part!r}: give one of {', '.join(PARTS)}", param_hint="--with"
            )
    lifecycle = lifecycle_schema.install if parts else lifecycle_schema.upgrade_if_installed
    if adopt:
        lifecycle = adoption.adopt
    lifecycle_schema.quoted(schema)  # a name that cannot be leaves nothing half done
    async with open_database(context.settings) as database, database.connection() as connection:
        applied = [("pillarbox", one) for one in await apply(connection)]
        applied += [(schema, one) for one in await lifecycle(connection, schema)]
        exceeding = (
            await lineage.find_excessive(database)
            if any(one.name == PARENTS for _, one in applied)
            else []
        )
    if context.json:
        output.print_json(
            [{"schema": place, "version": one.version, "name": one.name} for place, one in applied]
        )
        return
    for place, one in applied:
        output.say(
            f"applied {one.version:04d} {one.name}"
            + (f" in {place}" if place != "pillarbox" else "")
        )
    if not applied:
        output.say("the schema is up to date")
    if schema != context.settings.lifecycle_schema:
        output.note(
            f"set PILLARBOX_LIFECYCLE_SCHEMA={schema} for every process of Pillarbox: accounts are there now"
        )
    if exceeding:
        number = output.counted(len(exceeding), "credential")
        output.note(
            f"{number} may exceed the key that made it: see `pillarbox key list --exceeding`"
        )


def _adopted(settings: Settings, parts: list[str] | None, adopt: str) -> str:
    """The schema that is taken over: it becomes `lifecycle_schema`."""
    if not parts:
        raise typer.BadParameter("needs --with lifecycle", param_hint="--adopt")
    if "lifecycle_schema" in settings.sources and settings.lifecycle_schema != adopt:
        said = f"{adopt!r}, but lifecycle_schema is {settings.lifecycle_schema!r}: give the same name, or leave that out"
        raise typer.BadParameter(said, param_hint="--adopt")
    return adopt


async def grant(
    context: CommandContext,
    app: Annotated[
        str, typer.Option("--app", metavar="ROLE", help="The role your application connects as.")
    ],
) -> None:
    """Let an application's role enqueue mails, and nothing else: it can read no message and no provider.

    Where the schema of accounts and tokens is installed, the role may also keep accounts, issue
    tokens and use them; it sees no token's secret and no code.

    \b
    Example:
      pillarbox grant --app shop
    """
    schema = context.settings.lifecycle_schema
    async with context.app() as opened:
        statements = await catalog.grant(opened.database, app)
        async with opened.database.transaction() as connection:
            if await lifecycle_schema.is_installed(connection, schema):
                statements += await TokenStore(schema).grant(connection, app)
    if context.json:
        output.print_json(statements)
        return
    for statement in statements:
        output.say(output.clean(statement))
