"""`provider feedback`: where a provider's feedback goes, and what verifies it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext
from pillarbox.cli.provider_options import (
    Values,
    given_settings,
    is_secret_given,
    read_given_secret,
    secret_parameters,
    setting_parameter,
)
from pillarbox.errors import SettingsError
from pillarbox.model.provider import Provider, feedback_path
from pillarbox.model.provider_kind import ProviderKind, SettingOption
from pillarbox.model.provider_kinds import KINDS, kind_of
from pillarbox.model.secret import Secret
from pillarbox.store import catalog, providers

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name in `provider list`.")]


def feedback_command() -> Callable[..., Any]:
    """The command with the options that verify feedback, of all kinds."""
    own = list(inspect.signature(feedback, eval_str=True).parameters.values())[:-1]

    async def run(context: CommandContext, name: str, **values: Any) -> None:
        await feedback(context, name, **values)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own, *_parameters().values()]
    )
    run.__doc__ = feedback.__doc__
    return run


async def feedback(context: CommandContext, name: Name, **values: Any) -> None:
    """Show where a provider's feedback must be sent, and change what verifies it.

    Options that are not given stay as they are.

    \b
    Examples:
      pillarbox provider feedback sg --webhook-key MFkwEwYHKoZIzj0CAQYI…
      pillarbox provider feedback ses --topic arn:aws:sns:eu-west-1:123456789012:mail
      pillarbox provider feedback mg --webhook-secret-env MAILGUN_SIGNING_KEY
    """
    async with context.app() as app:
        provider = await providers.get_provider(app.database, name)
        changed, secret = _read(provider, values)
        if changed or secret:
            await providers.set_feedback(app.database, app.keys, provider, changed, secret)
        sealed = (provider.id, "webhook_secret") in await catalog.sealed_providers(app.database)
    path = feedback_path(provider.kind, provider.id)
    if context.json:
        output.print_json({"name": name, "webhook": path, "changed": bool(changed or secret)})
        return
    word = "changed" if changed or secret else "unchanged"
    output.say(f"{word}; its feedback goes to {path} of your public address")
    settings = dict(provider.settings) | changed
    if not sealed and not any(settings.get(one) for one in _kind(provider).feedback_settings()):
        output.note(
            "no feedback is accepted yet: give what verifies it, see"
            " `pillarbox provider feedback --help`"
        )


def _parameters() -> dict[str, inspect.Parameter]:
    """The options of all kinds by name; kinds may share one."""
    found: dict[str, inspect.Parameter] = {}
    for _, _, parameter in _settings():
        found.setdefault(parameter.name, parameter)
    for kind in KINDS.values():
        if kind.webhook_secret:
            for parameter in secret_parameters(kind.webhook_secret):
                found.setdefault(parameter.name, parameter)
    return found


def _settings() -> Iterator[tuple[ProviderKind, SettingOption, inspect.Parameter]]:
    for kind in KINDS.values():
        hints = get_type_hints(kind.settings)
        for field, option in kind.options():
            if option.is_feedback:
                yield kind, option, setting_parameter(field, option, hints[field.name])


def _kind(provider: Provider) -> ProviderKind:
    return kind_of(provider.kind)


def _read(provider: Provider, values: Values) -> tuple[Values, Secret | None]:
    """The given settings and secret; BadParameter if the provider cannot have them."""
    kind = _kind(provider)
    if kind.feedback is None:
        raise typer.BadParameter(
            f"{provider.name} is of kind {provider.kind}, which gives no feedback by HTTP"
        )
    own = kind.feedback_settings()
    changed = given_settings([name for name in values if name in _setting_names()], values)
    for other, option, parameter in _settings():
        if parameter.name in changed and parameter.name not in own:
            flag = option.flag or "--" + parameter.name.replace("_", "-")
            raise typer.BadParameter(
                f"{flag} is for {other.name}, and {provider.name} is of kind {provider.kind}"
            )
    try:
        kind.read_settings(dict(provider.settings) | changed)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    return changed, _read_secret(kind, values)


def _setting_names() -> set[str]:
    return {parameter.name for _, _, parameter in _settings()}


def _read_secret(kind: ProviderKind, values: Values) -> Secret | None:
    for other in KINDS.values():
        secret = other.webhook_secret
        if secret is None or not is_secret_given(secret, values):
            continue
        if kind.webhook_secret is None:
            raise typer.BadParameter(f"{kind.name} has no webhook signing key")
        return read_given_secret(kind.webhook_secret, values)
    return None
