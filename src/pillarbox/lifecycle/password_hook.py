"""The application sets a person's new password: a signed call to its endpoint, with the password that was chosen."""

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
# Answers by which the application refuses this password; any other that is no success means that it
# could not look.
REFUSALS = frozenset({400, 409, 422})
# What is read of an answer, and what is shown of it: a sentence or two.
LONGEST_ANSWER = 16 * 1024
LONGEST_REASON = 300


class PasswordHook:
    """Calls the endpoint of `recovery_hook_url`. Redirects are not followed: the password is for this address alone."""

    def __init__(self, settings: Settings) -> None:
        assert settings.recovery_hook_url is not None, "there is a hook"
        assert settings.recovery_hook_secret is not None, "settings without a secret are refused"
        self._url = settings.recovery_hook_url
        self._secret = webhook.secret_of(key_bytes(settings.recovery_hook_secret))
        self.timeout = settings.recovery_hook_timeout

    async def set_password(self, token: TokenState, password: str) -> None:
        """Have the new password set; PasswordRefused says why the application does not take it, else NoAnswer."""
        account = {"id": token.account, "login": token.login, "email": token.email}
        data = {"account": account, "token": token.token, "password": password}
        content = webhook.body(KIND, datetime.now(UTC), data)
        headers = webhook.headers(str(uuid4()), int(time.time()), content, [self._secret])
        try:
            status, said = await self._post(content, headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.error("the recovery hook did not answer", error=type(error).__name__)
            raise NoAnswer("the application did not answer") from None
        if status in REFUSALS:
            raise PasswordRefused(_reason(said))
        if not 200 <= status < 300:
            log.error("the recovery hook failed", status=status)
            raise NoAnswer("the application could not set the password", status)

    async def _post(self, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """The status, and the beginning of the answer. One connection for a call: recoveries are rare."""
        kind = {"Content-Type": "application/json", "User-Agent": "pillarbox-recovery"}
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # a small answer must not become a large one
            ) as session,
            session.post(
                self._url, data=content, headers=headers | kind, allow_redirects=False
            ) as answer,
        ):
            said = b""
            while len(said) < LONGEST_ANSWER and (
                some := await answer.content.read(LONGEST_ANSWER - len(said))
            ):
                said += some
            return answer.status, said


def _reason(said: bytes) -> str | None:
    """What the application says to the person: `detail` of a JSON object, on one line; None if it says nothing."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return None
    detail = found.get("detail") if isinstance(found, dict) else None
    if not isinstance(detail, str):
        return None
    text = " ".join("".join(one if one.isprintable() else " " for one in detail).split())
    return text[:LONGEST_REASON] or None
