"""A Provider: a configured account with its secret; and what each kind's settings are."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from pillarbox.errors import SettingsError
from pillarbox.model.secret import Secret

# Seed 002: a provider's API gets this long for a whole call.
HTTP_TIMEOUT = 30.0
# How every P-256 public key in DER begins; the point itself, 64 bytes, follows.
_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_ACCESS_KEY = re.compile(r"\w{4,128}", re.ASCII)
_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w.-]{1,256}", re.ASCII)
_DOMAIN = re.compile(
    r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9-]{2,63}", re.IGNORECASE
)
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
MAILGUN_HOSTS = {"us": "https://api.mailgun.net", "eu": "https://api.eu.mailgun.net"}


class Tls(StrEnum):
    STARTTLS = "starttls"  # required and verified; fails closed
    IMPLICIT = "implicit"  # TLS from the first byte (port 465)
    OPPORTUNISTIC = (
        "opportunistic"  # used when offered, unverified; never carries credentials in clear
    )
    NONE = "none"  # only when asked for


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """How to reach one SMTP server. Every limit says why."""

    host: str
    port: int = 587
    tls: Tls = Tls.STARTTLS
    username: str | None = None
    password: Secret | None = None
    ca_file: str | None = None  # extra trust anchors, for servers with a private CA
    helo: str | None = None  # our name in EHLO; the machine's own when not set
    connections: int = 10  # polite to a shared relay, and enough to hide its latency
    connect_timeout: float = 30.0  # a healthy server answers in well under a second
    command_timeout: float = 30.0  # longer than any healthy server thinks about a command
    data_timeout: float = (
        600.0  # RFC 5321 4.5.3.2.6: a server may think ten minutes about the final dot
    )
    max_messages: int = 1000  # per connection: spreads load over a balancer's back ends
    max_age: float = 300.0  # seconds per connection: picks up DNS and certificate changes
    max_idle: float = 30.0  # below the five minutes after which servers hang up


@dataclass(frozen=True, slots=True)
class SendgridSettings:
    """A SendGrid account."""

    key: Secret | None = None
    url: str = "https://api.sendgrid.com"  # https://api.eu.sendgrid.com keeps mails in the EU
    connections: int = 10  # enough to hide the latency
    timeout: float = HTTP_TIMEOUT
    webhook_key: str | None = (
        None  # the public key that its events are signed with, as SendGrid shows it
    )

    def __post_init__(self) -> None:
        _check_call(self.url, self.connections, self.timeout)
        if self.webhook_key is not None and not _is_p256(self.webhook_key):
            raise SettingsError(
                "webhook_key: not a public key as SendGrid shows it (P-256, base64)"
            )


@dataclass(frozen=True, slots=True)
class SesSettings:
    """Amazon SES in one region."""

    region: str
    access_key_id: str
    secret_key: Secret | None = None
    url: str | None = None  # when not the region's own
    configuration_set: str | None = None
    connections: int = 10
    timeout: float = HTTP_TIMEOUT
    topics: Sequence[str] = ()  # the SNS topics whose messages are believed

    def __post_init__(self) -> None:
        _check_match("region", _REGION, self.region, "a region such as eu-west-1")
        _check_match(
            "access_key_id", _ACCESS_KEY, self.access_key_id, "an access key id such as AKIA…"
        )
        if self.configuration_set is not None:
            _check_match(
                "configuration_set", _NAME, self.configuration_set, "a configuration set's name"
            )
        for topic in self.topics:
            _check_match(
                "topics", _TOPIC, topic, "a topic such as arn:aws:sns:eu-west-1:123456789012:mail"
            )
        _check_call(self.endpoint, self.connections, self.timeout)

    @property
    def endpoint(self) -> str:
        china = ".cn" if self.region.startswith("cn-") else ""
        return self.url or f"https://email.{self.region}.amazonaws.com{china}"


@dataclass(frozen=True, slots=True)
class MailgunSettings:
    """One sending domain of a Mailgun account."""

    domain: str
    region: str = "us"
    key: Secret | None = None
    url: str | None = None  # when not the region's own
    connections: int = 10
    timeout: float = HTTP_TIMEOUT

    def __post_init__(self) -> None:
        _check_match("domain", _DOMAIN, self.domain, "a domain such as mg.example.com")
        if self.region not in MAILGUN_HOSTS:
            raise SettingsError(
                f"region: {self.region!r} must be one of {', '.join(MAILGUN_HOSTS)}"
            )
        _check_call(self.endpoint, self.connections, self.timeout)

    @property
    def endpoint(self) -> str:
        return self.url or MAILGUN_HOSTS[self.region]


HttpSettings = SendgridSettings | SesSettings | MailgunSettings
# The settings of each kind of HTTP provider, and which of them is the secret.
HTTP_KINDS: Mapping[str, tuple[type[HttpSettings], str]] = {
    "sendgrid": (SendgridSettings, "key"),
    "ses": (SesSettings, "secret_key"),
    "mailgun": (MailgunSettings, "key"),
}


def feedback_path(kind: str, provider_id: int) -> str:
    """Where at the HTTP door a provider's feedback goes."""
    return f"/webhooks/{kind}/{provider_id}"


