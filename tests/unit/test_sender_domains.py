"""Whoever may send from some domains only shows no reader a sender in another one, whatever the raw mail holds."""

from __future__ import annotations

import email
from collections.abc import Iterator
from datetime import UTC, datetime
from email import policy
from email.header import decode_header, make_header
from email.utils import getaddresses
from uuid import UUID

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from tests.sender_headers import DOMAINS, UNCLEAR

from pillarbox import Mail
from pillarbox.accept.prepare import prepare_mail
from pillarbox.deliver.mime import compose
from pillarbox.errors import InvalidMail, NotAllowed
from pillarbox.model.access import Principal, Scope, Tenant
from pillarbox.model.message import Content, Message

NOW = datetime(2026, 11, 16, tzinfo=UTC)
TENANT = Tenant(id=1, name="shop", created_at=NOW)
KEY = Principal("key", "test", TENANT, frozenset({Scope.SEND}), sender_domains=("own.example",))
MESSAGE = Message(
    id=UUID(int=1), sender="a@own.example", to=("b@x.example",), subject="", created_at=NOW
)
POLICIES = (
    policy.default,
    policy.compat32,
    policy.SMTP,
    policy.SMTPUTF8,
    policy.strict,
    policy.HTTP,
)
SENDERS = ("from", "sender", "resent-from", "resent-sender")

LINE_ENDS = (
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n ",
    b"\n\t",
    b"\r\r\n",
    b"\x0b",
    b"\x0c",
    b"\x1e",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
)
PIECES = (
    *LINE_ENDS,
    b"From:", b"from :", b"Sender:", b"Resent-From:", b"Resent-Sender: ", b"X:", b"To:", b"Bcc:", b" ", b":", b"From ",
    b"a@own.example", b"<a@own.example>", b"ceo@other.example", b"<ceo@other.example>",
    b"@other.example", b"@", b".", b"other.example",
    b"=?utf-8?q?ceo=40other.example?=", b"=?utf-8?b?Y2VvQG90aGVyLmV4YW1wbGU=?=",
    b"=?utf-7?q?ceo+AEA-other.example?=", b"=?utf-8?q?",
    b"=40other.example", b"?=", b'"', b"(", b")", b"\\", b",", b";", b"Group:", b"\0", b"\xff", b"text",
)  # fmt: skip


def accepted(raw: bytes) -> bytes | None:
    """The mail as it leaves, or None if it is refused."""
    try:
        item = prepare_mail(
            KEY, Mail(sender="a@own.example", to="b@x.example", raw=raw), None, "http"
        )
    except (InvalidMail, NotAllowed):
        return None
    return compose(MESSAGE, Content(raw=item.row.raw))


def shown(composed: bytes) -> Iterator[str]:
    """Every sender's address that Python's parsers find, with encoded words decoded before and after parsing."""
    for how in POLICIES:
        parsed = email.message_from_bytes(composed, policy=how.clone(raise_on_defect=False))
        for name, value in parsed.raw_items():
            if name.strip().lower() in SENDERS:
                text = str(value)
                yield from (address for _, address in getaddresses([text]))
                yield from (address for _, address in getaddresses([_decoded(text)]))
        for name in SENDERS if isinstance(how, policy.EmailPolicy) else ():
            for header in parsed.get_all(name, ()):
                yield from (one.addr_spec for one in header.addresses)


def _decoded(text: str) -> str:
    try:
        return str(make_header(decode_header(text)))
    except (LookupError, ValueError, email.errors.HeaderParseError):
        return text


def no_foreign_sender(composed: bytes) -> None:
    for address in shown(composed):
        if "@" in address:
            assert address.rpartition("@")[2].strip() in ("own.example", ""), (address, composed)


@given(
    st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join),
    st.sampled_from([b"", b"From: A <a@own.example>\r\n"]),
)
@example(b"X: y\rFrom: ceo@other.example\r\n\r\n", b"")
@example(b"X: y\r\n\rFrom: ceo@other.example\r\n\r\n", b"")
def test_no_raw_mail_shows_a_foreign_sender(raw: bytes, before: bytes) -> None:
    composed = accepted(before + raw + b"\r\n\r\nFrom: body@other.example\r\n")
    event("refused" if composed is None else "accepted")
    if composed is not None:
        no_foreign_sender(composed)


@pytest.mark.parametrize("header", [*(header for header, _ in DOMAINS), *UNCLEAR])
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_headers_by_hand(header: bytes, end: bytes) -> None:
    for own in (b"x.example", b"y.example"):
        raw = header.replace(own, b"own.example").replace(b"\r\n", end) + end + end + b"Hello" + end
        composed = accepted(raw)
        if composed is not None:
            no_foreign_sender(composed)
            assert composed.endswith(raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join))
def test_mails_stored_with_bare_crs_get_no_field_by_them(raw: bytes) -> None:
    """Version 0.1.0 accepted them, having read lines at LF only: composing finds the same fields."""
    raw = b"From: a@own.example\r\n" + raw.replace(b"\0", b"") + b"\r\n\r\nbody\rmore\r\n"
    composed = compose(MESSAGE, Content(raw=raw))
    assert composed.count(b"\r") == composed.count(b"\n") == composed.count(b"\r\n")
    assert composed.endswith(b"body\r\nmore\r\n")
    lines = raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0].split(b"\n")
    before = sum(
        line[:7].strip().lower().startswith(b"sender:")
        for line in lines
        if line[:1] not in b" \t\r"
    )
    head = composed.partition(b"\r\n\r\n")[0]
    assert sum(line.lower().startswith(b"sender:") for line in head.split(b"\r\n")) <= before


def test_a_stored_bare_cr_is_a_blank() -> None:
    composed = compose(
        MESSAGE, Content(raw=b"X: y\rFrom: ceo@other.example\nDate: d\nMessage-ID: <m>\n\na\rb\n")
    )
    assert (
        composed == b"X: y From: ceo@other.example\r\nDate: d\r\nMessage-ID: <m>\r\n\r\na\r\nb\r\n"
    )


def test_bodies_take_any_line_end() -> None:
    for text in ("a\rb", "a\nb", "a\r\nb"):
        item = prepare_mail(
            KEY, Mail(sender="a@own.example", to="b@x.example", text=text, html=text), None, "http"
        )
        assert item.row.text == text
        assert b"a\r\nb\r\n" in compose(MESSAGE, Content(text=text))


@pytest.mark.parametrize(
    "sender",
    [
        "ceo@other.example <a@own.example>",
        '"ceo @ other.example" <a@own.example>',
        "ceo@other <a@own.example>",
    ],
)
def test_display_names_of_senders(sender: str) -> None:
    with pytest.raises(NotAllowed, match="may not send from this domain"):
        prepare_mail(KEY, Mail(sender=sender, to="b@x.example", text="x"), None, "http")


def test_a_bare_cr_is_refused_clearly() -> None:
    with pytest.raises(InvalidMail) as caught:
        prepare_mail(
            KEY, Mail(sender="a@own.example", to="b@x.example", raw=b"X: y\rz\n\n"), None, "http"
        )
    error = caught.value
    assert (error.code, error.field, error.hint) == (
        "bare_cr",
        "raw",
        "end each line with CR LF, or with LF",
    )
