"""Parses bounce mails and complaints: DSN (RFC 3464), ARF (RFC 5965), and two older forms.

Not recognised: out-of-office replies, and bounces that are only prose.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from uuid import UUID

from pillarbox.model import return_path
from pillarbox.model.outcome import Reason
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind
from pillarbox.track.feedback.event_fields import (
    UNDELIVERED,
    is_hard,
    message_of,
    reason_of,
    text_of,
)
from pillarbox.track.mime_parts import Fields, MimePart, decoded, fields_of, parts_of

ACTIONS = {
    "failed": FeedbackKind.BOUNCED,
    "delayed": FeedbackKind.DEFERRED,
    "delivered": FeedbackKind.DELIVERED,
    "relayed": FeedbackKind.ACCEPTED,
    "expanded": FeedbackKind.ACCEPTED,
}
COMPLAINTS = {
    "abuse": FeedbackKind.COMPLAINED,
    "fraud": FeedbackKind.COMPLAINED,
    "virus": FeedbackKind.COMPLAINED,
    "other": FeedbackKind.COMPLAINED,
    "opt-out": FeedbackKind.UNSUBSCRIBED,
    "opt-out-list": FeedbackKind.UNSUBSCRIBED,
}
STATUS = ("message/delivery-status", "message/global-delivery-status")
RETURNED = (
    "message/rfc822",
    "message/rfc822-headers",
    "text/rfc822-headers",
    "message/global",
    "message/global-headers",
)
# Fields with the address that a report was sent to, and with the sender of the mail.
TO = ("to", "delivered-to", "x-original-to", "envelope-to", "x-envelope-to")
FROM = ("return-path", "original-mail-from", "x-envelope-from")
MESSAGE_IDS = (
    "x-pillarbox-message",
    "message-id",
    "x-original-message-id",
    "references",
    "in-reply-to",
)
# The fields of a report that are stored.
STORED = (
    "action", "status", "diagnostic-code", "remote-mta", "final-log-id", "feedback-type",
    "user-agent", "source-ip", "reported-domain", "will-retry-until",
)  # fmt: skip
# A message has at most so many recipients.
MAX_RECIPIENTS = 100
# Paragraphs and bytes of a bounce in prose that are read.
MAX_PARAGRAPHS = 250
MAX_PROSE = 100_000

_BLANK_LINE = re.compile(rb"\r?\n[ \t]*\r?\n")
_ADDRESS = re.compile(r"[^\s<>,;:\"()]{1,64}@[^\s<>,;:\"()]{1,255}")
_ESCAPED = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")
_NO_SUCH_USER = re.compile(
    r"(?:user|recipient|mailbox|address|account)\b.{0,40}"
    r"\b(?:unknown|not found|invalid|(?:n't|not) exist)"
    r"|(?:no such|unknown|invalid)\b.{0,20}\b(?:user|recipient|mailbox|address|account|person)",
    re.IGNORECASE,
)
_COPY = re.compile(
    rb"^-{2,20}[^\n]{0,80}?(?:copy|original message)[^\n]{0,200}\n", re.IGNORECASE | re.MULTILINE
)
_ENHANCED_CODE = re.compile(r"\b[245]\.\d{1,3}\.\d{1,3}\b")
_UNSPECIFIC_CODE = re.compile(r"\b[245]\.0\.0\b")
_PERMANENT = re.compile(r"(?:^|[\s#;:])5[0-9]{2}[\s-]")


class NotAReport(ValueError):
    """The mail is neither a delivery report nor a complaint."""


def parse(mail: bytes, key: bytes, now: datetime) -> list[FeedbackEvent]:
    """The events of a report; `key` is that of return paths. NotAReport if it is none."""
    try:
        parts = list(parts_of(mail))
    except ValueError as error:
        raise NotAReport(str(error)) from None
    reported = list(_reported(parts))
    if not reported:
        raise NotAReport("the mail is neither a delivery report nor a complaint")
    message_id = _message(parts, key)
    at = _date(parts[0].first("date")) or now
    digest = hashlib.sha256(mail).hexdigest()[:40]
    return [
        _event(recipient, f"{digest}:{index}", message_id, at)
        for index, recipient in enumerate(reported[:MAX_RECIPIENTS])
    ]


class _ReportedRecipient:
    """What a report says about one recipient; `form` is the form of the report."""

    def __init__(
        self,
        kind: FeedbackKind,
        address: str | None,
        fields: Fields,
        form: str,
        *texts: str | None,
    ) -> None:
        self.kind = kind
        self.address = address
        self.fields = fields
        self.form = form
        self.texts = [text for text in texts if text]


def _event(
    recipient: _ReportedRecipient, event_id: str, message_id: UUID | None, at: datetime
) -> FeedbackEvent:
    last_attempt = _date(recipient.fields.get("last-attempt-date", [None])[0])
    raw = {"report": recipient.form}
    for name, values in recipient.fields.items():
        if name in STORED:
            raw[name] = values[0][:500]
    reason = text = None
    if recipient.kind in UNDELIVERED:
        reason, text = _reason(recipient), text_of(*recipient.texts)
    return FeedbackEvent(
        kind=recipient.kind,
        event_id=event_id,
        at=last_attempt or at,
        message_id=message_id,
        recipient=recipient.address,
        hard=_hard(recipient),
        reason=reason,
        text=text,
        raw=raw,
    )


def _reported(parts: Sequence[MimePart]) -> Iterator[_ReportedRecipient]:
    complaint = _first_of(parts, ("message/feedback-report",))
    status = _first_of(parts, STATUS)
    if complaint is not None:
        yield from _complaint(complaint)
    elif status is not None:
        yield from _status(status)
    elif "x-failed-recipients" in parts[0].fields:
        yield from _failed(parts)
    else:
        yield from _prose(parts)


def _first_of(parts: Sequence[MimePart], kinds: Sequence[str]) -> MimePart | None:
    return next((part for part in parts if part.kind in kinds), None)


def _status(part: MimePart) -> Iterator[_ReportedRecipient]:
    """RFC 3464: fields of the message, which some servers omit, then a group per recipient."""
    for group in _BLANK_LINE.split(part.body, MAX_RECIPIENTS + 1):
        fields = fields_of(group)
        action = fields.get("action", [""])[0].partition("(")[0].strip().lower()
        kind = ACTIONS.get(action)
        recipient = _recipient(
            fields, "original-recipient", "final-recipient", "x-actual-recipient"
        )
        if kind and recipient:
            status = fields.get("status", [None])[0]
            diagnostic = fields.get("diagnostic-code", [None])[0]
            yield _ReportedRecipient(kind, recipient, fields, "dsn", status, diagnostic)


def _complaint(part: MimePart) -> Iterator[_ReportedRecipient]:
    fields = fields_of(part.body)
    kind = COMPLAINTS.get(fields.get("feedback-type", [""])[0].strip().lower())
    if kind is None:
        return
    named = [*fields.get("original-rcpt-to", ()), *fields.get("removal-recipient", ())]
    addresses = [_address(value) for value in named] or [None]
    for address in addresses:
        yield _ReportedRecipient(kind, address, fields, "arf")


def _failed(parts: Sequence[MimePart]) -> Iterator[_ReportedRecipient]:
    """Exim's form without a delivery status; other servers copy the field."""
    text = _text(parts)
    recipients = ", ".join(parts[0].fields["x-failed-recipients"]).split(",")
    for recipient in recipients[:MAX_RECIPIENTS]:
        address = _address(recipient)
        if address:
            said = _after(text, address)
            yield _ReportedRecipient(FeedbackKind.BOUNCED, address, {}, "x-failed-recipients", said)


