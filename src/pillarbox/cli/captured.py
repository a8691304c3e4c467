"""`captured`: mails that the capture provider stored instead of sending them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.readable_mail import readable
from pillarbox.store import catalog


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Read mails that the capture provider stored.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group, "show", json=False)(show)
    root.add_typer(group, name="captured")


async def list_(
    context: CommandContext,
    recipient: options.RecipientFilter = None,
    sender: options.SenderFilter = None,
    provider: options.ProviderFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="NUMBER", help="Only older than this number.")
    ] = None,
    limit: options.Limit = 20,
) -> None:
    """List captured mails, newest first.

    \b
    Examples:
      pillarbox captured list
      pillarbox captured list --recipient ada@ --since 1h --json
    """
    async with context.app() as app:
        found = await catalog.list_captured(
            app.database,
            limit,
            before,
            since,
            until,
            recipient,
            sender,
            provider,
        )
    if context.json:
        output.print_json(found)
        return
    rows = [_row(mail) for mail in found]
    output.table(
        ("no.#", "captured", "from~", "to~", "subject~", "size#"), rows, "no mail was captured"
    )


def _row(mail: catalog.CapturedMail) -> tuple[object, ...]:
    return (
        str(mail.id),
        output.age(mail.at),
        mail.sender,
        ", ".join(mail.recipients),
        mail.subject,
        output.size(mail.size),
    )


async def show(
    context: CommandContext,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, help="Its number in `captured list`.")
    ],
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Print the source, exactly as it would have been sent."),
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Print only the text, without headers.")
    ] = False,
) -> None:
    """Show a captured mail: sender, recipients, subject, and the decoded text with its links.

    If a mail has no text part, the text of its HTML is shown.

    \b
    Examples:
      pillarbox captured show 7
      pillarbox captured show 7 --raw > mail.eml
    """
    if raw and text:
        raise typer.BadParameter("give --raw or --text, not both")
    async with context.app() as app:
        content = await catalog.captured_content(app.database, number)
    if raw:
        output.write_bytes(content)
        return
    mail = readable(content)
    if not text:
        output.pairs(
            [
                ("from", mail.sender),
                ("to", mail.to),
                ("cc", mail.cc),
                ("date", mail.date),
                ("subject", mail.subject),
                ("attachments", ", ".join(mail.attachments)),
            ]
        )
        output.say()
    if mail.text:
        output.say(Text(output.clean_lines(mail.text)))
    else:
        output.note("this mail has no text: --raw shows its source")
