"""Signs accounts in with a code by mail; answers do not reveal which addresses have accounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from pillarbox.errors import NotPossible, WrongCode
from pillarbox.lifecycle.constant_time import constant_time
from pillarbox.lifecycle.mail_writer import LifecycleRecipient, MailWriter
from pillarbox.lifecycle.one_time_codes import Challenge, OneTimeCodes, normalize_code, realm_of
from pillarbox.store import lifecycle_schema, tenants
from pillarbox.store.lifecycle import Account, TokenStore

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database

# The status of accounts that may sign in; the same word as in the action's row of `actions`.
ELIGIBLE = "active"


class SignInService:
    """Begins challenges for accounts, and verifies their codes."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        codes: Callable[[], Awaitable[OneTimeCodes]],
        mail_writer: MailWriter,
    ) -> None:
        self._database = database
        self._settings = settings
        self._codes = codes
        self._mail_writer = mail_writer
        self._tokens = TokenStore(settings.lifecycle_schema)
        self._realm = realm_of(settings.lifecycle_schema)
        self._installed = False

    async def begin(self, email: str) -> Challenge:
        """Mail a code to the account with this address.

        Without an account, the answer and its time are the same.
        """
        await self._check_installed()
        async with constant_time():
            codes = await self._codes()
            tenant = await tenants.get_tenant(self._database, self._settings.lifecycle_tenant)
            account = await self._tokens.find_account(self._database, email)
            async with self._database.transaction() as connection:
                if account is None or account.status != ELIGIBLE:
                    return await codes.begin(
                        connection,
                        self._realm,
                        None,
                        email,
                    )
                write = partial(self._mail_writer.write_code, _recipient(account), tenant)
                return await codes.begin(
                    connection,
                    self._realm,
                    account.id,
                    email,
                    write,
                )

    async def verify(
        self,
        challenge: str | None,
        token: int | None,
        code: str,
    ) -> Account:
        """The account whose code it is; otherwise raises InvalidToken."""
        await self._check_installed()
        codes = await self._codes()
        if challenge is None:
            assert token is not None, "the API requires a challenge or a token"
            paused = await self._tokens.paused_account(self._database, token)
            challenge = await codes.token_for(
                self._database,
                self._realm,
                token,
                paused,
            )
        tried = await codes.verify(
            self._database,
            self._realm,
            challenge,
            normalize_code(code),
        )
        account = await self._tokens.account(self._database, tried.subject or 0)
        # It may have been suspended or deleted since the mail was sent.
        if account is None or account.status != ELIGIBLE:
            raise WrongCode("the account may not sign in", void=True)
        if not codes.is_for(tried, self._realm, account.email):
            raise WrongCode("the address of the account has changed", void=True)
        return account

    async def _check_installed(self) -> None:
        if self._installed:
            return
        schema = self._tokens.schema
        self._installed = await lifecycle_schema.is_installed(self._database, schema)
        if not self._installed:
            raise NotPossible(
                "accounts are not installed: run `pillarbox migrate --with lifecycle`"
            )


def _recipient(account: Account) -> LifecycleRecipient:
    return LifecycleRecipient(
        email=account.email,
        login=account.login,
        name=account.name,
        portal=account.portal,
        locale=account.locale,
        data=account.data,
    )
