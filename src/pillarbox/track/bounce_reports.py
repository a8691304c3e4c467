"""Bounce mails and complaints as mail servers write them: DSN (RFC 3464), ARF (RFC 5965), and two forms from before.

Not recognised: answers of absent people, and bounces in nothing but prose.
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
from pillarbox.track.feedback.event_fields import UNHAPPY, is_hard, message_of, reason_of, text_of
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
# Where the address stands that a report was sent to, and that a mail was sent from.
TO = ("to", "delivered-to", "x-original-to", "envelope-to", "x-envelope-to")
FROM = ("return-path", "original-mail-from", "x-envelope-from")
OURS = ("x-pillarbox-message", "message-id", "x-original-message-id", "references", "in-reply-to")
# The fields of a report that are kept.
KEPT = (
    "action", "status", "diagnostic-code", "remote-mta", "final-log-id", "feedback-type", "user-agent", "source-ip",
    "reported-domain", "will-retry-until",
)  # fmt: skip
# A message has at most so many recipients.
MOST_RECIPIENTS = 100
# Paragraphs, and octets, of a bounce in prose that are looked at.
MOST_PARAGRAPHS = 250
MOST_PROSE = 100_000

_BLANK_LINE = re.compile(rb"\r?\n[ \t]*\r?\n")
_ADDRESS = re.compile(r"[^\s<>,;:\"()]{1,64}@[^\s<>,;:\"()]{1,255}")
_ESCAPED = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")
_NOBODY_THERE = re.compile(
    r"(?:user|recipient|mailbox|address|account)\b.{0,40}\b(?:unknown|not found|invalid|(?:n't|not) exist)"
    r"|(?:no such|unknown|invalid)\b.{0,20}\b(?:user|recipient|mailbox|address|account|person)",
    re.IGNORECASE,
)
_COPY = re.compile(
    rb"^-{2,20}[^\n]{0,80}?(?:copy|original message)[^\n]{0,200}\n", re.IGNORECASE | re.MULTILINE
)
_PERMANENT = re.compile(r"(?:^|[\s#;:])5[0-9]{2}[\s-]")


class NotAReport(ValueError):
    """The mail tells nothing about another."""


def parse(mail: bytes, key: bytes, now: datetime) -> list[FeedbackEvent]:
    """What a report says; `key` is that of return paths. NotAReport if it is none."""
    try:
        parts = list(parts_of(mail))
    except ValueError as error:
        raise NotAReport(str(error)) from None
    told = list(_told(parts))
    if not told:
        raise NotAReport("the mail is neither a delivery report nor a complaint")
    message_id = _message(parts, key)
    at = _date(parts[0].first("date")) or now
    digest = hashlib.sha256(mail).hexdigest()[:40]
    return [
        _heard(one, f"{digest}:{place}", message_id, at)
        for place, one in enumerate(told[:MOST_RECIPIENTS])
    ]


class _ReportedRecipient:
    """What a report says of one recipient."""

    def __init__(
        self, kind: FeedbackKind, recipient: str | None, said: Fields, how: str, *texts: str | None
    ) -> None:
        self.kind, self.recipient, self.said, self.how = kind, recipient, said, how
        self.texts = [text for text in texts if text]


def _heard(
    one: _ReportedRecipient, event_id: str, message_id: UUID | None, at: datetime
) -> FeedbackEvent:
    unhappy = one.kind in UNHAPPY
    date = one.said.get("last-attempt-date", [None])[0]
    raw = {name: values[0][:500] for name, values in one.said.items() if name in KEPT}
    return FeedbackEvent(
        kind=one.kind,
        event_id=event_id,
        at=_date(date) or at,
        message_id=message_id,
        recipient=one.recipient,
        hard=_hard(one),
        reason=_reason(one) if unhappy else None,
        text=text_of(*one.texts) if unhappy else None,
        raw={"report": one.how, **raw},
    )


def _told(parts: Sequence[MimePart]) -> Iterator[_ReportedRecipient]:
    complaint = next((part for part in parts if part.kind == "message/feedback-report"), None)
    status = next((part for part in parts if part.kind in STATUS), None)
    if complaint is not None:
        yield from _complaint(complaint)
    elif status is not None:
        yield from _status(status)
    elif "x-failed-recipients" in parts[0].fields:
        yield from _failed(parts)
    else:
        yield from _prose(parts)


def _status(part: MimePart) -> Iterator[_ReportedRecipient]:
    """RFC 3464: a group of fields about the message, then one for each recipient. Some servers leave the first out."""
    for group in _BLANK_LINE.split(part.body, MOST_RECIPIENTS + 1):
        fields = fields_of(group)
        kind = ACTIONS.get(fields.get("action", [""])[0].partition("(")[0].strip().lower())
        recipient = _recipient(
            fields, "original-recipient", "final-recipient", "x-actual-recipient"
        )
        if kind and recipient:
            yield _ReportedRecipient(
                kind,
                recipient,
                fields,
                "dsn",
                *(fields.get(name, [None])[0] for name in ("status", "diagnostic-code")),
            )


def _complaint(part: MimePart) -> Iterator[_ReportedRecipient]:
    fields = fields_of(part.body)
    kind = COMPLAINTS.get(fields.get("feedback-type", [""])[0].strip().lower())
    if kind is None:
        return
    named = [*fields.get("original-rcpt-to", ()), *fields.get("removal-recipient", ())]
    for recipient in named or [None]:
        yield _ReportedRecipient(kind, _address(recipient) if recipient else None, fields, "arf")


def _failed(parts: Sequence[MimePart]) -> Iterator[_ReportedRecipient]:
    """Exim's, when it was told to leave the report out; others copy the field."""
    text = _text(parts)
    for recipient in ", ".join(parts[0].fields["x-failed-recipients"]).split(",")[:MOST_RECIPIENTS]:
        if address := _address(recipient):
            yield _ReportedRecipient(
                FeedbackKind.BOUNCED, address, {}, "x-failed-recipients", _after(text, address)
            )


