"""Mails with a template: rendered here, then accepted like any other mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pillarbox.accept.checks import to_json
from pillarbox.errors import InvalidMail

if TYPE_CHECKING:
    from pillarbox.accept.mail import Mail
    from pillarbox.api.new_message import NewMessage
    from pillarbox.app import App

# Bytes of `data` as JSON: a long order fits. Templates may use each value several times.
MAX_DATA_BYTES = 64 * 1024
_MADE = ("subject", "text", "html", "raw")


def mail_of(
    app: App, message: NewMessage, key: str | None, more: Mapping[str, Any] | None = None
) -> Mail:
    """The mail of a request, rendered if it has a template; `more` is data of one recipient."""
    mail = message.to_mail(key)
    if message.template is None:
        _check_no_template(message)
        return mail
    data = {**(message.data or {}), **(more or {})}
    _check_template(message, data)
    rendered = app.lifecycle.templates_for(message.template).render(
        message.template, message.locale, data
    )
    kind = message.kind or message.template.replace("/", "_")
    return replace(
        mail, subject=rendered.subject, text=rendered.text, html=rendered.html, kind=kind
    )


def _check_no_template(message: NewMessage) -> None:
    for name in ("locale", "data"):
        if getattr(message, name) is not None:
            raise InvalidMail(
                "bad_value", name, "is allowed only with a template", "add `template`, or omit it"
            )


def _check_template(message: NewMessage, data: Mapping[str, Any]) -> None:
    for name in _MADE:
        if getattr(message, name) is not None:
            raise InvalidMail(
                "bad_value",
                name,
                "is set by the template",
                "omit it, or omit the template",
            )
    try:
        size = len(to_json(data).encode())
    except ValueError:
        raise InvalidMail("bad_value", "data", "cannot be encoded as JSON in UTF-8") from None
    if size > MAX_DATA_BYTES:
        raise InvalidMail(
            "too_big",
            "data",
            "must be at most 64 KiB as JSON",
            "send only the values that the template uses",
        )
