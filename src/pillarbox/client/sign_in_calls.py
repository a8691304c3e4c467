"""Signing in by a code: what is asked of the API, and how its answers are read. Pure: the clients do the talking."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pillarbox.client.calls import JSON, ApiCall, HttpRequest, reading


@dataclass(frozen=True, slots=True)
class SignInChallenge:
    """What a code is verified with, and for how many seconds it can be used."""

    challenge: str
    expires_in: int


@dataclass(frozen=True, slots=True)
class SignedInAccount:
    """Who has proven that they read the mail."""

    id: int
    email: str
    login: str
    status: str


@dataclass(frozen=True, slots=True)
class Verified:
    account: SignedInAccount


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
