"""Pillarbox's own administrators: a password, then a code by mail (or a recovery code), then a session."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.errors import InvalidMail, NotPossible, WrongCode
from pillarbox.lifecycle import one_time_codes as coding
from pillarbox.lifecycle import passwords as judging
from pillarbox.lifecycle.constant_time import constant_time
from pillarbox.lifecycle.mail_writer import LifecycleRecipient, MailWriter
from pillarbox.lifecycle.one_time_codes import ADMIN, Challenge, OneTimeCodes, tidy
from pillarbox.lifecycle.passwords import PasswordHashing
from pillarbox.model.address import address_of
from pillarbox.model.secret import Secret
from pillarbox.store import admins, challenges, tenants

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.accept.auth import Authenticator
    from pillarbox.settings import Settings
    from pillarbox.store.admins import Admin, AdminPassword
    from pillarbox.store.database import Database

# Longer than comparing a password takes while another is compared, too.
EVEN = 0.5
RECOVERY_CODES = 10
# 16 of 31 characters are 79 bits; without those that look alike.
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_GROUPS, _GROUP = 4, 4
_DOOR = "password"


class Session(NamedTuple):
    """A session, shown this once."""

    secret: Secret
    expires_at: datetime


class Administrators:
    """Lets administrators in and out. One for a process."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        authenticator: Authenticator,
        codes: Callable[[], Awaitable[OneTimeCodes]],
        mails: MailWriter,
    ) -> None:
        self._database = database
        self._settings = settings
        self._authenticator = authenticator
        self._codes = codes
        self._mails = mails
        self._passwords = PasswordHashing()

    async def create(self, email: str, name: str | None, password: Secret) -> Admin:
        """Add an administrator; NotPossible if the address is taken or no address, or the password too easy."""
        _check_address(email)
        judging.check(password.reveal(), email, email.partition("@")[0], name or "")
        kept = await self._passwords.hash(password.reveal())
        return await admins.add(self._database, email, name or None, kept.reveal())

    async def change_password(self, email: str, password: Secret) -> Admin:
        """Give an administrator another password; sessions and codes of before are over."""
        admin = await admins.get(self._database, email)
        judging.check(
            password.reveal(), admin.email, admin.email.partition("@")[0], admin.name or ""
        )
        kept = await self._passwords.hash(password.reveal())
        async with self._database.transaction() as connection:
            await admins.change_password(connection, admin.id, kept.reveal())
            await _void(connection, admin.id)
        return admin

    async def disable(self, email: str) -> Admin:
        """Let an administrator in no more; sessions and codes are over."""
        admin = await admins.get(self._database, email)
        async with self._database.transaction() as connection:
            await admins.disable(connection, admin.id)
            await _void(connection, admin.id)
        return admin

    async def enable(self, email: str) -> Admin:
        """Let an administrator in again."""
        admin = await admins.get(self._database, email)
        await admins.enable(self._database, admin.id)
        return admin

    async def new_recovery_codes(self, email: str) -> list[Secret]:
        """Ten codes, each of which stands in once for the one by mail; the old ones are void."""
        admin = await admins.get(self._database, email)
        made = [_new_recovery_code() for _ in range(RECOVERY_CODES)]
        async with self._database.transaction() as connection:
            await admins.replace_recovery_codes(
                connection, admin.id, [_tidy_recovery(one) for one in made]
            )
        return [Secret(one) for one in made]

    async def sign_in_here(self, email: str) -> Session:
        """A session for whoever has this machine and this database, without password or mail."""
        admin = await admins.get(self._database, email)
        async with self._database.transaction() as connection:
            if await admins.hold(connection, admin.id) is None:
                raise NotPossible(
                    "this administrator is disabled: enable them with `pillarbox admin enable`"
                )
            return await self._begin_session(connection, admin.id)

    async def login(self, email: str, password: str, peer: str) -> Challenge:
        """Mail a code to whoever knows the password; Unauthorized or Throttled, the same for every reason."""
        self._authenticator.throttle(_DOOR, peer, email.lower())
        async with constant_time(EVEN):
            kept = await self._proven(email, password, peer)
            codes = await self._codes()
            tenant = await tenants.get_tenant(self._database, self._settings.lifecycle_tenant)
            async with self._database.transaction() as connection:
                held = await admins.hold(connection, kept.id, password=kept.password)
                if held is not None:
                    self._authenticator.admit(_DOOR)
                    write = partial(
                        self._mails.write_code,
                        LifecycleRecipient(held.email, held.email, held.name),
                        tenant,
                    )
                    return await codes.begin(connection, ADMIN, held.id, held.email, write)
            # The password was changed, or the administrator disabled, since it was compared.
            raise await self._authenticator.refuse(_DOOR, peer, email.lower())

    async def _proven(self, email: str, password: str, peer: str) -> AdminPassword:
        """Whose password this is."""
        kept = await admins.password_of(self._database, email)
        in_turn = partial(self._authenticator.throttle, _DOOR, peer, email.lower())
        is_right = await self._passwords.is_right(
            kept.password if kept else None, password, in_turn
        )
        if kept is None or kept.disabled or not is_right:
            raise await self._authenticator.refuse(_DOOR, peer, email.lower())
        return kept

    async def verify(self, challenge: str, code: str | None, recovery_code: str | None) -> Session:
        """A session for whoever has the code by mail, or a recovery code; InvalidToken says why it does not count."""
        codes = await self._codes()
        if code is not None:
            tried = await codes.verify(self._database, ADMIN, challenge, tidy(code))
        else:
            number, tried = await codes.count_try(self._database, ADMIN, challenge)
        assert tried.subject is not None
        async with self._database.transaction() as connection:
            if await admins.hold(connection, tried.subject, since=tried.created_at) is None:
                raise WrongCode(
                    "the administrator is disabled, or has another password since", void=True
                )
            if recovery_code is not None:
                word = _tidy_recovery(recovery_code)
                is_right = await admins.use_recovery_code(connection, tried.subject, word)
                if not is_right or not await challenges.use(connection, number):
                    raise WrongCode(
                        "the recovery code is wrong, or was used before", void=tried.void
                    )
            return await self._begin_session(connection, tried.subject)

    async def logout(self, session: str) -> None:
        """End a session, at once."""
        await admins.end_session(self._database, session)

    async def _begin_session(self, connection: asyncpg.Connection, admin: int) -> Session:
        secret = admins.new_session()
        lifetime = timedelta(seconds=self._settings.admin_session)
        return Session(
            Secret(secret), await admins.add_session(connection, secret, admin, lifetime)
        )


async def _void(connection: asyncpg.Connection, admin: int) -> None:
    """Void codes that are on their way."""
    await coding.cancel(connection, await challenges.void_older(connection, ADMIN, [], [admin]))


def _check_address(email: str) -> None:
    try:
        is_bare = address_of(email) == email
    except ValueError:
        is_bare = False
    if not is_bare:
        raise InvalidMail("bad_address", "email", "not a legal e-mail address", "write name@domain")


def _new_recovery_code() -> str:
    """Such as k7m2-q9xv-4tp3-hwd8."""
    return "-".join(
        "".join(secrets.choice(_ALPHABET) for _ in range(_GROUP)) for _ in range(_GROUPS)
    )


def _tidy_recovery(code: str) -> str:
    """A recovery code as it was meant, however it was typed."""
    return "".join(one for one in code.lower() if one.isalnum())
