"""`tenant`: the tenants of this installation and their settings."""

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


def _bytes(value: str) -> int:
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
    """An option for one field of a tenant; `cleared` is its value after `--no-…`."""

    field: str
    flag: str
    kind: Any
    metavar: str
    help: str
    more: dict[str, Any] = {}  # noqa: RUF012 -- never changed
    cleared: Any = None


_RATE = {"min": 1, "max": MAX_INTEGER}
SETTINGS = (
    TenantSetting(
        "default_sender",
        "--sender",
        str,
        "MAILBOX",
        "Sender of its mails that name no sender.",
        {"parser": _mailbox},
    ),
    TenantSetting(
        "default_class",
        "--class",
        str,
        "NAME",
        "Class of its mails that name no class.",
        {},
        "transactional",
    ),
    TenantSetting(
        "order",
        "--order",
        Order,
        "fifo|strict|parallel",
        "Order of its mails.",
        {},
        Order.FIFO,
    ),
    TenantSetting(
        "max_message_bytes",
        "--max-size",
        int,
        "SIZE",
        "Largest mail that it may submit.",
        {"parser": _bytes},
    ),
    TenantSetting(
        "max_recipients",
        "--max-recipients",
        int,
        "N",
        "Most recipients of a mail.",
        _RATE,
    ),
    TenantSetting(
        "sender_domains",
        "--sender-domain",
        list[str],
        "DOMAIN",
        "Allow only these senders: example.com, *.example.com; may be repeated.",
        {},
        (),
    ),
    TenantSetting(
        "rate_per_second",
        "--rate-per-second",
        int,
        "N",
        "Most mails sent in a second; others wait.",
        _RATE,
    ),
    TenantSetting(
        "rate_per_hour",
        "--rate-per-hour",
        int,
        "N",
        "Most mails sent in an hour.",
        _RATE,
    ),
    TenantSetting(
        "rate_per_day",
        "--rate-per-day",
        int,
        "N",
        "Most mails sent in a day.",
        _RATE,
    ),
    TenantSetting(
        "content_retention",
        "--keep-content",
        timedelta,
        "AGE",
        "How long bodies and files are kept: 7d.",
        {"parser": _age},
    ),
    TenantSetting(
        "finished_retention",
        "--keep-finished",
        timedelta,
        "AGE",
        "How long finished mails are kept: 90d.",
        {"parser": _age},
    ),
)


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage tenants: customers of this installation.", no_args_is_help=True
    )
    command(group, "add")(_with_settings(add, clearing=False))
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "change")(_with_settings(change, clearing=True))
    root.add_typer(group, name="tenant")


def _with_settings(function: Callable[..., Any], *, clearing: bool) -> Callable[..., Any]:
    """Add an option for each setting to a command, and one to clear it."""
    signature = inspect.signature(function, eval_str=True)
    own = [option for option in signature.parameters.values() if option.name != "settings"]
    combined = inspect.Signature([*own, *_parameters(clearing)])
    function.__signature__ = combined  # type: ignore[attr-defined]
    return function


def _parameters(clearing: bool) -> Iterator[inspect.Parameter]:
    for setting in SETTINGS:
        option = typer.Option(
            setting.flag,
            metavar=setting.metavar,
            help=setting.help,
            show_default=False,
            **setting.more,
        )
        yield _parameter(setting.field, Annotated[setting.kind | None, option], None)
        if clearing:
            help_text = f"Clear {setting.flag}."
            if setting.cleared:
                help_text = f"Reset to {setting.cleared}."
            no_flag = f"--no-{setting.flag[2:]}"
            option = typer.Option(no_flag, help=help_text, rich_help_panel="Clearing")
            yield _parameter(f"no_{setting.field}", Annotated[bool, option], False)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=annotation,
    )


def _changes(settings: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given or cleared."""
    changes = {}
    for setting in SETTINGS:
        value = settings[setting.field]
        clear = settings.get(f"no_{setting.field}", False)
        if value and clear:
            raise typer.BadParameter(f"give {setting.flag} or --no-{setting.flag[2:]}, not both")
        if clear:
            changes[setting.field] = setting.cleared
        elif value:
            changes[setting.field] = value
    return changes


async def add(context: CommandContext, name: Name, **settings: Any) -> None:
    """Add a tenant. Settings that are not given are the installation's, or have no limit.

    \b
    Examples:
      pillarbox tenant add shop --sender "The Shop <hello@shop.example>"
      pillarbox tenant add news --class bulk --order parallel --rate-per-second 10
      pillarbox tenant add lab --sender-domain lab.example --keep-content 2d
    """
    changes = _changes(settings)
    async with context.app() as app:
        tenant = await tenants.add_tenant(app.database, name, **changes)
    context.report(tenant, f"added tenant {name}")


async def change(context: CommandContext, name: Known, **settings: Any) -> None:
    """Change the given settings of a tenant; the others stay. Limits apply from the next mail on.

    \b
    Examples:
      pillarbox tenant change shop --order strict --rate-per-second 10
      pillarbox tenant change shop --sender-domain shop.example --max-size 5MB
      pillarbox tenant change shop --no-rate-per-second --no-sender-domain
    """
    changes = _changes(settings)
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
    """List tenants.

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
            (
                tenant.name,
                tenant.default_sender,
                tenant.order,
                _limits(tenant),
                output.when(tenant.created_at),
            )
            for tenant in found
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
    """The settings of a tenant, by the names of the options."""
    rows: list[tuple[str, object]] = []
    for setting in SETTINGS:
        value = getattr(tenant, setting.field)
        rows.append((setting.flag[2:], _shown(value, setting.field)))
    return rows


def _shown(value: Any, field: str) -> str | None:
    if isinstance(value, timedelta):
        return show_duration(value.total_seconds())
    if isinstance(value, tuple):
        return ", ".join(value)
    if value is None:
        return None
    if field == "max_message_bytes" and value:
        return show_size(value)
    return str(value)


def _limits(tenant: Tenant) -> str:
    """The limits of a tenant, in one line."""
    option_names = {setting.field: setting.flag[2:] for setting in SETTINGS}
    limits = []
    for field in fields(tenant):
        if field.name.startswith(("max_", "rate_", "sender_")):
            value = _shown(getattr(tenant, field.name), field.name)
            if value:
                limits.append(f"{option_names[field.name]} {value}")
    return ", ".join(limits)
