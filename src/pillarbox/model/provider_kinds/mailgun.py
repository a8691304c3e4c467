"""`mailgun`: one sending domain of a Mailgun account."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pillarbox.errors import SettingsError
from pillarbox.model.provider_kind import (
    CONNECTIONS_OPTION,
    HTTP_TIMEOUT,
    TIMEOUT_OPTION,
    URL_OPTION,
    ProviderKind,
    SecretOption,
    TransportLimits,
    api_secret,
    check_http,
    check_match,
    option,
)
from pillarbox.model.secret import Secret

HOSTS = {"us": "https://api.mailgun.net", "eu": "https://api.eu.mailgun.net"}
_DOMAIN = re.compile(
    r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9-]{2,63}", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class MailgunSettings:
    """One sending domain of a Mailgun account."""

    domain: str = field(metadata=option("The sending domain.", "DOMAIN"))
    region: str = field(
        default="us", metadata=option("Where it is.", "|".join(HOSTS), stores_default=True)
    )
    key: Secret | None = None
    url: str | None = field(default=None, metadata=URL_OPTION)  # when not the region's own
    connections: int = field(default=10, metadata=CONNECTIONS_OPTION)
    timeout: float = field(default=HTTP_TIMEOUT, metadata=TIMEOUT_OPTION)

    def __post_init__(self) -> None:
        check_match("domain", _DOMAIN, self.domain, "a domain such as mg.example.com")
        if self.region not in HOSTS:
            raise SettingsError(f"region: {self.region!r} must be one of {', '.join(HOSTS)}")
        check_http(self.endpoint, self.connections, self.timeout)

    @property
    def endpoint(self) -> str:
        return self.url or HOSTS[self.region]


KIND = ProviderKind(
    name="mailgun",
    help="""Add a domain at Mailgun. Its API key is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add mailgun mg --domain mg.example.com --secret-env MAILGUN_API_KEY \\
        --webhook-secret-env MAILGUN_SIGNING_KEY
      pillarbox provider add mailgun mg --domain mg.example.com --region eu
    """,
    settings=MailgunSettings,
    transport="pillarbox.deliver.transports.mailgun:build_transport",
    feedback="pillarbox.track.feedback.mailgun:MailgunFeedback",
    rank=30,
    secret=api_secret("API key", "key"),
    webhook_secret=SecretOption(
        label="webhook signing key",
        flag="webhook-secret",
        stdin_help="Read the webhook signing key from stdin, a line of its own.",
        env_help="Read the webhook signing key from this variable.",
    ),
    # Mailgun takes 25 MB in a call, and 1,000 recipients: a hundred, so that one refusal delays
    # fewer.
    limits=TransportLimits(max_bytes=25_000_000, max_recipients=100),
)
