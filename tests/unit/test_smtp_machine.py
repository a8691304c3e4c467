"""The SMTP state machine: commands, their order, their answers."""

from __future__ import annotations

from base64 import b64encode

import pytest
from tests.unit.smtp_sessions import ENVELOPE, Open, Session, mail, opened

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.actions import Submit
from pillarbox.accept.smtp.machine import Machine
from pillarbox.accept.smtp.rules import (
    MAX_AUTH_LINE,
    MAX_HELD,
    MAX_SKIPPED,
    MemoryBudget,
    SessionLimits,
)


def lines(said: bytes) -> set[str]:
    return {line[4:] for line in said.decode().splitlines()}


# --- a mail


def test_a_mail() -> None:
    session = opened()
    assert session.codes(b"MAIL FROM:<a@x.example>\r\n") == ["250 2.1.0"]
    assert session.codes(b"RCPT TO:<b@y.example>\r\n") == ["250 2.1.5"]
    assert session.codes(b"DATA\r\n") == ["354"]
    assert session.feed(b"Subject: x\r\n\r\nhello\r\n.\r\n") == b"250 2.0.0 accepted as 1\r\n"
    [mail] = session.mails
    assert (mail.sender, mail.recipients) == ("a@x.example", ["b@y.example"])
    assert mail.content == b"Subject: x\r\n\r\nhello\r\n"
    assert (mail.protocol, mail.greeted_as) == ("ESMTP", "client.example")
    assert session.codes(b"QUIT\r\n") == ["221 2.0.0"]
    assert session.closed


def test_pipelined_commands_are_answered_in_order_in_one_write() -> None:
    machine = Machine("mail.example", SessionLimits(), Open(refused={"c@y.example"}))
    [said] = machine.receive(
        b"EHLO x\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<c@y.example>\r\nRCPT TO:<b@y.example>\r\nDATA\r\n"
    )
    assert isinstance(said, bytes)
    assert [line[:3] for line in said.splitlines()][-4:] == [b"250", b"550", b"250", b"354"]


def test_what_is_pipelined_behind_a_mail_waits_for_its_answer() -> None:
    machine = Machine("mail.example", SessionLimits(), Open())
    actions = machine.receive(b"EHLO x\r\n" + mail() + b"NOOP\r\n" + mail())
    assert isinstance(actions[-1], Submit)
    assert machine.receive(b"RSET\r\n") == []
    answer = machine.submitted("one")
    assert (
        answer[0]
        == b"250 2.0.0 accepted as one\r\n250 2.0.0 OK\r\n"
        + replies.SENDER_OK
        + replies.RECIPIENT_OK
        + replies.GO_AHEAD
    )
    assert isinstance(answer[1], Submit)
    assert machine.submitted("two") == [b"250 2.0.0 accepted as two\r\n250 2.0.0 OK\r\n"]


def test_dots_are_taken_away() -> None:
    session = opened()
    session.feed(mail(b"..first\r\n\r\n..\r\n...x\r\na.b\r\n"))
    assert session.mails[0].content == b".first\r\n\r\n.\r\n..x\r\na.b\r\n"


def test_lower_case_and_blanks() -> None:
    session = opened()
    assert session.codes(b"mail from: <a@x.example> size=10 body=8bitmime\r\n") == ["250 2.1.0"]
    assert session.codes(b"Rcpt To: <b@y.example>\r\n") == ["250 2.1.5"]
    assert session.codes(b"data \r\n") == ["354"]


def test_an_odd_name_is_not_passed_on() -> None:
    session = Session(policy=Open())
    assert session.codes(b"EHLO (x)\x07\r\n")[-1][:3] == "250"
    session.feed(mail())
    assert session.mails[0].greeted_as == "unknown"


@pytest.mark.parametrize(
    ("argument", "address"),
    [
        (b"<@relay.example,@other.example:a@x.example>", "a@x.example"),
        (b'<"a > b"@x.example>', '"a > b"@x.example'),
        (b"<>", ""),
        ("<ä@x.example> SMTPUTF8".encode(), "ä@x.example"),
        (b"<a@x.example> AUTH=<> SIZE=0000000000010", "a@x.example"),
    ],
)
def test_paths(argument: bytes, address: str) -> None:
    session = opened()
    assert session.codes(b"MAIL FROM:" + argument + b"\r\n") == ["250 2.1.0"]
    assert session.machine.sender == address


