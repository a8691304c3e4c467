"""Signs the tokens of links, and verifies them.

A token is base64url, without padding, of secret (32 bytes) | HMAC-SHA256(key, path | secret | code)
(32 bytes): 86 characters. The code is part of it if the action has one. A second field carries the
expiry, signed together with the token, so that an expired link can be told from a forged one
without a database.
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
# Half a signature: 2^128 guesses, and the link stays short enough for mail clients that wrap lines.
EXPIRY_MAC_BYTES = 16
EXPIRY_CHARACTERS = 32
# The prefix of a signed expiry. No action has this path.
EXPIRES = b"/expires"

_legal_token = re.compile(rf"[A-Za-z0-9_-]{{{TOKEN_CHARACTERS}}}").fullmatch
_legal_expiry = re.compile(rf"[A-Za-z0-9_-]{{{EXPIRY_CHARACTERS}}}").fullmatch
_legal_code = re.compile(rf"[!-~]{{{CODE_CHARACTERS}}}").fullmatch


class SignedPath(NamedTuple):
    """The path of an action's links, and whether the code is part of the signature."""

    path: str
    with_code: bool = False


# The built-in actions with a link; pass a SignedPath for an action of your own.
PATHS: Mapping[str, SignedPath] = MappingProxyType(
    {
        "activation": SignedPath("/activate"),
        "password_recovery": SignedPath("/recover", with_code=True),
        "email_verification": SignedPath("/verify-email"),
        "invite": SignedPath("/invite"),
    }
)


