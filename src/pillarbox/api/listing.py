"""`GET /messages`: lists the messages of a tenant, with cursors for the pages."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from pillarbox.api.fields import FilterText, Timestamp
from pillarbox.api.message_records import message_summary
from pillarbox.api.openapi import needs, problems
from pillarbox.api.pagination import (
    MAX_PAGE_SIZE,
    Cursor,
    next_cursor,
    next_path,
    page_response,
    row_before,
)
from pillarbox.api.routing import Context, router
from pillarbox.model.access import Scope
from pillarbox.model.delivery import State
from pillarbox.store.message_pages import page
from pillarbox.store.messages import MessageFilter
from pillarbox.wire.messages import MessagePage

routes = router()
# Synonyms of states in other systems.
SYNONYMS = {
    "scheduled": State.PENDING,
    "in_flight": State.PROCESSING,
    "success": State.SENT,
    "dead_letter": State.FAILED,
    "dlq": State.FAILED,
    "canceled": State.CANCELLED,
}
_STATE_NAMES = {name.upper(): name for name in (*State, *SYNONYMS)}
StateWord = StrEnum("StateWord", _STATE_NAMES)  # type: ignore[misc]


class MessageQuery(BaseModel):
    """Filters; a message must match all of them.

    `recipient`, `sender` and `subject` match a substring, ignoring case.
    """

    model_config = ConfigDict(extra="forbid")

    state: Annotated[
        list[StateWord] | None,
        Field(
            description="A delivery is in one of these states; synonyms such as `success` and"
            " `dlq` work."
        ),
    ] = None
    recipient: Annotated[
        FilterText | None, Field(description="A part of a recipient's address.")
    ] = None
    sender: Annotated[FilterText | None, Field(description="A part of the sender.")] = None
    subject: Annotated[
        FilterText | None,
        Field(description="A part of the subject; a secret subject never matches."),
    ] = None
    tag: FilterText | None = None
    kind: FilterText | None = None
    class_: Annotated[FilterText | None, Field(alias="class")] = None
    provider: Annotated[
        FilterText | None, Field(description="The provider of a delivery's last attempt.")
    ] = None
    since: Annotated[Timestamp | None, Field(description="Accepted at this time or later.")] = None
    until: Annotated[Timestamp | None, Field(description="Accepted before this time.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 50
    cursor: Cursor = None

    def to_filter(self, before: UUID | None) -> MessageFilter:
        states = [str(SYNONYMS.get(word, word)) for word in self.state or ()]
        return MessageFilter(
            states=states,
            class_name=self.class_,
            kind=self.kind,
            tag=self.tag,
            sender=self.sender,
            recipient=self.recipient,
            provider=self.provider,
            since=self.since,
            until=self.until,
            before=before,
            subject=self.subject,
        )


@routes.get(
    "/messages",
    operation_id="list_messages",
    summary="List messages",
    description="Newest first. New mails do not shift the pages. With filters a page examines a"
    " limited number of messages: it can be short, or empty, and still have a `next`.",
    response_model=MessagePage,
    responses=problems("invalid-request"),
    openapi_extra=needs(Scope.READ),
    tags=["messages"],
)
async def list_messages(
    context: Context, request: Request, query: Annotated[MessageQuery, Query()]
) -> Response:
    before = row_before(query.cursor)
    found = await page(
        context.app.database, context.tenant.id, query.to_filter(before), query.limit
    )
    cursor = next_cursor(found.next)
    path = next_path(request, "/messages", cursor)
    body = MessagePage(
        messages=[message_summary(message) for message in found.messages],
        next_cursor=cursor,
        next=path,
    )
    return page_response(body, path)