def test_the_protocol_word() -> None:
    plain = Session(policy=Open())
    plain.feed(b"HELO x\r\n", mail())
    utf8 = opened()
    utf8.feed(
        "MAIL FROM:<ä@x.example> SMTPUTF8\r\nRCPT TO:<ö@y.example>\r\nDATA\r\nx\r\n.\r\n".encode()
    )
    assert [session.mails[0].protocol for session in (plain, utf8)] == ["SMTP", "UTF8SMTP"]
    assert utf8.mails[0].recipients == ["ö@y.example"]


def test_several_mails_in_one_session() -> None:
    session = opened()
    assert session.codes(mail() + mail() + b"RSET\r\n" + mail()).count("250 2.0.0") == 4
    assert len(session.mails) == 3


# --- order and syntax


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"MAIL FROM:<a@x.example>\r\nMAIL FROM:<a@x.example>\r\n", "503 5.5.1"),
        (b"RCPT TO:<b@y.example>\r\n", "503 5.5.1"),
        (b"DATA\r\n", "503 5.5.1"),
        (b"MAIL FROM:<a@x.example>\r\nDATA\r\n", "503 5.5.1"),
        (b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example>\r\nDATA now\r\n", "501 5.5.4"),
        (b"MAIL\r\n", "501 5.5.4"),
        (b"MAIL FROM:a@x.example\r\n", "553 5.1.7"),
        (b"MAIL FROM:<a@x.example\r\n", "553 5.1.7"),
        (b"MAIL FROM:<a b@x.example>\r\n", "553 5.1.7"),
        (b"MAIL FROM:<a@x.example>>\r\n", "553 5.1.7"),
        (b"MAIL FROM:<a@x.example>\rQUIT\r\n", "500 5.5.2"),
        (b"MAIL FROM:<a\0@x.example>\r\n", "553 5.1.7"),
        (b"MAIL FROM:<a@x.example> SIZE=x\r\n", "501 5.5.4"),
        (b"MAIL FROM:<a@x.example> SIZE=" + b"9" * 21 + b"\r\n", "501 5.5.4"),
        (b"MAIL FROM:<a@x.example> BODY=BINARYMIME\r\n", "501 5.5.4"),
        (b"MAIL FROM:<a@x.example> RET=FULL\r\n", "555 5.5.4"),
        (b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example> NOTIFY=NEVER\r\n", "555 5.5.4"),
        (b"MAIL FROM:<a@x.example> SMTPUTF8=1\r\n", "555 5.5.4"),
        ("MAIL FROM:<ä@x.example>\r\n".encode(), "553 5.6.7"),
        (b"MAIL FROM:<\xe4@x.example> SMTPUTF8\r\n", "501 5.5.2"),
        (b"MAIL FROM:<a@x.example>\r\n" + "RCPT TO:<ä@y.example>\r\n".encode(), "553 5.6.7"),
        (b"EHLO\r\n", "501 5.5.4"),
        (b"EHLO  \r\n", "501 5.5.4"),
        (b"FOO\r\n", "500 5.5.2"),
        (b"\r\n", "500 5.5.2"),
        (b"\xff\xfe\r\n", "500 5.5.2"),
        (b"NOOP\n", "500 5.5.2"),
        (b"\n", "500 5.5.2"),
        (b"EXPN list\r\n", "502 5.5.1"),
        (b"BDAT 5 LAST\r\n", "502 5.5.1"),
        (b"STARTTLS\r\n", "502 5.5.1"),
        (b"AUTH PLAIN\r\n", "503 5.5.1"),
        (b"VRFY someone\r\n", "252 2.5.0"),
        (b"HELP\r\n", "214 2.0.0"),
        (b"NOOP anything\r\n", "250 2.0.0"),
        (b"RSET\r\n", "250 2.0.0"),
    ],
)
def test_answers(said: bytes, code: str) -> None:
    assert opened().codes(said)[-1] == code


def test_nothing_before_ehlo() -> None:
    assert Session(policy=Open()).codes(b"MAIL FROM:<a@x.example>\r\n") == ["503 5.5.1"]


