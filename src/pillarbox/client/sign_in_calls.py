"""The calls of the API for signing in by a code, without I/O."""

from __future__ import annotations

from typing import Any

from pillarbox.client.api_call import ApiCall, send_json
from pillarbox.wire.sign_in import SignInChallenge, Verified


def begin(email: str) -> ApiCall[SignInChallenge]:
    """Repeatable: within the pause the response is the same, and nothing is mailed."""
    return send_json("POST", "/sign-in", {"email": email}, SignInChallenge)


def verify(code: str, challenge: str | None, token: int | None) -> ApiCall[Verified]:
    """Not repeatable: a code is valid once, and wrong attempts are counted."""
    if (challenge is None) == (token is None):
        raise ValueError("give either a challenge or the id of a token")
    body: dict[str, Any] = {"code": code}
    if challenge is not None:
        body["challenge"] = challenge
    else:
        body["token"] = token
    return send_json("POST", "/sign-in/verify", body, Verified, repeatable=False)
