"""Signing in by a code in `pillarbox.Client`."""

from __future__ import annotations

from pillarbox.client import sign_in_calls
from pillarbox.client.asking import Asking
from pillarbox.client.sign_in_calls import SignedInAccount, SignInChallenge


class SignInCalls(Asking):
    """The methods that need a key of the accounts' tenant with the scope `send`."""

    def begin_sign_in(self, email: str) -> SignInChallenge:
        """Mail a code to the account with this address; the answer does not tell whether there is one."""
        return self._run(sign_in_calls.begin(email))

    def verify_sign_in(
        self, code: str, *, challenge: str | None = None, token: int | None = None
    ) -> SignedInAccount:
        """Whose code it is. Give the challenge, or the id of a token that your application inserted.

        WrongCode if the code does not count; with `void` true, ask for a new one.
        """
        return self._run(sign_in_calls.verify(code, challenge, token)).account
