"""`/admin`: tenants, keys and logins of the whole installation, for administrators."""

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
    NewTenant,
    TenantDetails,
    TenantList,
    TenantSettings,
    tenant_details,
)
from pillarbox.api.openapi import (
    BODY,
    KeepDescendants,
    NamePath,
    Prefix,
    Username,
    needs,
    problems,
)
from pillarbox.api.routing import Context, json_response, router
from pillarbox.model.access import Scope
from pillarbox.store import tenants

routes = router()
ADMIN = needs(Scope.ADMIN)


@routes.get(
    "/admin/tenants",
    operation_id="admin_list_tenants",
    summary="List tenants",
    response_model=TenantList,
    responses=problems(),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def list_tenants(context: Context) -> Response:
    found = await tenants.list_tenants(context.app.database)
    return json_response(TenantList(tenants=[tenant_details(tenant) for tenant in found]))


@routes.post(
    "/admin/tenants",
    operation_id="admin_add_tenant",
    summary="Add a tenant",
    status_code=201,
    response_model=TenantDetails,
    responses=problems("taken", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def add_tenant(context: Context, new: NewTenant) -> Response:
    with key_management.setting_problems():
        added = await tenants.add_tenant(context.app.database, new.name, **new.given())
    return json_response(tenant_details(added), 201)


@routes.get(
    "/admin/tenants/{name}",
    operation_id="admin_get_tenant",
    summary="Show a tenant",
    response_model=TenantDetails,
    responses=problems("not-found"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def get_tenant(context: Context, name: NamePath) -> Response:
    return json_response(tenant_details(await tenants.get_tenant(context.app.database, name)))


@routes.patch(
    "/admin/tenants/{name}",
    operation_id="admin_change_tenant",
    summary="Change a tenant",
    description="Omitted settings are not changed. Applies to mails accepted from now on.",
    response_model=TenantDetails,
    responses=problems("not-found", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def change_tenant(context: Context, name: NamePath, settings: TenantSettings) -> Response:
    with key_management.setting_problems():
        changed = await tenants.change_tenant(context.app.database, name, **settings.given())
    return json_response(tenant_details(changed))


@routes.get(
    "/admin/tenants/{name}/keys",
    operation_id="admin_list_tenant_keys",
    summary="List the keys of a tenant",
    response_model=KeyList,
    responses=problems("not-found"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def list_tenant_keys(context: Context, name: NamePath) -> Response:
    await tenants.get_tenant(context.app.database, name)
    return json_response(await key_management.keys_of(context.app.database, name))


@routes.post(
    "/admin/tenants/{name}/keys",
    operation_id="admin_make_tenant_key",
    summary="Create a key for a tenant",
    description="The secret is shown only once.",
    status_code=201,
    response_model=KeyWithSecret,
    responses=problems("not-found", "taken", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def make_tenant_key(context: Context, name: NamePath, new: NewKey) -> Response:
    return json_response(
        await key_management.make_key(context.app.database, name, new, context.principal), 201
    )


@routes.get(
    "/admin/tenants/{name}/smtp-logins",
    operation_id="admin_list_tenant_smtp_logins",
    summary="List the SMTP logins of a tenant",
    response_model=LoginList,
    responses=problems("not-found"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def list_tenant_smtp_logins(context: Context, name: NamePath) -> Response:
    await tenants.get_tenant(context.app.database, name)
    return json_response(await key_management.logins_of(context.app.database, name))


@routes.post(
    "/admin/tenants/{name}/smtp-logins",
    operation_id="admin_make_tenant_smtp_login",
    summary="Create an SMTP login for a tenant",
    description="The password is shown only once.",
    status_code=201,
    response_model=LoginWithPassword,
    responses=problems("not-found", "taken", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def make_tenant_smtp_login(context: Context, name: NamePath, new: NewLogin) -> Response:
    return json_response(
        await key_management.make_login(context.app.database, name, new, context.principal), 201
    )


@routes.get(
    "/admin/keys",
    operation_id="admin_list_keys",
    summary="List all keys",
    description="The keys of all tenants and of administrators.",
    response_model=KeyList,
    responses=problems(),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def list_keys(context: Context) -> Response:
    return json_response(await key_management.keys_of(context.app.database, None))


@routes.post(
    "/admin/keys",
    operation_id="admin_make_key",
    summary="Create a key for an administrator",
    description="Its only scope is `admin`. The secret is shown only once.",
    status_code=201,
    response_model=KeyWithSecret,
    responses=problems("taken", "invalid-setting", *BODY),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def make_key(context: Context, new: NewKey) -> Response:
    return json_response(
        await key_management.make_key(context.app.database, None, new, context.principal), 201
    )


@routes.delete(
    "/admin/keys/{prefix}",
    operation_id="admin_revoke_key",
    summary="Revoke any key",
    description="Also revokes the keys and logins that it created, and their descendants.",
    status_code=204,
    responses=problems("not-found", "invalid-request"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def revoke_key(
    context: Context, prefix: Prefix, keep_descendants: KeepDescendants = False
) -> Response:
    await key_management.revoke_key(context.app.database, prefix, None, keep_descendants)
    return Response(status_code=204)


@routes.delete(
    "/admin/smtp-logins/{username}",
    operation_id="admin_revoke_smtp_login",
    summary="Revoke any SMTP login",
    description="It is refused from now on.",
    status_code=204,
    responses=problems("not-found"),
    openapi_extra=ADMIN,
    tags=["admin"],
)
async def revoke_smtp_login(context: Context, username: Username) -> Response:
    await key_management.revoke_login(context.app.database, username, None)
    return Response(status_code=204)
