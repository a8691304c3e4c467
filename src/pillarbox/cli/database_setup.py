"""`migrate` and `grant`: prepare a database."""

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
    from pillarbox.store.lineage import ExcessiveGrant
    from pillarbox.store.migrations import Migration

LIFECYCLE_SCHEMA = setting("lifecycle_schema", "--lifecycle-schema", "NAME")
# The migration that records which key made a credential: credentials that may exceed the key that
# made them are reported once.
PARENTS = "parents"
# Optional parts of the schema.
PARTS = ("lifecycle",)


def register(root: typer.Typer) -> None:
    command(root, "migrate", LIFECYCLE_SCHEMA)(migrate)
    command(root, "grant", LIFECYCLE_SCHEMA)(grant)


Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="PART",
        show_default=False,
        help="Also install this part: lifecycle.",
    ),
]


Adopt = Annotated[
    str | None,
    typer.Option(
        "--adopt",
        metavar="SCHEMA",
        show_default=False,
        help="Adopt the original collector's tables in this schema.",
    ),
]


async def migrate(context: CommandContext, parts: Parts = None, adopt: Adopt = None) -> None:
    """Update the database's schema. Safe to run at any time, and by several processes at once.

    `--with lifecycle` also creates the schema of accounts and tokens, for activation, recovery and
    other lifecycle mails. Once installed, it is updated without this option.

    `--adopt SCHEMA` turns the tables of the original collector (tetsuo/mailroom) in that schema
    into the tables of accounts and tokens, in place and with all rows. Stop that collector first:
    the tables are locked meanwhile.

    \b
    Examples:
      pillarbox migrate --database-url postgresql://mail@db.example/mail
      pillarbox migrate --with lifecycle
      pillarbox migrate --with lifecycle --lifecycle-schema people
      pillarbox migrate --with lifecycle --adopt public
      pillarbox migrate --json
    """
    schema = context.settings.lifecycle_schema
    lifecycle = lifecycle_schema.upgrade_if_installed
    if adopt:
        schema = _adopted(context.settings, parts, adopt)
        lifecycle = adoption.adopt
    elif parts:
        lifecycle = lifecycle_schema.install
    for part in parts or []:
        if part not in PARTS:
            allowed = ", ".join(PARTS)
            raise typer.BadParameter(f"{part!r}: give one of {allowed}", param_hint="--with")
    lifecycle_schema.quoted(schema)  # an illegal name fails before anything is changed
    exceeding: list[ExcessiveGrant] = []
    async with open_database(context.settings) as database, database.connection() as connection:
        applied = [("pillarbox", migration) for migration in await apply(connection)]
        applied += [(schema, migration) for migration in await lifecycle(connection, schema)]
        if any(migration.name == PARENTS for _, migration in applied):
            exceeding = await lineage.find_excessive(database)
    if context.json:
        output.print_json(
            [
                {"schema": schema_name, "version": migration.version, "name": migration.name}
                for schema_name, migration in applied
            ]
        )
        return
    _print_applied(applied)
    if schema != context.settings.lifecycle_schema:
        output.note(
            f"set PILLARBOX_LIFECYCLE_SCHEMA={schema} for every process of Pillarbox:"
            " accounts are there now"
        )
    if exceeding:
        number = output.counted(len(exceeding), "credential")
        output.note(
            f"{number} may exceed the key that made it: see `pillarbox key list --exceeding`"
        )


def _print_applied(applied: list[tuple[str, Migration]]) -> None:
    for schema_name, migration in applied:
        line = f"applied {migration.version:04d} {migration.name}"
        if schema_name != "pillarbox":
            line += f" in {schema_name}"
        output.say(line)
    if not applied:
        output.say("the schema is up to date")


def _adopted(settings: Settings, parts: list[str] | None, adopt: str) -> str:
    """The schema to adopt: it becomes `lifecycle_schema`."""
    if not parts:
        raise typer.BadParameter("needs --with lifecycle", param_hint="--adopt")
    if "lifecycle_schema" in settings.sources and settings.lifecycle_schema != adopt:
        problem = f"{adopt!r}, but lifecycle_schema is {settings.lifecycle_schema!r}"
        raise typer.BadParameter(
            f"{problem}: give the same name, or leave that out", param_hint="--adopt"
        )
    return adopt


async def grant(
    context: CommandContext,
    app: Annotated[
        str, typer.Option("--app", metavar="ROLE", help="The role your application connects as.")
    ],
) -> None:
    """Grant an application's role the right to enqueue mails: it cannot read messages or providers.

    If the schema of accounts and tokens is installed, the role may also manage accounts, and issue
    and use tokens; it cannot read their secrets and codes.

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
