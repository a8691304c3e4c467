"""`/messages/{message_id}/resend`: the same mail once more, as a new message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from starlette.responses import Response

from pillarbox.accept.mail import Mail
from pillarbox.api.auth import RequestContext
from pillarbox.api.messages import MessageId, accepted, checked_key
from pillarbox.api.openapi import IdempotencyKey, needs, problems
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, router
from pillarbox.errors import StoreError
from pillarbox.model.access import Scope
from pillarbox.store import messages as store
from pillarbox.store import operations
from pillarbox.telemetry import logs
from pillarbox.wire.messages import Accepted

if TYPE_CHECKING:
    from pillarbox.model.message import Content
    from pillarbox.store.messages import DeliveryRecord, MessageRecord

log = logs.get("pillarbox.http")
routes = router()


@routes.post(
    "/messages/{message_id}/resend",
    operation_id="resend_message",
    summary="Send a message once more",
    description="Makes a new message, due now, with the same content for the same recipients, all of them; the old one"
    " stays as it is. It does not expire. Needs both scopes.",
    status_code=202,
    response_model=Accepted,
    response_description="A new message was accepted, and committed",
    responses=problems(
        "not-found", "content-purged", "invalid-mail", "idempotency-conflict", "invalid-request"
    ),
    openapi_extra=needs(Scope.MANAGE, Scope.SEND),
    tags=["messages"],
)
async def resend_message(
    context: Context, message_id: MessageId, idempotency_key: IdempotencyKey = None
) -> Response:
    key, database = checked_key(idempotency_key), context.app.database
    envelope, content = await store.for_resending(database, message_id, context.tenant.id)
    if content is None:
        raise ProblemError(
            "content-purged", "the content of this message was dropped: it cannot be sent again"
        )
    mail = again(envelope, await store.deliveries_of(database, message_id), content, key)
    received = envelope.headers.get("Received") if content.raw is not None else None
    receipt = await context.app.intake.accept(context.principal, mail, received=received)
    if not receipt.repeated:
        await _tell(context, message_id, receipt.id)
    return accepted(receipt)


def again(
    envelope: MessageRecord, deliveries: Sequence[DeliveryRecord], content: Content, key: str | None
) -> Mail:
    """The mail that this message was made of, to be sent now."""
    is_raw = content.raw is not None
    return Mail(
        sender=envelope.sender,
        to=envelope.to,
        cc=envelope.cc,
        bcc=[one.recipient for one in deliveries if one.role == "bcc"],
        reply_to=() if is_raw else envelope.reply_to,
        subject=envelope.subject,
        text=content.text,
        html=content.html,
        raw=content.raw,
        headers={} if is_raw else envelope.headers,
        attachments=content.attachments,
        class_=envelope.class_name,
        kind=envelope.kind,
        tags=envelope.tags,
        metadata=envelope.metadata or None,
        priority=envelope.priority,
        max_attempts=envelope.max_attempts,
        idempotency_key=key,
    )


async def _tell(context: RequestContext, old: UUID, new: UUID) -> None:
    """Tell both messages of each other. The new one is accepted, whether this can be written down or not."""
    try:
        await operations.tell(
            context.app.database, old, "resent", {**context.who, "message": str(new)}
        )
        await operations.tell(
            context.app.database, new, "resend_of", {**context.who, "message": str(old)}
        )
    except StoreError as error:
        log.warning("a resend could not be told", message=old, error=error)