def test_ehlo_and_rset_end_a_mail() -> None:
    for command in (b"EHLO again\r\n", b"RSET\r\n"):
        session = opened()
        session.feed(b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example>\r\n", command)
        assert session.codes(b"DATA\r\n") == ["503 5.5.1"]


def test_after_a_refused_mail_the_session_goes_on() -> None:
    session = opened()
    session.answers = [replies.reply(451, "4.3.0", "later")]
    assert session.codes(mail() + mail()) == [
        "250 2.1.0",
        "250 2.1.5",
        "354",
        "451 4.3.0",
        "250 2.1.0",
        "250 2.1.5",
        "354",
        "250 2.0.0",
    ]


def test_what_ehlo_offers() -> None:
    plain, starttls = Session(policy=Open()), Session(starttls=True)
    assert lines(plain.feed(b"EHLO x\r\n")) == {
        "mail.example", "SIZE 10000000", "PIPELINING", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES"
    }  # fmt: skip
    assert "STARTTLS" in lines(starttls.feed(b"EHLO x\r\n"))
    assert "AUTH PLAIN LOGIN" not in lines(starttls.feed(b"EHLO x\r\n"))
    assert Session(policy=Open()).feed(b"HELO x\r\n") == b"250 mail.example\r\n"


def test_http_is_turned_away() -> None:
    session = Session(policy=Open())
    assert session.codes(
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1:1025\r\n\r\n" + b"EHLO x\r\n" + mail()
    ) == ["554 5.7.0"]
    assert session.closed
    assert session.mails == []


# --- TLS and logging in


def secure() -> Session:
    """A session over TLS on a listener where one must log in."""
    session = Session(starttls=True)
    session.feed(b"EHLO x\r\nSTARTTLS\r\n")
    session.machine.secured()
    session.feed(b"EHLO x\r\n")
    return session


def plain(text: str) -> bytes:
    return b64encode(text.encode())


def test_without_tls_there_is_no_mail_and_no_login() -> None:
    session = Session(starttls=True)
    session.feed(b"EHLO x\r\n")
    assert session.codes(b"MAIL FROM:<a@x.example>\r\n") == ["530 5.7.0"]
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0secret") + b"\r\n") == ["538 5.7.11"]
    assert session.logins == []


def test_after_starttls_everything_is_forgotten() -> None:
    session = Session(starttls=True, policy=Open())
    session.feed(b"EHLO x\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example>\r\n")
    assert session.codes(b"STARTTLS\r\n") == ["220 2.0.0"]
    assert session.upgrades == 1
    session.machine.secured()
    assert session.codes(b"DATA\r\n") == ["503 5.5.1"]
    assert session.codes(b"MAIL FROM:<a@x.example>\r\n") == ["503 5.5.1"]
    assert session.codes(b"EHLO x\r\nSTARTTLS\r\n")[-1] == "503 5.5.1"


@pytest.mark.parametrize("chunks", [(b"STARTTLS\r\nEHLO evil\r\n",), (b"STARTTLS\r\n", b"E")])
def test_what_follows_starttls_in_clear_ends_the_session(chunks: tuple[bytes, ...]) -> None:
    session = Session(starttls=True)
    assert session.codes(*chunks) == ["220 2.0.0"]
    assert session.closed


def test_starttls_takes_no_argument() -> None:
    assert Session(starttls=True).codes(b"STARTTLS now\r\n") == ["501 5.5.4"]


def test_login_is_needed() -> None:
    session = secure()
    assert session.codes(b"MAIL FROM:<a@x.example>\r\n") == ["530 5.7.0"]
    assert session.codes(mail()) == [
        "530 5.7.0",
        "503 5.5.1",
        "503 5.5.1",
        "500 5.5.2",
        "500 5.5.2",
        "500 5.5.2",
        "500 5.5.2",
    ]


@pytest.mark.parametrize(
    "dialogue",
    [
        [b"AUTH PLAIN " + plain("\0me\0secret")],
        [b"auth plain " + plain("me\0me\0secret")],
        [b"AUTH PLAIN", plain("\0me\0secret")],
        [b"AUTH LOGIN", plain("me"), plain("secret")],
        [b"AUTH LOGIN " + plain("me"), plain("secret")],
    ],
)
def test_logging_in(dialogue: list[bytes]) -> None:
    session = secure()
    assert "AUTH PLAIN LOGIN" in lines(session.feed(b"EHLO x\r\n"))
    for line in dialogue[:-1]:
        assert session.codes(line + b"\r\n") == ["334"]
    assert session.codes(dialogue[-1] + b"\r\n") == ["235 2.7.0"]
    assert "AUTH PLAIN LOGIN" not in lines(session.feed(b"EHLO x\r\n"))
    assert session.codes(b"AUTH PLAIN\r\n") == ["503 5.5.1"]
    session.feed(mail())
    assert session.mails[0].protocol == "ESMTPSA"


def test_a_login_without_tls_in_development() -> None:
    session = Session(policy=Open(), plain_login=True)
    offers = lines(session.feed(b"EHLO x\r\n"))
    assert "AUTH PLAIN LOGIN" in offers
    assert "STARTTLS" not in offers
    session.feed(mail())  # none is needed
    session.feed(b"MAIL FROM:<a@x.example>\r\n")
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0secret") + b"\r\n") == [
        "503 5.5.1"
    ]  # not within a mail
    session.feed(b"RSET\r\n")
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0wrong") + b"\r\n") == ["535 5.7.8"]
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0secret") + b"\r\n") == ["235 2.7.0"]
    assert "AUTH PLAIN LOGIN" not in lines(session.feed(b"EHLO x\r\n"))
    session.feed(mail())
    assert [one.protocol for one in session.mails] == ["ESMTP", "ESMTPA"]


