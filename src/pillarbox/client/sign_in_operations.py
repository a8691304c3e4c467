"""Signing in by a code."""

from __future__ import annotations

from pillarbox.client import sign_in_calls
from pillarbox.client.operations import Operations
from pillarbox.wire.sign_in import SignedInAccount, SignInChallenge


class SignInOperations(Operations):
    """The methods that need a key of the accounts' tenant with the scope `send`."""

    async def begin_sign_in(self, email: str) -> SignInChallenge:
        """Mail a code to the account with this address; the answer does not tell whether there is one."""
        return await self._run(sign_in_calls.begin(email))

    async def verify_sign_in(
        self, code: str, *, challenge: str | None = None, token: int | None = None
    ) -> SignedInAccount:
        """Whose code it is. Give the challenge, or the id of a token that your application inserted.

        WrongCode if the code does not count; with `void` true, ask for a new one.
        """
        return (await self._run(sign_in_calls.verify(code, challenge, token))).account
