"""Encrypts stored secrets: seals with the newest key of a ring, opens with any of its keys.

A sealed secret is  version (1 byte) | key id (4) | nonce (12) | AES-256-GCM ciphertext and tag.
Version, key id and context are authenticated, so a row cannot be altered, nor its secret moved to
another row.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pillarbox.errors import SecretError
from pillarbox.model.secret import Secret
from pillarbox.setting_kinds import KEY_BYTES, key_bytes

if TYPE_CHECKING:
    from pillarbox.settings import Settings

VERSION = b"\x01"
_ID = slice(1, 5)
_NONCE = slice(5, 17)  # 96 random bits: safe for 2^32 seals per key (NIST SP 800-38D)
_HEADER = 17
_TAG = 16
# The key file of a development installation, beside the embedded database.
KEY_FILE = "secret.key"


class EncryptionKeyRing:
    """Keys, newest first: the first one seals, all of them open."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        if not keys:
            raise SecretError("no secret key: set PILLARBOX_SECRET_KEYS")
        raw = [_decode(key) for key in keys]
        self._raw = raw
        self._current = _key_id(raw[0])
        # Reversed: the newest key wins if two have the same id.
        self._ciphers = {_key_id(key): AESGCM(key) for key in reversed(raw)}

    def __repr__(self) -> str:
        return f"EncryptionKeyRing({', '.join(self.key_ids)})"

    @property
    def key_ids(self) -> list[str]:
        """The ids of the keys, newest first; an id reveals nothing about its key."""
        return [key_id.hex() for key_id in reversed(self._ciphers)]

    def seal(self, plaintext: str, context: str) -> bytes:
        """Encrypt a secret; `context` (`provider:7`) must be the same when opening."""
        header = VERSION + self._current
        nonce = os.urandom(12)
        cipher = self._ciphers[self._current]
        try:
            plain = plaintext.encode()
        except UnicodeEncodeError:  # half of a surrogate pair; its error would contain the secret
            raise SecretError(f"the secret of {context} is not text that can be stored") from None
        return header + nonce + cipher.encrypt(nonce, plain, header + context.encode())

    def open(self, sealed: bytes, context: str) -> Secret:
        """Decrypt a secret; SecretError if its key is missing or its bytes were changed."""
        key_id = _read_key_id(sealed)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            have = ", ".join(self.key_ids)
            raise SecretError(
                f"the secret of {context} was sealed with key {key_id.hex()}; available: {have}"
            )
        try:
            plain = cipher.decrypt(sealed[_NONCE], sealed[_HEADER:], sealed[:5] + context.encode())
        except InvalidTag:
            raise SecretError(
                f"the secret of {context} was tampered with or belongs elsewhere"
            ) from None
        return Secret(plain.decode())

    def is_current(self, sealed: bytes) -> bool:
        """Whether it was sealed with the newest key; rotation reseals the others."""
        return _read_key_id(sealed) == self._current

    def derive(self, purpose: bytes) -> list[bytes]:
        """A key for another purpose from each key of the ring, newest first."""
        return [hmac.digest(raw, purpose, "sha256") for raw in self._raw]

    def reseal(self, sealed: bytes, context: str) -> bytes:
        """The same secret, sealed with the newest key."""
        return self.seal(self.open(sealed, context).reveal(), context)


def key_ring(settings: Settings) -> EncryptionKeyRing:
    """The keys of PILLARBOX_SECRET_KEYS; in development, of a file beside the embedded database."""
    if settings.secret_keys:
        return EncryptionKeyRing(settings.secret_keys)
    if settings.database_url is None:
        return EncryptionKeyRing([load_or_create_key_file(settings.data_dir / KEY_FILE)])
    raise SecretError(
        "no secret key: set PILLARBOX_SECRET_KEYS (make one with `pillarbox keys generate`)"
    )


def generate_key() -> str:
    """A new key in the format of PILLARBOX_SECRET_KEYS."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def load_or_create_key_file(path: Path) -> Secret:
    """The key of a development installation; created on first use, readable by its owner only."""
    try:
        return _load_key_file(path)
    except FileNotFoundError:
        _create_key_file(path)
    return _load_key_file(path)  # read it again: another process may have created it first


def _load_key_file(path: Path) -> Secret:
    with _naming(path):
        text = path.read_text("ascii")
    _warrant_private(path)
    key = Secret(text.strip())
    try:
        _decode(key)
    except SecretError:
        raise SecretError(
            f"{path} does not hold a key: restore it, or delete it to lose what it sealed"
        ) from None
    return key


def _create_key_file(path: Path) -> None:
    """Write a draft, then link it: readers see a whole key or none, and the first writer wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_private(draft, generate_key() + "\n")
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def read_private_file(path: Path) -> str | None:
    """The content of a file that only its owner can read; None if there is no file."""
    try:
        with _naming(path):
            text = path.read_text("ascii")
    except FileNotFoundError:
        return None
    _warrant_private(path)
    return text.strip()


def write_private_file(path: Path, text: str) -> None:
    """Replace the content of a file that only its owner can read, atomically."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_private(draft, text + "\n")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a key lost in a power cut loses every secret it sealed


def _warrant_private(path: Path) -> None:
    """Refuse a file that other users can read; restoring a backup often makes it readable."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise SecretError(f"{path} can be read by others: chmod 600 it")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Map errors of the file system to SecretError; the caller handles a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SecretError(f"{path} cannot be used as a key file: {reason}") from None


def _decode(key: Secret) -> bytes:
    try:
        return key_bytes(key)
    except ValueError:
        raise SecretError("a secret key must be 32 bytes as 64 hex digits or base64") from None


def _key_id(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()[:4]


def _read_key_id(sealed: bytes) -> bytes:
    if len(sealed) < _HEADER + _TAG or sealed[:1] != VERSION:
        raise SecretError("not a sealed secret of a version this program knows")
    return sealed[_ID]
