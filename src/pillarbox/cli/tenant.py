"""`tenant`: customers of this installation, each with settings of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.model.access import Order, Tenant
from pillarbox.model.access_settings import MAX_INTEGER, MIN_MESSAGE_BYTES
from pillarbox.model.address import split_mailbox
from pillarbox.setting_kinds import duration, show_duration, show_size, size
from pillarbox.store import tenants

Name = Annotated[str, typer.Argument(parser=options.name, metavar="NAME")]
Known = Annotated[str, typer.Argument(metavar="NAME", help="Its name in `tenant list`.")]


def _mailbox(value: str) -> str:
    try:
        split_mailbox(value)
    except ValueError:
        raise typer.BadParameter(
            f"{value!r}: not a legal e-mail address: write name@domain"
        ) from None
    return value


def _octets(value: str) -> int:
    kind = size(MIN_MESSAGE_BYTES)
    try:
        return int(kind.read(value))
    except (ValueError, TypeError):
        raise typer.BadParameter(f"{value!r}: must be {kind.allowed}") from None


def _age(value: str) -> timedelta:
    kind = duration("1s")
    try:
        return timedelta(seconds=kind.read(value))
    except (ValueError, TypeError):
        raise typer.BadParameter(f"{value!r}: must be {kind.allowed}") from None


class TenantSetting(NamedTuple):
    """An option that gives one field of a tenant; `cleared` is what `--no-…` makes of it."""

    field: str
    flag: str
    kind: Any
    metavar: str
    help: str
    more: dict[str, Any] = {}  # noqa: RUF012 -- never changed
    cleared: Any = None


_RATE = {"min": 1, "max": MAX_INTEGER}
SETTINGS = (
    TenantSetting("default_sender", "--sender", str, "MAILBOX", "Sender of its mails that name none.", {"parser": _mailbox}),
    TenantSetting("default_class", "--class", str, "NAME", "Class of its mails that name none.", {}, "transactional"),
    TenantSetting("order", "--order", Order, "fifo|strict|parallel", "How its mails follow each other.", {}, Order.FIFO),
    TenantSetting("max_message_bytes", "--max-size", int, "SIZE", "Largest mail it may hand over.", {"parser": _octets}),
    TenantSetting("max_recipients", "--max-recipients", int, "N", "Most recipients of one mail.", _RATE),
    TenantSetting("sender_domains", "--sender-domain", list[str], "DOMAIN",
            "Only from here: example.com, *.example.com; may be repeated.", {}, ()),
    TenantSetting("rate_per_second", "--rate-per-second", int, "N", "Most mails that leave in a second; more wait.", _RATE),
    TenantSetting("rate_per_hour", "--rate-per-hour", int, "N", "Most mails that leave in an hour.", _RATE),
    TenantSetting("rate_per_day", "--rate-per-day", int, "N", "Most mails that leave in a day.", _RATE),
    TenantSetting("content_retention", "--keep-content", timedelta, "AGE", "How long bodies and files are kept: 7d.",
            {"parser": _age}),
    TenantSetting("finished_retention", "--keep-finished", timedelta, "AGE", "How long finished mails are kept: 90d.",
            {"parser": _age}),
)  # fmt: skip


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Tenants: customers of this installation.", no_args_is_help=True)
    command(group, "add")(_with_settings(add, clearing=False))
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "change")(_with_settings(change, clearing=True))
    root.add_typer(group, name="tenant")


def _with_settings(function: Callable[..., Any], *, clearing: bool) -> Callable[..., Any]:
    """Give a command an option for each setting, and one to clear it."""
    own = [
        one
        for one in inspect.signature(function, eval_str=True).parameters.values()
        if one.name != "settings"
    ]
    function.__signature__ = inspect.Signature([*own, *_parameters(clearing)])  # type: ignore[attr-defined]
    return function


def _parameters(clearing: bool) -> Iterator[inspect.Parameter]:
    for one in SETTINGS:
        told = typer.Option(
            one.flag, metavar=one.metavar, help=one.help, show_default=False, **one.more
        )
        yield _parameter(one.field, Annotated[one.kind | None, told], None)
        if clearing:
            word = f"Back to {one.cleared}." if one.cleared else f"Clear {one.flag}."
            told = typer.Option(f"--no-{one.flag[2:]}", help=word, rich_help_panel="Clearing")
            yield _parameter(f"no_{one.field}", Annotated[bool, told], False)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given or cleared."""
    changes = {}
    for one in SETTINGS:
        value, clear = settings[one.field], settings.get(f"no_{one.field}", False)
        if value and clear:
            raise typer.BadParameter(f"give {one.flag} or --no-{one.flag[2:]}, not both")
        if value or clear:
            changes[one.field] = one.cleared if clear else value
    return changes


