"""The options of `provider add` and `provider feedback`, as declared by the kinds."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field
from typing import Annotated, Any, get_args, get_type_hints

import typer

from pillarbox.cli import options
from pillarbox.cli.secret_input import is_given, read_secret
from pillarbox.model.provider_kind import (
    FlagOption,
    OptionFormat,
    ProviderKind,
    SecretOption,
    SettingOption,
)
from pillarbox.model.provider_kinds import KINDS
from pillarbox.model.retry import POLICIES
from pillarbox.model.secret import Secret
from pillarbox.setting_kinds import HOST

Values = dict[str, Any]


def positive(value: str) -> float:
    seconds = options.seconds(value)
    if seconds <= 0:
        raise typer.BadParameter(f"{value!r}: must be more than nothing")
    return seconds


def _host(value: str) -> str:
    try:
        return str(HOST.read(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r}: must be {HOST.allowed}") from None


def _readable_file(value: str) -> str:
    """The absolute path of a file: workers read it from other directories."""
    if not os.access(value, os.R_OK):
        raise typer.BadParameter(f"{value} cannot be read")
    return os.path.abspath(value)


def _policy(value: str) -> str:
    if value not in POLICIES:
        raise typer.BadParameter(f"{value!r}: must be one of {', '.join(POLICIES)}")
    return value


PARSERS: dict[OptionFormat, Callable[[str], Any]] = {
    OptionFormat.HOST: _host,
    OptionFormat.DURATION: positive,
    OptionFormat.FILE: _readable_file,
}
_QUADRATIC = " and ".join(kind.name for kind in KINDS.values() if kind.retry == "quadratic")
RETRY = typer.Option(
    "--retry",
    metavar="POLICY",
    parser=_policy,
    help=f"quadratic (default of {_QUADRATIC}), esp (default of the others) or lifecycle.",
)
RELEASE_ONLY = typer.Option(
    "--release-only", help="Use it only where a route or a person names it, never by default."
)
NAME = typer.Argument(parser=options.name, metavar="NAME", help="What to call it.")


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def add_parameters(kind: ProviderKind) -> list[inspect.Parameter]:
    """The parameters of `provider add KIND`: its settings, its secrets, and what all kinds have."""
    hints = get_type_hints(kind.settings)
    given = {field.name: (field, option) for field, option in kind.options()}
    own: list[inspect.Parameter] = []
    limits: list[inspect.Parameter] = []
    for name, hint in hints.items():
        if kind.secret and name == kind.secret.field:
            own += _secret_parameters(kind)
        if name in given:
            field, option = given[name]
            (limits if option.is_limit else own).append(setting_parameter(field, option, hint))
    shared = [parameter("retry", Annotated[str | None, RETRY])]
    if kind.sends_out:
        shared.append(parameter("release_only", Annotated[bool, RELEASE_ONLY], False))
    return [
        parameter("name", Annotated[str, NAME], inspect.Parameter.empty),
        *own,
        *shared,
        *limits,
    ]


def _secret_parameters(kind: ProviderKind) -> Iterator[inspect.Parameter]:
    assert kind.secret is not None
    yield from secret_parameters(kind.secret)
    if kind.webhook_secret:
        yield from secret_parameters(kind.webhook_secret)
    for flag in kind.flags:
        yield _flag_parameter(flag)


def setting_parameter(field: Field[Any], option: SettingOption, hint: Any) -> inspect.Parameter:
    """The option of one setting: required if the field has no default, else None when not given."""
    is_required = field.default is MISSING
    details: Values = {"help": option.help, "metavar": option.metavar}
    if option.format:
        details["parser"] = PARSERS[option.format]
    if option.min is not None:
        details |= {"min": option.min, "max": option.max, "show_default": False}
    if option.is_limit:
        details |= {"rich_help_panel": "Limits", "show_default": False}
    flag = option.flag or "--" + field.name.replace("_", "-")
    value_type = _option_type(hint)
    default: Any = None
    if is_required:
        default = inspect.Parameter.empty
    elif option.stores_default:
        default = field.default
    else:
        value_type = value_type | None
    return parameter(field.name, Annotated[value_type, typer.Option(flag, **details)], default)


def _option_type(hint: Any) -> Any:
    """The type of one value: list[str] for a Sequence, T for T | None."""
    if getattr(hint, "__origin__", None) is not None and get_args(hint) == (str,):
        return list[str]
    kinds = [one for one in get_args(hint) if one is not type(None)]
    return kinds[0] if kinds else hint


def secret_parameters(secret: SecretOption) -> list[inspect.Parameter]:
    name = secret.flag.replace("-", "_")
    stdin = typer.Option(f"--{secret.flag}-stdin", help=secret.stdin_help)
    env = typer.Option(f"--{secret.flag}-env", metavar="VAR", help=secret.env_help)
    return [
        parameter(f"{name}_stdin", Annotated[bool, stdin], False),
        parameter(f"{name}_env", Annotated[str | None, env]),
    ]


def _flag_parameter(flag: FlagOption) -> inspect.Parameter:
    option = typer.Option("--" + flag.name.replace("_", "-"), help=flag.help)
    return parameter(flag.name, Annotated[bool, option], False)


# --- what was given


def given_settings(names: Sequence[str], values: Values) -> Values:
    """The settings that were given; an option that may be repeated is empty when it was not."""
    return {name: values[name] for name in names if values[name] not in (None, [])}


def is_secret_given(secret: SecretOption, values: Values) -> bool:
    return is_given(secret.flag, *_sources(secret, values))


def read_given_secret(secret: SecretOption, values: Values, login: str | None = None) -> Secret:
    """The secret from where the options say; asked for on a terminal."""
    stdin, env = _sources(secret, values)
    return read_secret(secret.label, secret.flag, stdin, env, of=login, plain=secret.is_ascii)


def _sources(secret: SecretOption, values: Values) -> tuple[bool, str | None]:
    name = secret.flag.replace("-", "_")
    return values[f"{name}_stdin"], values[f"{name}_env"]
