"""The searcher: known words, in every spelling in which they could show, in all that left an installation."""

from __future__ import annotations

import base64
import html
import json
import quopri
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import quote

from pillarbox.store.database import Database

# Fewer letters of base64 could be there by chance.
LEAST = 8
# Where a tenant's own data is kept, and may be: its people and its words, but never a credential.
KEPT = {
    "messages": {"sender", "to", "cc", "reply_to", "subject", "headers"},
    "deliveries": {"recipient"},
    "contents": {"text", "html", "raw", "attachments"},
    "suppressions": {"address"},
    "webhook_calls": {"payload"},
}


class Leak(NamedTuple):
    word: str
    place: str
    around: str


@cache
def spellings(word: str) -> tuple[frozenset[str], frozenset[str]]:
    """How a word could show: those that are compared in lower case, and those that are compared as they are."""
    data = word.encode()
    once = quote(word, safe="")
    loose = {word, once, quote(once, safe=""), quote(word), data.hex(), html.escape(word)}
    loose |= {json.dumps(word)[1:-1], json.dumps(word)[1:-1].replace("/", "\\/"), repr(data)[2:-1]}
    loose |= {
        quopri.encodestring(data, quotetabs=True).decode(),
        once.replace("%", "="),
        once.replace("%", "+"),
    }
    return frozenset(one.lower() for one in loose), frozenset(_base64(data))


def _base64(data: bytes) -> Iterator[str]:
    """What base64 makes of it, wherever in a larger text it begins."""
    for before in range(3):
        inner = data[-before % 3 :]
        inner = inner[: len(inner) // 3 * 3]
        for encoded in (base64.b64encode(inner).decode(), base64.urlsafe_b64encode(inner).decode()):
            if len(encoded) >= LEAST:
                yield encoded


def leaks(words: Mapping[str, str], places: Mapping[str, str]) -> list[Leak]:
    """Which word shows where."""
    found = []
    for place, text in places.items():
        lowered = text.lower()
        for name, word in words.items():
            loose, exact = spellings(word)
            hits = [lowered.find(one) for one in loose if one in lowered]
            hits += [text.find(one) for one in exact if one in text]
            if hits:
                found.append(Leak(name, place, text[max(0, hits[0] - 60) : hits[0] + 60]))
    return found


async def tables(database: Database) -> tuple[dict[str, str], dict[str, str]]:
    """Every column of every table of ours as text: those that may hold people and words, and all others."""
    rows = await database.fetch(
        "SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables"
        " USING (table_schema, table_name) WHERE table_schema = 'pillarbox' AND table_type = 'BASE TABLE'"
    )
    kept, others = {}, {}
    for table, column in rows:
        values = await database.fetch(f'SELECT "{column}"::text FROM pillarbox."{table}"')
        text = "\n".join(value[0] for value in values if value[0] is not None)
        (kept if column in KEPT.get(table, ()) else others)[f"{table}.{column}"] = text
    return kept, others
