"""`/suppressions`: addresses to which a tenant's mails are not sent."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response

from pillarbox.accept.suppressions import LONGEST_NOTE, checked, is_address
from pillarbox.api.fields import FilterText, StrictModel, Timestamp
from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.pagination import MAX_PAGE_SIZE, next_path, page_response
from pillarbox.api.problems import MAX_FAULTS, ProblemError
from pillarbox.api.routing import Context, LargeBodyRoute, json_response, router
from pillarbox.errors import InvalidMail, NotFound
from pillarbox.model.access import Scope
from pillarbox.model.suppression import SuppressionReason
from pillarbox.store import suppressions as store
from pillarbox.wire.suppressions import Suppression, SuppressionPage, SuppressionsAdded

routes = router()
larger = router(LargeBodyRoute)
# Addresses in one call that are not a file.
MAX_PER_CALL = 1000


def _cursor(address: str) -> str:
    return urlsafe_b64encode(address.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> str:
    return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


def _checked_cursor(cursor: str | None) -> str | None:
    try:
        if cursor and (_cursor(_read_cursor(cursor)) != cursor or "\0" in _read_cursor(cursor)):
            raise ValueError
    except ValueError:
        raise ValueError("is not a cursor: use `next_cursor` of the previous page") from None
    return cursor


class SuppressionQuery(BaseModel):
    """Filters; an address must match all of them."""

    model_config = ConfigDict(extra="forbid")

    address: Annotated[FilterText | None, Field(description="This address, ignoring case.")] = None
    prefix: Annotated[
        FilterText | None, Field(description="The beginning of addresses, ignoring case.")
    ] = None
    reason: SuppressionReason | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 50
    cursor: Annotated[
        str | None,
        AfterValidator(_checked_cursor),
        Field(max_length=1400, description="`next_cursor` of the previous page."),
    ] = None


class NewSuppression(StrictModel):
    """An address to suppress. If it is on the list, the stronger reason and later expiry win."""

    address: Annotated[
        str, Field(description="An address without a display name; compared in lower case.")
    ]
    reason: SuppressionReason = SuppressionReason.MANUAL
    note: Annotated[str | None, Field(max_length=LONGEST_NOTE)] = None
    expires_at: Annotated[Timestamp | None, Field(description="Null: it does not expire.")] = None


class NewSuppressions(StrictModel):
    """Addresses to suppress, all or none."""

    suppressions: Annotated[list[NewSuppression], Field(min_length=1, max_length=MAX_PER_CALL)]


@routes.get(
    "/suppressions",
    operation_id="list_suppressions",
    summary="List suppressed addresses",
    description="In alphabetical order, without expired addresses. With `prefix` or `reason` a"
    " page examines a limited number of addresses: it can be short, or empty, and still have a"
    " `next`.",
    response_model=SuppressionPage,
    responses=problems("invalid-request"),
    openapi_extra=needs(Scope.READ),
    tags=["suppressions"],
)
async def list_suppressions(
    context: Context, request: Request, query: Annotated[SuppressionQuery, Query()]
) -> Response:
    database, tenant_id = context.app.database, context.tenant.id
    if query.address is not None:
        suppression = await store.find(database, tenant_id, query.address)
        if suppression is None or not _matches(suppression, query):
            return _page(request, [], None)
        return _page(request, [suppression], None)
    after = _read_cursor(query.cursor) if query.cursor else None
    which = store.SuppressionFilter(query.prefix, query.reason, after)
    page = await store.page(database, tenant_id, which, query.limit)
    cursor = _cursor(page.next) if page.next else None
    return _page(request, page.found, cursor)


def _matches(suppression: Suppression, query: SuppressionQuery) -> bool:
    prefix = (query.prefix or "").lower()
    is_reason = query.reason in (None, suppression.reason)
    return is_reason and suppression.address.startswith(prefix)


def _page(request: Request, found: Sequence[Suppression], cursor: str | None) -> Response:
    path = next_path(request, "/suppressions", cursor)
    body = SuppressionPage(suppressions=found, next_cursor=cursor, next=path)
    return page_response(body, path)


@larger.post(
    "/suppressions",
    operation_id="add_suppressions",
    summary="Suppress addresses",
    description=f"Adds up to {MAX_PER_CALL} addresses, all or none. Queued mails to them fail"
    " with the reason `suppressed` when they are due.",
    response_model=SuppressionsAdded,
    responses=problems(*BODY),
    openapi_extra=needs(Scope.MANAGE),
    tags=["suppressions"],
)
async def add_suppressions(context: Context, new: NewSuppressions) -> Response:
    entries, faults = [], []
    for index, entry in enumerate(new.suppressions):
        try:
            entries.append(checked(entry.address, entry.reason, entry.note, entry.expires_at))
        except InvalidMail as error:
            field = f"suppressions[{index}].{error.field}"
            faults.append({"field": field, "code": error.code, "detail": error.message})
    if faults:
        first = faults[0]
        raise ProblemError(
            "invalid-request",
            first["detail"],
            code=first["code"],
            field=first["field"],
            errors=faults[:MAX_FAULTS],
        )
    added = await store.add(context.app.database, context.tenant.id, entries)
    return json_response(SuppressionsAdded(**added._asdict()))


@routes.delete(
    "/suppressions/{address:path}",
    operation_id="remove_suppression",
    summary="Remove a suppressed address",
    description="Mails to it are sent again. Deliveries that failed stay failed: see"
    " `/dlq/reprocess`.",
    status_code=204,
    responses=problems("not-found"),
    openapi_extra=needs(Scope.MANAGE),
    tags=["suppressions"],
)
async def remove_suppression(
    context: Context,
    address: Annotated[str, Path(min_length=1, max_length=320, description="The address.")],
) -> Response:
    if not is_address(address):
        raise NotFound("the address is not on the list")
    await store.remove(context.app.database, context.tenant.id, address)
    return Response(status_code=204)
