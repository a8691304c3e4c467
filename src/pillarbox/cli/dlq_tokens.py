"""`dlq tokens`: tokens of accounts that could not be made mails."""

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
    list[int] | None, typer.Argument(metavar="TOKEN…", help="Tokens' numbers; all unless given.")
]


def register(group: typer.Typer) -> None:
    command(group, "tokens")(tokens)


async def tokens(
    context: CommandContext,
    numbers: Numbers = None,
    retry: Annotated[bool, typer.Option("--retry", help="Collect them again at once.")] = False,
    limit: options.Limit = 100,
) -> int:
    """List tokens of accounts that could not be made mails, and why; or collect them again at once.

    They are tried again every minute anyway, until they expire.

    \b
    Examples:
      pillarbox dlq tokens
      pillarbox dlq tokens --retry           (after you mended the template)
      pillarbox dlq tokens 4711 4712 --retry
    """
    async with context.app() as app:
        if retry:
            return _told(context, await set_aside_tokens.retry(app.database, app.settings, numbers))
        found = await set_aside_tokens.list_tokens(app.database, app.settings, None, limit)
    shown = [one for one in found if not numbers or one.token in numbers]
    if context.json:
        output.print_json([one._asdict() for one in shown])
    else:
        show(shown, "no token is set aside")
    return 0


def _told(context: CommandContext, count: int) -> int:
    if context.json:
        output.print_json({"retried": count})
    else:
        output.say(f"{output.counted(count, 'token')} will be collected again")
    return 0 if count else 1


def show(found: Sequence[SetAsideToken], empty: str = "") -> None:
    """A table of tokens that are set aside."""
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
        output.table(heads, [_row(one) for one in found], empty)


def _row(one: SetAsideToken) -> tuple[object, ...]:
    created = output.age(datetime.fromtimestamp(one.created_at, UTC)) if one.created_at else ""
    template = f"{one.portal}/{one.template}" if one.portal else ""
    return (
        str(one.token), str(one.account or ""), one.action, template, created, str(one.tries),
        output.span(one.again_in), one.problem,
    )  # fmt: skip
