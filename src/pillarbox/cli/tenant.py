"""`tenant` and `class`: who sends, and by which policies."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import Given, command
from pillarbox.errors import InvalidMail
from pillarbox.model.address import split_mailbox
from pillarbox.model.delivery import Unknown
from pillarbox.model.retry import POLICIES
from pillarbox.setting_kinds import show_duration
from pillarbox.store import catalog

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME")]


def register(root: typer.Typer) -> None:
    tenants = typer.Typer(help="Tenants: customers of this installation.", no_args_is_help=True)
    command(tenants, "add")(add_tenant)
    command(tenants, "list")(list_tenants)
    root.add_typer(tenants, name="tenant")
    classes = typer.Typer(help="Classes: named sets of policies a mail carries.", no_args_is_help=True)
    command(classes, "list")(list_classes)
    command(classes, "set")(set_class)
    root.add_typer(classes, name="class")


async def add_tenant(
    given: Given,
    name: Name,
    sender: Annotated[
        str | None, typer.Option("--sender", metavar="MAILBOX", help="Sender of its mails that name none.")
    ] = None,
) -> None:
    """Add a tenant.

    \b
    Example:
      pillarbox tenant add shop --sender "The Shop <hello@shop.example>"
    """
    if sender is not None:
        _check_mailbox(sender)
    async with given.app() as app:
        await catalog.add_tenant(app.database, name, sender)
    output.print_json({"name": name, "default_sender": sender}) if given.json else output.say(f"added tenant {name}")


def _check_mailbox(mailbox: str) -> None:
    try:
        split_mailbox(mailbox)
    except ValueError:
        raise InvalidMail("bad_address", "sender", "not a legal e-mail address", "write name@domain") from None


async def list_tenants(given: Given) -> None:
    """List the tenants.

    \b
    Example:
      pillarbox tenant list
    """
    async with given.app() as app:
        found = await catalog.list_tenants(app.database)
    if given.json:
        output.print_json(found)
    else:
        rows = [(one.name, one.default_sender, output.when(one.created_at)) for one in found]
        output.table(("name", "default sender~", "since"), rows)


async def list_classes(given: Given) -> None:
    """List the classes and their policies.

    \b
    Example:
      pillarbox class list
    """
    async with given.app() as app:
        found = await catalog.list_classes(app.database)
    if given.json:
        output.print_json(found)
    else:
        output.table(("name", "retry", "unknowns", "secret", "content kept"), [_row(one) for one in found])


def _row(one: catalog.ClassFacts) -> tuple[str, ...]:
    kept = show_duration(one.content_retention.total_seconds()) if one.content_retention else "as configured"
    return one.name, one.retry or "the provider's", one.unknown, "yes" if one.secret else "no", kept


async def set_class(
    given: Given,
    name: Name,
    retry: Annotated[
        str | None,
        typer.Option("--retry", metavar="POLICY", help="quadratic, esp, lifecycle, or provider for its own."),
    ] = None,
    unknown: Annotated[
        Unknown | None, typer.Option("--unknown", help="What to do with an attempt whose end nobody saw.")
    ] = None,
    secret: Annotated[
        bool | None, typer.Option("--secret/--not-secret", help="Mask bodies, and drop them once settled.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="AGE", help="How long content is kept: 7d, or default.")
    ] = None,
) -> None:
    """Add a class, or change what is given of one.

    \b
    Examples:
      pillarbox class set codes --secret --retry lifecycle --unknown hold
      pillarbox class set bulk --keep 2d
    """
    if retry not in (None, "provider", *POLICIES):
        raise typer.BadParameter(f"--retry must be one of {', '.join(POLICIES)} or provider")
    kept = timedelta(seconds=options.seconds(keep)) if keep not in (None, "default") else None
    async with given.app() as app:
        known = {one.name: one for one in await catalog.list_classes(app.database)}
        old = known.get(name, catalog.ClassFacts(name, None, Unknown.RESEND, False, None))
        new = catalog.ClassFacts(
            name,
            old.retry if retry is None else None if retry == "provider" else retry,
            unknown or old.unknown,
            old.secret if secret is None else secret,
            old.content_retention if keep is None else kept,
        )
        await catalog.put_class(app.database, new)
    if given.json:
        output.print_json(new)
    else:
        output.say(f"{'changed' if name in known else 'added'} class {name}")
