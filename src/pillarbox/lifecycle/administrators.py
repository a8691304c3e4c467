"""Administrators sign in with a password, then a code by mail or a recovery code."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.errors import InvalidMail, NotPossible, WrongCode
from pillarbox.lifecycle import one_time_codes
from pillarbox.lifecycle.constant_time import constant_time
from pillarbox.lifecycle.mail_writer import LifecycleRecipient, MailWriter
from pillarbox.lifecycle.one_time_codes import ADMIN, Challenge, OneTimeCodes, normalize_code
from pillarbox.lifecycle.passwords import PasswordHashing, check_password
from pillarbox.model.address import address_of
from pillarbox.model.secret import Secret
from pillarbox.store import admins, challenges, tenants

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.accept.auth import Authenticator
    from pillarbox.settings import Settings
    from pillarbox.store.admins import Admin, AdminPassword
    from pillarbox.store.database import Database

# Longer than verifying a password takes while another one is verified, too.
LOGIN_INTERVAL = 0.5
RECOVERY_CODES = 10
# 16 of 31 characters are 79 bits; characters that look alike are left out.
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_GROUPS = 4
_GROUP_LENGTH = 4
_METHOD = "password"


class Session(NamedTuple):
    """A new session; its secret is shown once."""

    secret: Secret
    expires_at: datetime


class Administrators:
    """Manages administrators, their sign-in and their sessions. One instance per process."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        authenticator: Authenticator,
        codes: Callable[[], Awaitable[OneTimeCodes]],
        mail_writer: MailWriter,
    ) -> None:
        self._database = database
        self._settings = settings
        self._authenticator = authenticator
        self._codes = codes
        self._mail_writer = mail_writer
        self._passwords = PasswordHashing()

    async def create(
        self,
        email: str,
        name: str | None,
        password: Secret,
    ) -> Admin:
        """Add an administrator.

        Raises InvalidMail for a wrong address, NotPossible for a known address or weak password.
        """
        _check_address(email)
        _check_password(password, email, name)
        password_hash = await self._passwords.hash(password.reveal())
        return await admins.add(
            self._database,
            email,
            name or None,
            password_hash.reveal(),
        )

    async def change_password(self, email: str, password: Secret) -> Admin:
        """Change the password of an administrator; their sessions and codes end."""
        admin = await admins.get(self._database, email)
        _check_password(password, admin.email, admin.name)
        password_hash = await self._passwords.hash(password.reveal())
        async with self._database.transaction() as connection:
            await admins.change_password(connection, admin.id, password_hash.reveal())
            await _void_codes(connection, admin.id)
        return admin

    async def disable(self, email: str) -> Admin:
        """Disable an administrator; their sessions and codes end."""
        admin = await admins.get(self._database, email)
        async with self._database.transaction() as connection:
            await admins.disable(connection, admin.id)
            await _void_codes(connection, admin.id)
        return admin

    async def enable(self, email: str) -> Admin:
        """Enable a disabled administrator."""
        admin = await admins.get(self._database, email)
        await admins.enable(self._database, admin.id)
        return admin

    async def new_recovery_codes(self, email: str) -> list[Secret]:
        """Ten new recovery codes, each of which replaces one code by mail; old ones become void."""
        admin = await admins.get(self._database, email)
        codes = [_new_recovery_code() for _ in range(RECOVERY_CODES)]
        normalized = [_normalize_recovery_code(code) for code in codes]
        async with self._database.transaction() as connection:
            await admins.replace_recovery_codes(connection, admin.id, normalized)
        return [Secret(code) for code in codes]

    async def sign_in_here(self, email: str) -> Session:
        """A session without password or mail, for a person with access to this machine."""
        admin = await admins.get(self._database, email)
        async with self._database.transaction() as connection:
            if await admins.lock(connection, admin.id) is None:
                raise NotPossible(
                    "this administrator is disabled: enable them with `pillarbox admin enable`"
                )
            return await self._begin_session(connection, admin.id)

    async def login(
        self,
        email: str,
        password: str,
        peer: str,
    ) -> Challenge:
        """Verify the password and mail a code.

        Raises Unauthorized or Throttled; the answer is the same for every reason.
        """
        login = email.lower()
        self._authenticator.throttle(_METHOD, peer, login)
        async with constant_time(LOGIN_INTERVAL):
            verified = await self._verify_password(email, password, peer)
            codes = await self._codes()
            tenant = await tenants.get_tenant(self._database, self._settings.lifecycle_tenant)
            async with self._database.transaction() as connection:
                admin = await admins.lock(connection, verified.id, password=verified.password)
                if admin is not None:
                    self._authenticator.admit(_METHOD)
                    recipient = LifecycleRecipient(admin.email, admin.email, admin.name)
                    write = partial(self._mail_writer.write_code, recipient, tenant)
                    return await codes.begin(
                        connection,
                        ADMIN,
                        admin.id,
                        admin.email,
                        write,
                    )
            # The password was changed or the administrator disabled since the verification.
            raise await self._authenticator.refuse(_METHOD, peer, login)

    async def _verify_password(
        self,
        email: str,
        password: str,
        peer: str,
    ) -> AdminPassword:
        """The administrator with this password."""
        login = email.lower()
        stored = await admins.password_of(self._database, email)
        stored_hash = None
        if stored is not None:
            stored_hash = stored.password
        throttle = partial(
            self._authenticator.throttle,
            _METHOD,
            peer,
            login,
        )
        is_correct = await self._passwords.verify(stored_hash, password, throttle)
        if stored is None or stored.disabled or not is_correct:
            raise await self._authenticator.refuse(_METHOD, peer, login)
        return stored

    async def verify(
        self,
        challenge: str,
        code: str | None,
        recovery_code: str | None,
    ) -> Session:
        """A session for a correct code or recovery code; otherwise raises InvalidToken."""
        codes = await self._codes()
        challenge_id = None
        if code is not None:
            tried = await codes.verify(
                self._database,
                ADMIN,
                challenge,
                normalize_code(code),
            )
        else:
            challenge_id, tried = await codes.count_try(self._database, ADMIN, challenge)
        admin_id = tried.subject
        assert admin_id is not None
        async with self._database.transaction() as connection:
            if await admins.lock(connection, admin_id, since=tried.created_at) is None:
                raise WrongCode(
                    "the administrator was disabled or has changed the password", void=True
                )
            if challenge_id is not None:
                assert recovery_code is not None, "the API requires one of the two codes"
                normalized = _normalize_recovery_code(recovery_code)
                is_correct = await admins.use_recovery_code(connection, admin_id, normalized)
                if not is_correct or not await challenges.use(connection, challenge_id):
                    raise WrongCode(
                        "the recovery code is wrong, or was used before", void=tried.void
                    )
            return await self._begin_session(connection, admin_id)

    async def logout(self, session: str) -> None:
        """End a session at once."""
        await admins.end_session(self._database, session)

    async def _begin_session(self, connection: asyncpg.Connection, admin: int) -> Session:
        secret = admins.new_session()
        lifetime = timedelta(seconds=self._settings.admin_session)
        expires_at = await admins.add_session(
            connection,
            secret,
            admin,
            lifetime,
        )
        return Session(Secret(secret), expires_at)


async def _void_codes(connection: asyncpg.Connection, admin: int) -> None:
    """Void the codes in transit, and cancel their mails."""
    mails = await challenges.void_older(
        connection,
        ADMIN,
        [],
        [admin],
    )
    await one_time_codes.cancel(connection, mails)


def _check_password(
    password: Secret,
    email: str,
    name: str | None,
) -> None:
    local_part = email.partition("@")[0]
    check_password(
        password.reveal(),
        email,
        local_part,
        name or "",
    )


def _check_address(email: str) -> None:
    try:
        is_bare = address_of(email) == email
    except ValueError:
        is_bare = False
    if not is_bare:
        raise InvalidMail(
            "bad_address",
            "email",
            "not a legal e-mail address",
            "write name@domain",
        )


def _new_recovery_code() -> str:
    """A code such as k7m2-q9xv-4tp3-hwd8."""
    groups = list[str]()
    for _ in range(_GROUPS):
        characters = [secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)]
        groups.append("".join(characters))
    return "-".join(groups)


def _normalize_recovery_code(code: str) -> str:
    """A typed recovery code in lower case, without dashes and spaces."""
    return "".join(filter(str.isalnum, code.lower()))