def test_starttls_in_development_takes_logins_over_tls_only() -> None:
    session = Session(policy=Open(), starttls=True)
    offers = lines(session.feed(b"EHLO x\r\n"))
    assert "STARTTLS" in offers
    assert "AUTH PLAIN LOGIN" not in offers
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0secret") + b"\r\n") == ["538 5.7.11"]
    session.feed(b"STARTTLS\r\n")
    session.machine.secured()
    assert "AUTH PLAIN LOGIN" in lines(session.feed(b"EHLO x\r\n"))
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0secret") + b"\r\n") == ["235 2.7.0"]


def test_the_prompts_of_login() -> None:
    session = secure()
    assert session.feed(b"AUTH LOGIN\r\n") == b"334 VXNlcm5hbWU6\r\n"
    assert session.feed(plain("me") + b"\r\n") == b"334 UGFzc3dvcmQ6\r\n"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"AUTH PLAIN " + plain("\0me\0wrong") + b"\r\n", "535 5.7.8"),
        (b"AUTH PLAIN " + plain("other\0me\0secret") + b"\r\n", "501 5.5.2"),
        (b"AUTH PLAIN " + plain("me secret") + b"\r\n", "501 5.5.2"),
        (b"AUTH PLAIN " + plain("\0me\0secret\0more") + b"\r\n", "501 5.5.2"),
        (b"AUTH PLAIN !!!\r\n", "501 5.5.2"),
        (b"AUTH PLAIN " + b64encode(b"\0me\0\xff") + b"\r\n", "501 5.5.2"),
        (b"AUTH PLAIN =\r\n", "501 5.5.2"),
        (b"AUTH PLAIN\r\n*\r\n", "501 5.7.0"),
        (b"AUTH PLAIN\r\n\n", "500 5.5.2"),
        (b"AUTH CRAM-MD5\r\n", "504 5.5.4"),
        (b"AUTH\r\n", "504 5.5.4"),
        (b"AUTH PLAIN " + b"A" * MAX_AUTH_LINE + b"\r\n", "500 5.5.2"),
        (b"AUTH PLAIN\r\n" + b"A" * (MAX_AUTH_LINE + 1) + b"\r\n", "500 5.5.2"),
    ],
)
def test_failing_to_log_in(said: bytes, code: str) -> None:
    session = secure()
    assert session.codes(said)[-1] == code
    assert session.codes(b"MAIL FROM:<a@x.example>\r\n") == ["530 5.7.0"]


def test_a_long_login_fits() -> None:
    session = secure()
    assert session.codes(b"AUTH PLAIN " + plain("\0me\0" + "x" * 9000) + b"\r\n") == ["535 5.7.8"]


def test_no_greeting_no_login() -> None:
    session = Session(secure=True)
    assert session.codes(b"AUTH PLAIN\r\n") == ["503 5.5.1"]


def test_a_login_shows_no_password() -> None:
    session = secure()
    machine = session.machine
    [asked] = machine.receive(b"AUTH PLAIN " + plain("\0me\0hunter2") + b"\r\n")
    assert "hunter2" not in repr(asked)


# --- limits


def test_sizes() -> None:
    session = opened(SessionLimits(message=100))
    assert session.codes(b"MAIL FROM:<a@x.example> SIZE=101\r\n") == ["552 5.3.4"]
    assert session.codes(mail(b"x" * 98 + b"\r\n"))[-1] == "250 2.0.0"
    assert session.codes(mail(b"x" * 99 + b"\r\n"))[-1] == "552 5.3.4"
    assert (
        session.codes(mail(b"..\r\n" * 33))[-1] == "250 2.0.0"
    )  # 99 octets without the added dots
    assert session.codes(mail(b"x" * 390 + b"\r\n"))[-1] == "552 5.3.4"
    assert session.codes(mail(b"x" * 500 + b"\r\n"))[-1] == "552 5.3.4"
    assert session.closed


