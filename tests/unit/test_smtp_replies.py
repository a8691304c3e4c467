"""SMTP replies: split from bytes, and put into our words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.deliver.transports.smtp_replies import (
    MAX_REPLY,
    MAX_TEXT,
    SmtpStage,
    acceptance,
    can_become_reply,
    classify,
    queue_id,
    refusal,
    split_replies,
    text_of,
)
from pillarbox.model.outcome import Reason, Verdict


def test_splits_whole_replies_and_keeps_the_rest() -> None:
    data = b"250-one\r\n250 two\r\n354 go\r\n250\r\n55"
    assert split_replies(data) == ([b"250-one\r\n250 two\r\n", b"354 go\r\n", b"250\r\n"], b"55")


@given(
    st.lists(
        st.sampled_from([b"250 ok\r\n", b"250-a\r\n250-b\r\n250 c\r\n", b"354 go\n", b"421\r\n"])
    ),
    st.data(),
)
def test_chunks_do_not_matter(replies: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(replies)
    cut = data.draw(st.integers(0, len(wire)))
    first, rest = split_replies(wire[:cut])
    assert not rest or can_become_reply(rest)
    second, nothing = split_replies(rest + wire[cut:])
    assert (first + second, nothing) == (replies, b"")


@pytest.mark.parametrize(
    "rest",
    [
        b"2",
        b"25",
        b"250",
        b"250 ",
        b"250-x",
        b"250-x\r\n",
        b"250-x\r\n2",
        b"250-x\r\n250 y",
        b"250\r",
    ],
)
def test_beginnings_of_replies(rest: bytes) -> None:
    assert can_become_reply(rest)


@pytest.mark.parametrize(
    "rest",
    [
        b"HTTP/1.1 400\r\n", b"\x00", b"\r\n", b" 250 ok\r\n", b"25x", b"2500 ok\r\n", b"150 x\r\n", b"650 x",
        b"250-a\r\n550 b\r\n", b"250-a\r\n55", b"250-a\r\nhello", b"25\r\n", b"250 " + b"x" * MAX_REPLY,
    ],
)  # fmt: skip
def test_what_never_becomes_a_reply(rest: bytes) -> None:
    assert split_replies(rest) == ([], rest)
    assert not can_become_reply(rest)


def test_text_is_one_printable_line() -> None:
    assert (
        text_of(b"550-5.1.1 no\r\n550 5.1.1 such\x00 \xff user\r\n")
        == "5.1.1 no 5.1.1 such� � user"
    )
    assert len(text_of(b"550 " + b"x" * 5000 + b"\r\n")) == MAX_TEXT


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("2.0.0 Ok: queued as 4B1C2D3E4F", "4B1C2D3E4F"),
        ("Ok: queued as mNPzLd2xT-aTA5c9E", "mNPzLd2xT-aTA5c9E"),
        ("2.0.0 Ok: queued as 4B1C2D (thanks)", "4B1C2D"),
        ("OK id=1rDUPi-000Abc-2x", "1rDUPi-000Abc-2x"),
        ("2.0.0 OK 1700000000 d9443c01a7336-1cc5f5sm1.7 - gsmtp", "d9443c01a7336-1cc5f5sm1.7"),
        ("2.0.0 OK d9443c01a7336-1cc5f5 - gsmtp", "d9443c01a7336-1cc5f5"),
        ("2.0.0 3AG1x2 Message accepted for delivery", "3AG1x2"),
        ("2.6.0 <abc@host> [InternalId=1] Queued mail for delivery", "abc@host"),
        ("Ok 0100018c0f2a1b2c-1111-2222-000000", "0100018c0f2a1b2c-1111-2222-000000"),
        ("2.0.0 OK", None),
        ("Great success", None),
    ],
)
def test_names_of_queued_mails(text: str, name: str | None) -> None:
    assert queue_id(text) == name
    outcome = acceptance(b"250 " + text.encode() + b"\r\n")
    assert (outcome.verdict, outcome.code, outcome.text) == (Verdict.ACCEPTED, 250, text)
    assert outcome.provider_message_id == name


D, R = Verdict.DEFERRED, Verdict.REJECTED


@pytest.mark.req("REQ-QUEUE-U003")
@pytest.mark.req("REQ-QUEUE-E005")
@pytest.mark.req("REQ-QUEUE-N002")
@pytest.mark.parametrize(
    ("stage", "reply", "verdict", "reason"),
    [
        # enhanced codes
        (SmtpStage.RCPT, "550 5.1.1 nobody", R, Reason.INVALID_RECIPIENT),
        (SmtpStage.RCPT, "450 4.1.1 not yet known", D, Reason.INVALID_RECIPIENT),
        (SmtpStage.RCPT, "556 5.1.10 null MX", R, Reason.INVALID_RECIPIENT),
        (SmtpStage.MAIL, "553 5.1.7 bad sender", R, Reason.BLOCKED_SENDER),
        (SmtpStage.RCPT, "452 4.2.2 later", D, Reason.MAILBOX_FULL),
        (SmtpStage.RCPT, "552 5.2.2 never", R, Reason.MAILBOX_FULL),
        (SmtpStage.RCPT, "550 5.2.1 closed", R, Reason.INVALID_RECIPIENT),
        (SmtpStage.MAIL, "552 5.3.4 no", R, Reason.TOO_BIG),
        (SmtpStage.DOT, "552 5.2.3 no", R, Reason.TOO_BIG),
        (SmtpStage.RCPT, "452 4.5.3 enough", D, Reason.RATE_LIMITED),
        (SmtpStage.MAIL, "553 5.6.7 needs more", R, Reason.UNSUPPORTED),
        (SmtpStage.DOT, "550 5.7.1 no", R, Reason.POLICY),
        (SmtpStage.DOT, "550 5.7.26 unauthenticated", R, Reason.POLICY),
        (SmtpStage.MAIL, "550 5.7.60 no", R, Reason.BLOCKED_SENDER),
        (SmtpStage.DOT, "421 4.7.28 slow down", D, Reason.RATE_LIMITED),
        (SmtpStage.MAIL, "421 4.7.0 bye", D, Reason.RATE_LIMITED),
        (SmtpStage.MAIL, "421 4.3.2 shutting down", D, Reason.UNAVAILABLE),
        # words, where the enhanced code is vague or missing
        (SmtpStage.RCPT, "450 4.7.1 Greylisted, see the manual", D, Reason.GREYLISTED),
        (SmtpStage.RCPT, "451 4.7.0 graylisting in action", D, Reason.GREYLISTED),
        (SmtpStage.RCPT, "450 4.7.1 rate limit exceeded", D, Reason.RATE_LIMITED),
        (
            SmtpStage.RCPT,
            "450 4.2.1 The user is receiving mail too quickly",
            D,
            Reason.RATE_LIMITED,
        ),
        (SmtpStage.MAIL, "421 Too many connections from your host", D, Reason.RATE_LIMITED),
        (SmtpStage.DOT, "550 5.7.1 Message rejected as spam", R, Reason.POLICY),
        (
            SmtpStage.MAIL,
            "554 5.7.1 Service unavailable; blocked using zen.spamhaus.org",
            R,
            Reason.BLOCKED_SENDER,
        ),
        (
            SmtpStage.RCPT,
            "550 5.7.1 Sender address rejected: not owned by user",
            R,
            Reason.BLOCKED_SENDER,
        ),
        (SmtpStage.RCPT, "550 5.0.0 User unknown", R, Reason.INVALID_RECIPIENT),
        (SmtpStage.DOT, "554 No such mailbox here", R, Reason.INVALID_RECIPIENT),
        (SmtpStage.RCPT, "550 Mailbox is full", R, Reason.MAILBOX_FULL),
        (SmtpStage.DOT, "554 Message is too large", R, Reason.TOO_BIG),
        # bare codes
        (SmtpStage.RCPT, "550 no", R, Reason.INVALID_RECIPIENT),
        (SmtpStage.RCPT, "552 no", R, Reason.MAILBOX_FULL),
        (SmtpStage.DOT, "552 no", R, Reason.TOO_BIG),
        (SmtpStage.MAIL, "553 no", R, Reason.BLOCKED_SENDER),
        # nothing better to say
        (SmtpStage.DOT, "451 hm", D, Reason.UNAVAILABLE),
        (SmtpStage.DOT, "451 4.3.0 hm", D, Reason.UNAVAILABLE),
        (SmtpStage.DOT, "554 hm", R, Reason.REFUSED),
        (SmtpStage.DOT, "554 5.5.0 hm", R, Reason.REFUSED),
        # trouble of ours, not of the mail
        (SmtpStage.MAIL, "530 5.7.0 Authentication required", D, Reason.CREDENTIAL),
        (SmtpStage.MAIL, "535 5.7.8 bad", D, Reason.CREDENTIAL),
        (SmtpStage.MAIL, "534 5.7.9 too weak", D, Reason.CREDENTIAL),
        (SmtpStage.MAIL, "538 5.7.11 in clear", D, Reason.CREDENTIAL),
        (SmtpStage.MAIL, "530 5.7.0 Must issue a STARTTLS command first", D, Reason.TLS),
        (SmtpStage.MAIL, "550 5.7.1 authentication required", D, Reason.CREDENTIAL),
        (SmtpStage.RCPT, "552 too many recipients", D, Reason.RATE_LIMITED),  # RFC 5321 4.5.3.1.10
        (SmtpStage.CONNECT, "554 go away", D, Reason.REFUSED),
        (SmtpStage.CONNECT, "421 4.7.0 later", D, Reason.RATE_LIMITED),
    ],
)
def test_refusals_in_our_words(
    stage: SmtpStage, reply: str, verdict: Verdict, reason: Reason
) -> None:
    outcome = refusal(reply.encode() + b"\r\n", stage)
    assert (outcome.verdict, outcome.reason) == (verdict, reason)
    assert (outcome.code, outcome.text) == (int(reply[:3]), reply[4:])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4.7.1 Greylisted, try again in 300 seconds", 300),
        ("4.7.1 delayed 5 minutes", 300),
        ("please wait 90s", 90),
        ("retry after 2 min", 120),
        ("try again in 99999 seconds", 3600),
        ("try again later", None),
        ("4.7.0 see rfc 2821", None),
    ],
)
def test_how_long_to_wait(text: str, seconds: float | None) -> None:
    assert classify(450, text, SmtpStage.RCPT).retry_after == seconds


@given(st.integers(400, 599), st.text(), st.sampled_from(SmtpStage))
def test_every_refusal_has_a_reason(code: int, text: str, stage: SmtpStage) -> None:
    outcome = classify(code, text, stage)
    assert outcome.reason is not None
    assert outcome.verdict in (D, R)
    assert code >= 500 or outcome.verdict is D
