"""`provider`: the accounts that mails leave through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.text import Text

from pillarbox.cli import options, output, provider_add
from pillarbox.cli.command import Given, command
from pillarbox.errors import InvalidMail, NotFound
from pillarbox.model.access_settings import MOST
from pillarbox.model.message import Content, Message
from pillarbox.model.provider import Provider, SmtpSettings
from pillarbox.store import catalog, providers

if TYPE_CHECKING:
    from pillarbox.app import App

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name in `provider list`.")]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Providers: the accounts that mails leave through.", no_args_is_help=True)
    provider_add.register(group)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "test")(prove)
    command(group, "enable")(enable)
    command(group, "disable")(disable)
    command(group, "limit")(limit)
    command(group, "remove")(remove)
    root.add_typer(group, name="provider")


async def list_(
    given: Given,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind: smtp, capture.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Only those switched on, or off.")
    ] = None,
) -> None:
    """List the providers in order of preference: the first that is enabled is used. Secrets stay hidden.

    \b
    Examples:
      pillarbox provider list
      pillarbox provider list --kind smtp --enabled --json
    """
    async with given.app() as app:
        found = await providers.list_providers(app.database)
        sealed = await catalog.sealed_providers(app.database)
    shown = [one for one in found if kind in (None, one.kind) and enabled in (None, one.enabled)]
    if given.json:
        output.print_json([_public(one, one.id in sealed) for one in shown])
        return
    rows = [
        (one.name, one.kind, _server(one), one.settings.get("tls", "starttls") if one.kind == "smtp" else "",
         one.settings.get("username"), "****" if one.id in sealed else "", one.retry or "quadratic",
         Text("on", style="green") if one.enabled else Text("off", style="dim"))
        for one in shown
    ]  # fmt: skip
    heads = ("name", "kind", "server~", "tls", "username~", "secret", "retry", "")
    output.table(heads, rows, "no provider: add one with `pillarbox provider add`")


def _server(provider: Provider) -> str:
    if provider.kind != "smtp":
        return ""
    return f"{provider.settings.get('host')}:{provider.settings.get('port', 587)}"


def _public(provider: Provider, secret: bool) -> dict[str, Any]:
    """A provider as it may be shown."""
    return {
        "id": provider.id, "name": provider.name, "kind": provider.kind, "enabled": provider.enabled,
        "retry": provider.retry, "settings": dict(provider.settings), "secret": "****" if secret else None,
        **_rates(provider),
    }  # fmt: skip


def _rates(provider: Provider) -> dict[str, int | None]:
    return {name: getattr(provider, name) for name in ("rate_per_second", "rate_per_hour", "rate_per_day")}


async def show(given: Given, name: Name) -> None:
    """Show one provider with every setting; what was not given has its default. The secret stays hidden.

    \b
    Example:
      pillarbox provider show relay
    """
    async with given.app() as app:
        provider = await _find(app, name)
        public = _public(provider, provider.id in await catalog.sealed_providers(app.database))
    if given.json:
        output.print_json(public)
        return
    output.say(Text.assemble((provider.name, "bold"), (f" ({provider.kind})", "dim")))
    rows: list[tuple[str, object]] = [
        ("enabled", "yes" if provider.enabled else "no"),
        ("secret", public["secret"]),
    ]
    rows.append(("retry", provider.retry or "quadratic (default)"))
    rows += [(name.replace("_", " "), rate) for name, rate in _rates(provider).items() if rate]
    output.pairs(rows + (_smtp_rows(provider.settings) if provider.kind == "smtp" else []))


def _smtp_rows(given: Any) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for one in fields(SmtpSettings):
        if one.name in given:
            rows.append((one.name, str(given[one.name])))
        elif one.name not in ("password", "connections", "host") and one.default is not None:
            rows.append((one.name, f"{one.default} (default)"))
    return rows


async def prove(
    given: Given,
    name: Name,
    send_to: Annotated[
        list[str] | None,
        typer.Option("--send-to", metavar="ADDRESS", help="Also send a test mail to this address."),
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option("--from", metavar="ADDRESS", help="Its sender; the recipient when not given."),
    ] = None,
) -> int:
    """Connect, log in and say what was found; with --send-to also send a mail at once, past the queue.

    \b
    Examples:
      pillarbox provider test relay
      pillarbox provider test relay --send-to me@example.com
    """
    async with given.app() as app:
        provider = await _find(app, name, secrets=True)
        transport = app.build_transport(provider)
        try:
            found = await transport.check()
        finally:
            await transport.close()
        results = await _try(app, provider, sender, send_to) if send_to else []
    if given.json:
        output.print_json({"ok": all(one["verdict"] == "accepted" for one in results), "found": found, "sent": results})
    else:
        output.say(Text.assemble(("ok ", "green"), output.clean(found)))
        for one in results:
            words = [str(one[key]) for key in ("reason", "code", "text") if one[key] is not None]
            said = output.clean(f" {one['to']} {' '.join(words)}")
            output.say(Text.assemble(output.styled(one["verdict"]), said))
    return 0 if all(one["verdict"] == "accepted" for one in results) else 1


async def _try(app: App, provider: Provider, sender: str | None, to: Sequence[str]) -> list[dict[str, Any]]:
    message = Message(uuid4(), sender or to[0], to, "A test mail from Pillarbox", datetime.now(UTC))
    text = f"This mail left through the provider {provider.name}. If you can read it, it works.\n"
    try:
        report = await app.try_out(provider, message, Content(text))
    except ValueError as error:
        raise InvalidMail("bad_address", "--send-to", str(error)) from None
    return [
        {"to": address, "verdict": one.verdict, "reason": one.reason, "code": one.code, "text": one.text}
        for address, one in zip(to, report.outcomes, strict=True)
    ]


async def enable(given: Given, name: Name) -> None:
    """Use a provider again.

    \b
    Example:
      pillarbox provider enable relay
    """
    await _switch(given, name, True)


async def disable(given: Given, name: Name) -> None:
    """Use a provider no more, until it is enabled again; what is in flight through it ends normally.

    \b
    Example:
      pillarbox provider disable relay
    """
    await _switch(given, name, False)


async def _switch(given: Given, name: str, enabled: bool) -> None:
    async with given.app() as app:
        await providers.enable_provider(app.database, name, enabled)
    word = "enabled" if enabled else "disabled"
    output.print_json({"name": name, "enabled": enabled}) if given.json else output.say(f"{word} {name}")


Rate = typer.Option(metavar="N", min=1, max=MOST, show_default=False)


async def limit(
    given: Given,
    name: Name,
    rate_per_second: Annotated[int | None, Rate] = None,
    rate_per_hour: Annotated[int | None, Rate] = None,
    rate_per_day: Annotated[int | None, Rate] = None,
    none: Annotated[bool, typer.Option("--none", help="Lift the limits that are not given.")] = False,
) -> None:
    """Limit how many mails leave through a provider in a time; more wait, and say so. What is not given stays.

    \b
    Examples:
      pillarbox provider limit relay --rate-per-second 14 --rate-per-day 50000
      pillarbox provider limit relay --none
    """
    wanted = (rate_per_second, rate_per_hour, rate_per_day)
    if not none and wanted == (None, None, None):
        raise typer.BadParameter("give a limit, or --none to lift them all")
    async with given.app() as app:
        before = _rates(await _find(app, name)).values()
        rates = [new if new or none else old for new, old in zip(wanted, before, strict=True)]
        await providers.limit_provider(app.database, name, *rates)
        public = _rates(await _find(app, name))
    if given.json:
        output.print_json({"name": name, **public})
    else:
        said = ", ".join(
            f"{rate:,} {kind.removeprefix('rate_').replace('_', ' ')}" for kind, rate in public.items() if rate
        )
        output.say(f"{name}: {said or 'no limit'}")


async def remove(given: Given, name: Name, yes: options.Yes = False) -> None:
    """Remove a provider and forget its secret; the story of what it sent stays.

    \b
    Example:
      pillarbox provider remove relay --yes
    """
    async with given.app() as app:
        await _find(app, name)
        options.confirm(f"Remove the provider {name} and forget its secret?", yes)
        await providers.remove_provider(app.database, name)
    output.print_json({"name": name, "removed": True}) if given.json else output.say(f"removed {name}")


async def _find(app: App, name: str, secrets: bool = False) -> Provider:
    found = await providers.list_providers(app.database, app.keys if secrets else None)
    for one in found:
        if one.name == name:
            return one
    raise NotFound(f"there is no provider {name!r}: see `pillarbox provider list`")
