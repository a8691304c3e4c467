"""`/keys` and `/smtp-logins`: those of the tenant, for its keys with the scope `manage`."""

from __future__ import annotations

from starlette.responses import Response

from pillarbox.api import key_management
from pillarbox.api.access_models import (
    KeyList,
    KeyWithSecret,
    LoginList,
    LoginWithPassword,
    NewKey,
    NewLogin,
)
from pillarbox.api.openapi import BODY, KeepDescendants, Prefix, Username, needs, problems
from pillarbox.api.routing import Context, json_response, router
from pillarbox.model.access import Scope

routes = router()
MANAGE = needs(Scope.MANAGE)


@routes.get(
    "/keys",
    operation_id="list_keys",
    summary="List your keys",
    description="The valid keys of the tenant, without their secrets.",
    response_model=KeyList,
    responses=problems(),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def list_keys(context: Context) -> Response:
    return json_response(await key_management.keys_of(context.app.database, context.tenant.name))


@routes.post(
    "/keys",
    operation_id="make_key",
    summary="Create a key",
    description="The secret is shown only once. A new key cannot have more rights than the key"
    " that creates it, nor outlive it.",
    status_code=201,
    response_model=KeyWithSecret,
    responses=problems("taken", "invalid-setting", *BODY),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def make_key(context: Context, new: NewKey) -> Response:
    made = await key_management.make_key(
        context.app.database, context.tenant.name, new, context.principal
    )
    return json_response(made, 201)


@routes.delete(
    "/keys/{prefix}",
    operation_id="revoke_key",
    summary="Revoke a key",
    description="Also revokes the keys and logins that it created, and their descendants.",
    status_code=204,
    responses=problems("not-found", "invalid-request"),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def revoke_key(
    context: Context, prefix: Prefix, keep_descendants: KeepDescendants = False
) -> Response:
    await key_management.revoke_key(
        context.app.database, prefix, context.tenant.name, keep_descendants
    )
    return Response(status_code=204)


@routes.get(
    "/smtp-logins",
    operation_id="list_smtp_logins",
    summary="List your SMTP logins",
    description="The valid logins of the tenant, without their passwords.",
    response_model=LoginList,
    responses=problems(),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def list_smtp_logins(context: Context) -> Response:
    return json_response(await key_management.logins_of(context.app.database, context.tenant.name))


@routes.post(
    "/smtp-logins",
    operation_id="make_smtp_login",
    summary="Create an SMTP login",
    description="The password is shown only once. The key needs the scope `send`, too.",
    status_code=201,
    response_model=LoginWithPassword,
    responses=problems("taken", "invalid-setting", *BODY),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def make_smtp_login(context: Context, new: NewLogin) -> Response:
    made = await key_management.make_login(
        context.app.database, context.tenant.name, new, context.principal
    )
    return json_response(made, 201)


@routes.delete(
    "/smtp-logins/{username}",
    operation_id="revoke_smtp_login",
    summary="Revoke an SMTP login",
    description="The login is refused from now on.",
    status_code=204,
    responses=problems("not-found"),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def revoke_smtp_login(context: Context, username: Username) -> Response:
    await key_management.revoke_login(context.app.database, username, context.tenant.name)
    return Response(status_code=204)
