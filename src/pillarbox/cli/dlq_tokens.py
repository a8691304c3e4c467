"""`dlq tokens`: tokens that could not be rendered as mails."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.lifecycle import set_aside_tokens

if TYPE_CHECKING:
    from pillarbox.store.lifecycle import SetAsideToken

Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="TOKEN…", help="Numbers of tokens; all by default.")
]


def register(group: typer.Typer) -> None:
    command(group, "tokens")(tokens)


async def tokens(
    context: CommandContext,
    numbers: Numbers = None,
    retry: Annotated[bool, typer.Option("--retry", help="Collect them again at once.")] = False,
    limit: options.Limit = 100,
) -> int:
    """List tokens that could not be rendered as mails, or collect them again at once.

    They are tried again every minute anyway, until they expire.

    \b
    Examples:
      pillarbox dlq tokens
      pillarbox dlq tokens --retry           (after you repaired the template)
      pillarbox dlq tokens 4711 4712 --retry
    """
    async with context.app() as app:
        if retry:
            count = await set_aside_tokens.retry(app.database, app.settings, numbers)
            return _report(context, count)
        found = await set_aside_tokens.list_tokens(
            app.database,
            app.settings,
            None,
            limit,
        )
    shown = [token for token in found if not numbers or token.token in numbers]
    if context.json:
        output.print_json([token._asdict() for token in shown])
    else:
        show(shown, "no token is set aside")
    return 0


def _report(context: CommandContext, count: int) -> int:
    context.report({"retried": count}, f"{output.counted(count, 'token')} will be collected again")
    return int(count == 0)


def show(found: Sequence[SetAsideToken], empty: str = "") -> None:
    """Print a table of tokens that were set aside."""
    if found or empty:
        heads = (
            "token#",
            "account#",
            "action",
            "template",
            "created",
            "tries#",
            "again in",
            "problem~",
        )
        output.table(heads, [_row(token) for token in found], empty)


def _row(token: SetAsideToken) -> tuple[object, ...]:
    created = ""
    if token.created_at:
        created = output.age(datetime.fromtimestamp(token.created_at, UTC))
    template = ""
    if token.portal:
        template = f"{token.portal}/{token.template}"
    return (
        str(token.token),
        str(token.account or ""),
        token.action,
        template,
        created,
        str(token.tries),
        output.span(token.again_in),
        token.problem,
    )
