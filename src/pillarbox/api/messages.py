"""`/messages`: hand mails over, look at them, change what becomes of them."""

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
from pillarbox.store.dlq import leaving
from pillarbox.wire.messages import Accepted, ChangedDelivery, Changes, FullMessage

if TYPE_CHECKING:
    from pillarbox.accept.intake import Receipt
    from pillarbox.api.auth import RequestContext
    from pillarbox.model.message import Content
    from pillarbox.store.messages import MessageRecord
    from pillarbox.store.operations import MessageChange

# Mails over this are composed beside the loop: a millisecond's work for whoever else waits.
LARGE = 256 * 1024
# As far ahead as `enqueue` allows.
FARTHEST = timedelta(days=366)
_key = re.compile(r"[ -~]{1,255}").fullmatch

submissions = router(SubmissionRoute)
routes = router()
MessageId = Annotated[UUID, Path(description="The message's id.")]


@submissions.post(
    "/messages",
    operation_id="send_message",
    summary="Send a mail",
    description="Accepts a mail. When this answers, it is committed: it will be delivered, or visibly fail.",
    status_code=202,
    response_model=Accepted,
    response_description="Accepted, and committed",
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
    """An idempotency key, if it is one that `enqueue` takes and every client can send."""
    if key is not None and not _key(key):
        raise InvalidMail(
            "bad_key", "Idempotency-Key", "must be 1 to 255 printable ASCII characters"
        )
    return key


def accepted(receipt: Receipt) -> Response:
    """The answer to a mail that was stored; written by hand, for it is the one most asked for."""
    headers = {"Location": f"/api/v1/messages/{receipt.id}"}
    if receipt.repeated:
        headers["Idempotency-Replayed"] = "true"
    return Response(json.dumps(receipt_body(receipt)), 202, headers, "application/json")


def receipt_body(receipt: Receipt) -> dict[str, object]:
    """A receipt as `Accepted` describes it."""
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
    summary="Tell a message's whole story",
    description="The envelope, every delivery with its attempts and what was said, redacted, and all events.",
    response_model=FullMessage,
    responses=problems("not-found"),
    openapi_extra=needs(Scope.READ),
    tags=["messages"],
)
async def get_message(context: Context, message_id: MessageId) -> Response:
    return json_response(
        full_message(await store.story(context.app.database, message_id, context.tenant.id))
    )


@routes.get(
    "/messages/{message_id}/raw",
    operation_id="get_raw_message",
    summary="Download a mail as it is sent",
    description="The composed mail. Not of secret classes, and not once retention has dropped its content.",
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
    envelope = await store.envelope_of(context.app.database, message_id, context.tenant.id)
    if envelope.secret:
        raise ProblemError(
            "not-allowed",
            "the class of this mail is secret: its content is never shown",
            code="secret",
        )
    content = await store.content(context.app.database, message_id)
    if content is None:
        raise ProblemError("content-purged", "the content of this message was dropped")
    mail = await _composed(envelope, content)
    # Saved, never shown: a browser must not run anything that a hostile mail brings.
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
            "not-possible", "the content of this message cannot be made into a legal mail"
        ) from None


@routes.post(
    "/messages/{message_id}/cancel",
    operation_id="cancel_message",
    summary="Cancel what was not sent yet",
    description="Cancels every delivery that waits or is held. What is in flight cannot be called back: with nothing"
    " else to cancel that is a 409, otherwise `changed` tells which were.",
    response_model=Changes,
    responses=problems("not-found", "in-flight", "not-possible"),
    openapi_extra=needs(Scope.MANAGE),
    tags=["messages"],
)
async def cancel_message(context: Context, message_id: MessageId) -> Response:
    change = await operations.cancel(
        context.app.database, message_id, context.tenant.id, context.who
    )
    return _changes(message_id, change, "cancelled")


class NewTime(StrictModel):
    """When to send a message instead."""

    send_at: Annotated[
        Timestamp, Field(description="Not before then; a time that has passed means now.")
    ]


@routes.post(
    "/messages/{message_id}/reschedule",
    operation_id="reschedule_message",
    summary="Send a message at another time",
    description="Moves every delivery that was not tried yet. `send_at` of the message stays what it was at first;"
    " `next_attempt_at` of its deliveries, and an event, tell the new time.",
    response_model=Changes,
    responses=problems("not-found", "in-flight", "not-possible", "invalid-mail", *BODY),
    openapi_extra=needs(Scope.MANAGE),
    tags=["messages"],
)
async def reschedule_message(context: Context, message_id: MessageId, when: NewTime) -> Response:
    envelope = await store.envelope_of(context.app.database, message_id, context.tenant.id)
    _check_time(when.send_at, envelope.expires_at)
    if is_restricted(context.principal):
        await _check_leaving(context, message_id)
    change = await operations.reschedule(
        context.app.database, message_id, context.tenant.id, when.send_at, context.who
    )
    return _changes(message_id, change, "rescheduled")


async def _check_leaving(context: RequestContext, message_id: UUID) -> None:
    """Raise unless the principal could hand this message over: to send it now is to send it."""
    deliveries = await store.deliveries_of(context.app.database, message_id, context.tenant.id)
    async for one in leaving(context.app.database, [(message_id, each.n) for each in deliveries]):
        check_leaving(context.principal, one)


def _check_time(send_at: datetime, expires_at: datetime | None) -> None:
    if send_at > datetime.now(UTC) + FARTHEST:
        raise InvalidMail("out_of_range", "send_at", "may lie one year ahead at most")
    if expires_at is not None and send_at >= expires_at:
        raise InvalidMail("out_of_range", "send_at", "must lie before the message expires")


def _changes(message_id: UUID, change: MessageChange, word: str) -> Response:
    """What was changed; a problem if nothing was."""
    deliveries = [
        ChangedDelivery(
            id=delivery_id(message_id, one.n),
            recipient=one.recipient,
            role=one.role,
            state=one.state,
            changed=one.n in change.changed,
            next_attempt_at=next_attempt(one),
        )
        for one in change.deliveries
    ]
    if change.changed:
        return json_response(Changes(id=message_id, deliveries=deliveries))
    told = [plain_json(one) for one in deliveries]
    if any(one.state == State.PROCESSING for one in deliveries):
        detail = "it is being sent right now, and cannot be called back"
        raise ProblemError("in-flight", detail, deliveries=told)
    states = ", ".join(sorted({one.state for one in deliveries}))
    raise ProblemError(
        "not-possible", f"nothing of this message can be {word}: it is {states}", deliveries=told
    )
