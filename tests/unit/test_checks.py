"""Python's checks alone: what SQL cannot express, what they say, and what they cost."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pillarbox import Attachment, InvalidMail, Mail
from pillarbox.accept.checks import check
from pillarbox.accept.statements import call_for, calls_for


def mail(**fields: Any) -> Mail:
    defaults = {
        "sender": "Shop <shop@example.com>",
        "to": "user@example.net",
        "subject": "Hi",
        "text": "Body",
    }
    return Mail(**(defaults | fields))


def refused(**fields: Any) -> InvalidMail:
    with pytest.raises(InvalidMail) as caught:
        check(mail(**fields))
    return caught.value


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = refused(to="user@")
    assert (error.code, error.field, error.hint) == ("bad_address", "to", "write name@domain")
    assert str(error) == "to: not a legal e-mail address (write name@domain)"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sender": None},
        {"to": ["A <a@b.example>", "ünal@exämple.example"], "cc": ("c@d",), "bcc": "e@f"},
        {"cc": None, "tags": None, "reply_to": None, "headers": None, "attachments": None},
        {"text": None, "html": "", "subject": None},
        {"text": None, "raw": bytearray(b"x")},
        {"send_at": datetime.now(UTC), "expires_at": datetime.now(UTC) + timedelta(days=1)},
        {"headers": {"X-Tab": "a\tb"}, "metadata": {"a": [1, None, {"b": "é"}]}, "tags": "one"},
        {"attachments": (Attachment("a", b""),)},
    ],
)
def test_good_mails_pass(fields: Any) -> None:
    check(mail(**fields))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sender": 5}, "sender"),
        ({"sender": b"a@b"}, "sender"),
        ({"tenant": None}, "tenant"),
        ({"class_": 5}, "class"),
        ({"to": {"a@b"}}, "to"),
        ({"to": b"a@b"}, "to"),
        ({"to": [b"a@b"]}, "to"),
        ({"cc": iter(["a@b"])}, "cc"),
        ({"text": b"x"}, "text"),
        ({"text": None, "raw": "x"}, "raw"),
        ({"headers": [("X-A", "b")]}, "headers"),
        ({"attachments": Attachment("a", b"")}, "attachments"),
        ({"attachments": [("a", b"")]}, "attachments"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"a": object()}}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 1.0}, "max_attempts"),
        ({"send_at": "tomorrow"}, "send_at"),
        ({"expires_at": 1_700_000_000}, "expires_at"),
    ],
)
def test_wrong_types_are_named(fields: Any, field: str) -> None:
    error = refused(**fields)
    assert (error.code, error.field) == ("bad_type", field)


def test_only_a_mail_is_a_mail() -> None:
    with pytest.raises(TypeError, match=r"expected a pillarbox.Mail, not dict"):
        check({"to": "a@b"})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["send_at", "expires_at"])
def test_times_need_a_zone(field: str) -> None:
    error = refused(**{field: datetime(2030, 1, 1)})
    assert (error.code, error.field) == ("naive_time", field)


HALF = "\ud800"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sender": f"{HALF} <a@b>"}, "sender"),
        ({"to": [f"{HALF}@b"]}, "to"),
        ({"subject": HALF}, "subject"),
        ({"text": HALF}, "text"),
        ({"html": HALF}, "html"),
        ({"headers": {"X-A": HALF}}, "headers"),
        ({"attachments": [Attachment(HALF, b"")]}, "attachments"),
        ({"kind": HALF}, "kind"),
        ({"tags": [HALF]}, "tags"),
        ({"metadata": {"a": HALF}}, "metadata"),
        ({"idempotency_key": HALF}, "idempotency_key"),
        ({"tenant": HALF}, "tenant"),
        ({"class_": HALF}, "class"),
    ],
)
def test_half_a_character_is_refused(fields: Any, field: str) -> None:
    error = refused(**fields)
    assert (error.code, error.field) == ("not_unicode", field)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sender": "a\0 <a@b>"}, "control_character"),
        ({"to": "a\0@b"}, "control_character"),
        ({"subject": "\0"}, "control_character"),
        ({"text": "a\0"}, "control_character"),
        ({"html": "\0"}, "control_character"),
        ({"headers": {"X-A": "\0"}}, "control_character"),
        ({"headers": {"X\0": "a"}}, "bad_header"),
        ({"tenant": "\0"}, "control_character"),
        ({"class_": "\0"}, "control_character"),
        ({"kind": "\0"}, "bad_label"),
        ({"tags": "\0"}, "bad_label"),
        ({"idempotency_key": "\0"}, "bad_key"),
        ({"attachments": [Attachment("a\0", b"")]}, "bad_attachment"),
        ({"metadata": {"a": "\0"}}, "control_character"),
        ({"metadata": {"a\\\0": 1}}, "control_character"),
    ],
)
def test_nul_is_refused_everywhere(fields: Any, code: str) -> None:
    assert refused(**fields).code == code


def test_a_backslash_before_zeros_is_not_nul() -> None:
    check(mail(metadata={"a": "\\u0000"}))


def test_repr_hides_bodies() -> None:
    shown = repr(mail(text="SECRET", html="SECRET", attachments=[Attachment("a", b"SECRET")]))
    assert "SECRET" not in shown
    assert "SECRET" not in repr(Mail(raw=b"SECRET"))


def test_what_is_left_out_is_not_sent() -> None:
    assert call_for(mail()).names == ("sender", "subject", "text", "recipient")
    assert call_for(mail(to=["a@x.example", "b@x.example"])).names == (
        "sender",
        "to",
        "subject",
        "text",
    )
    ((first, call),) = calls_for([mail(), mail()])
    assert (first, call.names) == (0, ("mails", "texts"))


def test_importing_pillarbox_is_light() -> None:
    heavy = (
        "asyncpg",
        "psycopg",
        "sqlalchemy",
        "starlette",
        "typer",
        "rich",
        "uvicorn",
        "aiosmtplib",
        "cryptography",
    )
    program = f"import sys, pillarbox; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_no_pattern_backtracks_without_end() -> None:
    """One that did would not come back in a lifetime; there is nothing to time."""
    awkward = (
        "a." * 490,
        '"' + "\\a" * 490,
        "a@" + "a-" * 490,
        "<" * 990 + ">",
        "a@[IPv6:" + ":" * 900,
    )
    for address in awkward:
        refused(to=address)
    for type_ in ("a/b" + " " * 250, "a/b" + ";a=b" * 60 + ";", 'a/b;a="' + " " * 240):
        refused(attachments=[Attachment("a", b"", type_)])
