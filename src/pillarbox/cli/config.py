"""`config`: the settings in effect."""

from __future__ import annotations

from typing import Annotated

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CONCURRENCY, HTTP, CommandContext, command


def register(root: typer.Typer) -> None:
    command(
        root,
        "config",
        HTTP,
        CONCURRENCY,
    )(config)


async def config(
    context: CommandContext,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show what each is for and what is allowed.")
    ] = False,
) -> None:
    """Show every setting in effect and where it came from; secrets stay hidden.

    A flag overrides the environment (PILLARBOX_…), which overrides pillarbox.toml, which
    overrides the default.

    \b
    Examples:
      pillarbox config
      pillarbox config --explain
      PILLARBOX_WORKER_POLL_INTERVAL=1s pillarbox config --json
    """
    rows = context.settings.describe()
    if context.json:
        output.print_json([row._asdict() for row in rows])
    elif explain:
        for row in rows:
            output.say(f"{row.name} = {output.clean(row.value)}")
            source = f"{row.source}; environment {row.env}"
            if row.short:
                source += f" or {row.short}"
            output.pairs(
                [
                    ("", row.help),
                    ("from", source),
                    ("allowed", row.allowed),
                    ("default", _default(row.default, row.why)),
                ]
            )
    else:
        output.table(
            ("setting", "value~", "from~"), [(row.name, row.value, row.source) for row in rows]
        )


def _default(default: str, why: str) -> str:
    return f"{default or 'not set'}: {why}"
