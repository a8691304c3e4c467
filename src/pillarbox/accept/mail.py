"""A mail as an application gives it to `enqueue`, and the one list of its fields.

`Mail` declares each field once: its type for Python, and what it is everywhere else. Parameters and
casts of SQL, the JSON of `enqueue_many`, the API's model and the client's request follow from it.
"""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from operator import attrgetter
from typing import Any

from pillarbox.model.message import Attachment

__all__ = ["FIELDS", "Attachment", "FieldKind", "Mail", "MailField"]

_MAILBOXES = "One or more of `a@b.example` or `Name <a@b.example>`."


class FieldKind(Enum):
    """What a field holds."""

    NAME = auto()  # a string of one line
    BODY = auto()  # goes beside the JSON of `enqueue_many`, since quoting it would cost much
    RAW = auto()
    STRINGS = auto()
    OBJECT = auto()
    FILES = auto()
    TIME = auto()
    INTEGER = auto()


# How a value is cast in SQL. Times and JSON are sent as text: neither a driver nor a codec that the
# application has set interprets them.
SQL_TYPES = {
    FieldKind.NAME: "text",
    FieldKind.BODY: "text",
    FieldKind.RAW: "bytea",
    FieldKind.STRINGS: "text[]",
    FieldKind.OBJECT: "text::jsonb",
    FieldKind.FILES: "text::jsonb",
    FieldKind.TIME: "text::timestamptz",
    FieldKind.INTEGER: "integer",
}


@dataclass(frozen=True, slots=True)
class MailField:
    """A field of a mail, for all ways in."""

    attribute: str  # of Mail
    kind: FieldKind
    description: str
    default: Any
    is_stored_apart: bool  # `_store_mails` has a parameter for it; else it is in `fields`

    @property
    def name(self) -> str:
        """Its name in SQL and JSON."""
        return self.attribute.rstrip("_")


