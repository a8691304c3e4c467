"""`/sign-in`: sign-in codes for accounts, requested and verified by the application."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator
from starlette.responses import Response

from pillarbox.api.fields import StrictModel
from pillarbox.api.openapi import BODY, needs, problems
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import Context, json_response, router
from pillarbox.errors import InvalidToken, NotAllowed, WrongCode
from pillarbox.lifecycle.one_time_codes import Challenge
from pillarbox.model.access import Scope
from pillarbox.wire.sign_in import SignedInAccount, SignInChallenge, Verified

routes = router()
SEND = needs(Scope.SEND)
Token = Annotated[str, StringConstraints(min_length=1, max_length=100)]
# Not checked further: the response must not depend on whether the address exists.
Email = Annotated[
    str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f]+@[^\s\x00-\x1f\x7f]+$", max_length=320)
]
# Six digits, as people may write them: 123 456.
Code = Annotated[str, StringConstraints(pattern=r"^[0-9](?:[ -]?[0-9]){5}$", max_length=11)]


class SignInRequest(StrictModel):
    """The address to which the code is mailed."""

    email: Email


class VerifyRequest(StrictModel):
    """The code, and its challenge or the id of the token that the application inserted."""

    challenge: Token | None = None
    token: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    code: Code

    @model_validator(mode="after")
    def _one(self) -> VerifyRequest:
        if (self.challenge is None) == (self.token is None):
            raise ValueError("must contain either `challenge` or `token`")
        return self


def begun(challenge: Challenge) -> SignInChallenge:
    return SignInChallenge(challenge=challenge.token, expires_in=int(challenge.seconds))


@contextmanager
def code_problems() -> Iterator[None]:
    """Raise errors of codes as the problem `code`, which reveals only whether it is void."""
    try:
        yield
    except InvalidToken as error:
        void = error.void if isinstance(error, WrongCode) else True
        detail = "the code is void: request a new one" if void else "the code is wrong"
        raise ProblemError("code", detail, void=void) from None


@routes.post(
    "/sign-in",
    operation_id="begin_sign_in",
    summary="Mail a sign-in code",
    description="Mails a code of six digits to the active account with this address. Neither the"
    " response nor its time shows whether there is one. If repeated within `code_pause`, the"
    " response is the same and nothing is mailed.",
    status_code=202,
    response_model=SignInChallenge,
    responses=problems("not-possible", *BODY),
    openapi_extra=SEND,
    tags=["sign-in"],
)
async def begin(context: Context, given: SignInRequest) -> Response:
    _check_tenant(context)
    return json_response(begun(await context.app.lifecycle.sign_in.begin(given.email)), 202)


@routes.post(
    "/sign-in/verify",
    operation_id="verify_sign_in",
    summary="Verify a sign-in code",
    description="Returns the account of the code. A code is valid once, for `code_lifetime`, and"
    " for at most `code_tries` attempts.",
    response_model=Verified,
    responses=problems("code", "not-possible", *BODY),
    openapi_extra=SEND,
    tags=["sign-in"],
)
async def verify(context: Context, given: VerifyRequest) -> Response:
    _check_tenant(context)
    with code_problems():
        account = await context.app.lifecycle.sign_in.verify(
            given.challenge, given.token, given.code
        )
    shown = SignedInAccount(
        id=account.id, email=account.email, login=account.login, status=account.status
    )
    return json_response(Verified(account=shown))


def _check_tenant(context: Context) -> None:
    """Raise NotAllowed unless the accounts belong to this tenant."""
    if context.tenant.name != context.app.settings.lifecycle_tenant:
        raise NotAllowed(
            "no_accounts",
            "key",
            "the accounts belong to a different tenant",
            "use a key of that tenant",
        )
