"""`sendgrid`: an account at SendGrid."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from pillarbox.errors import SettingsError
from pillarbox.model.provider_kind import (
    CONNECTIONS_OPTION,
    HTTP_TIMEOUT,
    TIMEOUT_OPTION,
    URL_OPTION,
    ProviderKind,
    TransportLimits,
    api_secret,
    check_http,
    option,
)
from pillarbox.model.secret import Secret

# How every P-256 public key in DER begins; the point itself, 64 bytes, follows.
_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")


@dataclass(frozen=True, slots=True)
class SendgridSettings:
    """A SendGrid account."""

    key: Secret | None = None
    # The public key that its events are signed with.
    webhook_key: str | None = field(
        default=None,
        metadata=option(
            "The public key of the event webhook, as SendGrid shows it.", "KEY", is_feedback=True
        ),
    )
    # https://api.eu.sendgrid.com keeps mails in the EU.
    url: str = field(default="https://api.sendgrid.com", metadata=URL_OPTION)
    connections: int = field(default=10, metadata=CONNECTIONS_OPTION)  # hides the latency
    timeout: float = field(default=HTTP_TIMEOUT, metadata=TIMEOUT_OPTION)

    def __post_init__(self) -> None:
        check_http(self.url, self.connections, self.timeout)
        if self.webhook_key is not None and not _is_p256(self.webhook_key):
            raise SettingsError(
                "webhook_key: not a public key as SendGrid shows it (P-256, base64)"
            )


def _is_p256(key: str) -> bool:
    try:
        der = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return False
    return der.startswith(_P256) and len(der) == len(_P256) + 64


KIND = ProviderKind(
    name="sendgrid",
    help="""Add a SendGrid account. Its API key is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add sendgrid sg --secret-env SENDGRID_API_KEY
      pillarbox provider add sendgrid sg-eu --url https://api.eu.sendgrid.com
    """,
    settings=SendgridSettings,
    transport="pillarbox.deliver.transports.sendgrid:build_transport",
    feedback="pillarbox.track.feedback.sendgrid:SendGridFeedback",
    rank=10,
    secret=api_secret("API key", "key"),
    # SendGrid takes 30 MB in a call, files in base64 included, and 1,000 recipients: a hundred, so
    # that one refusal delays fewer.
    limits=TransportLimits(max_bytes=30_000_000, max_recipients=100, takes_parts=True),
)
