"""One-time codes in mails: six digits for a challenge, hashed at rest, good for a few minutes, a few tries and one use.

A challenge names who is asked to prove that they read a mailbox. Whoever asks for one gets an
opaque token for it, also where nobody has the address: then there is a row like any other, and no
mail. What is kept of a code is a hash with a key that derives from the key ring (`secret_keys`),
which is not in the database: a reader of the database cannot find a code in force. The newest key
of the ring hashes; every key of it verifies, so that a rotation voids no code.

Addresses are hashed with the installation's own key. It stays the same through rotations, as pauses
and daily limits must; who can read it can read the accounts, too.
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
# The realm of Pillarbox's own administrators. No schema of accounts has it, whatever it is called:
# see realm_of.
ADMIN = "admin"
# A code has few tries, but one may ask for code after code. After so many wrong ones for an address
# within a day ...
WRONG_A_DAY = 25
# ... there is a new one only every hour: a guesser who goes on for a year has a chance of one in
# twenty, not of all.
LONG_PAUSE = timedelta(hours=1)
_ADDRESSES = b"pillarbox sign-in codes 1"
_CODES = b"pillarbox sign-in codes 2"
_MAC_BYTES = 16
_AROUND = str.maketrans("", "", " \t\r\n\u00a0-")
_SUPERSEDED = {"who": "pillarbox", "as": "superseded"}


class CodeRequest(NamedTuple):
    """Somebody to be sent a code."""

    subject: int | None  # the administrator or account; None: nobody has the address
    address: str
    token: int | None = None  # the token that asks for it
    lifetime: float | None = None  # seconds; None: as long as codes may last, which is the most


class IssuedCode(NamedTuple):
    """A challenge that was just made, and its code, which is kept nowhere."""

    id: UUID
    code: str
    seconds: float  # how long it lasts

    def __repr__(self) -> str:
        return f"IssuedCode(id={self.id})"

    @property
    def expires_at(self) -> datetime:
        """When it is over, by this machine's clock: for the words of a mail. The database's decides."""
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


class Challenge(NamedTuple):
    """What whoever asked gets."""

    token: str
    seconds: float  # for how long it can be used


def realm_of(schema: str) -> str:
    """The realm of the accounts in a lifecycle schema."""
    return f"accounts:{schema}"


async def open_codes(database: Database, settings: Settings) -> OneTimeCodes:
    """The codes of this installation; SecretError without a key ring."""
    keys = key_ring(settings).derive(_CODES)
    addresses = hmac.digest(await providers.redaction_key(database), _ADDRESSES, "sha256")
    return OneTimeCodes(
        keys,
        addresses,
        lifetime=settings.code_lifetime,
        tries=settings.code_tries,
        pause=settings.code_pause,
    )


class OneTimeCodes:
    """Makes challenges and codes, and judges codes that are given. `keys` are newest first; all of them verify."""

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
        self._tries = tries
        self._pause = timedelta(seconds=pause)

    async def begin(
        self,
        connection: asyncpg.Connection,
        realm: str,
        subject: int | None,
        address: str,
        mail: Callable[[IssuedCode], Mail] | None = None,
    ) -> Challenge:
        """A challenge for whoever says that this is their address, and its mail, in the connection's transaction.

        Without a subject, for nobody has the address, it is one that no code answers. Asked again
        within the pause it is the same challenge, and there is no mail. A mail that cannot be made
        or stored is logged and left out: the answer must not tell that there would have been one.
        """
        asked = self._hash_address(realm, address)
        await challenges.lock_address(connection, realm, asked)
        if found := await challenges.recent(
            connection, realm, asked, self._pause, WRONG_A_DAY, LONG_PAUSE
        ):
            return Challenge(self.token_of(found.id), found.seconds)
        [made] = await self.make(connection, realm, [CodeRequest(subject, address)])
        if mail is not None and (message := await _enqueued(connection, made, mail)):
            await self.mailed(connection, [(made.id, message)])
        return Challenge(self.token_of(made.id), made.seconds)

    async def paused(
        self, connection: asyncpg.Connection, realm: str, addresses: Sequence[str]
    ) -> list[bool]:
        """Whether each of these addresses gets no new code yet: the pause and the limit of a day, as in `begin`.

        An address that comes twice gets one code. Until the transaction ends nobody else begins one
        for them.
        """
        asked = [self._hash_address(realm, one) for one in addresses]
        seen = await challenges.paused(
            connection, realm, asked, self._pause, WRONG_A_DAY, LONG_PAUSE
        )
        found = list[bool]()
        for one in asked:
            found.append(one in seen)
            seen.add(one)
        return found

    async def make(
        self, connection: asyncpg.Connection, realm: str, wanted: Sequence[CodeRequest]
    ) -> list[IssuedCode]:
        """New challenges with their codes; older ones of the same people are void, and their mails cancelled."""
        if not wanted:
            return []
        made = [
            IssuedCode(uuid4(), _new_code(), min(one.lifetime or self._lifetime, self._lifetime))
            for one in wanted
        ]
        rows = [self._row(realm, one, new) for one, new in zip(wanted, made, strict=True)]
        mails = await challenges.void_older(
            connection, realm, [row.asked for row in rows], [row.subject for row in rows]
        )
        await cancel(connection, mails)
        await challenges.add(connection, realm, rows)
        return made

    async def mailed(
        self, connection: asyncpg.Connection, mails: Sequence[tuple[UUID, UUID]]
    ) -> None:
        """Note which mails carry codes, (challenge, message), so that they can be cancelled."""
        await challenges.mailed(connection, mails)

    async def verify(
        self, database: Database, realm: str, challenge: str, code: str
    ) -> CodeAttempt:
        """Whose challenge it was, if the code is right; each challenge is good for one.

        ForgedToken, ExpiredToken, UsedToken, or WrongCode, which is counted (`void`: there are no
        tries left).
        """
        number = self.read(challenge)
        hashes = [_hash_code(key, number, code) for key in self._keys]
        tried = await self._try(database, realm, number, hashes)
        if not tried.used:
            raise WrongCode("the code is wrong", void=tried.void)
        return tried

    async def token_for(
        self, database: Database, realm: str, asking: int, paused: int | None = None
    ) -> str:
        """The challenge that a row of the table of tokens asked for; ForgedToken if none did, or not yet.

        `paused` is the account of a token that got no code of its own, because an earlier one is in force: that counts.
        """
        number = await challenges.find_by_token(database, realm, asking)
        if number is None and paused is not None:
            number = await challenges.find_by_subject(database, realm, paused)
        if number is None:
            raise ForgedToken("no code was mailed for this token")
        return self.token_of(number)

    async def count_try(
        self, database: Database, realm: str, challenge: str
    ) -> tuple[UUID, CodeAttempt]:
        """Count a try at a challenge by other means than its code; raises as `verify` where it is not in force."""
        number = self.read(challenge)
        return number, await self._try(database, realm, number, [])

    async def _try(
        self, database: Database, realm: str, number: UUID, hashes: Sequence[bytes]
    ) -> CodeAttempt:
        tried = await challenges.try_code(database, realm, number, hashes, self._tries)
        if tried is not None:
            return tried
        state = await challenges.state(database, realm, number)
        if state is None:
            raise ForgedToken("there is no such challenge")
        if state.used:
            raise UsedToken("the code was used before")
        if state.void:
            raise WrongCode("the code is void", void=True)
        raise ExpiredToken("the code has expired")

    def token_of(self, number: UUID) -> str:
        """A challenge as it is handed out: nobody else can make one."""
        return _token(self._keys[0], number)

    def read(self, token: str) -> UUID:
        """The challenge that was handed out as this; ForgedToken if none was."""
        try:
            number = UUID(bytes=base64.b64decode(token.encode() + b"=", b"-_", validate=True)[:16])
        except (ValueError, binascii.Error):
            raise ForgedToken("this is no challenge") from None
        if not any(
            hmac.compare_digest(token.encode(), _token(key, number).encode()) for key in self._keys
        ):
            raise ForgedToken("this challenge is not one of ours")
        return number

    def _row(self, realm: str, one: CodeRequest, made: IssuedCode) -> NewChallenge:
        asked, code_hash = (
            self._hash_address(realm, one.address),
            _hash_code(self._keys[0], made.id, made.code),
        )
        return NewChallenge(
            made.id, one.subject, one.token, asked, code_hash, timedelta(seconds=made.seconds)
        )

    def is_for(self, tried: CodeAttempt, realm: str, address: str) -> bool:
        """Whether a challenge's code went to this address, whatever its capitals."""
        return hmac.compare_digest(tried.asked, self._hash_address(realm, address))

    def _hash_address(self, realm: str, address: str) -> bytes:
        # Capitals of ASCII only, as accounts are found by: one account has one hash, and no other
        # has it.
        plain = address.encode("utf-8", "surrogatepass").lower()
        return _hash(self._address_key, b"address", realm.encode(), plain)


