"""`/admin/login`, `/admin/verify` and `/admin/logout`: sessions of administrators."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field, StringConstraints, model_validator
from starlette.responses import Response

from pillarbox.api.auth import bearer_of
from pillarbox.api.fields import StrictModel
from pillarbox.api.openapi import BODY, PUBLIC, needs, problems
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Anonymous, Context, PublicRoute, json_response, router
from pillarbox.api.sign_in import Code, Email, Token, begun, code_problems
from pillarbox.errors import NotPossible, Unauthorized
from pillarbox.lifecycle.passwords import MAX_LENGTH
from pillarbox.model.access import Scope
from pillarbox.wire.sign_in import SignInChallenge

routes = router()
public = router(PublicRoute)
TAGS: list[str | Enum] = ["sign-in of administrators"]


class AdminLogin(StrictModel):
    """The address and the password of an administrator."""

    email: Email
    password: Annotated[str, StringConstraints(min_length=1, max_length=MAX_LENGTH)] = Field(
        repr=False
    )


class AdminVerification(StrictModel):
    """The challenge, and the code from the mail or a recovery code."""

    challenge: Token
    code: Code | None = None
    recovery_code: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        None, repr=False
    )

    @model_validator(mode="after")
    def _one(self) -> AdminVerification:
        if (self.code is None) == (self.recovery_code is None):
            raise ValueError("give `code` or `recovery_code`")
        return self


class NewSession(BaseModel):
    """A session, shown only once. It is used like a key: `Authorization: Bearer pbs_…`."""

    session: str
    expires_at: datetime


@public.post(
    "/admin/login",
    operation_id="admin_login",
    summary="Begin to sign in as an administrator",
    description="Mails a code to the administrator with this address and password. The response,"
    " and its time, are the same for an unknown address, a wrong password and a disabled"
    " administrator.",
    status_code=202,
    response_model=SignInChallenge,
    responses=problems("wrong-password", *BODY),
    openapi_extra=PUBLIC,
    tags=TAGS,
)
async def login(context: Anonymous, given: AdminLogin) -> Response:
    try:
        challenge = await context.app.lifecycle.administrators.login(
            given.email, given.password, context.peer
        )
    except Unauthorized:
        raise ProblemError("wrong-password", "the address or the password is wrong") from None
    return json_response(begun(challenge), 202)


@public.post(
    "/admin/verify",
    operation_id="admin_verify",
    summary="Sign in as an administrator",
    description="Takes the code from the mail, or a recovery code of the administrator. Starts a"
    " session.",
    response_model=NewSession,
    responses=problems("code", *BODY),
    openapi_extra=PUBLIC,
    tags=TAGS,
)
async def verify(context: Anonymous, given: AdminVerification) -> Response:
    with code_problems():
        session = await context.app.lifecycle.administrators.verify(
            given.challenge, given.code, given.recovery_code
        )
    shown = NewSession(session=session.secret.reveal(), expires_at=session.expires_at)
    return json_response(shown, 200, {"Cache-Control": "no-store"})


@routes.post(
    "/admin/logout",
    operation_id="admin_logout",
    summary="End the session",
    description="The session is refused from now on. A key has no session: revoke the key.",
    status_code=204,
    responses=problems("not-possible"),
    openapi_extra=needs(Scope.ADMIN),
    tags=TAGS,
)
async def logout(context: Context, request: Request) -> Response:
    if context.principal.kind != "session":
        raise NotPossible("only a session can be ended; revoke a key instead")
    await context.app.lifecycle.administrators.logout(bearer_of(request))
    return Response(status_code=204)
