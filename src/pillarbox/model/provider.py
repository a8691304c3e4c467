"""A Provider: a configured account with its secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pillarbox.model.secret import Secret


class Tls(StrEnum):
    STARTTLS = "starttls"  # required and verified; fails closed
    IMPLICIT = "implicit"  # TLS from the first byte (port 465)
    OPPORTUNISTIC = "opportunistic"  # used when offered, unverified; never carries credentials in clear
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
    data_timeout: float = 600.0  # RFC 5321 4.5.3.2.6: a server may think ten minutes about the final dot
    max_messages: int = 1000  # per connection: spreads load over a balancer's back ends
    max_age: float = 300.0  # seconds per connection: picks up DNS and certificate changes
    max_idle: float = 30.0  # below the five minutes after which servers hang up


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
    # How fast mails leave through it; the queue keeps these, so that a new limit needs no new connections.
    rate_per_second: int | None = field(default=None, compare=False)
    rate_per_hour: int | None = field(default=None, compare=False)
    rate_per_day: int | None = field(default=None, compare=False)
