"""`POST /messages/batch`: sends up to 100 mails in one call, each with its own result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from pillarbox.accept.intake import Receipt
from pillarbox.accept.mail import Mail
from pillarbox.api import openapi
from pillarbox.api.auth import RequestContext
from pillarbox.api.messages import checked_key, receipt_body
from pillarbox.api.new_message import BatchRecipient, InvalidItem, NewBatch, NewMessage
from pillarbox.api.openapi import BODY, IdempotencyKey, needs, problems
from pillarbox.api.problems import ProblemError, invalid, problem_of
from pillarbox.api.routing import Context, SubmissionRoute, router
from pillarbox.api.substitutions import Template
from pillarbox.api.template_mails import mail_of
from pillarbox.app import App
from pillarbox.errors import InvalidMail, PillarboxError, RenderError, StoreError
from pillarbox.model.access import Scope
from pillarbox.wire.messages import Accepted

# Bytes of all mails of one template message: attachments are sent once, but stored per recipient.
MAX_BYTES = 256 * 2**20
# Bytes of mails prepared at once: each is held several times in memory while it is stored.
SLICE = 8 * 2**20
routes = router(SubmissionRoute)
Prepared = Mail | PillarboxError | ProblemError
Result = Receipt | PillarboxError | ProblemError


class BatchItem(BaseModel):
    """The result of one mail: `message` if it was accepted (202), otherwise `problem`."""

    status: int
    message: Accepted | None = None
    repeated: Annotated[
        bool, Field(description="True: it was accepted before with the same idempotency key.")
    ] = False
    problem: openapi.Problem | None = None


class BatchResult(BaseModel):
    """A result for each mail, in the order of the request."""

    accepted: int
    refused: int
    results: list[BatchItem]


@routes.post(
    "/messages/batch",
    operation_id="send_batch",
    summary="Send up to 100 mails",
    description="Takes `messages`; or one `message` with `{{name}}` in its subject, text or html,"
    " and `recipients` with the values for each, which are escaped in html; with a `template`"
    " they are added to its `data`. Each mail is accepted or refused individually: 200 means that"
    " each has a result. An idempotency key applies to each mail by its position.",
    response_model=BatchResult,
    response_description="A result for each mail",
    responses=problems("invalid-mail", "template", *BODY),
    openapi_extra=needs(Scope.SEND),
    tags=["messages"],
)
async def send_batch(
    context: Context, batch: NewBatch, idempotency_key: IdempotencyKey = None
) -> Response:
    key = checked_key(idempotency_key)
    results: list[Result] = []
    for some in _slices(_mails(context.app, batch, key)):
        results += await _accept(context, some)
    if all(isinstance(result, StoreError) for result in results):
        raise StoreError("the database is unavailable: no mail of the batch has a result")
    items = [_item(result) for result in results]
    count = sum(item["status"] == 202 for item in items)
    body = {"accepted": count, "refused": len(items) - count, "results": items}
    return Response(json.dumps(body), 200, None, "application/json")


def _mails(app: App, batch: NewBatch, key: str | None) -> Iterator[Prepared]:
    """The mails of a batch, in order; an error instead of each invalid one."""
    if batch.messages is not None and batch.message is None and batch.recipients is None:
        return _given(app, batch.messages, key)
    if batch.messages is None and batch.message is not None and batch.recipients is not None:
        return _filled(app, batch.message, batch.recipients, key)
    detail = "must contain either messages, or message and recipients"
    raise ProblemError("invalid-request", detail, code="bad_value", field="messages")


def _given(
    app: App, messages: Sequence[NewMessage | InvalidItem], key: str | None
) -> Iterator[Prepared]:
    for position, item in enumerate(messages):
        if isinstance(item, InvalidItem):
            yield invalid(item.error, "messages", position)
        else:
            yield _prepared(app, item, item_key(key, position))


def _prepared(
    app: App, message: NewMessage, key: str | None, more: Mapping[str, Any] | None = None
) -> Prepared:
    try:
        return mail_of(app, message, key, more)
    except (InvalidMail, RenderError) as error:
        return error


def _filled(
    app: App, message: NewMessage, recipients: Sequence[BatchRecipient], key: str | None
) -> Iterator[Prepared]:
    if message.to:
        raise ProblemError(
            "invalid-request",
            "must be empty: put the addresses into `recipients`",
            code="bad_value",
            field="message.to",
        )
    mail = message.to_mail() if message.template else mail_of(app, message, None)
    if _weight(mail) * len(recipients) > MAX_BYTES:
        raise InvalidMail(
            "too_big",
            "message",
            "all mails together must be at most 256 MiB",
            "send a link instead",
        )
    if message.template is not None:
        return _rendered(app, message, recipients, key)
    return _fill(Template(mail), recipients, key)


def _rendered(
    app: App, message: NewMessage, recipients: Sequence[BatchRecipient], key: str | None
) -> Iterator[Prepared]:
    """The template rendered for each recipient, with common and individual values."""
    for position, recipient in enumerate(recipients):
        own = message.model_copy(update={"to": recipient.to})
        yield _prepared(app, own, item_key(key, position), recipient.substitutions)


def _fill(
    template: Template, recipients: Sequence[BatchRecipient], key: str | None
) -> Iterator[Prepared]:
    for position, recipient in enumerate(recipients):
        try:
            yield template.fill(
                recipient.to, recipient.substitutions or {}, item_key(key, position)
            )
        except InvalidMail as error:
            yield error


def item_key(key: str | None, position: int) -> str | None:
    """The idempotency key of one mail, derived from that of the batch; no client can choose it."""
    if key is None:
        return None
    return f"batch:{sha256(key.encode()).hexdigest()}:{position}"


def _weight(mail: Prepared) -> int:
    """The approximate size of a mail in bytes."""
    if not isinstance(mail, Mail):
        return 0
    bodies = sum(len(body or "") for body in (mail.text, mail.html, mail.raw))
    return bodies + sum(len(attachment.content) for attachment in mail.attachments)


def _slices(mails: Iterator[Prepared]) -> Iterator[list[Prepared]]:
    """The mails in slices of limited size."""
    some: list[Prepared] = []
    weight = 0
    for mail in mails:
        some.append(mail)
        weight += _weight(mail)
        if weight >= SLICE:
            yield some
            some, weight = [], 0
    if some:
        yield some


async def _accept(context: RequestContext, prepared: list[Prepared]) -> list[Result]:
    """Accept the valid mails; returns a result for each item, in order."""
    mails = [item for item in prepared if isinstance(item, Mail)]
    answers = iter(await context.app.intake.accept_many(context.principal, mails))
    return [next(answers) if isinstance(item, Mail) else item for item in prepared]


def _item(result: Result) -> dict[str, Any]:
    """A result with the fields of `BatchItem`."""
    if isinstance(result, Receipt):
        return {"status": 202, "message": receipt_body(result), "repeated": result.repeated}
    problem = problem_of(result)
    return {"status": problem.type.status, "problem": problem.body()}
