"""Splits and classifies SMTP replies. Pure: bytes in, outcomes out."""

from __future__ import annotations

import re
from enum import StrEnum

from pillarbox.model.outcome import Outcome, Reason, accepted, deferred, rejected

# A whole reply, all lines together. Real ones stay under 1 KB; the limit bounds memory, and
# the cost of a reply that arrives byte by byte.
MAX_REPLY = 16_384
# What is kept of a server's text: enough for the longest policy text with its link.
MAX_TEXT = 1_000
# A server may ask us to wait, but no longer than our longest wait between two attempts.
MAX_RETRY_AFTER = 3_600.0

# RFC 5321 4.2.1: every line of a reply has the same code, with a hyphen after it except on the
# last.
_match_reply = re.compile(rb"([2-5][0-9][0-9])(?:-[^\n]*\n\1)*(?: [^\n]*)?\r?\n").match
_is_beginning = re.compile(rb"[2-5](?:[0-9](?:[0-9](?:[ \r-].*)?)?)?", re.DOTALL).fullmatch


class SmtpStage(StrEnum):
    """The stage of the transaction; the same code means different things at different stages."""

    CONNECT = "connect"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"


def split_replies(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole replies at the beginning of `data`, and what is left over."""
    replies = []
    position = 0
    while found := _match_reply(data, position):
        replies.append(found[0])
        position = found.end()
    return replies, data[position:]


def can_become_reply(rest: bytes) -> bool:
    """Whether more bytes could make `rest` a reply; if not, the server does not speak SMTP."""
    *lines, last = rest.split(b"\n")
    code = rest[:3]
    return (
        len(rest) <= MAX_REPLY
        and all(line[:3] == code and line[3:4] == b"-" for line in lines)
        and code.startswith(last[:3])
        and _is_beginning(rest if not lines else code + last[3:]) is not None
    )


def code_of(reply: bytes) -> int:
    return int(reply[:3])


def text_of(reply: bytes) -> str:
    """The text of a reply on one line, without codes and control characters."""
    if reply.count(b"\n") == 1:
        text = reply[4:].strip().decode("utf-8", "replace")
    else:
        text = " ".join(line[4:].strip().decode("utf-8", "replace") for line in reply.splitlines())
    return printable(text[:MAX_TEXT])


def printable(text: str) -> str:
    """The text without control characters: they break terminals, and PostgreSQL refuses NUL."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "�" for char in text)


_find_queue_id = re.compile(
    r"queued as:? <?([\w.\-]+)"  # Postfix, Haraka, SendGrid
    r"|\bid=([\w.\-]+)"  # Exim
    r"|\bOK +\d+ ([\w.\-]+) - gsmtp|\bOK +([\w.\-]+) - gsmtp"  # Google
    r"|^2\.0\.0:? ([\w.\-]+) Message accepted for delivery"  # Sendmail, OpenSMTPD
    r"|^2\.6\.0 <([^>\s]+)> .*Queued mail"  # Exchange
    r"|^Ok ([0-9a-f]{16}[\w.\-]+)$",  # Amazon SES
    re.IGNORECASE,
).search


def queue_id(text: str) -> str | None:
    """The server's id of the accepted mail, if its reply has one."""
    _, postfix, rest = text.partition("queued as ")  # by far the most common, and faster
    if postfix and rest.isalnum():
        return rest
    found = _find_queue_id(text)
    if found is None:
        return None
    return found[found.lastindex or 0]


def acceptance(reply: bytes) -> Outcome:
    """The outcome of a 2xx reply to the final dot."""
    text = text_of(reply)
    return accepted(code_of(reply), text, queue_id(text))


# RFC 3463 and the IANA registry: subject.detail says what it is about, the class says for how long.
# Only details with one cause are here; after vague ones (0.0, 7.0, 7.1 …) the text decides.
_DETAILS = {
    "1.1": Reason.INVALID_RECIPIENT,
    "1.2": Reason.INVALID_RECIPIENT,
    "1.3": Reason.INVALID_RECIPIENT,
    "1.4": Reason.INVALID_RECIPIENT,
    "1.6": Reason.INVALID_RECIPIENT,
    "1.10": Reason.INVALID_RECIPIENT,  # the domain says that it takes no mail
    "1.7": Reason.BLOCKED_SENDER,
    "1.8": Reason.BLOCKED_SENDER,
    "2.2": Reason.MAILBOX_FULL,
    "2.3": Reason.TOO_BIG,
    "3.4": Reason.TOO_BIG,
    "5.3": Reason.RATE_LIMITED,  # too many recipients at once
    "6.1": Reason.UNSUPPORTED,
    "6.3": Reason.UNSUPPORTED,
    "6.7": Reason.UNSUPPORTED,
    "6.8": Reason.UNSUPPORTED,
    "6.9": Reason.UNSUPPORTED,
    "7.8": Reason.CREDENTIAL,
    "7.9": Reason.CREDENTIAL,
    "7.10": Reason.TLS,  # encryption needed
    "7.11": Reason.TLS,
    "7.12": Reason.CREDENTIAL,
    "7.13": Reason.CREDENTIAL,
    "7.20": Reason.POLICY,  # 20 to 26: DKIM, SPF, reverse DNS
    "7.21": Reason.POLICY,
    "7.22": Reason.POLICY,
    "7.23": Reason.POLICY,
    "7.24": Reason.POLICY,
    "7.25": Reason.POLICY,
    "7.26": Reason.POLICY,
    "7.27": Reason.BLOCKED_SENDER,
    "7.28": Reason.RATE_LIMITED,  # mail flood
    "7.57": Reason.CREDENTIAL,  # Exchange: not authenticated
    "7.60": Reason.BLOCKED_SENDER,  # Exchange: may not send as this sender
}

# Phrases that many servers use, the most specific first, with the classes of codes they apply to.
_PHRASES = [
    ("45", Reason.TLS, r"starttls|encrypted connection"),
    ("45", Reason.CREDENTIAL, r"authentication (is )?required|not authenticated|log ?in first"),
    ("4", Reason.GREYLISTED, r"gr[ae]y-?\s?list"),
    (
        "45",
        Reason.RATE_LIMITED,
        r"rate.?limit|too many (connections|messages|recipients|e?mails|"
        r"errors|sessions|requests|concurrent)"
        r"|too (fast|quickly|frequent)|throttl"
        r"|sending (limit|quota|rate)|(hourly|daily) (limit|quota)"
        r"|unusual rate",
    ),
    (
        "45",
        Reason.MAILBOX_FULL,
        r"mailbox (is |size )?(full|exceeded)|over ?quota|quota exceeded|exceeded .{0,30}quota",
    ),
    (
        "5",
        Reason.TOO_BIG,
        r"(message|mail|size)\b.{0,40}(too (big|large)|"
        r"exceeds .{0,30}(size|limit|maximum))|too large",
    ),
    ("5", Reason.UNSUPPORTED, r"smtputf8|8bitmime|non-ascii|internationali[sz]ed"),
    (
        "5",
        Reason.INVALID_RECIPIENT,
        r"no such (user|mailbox|recipient|address|person)"
        r"|(unknown|invalid) (user|recipient|mailbox)"
        r"|\b(user|recipient|mailbox|address|account)\b[^.]{0,80} "
        r"(unknown|not found|does ?n[o']t exist|does not exist|disabled|inactive)",
    ),
    (
        "45",
        Reason.BLOCKED_SENDER,
        r"block ?list|black ?list|deny ?list|\bblocked\b|\bbanned\b|dns[bw]l|\brbl\b|spamhaus"
        r"|sender (address )?(rejected|denied|not allowed|verify)|not owned by|send as"
        r"|not (allowed|permitted|authori[sz]ed) to send",
    ),
    (
        "45",
        Reason.POLICY,
        r"\bspam|virus|malware|phish|polic(y|ies)|dmarc|dkim|\bspf\b|reputation|content reject",
    ),
]
_WORDS = [
    (classes, re.compile(words, re.IGNORECASE), reason) for classes, reason, words in _PHRASES
]

# The reason of a code at its stage (RFC 5321 4.3.2), without an enhanced code or a known phrase.
_BARE = {
    (SmtpStage.RCPT, 550): Reason.INVALID_RECIPIENT,
    (SmtpStage.RCPT, 551): Reason.INVALID_RECIPIENT,
    (SmtpStage.RCPT, 553): Reason.INVALID_RECIPIENT,
    (SmtpStage.RCPT, 552): Reason.MAILBOX_FULL,
    (SmtpStage.MAIL, 552): Reason.TOO_BIG,
    (SmtpStage.DATA, 552): Reason.TOO_BIG,
    (SmtpStage.DOT, 552): Reason.TOO_BIG,
    (SmtpStage.MAIL, 553): Reason.BLOCKED_SENDER,
    (SmtpStage.MAIL, 555): Reason.UNSUPPORTED,
    (SmtpStage.RCPT, 555): Reason.UNSUPPORTED,
}

# RFC 4954: these concern our login, never the mail.
_LOGIN_CODES = frozenset({530, 534, 535, 538})
# Problems of the account or the connection: the same mail can be sent later or elsewhere.
_PROVIDER_TROUBLE = frozenset({Reason.CREDENTIAL, Reason.TLS, Reason.RATE_LIMITED})

_find_enhanced = re.compile(r"\b[45]\.(\d{1,3}\.\d{1,3})\b").match
_find_wait = re.compile(
    r"(?:try|retry|wait|delayed|come back|again)\D{0,30}?(\d{1,6}) ?(s|sec|m|min)(?:ond|ute)?s?\b",
    re.IGNORECASE,
).search


def refusal(reply: bytes, stage: SmtpStage) -> Outcome:
    """The outcome of a 4xx or 5xx reply."""
    return classify(code_of(reply), text_of(reply), stage)


def classify(code: int, text: str, stage: SmtpStage) -> Outcome:
    """The outcome of a 4xx or 5xx code and its text at a stage."""
    reason = _reason(code, text, stage)
    if code < 500 or stage is SmtpStage.CONNECT or reason in _PROVIDER_TROUBLE:
        return deferred(reason, code, text, _retry_after(text))
    return rejected(reason, code, text)


def _reason(code: int, text: str, stage: SmtpStage) -> Reason:
    if code in _LOGIN_CODES:
        if "starttls" in text.lower():
            return Reason.TLS
        return Reason.CREDENTIAL
    found = _find_enhanced(text)
    detail = found[1] if found else ""
    reason = _DETAILS.get(detail) or _by_words(code, text) or _by_detail(code, detail)
    if reason is None and not detail:
        reason = _BARE.get((stage, code))
    if reason is not None:
        return reason
    if code < 500:
        return Reason.UNAVAILABLE
    return Reason.REFUSED


def _by_words(code: int, text: str) -> Reason | None:
    said = str(code)[0]
    return next(
        (reason for classes, words, reason in _WORDS if said in classes and words.search(text)),
        None,
    )


def _by_detail(code: int, detail: str) -> Reason | None:
    """The reason of a vague detail, if no phrase matched."""
    if code == 421 and detail.startswith("7."):
        return Reason.RATE_LIMITED
    if code < 500:
        return None
    if detail.startswith("7."):
        return Reason.POLICY
    if detail in ("1.0", "2.0", "2.1"):
        return Reason.INVALID_RECIPIENT
    return None


def _retry_after(text: str) -> float | None:
    found = _find_wait(text)
    if not found:
        return None
    seconds = float(found[1])
    if found[2].lower().startswith("m"):
        seconds *= 60
    return min(seconds, MAX_RETRY_AFTER)
