"""`/messages`: send, read, cancel and reschedule mails."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import Path
from pydantic import Field
from starlette.responses import Response

from pillarbox.accept.leaving import check_leaving, is_restricted
from pillarbox.api.fields import StrictModel, Timestamp
from pillarbox.api.message_records import full_message, next_attempt
from pillarbox.api.new_message import NewMessage
from pillarbox.api.openapi import BODY, IdempotencyKey, needs, problems
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, SubmissionRoute, json_response, plain_json, router
from pillarbox.api.template_mails import mail_of
from pillarbox.deliver.mime import compose
from pillarbox.errors import InvalidMail
from pillarbox.model.access import Scope
from pillarbox.model.delivery import State, delivery_id
from pillarbox.store import messages as store
from pillarbox.store import operations
from pillarbox.store.dlq import outgoing_envelopes
from pillarbox.wire.messages import Accepted, ChangedDelivery, Changes, FullMessage

if TYPE_CHECKING:
    from pillarbox.accept.intake import Receipt
    from pillarbox.api.auth import RequestContext
    from pillarbox.model.message import Content
    from pillarbox.store.messages import MessageRecord
    from pillarbox.store.operations import MessageChange

# Larger mails are composed in a thread: it would block the event loop for milliseconds.
LARGE = 256 * 1024
# The limit of `enqueue`.
FARTHEST = timedelta(days=366)
_key = re.compile(r"[ -~]{1,255}").fullmatch

submissions = router(SubmissionRoute)
routes = router()
MessageId = Annotated[UUID, Path(description="The message's id.")]


@submissions.post(
    "/messages",
    operation_id="send_message",
    summary="Send a mail",
    description="Accepts a mail. The response means that it is committed: it will be delivered,"
    " or fail with a reason.",
    status_code=202,
    response_model=Accepted,
    response_description="Accepted and committed",
    responses=problems("invalid-mail", "template", "idempotency-conflict", *BODY),
    openapi_extra=needs(Scope.SEND),
    tags=["messages"],
)
async def send_message(
    context: Context, message: NewMessage, idempotency_key: IdempotencyKey = None
) -> Response:
    mail = mail_of(context.app, message, checked_key(idempotency_key))
    return accepted(await context.app.intake.accept(context.principal, mail))


def checked_key(key: str | None) -> str | None:
    """A valid idempotency key; InvalidMail otherwise."""
    if key is not None and not _key(key):
        raise InvalidMail(
            "bad_key", "Idempotency-Key", "must be 1 to 255 printable ASCII characters"
        )
    return key


def accepted(receipt: Receipt) -> Response:
    """The response to an accepted mail; written by hand, because it is the most frequent one."""
    headers = {"Location": f"/api/v1/messages/{receipt.id}"}
    if receipt.repeated:
        headers["Idempotency-Replayed"] = "true"
    return Response(json.dumps(receipt_body(receipt)), 202, headers, "application/json")


def receipt_body(receipt: Receipt) -> dict[str, object]:
    """A receipt with the fields of `Accepted`."""
    deliveries = [
        {
            "id": delivery_id(receipt.id, n),
            "recipient": recipient,
            "role": role,
            "state": receipt.state,
        }
        for n, role, recipient in receipt.recipients
    ]
    return {"id": str(receipt.id), "deliveries": deliveries}


@routes.get(
    "/messages/{message_id}",
    operation_id="get_message",
    summary="Show a message",
    description="The envelope, every delivery with its attempts and redacted transcripts, and all"
    " events.",
    response_model=FullMessage,
    responses=problems("not-found"),
    openapi_extra=needs(Scope.READ),
    tags=["messages"],
)
async def get_message(context: Context, message_id: MessageId) -> Response:
    return json_response(
        full_message(
            await store.message_details(context.app.database, message_id, context.tenant.id)
        )
    )


@routes.get(
    "/messages/{message_id}/raw",
    operation_id="get_raw_message",
    summary="Download the mail",
    description="The mail as it is sent (RFC 5322). Not available for secret classes, nor after"
    " retention deleted the content.",
    response_class=Response,
    responses=problems("not-found", "not-possible", "content-purged")
    | {
        200: {
            "description": "The mail",
            "content": {"message/rfc822": {"schema": {"type": "string"}}},
        }
    },
    openapi_extra=needs(Scope.READ),
    tags=["messages"],
)
async def get_raw_message(context: Context, message_id: MessageId) -> Response:
    envelope = await store.message_record(context.app.database, message_id, context.tenant.id)
    if envelope.secret:
        raise ProblemError(
            "not-allowed",
            "the class of this mail is secret: its content is never shown",
            code="secret",
        )
    content = await store.content(context.app.database, message_id)
    if content is None:
        raise ProblemError("content-purged", "the content of this message was deleted")
    mail = await _composed(envelope, content)
    # An attachment: a browser must not run scripts of a hostile mail.
    headers = {"Content-Disposition": f'attachment; filename="{message_id}.eml"'}
    return Response(mail, 200, headers, "message/rfc822")


async def _composed(envelope: MessageRecord, content: Content) -> bytes:
    message = store.message_of(envelope)
    try:
        if envelope.size > LARGE:
            return await asyncio.to_thread(compose, message, content)
        return compose(message, content)
    except ValueError:  # a worker fails it as `malformed`, too
        raise ProblemError(
            "not-possible", "the content of this message cannot be composed into a valid mail"
        ) from None


@routes.post(
    "/messages/{message_id}/cancel",
    operation_id="cancel_message",
    summary="Cancel a message",
    description="Cancels every delivery that waits or is held. A delivery in flight cannot be"
    " cancelled. If no delivery was cancelled, the response is 409; otherwise `changed` is true"
    " for those that were.",
    response_model=Changes,
    responses=problems("not-found", "in-flight", "not-possible"),
    openapi_extra=needs(Scope.MANAGE),
    tags=["messages"],
)
async def cancel_message(context: Context, message_id: MessageId) -> Response:
    change = await operations.cancel(
        context.app.database, message_id, context.tenant.id, context.actor
    )
    return _changes(message_id, change, "cancelled")


class NewTime(StrictModel):
    """The new time of a message."""

    send_at: Annotated[
        Timestamp, Field(description="The earliest time to send it; a time in the past means now.")
    ]


@routes.post(
    "/messages/{message_id}/reschedule",
    operation_id="reschedule_message",
    summary="Reschedule a message",
    description="Reschedules every delivery that was not tried yet. `send_at` of the message does"
    " not change; `next_attempt_at` of its deliveries, and an event, contain the new time.",
    response_model=Changes,
    responses=problems("not-found", "in-flight", "not-possible", "invalid-mail", *BODY),
    openapi_extra=needs(Scope.MANAGE),
    tags=["messages"],
)
async def reschedule_message(context: Context, message_id: MessageId, when: NewTime) -> Response:
    envelope = await store.message_record(context.app.database, message_id, context.tenant.id)
    _check_time(when.send_at, envelope.expires_at)
    if is_restricted(context.principal):
        await _check_leaving(context, message_id)
    change = await operations.reschedule(
        context.app.database, message_id, context.tenant.id, when.send_at, context.actor
    )
    return _changes(message_id, change, "rescheduled")


async def _check_leaving(context: RequestContext, message_id: UUID) -> None:
    """Raise unless the principal is allowed to send this message."""
    deliveries = await store.deliveries_of(context.app.database, message_id, context.tenant.id)
    async for envelope in outgoing_envelopes(
        context.app.database, [(message_id, each.n) for each in deliveries]
    ):
        check_leaving(context.principal, envelope)


def _check_time(send_at: datetime, expires_at: datetime | None) -> None:
    if send_at > datetime.now(UTC) + FARTHEST:
        raise InvalidMail("out_of_range", "send_at", "must be at most one year ahead")
    if expires_at is not None and send_at >= expires_at:
        raise InvalidMail("out_of_range", "send_at", "must be before the message expires")


def _changes(message_id: UUID, change: MessageChange, word: str) -> Response:
    """The response to a change; a problem if no delivery was changed."""
    deliveries = [
        ChangedDelivery(
            id=delivery_id(message_id, delivery.n),
            recipient=delivery.recipient,
            role=delivery.role,
            state=delivery.state,
            changed=delivery.n in change.changed,
            next_attempt_at=next_attempt(delivery),
        )
        for delivery in change.deliveries
    ]
    if change.changed:
        return json_response(Changes(id=message_id, deliveries=deliveries))
    bodies = [plain_json(delivery) for delivery in deliveries]
    if any(delivery.state == State.PROCESSING for delivery in deliveries):
        detail = "the message is being sent and cannot be changed"
        raise ProblemError("in-flight", detail, deliveries=bodies)
    states = ", ".join(sorted({delivery.state for delivery in deliveries}))
    raise ProblemError(
        "not-possible",
        f"no delivery of this message can be {word}: the state is {states}",
        deliveries=bodies,
    )
