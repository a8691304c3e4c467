"""Texts for users are plain English: a list of words and phrases that none of them contains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from tests.unit.user_texts import texts

from pillarbox.cli.main import root

# The word or phrase, and what to write instead.
BANNED = {
    r"whoever|whomever|whom|whose(?= is)": "name the role: the caller, the client, the operator",
    r"who asks|who is asking|those who": "name the role: the caller, the client",
    r"lest": "so that … not",
    r"anew": "again",
    r"nobody|no one": "name the role: no process, no client; or use the passive",
    r"none of": "no … of; not any of",
    r"ours|of ours": "of this installation; Pillarbox's",
    r"told|tells|said": "reported, received, sent, stated",
    r"octets?": "bytes",
    r"doors?|doorkeeper": "HTTP and SMTP; the entrance's name",
    r"crew|roster|vitals|journeys?|chores?|twins?": "the conventional term",
    r"no more\b(?! than)": "disable, stop; at most; no longer",
    r"of another kind": "unsupported; of a different type",
    r"(?:is|are|was|were|be) away": "unavailable",
    r"(?:is|are) well|is not well": "healthy; unhealthy",
    r"no such thing": "not found",
    r"how (?:it|they) (?:does?|fares?)": "its status",
    r"what became of": "the outcome of; the result of",
    r"takes? over from": "replaces",
    r"shall|thereof|hence|whence|hitherto|albeit|amiss": "modern, plain words",
    r"for good": "permanently",
}
PATTERN = re.compile(rf"(?i)(?<![\w-])(?:{'|'.join(BANNED)})(?![\w-])")


@cache
def findings() -> list[str]:
    """Where each was found, with the words around it."""
    found = []
    for source, line, text in texts():
        for match in PATTERN.finditer(text):
            start, end = max(0, match.start() - 30), match.end() + 30
            found.append(f"{source}:{line}: …{' '.join(text[start:end].split())}…")
    return found


def test_texts_for_users_contain_no_banned_words() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("text", "is_banned"),
    [
        ("The database is away", True),
        ("Whoever asks closes it", True),
        ("at most 998 octets", True),
        ("Use a provider no more", True),
        ("no more than 100 recipients", False),
        ("The database is unavailable", False),
        ("a well-known name, an aforesaid one", False),
    ],
)
def test_words_are_found_whole(text: str, is_banned: bool) -> None:
    assert bool(PATTERN.search(text)) == is_banned


# Commands whose help begins with their own name.
VERBS = frozenset(
    {"list", "show", "add", "enable", "disable", "remove", "revoke", "change", "test"}
)


def commands(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """The path and the help of every command, without groups."""
    children = getattr(command, "commands", {})
    if not children:
        yield path, command.help or ""
    for name, child in children.items():
        yield from commands(child, f"{path} {name}")


def test_help_begins_with_the_standard_verb() -> None:
    """`pillarbox provider disable` is "Disable …", as users expect from other programs."""
    wrong = []
    for path, help in commands(typer.main.get_command(root), "pillarbox"):
        verb = path.rpartition(" ")[2]
        if verb in VERBS and not help.strip().lower().startswith(verb):
            wrong.append(path)
    assert wrong == []
