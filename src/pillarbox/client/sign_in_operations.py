"""Signing in by a code."""

from __future__ import annotations

from pillarbox.client import sign_in_calls
from pillarbox.client.operations import Operations
from pillarbox.wire.sign_in import SignedInAccount, SignInChallenge


class SignInOperations(Operations):
    """Signing in by a code; needs a key of the tenant of the accounts with the scope `send`."""

    async def begin_sign_in(self, email: str) -> SignInChallenge:
        """Mail a code to the account with this address; the result does not show if one exists."""
        return await self._run(sign_in_calls.begin(email))

    async def verify_sign_in(
        self, code: str, *, challenge: str | None = None, token: int | None = None
    ) -> SignedInAccount:
        """The account of a code. Pass the challenge, or the id of a token of your application.

        WrongCode if the code is not valid; if its `void` is true, request a new code.
        """
        return (await self._run(sign_in_calls.verify(code, challenge, token))).account
