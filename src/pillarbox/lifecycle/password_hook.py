"""Sets an account's new password by a signed call to the application's endpoint."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import aiohttp

from pillarbox.errors import NoAnswer, PasswordRefused
from pillarbox.model import webhook
from pillarbox.setting_kinds import key_bytes
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.store.lifecycle import TokenState

log = logs.get("pillarbox.recovery")
KIND = "account.password_recovery"
# Statuses that refuse this password; any other error means that the application could not check it.
REFUSALS = frozenset({400, 409, 422})
# How much of a response is read, and how much of its reason is shown: one or two sentences.
MAX_RESPONSE_BYTES = 16 * 1024
MAX_REASON_LENGTH = 300
HEADERS = {"Content-Type": "application/json", "User-Agent": "pillarbox-recovery"}


class PasswordHook:
    """Calls `recovery_hook_url`. Redirects are not followed: only this URL gets the password."""

    def __init__(self, settings: Settings) -> None:
        assert settings.recovery_hook_url is not None, "the caller checks the setting"
        assert settings.recovery_hook_secret is not None, "settings without a secret are refused"
        self._url = settings.recovery_hook_url
        self._secret = webhook.secret_of(key_bytes(settings.recovery_hook_secret))
        self.timeout = settings.recovery_hook_timeout

    async def set_password(self, token: TokenState, password: str) -> None:
        """Have the application set the new password.

        Raises PasswordRefused with the application's reason, or NoAnswer.
        """
        account = {"id": token.account, "login": token.login, "email": token.email}
        data = {"account": account, "token": token.token, "password": password}
        content = webhook.body(KIND, datetime.now(UTC), data)
        headers = webhook.headers(
            str(uuid4()),
            int(time.time()),
            content,
            [self._secret],
        )
        try:
            status, response = await self._post(content, headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.error("the recovery hook did not answer", error=type(error).__name__)
            raise NoAnswer("the application did not answer") from None
        if status in REFUSALS:
            raise PasswordRefused(_reason(response))
        if not 200 <= status < 300:
            log.error("the recovery hook failed", status=status)
            raise NoAnswer("the application could not set the password", status)

    async def _post(self, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """The status and the beginning of the response. One connection per call: calls are rare."""
        session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small response must not become a large one
        )
        async with session:
            request = session.post(
                self._url,
                data=content,
                headers=headers | HEADERS,
                allow_redirects=False,
            )
            async with request as response:
                received = b""
                while len(received) < MAX_RESPONSE_BYTES:
                    chunk = await response.content.read(MAX_RESPONSE_BYTES - len(received))
                    if not chunk:
                        break
                    received += chunk
                return response.status, received


def _reason(response: bytes) -> str | None:
    """The application's message to the person: `detail` of a JSON object, on one line."""
    try:
        parsed = json.loads(response)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    detail = parsed.get("detail")
    if not isinstance(detail, str):
        return None
    return _one_line(detail)[:MAX_REASON_LENGTH] or None


def _one_line(text: str) -> str:
    """The text with each run of white space and unprintable characters as one space."""
    for character in set(text):
        if not character.isprintable():
            text = text.replace(character, " ")
    return " ".join(text.split())
