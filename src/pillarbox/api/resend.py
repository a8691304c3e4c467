"""`/messages/{message_id}/resend`: sends a mail once more, as a new message."""

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
    summary="Resend a message",
    description="Creates a new message, due now, with the same content and all recipients. The"
    " old message is not changed. The new one does not expire. Needs both scopes.",
    status_code=202,
    response_model=Accepted,
    response_description="A new message was accepted and committed",
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
            "content-purged", "the content of this message was deleted: it cannot be sent again"
        )
    mail = mail_again(envelope, await store.deliveries_of(database, message_id), content, key)
    received = envelope.headers.get("Received") if content.raw is not None else None
    receipt = await context.app.intake.accept(context.principal, mail, received=received)
    if not receipt.repeated:
        await _record_events(context, message_id, receipt.id)
    return accepted(receipt)


def mail_again(
    envelope: MessageRecord, deliveries: Sequence[DeliveryRecord], content: Content, key: str | None
) -> Mail:
    """The mail of this message, to be sent now."""
    reply_to, headers = envelope.reply_to, envelope.headers
    if content.raw is not None:
        reply_to, headers = (), {}
    return Mail(
        sender=envelope.sender,
        to=envelope.to,
        cc=envelope.cc,
        bcc=[delivery.recipient for delivery in deliveries if delivery.role == "bcc"],
        reply_to=reply_to,
        subject=envelope.subject,
        text=content.text,
        html=content.html,
        raw=content.raw,
        headers=headers,
        attachments=content.attachments,
        class_=envelope.class_name,
        kind=envelope.kind,
        tags=envelope.tags,
        metadata=envelope.metadata or None,
        priority=envelope.priority,
        max_attempts=envelope.max_attempts,
        idempotency_key=key,
    )


async def _record_events(context: RequestContext, old: UUID, new: UUID) -> None:
    """Record an event for both messages; if that fails, the new one stays accepted."""
    try:
        await operations.record_event(
            context.app.database, old, "resent", {**context.actor, "message": str(new)}
        )
        await operations.record_event(
            context.app.database, new, "resend_of", {**context.actor, "message": str(old)}
        )
    except StoreError as error:
        log.warning("the events of a resend could not be recorded", message=old, error=error)