def _prose(parts: Sequence[MimePart]) -> Iterator[_ReportedRecipient]:
    """qmail's (https://cr.yp.to/proto/qsbmf.txt): a greeting, a paragraph per recipient, a line, the mail."""
    if parts[0].kind != "text/plain":
        return
    first, *paragraphs = _BLANK_LINE.split(parts[0].body[:MOST_PROSE].lstrip(), MOST_PARAGRAPHS)
    if not first.startswith(b"Hi. This is"):
        return
    for paragraph in paragraphs[:MOST_PARAGRAPHS]:
        if paragraph.startswith(b"-"):
            return
        head, colon, reason = decoded(paragraph).partition(">:")
        if head.startswith("<") and colon and (address := _address(head[1:])):
            yield _ReportedRecipient(FeedbackKind.BOUNCED, address, {}, "qsbmf", reason)


def _text(parts: Sequence[MimePart]) -> str:
    part = next((part for part in parts if part.kind == "text/plain"), None)
    return decoded(part.body[:MOST_PROSE]) if part else ""


def _after(text: str, address: str) -> str:
    """What a text says of an address: the lines that follow its name."""
    lowered = text.lower()
    place = lowered.find(address.lower())
    return (
        text[place + len(address) :].lstrip(">: \r\n").partition("\n\n")[0][:1000]
        if place >= 0
        else ""
    )


def _recipient(fields: Fields, *names: str) -> str | None:
    found = (_address(value) for name in names for value in fields.get(name, ()))
    return next((address for address in found if address), None)


def _address(value: str) -> str | None:
    """The address in `rfc822; <ada@mail.example>`; in reports in UTF-8 letters may be written as numbers."""
    plain = _ESCAPED.sub(lambda found: chr(min(int(found[1], 16), 0x10FFFF)), value[:1000])
    found = _ADDRESS.search(plain)
    return found[0].rstrip(".") if found else None


def _hard(one: _ReportedRecipient) -> bool:
    if one.kind is not FeedbackKind.BOUNCED:
        return one.kind in (FeedbackKind.COMPLAINED, FeedbackKind.UNSUBSCRIBED)
    codes = [
        found
        for text in one.texts
        for found in re.findall(r"\b[245]\.\d{1,3}\.\d{1,3}\b", text[:1000])
    ]
    telling = [code for code in codes if not code.endswith(".0.0")]
    if telling:
        return is_hard(*telling) is True
    said = " ".join(one.texts)[:2000]
    return bool(_NOBODY_THERE.search(said)) and (
        "5.0.0" in codes or bool(_PERMANENT.search(f" {said}"))
    )


def _reason(one: _ReportedRecipient) -> Reason:
    if _hard(one):
        return Reason.INVALID_RECIPIENT
    telling = [text for text in one.texts if not re.search(r"\b[245]\.0\.0\b", text[:1000])]
    return reason_of(*telling, *one.texts)


def _message(parts: Sequence[MimePart], key: bytes) -> UUID | None:
    """The message that a report is about: by the return path, which is proven; or by the mail that came back."""
    heads = [parts[0].fields, *_returned(parts)]
    for fields, names in [(parts[0].fields, TO), *((head, FROM) for head in heads)]:
        for name in names:
            for value in fields.get(name, ())[:20]:
                for address in _ADDRESS.findall(value[:2000]):
                    if found := return_path.read(address, key):
                        return found
    for head in heads[1:]:
        if found := message_of(*(value for name in OURS for value in head.get(name, ())[:5])):
            return found
    return message_of(
        parts[0].first("x-pillarbox-message"),
        parts[0].first("in-reply-to"),
        parts[0].first("references"),
    )


def _returned(parts: Sequence[MimePart]) -> Iterator[Fields]:
    """The headers of the mail that came back, where they stand; and the fields of a complaint."""
    for part in parts:
        if part.kind in RETURNED:
            head = _BLANK_LINE.split(part.body.lstrip(b"\r\n"), 1)[0]
            yield fields_of(head)
        elif part.kind == "message/feedback-report":
            yield fields_of(part.body)
    if parts[0].kind == "text/plain" and (copy := _COPY.search(parts[0].body[:MOST_PROSE])):
        yield fields_of(_BLANK_LINE.split(parts[0].body[copy.end() :].lstrip(), 1)[0])


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text) if text else None
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC) if date else None
