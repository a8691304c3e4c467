"""`/dlq`: a tenant's dead letters, to look at, to send again, to give up."""

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
    DeadLettersWanted,
    Reprocess,
    dead_letter,
)
from pillarbox.api.listing import cursor_of, link, page_response, read_cursor
from pillarbox.api.openapi import BODY, needs, problems
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
    description="Messages of which a delivery failed, newest first: those deliveries, why, what was said last, and"
    " every attempt. With filters a page looks at a bounded number: it can be short, or empty, and have a `next`.",
    response_model=DeadLetterPage,
    responses=problems("invalid-request"),
    openapi_extra=needs(Scope.READ),
    tags=["dead letters"],
)
async def list_dead_letters(
    context: Context, request: Request, query: Annotated[DeadLetterQuery, Query()]
) -> Response:
    before = read_cursor(query.cursor) if query.cursor else None
    found = await store.page(
        context.app.database, context.tenant.id, query.to_filter(before), query.limit
    )
    cursor = cursor_of(found.next) if found.next else None
    there = link(request, "/dlq", cursor)
    body = DeadLetterPage(
        messages=[dead_letter(one) for one in found.messages], next_cursor=cursor, next=there
    )
    return page_response(body, there)


@routes.get(
    "/dlq/summary",
    operation_id="summarize_dead_letters",
    summary="Count dead letters",
    description="How many deliveries failed, by reason and by provider; of those that fit the filters.",
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
    summary="Send dead letters again",
    description="Queues failed deliveries again, with a fresh count of attempts; their history stays. Those whose"
    " content was dropped, or which have expired, are skipped, and those that the key may not send: from or to domains"
    " that are not its own. At most `limit` in one call: ask again while something"
    " is `left`.",
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
    permitted = partial(may_leave, principal) if is_restricted(principal) else None
    wanted = _wanted(context, given)
    done = await change(
        context.app.database, REPROCESS, wanted, manner, context.who, permitted=permitted
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
    summary="Give dead letters up",
    description="Failed deliveries become `cancelled`, and are dead letters no more. At most `limit` in one call.",
    response_model=Discarded,
    responses=problems(*BODY),
    openapi_extra=needs(Scope.MANAGE),
    tags=["dead letters"],
)
async def discard_dead_letters(context: Context, given: DeadLettersWanted) -> Response:
    done = await change(context.app.database, DISCARD, _wanted(context, given), who=context.who)
    return json_response(
        Discarded(
            dry_run=given.dry_run,
            discarded=done.changed,
            left=done.left,
            complete=done.complete,
            nothing_failed=done.unfound,
        )
    )


def _wanted(context: RequestContext, given: DeadLettersWanted) -> DeadLetterSelection:
    which = given.filter.to_filter() if given.filter else MessageFilter()
    return DeadLetterSelection(
        context.tenant.id, given.message_ids, which, given.limit, given.dry_run
    )


async def _provider(context: RequestContext, name: str | None) -> int | None:
    """The chosen provider; one that this tenant's mails cannot leave through is answered as one that is not there."""
    if name is None:
        return None
    try:
        return await store.provider_id(context.app.database, name, context.tenant.id)
    except NotFound:
        detail = "there is no such provider, or it is switched off, or only other tenants use it"
        raise ProblemError(
            "invalid-request", detail, code="unknown_provider", field="provider"
        ) from None
