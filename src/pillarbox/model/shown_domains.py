"""The domains that a display name, comment or quoted string shows beside an address. Pure.

The SQL function `pillarbox._shown_domains` finds the same ones.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

# Characters without a width and marks of direction: `ceo@\u200bother.example` reads as an address.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_DOMAIN = re.compile(r"([ \t]*)([^ \t<>(),;:\"'\\\[\]]*)")


def shown_domains(text: str) -> list[str]:
    """The domains behind each `@` of what looks like an address.

    `ceo@other.example` and `CEO @ other.example` look like one; `Ann @ Acme` and `@acme` do not.
    """
    if "@" not in text and text.isascii():
        return []
    # Compatibility forms (such as a full-width @) look like the plain character, as do ideographic
    # full stops.
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).replace("\u3002", ".")
    domains = []
    for before, after in pairwise(text.split("@")):
        found = _DOMAIN.match(after)
        assert found is not None  # both of its parts may be empty
        domain = found[2].rstrip(".")
        is_joined = not found[1] and before != "" and before[-1] not in " \t"
        if domain and (is_joined or "." in domain):
            domains.append(domain)
    return domains
