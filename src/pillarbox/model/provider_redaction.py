"""Redaction of texts from a provider. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox.model.provider import Provider
from pillarbox.model.redaction import Redactor
from pillarbox.model.secret import Secret, masked


def provider_redactor(redactor: Redactor, provider: Provider) -> Callable[[str], str]:
    """Redacts a provider's texts; masks its secrets, in case the provider repeats them."""
    redact: Callable[[str], str] = redactor
    host = provider.settings.get("host")
    if host:
        redact = redactor.hosts(host)
    username = provider.settings.get("username", "api")
    secrets = [secret for secret in (provider.secret, provider.webhook_secret) if secret]
    access_key = provider.settings.get("access_key_id")
    if access_key:
        secrets.append(Secret(str(access_key)))
    if not secrets:
        return redact

    def mask_and_redact(text: str) -> str:
        for secret in secrets:
            text = masked(text, secret, username)
        return redact(text)

    return mask_and_redact
