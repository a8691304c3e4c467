"""People with accounts sign in by a code in a mail; strangers learn nothing about who has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from pillarbox.errors import NotPossible, WrongCode
from pillarbox.lifecycle.constant_time import constant_time
from pillarbox.lifecycle.mail_writer import LifecycleRecipient, MailWriter
from pillarbox.lifecycle.one_time_codes import Challenge, OneTimeCodes, realm_of, tidy
from pillarbox.store import lifecycle_schema, tenants
from pillarbox.store.lifecycle import Account, TokenStore

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database

# Who may sign in; the same word as in the action's row of `actions`.
ELIGIBLE = "active"


class SignInService:
    """Begins challenges for accounts, and verifies their codes."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        codes: Callable[[], Awaitable[OneTimeCodes]],
        mails: MailWriter,
    ) -> None:
        self._database = database
        self._settings = settings
        self._codes = codes
        self._mails = mails
        self._tokens = TokenStore(settings.lifecycle_schema)
        self._realm = realm_of(settings.lifecycle_schema)
        self._installed = False

    async def begin(self, email: str) -> Challenge:
        """Mail a code to the account with this address; the same answer, at the same time, if there is none."""
        await self._check_installed()
        async with constant_time():
            codes = await self._codes()
            tenant = await tenants.get_tenant(self._database, self._settings.lifecycle_tenant)
            account = await self._tokens.find_account(self._database, email)
            async with self._database.transaction() as connection:
                if account is None or account.status != ELIGIBLE:
                    return await codes.begin(connection, self._realm, None, email)
                write = partial(self._mails.write_code, _reader(account), tenant)
                return await codes.begin(connection, self._realm, account.id, email, write)

    async def verify(self, challenge: str | None, token: int | None, code: str) -> Account:
        """Whose code it was; InvalidToken says why it does not count."""
        await self._check_installed()
        codes = await self._codes()
        if challenge is None:
            assert token is not None, "one of the two is given"
            paused = await self._tokens.paused_account(self._database, token)
            challenge = await codes.token_for(self._database, self._realm, token, paused)
        tried = await codes.verify(self._database, self._realm, challenge, tidy(code))
        account = await self._tokens.account(self._database, tried.subject or 0)
        if (
            account is None or account.status != ELIGIBLE
        ):  # suspended, or deleted, since the mail left
            raise WrongCode("the account may not sign in", void=True)
        if not codes.is_for(tried, self._realm, account.email):
            raise WrongCode("the account has another address since", void=True)
        return account

    async def _check_installed(self) -> None:
        self._installed = self._installed or await lifecycle_schema.is_installed(
            self._database, self._tokens.schema
        )
        if not self._installed:
            raise NotPossible(
                "there are no accounts here: install them with `pillarbox migrate --with lifecycle`"
            )


def _reader(account: Account) -> LifecycleRecipient:
    return LifecycleRecipient(
        account.email, account.login, account.name, account.portal, account.locale, account.data
    )
