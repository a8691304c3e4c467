"""The server's certificate: read from files, and again when they change."""

from __future__ import annotations

import ssl
from pathlib import Path

from pillarbox.errors import SettingsError
from pillarbox.telemetry import logs

log = logs.get("pillarbox.smtp")


class Certificate:
    """A certificate chain and its key, read again when they change; a broken pair is ignored."""

    def __init__(self, chain: Path, key: Path | None = None) -> None:
        self._chain = chain
        self._key = key
        self._seen = self._marks()
        try:
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            files = f"{chain} and {key}" if key else str(chain)
            raise SettingsError(f"{files} cannot be used for TLS: {_reason(error)}") from None

    def refresh(self) -> None:
        """Read the files again if they have changed since."""
        marks = self._marks()
        if marks != self._seen:
            self._seen = marks
            self.reload()

    def reload(self) -> None:
        """Read the files again; if they do not fit, the former pair stays in use."""
        try:
            self.context = self._load()
        except (
            OSError,
            ssl.SSLError,
        ) as error:  # while the two are being replaced, they do not fit for a moment
            log.error(
                "the new certificate cannot be used; the old one stays in use", error=_reason(error)
            )
        else:
            log.info("the certificate was read again")

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._chain, self._key, password=_no_password)
        return context

    def _marks(self) -> tuple[object, ...]:
        return _mark(self._chain), _mark(self._key) if self._key else None


def _mark(path: Path) -> object:
    """What tells a file from its successor; none while there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted")  # and would make OpenSSL ask on the terminal


def _reason(error: OSError | ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return str(error.strerror or error)
