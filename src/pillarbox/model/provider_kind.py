"""What Pillarbox knows about a kind of provider: one record, from which everything else follows."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from pillarbox.errors import SettingsError
from pillarbox.model.secret import Secret

# Seed 002: a provider's API gets this long for a whole call.
HTTP_TIMEOUT = 30.0
_OPTION = "option"


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """What a transport can carry. A mail that exceeds it goes to the next provider of its route."""

    max_bytes: int | None = None  # of the composed mail; None: the server announces its own limit
    max_recipients: int | None = None  # in one send; more are sent in several
    takes_parts: bool = False  # subject, bodies and files; a raw mail cannot go through it


class OptionFormat(StrEnum):
    """Values that the command line reads in a special way."""

    HOST = "host"
    DURATION = "duration"  # 30s, 5m, 2h: stored as seconds
    FILE = "file"  # a readable file: stored as an absolute path


@dataclass(frozen=True, slots=True)
class SettingOption:
    """How a setting is given to `provider add`; its type and default are those of the field."""

    help: str
    metavar: str | None = None
    flag: str | None = None  # the field's name when not set
    format: OptionFormat | None = None
    min: int | None = None
    max: int | None = None
    stores_default: bool = False  # shown in the help, and stored although it was not given
    is_limit: bool = False  # listed under "Limits"
    is_feedback: bool = False  # verifies feedback; `provider feedback` changes it
    is_credential: bool = False  # masked wherever the provider repeats it


@dataclass(frozen=True, slots=True)
class SecretOption:
    """How a secret is given: typed, from stdin (--FLAG-stdin) or a variable (--FLAG-env)."""

    label: str  # what the prompt and errors call it
    flag: str
    stdin_help: str
    env_help: str
    field: str = ""  # the field of the settings that holds it
    is_ascii: bool = True  # it is sent in a header
    login: str | None = None  # the setting with the login; without it there is no secret


@dataclass(frozen=True, slots=True)
class FlagOption:
    """A switch of `provider add` that is checked and not stored."""

    name: str
    help: str


def option(help: str, metavar: str | None = None, **details: Any) -> Mapping[str, Any]:
    """The metadata of a settings field that `provider add` offers as an option."""
    return {_OPTION: SettingOption(help, metavar, **details)}


def option_of(field: Field[Any]) -> SettingOption | None:
    found: SettingOption | None = field.metadata.get(_OPTION)
    return found


Prepare = Callable[[dict[str, Any], Mapping[str, bool]], None]
DescribeServer = Callable[[Mapping[str, Any]], str]


def _named_server(stored: Mapping[str, Any]) -> str:
    values = [stored.get(name) for name in ("url", "domain", "region")]
    return " ".join(str(value) for value in values if value)


@dataclass(frozen=True, slots=True)
class ProviderKind:
    """The record of one kind of provider. Adapters are `module:name`, imported when first used.

    `transport` builds a Transport from the settings and a TransportContext; `feedback` builds a
    Feedback from the Provider and the age in seconds at which its requests are refused.
    """

    name: str  # in `provider add NAME`, in the table `providers` and in the path of its feedback
    help: str  # of `provider add NAME`
    settings: type[Any]  # a frozen dataclass that checks its values
    transport: str
    rank: int  # in the default route: the lowest first
    feedback: str | None = None
    secret: SecretOption | None = None
    webhook_secret: SecretOption | None = None
    flags: tuple[FlagOption, ...] = ()
    prepare: Prepare | None = None  # checks and completes the options of `provider add`
    server: DescribeServer = _named_server  # where it sends, for people
    limits: TransportLimits = TransportLimits()
    retry: str = "esp"  # the default retry policy
    sends_out: bool = True  # False: it keeps mails, and nothing fails over to it
    signs_return_path: bool = False  # bounces come back by mail, to the envelope sender

    def read_settings(
        self, stored: Mapping[str, Any], secret: Secret | None = None, connections: int = 1
    ) -> Any:
        """The stored settings as the transport takes them; SettingsError says what is wrong."""
        names = {field.name for field in fields(self.settings)}
        secret_name = self.secret.field if self.secret else None
        unknown = set(stored) - (names - {secret_name})
        if unknown:
            raise SettingsError(f"unknown settings: {', '.join(sorted(unknown))}")
        values = dict(stored)
        if "connections" in names:
            values.setdefault("connections", connections)
        if secret_name:
            values[secret_name] = secret
        try:
            return self.settings(**values)
        except TypeError as error:
            raise SettingsError(f"settings of a {self.name} provider: {error}") from None

    def options(self) -> list[tuple[Field[Any], SettingOption]]:
        """The settings that people give, in the order of the fields."""
        found = [(field, option_of(field)) for field in fields(self.settings)]
        return [(field, given) for field, given in found if given is not None]

    def defaults(self) -> dict[str, Any]:
        """The default of each setting that has one and is not empty."""
        values = {field.name: field.default for field, _ in self.options()}
        return {name: value for name, value in values.items() if value not in (None, MISSING, ())}

    def feedback_settings(self) -> list[str]:
        return [field.name for field, given in self.options() if given.is_feedback]


# --- checks that settings classes share


def check_match(name: str, pattern: re.Pattern[str], value: object, allowed: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise SettingsError(f"{name}: {value!r} must be {allowed}")


def check_http(url: str, connections: int, timeout: float) -> None:
    """Check what all HTTP providers have; the key never leaves this machine without TLS."""
    try:
        parts = urlsplit(url)
        host, user = parts.hostname, parts.username or parts.password
    except (ValueError, AttributeError):
        raise SettingsError(f"url: {url!r} is not a URL") from None
    is_plain = url.isascii() and url.isprintable()
    if not host or user or parts.query or parts.fragment or not is_plain:
        raise SettingsError(
            "url: must be https://HOST, without a user, a password, a query or a fragment"
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise SettingsError(
            f"url: {url!r} must begin with https://; only this machine itself may do without TLS"
        )
    if not 1 <= connections <= 1000:
        raise SettingsError(f"connections: {connections} must be from 1 to 1000")
    if not 0 < timeout <= 600:
        raise SettingsError(f"timeout: {timeout} must be more than 0 and at most 600 seconds")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- options that HTTP providers share


def api_secret(label: str, field: str) -> SecretOption:
    """The secret of an account, which each call sends in a header or signs with."""
    return SecretOption(
        label=label,
        flag="secret",
        stdin_help="Read it from stdin, a line.",
        env_help="Read it from this variable.",
        field=field,
    )


URL_OPTION = option("Another address of its API; https, but on this machine.", "URL")
CONNECTIONS_OPTION = option(
    "Most calls at a time; worker_concurrency when not given.", min=1, max=1000, is_limit=True
)
TIMEOUT_OPTION = option(
    "For a whole call (30s).", "TIME", format=OptionFormat.DURATION, is_limit=True
)
