"""`provider`: the accounts that mails leave through."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.text import Text

from pillarbox.cli import (
    options,
    output,
    provider_add,
    provider_feedback,
    provider_health,
    provider_limit,
    route,
)
from pillarbox.cli.command import CommandContext, command
from pillarbox.deliver.direct_send import send_directly
from pillarbox.errors import InvalidMail, NotPossible
from pillarbox.model.message import Content, Message
from pillarbox.model.provider import Provider
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.secret import MASK
from pillarbox.store import catalog, providers

if TYPE_CHECKING:
    from pillarbox.app import App

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name in `provider list`.")]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Providers: the accounts that mails leave through.", no_args_is_help=True
    )
    provider_add.register(group)
    command(group, "feedback")(provider_feedback.feedback_command())
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "test")(prove)
    command(group, "enable")(enable)
    command(group, "disable")(disable)
    command(group, "release-only")(release_only)
    command(group, "limit")(provider_limit.limit)
    provider_health.register(group)
    command(group, "remove")(remove)
    root.add_typer(group, name="provider")


async def list_(
    context: CommandContext,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only this kind, such as ses.")
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Only those switched on, or off.")
    ] = None,
) -> None:
    """List providers, without their secrets.

    \b
    Examples:
      pillarbox provider list
      pillarbox provider list --kind smtp --enabled --json
    """
    async with context.app() as app:
        found = await providers.list_providers(app.database)
        sealed = await catalog.sealed_providers(app.database)
    shown = [
        provider
        for provider in found
        if kind in (None, provider.kind) and enabled in (None, provider.enabled)
    ]
    if context.json:
        output.print_json([_public(provider, sealed) for provider in shown])
        return
    rows = [_list_row(provider, sealed) for provider in shown]
    heads = ("name", "kind", "server~", "tls", "username~", "secret", "retry", "")
    output.table(heads, rows, "no provider: add one with `pillarbox provider add`")


def _list_row(provider: Provider, sealed: set[tuple[int, str]]) -> tuple[object, ...]:
    kind = kind_of(provider.kind)
    settings = kind.defaults() | dict(provider.settings)
    return (
        provider.name,
        provider.kind,
        kind.server(provider.settings),
        settings.get("tls", ""),
        settings.get("username"),
        _mask(provider, "secret", sealed),
        provider.retry or kind.retry,
        _switched(provider),
    )


def _switched(provider: Provider) -> Text:
    if not provider.enabled:
        return Text("off", style="dim")
    if provider.release_only:
        return Text("release only", style="yellow")
    return Text("on", style="green")


def _mask(provider: Provider, secret: str, sealed: set[tuple[int, str]]) -> str | None:
    """Asterisks for a secret that the provider has."""
    if (provider.id, secret) in sealed:
        return MASK
    return None


def _public(provider: Provider, sealed: set[tuple[int, str]]) -> dict[str, Any]:
    """A provider as it may be shown."""
    return {
        "id": provider.id,
        "name": provider.name,
        "kind": provider.kind,
        "enabled": provider.enabled,
        "release_only": provider.release_only,
        "retry": provider.retry,
        "settings": dict(provider.settings),
        "secret": _mask(provider, "secret", sealed),
        "webhook_secret": _mask(provider, "webhook_secret", sealed),
        **provider_limit.shown(provider),
    }


async def show(context: CommandContext, name: Name) -> None:
    """Show one provider with every setting and default, without its secrets.

    \b
    Example:
      pillarbox provider show relay
    """
    async with context.app() as app:
        provider = await providers.get_provider(app.database, name)
        public = _public(provider, await catalog.sealed_providers(app.database))
    if context.json:
        output.print_json(public)
        return
    output.say(Text.assemble((provider.name, "bold"), (f" ({provider.kind})", "dim")))
    rows: list[tuple[str, object]] = [
        ("enabled", "yes" if provider.enabled else "no"),
        ("secret", public["secret"]),
        ("webhook secret", public["webhook_secret"]),
    ]
    if provider.release_only:
        rows.insert(1, ("release only", "yes: used where a route or a person names it"))
    rows.append(("retry", provider.retry or f"{kind_of(provider.kind).retry} (default)"))
    limits = provider_limit.limits(provider)
    rows += [(name.replace("_", " "), limit) for name, limit in limits.items() if limit]
    output.pairs(rows + _setting_rows(provider))


def _setting_rows(provider: Provider) -> list[tuple[str, object]]:
    """Every setting; one that was not given has its default."""
    defaults = kind_of(provider.kind).defaults()
    defaults.pop("connections", None)  # follows worker_concurrency
    rows: list[tuple[str, object]] = []
    for field, _ in kind_of(provider.kind).options():
        if field.name in provider.settings:
            rows.append((field.name, _shown(provider.settings[field.name])))
        elif field.name in defaults:
            rows.append((field.name, f"{defaults[field.name]} (default)"))
    return rows


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


async def prove(
    context: CommandContext,
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
    """Test a provider: connect and log in; with --send-to also send a mail at once, past the queue.

    \b
    Examples:
      pillarbox provider test relay
      pillarbox provider test relay --send-to me@example.com
    """
    async with context.app() as app:
        provider = await providers.get_provider(app.database, name, app.keys)
        transport = app.build_transport(provider)
        redact = app.redactor_for(provider)
        try:
            found = redact(await transport.check())
        except NotPossible as error:
            raise NotPossible(redact(str(error))) from None
        finally:
            await transport.close()
        results = []
        if send_to:
            results = await _send_test_mail(app, provider, sender or send_to[0], send_to)
    ok = all(result["verdict"] == "accepted" for result in results)
    if context.json:
        output.print_json({"ok": ok, "found": found, "sent": results})
    else:
        output.say(Text.assemble(("ok ", "green"), output.clean(found)))
        for result in results:
            _say_result(result)
    return int(not ok)


def _say_result(result: dict[str, Any]) -> None:
    words = [result["to"], result["reason"], result["code"], result["text"]]
    text = " ".join(str(word) for word in words if word is not None)
    output.say(Text.assemble(output.styled(result["verdict"]), output.clean(f" {text}")))


async def _send_test_mail(
    app: App, provider: Provider, sender: str, to: Sequence[str]
) -> list[dict[str, Any]]:
    message = Message(uuid4(), sender, to, "A test mail from Pillarbox", datetime.now(UTC))
    text = f"This mail left through the provider {provider.name}. If you can read it, it works.\n"
    try:
        result = await send_directly(app.build_transport(provider), message, Content(text))
    except ValueError as error:
        raise InvalidMail("bad_address", "--send-to", str(error)) from None
    redact = app.redactor_for(provider)
    return [
        {
            "to": address,
            "verdict": outcome.verdict,
            "reason": outcome.reason,
            "code": outcome.code,
            "text": outcome.text and redact(outcome.text),
        }
        for address, outcome in zip(to, result.outcomes, strict=True)
    ]


async def enable(context: CommandContext, name: Name) -> None:
    """Enable a provider.

    \b
    Example:
      pillarbox provider enable relay
    """
    await _switch(context, name, True)


async def disable(context: CommandContext, name: Name) -> None:
    """Disable a provider until it is enabled again; sends in progress complete normally.

    \b
    Example:
      pillarbox provider disable relay
    """
    await _switch(context, name, False)


async def _switch(context: CommandContext, name: str, enabled: bool) -> None:
    async with context.app() as app:
        await providers.enable_provider(app.database, name, enabled)
    word = "enabled" if enabled else "disabled"
    _confirm(context, {"name": name, "enabled": enabled}, f"{word} {name}")


def _confirm(context: CommandContext, values: dict[str, Any], text: str) -> None:
    """Report a change, as JSON or as text."""
    if context.json:
        output.print_json(values)
    else:
        output.say(text)


async def release_only(
    context: CommandContext,
    name: Name,
    on: Annotated[
        bool, typer.Option("--on/--off", help="Keep it out of the default route, or let it in.")
    ] = True,
) -> None:
    """Take a provider out of the default route, or put it back.

    Without the default route it is used only where a rule or `dlq reprocess --via` names it.

    \b
    Examples:
      pillarbox provider release-only relay
      pillarbox provider release-only relay --off
    """
    async with context.app() as app:
        await providers.set_release_only(app.database, name, on)
    use = "only where a route or a person names it" if on else "by default, too"
    _confirm(context, {"name": name, "release_only": on}, f"{name} is used {use}")


async def remove(context: CommandContext, name: Name, yes: options.Yes = False) -> None:
    """Remove a provider and delete its secret; the history of its mails is kept.

    \b
    Example:
      pillarbox provider remove relay --yes
    """
    async with context.app() as app:
        await providers.get_provider(app.database, name)
        await route.warn_of_removal(app, name)
        options.confirm(f"Remove the provider {name} and delete its secret?", yes)
        await providers.remove_provider(app.database, name)
    _confirm(context, {"name": name, "removed": True}, f"removed {name}")
