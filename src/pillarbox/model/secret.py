"""A string that does not show itself."""

from __future__ import annotations

from base64 import b64encode


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


def masked(text: str, secret: Secret, username: str | None = None) -> str:
    """The text without the secret, should a server repeat it: as it is, or as AUTH LOGIN or PLAIN says it."""
    word = secret.reveal()
    for said in (b64encode(f"\0{username}\0{word}".encode()), b64encode(word.encode()), word.encode()):
        text = text.replace(said.decode(), "****")
    return text