async def add(context: CommandContext, name: Name, **settings: Any) -> None:
    """Add a tenant. What is not given is the installation's, or has no limit.

    \b
    Examples:
      pillarbox tenant add shop --sender "The Shop <hello@shop.example>"
      pillarbox tenant add news --class bulk --order parallel --rate-per-second 10
      pillarbox tenant add lab --sender-domain lab.example --sender-domain "*.lab.example" --keep-content 2d
    """
    changes = _given(settings)
    async with context.app() as app:
        made = await tenants.add_tenant(app.database, name, **changes)
    output.print_json(made) if context.json else output.say(f"added tenant {name}")


async def change(context: CommandContext, name: Known, **settings: Any) -> None:
    """Change what is given of a tenant; the rest stays. Limits hold for the next mail.

    \b
    Examples:
      pillarbox tenant change shop --order strict --rate-per-second 10
      pillarbox tenant change shop --sender-domain shop.example --max-size 5MB
      pillarbox tenant change shop --no-rate-per-second --no-sender-domain
    """
    changes = _given(settings)
    if not changes:
        raise typer.BadParameter("nothing to change: see `pillarbox tenant change --help`")
    async with context.app() as app:
        made = await tenants.change_tenant(app.database, name, **changes)
    if context.json:
        output.print_json(made)
    else:
        output.say(f"changed tenant {name}")
        output.pairs(_rows(made))


async def list_(context: CommandContext) -> None:
    """List the tenants.

    \b
    Example:
      pillarbox tenant list
    """
    async with context.app() as app:
        found = await tenants.list_tenants(app.database)
    if context.json:
        output.print_json(found)
    else:
        rows = [
            (one.name, one.default_sender, one.order, _limits(one), output.when(one.created_at))
            for one in found
        ]
        output.table(("name", "default sender~", "order", "limits~", "since"), rows)


async def show(context: CommandContext, name: Known) -> None:
    """Show a tenant with all its settings.

    \b
    Example:
      pillarbox tenant show shop
    """
    async with context.app() as app:
        found = await tenants.get_tenant(app.database, name)
    if context.json:
        output.print_json(found)
    else:
        output.say(Text(found.name, style="bold"))
        output.pairs([*_rows(found), ("since", output.when(found.created_at))])


def _rows(tenant: Tenant) -> list[tuple[str, object]]:
    """What is set of a tenant, by the names of the options."""
    return [(one.flag[2:], _shown(getattr(tenant, one.field), one.field)) for one in SETTINGS]


def _shown(value: Any, field: str) -> str | None:
    if isinstance(value, timedelta):
        return show_duration(value.total_seconds())
    if isinstance(value, tuple):
        return ", ".join(value)
    return (
        show_size(value)
        if field == "max_message_bytes" and value
        else None
        if value is None
        else str(value)
    )


def _limits(tenant: Tenant) -> str:
    """What restricts a tenant, in one line."""
    names = {one.field: one.flag[2:] for one in SETTINGS}
    limits = [
        one.name for one in fields(tenant) if one.name.startswith(("max_", "rate_", "sender_"))
    ]
    told = ((names[name], _shown(getattr(tenant, name), name)) for name in limits)
    return ", ".join(f"{name} {value}" for name, value in told if value)
