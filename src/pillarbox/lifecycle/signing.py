"""Links that cannot be forged: signing a token's secret, and telling why one does not count.

A token is base64url, without padding, of secret (32 bytes) | HMAC-SHA256(key, path | secret | code)
(32 bytes): 86 characters. The code is part of it where the action has one. A second field carries
the expiry, signed together with the token, so that a link that came too late is told from a forged
one without a database.
"""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from hmac import compare_digest, digest
from types import MappingProxyType
from typing import NamedTuple

from pillarbox.errors import ExpiredToken, ForgedToken, NotFound, SecretError

SECRET_BYTES = 32
KEY_BYTES = 32
TOKEN_CHARACTERS = 86
CODE_CHARACTERS = 5
EXPIRY_BYTES = 8
# Half a signature: 2^128 guesses, and the link stays short enough for mail programs that wrap
# lines.
EXPIRY_MAC_BYTES = 16
EXPIRY_CHARACTERS = 32
# What comes before an expiry when it is signed. No action has this path.
EXPIRES = b"/expires"

_legal_token = re.compile(rf"[A-Za-z0-9_-]{{{TOKEN_CHARACTERS}}}").fullmatch
_legal_expiry = re.compile(rf"[A-Za-z0-9_-]{{{EXPIRY_CHARACTERS}}}").fullmatch
_legal_code = re.compile(rf"[!-~]{{{CODE_CHARACTERS}}}").fullmatch


class SignedPath(NamedTuple):
    """Where a link of an action leads, and whether its code is part of what is signed."""

    path: str
    with_code: bool = False


# The actions that come with Pillarbox and have a link; an action of your own is given as its
# SignedPath.
PATHS: Mapping[str, SignedPath] = MappingProxyType(
    {
        "activation": SignedPath("/activate"),
        "password_recovery": SignedPath("/recover", with_code=True),
        "email_verification": SignedPath("/verify-email"),
        "invite": SignedPath("/invite"),
    }
)


class SigningKeyRing:
    """Keys of 32 bytes, newest first, each until a moment (seconds since 1970; None: for ever). Shows none of them."""

    def __init__(
        self,
        keys: Sequence[bytes | tuple[bytes, float | None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not keys:
            raise SecretError("a key ring needs a key")
        self._keys = [
            (_key(one), None) if isinstance(one, bytes) else (_key(one[0]), one[1]) for one in keys
        ]
        self._clock = clock

    def __repr__(self) -> str:
        return f"SigningKeyRing({len(self._keys)} keys)"

    def current(self) -> list[bytes]:
        """The keys that count now, newest first."""
        now = self._clock()
        return [key for key, until in self._keys if until is None or now < until]

    def newest(self) -> bytes:
        """The key that signs."""
        current = self.current()
        if not current:
            raise SecretError("every key that signs links has retired: add a new one in front")
        return current[0]


KeyRing = SigningKeyRing  # deprecated: removed in 0.3
Action = str | SignedPath
Key = bytes | SigningKeyRing
Keys = Sequence[bytes] | SigningKeyRing


def sign(action: Action, secret: bytes, code: str | None, key: Key) -> str:
    """The token of a link: for one action, and for one code where the action has one."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    where = _path(action)
    if where.with_code and not (code and _legal_code(code)):
        raise ValueError(
            f"a link of {where.path} is signed with a code of {CODE_CHARACTERS} characters"
        )
    return _encode(secret + digest(_newest(key), _data(where, secret, code), "sha256"))


def verify(token: str, action: Action, code: str | None, keys: Keys) -> bytes:
    """The secret of a token that was signed for this action and code; ForgedToken says what is wrong with others.

    Takes as long for a right one as for a wrong one, whichever key it is signed with.
    """
    where = _path(action)
    raw = _decode(token, _legal_token, TOKEN_CHARACTERS, "token")
    if where.with_code and not (code and _legal_code(code)):
        raise ForgedToken(f"the code is missing, or has not {CODE_CHARACTERS} characters")
    secret, signature = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
    if not _signed(_data(where, secret, code), signature, keys):
        what = (
            "another action, another code or with another key"
            if where.with_code
            else "another action or key"
        )
        raise ForgedToken(f"the signature is wrong: it was altered, or made for {what}")
    return secret


def secret_of(token: str) -> bytes:
    """The secret of a token, which proves nothing; ForgedToken if it cannot be one."""
    return _decode(token, _legal_token, TOKEN_CHARACTERS, "token")[:SECRET_BYTES]


def sign_expiry(token: str, expires_at: int, key: Key) -> str:
    """The second field of a link: when it expires (seconds since 1970), signed together with its token."""
    expiry = expires_at.to_bytes(EXPIRY_BYTES)
    return _encode(
        expiry
        + digest(_newest(key), EXPIRES + token.encode() + expiry, "sha256")[:EXPIRY_MAC_BYTES]
    )


def check_expiry(field: str, token: str, keys: Keys, now: float | None = None) -> int:
    """When a link expires; ExpiredToken if that has passed, ForgedToken if field and token were not signed together."""
    raw = _decode(field, _legal_expiry, EXPIRY_CHARACTERS, "expiry")
    _decode(token, _legal_token, TOKEN_CHARACTERS, "token")
    expiry, signature = raw[:EXPIRY_BYTES], raw[EXPIRY_BYTES:]
    if not _signed(EXPIRES + token.encode() + expiry, signature, keys):
        raise ForgedToken(
            "the signature of the expiry is wrong: it was altered, or belongs to another link or key"
        )
    expires_at = int.from_bytes(expiry)
    if expires_at <= (time.time() if now is None else now):
        raise ExpiredToken("the link has expired")
    return expires_at


def link(base: str, path: str, token: str, expiry: str) -> str:
    """The address of a link."""
    return f"{base.rstrip('/')}{path}?token={token}&expires={expiry}"


def _path(action: Action) -> SignedPath:
    if isinstance(action, SignedPath):
        return action
    if action not in PATHS:
        raise NotFound(
            f"there is no link for {action!r}: it is one of {', '.join(PATHS)}, or give a SignedPath"
        )
    return PATHS[action]


def _data(where: SignedPath, secret: bytes, code: str | None) -> bytes:
    data = where.path.encode() + secret
    return data + code.encode() if where.with_code and code else data


def _signed(data: bytes, signature: bytes, keys: Keys) -> bool:
    """Whether one of the keys signed it. Every key is tried, and every byte compared: time tells nothing."""
    right = False
    for key in keys.current() if isinstance(keys, SigningKeyRing) else keys:
        right |= compare_digest(digest(_key(key), data, "sha256")[: len(signature)], signature)
    return right


def _newest(key: Key) -> bytes:
    return key.newest() if isinstance(key, SigningKeyRing) else _key(key)


def _key(key: bytes) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise SecretError(f"a key that signs links has {KEY_BYTES} bytes")
    return key


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(given: str, legal: Callable[[str], object], characters: int, what: str) -> bytes:
    """The bytes of a field; only the one spelling that we write counts, so that one token is not many strings."""
    if len(given) != characters:
        cut = "cut off" if len(given) < characters else "too long"
        raise ForgedToken(
            f"the {what} is {cut}: it has {len(given)} characters instead of {characters}"
        )
    if not legal(given):
        raise ForgedToken(f"the {what} has characters that base64url does not have")
    raw = urlsafe_b64decode(given + "=" * (-characters % 4))
    if _encode(raw) != given:
        raise ForgedToken(
            f"the {what} is not written as it was: its last character has bits that stand for nothing"
        )
    return raw
