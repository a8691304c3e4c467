"""The arguments of MAIL and RCPT, taken apart."""

from __future__ import annotations

import re
from typing import NamedTuple

from pillarbox.accept.smtp import replies

# A path in angle brackets, whatever its address; a source route before it is ignored (RFC 5321
# 3.6.1). Alternatives begin with different characters, so that no input makes the search go back
# and forth.
_PATH = (
    rb'<(?:@[^:<>"\x00-\x20\x7f]*:)?'
    rb'((?:"(?:[^"\\\x00-\x1f\x7f]|\\[ -~])*"|[^<>"\x00-\x20\x7f])*)>'
    rb"(?: +([!-~ ]+))?"
)
_from = re.compile(rb"FROM: ?" + _PATH, re.IGNORECASE).fullmatch
_to = re.compile(rb"TO: ?" + _PATH, re.IGNORECASE).fullmatch
_BODIES = frozenset({b"7BIT", b"8BITMIME"})
# A size of more digits is too big for everybody.
_digits = re.compile(rb"[0-9]{1,20}").fullmatch


class RefusedArgument(Exception):
    """The argument is refused with this reply."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply


class MailFrom(NamedTuple):
    """What MAIL says."""

    address: str
    size: int  # 0: not told
    utf8: bool


def parse_sender(argument: bytes) -> MailFrom:
    """Take the argument of MAIL apart, or raise RefusedArgument."""
    found = _from(argument)
    if found is None:
        raise _malformed(argument, replies.BAD_SENDER)
    address, parameters = found.groups()
    if parameters is None:
        return MailFrom(_text(address, False), 0, False)
    size, utf8 = 0, False
    for word in parameters.split():
        name, _, value = word.upper().partition(b"=")
        if name == b"SIZE" and _digits(value):
            size = int(value)
        elif name == b"SMTPUTF8" and not value:
            utf8 = True
        elif not (name == b"BODY" and value in _BODIES) and not (name == b"AUTH" and value):
            raise RefusedArgument(
                replies.BAD_SYNTAX if name in {b"SIZE", b"BODY"} else replies.BAD_PARAMETER
            )
    return MailFrom(_text(address, utf8), size, utf8)


def parse_recipient(argument: bytes, utf8: bool) -> str:
    """The address in the argument of RCPT, or raise RefusedArgument."""
    found = _to(argument)
    if found is None:
        raise _malformed(argument, replies.BAD_ADDRESS)
    address, parameters = found.groups()
    if parameters is not None:
        raise RefusedArgument(replies.BAD_PARAMETER)
    return _text(address, utf8)


def _text(address: bytes, utf8: bool) -> str:
    if address.isascii():
        return address.decode("ascii")
    if not utf8:
        raise RefusedArgument(replies.NEEDS_SMTPUTF8)
    try:
        return address.decode()
    except UnicodeDecodeError:
        raise RefusedArgument(replies.NOT_UTF8) from None


def _malformed(argument: bytes, bad_address: bytes) -> RefusedArgument:
    """Why it is no path: for a person who typed it, or whose program has a fault."""
    if b":" not in argument:
        return RefusedArgument(replies.BAD_SYNTAX)
    return RefusedArgument(bad_address)
