"""Bounce mails and complaints of many servers, understood; and hostile ones, survived."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import reports
from tests.unit.reports import ADA, MESSAGE

from pillarbox.model import return_path
from pillarbox.track.bounce_reports import NotAReport, parse
from pillarbox.track.feedback.base import FeedbackEvent
from pillarbox.track.mime_parts import LARGEST

KEY = return_path.derive_key(b"installation")
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def heard(mail: bytes) -> list[FeedbackEvent]:
    return parse(mail, KEY, NOW)


@pytest.mark.parametrize(
    ("name", "kind", "hard", "reason"),
    [
        ("POSTFIX", "bounced", True, "invalid_recipient"),
        ("POSTFIX_DELAYED", "deferred", False, "unavailable"),
        ("POSTFIX_DELIVERED", "delivered", False, None),
        ("POSTFIX_FULL", "bounced", False, "mailbox_full"),
        ("EXIM", "bounced", True, "invalid_recipient"),
        ("EXCHANGE", "bounced", True, "invalid_recipient"),
        ("GMAIL", "bounced", True, "invalid_recipient"),
        ("BASE64", "bounced", True, "invalid_recipient"),
        ("ARF", "complained", True, None),
        ("ARF_OPT_OUT", "unsubscribed", True, None),
    ],
)
def test_what_servers_write_is_understood(
    name: str, kind: str, hard: bool, reason: str | None
) -> None:
    [one] = heard(getattr(reports, name))
    assert (one.kind, one.hard, one.reason, one.message_id) == (kind, hard, reason, MESSAGE)
    assert one.recipient is not None
    assert one.recipient.lower() == ADA


@pytest.mark.parametrize("name", ["EXIM_OLD", "QMAIL"])
def test_forms_from_before_are_understood(name: str) -> None:
    ada, bob = heard(getattr(reports, name))
    assert (ada.recipient, ada.hard, ada.reason) == (ADA, True, "invalid_recipient")
    assert (bob.recipient, bob.hard, bob.reason) == ("bob@mail.example", False, "mailbox_full")
    assert ada.message_id == bob.message_id == MESSAGE
    assert ada.event_id != bob.event_id


def test_what_the_server_said_is_told() -> None:
    [one] = heard(reports.POSTFIX)
    assert one.text == f"5.1.1 smtp; 550 5.1.1 <{ADA}>: Recipient address rejected: User unknown"
    assert one.raw["report"] == "dsn"
    assert one.raw["status"] == "5.1.1"
    [one] = heard(reports.QMAIL)[:1]
    assert "user unknown" in str(one.text)


def test_the_time_is_that_of_the_last_attempt_or_of_the_report() -> None:
    assert heard(reports.GMAIL)[0].at == datetime(2026, 11, 15, 10, 0, 5, tzinfo=UTC)
    assert heard(reports.POSTFIX)[0].at == datetime(2026, 11, 15, 10, 0, 5, tzinfo=UTC)
    assert heard(reports.BASE64)[0].at == NOW


def test_an_address_in_utf8_is_read() -> None:
    [one] = heard(reports.SMTPUTF8)
    assert (one.recipient, one.message_id) == ("jørn@bücher.example", MESSAGE)


def test_line_ends_do_not_matter() -> None:
    for mail in (reports.POSTFIX, reports.EXIM_OLD, reports.QMAIL, reports.ARF):
        assert [(one.kind, one.recipient) for one in heard(mail.replace(b"\r\n", b"\n"))] == [
            (one.kind, one.recipient) for one in heard(mail)
        ]


def test_a_complaint_may_leave_the_recipient_out() -> None:
    [one] = heard(reports.ARF_REDACTED)
    assert (one.kind, one.recipient, one.message_id) == ("complained", None, MESSAGE)


@pytest.mark.parametrize("name", ["ARF_NOT_SPAM", "AUTO_REPLY"])
def test_what_is_no_report_is_refused(name: str) -> None:
    with pytest.raises(NotAReport):
        heard(getattr(reports, name))


def test_the_return_path_names_the_message() -> None:
    other = uuid4()
    address = return_path.make(other, "bounces.example.com", KEY).encode()
    [one] = heard(
        reports.POSTFIX.replace(b"To: sender@shop.example", b"To: <" + address.upper() + b">")
    )
    assert one.message_id == other
    [one] = heard(
        reports.ARF.replace(
            b"Original-Mail-From: <sender@shop.example>", b"Original-Mail-From: <" + address + b">"
        )
    )
    assert one.message_id == other


def test_a_forged_return_path_names_nothing() -> None:
    address = return_path.make(uuid4(), "bounces.example.com", b"another key").encode()
    [one] = heard(reports.POSTFIX.replace(b"To: sender@shop.example", b"To: <" + address + b">"))
    assert one.message_id == MESSAGE


def test_the_same_report_has_the_same_id() -> None:
    assert heard(reports.POSTFIX)[0].event_id == heard(reports.POSTFIX)[0].event_id
    assert heard(reports.POSTFIX)[0].event_id != heard(reports.POSTFIX_FULL)[0].event_id


# --- hostile ones


def nested(depth: int) -> bytes:
    head = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(depth)
    )
    return head + reports.POSTFIX


STATUS = (
    b"Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\n"
)
GROUP = b"Final-Recipient: rfc822; a@b.example\r\nAction: failed\r\n\r\n"
HOSTILE = {
    "deep": nested(20_000),
    "many parts": b"Content-Type: multipart/report; boundary=b\n\n" + b"--b\n\nx\n" * 200_000,
    "many recipients": reports.POSTFIX.replace(b"Remote-MTA: dns; mx.mail.example\r\n", b"\r\n" + GROUP * 50_000),
    "long header": b"To: " + b"a@b.example, " * 200_000 + b"\n\nx",
    "many headers": b"X: y\n" * 300_000 + b"\nx",
    "blanks": b"X:" + b" " * 2_000_000 + b"\n" + b" \t" * 500_000 + b"\n\nx",
    "folds": b"X: y\n" + b" \n" * 500_000,
    "dashes": b"Content-Type: text/plain\n\n" + b"-" * 2_000_000,
    "prose": b"Content-Type: text/plain\n\nHi. This is\n\n" + b"<a@b.example>:\nx\n\n" * 100_000,
    "empty boundary": b'Content-Type: multipart/report; boundary=""\n\n--\n--\n',
    "newlines": b"\n" * 2_000_000,
    "no newline": b"x" * 2_000_000,
    "failed": b"X-Failed-Recipients: " + b"a@b.example," * 5_000 + b"\n\n" + b"a@b.example" * 100_000,
    "at signs": STATUS + b"Action: failed\nFinal-Recipient: rfc822;" + b"a" * 60_000 + b"@" * 3000 + b"\n--b--",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_mails_are_bounded_work(name: str) -> None:
    started = time.process_time()
    with suppress(NotAReport):
        assert len(heard(HOSTILE[name])) <= 100
    assert time.process_time() - started < 2


def test_a_mail_that_is_too_large_is_refused() -> None:
    with pytest.raises(NotAReport, match="too large"):
        heard(b"x" * (LARGEST + 1))


CORPUS = [value for value in vars(reports).values() if isinstance(value, bytes)]


@given(st.sampled_from(CORPUS), st.data())
def test_damaged_reports_are_read_or_refused(mail: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(mail)))
    end = data.draw(st.integers(start, min(len(mail), start + 200)))
    with suppress(NotAReport):
        heard(mail[:start] + data.draw(st.binary(max_size=20)) + mail[end:])


@given(st.binary(max_size=2000))
def test_anything_is_read_or_refused(mail: bytes) -> None:
    with suppress(NotAReport):
        heard(mail)
