"""`/dlq`: list, count, reprocess and discard the dead letters of a tenant."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from pillarbox.accept.leaving import is_restricted, may_leave
from pillarbox.api.auth import RequestContext
from pillarbox.api.dlq_models import (
    DeadLetterFilter,
    DeadLetterQuery,
    DeadLettersToChange,
    Reprocess,
    dead_letter,
)
from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.pagination import next_cursor, next_path, page_response, row_before
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, json_response, router
from pillarbox.errors import NotFound
from pillarbox.lifecycle import set_aside_tokens
from pillarbox.model.access import Scope
from pillarbox.store import dlq as store
from pillarbox.store.dlq_change import DeadLetterSelection, change
from pillarbox.store.messages import MessageFilter
from pillarbox.store.operations import DISCARD, REPROCESS, ResendOptions
from pillarbox.wire.dlq import DeadLetterPage, DeadLetterSummary, Discarded, Reprocessed

routes = router()


@routes.get(
    "/dlq",
    operation_id="list_dead_letters",
    summary="List dead letters",
    description="Messages with failed deliveries, newest first: each failed delivery with its"
    " reason, its last error and all attempts. With filters a page examines a limited number of"
    " messages: it can be short, or empty, and still have a `next`.",
    response_model=DeadLetterPage,
    responses=problems("invalid-request"),
    openapi_extra=needs(Scope.READ),
    tags=["dead letters"],
)
async def list_dead_letters(
    context: Context, request: Request, query: Annotated[DeadLetterQuery, Query()]
) -> Response:
    before = row_before(query.cursor)
    found = await store.page(
        context.app.database, context.tenant.id, query.to_filter(before), query.limit
    )
    cursor = next_cursor(found.next)
    path = next_path(request, "/dlq", cursor)
    body = DeadLetterPage(
        messages=[dead_letter(message) for message in found.messages], next_cursor=cursor, next=path
    )
    return page_response(body, path)


@routes.get(
    "/dlq/summary",
    operation_id="summarize_dead_letters",
    summary="Count dead letters",
    description="The number of failed deliveries that match the filters, by reason and by"
    " provider.",
    response_model=DeadLetterSummary,
    responses=problems("invalid-request"),
    openapi_extra=needs(Scope.READ),
    tags=["dead letters"],
)
async def summarize_dead_letters(
    context: Context, query: Annotated[DeadLetterFilter, Query()]
) -> Response:
    counts = await store.summary(context.app.database, context.tenant.id, query.to_filter())
    tokens = await set_aside_tokens.count(
        context.app.database, context.app.settings, context.tenant.name
    )
    return json_response(
        DeadLetterSummary(
            total=counts.total,
            by_reason=dict(counts.reasons),
            by_provider=dict(counts.providers),
            complete=counts.complete,
            tokens=tokens,
        )
    )


@routes.post(
    "/dlq/reprocess",
    operation_id="reprocess_dead_letters",
    summary="Reprocess dead letters",
    description="Queues failed deliveries again and resets their number of attempts; their"
    " history stays. Deliveries are skipped if their content was deleted, if they have expired,"
    " or if the key is not allowed to send from or to their domains. At most `limit` in one call:"
    " repeat it while `left` is not zero.",
    response_model=Reprocessed,
    responses=problems(*BODY),
    openapi_extra=needs(Scope.MANAGE),
    tags=["dead letters"],
)
async def reprocess_dead_letters(context: Context, given: Reprocess) -> Response:
    manner = ResendOptions(
        await _provider(context, given.provider), given.provider, not given.reset_retry_count
    )
    principal = context.principal
    permitted = None
    if is_restricted(principal):
        permitted = partial(may_leave, principal)
    selection = _selection(context, given)
    done = await change(
        context.app.database, REPROCESS, selection, manner, context.actor, permitted=permitted
    )
    return json_response(
        Reprocessed(
            dry_run=given.dry_run,
            requeued=done.changed,
            left=done.left,
            complete=done.complete,
            suppressed=done.suppressed,
            skipped=dict(done.skipped),
            nothing_failed=done.unfound,
        )
    )


@routes.post(
    "/dlq/discard",
    operation_id="discard_dead_letters",
    summary="Discard dead letters",
    description="Failed deliveries become `cancelled`, and are no dead letters any longer. At"
    " most `limit` in one call.",
    response_model=Discarded,
    responses=problems(*BODY),
    openapi_extra=needs(Scope.MANAGE),
    tags=["dead letters"],
)
async def discard_dead_letters(context: Context, given: DeadLettersToChange) -> Response:
    done = await change(
        context.app.database, DISCARD, _selection(context, given), who=context.actor
    )
    return json_response(
        Discarded(
            dry_run=given.dry_run,
            discarded=done.changed,
            left=done.left,
            complete=done.complete,
            nothing_failed=done.unfound,
        )
    )


def _selection(context: RequestContext, given: DeadLettersToChange) -> DeadLetterSelection:
    which = MessageFilter()
    if given.filter is not None:
        which = given.filter.to_filter()
    return DeadLetterSelection(
        context.tenant.id, given.message_ids, which, given.limit, given.dry_run
    )


async def _provider(context: RequestContext, name: str | None) -> int | None:
    """The id of a provider that this tenant may use; others are answered like unknown ones."""
    if name is None:
        return None
    try:
        return await store.provider_id(context.app.database, name, context.tenant.id)
    except NotFound:
        detail = "the provider does not exist, is disabled, or is only for other tenants"
        raise ProblemError(
            "invalid-request", detail, code="unknown_provider", field="provider"
        ) from None
