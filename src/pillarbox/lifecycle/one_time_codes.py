"""One-time codes in mails: six digits, stored as a hash, with a short lifetime and few attempts.

A challenge asks a person to prove that they read a mailbox. A client gets an opaque token for its
challenge, also if the address has no account: then the challenge has a row like any other, and no
mail is sent. A code is stored as a hash with a key that derives from the key ring (`secret_keys`),
which is not in the database: a reader of the database cannot find a valid code. The newest key of
the ring hashes; every key verifies, so that a key rotation voids no code.

Addresses are hashed with the installation's own key. It does not change when keys rotate, because
pauses and daily limits depend on it; a person who can read it can read the accounts, too.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

from pillarbox.accept.enqueue import enqueue
from pillarbox.errors import (
    ExpiredToken,
    ForgedToken,
    InvalidMail,
    NotAllowed,
    RenderError,
    UsedToken,
    WrongCode,
)
from pillarbox.store import challenges, operations, providers
from pillarbox.store.challenges import CodeAttempt, NewChallenge
from pillarbox.store.vault import key_ring
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.accept.mail import Mail
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database

log = logs.get("pillarbox.codes")
DIGITS = 6
# The realm of Pillarbox's administrators. No accounts schema can have this realm: see realm_of.
ADMIN = "admin"
# A code has few attempts, but an attacker can request code after code. After this many wrong codes
# for an address within a day ...
WRONG_CODES_PER_DAY = 25
# ... a new code is issued only every hour: a year of guessing succeeds with a chance of 1 in 20.
LONG_PAUSE = timedelta(hours=1)
_ADDRESS_KEY_LABEL = b"pillarbox sign-in codes 1"
_CODE_KEY_LABEL = b"pillarbox sign-in codes 2"
_ID_BYTES = 16
_MAC_BYTES = 16
_IGNORED_CHARACTERS = str.maketrans("", "", " \t\r\n\u00a0-")
_SUPERSEDED = {"who": "pillarbox", "as": "superseded"}


class CodeRequest(NamedTuple):
    """A request for a code."""

    subject: int | None  # the administrator or account; None: nobody has the address
    address: str
    token: int | None = None  # the token that requests the code
    lifetime: float | None = None  # seconds; None, and at most: the lifetime in the settings


class IssuedCode(NamedTuple):
    """A new challenge and its code, which is not stored."""

    id: UUID
    code: str
    seconds: float  # its lifetime

    def __repr__(self) -> str:
        return f"IssuedCode(id={self.id})"

    @property
    def expires_at(self) -> datetime:
        """The expiry by this machine's clock, for the text of a mail; the database decides."""
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


class Challenge(NamedTuple):
    """What a client gets for its request."""

    token: str
    seconds: float  # how long it can be used


def realm_of(schema: str) -> str:
    """The realm of the accounts in a lifecycle schema."""
    return f"accounts:{schema}"


async def open_codes(database: Database, settings: Settings) -> OneTimeCodes:
    """The codes of this installation; SecretError without a key ring."""
    code_keys = key_ring(settings).derive(_CODE_KEY_LABEL)
    installation_key = await providers.redaction_key(database)
    return OneTimeCodes(
        code_keys,
        hmac.digest(installation_key, _ADDRESS_KEY_LABEL, "sha256"),
        lifetime=settings.code_lifetime,
        tries=settings.code_tries,
        pause=settings.code_pause,
    )