def _prose(parts: Sequence[MimePart]) -> Iterator[_ReportedRecipient]:
    """qmail's QSBMF (cr.yp.to/proto/qsbmf.txt): a greeting, then a paragraph per recipient."""
    if parts[0].kind != "text/plain":
        return
    first, *paragraphs = _BLANK_LINE.split(parts[0].body[:MAX_PROSE].lstrip(), MAX_PARAGRAPHS)
    if not first.startswith(b"Hi. This is"):
        return
    for paragraph in paragraphs[:MAX_PARAGRAPHS]:
        if paragraph.startswith(b"-"):
            return
        head, colon, reason = decoded(paragraph).partition(">:")
        address = _address(head[1:]) if head.startswith("<") and colon else None
        if address:
            yield _ReportedRecipient(FeedbackKind.BOUNCED, address, {}, "qsbmf", reason)


def _text(parts: Sequence[MimePart]) -> str:
    part = _first_of(parts, ("text/plain",))
    return decoded(part.body[:MAX_PROSE]) if part else ""


def _after(text: str, address: str) -> str:
    """The paragraph that follows an address in a text."""
    _, found, rest = text.lower().partition(address.lower())
    if not found:
        return ""
    following = text[len(text) - len(rest) :].lstrip(">: \r\n")
    return following.partition("\n\n")[0][:1000]


