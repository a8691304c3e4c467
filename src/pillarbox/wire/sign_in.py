"""Signing in by a code."""

from __future__ import annotations

from dataclasses import dataclass, field

from pillarbox.wire.fields import about


@dataclass(frozen=True, slots=True)
class SignInChallenge:
    """A challenge, to be sent back with the code."""

    challenge: str
    expires_in: int = field(metadata=about("The seconds for which the code is valid."))


@dataclass(frozen=True, slots=True)
class SignedInAccount:
    id: int
    email: str
    login: str
    status: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The account whose code was verified."""

    account: SignedInAccount
