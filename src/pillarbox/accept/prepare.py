"""A mail handed over at the front door: checked, and written down as it will be stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from pillarbox.accept.checks import check, check_sender, to_json
from pillarbox.accept.headers import sender_domains, subject_of
from pillarbox.accept.mail import Mail, listed
from pillarbox.accept.statements import attachment_fields
from pillarbox.errors import NotAllowed
from pillarbox.model import access
from pillarbox.model.access import Principal, Scope, Tenant, check_allowed, require
from pillarbox.model.delivery import LANES, ROLES
from pillarbox.model.raw_mail import with_crlf
from pillarbox.store.intake import MailRow, TenantKey, array

_LANES = {name: number for number, name in enumerate(LANES)}
_ANY_TYPE = "application/octet-stream"  # what an attachment is that does not say


class PreparedMail(NamedTuple):
    """One mail on its way into the store."""

    row: MailRow
    recipients: Sequence[tuple[int, str, str]]  # n, role, address
    source: str
    key: TenantKey | None  # its idempotency key with its tenant


def prepare_mail(
    principal: Principal, mail: Mail, received: str | None, source: str
) -> PreparedMail:
    """Check a mail and write it down; raises InvalidMail or NotAllowed."""
    tenant = require(principal, Scope.SEND)
    size = check(mail)
    sender = _sender(mail, tenant)
    recipients = _recipients(mail)
    check_allowed(principal, sender, [address for address, _ in recipients], size)
    raw = None if mail.raw is None else with_crlf(bytes(mail.raw))
    if raw is not None:
        check_from(principal, raw)
    roles: dict[str, str] = {}
    for address, role in recipients:
        roles.setdefault(address, role)  # the first mention of an address counts
    row = _row(mail, raw, tenant, sender, roles, size, received)
    numbered = [(n, ROLES[role], address) for n, (address, role) in enumerate(roles.items())]
    return PreparedMail(row, numbered, source, None if row.key is None else (tenant.id, row.key))


def _sender(mail: Mail, tenant: Tenant) -> str:
    if mail.tenant not in ("default", tenant.name):
        raise NotAllowed("tenant", "tenant", "this is not your tenant", "leave it out")
    if mail.sender is not None:
        return mail.sender
    check_sender(tenant.default_sender or "")  # it may be older than the rules
    return tenant.default_sender or ""


def check_from(principal: Principal, raw: bytes) -> None:
    """Raise if readers of a raw mail (with CRLF) are shown a sender in a domain that the principal may not use."""
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
    return mailbox[:-1].rpartition("<")[2] if mailbox[-1] == ">" else mailbox


def _row(
    mail: Mail,
    raw: bytes | None,
    tenant: Tenant,
    sender: str,
    roles: dict[str, str],
    size: int,
    received: str | None,
) -> MailRow:
    headers = {"Received": received} if received is not None else mail.headers
    metadata = None if mail.metadata is None else to_json(dict(mail.metadata))
    return MailRow(
        tenant.id,
        size,
        _LANES[mail.priority],
        mail.max_attempts,
        _utc(mail.send_at),
        _utc(mail.expires_at),
        tenant.default_class if mail.class_ is None else mail.class_,
        mail.kind,
        sender,
        array(listed(mail.to)) if mail.to else "{}",
        array(listed(mail.cc)) if mail.cc else None,
        array(listed(mail.reply_to)) if mail.reply_to else None,
        mail.subject or (subject_of(raw) if raw else ""),
        to_json(dict(headers)) if headers else None,
        array(listed(mail.tags)) if mail.tags else None,
        metadata,
        array(roles),
        "".join(roles.values()),
        mail.idempotency_key,
        None if mail.idempotency_key is None else request_hash(mail),
        mail.text,
        mail.html,
        raw,
        to_json([attachment_fields(one) for one in mail.attachments]) if mail.attachments else None,
    )


def _utc(time: datetime | None) -> datetime | None:
    """The time in UTC; at the ends of the calendar, where there is none, the nearest."""
    if time is None:
        return None
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return (datetime.min if time.year == 1 else datetime.max).replace(tzinfo=UTC)


def request_hash(mail: Mail) -> bytes:
    """What two requests with the same idempotency key must have in common, however they were written down."""
    lists = [
        list(listed(values)) for values in (mail.to, mail.cc, mail.bcc, mail.reply_to, mail.tags)
    ]
    times = [
        None if time is None else time.isoformat()
        for time in (_utc(mail.send_at), _utc(mail.expires_at))
    ]
    # Bodies by their hashes: writing them as JSON would take ten times as long.
    bodies = [_hash(mail.text), _hash(mail.html), _hash(mail.raw)]
    files = [
        (one.filename, one.content_type or _ANY_TYPE, one.content_id, _hash(one.content))
        for one in mail.attachments or ()
    ]
    rest = (mail.sender, mail.subject, mail.class_, mail.kind, mail.priority, mail.max_attempts)
    named = (sorted((mail.headers or {}).items()), _canonical(mail.metadata))
    return sha256(to_json([lists, times, bodies, files, rest, named]).encode()).digest()


def _hash(body: str | bytes | None) -> str | None:
    return (
        None
        if body is None
        else sha256(body.encode() if isinstance(body, str) else body).hexdigest()
    )


def _canonical(metadata: Any) -> str | None:
    return (
        None
        if metadata is None
        else json.dumps(json.loads(to_json(dict(metadata))), sort_keys=True)
    )
