"""The cheap look at the header of a mail that came by SMTP, and the line that is put before it."""

from __future__ import annotations

import time
from contextlib import suppress
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sender_headers import DOMAINS, UNCLEAR

from pillarbox.accept.headers import sender_domains, subject_of
from pillarbox.accept.smtp.actions import SubmittedMail
from pillarbox.accept.smtp.submission import received_value
from pillarbox.errors import InvalidMail


@pytest.mark.parametrize(
    ("header", "subject"),
    [
        (b"Subject: plain", "plain"),
        (b"Subject:", ""),
        (b"From: x@y.example\r\nsubject :folded\r\n  over lines", "folded  over lines"),
        (b"From: x@y.example\r\nX: Subject: no\r\nX-Subject: no\r\n Subject: no", ""),
        (b"Subject: first\r\nSubject: second", "first"),
        ("Subject: schön".encode(), "schön"),
        (b"Subject: =?utf-8?b?8J+YgA==?= =?iso-8859-1?q?=E4?=", "😀ä"),
        (b"Subject: =?nonsense?q?=E4?=", "=?nonsense?q?=E4?="),
        (b"Subject: =?utf-8?b?A?=", "=?utf-8?b?A?="),
        (b"Subject: =?utf-7?q?+2AA-?=", "?"),
        (b"Subject: " + b"x" * 3000, "x" * 998),
        (("Subject: " + "ä" * 800).encode(), "ä" * 499),
        (b"Subject: a\x07\tb", "a b"),
        (b"Subject: =?utf-8?q?a=0D=0AX=3A_b?=", "a X: b"),
    ],
)
def test_subjects(header: bytes, subject: str) -> None:
    assert subject_of(b"Date: today\r\n" + header + b"\r\n\r\nSubject: not this\r\n") == subject
    assert subject_of(header) == subject


@given(st.binary(max_size=400), st.booleans())
def test_any_header_has_a_subject_that_can_be_stored(value: bytes, encoded: bool) -> None:
    subject = subject_of(b"Subject: " + (b"=?utf-8?b?" if encoded else b"") + value + b"?=\r\n\r\n")
    assert len(subject.encode()) <= 998
    assert not any(ord(one) < 32 or ord(one) == 127 for one in subject)


@pytest.mark.parametrize(("header", "domains"), DOMAINS)
def test_domains_of_senders(header: bytes, domains: set[str]) -> None:
    found = sender_domains(header + b"\r\n\r\nFrom: not@this.example\r\n")
    assert set(found) == domains
    assert len(found) == len(domains)


@pytest.mark.parametrize("header", UNCLEAR)
def test_senders_about_which_readers_disagree(header: bytes) -> None:
    with pytest.raises(InvalidMail) as caught:
        sender_domains(header + b"\r\n\r\n")
    assert (caught.value.code, caught.value.field) == ("bad_header", "raw")
    assert caught.value.hint


@pytest.mark.parametrize(
    "octets", [b"a", b"@", b"a@", b"<", b" ", b"\r\n ", b"=?", b"=?utf-8?q?", b'"', b"\\"]
)
def test_no_header_takes_long(octets: bytes) -> None:
    """A hundred kilobytes of anything: linear work, where going back and forth would take minutes."""
    value = octets * (100_000 // len(octets))
    began = time.process_time()  # not of the clock, which runs on while others compute
    with suppress(InvalidMail):
        sender_domains(b"From: " + value + b"\r\n\r\n")
    subject_of(b"Subject: " + value + b"\r\n\r\n")
    assert time.process_time() - began < 5


def test_received() -> None:
    mail = SubmittedMail("a@x.example", ["secret@y.example"], b"", "ESMTPSA", "client.example")
    value = received_value(mail, "2001:db8::1", "mail.example", 1_800_000_000)
    begin, _, date = value.partition("; ")
    assert begin == "from client.example ([IPv6:2001:db8::1]) by mail.example with ESMTPSA"
    assert parsedate_to_datetime(date).timestamp() == 1_800_000_000