def _recipient(fields: Fields, *names: str) -> str | None:
    found = (_address(value) for name in names for value in fields.get(name, ()))
    return next((address for address in found if address), None)


def _address(value: str) -> str | None:
    """The address in `rfc822; <ada@mail.example>`; reports may escape letters as `\\x{e9}`."""
    plain = _ESCAPED.sub(lambda found: chr(min(int(found[1], 16), 0x10FFFF)), value[:1000])
    found = _ADDRESS.search(plain)
    return found[0].rstrip(".") if found else None


def _hard(recipient: _ReportedRecipient) -> bool:
    """Whether the report proves that the address must not be used again."""
    if recipient.kind is not FeedbackKind.BOUNCED:
        return recipient.kind in (FeedbackKind.COMPLAINED, FeedbackKind.UNSUBSCRIBED)
    codes: list[str] = []
    for text in recipient.texts:
        codes += _ENHANCED_CODE.findall(text[:1000])
    specific = [code for code in codes if not code.endswith(".0.0")]
    if specific:
        return is_hard(*specific) is True
    text = " ".join(recipient.texts)[:2000]
    is_permanent = "5.0.0" in codes or bool(_PERMANENT.search(f" {text}"))
    return bool(_NO_SUCH_USER.search(text)) and is_permanent


def _reason(recipient: _ReportedRecipient) -> Reason:
    if _hard(recipient):
        return Reason.INVALID_RECIPIENT
    specific = [text for text in recipient.texts if not _UNSPECIFIC_CODE.search(text[:1000])]
    return reason_of(*specific, *recipient.texts)


def _message(parts: Sequence[MimePart], key: bytes) -> UUID | None:
    """The message of a report: by the return path, which is signed, or by the returned mail."""
    returned = list(_returned(parts))
    found = _by_return_path(parts[0].fields, TO, key)
    for fields in (parts[0].fields, *returned):
        found = found or _by_return_path(fields, FROM, key)
    if found:
        return found
    for fields in returned:
        values = [value for name in MESSAGE_IDS for value in fields.get(name, ())[:5]]
        found = message_of(*values)
        if found:
            return found
    return message_of(
        parts[0].first("x-pillarbox-message"),
        parts[0].first("in-reply-to"),
        parts[0].first("references"),
    )


def _by_return_path(fields: Fields, names: Sequence[str], key: bytes) -> UUID | None:
    for name in names:
        for value in fields.get(name, ())[:20]:
            for address in _ADDRESS.findall(value[:2000]):
                found = return_path.read(address, key)
                if found:
                    return found
    return None


def _returned(parts: Sequence[MimePart]) -> Iterator[Fields]:
    """The header sections of the returned mail, and the fields of a complaint."""
    for part in parts:
        if part.kind in RETURNED:
            head = _BLANK_LINE.split(part.body.lstrip(b"\r\n"), 1)[0]
            yield fields_of(head)
        elif part.kind == "message/feedback-report":
            yield fields_of(part.body)
    copy = None
    if parts[0].kind == "text/plain":
        copy = _COPY.search(parts[0].body[:MAX_PROSE])
    if copy:
        yield fields_of(_BLANK_LINE.split(parts[0].body[copy.end() :].lstrip(), 1)[0])


def _date(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)