def http_settings(
    kind: str, given: Mapping[str, Any], secret: Secret | None, connections: int
) -> HttpSettings:
    """A provider's stored settings as its transport wants them; SettingsError says what is wrong with them."""
    made, secret_name = HTTP_KINDS[kind]
    unknown = set(given) - {one.name for one in fields(made)} | set(given) & {secret_name}
    if unknown:
        raise SettingsError(f"unknown settings: {', '.join(sorted(unknown))}")
    try:
        return made(**{"connections": connections} | dict(given) | {secret_name: secret})
    except TypeError as error:
        raise SettingsError(f"settings of a {kind} provider: {error}") from None


def _check_match(name: str, pattern: re.Pattern[str], value: object, wanted: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise SettingsError(f"{name}: {value!r} must be {wanted}")


def _check_call(url: str, connections: int, timeout: float) -> None:
    """What all HTTP providers must keep to: the key never leaves this machine in clear."""
    try:
        parts = urlsplit(url)
        host, user = parts.hostname, parts.username or parts.password
    except (ValueError, AttributeError):
        raise SettingsError(f"url: {url!r} is not a URL") from None
    if (
        not host
        or user
        or parts.query
        or parts.fragment
        or not url.isascii()
        or not url.isprintable()
    ):
        raise SettingsError(
            "url: must be https://HOST, without a user, a password, a question or an anchor"
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


def _is_p256(key: str) -> bool:
    try:
        der = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return False
    return der.startswith(_P256) and len(der) == len(_P256) + 64


@dataclass(frozen=True, slots=True)
class Provider:
    """A configured account; `settings` are the kind's own, without the secret."""

    id: int
    name: str
    kind: str
    settings: Mapping[str, Any]
    secret: Secret | None
    enabled: bool = True
    retry: str | None = None  # the name of a retry policy; the kind's own when not set
    webhook_secret: Secret | None = None  # what its feedback is signed with, where that is a secret
    release_only: bool = field(
        default=False, compare=False
    )  # only where a route or a person names it
    # How fast mails leave through it; the queue keeps these, so that a new limit needs no new
    # connections.
    rate_per_second: int | None = field(default=None, compare=False)
    rate_per_hour: int | None = field(default=None, compare=False)
    rate_per_day: int | None = field(default=None, compare=False)
    # What a thousand mails cost, what a month may cost, and which part of day and month is kept, in
    # percent: for urgent mails only, and for all but bulk.
    price_per_thousand: Decimal | None = field(default=None, compare=False)
    budget_per_month: Decimal | None = field(default=None, compare=False)
    reserve_urgent: int = field(default=10, compare=False)
    reserve_normal: int = field(default=20, compare=False)
