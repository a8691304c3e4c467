"""The rules of a mail, checked before it is sent to the database.

A bad mail then aborts no transaction of an application, and HTTP and SMTP do not pay for the checks
in SQL. `pillarbox._accept` in store/schema/accept.sql has the same rules in the same order;
`tests/integration/accept/test_enqueue_corpus.py` compares the two. Rules about the tables and the
clock of the database are checked only there, by `_store_mails`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from pillarbox.accept.mail import Attachment, FieldKind, Mail, attributes_of, listed
from pillarbox.errors import InvalidMail
from pillarbox.model.raw_mail import has_bare_cr

PRIORITIES = frozenset({"urgent", "normal", "bulk"})
# What SMTP servers must take in one transaction (RFC 5321 4.5.3.1.8).
MAX_RECIPIENTS = 100
# The longest line a mail may have (RFC 5322 2.1.1); a subject or mailbox beyond it is an accident.
MAX_LINE_OCTETS = 998
# Mailbox providers clip far shorter bodies; files belong into attachments or behind links.
MAX_BODY_OCTETS = 1024 * 1024
# What most servers accept (Gmail, Exchange Online); counted as it travels, in base64.
MAX_MESSAGE_OCTETS = 25 * 1024 * 1024
# The rest of a mail (header fields, boundaries), roughly.
OVERHEAD_OCTETS = 1024
MAX_HEADERS = 50
MAX_ATTACHMENTS = 100
MAX_TAGS = 20
MAX_ATTEMPTS = 100
# A web page and an address are usual; more than a few are an accident.
MAX_UNSUBSCRIBE_URLS = 10

# Names are checked apart: most mails have the defaults.
_NAMES = ("tenant", "class_", "priority")
_STRINGS = [name for name in attributes_of(FieldKind.NAME, FieldKind.BODY) if name not in _NAMES]
_LISTS = attributes_of(FieldKind.STRINGS)
_strings_of = attrgetter(*_STRINGS)
_lists_of = attrgetter(*_LISTS)

_NO_ATOM = (
    r'\x00- "(),.:;<>@\[\\\]\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff'
)
_NO_LABEL = r"\x00-,./:-@\[-`{-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
_LOCAL = rf'[^{_NO_ATOM}]+(?:\.[^{_NO_ATOM}]+)*|"(?:[^"\\\x00-\x1f\x7f-\x9f]|\\[ -~])*"'
_LITERAL = r"\[(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|IPv6:[0-9A-Fa-f:.]{2,45})\]"
_legal_address = re.compile(
    rf"(?:{_LOCAL})@(?:[^{_NO_LABEL}]+(?:\.[^{_NO_LABEL}]+)*|{_LITERAL})"
).fullmatch
_hyphen_at_end = re.compile(r"(?:^|\.)-|-(?:\.|\Z)").search
_long_label = re.compile(r"[^.]{64}").search
_bracketed = re.compile(r"[^<>]*<([^<>]*)>").fullmatch
_control = re.compile(r"[\x00-\x1f\x7f]").search
_control_but_tab = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]").search
_header_name = re.compile(r"[!-9;-~]{1,76}").fullmatch
_RESERVED = frozenset(
    {
        "from",
        "to",
        "cc",
        "bcc",
        "subject",
        "reply-to",
        "sender",
        "mime-version",
        "received",
        "return-path",
    }
)
_no_filename = re.compile(r"[\x00-\x1f\x7f/\\]").search
_content_type = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}"
    r"(?: *; *[A-Za-z0-9!#$&^_.+*-]+=(?:\"[ !#-\[\]-~]*\"|[A-Za-z0-9!#$&^_.+*'%-]+))*"
).fullmatch
_content_id = re.compile(r"[!-;=?-~]{1,255}").fullmatch
# Commas separate the URLs of the header field (RFC 2369), and some readers split there. Braces are
# not legal in a URL: they are placeholders that were not replaced.
_unsubscribe_url = re.compile(
    r"https?://[A-Za-z0-9\[][!-+\--;=?-z|~]*|mailto:[!-+\--;=?-z|~]+@[!-+\--;=?-z|~]+"
).fullmatch
_UNSUBSCRIBE_HEADERS = frozenset({"list-unsubscribe", "list-unsubscribe-post"})
_escaped_nul = re.compile(r"(?<!\\)(?:\\\\)*\\u0000").search
# Cheaper than json.dumps, which looks for a cached encoder first. JSON has no NaN, and PostgreSQL
# takes none.
to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def check(mail: Mail) -> int:
    """Raise InvalidMail if the mail breaks a rule; returns its approximate size in bytes."""
    _check_types(mail)
    if mail.priority not in PRIORITIES:
        raise InvalidMail("unknown_priority", "priority", "must be urgent, normal or bulk")
    _check_envelope(mail)
    octets = OVERHEAD_OCTETS + _check_subject(mail.subject) + _check_content(mail)
    if mail.list_unsubscribe != ():
        _check_list_unsubscribe(mail)
    if mail.headers:
        _check_headers(mail.headers)
    if mail.attachments:
        octets += _check_attachments(mail.attachments)
    if octets > MAX_MESSAGE_OCTETS:
        raise InvalidMail(
            "too_big",
            "message",
            "the whole mail may have 25 MiB, attachments counted as base64",
            "send a link instead",
        )
    _check_labels(mail)
    if mail.metadata is not None:
        _check_metadata(mail.metadata)
    _check_numbers_and_times(mail)
    if mail.idempotency_key is not None and _no_label(mail.idempotency_key, "idempotency_key", 255):
        raise InvalidMail(
            "bad_key", "idempotency_key", "must be 1 to 255 bytes without control characters"
        )
    return octets


def _check_types(mail: Mail) -> None:
    if not isinstance(mail, Mail):
        raise TypeError(f"expected a pillarbox.Mail, not {type(mail).__name__}")
    for field, value in zip(_STRINGS, _strings_of(mail), strict=True):
        if value is not None and type(value) is not str:
            _check_string(value, field)
    for field, values in zip(_LISTS, _lists_of(mail), strict=True):
        if values and type(values) is not str:
            _check_strings(values, field)
    if mail.tenant != "default" or mail.class_ is not None or mail.priority != "normal":
        _check_names(mail)


def _check_names(mail: Mail) -> None:
    class_ = "" if mail.class_ is None else mail.class_
    for field, value in (("tenant", mail.tenant), ("class", class_), ("priority", mail.priority)):
        _check_string(value, field)
        _octets(value, field)
        if "\0" in value:
            raise InvalidMail("control_character", field, "may not contain NUL")


def _check_string(value: Any, field: str) -> None:
    if not isinstance(value, str):
        raise InvalidMail("bad_type", field, "must be a string")


def _check_strings(values: Any, field: str) -> None:
    if type(values) is not list and (
        not isinstance(values, Sequence) or isinstance(values, (bytes, bytearray, memoryview))
    ):
        raise InvalidMail("bad_type", field, "must be a list of strings")
    for value in values:
        if value is not None and not isinstance(value, str):
            raise InvalidMail("bad_type", field, "must be a list of strings")


def _octets(value: str, field: str) -> int:
    """How long the string is in UTF-8."""
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidMail(
            "not_unicode", field, "contains half a character (a lone surrogate)"
        ) from None


def _check_envelope(mail: Mail) -> None:
    if mail.sender is not None:
        check_sender(mail.sender)
    count = _check_addresses(mail.to, "to")
    if mail.cc != () or mail.bcc != ():
        count += _check_addresses(mail.cc, "cc") + _check_addresses(mail.bcc, "bcc")
    if not 1 <= count <= MAX_RECIPIENTS:
        raise InvalidMail(
            "recipient_count", "to", "a mail has 1 to 100 recipients", "send several mails"
        )
    if mail.reply_to != ():
        _check_addresses(mail.reply_to, "reply_to")


@lru_cache(maxsize=64)  # an application has few senders
def check_sender(sender: str) -> None:
    """Raise InvalidMail if this is no legal sender."""
    _check_address(sender, "sender")


def check_recipient(recipient: str) -> None:
    """Raise InvalidMail if this is no legal recipient."""
    _check_address(recipient, "to")


def _check_addresses(mailboxes: str | Sequence[str], field: str) -> int:
    mailboxes = listed(mailboxes)
    if len(mailboxes) > MAX_RECIPIENTS:
        raise InvalidMail("too_many", field, "at most 100 addresses", "send several mails")
    for mailbox in mailboxes:
        _check_address(mailbox, field)
    return len(mailboxes)


def _check_address(mailbox: str, field: str) -> None:
    if not mailbox:
        raise InvalidMail("bad_address", field, "an address is missing", "write name@domain")
    if _octets(mailbox, field) > MAX_LINE_OCTETS:
        raise InvalidMail(
            "too_long", field, "a name and address must be at most 998 bytes together"
        )
    if _control(mailbox):
        raise InvalidMail(
            "control_character",
            field,
            "an address may not contain control characters",
            "remove line ends, tabs and NULs",
        )
    address = mailbox
    if mailbox[-1] == ">":
        found = _bracketed(mailbox)
        if found is None:
            raise InvalidMail(
                "bad_address", field, "the angle brackets do not match", "write Name <name@domain>"
            )
        address = found[1]
    if not _legal_address(address) or _too_long_or_odd(address, field):
        raise InvalidMail("bad_address", field, "not a legal e-mail address", "write name@domain")


def _too_long_or_odd(address: str, field: str) -> bool:
    """What the pattern of an address does not say."""
    local, _, domain = address.rpartition("@")
    return (
        _octets(address, field) > 254
        or _octets(local, field) > 64
        or _hyphen_at_end(domain) is not None
        or (len(domain) > 63 and _long_label(domain) is not None)
    )


def _check_subject(subject: str | None) -> int:
    if subject is None:
        return 0
    octets = _octets(subject, "subject")
    if octets > MAX_LINE_OCTETS:
        raise InvalidMail("too_long", "subject", "must be at most 998 bytes", "shorten it")
    if _control_but_tab(subject):
        raise InvalidMail(
            "control_character",
            "subject",
            "may not contain control characters",
            "remove line ends and NULs",
        )
    return octets


def _check_content(mail: Mail) -> int:
    if mail.raw is not None:
        return _check_raw(mail)
    if mail.text is None and mail.html is None and not mail.attachments:
        raise InvalidMail(
            "empty", "text", "the mail has no content", "give text, html, attachments or raw"
        )
    return _check_body(mail.text, "text") + _check_body(mail.html, "html")


def _check_raw(mail: Mail) -> int:
    raw = mail.raw
    if not isinstance(raw, (bytes, bytearray)):
        raise InvalidMail("bad_type", "raw", "must be bytes")
    if (
        mail.text is not None
        or mail.html is not None
        or mail.headers
        or mail.attachments
        or mail.reply_to
    ):
        raise InvalidMail(
            "raw_and_parts",
            "raw",
            "a raw mail carries its own bodies, headers and attachments",
            "give either raw or text, html, reply_to, headers and attachments",
        )
    if not raw:
        raise InvalidMail(
            "empty", "raw", "the mail has no content", "give a whole RFC 5322 message"
        )
    if b"\0" in raw:
        raise InvalidMail("control_character", "raw", "may not contain NUL")
    if has_bare_cr(raw):
        raise InvalidMail(
            "bare_cr", "raw", "a CR stands without LF", "end each line with CR LF, or with LF"
        )
    # Each LF alone becomes CR LF.
    return len(raw) + raw.count(b"\n") - raw.count(b"\r\n")


def _check_body(body: str | None, field: str) -> int:
    if body is None:
        return 0
    octets = _octets(body, field)
    if octets > MAX_BODY_OCTETS:
        raise InvalidMail("too_big", field, "may have 1 MiB", "send a link instead")
    if "\0" in body:
        raise InvalidMail("control_character", field, "may not contain NUL")
    return octets


def _check_list_unsubscribe(mail: Mail) -> None:
    field = "list_unsubscribe"
    urls = listed(mail.list_unsubscribe)
    if not urls:
        return
    if mail.raw is not None:
        raise InvalidMail(
            "raw_and_parts", "raw", "a raw mail has its own List-Unsubscribe", f"omit {field}"
        )
    if len(urls) > MAX_UNSUBSCRIBE_URLS:
        raise InvalidMail("too_many", field, f"at most {MAX_UNSUBSCRIBE_URLS} URLs")
    for url in urls:
        if not url or not _unsubscribe_url(url):
            raise InvalidMail(
                "bad_url",
                field,
                "must be https:, http: or mailto: URLs of ASCII without blanks, commas, <, >, {"
                " and }",
                "write a comma as %2C",
            )
    # A blank begins the line of a folded header field.
    if len(" ") + sum(len(url) + len("<>, ") for url in urls) - len(", ") > MAX_LINE_OCTETS:
        raise InvalidMail("too_long", field, "must be at most 997 bytes, all URLs together")
    names = mail.headers if isinstance(mail.headers, Mapping) else ()
    if any(isinstance(name, str) and name.lower() in _UNSUBSCRIBE_HEADERS for name in names):
        raise InvalidMail(
            "reserved_header",
            "headers",
            f"List-Unsubscribe is made of {field}",
            "give the header or the field, not both",
        )
    # The two that the field makes count, too: else the stored mail could not be resent.
    max_others = MAX_HEADERS - len(_UNSUBSCRIBE_HEADERS)
    if len(names) > max_others:
        raise InvalidMail("too_many", "headers", f"at most {max_others} headers beside {field}")


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMail("bad_type", "headers", "must be an object of names and strings")
    if len(headers) > MAX_HEADERS:
        raise InvalidMail("too_many", "headers", "at most 50 headers")
    for name in headers:
        if not isinstance(name, str):
            _bad_header_name()
    for name in sorted(headers, key=_jsonb_order):
        _check_header(name, headers[name])


def _jsonb_order(name: str) -> tuple[int, bytes]:
    """The order of keys in jsonb, so that Python and SQL find the same bad header first."""
    octets = name.encode("utf-8", "surrogatepass")
    return len(octets), octets


def _bad_header_name() -> None:
    raise InvalidMail(
        "bad_header",
        "headers",
        "a header name is 1 to 76 printable ASCII characters without a colon",
    )


def is_reserved(name: str) -> bool:
    """Whether a header is one that the composer, or the way of the mail, writes."""
    lower = name.lower()
    return lower in _RESERVED or lower.startswith(("content-", "resent-"))


def _check_header(name: str, value: str) -> None:
    if not _header_name(name):
        _bad_header_name()
    if is_reserved(name):
        raise InvalidMail(
            "reserved_header",
            "headers",
            f"{name} cannot be given as a header",
            "use the argument of that name, or raw",
        )
    if not isinstance(value, str):
        raise InvalidMail("bad_header", "headers", f"{name} must be a string")
    octets = _octets(value, "headers")
    if _control_but_tab(value):
        raise InvalidMail(
            "control_character",
            "headers",
            f"{name} may not contain control characters",
            "remove line ends and NULs; long values are folded for you",
        )
    if octets > MAX_LINE_OCTETS:
        raise InvalidMail("too_long", "headers", f"{name} must be at most 998 bytes")


def _check_attachments(attachments: Any) -> int:
    if not isinstance(attachments, Sequence) or isinstance(attachments, (str, bytes, bytearray)):
        raise InvalidMail("bad_type", "attachments", "must be an array of objects")
    if len(attachments) > MAX_ATTACHMENTS:
        raise InvalidMail("too_many", "attachments", "at most 100 attachments")
    return sum(_check_attachment(attachment) for attachment in attachments)


def _check_attachment(item: Attachment) -> int:
    if not isinstance(item, Attachment):
        raise InvalidMail("bad_type", "attachments", "must be an array of objects")
    for key in ("filename", "content_id", "content_type"):
        if not isinstance(getattr(item, key), (str, type(None))):
            raise InvalidMail(
                "bad_attachment",
                "attachments",
                f"{key} is not expected, or not a string",
                "an attachment has filename, content (base64), content_type and content_id",
            )
    if (
        not item.filename
        or _octets(item.filename, "attachments") > 255
        or _no_filename(item.filename)
    ):
        _bad_attachment("a filename must be 1 to 255 bytes without control characters or slashes")
    if item.content_type is not None and not (
        len(item.content_type) <= 255 and _content_type(item.content_type)
    ):
        _bad_attachment("content_type must be like type/subtype, of at most 255 bytes")
    if item.content_id is not None and not _content_id(item.content_id):
        _bad_attachment("content_id is 1 to 255 printable ASCII characters without <, > or spaces")
    if not isinstance(item.content, (bytes, bytearray)):
        raise InvalidMail(
            "bad_attachment", "attachments", "content is missing", "give the file as bytes"
        )
    return (len(item.content) + 2) // 3 * 4


def _bad_attachment(message: str) -> None:
    raise InvalidMail("bad_attachment", "attachments", message)


def _check_labels(mail: Mail) -> None:
    if mail.kind is not None:
        _check_label(mail.kind, "kind")
    tags = listed(mail.tags)
    if len(tags) > MAX_TAGS:
        raise InvalidMail("too_many", "tags", "at most 20 tags")
    for tag in tags:
        _check_label(tag, "tags")


def _check_label(value: str, field: str) -> None:
    if _no_label(value, field, 64):
        raise InvalidMail("bad_label", field, "must be 1 to 64 bytes without control characters")


def _no_label(value: str, field: str, longest: int) -> bool:
    return not value or _octets(value, field) > longest or _control(value) is not None


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if not isinstance(metadata, Mapping):
        raise InvalidMail("bad_type", "metadata", "must be an object")
    try:
        text = to_json(dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMail("bad_type", "metadata", f"cannot be written as JSON: {error}") from None
    _octets(text, "metadata")
    if _escaped_nul(text):
        raise InvalidMail("control_character", "metadata", "may not contain NUL")


def _check_numbers_and_times(mail: Mail) -> None:
    attempts, send_at, expires_at = mail.max_attempts, mail.send_at, mail.expires_at
    if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool)):
        raise InvalidMail("bad_type", "max_attempts", "must be a whole number")
    if attempts is not None and not 1 <= attempts <= MAX_ATTEMPTS:
        raise InvalidMail("out_of_range", "max_attempts", "must be 1 to 100")
    if send_at is not None:
        _check_time(send_at, "send_at")
    if expires_at is not None:
        _check_time(expires_at, "expires_at")
    if send_at is not None and expires_at is not None and expires_at <= send_at:
        raise InvalidMail(
            "out_of_range",
            "expires_at",
            "must lie in the future and after send_at",
            "leave it out for a mail that does not expire",
        )


def _check_time(value: datetime, field: str) -> None:
    if not isinstance(value, datetime):
        raise InvalidMail("bad_type", field, "must be a time")
    if value.utcoffset() is None:
        raise InvalidMail(
            "naive_time", field, "must have a time zone", "write datetime.now(UTC) + timedelta(…)"
        )
