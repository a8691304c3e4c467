"""`/suppressions/import` and `/suppressions/export`: suppression lists as CSV files."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse

from pillarbox.accept.suppressions import COLUMNS, SuppressionFault, read, row, written
from pillarbox.api.bodies import check_media_type
from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, json_response, router, server_state
from pillarbox.model.access import Scope
from pillarbox.model.suppression import SuppressionEntry, SuppressionReason
from pillarbox.store import suppressions as store
from pillarbox.wire.suppressions import MAX_FAULTS, ImportFault, Suppression, SuppressionsImported

routes = router()
# Lines and bytes of an import: read whole before anything is stored, and some seconds' work for
# the database.
MAX_LINES = 100_000
MAX_BYTES = 16 * 2**20
CSV = "text/csv"


@routes.post(
    "/suppressions/import",
    operation_id="import_suppressions",
    summary="Import suppressed addresses",
    description=f"Takes CSV in UTF-8 with the columns `{','.join(COLUMNS)}`; only the first is"
    " required. If a line is invalid, nothing is stored, unless `partial` is true: then invalid"
    f" lines are skipped and listed. At most {MAX_LINES:,} lines and {MAX_BYTES // 2**20} MiB.",
    response_model=SuppressionsImported,
    responses=problems(*BODY),
    openapi_extra=needs(Scope.MANAGE)
    | {"requestBody": {"required": True, "content": {CSV: {"schema": {"type": "string"}}}}},
    tags=["suppressions"],
)
async def import_suppressions(
    context: Context,
    request: Request,
    partial: Annotated[
        bool, Query(description="Store the valid lines even if others are invalid.")
    ] = False,
) -> Response:
    check_media_type(request.headers, CSV)
    with server_state(request)[1].hold(MAX_BYTES) as body:
        content = await body.read(request.headers, request.receive)
        entries, faults = await asyncio.to_thread(_parsed, content)
        if faults and not partial:
            raise _refused(faults)
        added = await store.add(context.app.database, context.tenant.id, entries)
    listed = [
        ImportFault(line=fault.line, code=fault.code, field=fault.field, detail=fault.message)
        for fault in faults
    ]
    return json_response(
        SuppressionsImported(**added._asdict(), refused=len(faults), faults=listed[:MAX_FAULTS])
    )


def _refused(faults: Sequence[SuppressionFault]) -> ProblemError:
    """The problem with a file of which nothing was stored."""
    errors = [
        {
            "field": f"line {fault.line}",
            "code": fault.code,
            "detail": f"{fault.field}: {fault.message}",
        }
        for fault in faults[:MAX_FAULTS]
    ]
    first = errors[0]
    detail = (
        f"{first['field']}: {first['detail']}; invalid lines: {len(faults)}; nothing was stored"
    )
    return ProblemError(
        "invalid-request", detail, code=first["code"], field=first["field"], errors=errors
    )


def _parsed(content: bytes) -> tuple[list[SuppressionEntry], list[SuppressionFault]]:
    """The entries and the faults of a file; ProblemError if it is not UTF-8, or too long."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ProblemError("malformed", "the body is not UTF-8") from None
    entries: list[SuppressionEntry] = []
    faults: list[SuppressionFault] = []
    for item in read(io.StringIO(text, newline="")):
        if isinstance(item, SuppressionEntry):
            entries.append(item)
        else:
            faults.append(item)
        if len(entries) + len(faults) > MAX_LINES:
            raise ProblemError(
                "too-large", f"an import may have at most {MAX_LINES:,} lines: split it"
            )
    return entries, faults


@routes.get(
    "/suppressions/export",
    operation_id="export_suppressions",
    summary="Export suppressed addresses",
    description="The whole list as CSV, in the format of the import. Expired addresses are"
    " omitted.",
    response_class=Response,
    responses=problems("invalid-request")
    | {200: {"description": "The list", "content": {CSV: {"schema": {"type": "string"}}}}},
    openapi_extra=needs(Scope.READ),
    tags=["suppressions"],
)
async def export_suppressions(
    context: Context,
    reason: Annotated[
        SuppressionReason | None, Query(description="Only addresses with this reason.")
    ] = None,
) -> Response:
    found = store.walk(
        context.app.database, context.tenant.id, store.SuppressionFilter(reason=reason)
    )
    first = await anext(found)  # before the response starts: an unavailable database is a 503
    headers = {"Content-Disposition": 'attachment; filename="suppressions.csv"'}
    return StreamingResponse(_lines(first, found), 200, headers, CSV)


async def _lines(
    first: Sequence[Suppression], rest: AsyncIterator[Sequence[Suppression]]
) -> AsyncIterator[str]:
    yield written([COLUMNS])
    yield written(map(row, first))
    async for some in rest:
        yield written(map(row, some))
