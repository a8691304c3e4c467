"""Verifies account links: by their signatures without I/O, then by their state in the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.errors import (
    ExpiredToken,
    ForgedToken,
    InvalidToken,
    NoAnswer,
    SupersededToken,
    SuspendedAccount,
    UsedToken,
    WrongCode,
)
from pillarbox.lifecycle.signing import SignedPath, SigningKeyRing, check_expiry, secret_of, verify

if TYPE_CHECKING:
    from pillarbox.lifecycle.password_hook import PasswordHook
    from pillarbox.store.database import Database
    from pillarbox.store.lifecycle import TokenAction, TokenState, TokenStore

# Wrong codes after which a link is void: a person mistypes twice; five guesses find one code in
# 20,000.
MAX_TRIES = 5
# Seconds that a link stays reserved after the hook's timeout: for the statement that uses it, also
# when the database is slow.
RESERVED_AFTER_HOOK = 30.0
# No code equals this one: it replaces a code that does not fit the signature, and counts as wrong.
WRONG_CODE = ""


@dataclass(frozen=True, slots=True)
class LinkFields:
    """The fields of a link and the typed code; hidden in the repr."""

    token: str = field(default="", repr=False)
    # A link of the original collector has no expiry field.
    expires: str | None = field(default=None, repr=False)
    code: str | None = field(default=None, repr=False)


class LinkProof(NamedTuple):
    """The secret of a link.

    `is_signed`: the signatures prove that this installation made the link; otherwise only the
    database can tell.
    """

    secret: bytes
    is_signed: bool


class AccountLinks:
    """The links of one installation."""

    def __init__(
        self,
        database: Database,
        tokens: TokenStore,
        keys: SigningKeyRing,
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._keys = keys

    def prove(self, action: TokenAction, fields: LinkFields) -> LinkProof:
        """Verify the signatures without the database; raises ForgedToken or ExpiredToken.

        A token that is signed with a code proves nothing without the code; its signed expiry
        proves both.
        """
        if action.with_code:
            secret = secret_of(fields.token)
        else:
            secret = self._verify(action, fields)
        if fields.expires is not None:
            check_expiry(fields.expires, fields.token, self._keys)
        is_signed = fields.expires is not None or not action.with_code
        return LinkProof(secret, is_signed)

    async def look(self, action: TokenAction, secret: bytes) -> TokenState:
        """The account and state of a link; changes nothing."""
        state = await self._tokens.look(
            self._database,
            secret,
            action.name,
            MAX_TRIES,
        )
        if state is None:
            raise _not_found()
        return state

    async def use(
        self,
        action: TokenAction,
        fields: LinkFields,
        secret: bytes,
    ) -> TokenState:
        """Use a link, once. A code that does not fit the signature counts as a wrong code."""
        code = self._signed_code(action, fields)
        try:
            used = await self._tokens.consume(
                self._database,
                secret,
                action.name,
                code,
                MAX_TRIES,
            )
        except InvalidToken as error:
            if type(error) is InvalidToken:
                raise _not_found() from None
            raise error from None
        check_account(used.status)
        return used

    async def use_with(
        self,
        action: TokenAction,
        fields: LinkFields,
        secret: bytes,
        hook: PasswordHook,
        password: str,
    ) -> TokenState:
        """Use a link after the hook has set the password; if the hook refuses, it stays unused.

        A wrong code is counted and the hook is not called. The link is reserved meanwhile, so that
        no other request uses it.
        """
        if self._signed_code(action, fields) == WRONG_CODE:
            return await self.use(action, fields, secret)
        seconds = hook.timeout + RESERVED_AFTER_HOOK
        if not await self._tokens.reserve(
            self._database,
            secret,
            action.name,
            seconds,
        ):
            check(await self.look(action, secret))
            raise NoAnswer("the link is being used at this moment")
        try:
            state = await self.look(action, secret)  # the current state, now that it is reserved
            check(state)
            await hook.set_password(state, password)
            return await self.use(action, fields, secret)
        finally:
            await self._tokens.let_go(self._database, secret, action.name)

    def _signed_code(self, action: TokenAction, fields: LinkFields) -> str | None:
        """The typed code if the signature fits it, else WRONG_CODE; None for actions without."""
        if not action.with_code:
            return None
        try:
            self._verify(action, fields)
        except ForgedToken:
            return WRONG_CODE
        return fields.code

    def _verify(self, action: TokenAction, fields: LinkFields) -> bytes:
        assert action.path is not None
        signed_path = SignedPath(action.path, action.with_code)
        return verify(
            fields.token,
            signed_path,
            fields.code,
            self._keys,
        )


def check_account(status: str) -> None:
    """Raise SuspendedAccount for a suspended account; its links stay valid meanwhile."""
    if status == "suspended":
        raise SuspendedAccount("the account is suspended")


def check(state: TokenState) -> None:
    """Raise what using the link would raise, apart from a wrong code."""
    check_account(state.status)
    match state.state:
        case "used":
            raise UsedToken("the link was used before: each counts once")
        case "expired":
            raise ExpiredToken("the link has expired")
        case "superseded":
            raise SupersededToken("a newer link has replaced it")
        case "void":
            raise WrongCode("there were too many wrong codes", void=True)


def _not_found() -> ForgedToken:
    """It was signed, but for another action, or for an account that was deleted."""
    return ForgedToken(
        "this link does not exist: it is for another action, or its account was deleted"
    )
