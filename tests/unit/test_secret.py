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
