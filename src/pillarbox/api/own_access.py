"""`/keys` and `/smtp-logins`: a tenant's own, for its keys with the scope `manage`."""

from __future__ import annotations

from starlette.responses import Response

from pillarbox.api import granting
from pillarbox.api.access_models import KeyList, KeyMade, LoginList, LoginMade, NewKey, NewLogin
from pillarbox.api.described import BODY, KeepDescendants, Prefix, Username, needs, problems
from pillarbox.api.routing import Who, json_response, router
from pillarbox.model.access import Scope

routes = router()
MANAGE = needs(Scope.MANAGE)


@routes.get(
    "/keys",
    operation_id="list_keys",
    summary="List your keys",
    description="The keys of the tenant that are in force, without their secrets.",
    response_model=KeyList,
    responses=problems(),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def list_keys(asked: Who) -> Response:
    return json_response(await granting.keys_of(asked.app.database, asked.tenant.name))


@routes.post(
    "/keys",
    operation_id="make_key",
    summary="Make a key",
    description="Its secret is shown this once. A key makes none that may do more than itself, or for longer.",
    status_code=201,
    response_model=KeyMade,
    responses=problems("taken", "invalid-setting", *BODY),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def make_key(asked: Who, new: NewKey) -> Response:
    made = await granting.make_key(asked.app.database, asked.tenant.name, new, asked.principal)
    return json_response(made, 201)


@routes.delete(
    "/keys/{prefix}",
    operation_id="revoke_key",
    summary="Revoke a key",
    description="It is refused from now on, and so are the keys and logins that it and those made.",
    status_code=204,
    responses=problems("not-found", "invalid-request"),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def revoke_key(
    asked: Who, prefix: Prefix, keep_descendants: KeepDescendants = False
) -> Response:
    await granting.revoke_key(asked.app.database, prefix, asked.tenant.name, keep_descendants)
    return Response(status_code=204)


@routes.get(
    "/smtp-logins",
    operation_id="list_smtp_logins",
    summary="List your SMTP logins",
    description="The logins of the tenant that are in force, without their passwords.",
    response_model=LoginList,
    responses=problems(),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def list_smtp_logins(asked: Who) -> Response:
    return json_response(await granting.logins_of(asked.app.database, asked.tenant.name))


@routes.post(
    "/smtp-logins",
    operation_id="make_smtp_login",
    summary="Make an SMTP login",
    description="Its password is shown this once. Only a key that may send makes one.",
    status_code=201,
    response_model=LoginMade,
    responses=problems("taken", "invalid-setting", *BODY),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def make_smtp_login(asked: Who, new: NewLogin) -> Response:
    made = await granting.make_login(asked.app.database, asked.tenant.name, new, asked.principal)
    return json_response(made, 201)


@routes.delete(
    "/smtp-logins/{username}",
    operation_id="revoke_smtp_login",
    summary="Revoke an SMTP login",
    description="It is refused from now on.",
    status_code=204,
    responses=problems("not-found"),
    openapi_extra=MANAGE,
    tags=["keys"],
)
async def revoke_smtp_login(asked: Who, username: Username) -> Response:
    await granting.revoke_login(asked.app.database, username, asked.tenant.name)
    return Response(status_code=204)
