"""`/reports`: receives bounce mails and complaints that arrived at the customer."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from pillarbox.api.bodies import check_media_type
from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, json_response, router, server_state
from pillarbox.model.access import Scope
from pillarbox.model.delivery import delivery_id
from pillarbox.model.outcome import Reason
from pillarbox.track.bounce_reports import NotAReport
from pillarbox.track.feedback.base import FeedbackKind

routes = router()
MAIL = "message/rfc822"


class ReportedEvent(BaseModel):
    """The report about one recipient."""

    kind: FeedbackKind
    delivery: Annotated[
        str | None, Field(description="Null: the report matches no message of the tenant.")
    ]
    reason: Reason | None
    hard: Annotated[bool, Field(description="True: the address is suppressed.")]
    new: Annotated[
        bool, Field(description="False: it was reported before, and nothing was changed.")
    ]


class ReportResult(BaseModel):
    """The events in a report."""

    events: list[ReportedEvent]


@routes.post(
    "/reports",
    operation_id="report",
    summary="Submit a bounce mail or a complaint",
    description="Takes a complete mail as it was received: a delivery report (RFC 3464) or a"
    " complaint (RFC 5965). It is processed like feedback of a provider, for messages of the"
    " tenant only.",
    response_model=ReportResult,
    responses=problems(*BODY),
    openapi_extra=needs(Scope.MANAGE)
    | {"requestBody": {"required": True, "content": {MAIL: {"schema": {"type": "string"}}}}},
    tags=["messages"],
)
async def report(context: Context, request: Request) -> Response:
    check_media_type(request.headers, MAIL)
    app, bodies = server_state(request)
    with bodies.hold(app.settings.feedback_max_body) as body:
        mail = await body.read(request.headers, request.receive)
        try:
            key = await app.return_path_key()
            reported = await app.ingest.take_report(mail, key, context.tenant.id)
        except NotAReport as error:
            raise ProblemError(
                "invalid-request", str(error), code="no_report", field="body"
            ) from None
    events = [
        ReportedEvent(
            kind=event.kind,
            delivery=delivery_id(found.message_id, found.n) if found else None,
            reason=event.reason,
            hard=event.hard,
            new=found is not None and found.is_new,
        )
        for event, found in reported
    ]
    return json_response(ReportResult(events=events))
