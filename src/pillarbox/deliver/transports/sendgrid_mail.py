"""A mail in the form of SendGrid's API: recipients by role, headers and content."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pillarbox.deliver.headers import custom_headers, encoded_words, message_id_header
from pillarbox.deliver.transports.base import Recipient
from pillarbox.model.address import ascii_address, split_mailbox
from pillarbox.model.delivery import delivery_id
from pillarbox.model.message import Attachment, Content, Message

# Headers that SendGrid writes itself and refuses, or obeys; Reply-To has a field of its own.
RESERVED = frozenset(
    {
        "x-sg-id",
        "x-sg-eid",
        "received",
        "dkim-signature",
        "content-type",
        "content-transfer-encoding",
        "to",
        "from",
        "subject",
        "reply-to",
        "cc",
        "bcc",
        "date",
        "mime-version",
        "return-path",
        "x-smtpapi",
    }
)
# SendGrid refuses empty texts.
EMPTY = " "
_LISTED = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')


@dataclass(slots=True)
class SendgridRecipient:
    """A recipient; `indexes` are its places among the recipients, several if it is named twice."""

    address: str
    name: str | None
    indexes: list[int]

    def as_json(self) -> dict[str, str]:
        if self.name is None:
            return {"email": self.address}
        return {"email": self.address, "name": self.name}


@dataclass(slots=True)
class Personalization:
    """One of SendGrid's personalizations: recipients who see each other, and blind copies."""

    to: list[SendgridRecipient] = field(default_factory=list)
    cc: list[SendgridRecipient] = field(default_factory=list)
    bcc: list[SendgridRecipient] = field(default_factory=list)


def layout(message: Message, recipients: Sequence[Recipient]) -> list[Personalization]:
    """The recipients by role. To and Cc are as written, as far as they are among the recipients.

    Without any To, Cc takes its place. Blind copies alone get a mail each: together they would see
    each other.
    """
    names = _names(message)
    if len(recipients) == 1:  # by far the most common, and the same for all roles
        [(_, address)] = recipients
        only = SendgridRecipient(ascii_address(address), names.get(address.lower()), [0])
        return [Personalization(to=[only])]
    personalization = Personalization()
    to, cc = _addresses(message.to), _addresses(message.cc)
    known: dict[str, SendgridRecipient] = {}
    for index, (_, address) in enumerate(recipients):
        key = address.lower()
        if key in known:
            known[key].indexes.append(index)
            continue
        known[key] = SendgridRecipient(ascii_address(address), names.get(key), [index])
        if key in to:
            personalization.to.append(known[key])
        elif key in cc:
            personalization.cc.append(known[key])
        else:
            personalization.bcc.append(known[key])
    if not personalization.to:
        personalization.to, personalization.cc = personalization.cc, []
    if personalization.to:
        return [personalization]
    return [Personalization(to=[recipient]) for recipient in personalization.bcc]


def _addresses(mailboxes: Sequence[str]) -> set[str]:
    return {_split(mailbox)[1].lower() for mailbox in mailboxes}


def _names(message: Message) -> dict[str, str]:
    found: dict[str, str] = {}
    for mailbox in (*message.cc, *message.to):
        name, address = _split(mailbox)
        if name is not None:
            found[address.lower()] = name
    return found


@lru_cache(maxsize=1024)
def _split(mailbox: str) -> tuple[str | None, str]:
    return split_mailbox(mailbox)


def mail(
    message: Message, parts: Content, recipients: Sequence[Recipient], provider_id: str
) -> dict[str, Any]:
    """The whole request. ValueError if a header or an address is not legal."""
    request: dict[str, Any] = {
        "personalizations": [
            _personalization(message, personalization, recipients)
            for personalization in layout(message, recipients)
        ],
        "from": _mailbox(message.sender),
        "subject": message.subject or EMPTY,
        "content": _content(parts),
        "headers": _headers(message),
        "custom_args": {"pillarbox_message": str(message.id), "pillarbox_provider": provider_id},
    }
    reply_to = [_mailbox(mailbox) for mailbox in _reply_to(message)]
    if len(reply_to) == 1:
        request["reply_to"] = reply_to[0]
    elif reply_to:
        request["reply_to_list"] = reply_to
    if parts.attachments:
        has_html = parts.html is not None
        request["attachments"] = [_attachment(file, has_html) for file in parts.attachments]
    return request


def _personalization(
    message: Message, personalization: Personalization, recipients: Sequence[Recipient]
) -> dict[str, Any]:
    to, cc, bcc = personalization.to, personalization.cc, personalization.bcc
    fields: dict[str, Any] = {"to": [recipient.as_json() for recipient in to]}
    if cc:
        fields["cc"] = [recipient.as_json() for recipient in cc]
    if bcc:
        fields["bcc"] = [recipient.as_json() for recipient in bcc]
    if len(to) == 1 and not cc and not bcc and len(to[0].indexes) == 1:
        number = recipients[to[0].indexes[0]].n
        fields["custom_args"] = {"pillarbox_delivery": delivery_id(message.id, number)}
    return fields


def _mailbox(mailbox: str) -> dict[str, str]:
    name, address = _split(mailbox)
    return SendgridRecipient(ascii_address(address), name, []).as_json()


def _content(parts: Content) -> list[dict[str, str]]:
    content = []
    if parts.text is not None:
        content.append({"type": "text/plain", "value": parts.text or EMPTY})
    if parts.html is not None:
        content.append({"type": "text/html", "value": parts.html or EMPTY})
    return content or [{"type": "text/plain", "value": EMPTY}]


def _attachment(attachment: Attachment, has_html: bool) -> dict[str, str]:
    fields = {
        "content": b64encode(attachment.content).decode(),
        "type": attachment.content_type.partition(";")[0].strip(),
        "filename": attachment.filename or "file",
        "disposition": "attachment",
    }
    if attachment.content_id is not None and has_html:
        fields["disposition"] = "inline"
        fields["content_id"] = attachment.content_id.removeprefix("<").removesuffix(">")
    return fields


def _headers(message: Message) -> dict[str, str]:
    """The caller's headers except reserved ones; and the Message-ID, the same at every attempt."""
    headers: dict[str, str] = {}
    names: dict[str, str] = {}  # as first written, by name in lower case
    if message.headers:
        custom_headers(message.headers)  # refuses what the composer refuses
    for name, value in _pairs(message):
        key = name.lower()
        if key in RESERVED:
            continue
        plain = value.strip(" \t")
        if not plain.isascii():
            plain = " ".join(encoded_words(plain))
        first = names.setdefault(key, name)
        if first in headers:  # an object has each name once
            plain = f"{headers[first]}, {plain}"
        headers[first] = plain
    if "message-id" not in names:
        headers["Message-ID"] = message_id_header(message.id, message.sender)
    return headers


def _pairs(message: Message) -> list[tuple[str, str]]:
    headers: Any = message.headers
    if isinstance(headers, Mapping):
        headers = headers.items()
    return [(name, value) for name, value in headers]


def _reply_to(message: Message) -> Sequence[str]:
    """The Reply-To addresses; a header of that name overrides the field, as in a composed mail."""
    for name, value in _pairs(message):
        if name.lower() == "reply-to":
            mailboxes = [mailbox.strip() for mailbox in _LISTED.findall(value)]
            return [mailbox for mailbox in mailboxes if mailbox]
    return message.reply_to
