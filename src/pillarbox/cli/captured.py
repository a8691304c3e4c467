"""`captured`: mails that the capture provider kept for reading."""

from __future__ import annotations

from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Annotated

import typer
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import Given, command
from pillarbox.errors import NotFound
from pillarbox.store import catalog


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Mails that the capture provider kept for reading.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group, "show", json=False)(show)
    root.add_typer(group, name="captured")


async def list_(
    given: Given,
    recipient: options.RecipientFilter = None,
    sender: options.SenderFilter = None,
    provider: options.ProviderFilter = None,
    since: options.Since = None,
    until: options.Until = None,
    before: Annotated[int | None, typer.Option("--before", metavar="NUMBER", help="Older than this one.")] = None,
    limit: options.Limit = 20,
) -> None:
    """List captured mails, newest first.

    \b
    Examples:
      pillarbox captured list
      pillarbox captured list --recipient ada@ --since 1h --json
    """
    async with given.app() as app:
        found = await catalog.list_captured(app.database, limit, before, since, until, recipient, sender, provider)
    if given.json:
        output.print_json(found)
        return
    rows = [
        (
            str(one.id),
            output.age(one.at),
            one.sender,
            ", ".join(one.recipients),
            one.subject,
            output.octets(one.size),
        )
        for one in found
    ]
    output.table(("no.#", "captured", "from~", "to~", "subject~", "size#"), rows, "no mail was captured")


async def show(
    given: Given,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Its number in `captured list`.")],
    text: Annotated[bool, typer.Option("--text", help="Only the text that a person would read.")] = False,
) -> None:
    """Print a captured mail, exactly as it would have been sent.

    \b
    Examples:
      pillarbox captured show 7
      pillarbox captured show 7 --text
      pillarbox captured show 7 > mail.eml
    """
    async with given.app() as app:
        content = await catalog.captured_content(app.database, number)
    if text:
        output.say(Text(output.clean_lines(_text_of(content))))
    else:
        output.write_bytes(content)


def _text_of(content: bytes) -> str:
    mail = BytesParser(EmailMessage, policy=policy.default).parsebytes(content)
    body = mail.get_body(("plain", "html"))
    if body is None:
        raise NotFound("this mail has no text")
    return str(body.get_content())
