"""A string that is hidden in logs and reprs."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

# Shown in the place of a secret.
MASK = "****"


class Secret:
    """Holds a secret. Only `reveal()` returns it, so that it never appears in a log by accident."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret('**********')"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")


# Shorter secrets occur in ordinary words.
SHORT = 6


def masked(text: str, secret: Secret, username: str | None = None) -> str:
    """The text without the secret, plain or in an encoding in which a request may carry it."""
    word = secret.reveal()
    logins = (f"\0{username}\0{word}", f"{username}:{word}", word)  # AUTH PLAIN, Basic, AUTH LOGIN
    spellings = {b64encode(login.encode()).decode() for login in logins}
    spellings.add(urlsafe_b64encode(word.encode()).decode())
    spellings |= {word, quote(word), quote(word, safe=""), quote_plus(word), word.encode().hex()}
    escaped = json.dumps(word)[1:-1]
    spellings |= {escaped, escaped.replace("/", "\\/")}
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.sub("|".join(map(_pattern, longest_first)), MASK, text, flags=re.IGNORECASE)


def _pattern(spelling: str) -> str:
    """Matches a spelling; a short one only as a whole word, not within words and host names."""
    found = re.escape(spelling)
    if len(spelling) >= SHORT:
        return found
    return rf"(?<!\w)(?<!\w[.-]){found}(?![.-]?\w)"
