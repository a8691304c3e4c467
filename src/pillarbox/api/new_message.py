"""The requests that send mails: one mail, or a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WrapValidator,
    create_model,
)

from pillarbox.accept.mail import FIELDS, Attachment, FieldKind, Mail, MailField
from pillarbox.api.fields import Base64, StrictInt, StrictModel, StringList, Timestamp
from pillarbox.lifecycle.portals import LANGUAGE

# As many as the recipients of one mail.
MAX_BATCH_SIZE = 100
# Characters of the name of a template or a language.
MAX_NAME_LENGTH = 100
# Values per recipient; the resulting texts have limits of their own.
MAX_SUBSTITUTIONS = 100

_MAILBOXES = "One or more of `a@b.example` or `Name <a@b.example>`."


class NewAttachment(StrictModel):
    """A file. With a `content_id` it is inline: the HTML refers to it as `cid:…`."""

    filename: str
    content: Annotated[Base64, Field(description="The file, as base64.")]
    content_type: str = "application/octet-stream"
    content_id: str | None = None

    def to_attachment(self) -> Attachment:
        return Attachment(self.filename, self.content, self.content_type, self.content_id)


# How HTTP reads a field of each kind, and fields with a narrower type.
_TYPES: dict[FieldKind, Any] = {
    FieldKind.NAME: str | None,
    FieldKind.BODY: str | None,
    FieldKind.RAW: Base64 | None,
    FieldKind.STRINGS: StringList,
    FieldKind.OBJECT: dict[str, Any] | None,
    FieldKind.FILES: tuple[NewAttachment, ...],
    FieldKind.TIME: Timestamp | None,
    FieldKind.INTEGER: StrictInt | None,
}
_NARROWER: dict[str, Any] = {
    "headers": dict[str, str] | None,
    "priority": Literal["urgent", "normal", "bulk"],
}
_SENDER = {"validation_alias": AliasChoices("from", "sender"), "serialization_alias": "from"}
# The API key names the tenant; the idempotency key is a header.
_MAIL_FIELDS = {
    field.attribute: field for field in FIELDS if field.name not in ("tenant", "idempotency_key")
}


def _definition(field: MailField) -> tuple[Any, Any]:
    """The type of a mail's field and its description, as pydantic takes them."""
    options: dict[str, Any] = {"description": field.description} if field.description else {}
    if field.name == "sender":
        options |= _SENDER
    elif field.name != field.attribute:
        options["alias"] = field.name
    type_ = _NARROWER.get(field.name, _TYPES[field.kind])
    return type_, Field(None if field.default == {} else field.default, **options)


if TYPE_CHECKING:

    class MailModel(StrictModel):
        """The fields of a mail; see `pillarbox.accept.mail`."""

        def __getattr__(self, name: str) -> Any: ...

else:
    MailModel = create_model(
        "MailModel",
        __base__=StrictModel,
        **{name: _definition(field) for name, field in _MAIL_FIELDS.items()},
    )


class NewMessage(MailModel):
    """A mail: `to`, `cc` or `bcc`, and `text`, `html`, `attachments`, `raw` or `template`.

    The rules are those of `enqueue`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "from": "The Shop <hello@shop.example>",
                "to": ["ada@mail.example"],
                "subject": "Your order",
                "text": "It is on its way.",
                "tags": ["order"],
            }
        }
    )

    template: Annotated[
        str | None,
        Field(
            max_length=MAX_NAME_LENGTH,
            description="The template that makes `subject`, `text` and `html`: `hub/welcome`.",
        ),
    ] = None
    locale: Annotated[
        str | None,
        Field(
            pattern=f"^{LANGUAGE}$",
            max_length=MAX_NAME_LENGTH,
            description="The language of the template, such as `de-AT`, or else the nearest one.",
        ),
    ] = None
    data: Annotated[
        dict[str, Any] | None, Field(description="The values of the template's variables.")
    ] = None

    def to_mail(self, idempotency_key: str | None = None) -> Mail:
        """The mail as it is accepted."""
        values = self.__dict__
        given = {name: values[name] for name in self.model_fields_set if name in _MAIL_FIELDS}
        if given.get("headers", ...) is None:
            del given["headers"]
        if "attachments" in given:
            given["attachments"] = [file.to_attachment() for file in self.attachments]
        return Mail(**given, idempotency_key=idempotency_key)


class InvalidItem(NamedTuple):
    """An invalid item of a batch, with its error; the other items are accepted."""

    error: ValidationError


def _or_unreadable(
    value: Any, handler: ModelWrapValidatorHandler[NewMessage]
) -> NewMessage | InvalidItem:
    try:
        return handler(value)
    except ValidationError as error:
        return InvalidItem(error)


class BatchRecipient(StrictModel):
    """One mail of a batch: its recipients, and the values of `{{name}}` in its texts."""

    to: Annotated[StringList, Field(description=_MAILBOXES)]
    substitutions: Annotated[
        dict[str, str | int | float] | None, Field(max_length=MAX_SUBSTITUTIONS)
    ] = None


class NewBatch(StrictModel):
    """Up to 100 `messages`; or one `message` and up to 100 `recipients`, with a mail for each."""

    messages: Annotated[
        list[Annotated[NewMessage, WrapValidator(_or_unreadable)]] | None,
        Field(min_length=1, max_length=MAX_BATCH_SIZE),
    ] = None
    message: Annotated[
        NewMessage | None, Field(description="The mail for all `recipients`; it has no `to`.")
    ] = None
    recipients: Annotated[
        list[BatchRecipient] | None, Field(min_length=1, max_length=MAX_BATCH_SIZE)
    ] = None
