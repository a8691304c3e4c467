"""The SMTP state machine under any input: the same for any chunks, never a crash, never more memory than allowed."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.smtp_sessions import Open, Session, mail

from pillarbox.accept.smtp.rules import MAX_AUTH_LINE, MemoryBudget, SessionLimits

# Small limits, so that examples of a few hundred octets meet all of them.
LIMITS = SessionLimits(
    message=200, recipients=3, line=512, text_line=80, header=120, header_lines=6, nesting=2, errors=6, commands=25,
    messages=4,
)  # fmt: skip
WORDS = [
    b"EHLO x", b"HELO x", b"MAIL FROM:<a@x.example>", b"MAIL FROM:<> SIZE=300", "MAIL FROM:<ä@x> SMTPUTF8".encode(),
    b"RCPT TO:<b@y.example>", b"RCPT TO:<no@y.example>", b"DATA", b"RSET", b"NOOP", b"QUIT", b"VRFY x", b"STARTTLS",
    b"AUTH PLAIN", b"AUTH LOGIN", b"AUTH PLAIN AG1lAHNlY3JldA==", b"AG1lAHNlY3JldA==", b"bWU=", b"c2VjcmV0", b"*", b"=",
    b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b".", b"..", b"\r\n.\r\n", b".\r\n", b"\n.\n", b"\r.\r", b"\0", b"\xff",
    b" ", b"Subject: hello", b"Content-Type: multipart/x", b"message/rfc822", b"x" * 90, b"y" * 600, b"GET / HTTP/1.1",
    b"EHLO x\r\n", mail(), mail(b"a: b\r\n\r\n..dots\r\n"), mail(b"z" * 150 + b"\r\n"), mail(b"q" * 900 + b"\r\n"),
]  # fmt: skip
talk = st.lists(st.sampled_from(WORDS), max_size=30).map(b"".join)
noise = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=12)), max_size=30).map(
    b"".join
)


def session(kind: str, budget: MemoryBudget | None = None) -> Session:
    """A machine of each kind of listener; what it refuses is always the same."""
    policy = Open(max_message=180, refused={"no@y.example"})
    if kind == "open":
        return Session(LIMITS, policy, budget=budget)
    if kind == "starttls":
        return Session(LIMITS, policy, starttls=True, budget=budget)
    return Session(LIMITS, secure=True, budget=budget)


def story(one: Session) -> tuple[object, ...]:
    return one.said, one.mails, one.logins, one.upgrades, one.closed


def chunked(data: bytes, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    chunks, position = [], 0
    while position < len(data):
        size = dice.choice((1, 1, 2, 3, 5, 8, 40, 200))
        chunks.append(data[position : position + size])
        position += size
    return chunks


@pytest.mark.parametrize("kind", ["open", "starttls", "login"])
@given(data=noise, seed=st.integers(0, 2**16))
@example(data=b"EHLO x\r\nMAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDATA\r\n.\r\nNOOP\r\n", seed=0)
@settings(max_examples=250)
def test_any_chunking_gives_the_same(kind: str, data: bytes, seed: int) -> None:
    whole, pieces, octets = session(kind), session(kind), session(kind)
    whole.feed(data)
    pieces.feed(*chunked(data, seed))
    octets.feed(*(data[at : at + 1] for at in range(len(data))))
    assert story(pieces) == story(whole)
    assert story(octets) == story(whole)


@pytest.mark.parametrize("size", range(140, 900, 7))
def test_any_chunking_gives_the_same_around_every_bound_of_a_body(size: int) -> None:
    data = (
        b"EHLO x\r\n"
        + mail(b"a: b\r\n" + b"..\r\n" * 5 + (b"x" * 70 + b"\r\n") * 12)[: size - 5]
        + b"\r\n.\r\nNOOP\r\n"
    )
    whole = session("open")
    whole.feed(data)
    for seed in range(20):
        pieces = session("open")
        pieces.feed(*chunked(data, seed))
        assert story(pieces) == story(whole)


@given(data=st.lists(noise, max_size=6))
@settings(max_examples=200)
def test_nothing_crashes_it_and_memory_is_bounded(data: list[bytes]) -> None:
    budget = MemoryBudget(500)
    one = session("open", budget)
    for chunk in data:
        one.feed(chunk)  # asserts that every reply is legal, and that nothing follows a Close
        rest = one.machine._rest
        assert len(rest) <= (MAX_AUTH_LINE if rest[:5].upper() == b"AUTH " else LIMITS.line)
        assert 0 <= budget.taken <= 500
    one.machine.forget()
    assert budget.taken == 0


@given(data=st.binary(max_size=3000))
@settings(max_examples=200)
def test_any_octets_as_a_mail(data: bytes) -> None:
    """What is accepted is what was sent, and only what keeps the rules is accepted."""
    one = Session(policy=Open())
    stuffed = (b"\r\n" + data).replace(b"\r\n.", b"\r\n..")[2:]
    one.feed(b"EHLO x\r\nMAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDATA\r\n" + stuffed + b"\r\n.\r\n")
    for submitted in one.mails[:1]:
        assert submitted.content == data + b"\r\n"
        assert b"\0" not in data
        assert (data + b"\r\n").replace(b"\r\n", b"").translate(None, b"\r\n") == (
            data + b"\r\n"
        ).replace(b"\r\n", b"")


@given(line=st.binary(max_size=200), seed=st.integers(0, 2**16))
@settings(max_examples=300)
def test_any_argument_of_mail_and_rcpt(line: bytes, seed: int) -> None:
    one = session("open")
    one.feed(b"EHLO x\r\nMAIL FROM:" + line + b"\r\n")
    one.feed(b"RSET\r\nMAIL FROM:<a@x>\r\nRCPT TO:" + line + b"\r\n")
    for recipient in one.machine.recipients:
        assert not set(recipient) & set("\r\n\0")


def test_an_endless_mail_takes_no_memory() -> None:
    budget = MemoryBudget(10**6)
    one = Session(SessionLimits(message=10_000), Open(), budget=budget)
    one.feed(b"EHLO x\r\nMAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDATA\r\n")
    for _ in range(30):
        one.feed(b"x" * 1000)
        assert budget.taken <= 14_000
    assert not one.closed
    one.feed(b"x" * 11_000)
    assert one.said.endswith(b"552 5.3.4 the mail is too big\r\n")
    assert one.closed
