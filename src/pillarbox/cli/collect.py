"""`collect`: turns tokens of accounts into mails."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import typer

from pillarbox.app import App, build_collector
from pillarbox.cli.command import TEMPLATE_DIRS, CommandContext, command, setting
from pillarbox.cli.run import stay
from pillarbox.store.opening import patiently

LIMIT = setting("lifecycle_batch_limit", "--batch-limit", "N")
TIMEOUT = setting("lifecycle_batch_timeout", "--batch-timeout", "MS")


def register(root: typer.Typer) -> None:
    command(
        root,
        "collect",
        LIMIT,
        TIMEOUT,
        TEMPLATE_DIRS,
        json=False,
    )(collect)


async def collect(
    context: CommandContext,
    stdout: Annotated[
        bool,
        typer.Option("--stdout", help="Write tokens to standard output instead of mailing them."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Collect the waiting tokens, and exit.")
    ] = False,
) -> int:
    """Collect tokens of accounts until Ctrl-C: mail them, or write them to standard output.

    It needs the schema that `pillarbox migrate --with lifecycle` installs, and the keys that sign
    links. Any number of collectors share the work. By default the size of batches follows the rate
    at which tokens arrive.

    --stdout behaves as the original collector: it writes a line for each batch, with
    `action,email,login,secret,code` for each token. A batch has 10 tokens or waits 5 seconds by
    default. It is settled after it was written.

    \b
    Examples:
      pillarbox collect
      pillarbox collect --once
      pillarbox collect --stdout --batch-limit 100 --batch-timeout 1000 | ./sender
      MAILROOM_DATABASE_URL=dbname=mailroom MAILROOM_SECRET_KEY=cafe… pillarbox collect --stdout
    """

    async def collector_role(app: App, stop: asyncio.Event) -> None:
        collector = await patiently(partial(build_collector, app, stdout=stdout), stop)
        if once:
            await collector.run_once(stop)
        else:
            await collector.run(stop)

    return await stay(context.settings, lambda app: [collector_role])
