"""Redaction of what a provider says: it may repeat its own credentials."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox.model.provider import Provider
from pillarbox.model.provider_kind import OptionFormat
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.redaction import Redactor
from pillarbox.model.secret import Secret, masked

# The login of HTTP providers that use Basic authentication and have no other.
API_LOGIN = "api"


def provider_redactor(redactor: Redactor, provider: Provider) -> Callable[[str], str]:
    """Redacts a text of a provider, and masks its credentials in it."""
    redact: Callable[[str], str] = redactor
    known = [secret for secret in (provider.secret, provider.webhook_secret) if secret]
    for field, option in kind_of(provider.kind).options():
        value = provider.settings.get(field.name)
        if value and option.format is OptionFormat.HOST:
            redact = redactor.hosts(value)
        elif value and option.is_credential:
            known.append(Secret(str(value)))
    if not known:
        return redact
    login = provider.settings.get("username", API_LOGIN)

    def mask_and_redact(text: str) -> str:
        for secret in known:
            text = masked(text, secret, login)
        return redact(text)

    return mask_and_redact
