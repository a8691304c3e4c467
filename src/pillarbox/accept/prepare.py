"""Checks a mail of HTTP, SMTP or the collector, and writes it as the store takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pillarbox.accept.checks import check, check_sender, to_json
from pillarbox.accept.headers import sender_domains, subject_of
from pillarbox.accept.mail import (
    REQUEST_FIELDS,
    STORED_FIELDS,
    Mail,
    attachment_fields,
    listed,
)
from pillarbox.errors import NotAllowed
from pillarbox.model import access
from pillarbox.model.access import Principal, Scope, Tenant, check_allowed, require
from pillarbox.model.delivery import LANES, ROLES
from pillarbox.model.raw_mail import with_crlf
from pillarbox.store.intake import MailRow, TenantKey, one_or_array

_LANES = {name: number for number, name in enumerate(LANES)}


class PreparedMail(NamedTuple):
    """A checked mail on its way into the store."""

    row: MailRow
    recipients: Sequence[tuple[int, str, str]]  # recipient number, role, address
    source: str
    key: TenantKey | None  # its idempotency key with its tenant
    mail: Mail


def prepare_mail(
    principal: Principal, mail: Mail, received: str | None, source: str
) -> PreparedMail:
    """Check a mail and write it as a row; raises InvalidMail or NotAllowed."""
    tenant = require(principal, Scope.SEND)
    size = check(mail)
    sender = _sender(mail, tenant)
    recipients = _recipients(mail)
    check_allowed(principal, sender, [address for address, _ in recipients], size)
    raw = None
    if mail.raw is not None:
        raw = with_crlf(bytes(mail.raw))
        check_from(principal, raw)
    roles: dict[str, str] = {}
    for address, role in recipients:
        roles.setdefault(address, role)  # the first mention of an address counts
    row = MailRow(
        tenant.id,
        size,
        _LANES[mail.priority],
        tenant.default_class if mail.class_ is None else mail.class_,
        sender,
        one_or_array(listed(mail.to)),
        mail.subject or (subject_of(raw) if raw else ""),
        one_or_array(list(roles)),
        "".join(roles.values()),
        mail.text,
        mail.html,
        raw,
        _attachments(mail),
        _fields(mail, received),
        mail.idempotency_key,
    )
    numbered = [(n, ROLES[role], address) for n, (address, role) in enumerate(roles.items())]
    key = None if row.key is None else (tenant.id, row.key)
    return PreparedMail(row, numbered, source, key, mail)


def _sender(mail: Mail, tenant: Tenant) -> str:
    if mail.tenant not in ("default", tenant.name):
        raise NotAllowed("tenant", "tenant", "this is not your tenant", "leave it out")
    if mail.sender is not None:
        return mail.sender
    check_sender(tenant.default_sender or "")  # it may be older than the rules
    return tenant.default_sender or ""


def check_from(principal: Principal, raw: bytes) -> None:
    """Raise if a raw mail (with CRLF) shows a sender in a domain that the principal may not use."""
    tenant = principal.tenant
    if principal.sender_domains or (tenant is not None and tenant.sender_domains):
        for domain in sender_domains(raw):
            access.check_sender(principal, f"@{domain}", "From")


def _recipients(mail: Mail) -> list[tuple[str, str]]:
    """The addresses and their roles, in the order in which they are numbered."""
    found = [(_bare(mailbox), "t") for mailbox in listed(mail.to)]
    if mail.cc:
        found += [(_bare(mailbox), "c") for mailbox in listed(mail.cc)]
    if mail.bcc:
        found += [(_bare(mailbox), "b") for mailbox in listed(mail.bcc)]
    return found


def _bare(mailbox: str) -> str:
    if mailbox[-1] == ">":
        return mailbox[:-1].rpartition("<")[2]
    return mailbox


def _attachments(mail: Mail) -> str | None:
    if not mail.attachments:
        return None
    return to_json([attachment_fields(attachment) for attachment in mail.attachments])


def _fields(mail: Mail, received: str | None) -> str | None:
    """The JSON `fields` of `_store_mails`; with an idempotency key, the whole request."""
    if received is not None:
        return to_json({"headers": {"Received": received}})
    fields = STORED_FIELDS if mail.idempotency_key is None else REQUEST_FIELDS
    given = fields.given(mail)
    if not given:
        return None
    return to_json(given)
