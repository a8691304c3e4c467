"""Signing in by a code: what is asked of the API, and how its answers are read. Pure: the clients do the talking."""

from __future__ import annotations

import json
from typing import Any

from pillarbox.client.calls import JSON, ApiCall, HttpRequest, reading
from pillarbox.wire.sign_in import SignInChallenge, Verified


def begin(email: str) -> ApiCall[SignInChallenge]:
    """Repeatable: asked again within the pause, the answer is the same and nothing is mailed."""
    return ApiCall(
        HttpRequest("POST", "/sign-in", json.dumps({"email": email}).encode(), JSON),
        reading(SignInChallenge),
    )


def verify(code: str, challenge: str | None, token: int | None) -> ApiCall[Verified]:
    """Not repeatable: a code counts once, and a wrong one is counted."""
    if (challenge is None) == (token is None):
        raise ValueError("give a challenge or the id of a token")
    given: dict[str, Any] = {"code": code}
    given |= {"challenge": challenge} if challenge is not None else {"token": token}
    request = HttpRequest(
        "POST", "/sign-in/verify", json.dumps(given).encode(), JSON, repeatable=False
    )
    return ApiCall(request, reading(Verified))
