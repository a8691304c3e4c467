"""Writes mails to accounts and administrators, in the words of their portal and language."""

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
# The action and template whose code is made when it is mailed, and stored as a hash only.
SIGN_IN_CODE = "sign_in_code"
# A legal address that belongs to no mailbox: mails in development are captured, not delivered.
DEVELOPMENT_SENDER = "Pillarbox <pillarbox@localhost.localdomain>"


class LifecycleRecipient(NamedTuple):
    """The account or administrator that a mail is for."""

    email: str
    login: str
    name: str | None
    portal: str = "admin"
    locale: str | None = None
    data: Mapping[str, Any] = {}  # the account's own data, for templates


class MailDetails(NamedTuple):
    """What a mail is about; by default, a code to sign in with."""

    expires_at: datetime
    seconds: float  # until expires_at
    code: str | None
    link: str | None = None
    action: str = SIGN_IN_CODE
    template: str = SIGN_IN_CODE
    lane: str = "urgent"
    metadata: Mapping[str, Any] | None = None


class MailWriter:
    """Renders mails from templates."""

    def __init__(self, templates: Callable[[], Templates], settings: Settings) -> None:
        self._templates = templates
        self._settings = settings

    def write_code(
        self,
        recipient: LifecycleRecipient,
        tenant: Tenant,
        issued: IssuedCode,
    ) -> Mail:
        """The mail with a code to sign in with."""
        details = MailDetails(issued.expires_at, issued.seconds, issued.code)
        return self.write(recipient, details, tenant)

    def write(
        self,
        recipient: LifecycleRecipient,
        details: MailDetails,
        tenant: Tenant,
    ) -> Mail:
        """The mail; RenderError if the template fails."""
        templates = self._templates()
        template = f"{recipient.portal}/{details.template}"
        data = _template_data(recipient, details)
        rendered = templates.render(template, recipient.locale, data)
        # A late notice is still useful; a late link or code is not.
        expires_at = None
        if details.link or details.code:
            expires_at = details.expires_at
        return Mail(
            sender=sender_of(self._settings, templates.portal(recipient.portal), tenant),
            to=recipient.email,
            subject=rendered.subject,
            text=rendered.text,
            html=rendered.html,
            class_=CLASS,
            kind=f"{recipient.portal}_{details.template}",
            priority=details.lane,
            expires_at=expires_at,
            metadata=details.metadata,
            tenant=tenant.name,
        )


def _template_data(recipient: LifecycleRecipient, details: MailDetails) -> dict[str, Any]:
    """The variables of a template."""
    account = {
        "login": recipient.login,
        "name": recipient.name or recipient.login,
        "email": recipient.email,
    }
    return {
        **recipient.data,
        "account": account,
        "action": details.action,
        "link": details.link,
        "code": details.code,
        "expires_minutes": max(1, round(details.seconds / 60)),
        "expires_at": details.expires_at,
    }


def sender_of(
    settings: Settings,
    portal: Portal,
    tenant: Tenant,
) -> str | None:
    """The setting's sender, else the portal's, else the tenant's; never None in development."""
    sender = settings.lifecycle_sender or portal.sender or tenant.default_sender
    if sender:
        return sender
    if settings.is_development:
        return DEVELOPMENT_SENDER
    return None
