"""What a link is worth: what its signatures prove without asking anybody, and what the database says about its use."""

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

# Wrong codes after which a link is void: a person mistypes twice, and five guesses find one code in
# 20,000.
TRIES = 5
# Seconds that a link is kept beyond the hook's timeout: for the statement that uses it, also when
# the database is slow.
RESERVED_LONGER = 30.0
# What no code is: it stands for one that does not fit the signature, so that it is counted as a
# wrong try.
WRONG = ""


@dataclass(frozen=True, slots=True)
class LinkFields:
    """What somebody brings: the fields of a link, and the code they typed. Shown nowhere."""

    token: str = field(default="", repr=False)
    expires: str | None = field(
        default=None, repr=False
    )  # a link of the original collector has none
    code: str | None = field(default=None, repr=False)


class LinkProof(NamedTuple):
    """The secret of a link. `is_signed`: it is proven that we made the link; without, only the database can tell."""

    secret: bytes
    is_signed: bool


class AccountLinks:
    """The links of one installation."""

    def __init__(self, database: Database, tokens: TokenStore, keys: SigningKeyRing) -> None:
        self._database = database
        self._tokens = tokens
        self._keys = keys

    def prove(self, action: TokenAction, given: LinkFields) -> LinkProof:
        """What the signatures say, without the database; ForgedToken, or ExpiredToken for one that we made.

        A token that was signed with a code proves nothing without it; its expiry is signed, and
        proves both.
        """
        secret = secret_of(given.token) if action.with_code else self._verified(action, given)
        if given.expires is not None:
            check_expiry(given.expires, given.token, self._keys)
        return LinkProof(secret, is_signed=given.expires is not None or not action.with_code)

    async def look(self, action: TokenAction, secret: bytes) -> TokenState:
        """Whose it is, and what using it would come to; changes nothing."""
        state = await self._tokens.look(self._database, secret, action.name, TRIES)
        if state is None:
            raise _nothing()
        return state

    async def use(self, action: TokenAction, given: LinkFields, secret: bytes) -> TokenState:
        """Use it, once. A code that does not fit the signature counts as a wrong one, also if the database has it."""
        code = self._code(action, given)
        try:
            used = await self._tokens.consume(self._database, secret, action.name, code, TRIES)
        except InvalidToken as error:
            raise _nothing() if type(error) is InvalidToken else error from None
        check_account(used.status)
        return used

    async def use_with(
        self,
        action: TokenAction,
        given: LinkFields,
        secret: bytes,
        hook: PasswordHook,
        password: str,
    ) -> TokenState:
        """Use it once the hook has set the password. What the hook refuses leaves it as it was.

        A wrong code is counted, and the hook hears nothing of it. While the hook works nobody else
        uses the link.
        """
        if self._code(action, given) == WRONG:
            return await self.use(action, given, secret)
        if not await self._tokens.reserve(
            self._database, secret, action.name, hook.timeout + RESERVED_LONGER
        ):
            check(await self.look(action, secret))
            raise NoAnswer("the link is being used at this moment")
        try:
            state = await self.look(action, secret)  # as it is now, while nobody else can use it
            check(state)
            await hook.set_password(state, password)
            return await self.use(action, given, secret)
        finally:
            await self._tokens.let_go(self._database, secret, action.name)

    def _code(self, action: TokenAction, given: LinkFields) -> str | None:
        if not action.with_code:
            return None
        try:
            self._verified(action, given)
        except ForgedToken:
            return WRONG
        return given.code

    def _verified(self, action: TokenAction, given: LinkFields) -> bytes:
        assert action.path is not None
        return verify(
            given.token, SignedPath(action.path, action.with_code), given.code, self._keys
        )


def check_account(status: str) -> None:
    """Raise where nothing may be used: the link stays good until the account is let in again."""
    if status == "suspended":
        raise SuspendedAccount("the account is suspended")


def check(state: TokenState) -> None:
    """Raise what using it would raise, but for its code."""
    check_account(state.status)
    match state.state:
        case "used":
            raise UsedToken("the link was used before: each counts once")
        case "expired":
            raise ExpiredToken("the link has expired")
        case "superseded":
            raise SupersededToken("a newer link took its place")
        case "void":
            raise WrongCode("there were too many wrong codes", void=True)


def _nothing() -> ForgedToken:
    """Signed by us once, or for another action; either way there is nothing behind it."""
    return ForgedToken(
        "there is nothing behind this link: it is for another action, or its account is gone"
    )
