"""The requests that send mails: one mail, or a batch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WrapValidator,
)

from pillarbox.accept.mail import Attachment, Mail
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


class NewMessage(StrictModel):
    """A mail with `to`, `cc` or `bcc`, and `text`, `html`, `attachments`, `raw` or `template`."""

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

    sender: Annotated[
        str | None,
        Field(
            validation_alias=AliasChoices("from", "sender"),
            serialization_alias="from",
            description="The sender; without one the tenant's default. Also accepted as `sender`.",
        ),
    ] = None
    to: Annotated[StringList, Field(description=_MAILBOXES)] = ()
    cc: Annotated[StringList, Field(description=_MAILBOXES)] = ()
    bcc: Annotated[
        StringList, Field(description=f"{_MAILBOXES} They do not show in the mail.")
    ] = ()
    reply_to: Annotated[StringList, Field(description=_MAILBOXES)] = ()
    template: Annotated[
        str | None,
        Field(
            max_length=MAX_NAME_LENGTH,
            description="The template of `subject`, `text` and `html`, such as `hub/welcome`.",
        ),
    ] = None
    locale: Annotated[
        str | None,
        Field(
            pattern=f"^{LANGUAGE}$",
            max_length=MAX_NAME_LENGTH,
            description="The language of the template, such as `de-AT`; the nearest one is used.",
        ),
    ] = None
    data: Annotated[
        dict[str, Any] | None, Field(description="The values of the template's variables.")
    ] = None
    subject: str | None = None
    text: Annotated[str | None, Field(description="The plain body.")] = None
    html: Annotated[str | None, Field(description="The HTML body.")] = None
    raw: Annotated[
        Base64 | None,
        Field(
            description="A complete RFC 5322 message in base64, instead of bodies, headers and files."
        ),
    ] = None
    attachments: tuple[NewAttachment, ...] = ()
    headers: Annotated[dict[str, str] | None, Field(description="Further header fields.")] = None
    class_: Annotated[
        str | None,
        Field(alias="class", description="The set of policies; without one the tenant's default."),
    ] = None
    kind: Annotated[str | None, Field(description="A label of what the mail is, for filters.")] = (
        None
    )
    tags: StringList = ()
    metadata: Annotated[
        dict[str, Any] | None, Field(description="Whatever you want to find again.")
    ] = None
    priority: Annotated[Literal["urgent", "normal", "bulk"], Field(description="The lane.")] = (
        "normal"
    )
    send_at: Annotated[Timestamp | None, Field(description="Not before then.")] = None
    expires_at: Annotated[
        Timestamp | None, Field(description="Dropped if unsent by then, with that reason.")
    ] = None
    max_attempts: Annotated[
        StrictInt | None, Field(description="Overrides the retry policy's.")
    ] = None

    def to_mail(self, idempotency_key: str | None = None) -> Mail:
        """The mail to accept."""
        return Mail(
            sender=self.sender,
            to=self.to,
            cc=self.cc,
            bcc=self.bcc,
            reply_to=self.reply_to,
            subject=self.subject,
            text=self.text,
            html=self.html,
            raw=self.raw,
            headers=self.headers or {},
            attachments=[one.to_attachment() for one in self.attachments]
            if self.attachments
            else (),
            class_=self.class_,
            kind=self.kind,
            tags=self.tags,
            metadata=self.metadata,
            priority=self.priority,
            send_at=self.send_at,
            expires_at=self.expires_at,
            max_attempts=self.max_attempts,
            idempotency_key=idempotency_key,
        )


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
