"""Mails to accounts and administrators, in the words of their portal and language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.accept.mail import Mail

if TYPE_CHECKING:
    from pillarbox.lifecycle.one_time_codes import IssuedCode
    from pillarbox.lifecycle.portals import Portal
    from pillarbox.lifecycle.rendering import Templates
    from pillarbox.model.access import Tenant
    from pillarbox.settings import Settings

CLASS = "lifecycle"
# The action, and the template, whose code is made when it is mailed, and kept as a hash only.
SIGN_IN_CODE = "sign_in_code"
# Legal, and nobody's: what is mailed in development is captured, not delivered.
DEVELOPMENT = "Pillarbox <pillarbox@localhost.localdomain>"


class LifecycleRecipient(NamedTuple):
    """Who a mail is for."""

    email: str
    login: str
    name: str | None
    portal: str = "admin"
    locale: str | None = None
    data: Mapping[str, Any] = {}  # of the account's own, for templates


class MailDetails(NamedTuple):
    """What a mail is about: by default, a code to sign in with."""

    expires_at: datetime
    seconds: float  # until then
    code: str | None
    link: str | None = None
    action: str = SIGN_IN_CODE
    template: str = SIGN_IN_CODE
    lane: str = "urgent"
    metadata: Mapping[str, Any] | None = None


class MailWriter:
    """Writes them."""

    def __init__(self, templates: Callable[[], Templates], settings: Settings) -> None:
        self._templates = templates
        self._settings = settings

    def write_code(self, reader: LifecycleRecipient, tenant: Tenant, made: IssuedCode) -> Mail:
        """The mail with a code to sign in with."""
        return self.write(reader, MailDetails(made.expires_at, made.seconds, made.code), tenant)

    def write(self, reader: LifecycleRecipient, matter: MailDetails, tenant: Tenant) -> Mail:
        """The mail; RenderError where the template does not allow it."""
        templates = self._templates()
        said = templates.render(
            f"{reader.portal}/{matter.template}", reader.locale, _data(reader, matter)
        )
        return Mail(
            sender=sender_of(self._settings, templates.portal(reader.portal), tenant),
            to=reader.email,
            subject=said.subject,
            text=said.text,
            html=said.html,
            class_=CLASS,
            kind=f"{reader.portal}_{matter.template}",
            priority=matter.lane,
            # A notice is worth reading later, too; a link or code that came too late would only
            # annoy.
            expires_at=matter.expires_at if matter.link or matter.code else None,
            metadata=matter.metadata,
            tenant=tenant.name,
        )


def _data(reader: LifecycleRecipient, matter: MailDetails) -> dict[str, Any]:
    """What templates see."""
    return {
        **reader.data,
        "account": {
            "login": reader.login,
            "name": reader.name or reader.login,
            "email": reader.email,
        },
        "action": matter.action,
        "link": matter.link,
        "code": matter.code,
        "expires_minutes": max(1, round(matter.seconds / 60)),
        "expires_at": matter.expires_at,
    }


def sender_of(settings: Settings, portal: Portal, tenant: Tenant) -> str | None:
    """The setting's, else the portal's, else the tenant's; in development there is always one."""
    given = settings.lifecycle_sender or portal.sender or tenant.default_sender
    return given or (DEVELOPMENT if settings.is_development else None)