def _field(
    kind: FieldKind, description: str = "", *, default: Any = None, apart: bool = False
) -> Any:
    """A declaration; `apart`: `_store_mails` has a parameter for it."""
    if kind in (FieldKind.STRINGS, FieldKind.FILES):
        default = ()
    is_shown = kind not in (FieldKind.BODY, FieldKind.RAW)
    metadata = {"kind": kind, "description": description, "default": default, "apart": apart}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, repr=is_shown, metadata=metadata)
    return dataclasses.field(default=default, repr=is_shown, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What `pillarbox.enqueue` takes, field by field as the SQL function of that name does.

    Addresses are `a@b.example` or `Name <a@b.example>`. Without a sender or class the tenant's
    default is used. Give `text`, `html` or both, or the whole RFC 5322 message as `raw`.
    """

    sender: str | None = _field(
        FieldKind.NAME,
        "The sender; without one the tenant's default. Also accepted as `sender`.",
        apart=True,
    )
    to: str | Sequence[str] = _field(FieldKind.STRINGS, _MAILBOXES, apart=True)
    cc: str | Sequence[str] = _field(FieldKind.STRINGS, _MAILBOXES)
    bcc: str | Sequence[str] = _field(
        FieldKind.STRINGS, f"{_MAILBOXES} They do not show in the mail.", apart=True
    )
    reply_to: str | Sequence[str] = _field(FieldKind.STRINGS, _MAILBOXES)
    subject: str | None = _field(FieldKind.NAME, apart=True)
    text: str | None = _field(FieldKind.BODY, "The plain body.", apart=True)
    html: str | None = _field(FieldKind.BODY, "The HTML body.", apart=True)
    raw: bytes | None = _field(
        FieldKind.RAW,
        "A whole RFC 5322 message as base64, instead of bodies, headers and attachments.",
        apart=True,
    )
    headers: Mapping[str, str] = _field(FieldKind.OBJECT, "Further header fields.", default={})
    attachments: Sequence[Attachment] = _field(FieldKind.FILES, apart=True)
    class_: str | None = _field(
        FieldKind.NAME, "The set of policies; without one the tenant's default.", apart=True
    )
    kind: str | None = _field(FieldKind.NAME, "A label of what the mail is, for filters.")
    priority: str = _field(
        FieldKind.NAME, "The lane: urgent, normal or bulk.", default="normal", apart=True
    )
    send_at: datetime | None = _field(FieldKind.TIME, "Not sent before this time.")  # noqa: RUF009
    expires_at: datetime | None = _field(  # noqa: RUF009
        FieldKind.TIME, "Dropped if unsent by then, with that reason."
    )
    max_attempts: int | None = _field(FieldKind.INTEGER, "Overrides the retry policy's.")
    idempotency_key: str | None = _field(FieldKind.NAME, apart=True)
    tags: str | Sequence[str] = _field(FieldKind.STRINGS)
    metadata: Mapping[str, Any] | None = _field(
        FieldKind.OBJECT, "An object of your own; kept and shown, never sent."
    )
    list_unsubscribe: str | Sequence[str] = _field(
        FieldKind.STRINGS,
        "URLs (https, http, mailto) of List-Unsubscribe; one https URL alone, or with mailto,"
        " also makes List-Unsubscribe-Post.",
    )
    tenant: str = _field(FieldKind.NAME, default="default", apart=True)


FIELDS = tuple(
    MailField(
        attribute=field.name,
        kind=field.metadata["kind"],
        description=field.metadata["description"],
        default=field.metadata["default"],
        is_stored_apart=field.metadata["apart"],
    )
    for field in dataclasses.fields(Mail)
)


def attributes_of(*kinds: FieldKind) -> list[str]:
    """The attributes of Mail of these kinds, in order."""
    return [field.attribute for field in FIELDS if field.kind in kinds]


def listed(value: str | Sequence[str] | None) -> Sequence[str]:
    """One string as a list of one, nothing as a list of none."""
    return (value,) if isinstance(value, str) else value or ()


def attachment_fields(attachment: Attachment) -> dict[str, str]:
    """An attachment as it is written in JSON."""
    fields = {
        "filename": attachment.filename,
        "content": b64encode(attachment.content).decode("ascii"),
        "content_type": attachment.content_type,
        "content_id": attachment.content_id,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _time_text(time: datetime) -> str:
    """The time in UTC; at the ends of the calendar, where there is none, the nearest."""
    try:
        return time.astimezone(UTC).isoformat()
    except OverflowError:
        nearest = datetime.min if time.year == 1 else datetime.max
        return nearest.replace(tzinfo=UTC).isoformat()


# How a value that was given is written in JSON; a raw mail stays bytes.
_TO_JSON: dict[FieldKind, Callable[[Any], Any]] = {
    FieldKind.RAW: bytes,
    FieldKind.STRINGS: lambda value: list(listed(value)),
    FieldKind.OBJECT: dict,
    FieldKind.FILES: lambda files: [attachment_fields(file) for file in files],
    FieldKind.TIME: _time_text,
}


class FieldSet:
    """Some fields of a mail, read together."""

    def __init__(self, fields: Iterable[MailField]) -> None:
        self._values = attrgetter(*(field.attribute for field in fields))
        self._defaults = tuple(field.default for field in fields)
        self._names = [field.name for field in fields]
        self._converters = [_TO_JSON.get(field.kind) for field in fields]

    def given(self, mail: Mail) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON has them; bodies as they are."""
        values = self._values(mail)
        if values == self._defaults:
            return {}
        given = {}
        # All have the same length, and this runs for every mail: zip does not check it again.
        for name, default, convert, value in zip(  # noqa: B905
            self._names, self._defaults, self._converters, values
        ):
            if value is default or value is None or value == default or value == []:
                continue
            given[name] = value if convert is None else convert(value)
        return given


ALL_FIELDS = FieldSet(FIELDS)
# Those that `_store_mails` takes in the JSON `fields`.
STORED_FIELDS = FieldSet([field for field in FIELDS if not field.is_stored_apart])
# Those of which an idempotency key must not be used for different values, without the contents.
_CONTENTS = (FieldKind.BODY, FieldKind.RAW, FieldKind.FILES)
REQUEST_FIELDS = FieldSet(
    [
        field
        for field in FIELDS
        if field.kind not in _CONTENTS and field.name not in ("tenant", "idempotency_key")
    ]
)