def test_a_permit_has_its_own_sizes() -> None:
    session = opened(SessionLimits(message=100), Open(max_message=50, max_recipients=1))
    assert "SIZE 50" in lines(session.feed(b"EHLO x\r\n"))
    assert session.codes(b"MAIL FROM:<a@x.example> SIZE=51\r\n") == ["552 5.3.4"]
    assert (
        session.codes(
            b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@y.example>\r\nRCPT TO:<c@y.example>\r\n"
        )[-1]
        == "452 4.5.3"
    )
    assert session.codes(b"DATA\r\n" + b"x" * 60 + b"\r\n.\r\n")[-1] == "552 5.3.4"


def test_too_many_recipients_are_no_errors() -> None:
    session = opened(SessionLimits(recipients=2, errors=3))
    session.feed(b"MAIL FROM:<a@x.example>\r\n")
    answers = session.codes(b"RCPT TO:<b@y.example>\r\n" * 10)
    assert answers == ["250 2.1.5"] * 2 + ["452 4.5.3"] * 8
    assert session.codes(b"DATA\r\nx\r\n.\r\n")[-1] == "250 2.0.0"


def test_too_many_errors() -> None:
    session = opened(SessionLimits(errors=3))
    assert session.codes(b"FOO\r\n" * 2 + mail() + b"FOO\r\n" * 9)[-4:] == ["500 5.5.2"] * 3 + [
        "421 4.7.0"
    ]
    assert session.closed


def test_too_many_commands() -> None:
    session = opened(SessionLimits(commands=10))
    assert session.codes(b"NOOP\r\n" * 20)[-2:] == ["250 2.0.0", "421 4.7.0"]
    assert session.closed


def test_too_many_messages() -> None:
    session = opened(SessionLimits(messages=2))
    assert session.codes(mail() * 3)[-1] == "421 4.7.0"
    assert session.closed
    assert len(session.mails) == 2


def test_long_lines() -> None:
    session = opened()
    assert session.codes(b"NOOP " + b"x" * 2042 + b"\r\n") == ["250 2.0.0"]
    assert session.codes(b"NOOP " + b"x" * 2043 + b"\r\nNOOP\r\n") == ["500 5.5.2", "250 2.0.0"]
    assert session.codes(b"x" * 10_000) == ["500 5.5.2"]
    assert session.codes(b"x" * 10_000, b"\r\nNOOP\r\n") == ["250 2.0.0"]
    assert session.codes(b"x" * (MAX_SKIPPED + 1)) == ["500 5.5.2"]
    assert session.closed


def test_room_is_shared_and_given_back() -> None:
    budget = MemoryBudget(1000)
    first, second = opened(budget=budget), opened(budget=budget)
    first.feed(ENVELOPE + b"x" * 700)
    assert second.codes(mail(b"x" * 400 + b"\r\n"))[-1] == "452 4.3.1"
    assert second.codes(ENVELOPE + b"x" * 400, b"x" * 400, b"\r\n.\r\n")[-1] == "452 4.3.1"
    assert second.codes(mail(b"x" * 200 + b"\r\n"))[-1] == "250 2.0.0"
    first.feed(b"\r\n.\r\n")
    assert budget.taken == 0
    first.feed(ENVELOPE + b"x" * 700)
    first.machine.forget()
    assert budget.taken == 0
    assert first.feed(b"\r\n.\r\nNOOP\r\n") == b""


def test_input_beyond_all_reason_while_waiting() -> None:
    machine = Machine("mail.example", SessionLimits(), Open())
    machine.receive(b"EHLO x\r\n" + mail())
    assert machine.waiting
    actions = machine.receive(b"x" * (MAX_HELD + 1))
    assert len(actions) == 1
    assert machine.closed
    assert machine.submitted("late") == []


# --- the content of mails


