"""`GET /messages`: a tenant's messages, page by page."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response

from pillarbox.api.fields import FilterText, Timestamp
from pillarbox.api.message_records import message_summary
from pillarbox.api.openapi import needs, problems
from pillarbox.api.routing import Context, json_response, router
from pillarbox.model.access import Scope
from pillarbox.model.delivery import State
from pillarbox.store.message_pages import page
from pillarbox.store.messages import MessageFilter
from pillarbox.wire.messages import MessagePage

routes = router()
# A page of so many is some hundred kilobytes.
MAX_PAGE_SIZE = 200
# What others call our states.
SYNONYMS = {
    "scheduled": State.PENDING,
    "in_flight": State.PROCESSING,
    "success": State.SENT,
    "dead_letter": State.FAILED,
    "dlq": State.FAILED,
    "canceled": State.CANCELLED,
}
StateWord = StrEnum("StateWord", {word.upper(): word for word in (*State, *SYNONYMS)})  # type: ignore[misc]


def cursor_of(message_id: UUID) -> str:
    """Where the next page begins, as a word that means nothing to anybody else."""
    return urlsafe_b64encode(message_id.bytes).decode().rstrip("=")


def read_cursor(cursor: str) -> UUID:
    """The id that a checked cursor stands for."""
    return UUID(bytes=urlsafe_b64decode(cursor + "=="))


def checked_cursor(cursor: str | None) -> str | None:
    """A cursor, if it is one that we gave."""
    try:
        return cursor and cursor_of(read_cursor(cursor))
    except ValueError:
        raise ValueError("is not a cursor: give `next_cursor` of the page before") from None


Cursor = Annotated[
    str | None,
    AfterValidator(checked_cursor),
    Field(max_length=22, description="`next_cursor` of the page before."),
]


class MessageQuery(BaseModel):
    """Which messages: all that fit. `recipient`, `sender` and `subject` match a part, whatever the case."""

    model_config = ConfigDict(extra="forbid")

    state: Annotated[
        list[StateWord] | None,
        Field(
            description="A delivery is in one of these states; `success`, `dlq` and the like are understood."
        ),
    ] = None
    recipient: Annotated[
        FilterText | None, Field(description="A part of a recipient's address.")
    ] = None
    sender: Annotated[FilterText | None, Field(description="A part of the sender.")] = None
    subject: Annotated[
        FilterText | None, Field(description="A part of the subject; never of a secret one.")
    ] = None
    tag: FilterText | None = None
    kind: FilterText | None = None
    class_: Annotated[FilterText | None, Field(alias="class")] = None
    provider: Annotated[
        FilterText | None, Field(description="A delivery was last tried through this provider.")
    ] = None
    since: Annotated[Timestamp | None, Field(description="Accepted then or later.")] = None
    until: Annotated[Timestamp | None, Field(description="Accepted before then.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 50
    cursor: Cursor = None

    def to_filter(self, before: UUID | None) -> MessageFilter:
        states = [str(SYNONYMS.get(word, word)) for word in self.state or ()]
        return MessageFilter(
            states=states, class_name=self.class_, kind=self.kind, tag=self.tag, sender=self.sender,
            recipient=self.recipient, provider=self.provider, since=self.since, until=self.until, before=before,
            subject=self.subject,
        )  # fmt: skip


@routes.get(
    "/messages",
    operation_id="list_messages",
    summary="List messages",
    description="Newest first. A page stays what it is while mails come in. With filters a page looks at a bounded"
    " number of messages: it can be short, or empty, and still have a `next`.",
    response_model=MessagePage,
    responses=problems("invalid-request"),
    openapi_extra=needs(Scope.READ),
    tags=["messages"],
)
async def list_messages(
    context: Context, request: Request, query: Annotated[MessageQuery, Query()]
) -> Response:
    before = read_cursor(query.cursor) if query.cursor else None
    found = await page(
        context.app.database, context.tenant.id, query.to_filter(before), query.limit
    )
    cursor = cursor_of(found.next) if found.next else None
    there = link(request, "/messages", cursor)
    body = MessagePage(
        messages=[message_summary(one) for one in found.messages], next_cursor=cursor, next=there
    )
    return page_response(body, there)


def link(request: Request, path: str, cursor: str | None) -> str | None:
    """The same question for the next page, if there is one."""
    if cursor is None:
        return None
    parameters: list[tuple[str, Any]] = [
        one for one in request.query_params.multi_items() if one[0] != "cursor"
    ]
    return f"{request.scope['root_path']}{path}?{urlencode([*parameters, ('cursor', cursor)])}"


def page_response(body: object, there: str | None) -> Response:
    """A page, which says where the next one is also as RFC 8288 does."""
    return json_response(body, headers={"Link": f'<{there}>; rel="next"'} if there else None)
