"""A mail as SendGrid's API wants it: who gets it in which role, and what stands in it."""

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

# Headers that SendGrid writes itself, and refuses from others, or takes orders from; Reply-To has a
# field of its own.
RESERVED = frozenset({
    "x-sg-id", "x-sg-eid", "received", "dkim-signature", "content-type", "content-transfer-encoding", "to", "from",
    "subject", "reply-to", "cc", "bcc", "date", "mime-version", "return-path", "x-smtpapi",
})  # fmt: skip
# SendGrid refuses empty texts.
EMPTY = " "
_LISTED = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')


@dataclass(slots=True)
class SendgridRecipient:
    """Somebody who gets the mail; `places` are those among the recipients, more than one if named twice."""

    address: str
    name: str | None
    places: list[int]

    def shown(self) -> dict[str, str]:
        return (
            {"email": self.address}
            if self.name is None
            else {"email": self.address, "name": self.name}
        )


@dataclass(slots=True)
class Personalization:
    """One of SendGrid's personalizations: those who see each other, and those whom nobody sees."""

    to: list[SendgridRecipient] = field(default_factory=list)
    cc: list[SendgridRecipient] = field(default_factory=list)
    bcc: list[SendgridRecipient] = field(default_factory=list)


def layout(message: Message, recipients: Sequence[Recipient]) -> list[Personalization]:
    """Who gets the mail as what. To and Cc look as they were written, as far as they are among the recipients.

    Where nobody is left for To, Cc takes its place. Blind copies alone get a mail each: together
    they would see each other.
    """
    if len(recipients) == 1:  # by far the most common, and alike for all roles
        [(_, address)] = recipients
        return [
            Personalization(
                to=[
                    SendgridRecipient(
                        ascii_address(address), _names(message).get(address.lower()), [0]
                    )
                ]
            )
        ]
    row, names = Personalization(), _names(message)
    to, cc = _addresses(message.to), _addresses(message.cc)
    people: dict[str, SendgridRecipient] = {}
    for place, (_, address) in enumerate(recipients):
        key = address.lower()
        if key in people:
            people[key].places.append(place)
            continue
        people[key] = person = SendgridRecipient(ascii_address(address), names.get(key), [place])
        (row.to if key in to else row.cc if key in cc else row.bcc).append(person)
    if not row.to:
        row.to, row.cc = row.cc, []
    return [row] if row.to else [Personalization(to=[person]) for person in row.bcc]


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
    """The whole request. ValueError when a header or an address is not legal."""
    made: dict[str, Any] = {
        "personalizations": [
            _personalization(message, row, recipients) for row in layout(message, recipients)
        ],
        "from": _mailbox(message.sender),
        "subject": message.subject or EMPTY,
        "content": _content(parts),
        "headers": _headers(message),
        "custom_args": {"pillarbox_message": str(message.id), "pillarbox_provider": provider_id},
    }
    reply_to = [_mailbox(one) for one in _reply_to(message)]
    if reply_to:
        made.update(
            {"reply_to": reply_to[0]} if len(reply_to) == 1 else {"reply_to_list": reply_to}
        )
    if parts.attachments:
        made["attachments"] = [
            _attachment(one, parts.html is not None) for one in parts.attachments
        ]
    return made


def _personalization(
    message: Message, row: Personalization, recipients: Sequence[Recipient]
) -> dict[str, Any]:
    made: dict[str, Any] = {"to": [one.shown() for one in row.to]}
    if row.cc:
        made["cc"] = [one.shown() for one in row.cc]
    if row.bcc:
        made["bcc"] = [one.shown() for one in row.bcc]
    if len(row.to) == 1 and not row.cc and not row.bcc and len(row.to[0].places) == 1:
        made["custom_args"] = {
            "pillarbox_delivery": delivery_id(message.id, recipients[row.to[0].places[0]].n)
        }
    return made


def _mailbox(mailbox: str) -> dict[str, str]:
    name, address = _split(mailbox)
    return SendgridRecipient(ascii_address(address), name, []).shown()


def _content(parts: Content) -> list[dict[str, str]]:
    made = []
    if parts.text is not None:
        made.append({"type": "text/plain", "value": parts.text or EMPTY})
    if parts.html is not None:
        made.append({"type": "text/html", "value": parts.html or EMPTY})
    return made or [{"type": "text/plain", "value": EMPTY}]


def _attachment(attachment: Attachment, html: bool) -> dict[str, str]:
    made = {
        "content": b64encode(attachment.content).decode(),
        "type": attachment.content_type.partition(";")[0].strip(),
        "filename": attachment.filename or "file",
        "disposition": "attachment",
    }
    if attachment.content_id is not None and html:
        made |= {
            "disposition": "inline",
            "content_id": attachment.content_id.removeprefix("<").removesuffix(">"),
        }
    return made


def _headers(message: Message) -> dict[str, str]:
    """The caller's own, less what SendGrid keeps to itself; and the Message-ID, the same at every attempt."""
    made: dict[str, str] = {}
    names: dict[str, str] = {}
    if message.headers:
        custom_headers(message.headers)  # what the composer refuses is refused here, too
    for name, value in _pairs(message):
        key = name.lower()
        if key in RESERVED:
            continue
        plain = (
            value.strip(" \t") if value.isascii() else " ".join(encoded_words(value.strip(" \t")))
        )
        first = names.setdefault(key, name)
        made[first] = (
            f"{made[first]}, {plain}" if first in made else plain
        )  # an object has each name once
    if "message-id" not in names:
        made["Message-ID"] = message_id_header(message.id, message.sender)
    return made


def _pairs(message: Message) -> list[tuple[str, str]]:
    headers = message.headers
    return [
        (one[0], one[1]) for one in (headers.items() if isinstance(headers, Mapping) else headers)
    ]


def _reply_to(message: Message) -> Sequence[str]:
    """The Reply-To addresses; a header of that name goes before the field, as in a composed mail."""
    for name, value in _pairs(message):
        if name.lower() == "reply-to":
            return [one.strip() for one in _LISTED.findall(value) if one.strip()]
    return message.reply_to