def _token(key: bytes, number: UUID) -> str:
    signed = number.bytes + _hash(key, b"challenge", number.bytes)[:_MAC_BYTES]
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def _hash_code(key: bytes, number: UUID, code: str) -> bytes:
    return _hash(key, b"code", number.bytes, code.encode("utf-8", "surrogatepass"))


def _hash(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


def _new_code() -> str:
    return f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"


def tidy(code: str) -> str:
    """A code as it was meant: people copy spaces, and type dashes."""
    return code.translate(_AROUND)


async def cancel(connection: asyncpg.Connection, messages: Sequence[UUID]) -> None:
    """Cancel mails whose codes are void, as far as they were not sent, and drop what they say."""
    if messages:
        await operations.apply(
            connection, operations.CANCEL, [(one, 0) for one in messages], _SUPERSEDED
        )


async def _enqueued(
    connection: asyncpg.Connection, made: IssuedCode, mail: Callable[[IssuedCode], Mail]
) -> UUID | None:
    """Store the mail; None, and a line in the log, where it cannot be made or is refused."""
    try:
        async with connection.transaction():  # a savepoint: a refusal undoes the mail alone
            stored: UUID = await enqueue(connection, mail(made))
            return stored
    except (RenderError, InvalidMail, NotAllowed) as error:
        log.error("a mail with a code could not be made", error=str(error))
        return None