@pytest.mark.parametrize(
    "content",
    [
        b"a: b\r\n\r\nbare\nLF\r\n",
        b"a: b\r\n\r\nbare\rCR\r\n",
        b"a: b\r\n\r\nx\n.\nMAIL FROM:<evil@x.example>\r\n",
        b"a: b\r\n\r\nx\n.\r\nMAIL FROM:<evil@x.example>\r\n",
        b"a: b\r\n\r\nx\r.\r\nMAIL FROM:<evil@x.example>\r\n",
        b"a: b\r\n\r\nx\r.\rMAIL FROM:<evil@x.example>\r\n",
        b"a: b\r\n\r\nx\r\n.\nMAIL FROM:<evil@x.example>\r\n",
        b"a: b\r\n\r\nx\r\n.\rMAIL FROM:<evil@x.example>\r\n",
        b"a: b\r\n\r\nx\r\r\n",
        b"a: b\r\n\r\nx\0y\r\n",
        b"Subject: \xff\r\n\r\nx\r\n",
        b"",
    ],
)
def test_bad_content_is_refused_and_nothing_in_it_is_a_command(content: bytes) -> None:
    session = opened()
    assert session.codes(mail(content)) == ["250 2.1.0", "250 2.1.5", "354", "554 5.6.0"]
    assert session.mails == []
    assert session.codes(mail())[-1] == "250 2.0.0"


def test_good_content() -> None:
    session = opened()
    for content in (
        b"no header at all\r\n", b"\r\n", "Subject: ä\r\n\r\nx\r\n".encode(), b"a: b\r\n\r\n\xff\xfe\r\n",
        b"a: b\r\n\r\n" + b"x" * 60_000 + b"\r\n", b"a: b\r\n\r\n" + b"see a/b, c/d\r\n" * 200,
    ):  # fmt: skip
        assert session.codes(mail(content))[-1] == "250 2.0.0"
        assert session.mails[-1].content == content


def test_bounds_of_content() -> None:
    limits = SessionLimits(text_line=100, header=300, header_lines=10, nesting=3)
    nested = b"Content-Type: MULTIPART/mixed; boundary=x\r\n\r\n--x\r\n"
    for good, bad in (
        (b"a: b\r\n\r\n" + b"x" * 100 + b"\r\n", b"a: b\r\n\r\n" + b"x" * 101 + b"\r\n"),
        (
            b"\r\n" + b"x" * 100 + b"\r\n" + b"y" * 100 + b"\r\n",
            b"\r\n" + b"x" * 100 + b"\r\n" + b"y" * 101 + b"\r\n",
        ),
        (
            b"a: bbbbbbbbbbbbbbbbbbbbbbbbbb\r\n" * 8 + b"\r\nx\r\n",
            (b"a: " + b"b" * 60 + b"\r\n") * 5 + b"\r\nx\r\n",
        ),
        (b"a: b\r\n" * 9 + b"\r\nx\r\n", b"a: b\r\n" * 12 + b"\r\nx\r\n"),
        (nested * 3, nested * 4),
        (b"a: b\r\n\r\n", b"a: b\r\n\r\n" + b"Content-Type: message/rfc822\r\n\r\n" * 4),
    ):
        session = opened(limits)
        assert session.codes(mail(good))[-1] == "250 2.0.0", good
        assert session.codes(mail(bad))[-1] == "554 5.6.0", bad


# --- the end


def test_leaving() -> None:
    idle, storing, upgrading = opened(), opened(), Session(starttls=True)
    assert idle.machine.leave(replies.SHUTTING_DOWN)[0] == replies.SHUTTING_DOWN
    assert idle.machine.leave(replies.SHUTTING_DOWN) == []
    storing.machine.receive(mail())
    assert storing.machine.leave(replies.SHUTTING_DOWN) == []
    assert (
        storing.machine.submitted("one")[0]
        == b"250 2.0.0 accepted as one\r\n" + replies.SHUTTING_DOWN
    )
    upgrading.feed(b"STARTTLS\r\n")
    assert len(upgrading.machine.leave(replies.SHUTTING_DOWN)) == 1


def test_a_failure_may_end_the_session() -> None:
    session = opened()
    session.answers = [replies.reply(421, "4.7.0", "gone")]
    assert session.codes(mail())[-1] == "421 4.7.0"
    assert session.closed


def test_refusals_are_told() -> None:
    told: list[tuple[str, bool]] = []
    session = opened(
        on_refusal=lambda reply, whole_mail: told.append((reply[:3].decode(), whole_mail))
    )
    session.feed(b"FOO\r\n" + mail(b"x\ny\r\n") + b"QUIT\r\n")
    assert told == [("500", False), ("554", True)]


def test_replies_stay_on_their_line() -> None:
    assert replies.reply(550, "5.7.1", "a\r\n250 ä" + "x" * 1000)[:20] == b"550 5.7.1 a??250 ?xx"
    assert len(replies.reply(550, "5.7.1", "x" * 1000)) == replies.MAX_REPLY