class OneTimeCodes:
    """Issues challenges with codes, and verifies codes.

    `keys` are in order, newest first; all of them verify.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        address_key: bytes,
        *,
        lifetime: float,
        tries: int,
        pause: float,
    ) -> None:
        self._keys = keys
        self._address_key = address_key
        self._lifetime = lifetime
        self._max_tries = tries
        self._pause = timedelta(seconds=pause)

    async def begin(
        self,
        connection: asyncpg.Connection,
        realm: str,
        subject: int | None,
        address: str,
        mail: Callable[[IssuedCode], Mail] | None = None,
    ) -> Challenge:
        """Begin a challenge for an address and store its mail, in the connection's transaction.

        Without a subject (the address has no account) no code answers the challenge. A second
        request within the pause gets the same challenge, and no mail. A mail that cannot be
        rendered or stored is logged and left out: the answer must not reveal it.
        """
        address_hash = self._hash_address(realm, address)
        await challenges.lock_address(connection, realm, address_hash)
        recent = await challenges.recent(
            connection,
            realm,
            address_hash,
            self._pause,
            WRONG_CODES_PER_DAY,
            LONG_PAUSE,
        )
        if recent:
            return Challenge(self.token_of(recent.id), recent.seconds)
        [issued] = await self.issue(connection, realm, [CodeRequest(subject, address)])
        if mail is not None:
            message_id = await _enqueue_mail(connection, issued, mail)
            if message_id is not None:
                await self.mailed(connection, [(issued.id, message_id)])
        return Challenge(self.token_of(issued.id), issued.seconds)

    async def paused(
        self,
        connection: asyncpg.Connection,
        realm: str,
        addresses: Sequence[str],
    ) -> list[bool]:
        """Whether each address gets no new code yet, by the pause and the daily limit of `begin`.

        A repeated address gets one code. The addresses stay locked until the transaction ends.
        """
        hashes = [self._hash_address(realm, address) for address in addresses]
        seen = await challenges.paused(
            connection,
            realm,
            hashes,
            self._pause,
            WRONG_CODES_PER_DAY,
            LONG_PAUSE,
        )
        is_paused = list[bool]()
        for address_hash in hashes:
            is_paused.append(address_hash in seen)
            seen.add(address_hash)
        return is_paused

    async def issue(
        self,
        connection: asyncpg.Connection,
        realm: str,
        requests: Sequence[CodeRequest],
    ) -> list[IssuedCode]:
        """New challenges with codes; older ones of the same people become void.

        Mails of void codes that were not sent yet are cancelled.
        """
        if not requests:
            return []
        issued = list[IssuedCode]()
        rows = list[NewChallenge]()
        for request in requests:
            lifetime = min(request.lifetime or self._lifetime, self._lifetime)
            code = IssuedCode(uuid4(), _new_code(), lifetime)
            issued.append(code)
            rows.append(self._row(realm, request, code))
        mails = await challenges.void_older(
            connection,
            realm,
            [row.asked for row in rows],
            [row.subject for row in rows],
        )
        await cancel(connection, mails)
        await challenges.add(connection, realm, rows)
        return issued

    async def mailed(
        self, connection: asyncpg.Connection, mails: Sequence[tuple[UUID, UUID]]
    ) -> None:
        """Store which mails carry codes, as (challenge, message), so that they can be cancelled."""
        await challenges.mailed(connection, mails)

    async def verify(
        self,
        database: Database,
        realm: str,
        challenge: str,
        code: str,
    ) -> CodeAttempt:
        """The challenge that this code answers; a challenge can be answered once.

        Raises ForgedToken, ExpiredToken, UsedToken, or WrongCode, which is counted (`void`: no
        attempts are left).
        """
        challenge_id = self.read(challenge)
        hashes = [_hash_code(key, challenge_id, code) for key in self._keys]
        tried = await self._try(
            database,
            realm,
            challenge_id,
            hashes,
        )
        if not tried.used:
            raise WrongCode("the code is wrong", void=tried.void)
        return tried

    async def token_for(
        self,
        database: Database,
        realm: str,
        token: int,
        paused: int | None = None,
    ) -> str:
        """The challenge that a row of the tokens table requested; ForgedToken without one.

        `paused` is the account of a token that got no code because an earlier code is valid: then
        that code's challenge is returned.
        """
        challenge_id = await challenges.find_by_token(database, realm, token)
        if challenge_id is None and paused is not None:
            challenge_id = await challenges.find_by_subject(database, realm, paused)
        if challenge_id is None:
            raise ForgedToken("no code was mailed for this token")
        return self.token_of(challenge_id)

    async def count_try(
        self,
        database: Database,
        realm: str,
        challenge: str,
    ) -> tuple[UUID, CodeAttempt]:
        """Count an attempt without a code, such as a recovery code; raises as `verify`."""
        challenge_id = self.read(challenge)
        tried = await self._try(
            database,
            realm,
            challenge_id,
            [],
        )
        return challenge_id, tried

    async def _try(
        self,
        database: Database,
        realm: str,
        challenge_id: UUID,
        hashes: Sequence[bytes],
    ) -> CodeAttempt:
        tried = await challenges.try_code(
            database,
            realm,
            challenge_id,
            hashes,
            self._max_tries,
        )
        if tried is not None:
            return tried
        state = await challenges.state(database, realm, challenge_id)
        if state is None:
            raise ForgedToken("the challenge does not exist")
        if state.used:
            raise UsedToken("the code was used before")
        if state.void:
            raise WrongCode("the code is void", void=True)
        raise ExpiredToken("the code has expired")

    def token_of(self, challenge_id: UUID) -> str:
        """The signed token of a challenge."""
        return _token(self._keys[0], challenge_id)

    def read(self, token: str) -> UUID:
        """The challenge of a token; ForgedToken if no key of the ring signed it."""
        try:
            encoded = token.encode()
            decoded = base64.b64decode(encoded + b"=", b"-_", validate=True)
            challenge_id = UUID(bytes=decoded[:_ID_BYTES])
        except (ValueError, binascii.Error):
            raise ForgedToken("this is not a challenge") from None
        for key in self._keys:
            expected = _token(key, challenge_id).encode()
            if hmac.compare_digest(encoded, expected):
                return challenge_id
        raise ForgedToken("this challenge was not signed by this installation")

    def _row(
        self,
        realm: str,
        request: CodeRequest,
        issued: IssuedCode,
    ) -> NewChallenge:
        return NewChallenge(
            issued.id,
            request.subject,
            request.token,
            self._hash_address(realm, request.address),
            _hash_code(self._keys[0], issued.id, issued.code),
            timedelta(seconds=issued.seconds),
        )

    def is_for(
        self,
        tried: CodeAttempt,
        realm: str,
        address: str,
    ) -> bool:
        """Whether the code was sent to this address; case does not matter."""
        return hmac.compare_digest(tried.asked, self._hash_address(realm, address))

    def _hash_address(self, realm: str, address: str) -> bytes:
        # Only ASCII letters are lowered, as in the search for accounts: an account has one hash,
        # which no other account has.
        normalized = address.encode("utf-8", "surrogatepass").lower()
        return _hash(
            self._address_key,
            b"address",
            realm.encode(),
            normalized,
        )


def _token(key: bytes, challenge_id: UUID) -> str:
    mac = _hash(key, b"challenge", challenge_id.bytes)[:_MAC_BYTES]
    encoded = base64.urlsafe_b64encode(challenge_id.bytes + mac)
    return encoded.decode().rstrip("=")


def _hash_code(
    key: bytes,
    challenge_id: UUID,
    code: str,
) -> bytes:
    return _hash(
        key,
        b"code",
        challenge_id.bytes,
        code.encode("utf-8", "surrogatepass"),
    )


def _hash(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


def _new_code() -> str:
    number = secrets.randbelow(10**DIGITS)
    return f"{number:0{DIGITS}}"


def normalize_code(code: str) -> str:
    """A typed code without spaces and dashes."""
    return code.translate(_IGNORED_CHARACTERS)


async def cancel(connection: asyncpg.Connection, messages: Sequence[UUID]) -> None:
    """Cancel unsent mails with void codes, and drop their content."""
    if messages:
        keys = [(message_id, 0) for message_id in messages]
        await operations.apply(
            connection,
            operations.CANCEL,
            keys,
            _SUPERSEDED,
        )


async def _enqueue_mail(
    connection: asyncpg.Connection,
    issued: IssuedCode,
    mail: Callable[[IssuedCode], Mail],
) -> UUID | None:
    """Store the mail; log the error and return None if it cannot be rendered or is refused."""
    try:
        async with connection.transaction():  # a savepoint: a refusal undoes the mail only
            message_id: UUID = await enqueue(connection, mail(issued))
            return message_id
    except (RenderError, InvalidMail, NotAllowed) as error:
        log.error("a mail with a sign-in code was not stored", error=str(error))
        return None
