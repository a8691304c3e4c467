"""`/webhooks`: the webhooks of a tenant, and the log of their calls."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Path, Query
from starlette.responses import Response

from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.pagination import cursor_of, next_cursor, row_before
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, json_response, router
from pillarbox.api.webhook_models import (
    CallQuery,
    NewWebhook,
    Replay,
    WebhookChange,
    webhook_call,
    webhook_details,
    webhook_with_secret,
)
from pillarbox.app import App
from pillarbox.errors import RefusedAddress
from pillarbox.model.access import Scope
from pillarbox.model.webhook import CallState
from pillarbox.store import webhook_log, webhooks
from pillarbox.track.address_guard import check_url
from pillarbox.track.webhook_dispatcher import send_test_call
from pillarbox.wire.webhooks import (
    CallPage,
    Replayed,
    WebhookDetails,
    WebhookList,
    WebhookTest,
    WebhookWithSecret,
)

routes = router()
MANAGE = needs(Scope.MANAGE)
WebhookId = Annotated[UUID, Path(description="The webhook's id.")]


@routes.get(
    "/webhooks",
    operation_id="list_webhooks",
    summary="List your webhooks",
    response_model=WebhookList,
    responses=problems(),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def list_webhooks(context: Context) -> Response:
    found = await webhooks.list_endpoints(context.app.database, context.tenant.id)
    return json_response(WebhookList(webhooks=[webhook_details(webhook) for webhook in found]))


@routes.post(
    "/webhooks",
    operation_id="add_webhook",
    summary="Add a webhook",
    description="The secret is shown only once. Calls are signed with it (Standard Webhooks).",
    status_code=201,
    response_model=WebhookWithSecret,
    responses=problems("invalid-setting", "not-possible", *BODY),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def add_webhook(context: Context, new: NewWebhook) -> Response:
    url = _checked(context.app, new.url)
    made, secret = await webhooks.add_endpoint(
        context.app.database,
        context.app.keys,
        context.tenant.id,
        url,
        [str(kind) for kind in new.kinds],
    )
    return json_response(webhook_with_secret(made, secret), 201)


def _checked(app: App, url: str) -> str:
    try:
        return check_url(url, allow_private=app.settings.webhook_allow_private)
    except RefusedAddress as error:
        raise ProblemError("invalid-setting", str(error), code="bad_url", field="url") from None


@routes.get(
    "/webhooks/{webhook_id}",
    operation_id="get_webhook",
    summary="Show a webhook",
    response_model=WebhookDetails,
    responses=problems("not-found"),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def get_webhook(context: Context, webhook_id: WebhookId) -> Response:
    return await _shown(context, webhook_id)


async def _shown(context: Context, webhook_id: UUID) -> Response:
    found = await webhooks.get_endpoint(context.app.database, webhook_id, context.tenant.id)
    return json_response(webhook_details(found))


@routes.patch(
    "/webhooks/{webhook_id}",
    operation_id="change_webhook",
    summary="Change a webhook",
    description="Omitted fields are not changed. While a webhook is disabled, no new calls are"
    " created for it.",
    response_model=WebhookDetails,
    responses=problems("not-found", "invalid-setting", *BODY),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def change_webhook(
    context: Context, webhook_id: WebhookId, change: WebhookChange
) -> Response:
    database, tenant_id = context.app.database, context.tenant.id
    now = await webhooks.get_endpoint(database, webhook_id, tenant_id)
    url = now.url
    if change.url is not None:
        url = _checked(context.app, change.url)
    kinds = now.kinds if change.kinds is None else [str(kind) for kind in change.kinds]
    await webhooks.change_endpoint(database, webhook_id, tenant_id, url, kinds)
    if change.enabled is not None and change.enabled != now.enabled:
        if change.enabled:
            await webhooks.enable_endpoint(database, webhook_id, tenant_id)
        else:
            await webhooks.disable_endpoint(database, webhook_id, tenant_id)
    return await _shown(context, webhook_id)


@routes.delete(
    "/webhooks/{webhook_id}",
    operation_id="remove_webhook",
    summary="Remove a webhook",
    description="Also deletes its secret, its log and the waiting calls.",
    status_code=204,
    responses=problems("not-found"),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def remove_webhook(context: Context, webhook_id: WebhookId) -> Response:
    await webhooks.remove_endpoint(context.app.database, webhook_id, context.tenant.id)
    return Response(status_code=204)


@routes.post(
    "/webhooks/{webhook_id}/enable",
    operation_id="enable_webhook",
    summary="Enable a webhook",
    description="Calls that wait since it was disabled are made now.",
    response_model=WebhookDetails,
    responses=problems("not-found"),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def enable_webhook(context: Context, webhook_id: WebhookId) -> Response:
    await webhooks.enable_endpoint(context.app.database, webhook_id, context.tenant.id)
    return await _shown(context, webhook_id)


@routes.post(
    "/webhooks/{webhook_id}/rotate",
    operation_id="rotate_webhook",
    summary="Rotate the secret of a webhook",
    description="The new secret is shown only once. For a day, calls are signed with both secrets.",
    response_model=WebhookWithSecret,
    responses=problems("not-found", "not-possible"),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def rotate_webhook(context: Context, webhook_id: WebhookId) -> Response:
    database, tenant_id = context.app.database, context.tenant.id
    secret = await webhooks.rotate_endpoint(database, context.app.keys, webhook_id, tenant_id)
    found = await webhooks.get_endpoint(database, webhook_id, tenant_id)
    return json_response(webhook_with_secret(found, secret))


@routes.post(
    "/webhooks/{webhook_id}/test",
    operation_id="test_webhook",
    summary="Test a webhook",
    description="Makes one call of the type `webhook.test` now, even to a disabled webhook."
    " Returns its result.",
    response_model=WebhookTest,
    responses=problems("not-found"),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def test_webhook(context: Context, webhook_id: WebhookId) -> Response:
    app = context.app
    result = await send_test_call(
        app.database, app.keys, app.webhook_client(), webhook_id, context.tenant.id
    )
    delivered = result.state is CallState.DELIVERED
    return json_response(
        WebhookTest(
            delivered=delivered,
            status=result.status,
            error=result.error,
            seconds=round(result.took, 3),
        )
    )


@routes.get(
    "/webhooks/{webhook_id}/calls",
    operation_id="list_webhook_calls",
    summary="List the calls of a webhook",
    description="Newest first, each with the result of its last attempt.",
    response_model=CallPage,
    responses=problems("not-found", "invalid-request"),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def list_calls(
    context: Context, webhook_id: WebhookId, query: Annotated[CallQuery, Query()]
) -> Response:
    database, tenant_id = context.app.database, context.tenant.id
    await webhooks.get_endpoint(database, webhook_id, tenant_id)
    before = row_before(query.cursor)
    states = [str(state) for state in query.state or ()]
    found = await webhook_log.list_calls(
        database, webhook_id, tenant_id, states, before, query.limit + 1
    )
    cursor = cursor_of(found[query.limit - 1].id) if len(found) > query.limit else None
    return json_response(
        CallPage(calls=[webhook_call(call) for call in found[: query.limit]], next_cursor=cursor)
    )


@routes.post(
    "/webhooks/{webhook_id}/replay",
    operation_id="replay_webhook",
    summary="Replay calls",
    description="Repeats calls with their ids, the oldest first. Calls in progress and tests are"
    " not repeated.",
    response_model=Replayed,
    responses=problems("not-found", *BODY),
    openapi_extra=MANAGE,
    tags=["webhooks"],
)
async def replay(context: Context, webhook_id: WebhookId, which: Replay) -> Response:
    done = await webhook_log.replay(
        context.app.database,
        webhook_id,
        context.tenant.id,
        calls=which.calls,
        states=[str(state) for state in which.state or (CallState.FAILED,)],
        since=which.since,
        until=which.until,
        after=row_before(which.cursor),
    )
    return json_response(Replayed(replayed=done.count, next_cursor=next_cursor(done.last)))
