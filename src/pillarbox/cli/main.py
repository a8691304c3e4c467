"""The command `pillarbox` and its groups."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from pillarbox.cli import (
    admin,
    captured,
    collect,
    config,
    database_setup,
    dlq,
    key,
    keys,
    message_class,
    provider,
    queue,
    report,
    route,
    run,
    send,
    smtp_login,
    sql,
    suppression,
    template,
    tenant,
    webhook,
)
from pillarbox.cli.flag_help import apply_to_groups

root = typer.Typer(
    name="pillarbox",
    help="""Self-hosted e-mail infrastructure on PostgreSQL.

    \b
    First steps:
      pillarbox up               start everything, with a PostgreSQL of its own
      pillarbox send --from me@example.com --to you@example.com --wait
      pillarbox captured list    read captured mails
      pillarbox queue list       list messages and their states
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    run, database_setup, send, collect, queue, dlq, suppression, report, provider, route, captured,
    tenant, message_class, admin, key, smtp_login, sql, keys, config, webhook, template,
):  # fmt: skip
    module.register(root)
apply_to_groups(root)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"pillarbox {version('pillarbox')}")
        raise typer.Exit


@root.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point of the command."""
    root()
