"""`smtp`: any SMTP server that relays our mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pillarbox.errors import SettingsError
from pillarbox.model.provider_kind import (
    FlagOption,
    OptionFormat,
    ProviderKind,
    SecretOption,
    option,
)
from pillarbox.model.secret import Secret

IMPLICIT_PORT = 465  # RFC 8314


class Tls(StrEnum):
    STARTTLS = "starttls"  # required and verified; fails closed
    IMPLICIT = "implicit"  # TLS from the first byte (port 465)
    # Used when offered, unverified; never sends credentials without TLS.
    OPPORTUNISTIC = "opportunistic"
    NONE = "none"  # only when asked for


def _limit(help: str, metavar: str | None = None, **details: Any) -> Mapping[str, Any]:
    return option(help, metavar, is_limit=True, **details)


def _time(help: str) -> Mapping[str, Any]:
    return _limit(help, "TIME", format=OptionFormat.DURATION)


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """How to reach one SMTP server. Every limit has its reason."""

    host: str = field(metadata=option("The SMTP server.", "HOST", format=OptionFormat.HOST))
    port: int = field(
        default=587,
        metadata=option("587, or 465 with --tls implicit.", "PORT", min=1, max=65535),
    )
    tls: Tls = field(
        default=Tls.STARTTLS,
        metadata=option("How the connection is protected.", stores_default=True),
    )
    username: str | None = field(default=None, metadata=option("To log in with.", "NAME"))
    password: Secret | None = None
    # Additional trust anchors, for servers with a private CA.
    ca_file: str | None = field(
        default=None,
        metadata=option(
            "Trust this CA, too: for servers with a private one.", "FILE", format=OptionFormat.FILE
        ),
    )
    # Our name in EHLO; the machine's own when not set.
    helo: str | None = field(
        default=None, metadata=option("Our name in EHLO; this machine's when not given.", "NAME")
    )
    # Polite to a shared relay, and enough to hide its latency.
    connections: int = field(
        default=10,
        metadata=_limit("Most connections; worker_concurrency when not given.", min=1, max=1000),
    )
    # A healthy server answers in well under a second.
    connect_timeout: float = field(
        default=30.0, metadata=_time("For connecting and logging in (30s).")
    )
    # Longer than any healthy server thinks about a command.
    command_timeout: float = field(default=30.0, metadata=_time("For each answer (30s)."))
    # RFC 5321 4.5.3.2.6: a server may think ten minutes about the final dot.
    data_timeout: float = field(
        default=600.0, metadata=_time("For the answer to a whole mail (10m).")
    )
    # Per connection: spreads load over a balancer's back ends.
    max_messages: int = field(
        default=1000, metadata=_limit("Mails per connection (1000).", min=1, max=1_000_000)
    )
    # Seconds per connection: picks up DNS and certificate changes.
    max_age: float = field(default=300.0, metadata=_time("Age of a connection (5m)."))
    # Below the five minutes after which servers hang up.
    max_idle: float = field(default=30.0, metadata=_time("Idle time of a connection (30s)."))

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "tls", Tls(self.tls))
        except ValueError:
            raise SettingsError(f"tls: {self.tls!r} must be one of {', '.join(Tls)}") from None


def _prepare(settings: dict[str, Any], flags: Mapping[str, bool]) -> None:
    """Refuse a password without TLS, and set the port of implicit TLS."""
    tls = settings["tls"]
    if tls == Tls.NONE and "username" in settings and not flags["insecure"]:
        raise SettingsError(
            "--tls none would send the password in clear: use TLS, or add --insecure"
        )
    if tls == Tls.IMPLICIT:
        settings.setdefault("port", IMPLICIT_PORT)


def _server(stored: Mapping[str, Any]) -> str:
    return f"{stored.get('host')}:{stored.get('port', 587)}"


KIND = ProviderKind(
    name="smtp",
    help="""Add an SMTP server. The password is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add smtp relay --host smtp.example.com --username me
      pillarbox provider add smtp relay --host smtp.example.com --tls implicit \\
        --username me --password-env SMTP_PW
      pillarbox provider add smtp local --host 127.0.0.1 --port 1025 --tls none
    """,
    settings=SmtpSettings,
    transport="pillarbox.deliver.transports.smtp:build_transport",
    rank=40,
    secret=SecretOption(
        label="password",
        flag="password",
        stdin_help="Read the password from stdin.",
        env_help="Read the password from this variable.",
        field="password",
        is_ascii=False,
        login="username",
    ),
    flags=(FlagOption("insecure", "Send the password without TLS; only for a network you trust."),),
    prepare=_prepare,
    server=_server,
    retry="quadratic",  # servers grey-list for minutes and recover within hours
    signs_return_path=True,
)
