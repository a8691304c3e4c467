"""`provider add KIND`, for each kind. A secret is never an argument, which others can read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.provider_options import (
    Values,
    add_parameters,
    given_settings,
    is_secret_given,
    read_given_secret,
)
from pillarbox.errors import SettingsError
from pillarbox.model.provider import feedback_path
from pillarbox.model.provider_kind import ProviderKind
from pillarbox.model.provider_kinds import KINDS
from pillarbox.model.secret import Secret
from pillarbox.store import providers


def register(group: typer.Typer) -> None:
    adding = typer.Typer(help="Add a provider.", no_args_is_help=True)
    for kind in KINDS.values():
        command(adding, kind.name)(add_command(kind))
    group.add_typer(adding, name="add")


def add_command(kind: ProviderKind) -> Callable[..., Any]:
    """The function behind `provider add KIND`."""

    async def add(context: CommandContext, name: str, **values: Any) -> None:
        settings = _settings(kind, values)
        secret = _secret(kind, settings, values)
        webhook_secret = None
        if kind.webhook_secret and is_secret_given(kind.webhook_secret, values):
            webhook_secret = read_given_secret(kind.webhook_secret, values)
        await _store(context, kind, name, settings, secret, webhook_secret, values)

    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    add.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [first, *add_parameters(kind)]
    )
    add.__doc__ = kind.help
    return add


def _settings(kind: ProviderKind, values: Values) -> Values:
    """The settings that were given, checked before a secret is asked for."""
    settings = given_settings([field.name for field, _ in kind.options()], values)
    secret = kind.secret
    if secret and secret.login and is_secret_given(secret, values) and secret.login not in settings:
        raise typer.BadParameter(f"a {secret.label} needs a --{secret.login}")
    try:
        if kind.prepare:
            kind.prepare(settings, {flag.name: values[flag.name] for flag in kind.flags})
        check_settings(kind, settings)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    return settings


def check_settings(kind: ProviderKind, settings: Mapping[str, Any]) -> None:
    """Raise SettingsError if the settings are wrong; the secret does not matter."""
    kind.read_settings(settings)


def _secret(kind: ProviderKind, settings: Values, values: Values) -> Secret | None:
    if kind.secret is None:
        return None
    login = kind.secret.login
    if login is None:
        return read_given_secret(kind.secret, values)
    if login not in settings:
        return None
    return read_given_secret(kind.secret, values, settings[login])


async def _store(
    context: CommandContext,
    kind: ProviderKind,
    name: str,
    settings: Values,
    secret: Secret | None,
    webhook_secret: Secret | None,
    values: Values,
) -> None:
    """Add the provider, and say what to do next."""
    async with context.app() as app:
        number = await providers.add_provider(
            app.database,
            app.keys,
            name,
            kind.name,
            settings,
            secret,
            values["retry"],
            webhook_secret,
            release_only=values.get("release_only", False),
        )
        captures = await providers.captures_by_default(
            app.database, development=app.settings.is_development
        )
    path = feedback_path(kind.name, number) if kind.feedback else None
    if context.json:
        added = {"id": number, "name": name, "kind": kind.name}
        output.print_json(added | ({"webhook": path} if path else {}))
        return
    output.say(f"added {kind.name} provider {name}; try it with `pillarbox provider test {name}`")
    if not kind.sends_out and not captures:
        output.note(
            "no mail goes to it by default:"
            " name it in a route (`pillarbox route add`), or use `up --capture-all`"
        )
    if path:
        output.say(f"its feedback goes to {path}: see `pillarbox provider feedback --help`")
