"""A secret shows itself nowhere, and is masked however a server spells it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from pillarbox.model.secret import Secret, masked

WORD = 'Zaun/koenig 47+11 "hunter"'


@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.parametrize(
    "said",
    [
        WORD, WORD.lower(), quote(WORD), quote(WORD, safe=""), quote_plus(WORD), WORD.encode().hex(),
        WORD.encode().hex().upper(), json.dumps(WORD)[1:-1], json.dumps(WORD)[1:-1].replace("/", "\\/"),
        base64.b64encode(WORD.encode()).decode(), base64.urlsafe_b64encode(WORD.encode()).decode(),
        base64.b64encode(f"api:{WORD}".encode()).decode(), base64.b64encode(f"\0api\0{WORD}".encode()).decode(),
    ],
)  # fmt: skip
def test_what_a_server_repeats_is_masked(said: str) -> None:
    assert masked(f"535 <{said}> is wrong", Secret(WORD), "api") == "535 <****> is wrong"


def test_other_words_stay() -> None:
    assert masked("535 hunter is wrong", Secret(WORD), "api") == "535 hunter is wrong"


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("a", "host mail.a.example said ****: bad password ****. a-b data"),
        ("mail", "host mail.a.example said a: bad password a. a-b data"),
        ("bad", "host mail.a.example said a: **** password a. a-b data"),
        ("passwor", "host mail.a.example said a: bad ****d a. a-b data"),
    ],
)
def test_a_short_secret_is_masked_only_where_it_stands_alone(password: str, said: str) -> None:
    """A password of one letter must not make host names and words unreadable."""
    assert masked("host mail.a.example said a: bad password a. a-b data", Secret(password)) == said
