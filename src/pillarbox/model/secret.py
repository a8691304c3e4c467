"""A string that does not show itself."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

# What stands where a secret is not shown.
MASK = "****"


class Secret:
    """Holds a secret; only `reveal()` gives it back, so that it never lands in a log or a repr by accident."""

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


# Shorter secrets occur in ordinary words. Whoever has one has other troubles than a log.
SHORT = 6


def masked(text: str, secret: Secret, username: str | None = None) -> str:
    """The text without the secret, should a server repeat it: as it is, or as the request that carried it spelt it."""
    word = secret.reveal()
    logins = (f"\0{username}\0{word}", f"{username}:{word}", word)  # AUTH PLAIN, Basic, AUTH LOGIN
    spellings = {b64encode(one.encode()).decode() for one in logins} | {
        urlsafe_b64encode(word.encode()).decode()
    }
    spellings |= {word, quote(word), quote(word, safe=""), quote_plus(word), word.encode().hex()}
    escaped = json.dumps(word)[1:-1]
    spellings |= {escaped, escaped.replace("/", "\\/")}
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.sub("|".join(map(_pattern, longest_first)), MASK, text, flags=re.IGNORECASE)


def _pattern(spelling: str) -> str:
    """Finds a spelling; a short one only where it stands alone, for it is also a part of words and host names."""
    found = re.escape(spelling)
    if len(spelling) >= SHORT:
        return found
    return rf"(?<!\w)(?<!\w[.-]){found}(?![.-]?\w)"
