"""The SMTP envelope: what is said to a server that can do this or that, and what must never be said."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.deliver.transports.base import OutgoingMail, Recipient
from pillarbox.deliver.transports.smtp_envelope import ServerCapabilities, final_dot, seal, stuffed
from pillarbox.model.outcome import Reason, Verdict

ALL = ServerCapabilities(pipelining=True, size=1000, eight_bit=True, utf8=True)
OLD = ServerCapabilities()
MAIL = b"Subject: x\r\n\r\nbody\r\n"


def outgoing(*recipients: str, sender: str = "a@x.test", content: bytes = MAIL) -> OutgoingMail:
    numbered = [Recipient(number, address) for number, address in enumerate(recipients)]
    return OutgoingMail(UUID(int=1), 1, sender, numbered, content)


def test_commands_for_a_capable_server() -> None:
    commands, settled = seal(outgoing("b@x.test", "c@x.test"), ALL)
    assert commands == [
        b"MAIL FROM:<a@x.test> SIZE=20\r\n",
        b"RCPT TO:<b@x.test>\r\n",
        b"RCPT TO:<c@x.test>\r\n",
        b"DATA\r\n",
    ]
    assert settled == {}


def test_commands_for_an_old_server_and_the_null_sender() -> None:
    assert seal(outgoing("b@x.test", sender=""), OLD).commands[0] == b"MAIL FROM:<>\r\n"


@pytest.mark.parametrize(
    "address",
    [
        "", "b", "@x.test", "b@", "b@x.test>", "<b@x.test", "b c@x.test", "b\n@x.test",
        "b@x.test\r\nRCPT TO:<d@x.test>",
        "b@x.test\x00", "b\t@x.test", "b@x.test\x7f", "b@x.test\u2028", "b@x\u0085.test", "b@\ud800.test",
        '"a>b"@x.test', "b@ü test", "b@-ü.test", "x" * 400 + "@x.test",
    ],
)  # fmt: skip
def test_addresses_that_never_reach_the_wire(address: str) -> None:
    commands, settled = seal(outgoing(address, "good@x.test"), ALL)
    assert commands[1:] == [b"RCPT TO:<good@x.test>\r\n", b"DATA\r\n"]
    assert (settled[0].verdict, settled[0].reason) == (Verdict.REJECTED, Reason.MALFORMED)
    assert list(settled) == [0]
    assert seal(outgoing(address), ALL).commands == []
    if address:
        commands, settled = seal(outgoing("good@x.test", sender=address), ALL)
        assert (commands, settled[0].reason) == ([], Reason.MALFORMED)


@given(st.text())
def test_no_address_breaks_a_line(address: str) -> None:
    for command in seal(outgoing(address, sender="a@x.test"), ALL).commands:
        assert command.count(b"\n") == command.count(b"\r") == 1
        assert command.count(b">") == (0 if command == b"DATA\r\n" else 1)


def test_foreign_domains_become_a_labels() -> None:
    commands, _ = seal(outgoing("b@bücher.example", sender="a@straße.example"), OLD)
    assert commands[:2] == [
        b"MAIL FROM:<a@xn--strae-oqa.example>\r\n",
        b"RCPT TO:<b@xn--bcher-kva.example>\r\n",
    ]


def test_foreign_local_parts_need_smtputf8() -> None:
    commands, settled = seal(outgoing("b@x.test", "zoë@x.test"), ALL)
    assert commands[0] == b"MAIL FROM:<a@x.test> SIZE=20 SMTPUTF8\r\n"
    assert commands[2] == "RCPT TO:<zoë@x.test>\r\n".encode()
    commands, settled = seal(outgoing("b@x.test", "zoë@x.test"), OLD)
    assert len(commands) == 3
    assert settled[1].reason is Reason.UNSUPPORTED
    assert (
        seal(outgoing("b@x.test", sender="zoë@x.test"), OLD).settled[0].reason is Reason.UNSUPPORTED
    )


@pytest.mark.parametrize(
    ("content", "capabilities", "parameters"),
    [
        ("Subject: x\r\n\r\nü\r\n", ALL, b" SIZE=18 BODY=8BITMIME"),
        ("Subject: ü\r\n\r\nx\r\n", ALL, b" SIZE=18 BODY=8BITMIME SMTPUTF8"),
        ("Subject: x\r\n\r\nü\r\n", ALL._replace(utf8=False), b" SIZE=18 BODY=8BITMIME"),
        ("Subject: x\r\n\r\nü\r\n", ALL._replace(eight_bit=False), None),
        ("Subject: ü\r\n\r\nx\r\n", ALL._replace(utf8=False), None),
    ],
)
def test_eight_bits(
    content: str, capabilities: ServerCapabilities, parameters: bytes | None
) -> None:
    commands, settled = seal(outgoing("b@x.test", content=content.encode()), capabilities)
    if parameters is None:
        assert (commands, settled[0].verdict, settled[0].reason) == (
            [],
            Verdict.REJECTED,
            Reason.UNSUPPORTED,
        )
    else:
        assert commands[0] == b"MAIL FROM:<a@x.test>" + parameters + b"\r\n"


def test_too_big_for_the_server() -> None:
    big = outgoing("b@x.test", content=b"x" * 1001)
    assert seal(big, ALL).settled[0].reason is Reason.TOO_BIG
    assert seal(big, ALL._replace(size=0)).commands[0] == b"MAIL FROM:<a@x.test> SIZE=1001\r\n"
    assert seal(big, OLD).commands


@pytest.mark.parametrize(
    "content", [b"a\n.\nb\r\n", b"a\rb\r\n", b"a\r\n\n", b"a\r\r\n", b"a\n\r\n", b"\n\r"]
)
def test_bare_line_ends_never_reach_the_wire(content: bytes) -> None:
    commands, settled = seal(outgoing("b@x.test", content=content), ALL)
    assert (commands, settled[0].reason) == ([], Reason.MALFORMED)


@pytest.mark.parametrize(
    ("content", "wire"),
    [
        (b"a\r\n", b"a\r\n.\r\n"),
        (b"a", b"a\r\n.\r\n"),
        (b".a\r\n", b"..a\r\n.\r\n"),
        (b"a\r\n.\r\n..\r\n", b"a\r\n..\r\n...\r\n.\r\n"),
        (b".", b"..\r\n.\r\n"),
        (b"", b".\r\n"),
    ],
)
def test_dots(content: bytes, wire: bytes) -> None:
    assert stuffed(content) + final_dot(content) == wire


def test_content_without_dots_is_not_copied() -> None:
    content = b"a. b.\r\nc\r\n"
    assert stuffed(content) is content
