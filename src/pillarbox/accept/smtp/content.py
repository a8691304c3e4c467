"""Checks the content of a mail before it is stored. Each check is a search in C."""

from __future__ import annotations

from pillarbox.accept.smtp.replies import reply
from pillarbox.accept.smtp.rules import SessionLimits

_NUL = reply(554, "5.6.0", "a NUL is in the mail")
_BARE = reply(554, "5.6.0", "a CR or LF stands alone in the mail: lines end with CR LF")
_LONG_HEADER = reply(554, "5.6.0", "the header of the mail is too long")
_MANY_LINES = reply(554, "5.6.0", "the header of the mail has too many lines")
_NOT_UTF8 = reply(554, "5.6.0", "the header of the mail is neither ASCII nor UTF-8")
_LONG_LINE = reply(554, "5.6.0", "a line of the mail is too long")
_TOO_DEEP = reply(554, "5.6.0", "too many parts within parts are in the mail")
_EMPTY = reply(554, "5.6.0", "the mail is empty")


def refuse_content(content: bytes, limits: SessionLimits) -> bytes | None:
    """The reply that refuses this content, or None."""
    if not content:
        return _EMPTY
    if b"\0" in content:
        return _NUL
    if not content.count(b"\r\n") == content.count(b"\n") == content.count(b"\r"):
        return _BARE
    refusal = _refuse_header(content, limits)
    if refusal is not None:
        return refusal
    if len(content) > limits.text_line and _has_long_line(content, limits.text_line):
        return _LONG_LINE
    if content.count(b"/") > limits.nesting and _nested(content) > limits.nesting:
        return _TOO_DEEP
    return None


def _refuse_header(content: bytes, limits: SessionLimits) -> bytes | None:
    end = content.find(b"\r\n\r\n")
    if end < 0:
        end = len(content)
    if end > limits.header:
        return _LONG_HEADER
    head = content[:end]
    if head.count(b"\n") >= limits.header_lines:
        return _MANY_LINES
    if not head.isascii():
        try:
            head.decode()
        except UnicodeDecodeError:
            return _NOT_UTF8
    return None


def _has_long_line(content: bytes, limit: int) -> bool:
    """Whether a line has more octets; hops from one line end to the last within reach."""
    start, end = 0, len(content)
    while end - start > limit:
        found = content.rfind(b"\r\n", start, start + limit + 2)
        if found < 0:
            return True
        start = found + 2
    return False


def _nested(content: bytes) -> int:
    """An upper bound of the depth of nested parts: each level names a multipart or message type."""
    lowered = content.lower()
    return lowered.count(b"multipart/") + lowered.count(b"message/rfc822")