class SigningKeyRing:
    """Keys of 32 bytes, newest first, each valid until a time; hidden in the repr.

    The time is in epoch seconds; None: without end.
    """

    def __init__(
        self,
        keys: Sequence[bytes | tuple[bytes, float | None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not keys:
            raise SecretError("a key ring needs at least one key")
        self._keys: list[tuple[bytes, float | None]] = []
        for item in keys:
            if isinstance(item, bytes):
                self._keys.append((_check_key(item), None))
            else:
                key, until = item
                self._keys.append((_check_key(key), until))
        self._clock = clock

    def __repr__(self) -> str:
        return f"SigningKeyRing({len(self._keys)} keys)"

    def current(self) -> list[bytes]:
        """The valid keys, newest first."""
        now = self._clock()
        return [key for key, until in self._keys if until is None or now < until]

    def newest(self) -> bytes:
        """The key that signs."""
        current = self.current()
        if not current:
            raise SecretError("all keys that sign links have expired: add a new key in front")
        return current[0]


KeyRing = SigningKeyRing  # deprecated: removed in 0.3
Action = str | SignedPath
Key = bytes | SigningKeyRing
Keys = Sequence[bytes] | SigningKeyRing


def sign(
    action: Action,
    secret: bytes,
    code: str | None,
    key: Key,
) -> str:
    """The token of a link, for one action, and for one code if the action has a code."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    signed_path = _signed_path(action)
    if signed_path.with_code and not _is_code(code):
        raise ValueError(
            f"a link of {signed_path.path} is signed with a code of {CODE_CHARACTERS} characters"
        )
    signature = digest(_signing_key(key), _signed_data(signed_path, secret, code), "sha256")
    return _encode(secret + signature)


def verify(
    token: str,
    action: Action,
    code: str | None,
    keys: Keys,
) -> bytes:
    """The secret of a token that was signed for this action and code; otherwise ForgedToken.

    Takes the same time for every token and key.
    """
    signed_path = _signed_path(action)
    raw = _decode(
        token,
        _legal_token,
        TOKEN_CHARACTERS,
        "token",
    )
    if signed_path.with_code and not _is_code(code):
        raise ForgedToken(f"the code is missing, or does not have {CODE_CHARACTERS} characters")
    secret, signature = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
    if not _is_signed(_signed_data(signed_path, secret, code), signature, keys):
        signed_for = "another action or key"
        if signed_path.with_code:
            signed_for = "another action, another code or with another key"
        raise ForgedToken(f"the signature is wrong: it was altered, or made for {signed_for}")
    return secret


def secret_of(token: str) -> bytes:
    """The secret of a token without verification; ForgedToken if it is malformed."""
    return _decode(
        token,
        _legal_token,
        TOKEN_CHARACTERS,
        "token",
    )[:SECRET_BYTES]


def sign_expiry(
    token: str,
    expires_at: int,
    key: Key,
) -> str:
    """The second field of a link: its expiry in epoch seconds, signed together with its token."""
    expiry = expires_at.to_bytes(EXPIRY_BYTES)
    signature = digest(_signing_key(key), EXPIRES + token.encode() + expiry, "sha256")
    return _encode(expiry + signature[:EXPIRY_MAC_BYTES])


def check_expiry(
    field: str,
    token: str,
    keys: Keys,
    now: float | None = None,
) -> int:
    """The expiry of a link.

    Raises ExpiredToken if it has passed, ForgedToken if field and token were not signed together.
    """
    raw = _decode(
        field,
        _legal_expiry,
        EXPIRY_CHARACTERS,
        "expiry",
    )
    _decode(
        token,
        _legal_token,
        TOKEN_CHARACTERS,
        "token",
    )
    expiry, signature = raw[:EXPIRY_BYTES], raw[EXPIRY_BYTES:]
    if not _is_signed(EXPIRES + token.encode() + expiry, signature, keys):
        raise ForgedToken(
            "the signature of the expiry is wrong:"
            " it was altered, or belongs to another link or key"
        )
    expires_at = int.from_bytes(expiry)
    if now is None:
        now = time.time()
    if expires_at <= now:
        raise ExpiredToken("the link has expired")
    return expires_at


def link(
    base: str,
    path: str,
    token: str,
    expiry: str,
) -> str:
    """The URL of a link."""
    return f"{base.rstrip('/')}{path}?token={token}&expires={expiry}"


def _signed_path(action: Action) -> SignedPath:
    if isinstance(action, SignedPath):
        return action
    if action not in PATHS:
        raise NotFound(
            f"{action!r} is not an action with a link: use one of {', '.join(PATHS)},"
            " or a SignedPath"
        )
    return PATHS[action]


def _is_code(code: str | None) -> bool:
    return code is not None and _legal_code(code) is not None


def _signed_data(
    signed_path: SignedPath,
    secret: bytes,
    code: str | None,
) -> bytes:
    data = signed_path.path.encode() + secret
    if signed_path.with_code and code:
        data += code.encode()
    return data


def _is_signed(
    data: bytes,
    signature: bytes,
    keys: Keys,
) -> bool:
    """Whether one of the keys signed the data, in constant time: every key is tried."""
    if isinstance(keys, SigningKeyRing):
        keys = keys.current()
    is_signed = False
    for key in keys:
        expected = digest(_check_key(key), data, "sha256")
        is_signed |= compare_digest(expected[: len(signature)], signature)
    return is_signed


def _signing_key(key: Key) -> bytes:
    if isinstance(key, SigningKeyRing):
        return key.newest()
    return _check_key(key)


def _check_key(key: bytes) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise SecretError(f"a key that signs links must have {KEY_BYTES} bytes")
    return key


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(
    text: str,
    legal: Callable[[str], object],
    characters: int,
    field: str,
) -> bytes:
    """The bytes of a field; only canonical base64url is legal, so that a token has one spelling."""
    if len(text) < characters:
        raise ForgedToken(f"the {field} is cut off: {len(text)} of {characters} characters")
    if len(text) > characters:
        raise ForgedToken(f"the {field} is too long: {len(text)} characters, not {characters}")
    if not legal(text):
        raise ForgedToken(f"the {field} has characters that base64url does not have")
    padding = "=" * (-characters % 4)
    raw = urlsafe_b64decode(text + padding)
    if _encode(raw) != text:
        raise ForgedToken(f"the {field} is not canonical base64url: its last character is wrong")
    return raw
