"""Redaction of personal data (PII) and credentials in texts; the rest stays readable.

Addresses, Message-IDs, phone numbers, IP addresses, people in X.500 names and credentials become
`<redacted:xxxxxxxx>`: a keyed hash of the normalised value, so that equal values correlate. Status
codes, queue ids, times, UUIDs and host names stay. In doubtful cases the text is redacted.

Not guaranteed: people's names; an address cut inside its local part by a line break (`ali⏎ce@…`)
outside angle brackets, where a word before the break looks the same; addresses spelt for humans
(`alice at example`); IP addresses inside host names (`host-203-0-113-5.isp.example`).
"""

from __future__ import annotations

import base64
import hmac
import html
import ipaddress
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import AnyStr
from urllib.parse import unquote


def _compiled(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A pattern; without possessive groups before Python 3.11.5, which has a bug (gh-106052)."""
    if isinstance(pattern, str) and sys.version_info < (3, 11, 5):
        pattern = re.sub(r"\)(\?|\*|\+|\{[0-9,]+\})\+", r")\1", pattern)
    return re.compile(pattern, flags)


_TOKEN = _compiled(r"<redacted:[0-9a-f]{8}>")
# A replacement can create a new word boundary next to it; rounds run until nothing changes, so that
# redacting twice changes nothing. Two rounds are usual; the bound keeps crafted text linear.
_ROUNDS = 6

# --- the hot path: most replies are a few short plain words ---
# No rule without a trigger character, a keyword or an IPv4's three dots matches inside words this
# short.
_LONG_WORD = 16
_CLEAN = _compiled(
    rf"(?:[A-Za-z0-9.,()'/!?_#<>\[\]*-]{{1,{_LONG_WORD - 1}}}+"
    r"(?::(?![^ ])(?i:(?<!ken:)(?<!ord:)(?<!ase:)(?<!swd:)(?<!pwd:)(?<!key:)(?<!ret:)(?<!ial:)"
    r"(?<!als:)(?<!id:)(?<!-to:)(?<!ces:)(?<!':)))?+(?:[ ]++|\Z))*+"
)


def _is_clean(text: str) -> bool:
    """Whether surely no rule matches. Cheap; False only means that the rules have to be tried."""
    if _CLEAN.fullmatch(text) is None or (text.count(".") >= 3 and _IPV4.search(text)):
        return False
    lowered = text.lower()
    return "bearer" not in lowered and "basic" not in lowered and "auth" not in lowered


# --- addresses ---
# A line break inside a value: folded header, quoted-printable soft break, or the next line of an
# SMTP reply.
_FOLD_PATTERN = r"(?:=?\r?\n[ \t]*+(?:[2-5][0-9]{2}[ -])?+(?:[245]\.[0-9]{1,3}\.[0-9]{1,3}[ ]++)?+)"
_FOLD = _compiled(_FOLD_PATTERN)
# Every branch starts with a literal, which lets `re` skip to candidates.
_AT = _compiled(
    r"(?:(?P<literal>@|＠|﹫)|%(?:25){0,3}40|=40|\+40"
    r"|&#0{0,6}64;?|&#[xX]0{0,6}40;?|&commat;|\\u0040|\\x40)"
    rf"{_FOLD_PATTERN}?"
)
_AT_HINTS = ("@", "40", "64", "&commat", "＠", "﹫")
# By exclusion, because \w lacks the combining marks that SMTPUTF8 addresses need.
_FOREIGN_MARKS = "“”„«»‹›…，、。；：！？（）《》【】「」"
_LOCAL = rf"[^\x00-\x20\x7f()<>\[\]:;@＠﹫\\,\"\s{_FOREIGN_MARKS}]"
# Local parts are read leftwards from the at sign, on reversed text.
_QUOTED_REVERSED = r'"(?:"\\|[^"]){0,256}+"'  # 64 bytes are legal; each may be escaped or encoded
_FOLD_REVERSED = (
    r"(?:(?:[ ]++[0-9]{1,3}\.[0-9]{1,3}\.[245])?+(?:[ -][0-9]{2}[2-5])?+[ \t]*+\n\r?=?)"
)
_SOFT_BREAK_REVERSED = r"[ \t]*+\n\r?(?=[=+_])"  # a line that ends in one of these has not ended
_LOCAL_REVERSED = _compiled(
    rf"{_FOLD_REVERSED}?+(?:(?:{_LOCAL}|{_SOFT_BREAK_REVERSED})++(?:(?<=\.){_QUOTED_REVERSED})?+"
    rf"|{_QUOTED_REVERSED}(?:\.{_LOCAL}++)?+)"
)
_LABEL = rf"[^\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f\s＠﹫‘’{_FOREIGN_MARKS}]"
_ENCODED_LETTER = r"(?:2[DdEe]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|[89A-Fa-f][0-9A-Fa-f])"
_DOMAIN = {
    sigil: _compiled(rf"\[[^\[\]\s<>@]{{1,255}}\]|{label}++(?:[.-]++{label}++)*+")
    for sigil, label in {
        "": _LABEL,
        **{c: rf"(?:{_LABEL}|[{c}]{_ENCODED_LETTER})" for c in "%=+"},
    }.items()
}
_DOTTED = _compiled(r"\.[^\W\d_][\w-]+\Z")
_NEXT_LINE = _compiled(rf"([.-]?)({_FOLD_PATTERN})(\.?{_LABEL}++(?:[.-]++{_LABEL}++)*+)")
_MAX_FOLDS = 4  # a domain has at most 255 characters
_BRACKETED = _compiled(r"<([^<>]{3,998})>")  # 998: the longest legal line
_ONE_ADDRESS = _compiled(r'(?:@[^\s:]+:)?(?:"[^"]*"|[^\s",])+\s*@\s*[^\s,@]+')
_MESSAGE_ID = _compiled(
    r"((?:message-id|in-reply-to|references)[\"']?\s{0,4}[:=]\s{0,4})<(?!redacted:)([^<>]{1,998})>",
    re.I,
)
# Exact words, none of them personal: in VERP's `photo=example.com@lists.example` the key is the
# local part.
_KEY = _compiled(
    r"(?:to|from|orig_to|rcpt|recipient|sender|e?-?mail|addr(?:ess)?|user(?:name)?)=", re.I
)
_ANY_KEY = _compiled(r"[\w.-]{1,40}=")
# What our own messages write to show the form of an address, or of a URL with a login. No such
# domain exists.
_PLACEHOLDERS = frozenset({"name@domain", "name@tenant", "user@host", "password@host"})
_PLACEHOLDER_LOGIN = "user:password"
# What remains of \u003c or \n before an address in JSON.
_ESCAPE = _compiled(r"u00[23][0-9a-fA-F]|[nrt]")


def _decode(value: str, sigil: str) -> str:
    """Undo the encoding whose escapes start with `sigil`; an empty sigil means no encoding."""
    if sigil == "&":
        return html.unescape(value)
    if sigil == "\\":
        return re.sub(r"\\(?:u00|x)40", "@", value)
    if sigil in ("=", "+"):
        value = re.sub(rf"{re.escape(sigil)}([0-9A-Fa-f]{{2}})", r"%\1", value.replace("%", "%25"))
    if not sigil:
        return value
    return unquote(unquote(value))


def _ascii_domain(domain: str) -> str:
    if domain.isascii() or len(domain) > 255:
        return domain
    try:
        return domain.encode("idna").decode("ascii")
    except UnicodeError:
        return domain


def _normal_address(raw: str, sigil: str = "") -> str:
    """The canonical spelling of an address: without folds, brackets, prefixes and quotes."""
    decoded = _decode(_FOLD.sub("", raw), sigil)
    value = unicodedata.normalize("NFKC", decoded).casefold().strip(" \t<>")
    value = value.removeprefix("mailto:").removeprefix("rfc822;").strip()
    if value.startswith("@"):  # a source route: @relay,@relay:address
        value = value.rpartition(":")[2]
    local, _, domain = value.rpartition("@")
    local = re.sub(r"\\(.)", r"\1", local.strip().strip('"'))
    return f"{local}@{_ascii_domain(domain.strip())}"


def _domain_end(text: str, start: int, sigil: str) -> int:
    """Where the domain at `start` ends, line breaks included; `start` if there is none."""
    found = _DOMAIN.get(sigil, _DOMAIN[""]).match(text, start)
    if found is None:
        return start
    end = found.end()
    has_dot = "." in found[0]
    last_label = found[0].rpartition(".")[2]
    for _ in range(_MAX_FOLDS):
        more = _NEXT_LINE.match(text, end)
        if more is None:
            break
        glue, fold, rest = more.groups()
        is_unfinished = len(last_label) == 1 or (not has_dot and ("." in rest or glue == "."))
        if not (is_unfinished or rest.startswith(".") or fold.startswith("=")):
            break
        end = more.end()
        has_dot = has_dot or "." in rest
        last_label = rest.rpartition(".")[2]
    return end


def _is_domain(domain: str, sigil: str) -> bool:
    """Whether an at sign before `domain` is one: `size=40960` and `+40 21…` are not addresses."""
    if sigil not in ("=", "+"):
        return True
    plain = _decode(_FOLD.sub("", domain), sigil)
    return plain.startswith("[") or bool(_DOTTED.search(plain) or _IPV4.fullmatch(plain))


def _skip(text: str, start: int, end: int) -> int:
    """Where the local part really starts: after quotes, escapes, query keys and parts of a URL."""
    local = text[start:end]
    before = text[start - 1 : start]
    escape = None
    if before == "\\":
        escape = _ESCAPE.match(local)
    if escape is not None:
        start += escape.end()
    elif before == ":" and local.startswith("//"):
        start += 1 + max(local.rfind(mark) for mark in "/?&")
    elif "?" in local or "&" in local:
        query = max(local.rfind("?"), local.rfind("&"))
        if _KEY.match(local, query + 1):
            start += query + 1
    while start < end and text[start] in "'`‘’*{|/.":
        start += 1
    pattern = _KEY
    if text[start - 1 : start] in ("?", "&"):
        pattern = _ANY_KEY
    key = pattern.match(text, start, end)
    if key is None:
        return start
    return key.end()


def _with_brackets(text: str, start: int, end: int) -> tuple[int, int]:
    """The span with its angle brackets, if it has both."""
    both = text[start - 1 : start] == "<" and text[end : end + 1] == ">"
    return start - both, end + both


# --- credentials ---
_SCHEME = r"(?:bearer|basic|digest|token|aws4-hmac-sha256)"
_FIELD = (
    r"(?:(?:api|access|secret|private|auth|account|server|signing|webhook)"
    r"[_-]?(?:access[_-]?)?key(?:[_-]?id)?"
    r"|token|secret|password|passwd|passphrase|pwd|credentials?|authorization"
    r"|(?:(?<!=)pass|sig|signature)(?==))"
)
_VALUE = r"(?P<value>(?![\"']?<redacted:)(?:\"[^\"]{1,512}\"|'[^']{1,512}'|[^\s\"'<>,;&]++))"
_SECRET = _compiled(
    rf"(?i)(?P<head>{_FIELD}[\"']?\s{{0,4}}[:=]\s{{0,4}}"
    rf"(?:[\"']?{_SCHEME}\s{{1,4}})?+(?![\"']?{_SCHEME}\s)"
    rf"|(?<![a-z])(?:bearer|basic)\s{{1,4}}(?:token\s{{1,4}})?+){_VALUE}"
)
_SECRET_HINTS = _compiled(r"key|token|secret|pass|pwd|credential|auth|sig|bearer|basic")
_PROSE = _compiled(  # what follows "invalid token:" or "basic" in a sentence
    r"(?i)an?|and|auth[a-z]*|credentials|disabled|error|expected|expired|failed|has|in|incorrect"
    r"|invalid|is|mismatch|missing|must|none|not|null|of|or|required|scheme|the|tokens?"
    r"|unauthorized|was"
    r"|calls|its|without|(?:pb[xs]_)?…`?"  # as in messages of Pillarbox
)
_SASL = _compiled(r"(\bAUTH[ \t]{1,4}[A-Z0-9-]{3,20}[ \t]{1,4})([A-Za-z0-9+/_-]{4,}+={0,2})", re.I)
_MECHANISM = _compiled(
    r"(?i)PLAIN|LOGIN|NTLM|GSSAPI|XOAUTH2?|OAUTHBEARER|[A-Z]+-(?:MD5|SHA-|SPNEGO).*"
)
_URL_LOGIN = _compiled(r"(?<=://)[^\s/@:<>]{0,256}:[^\s/@<>]{0,256}(?=@)")
# Only at a word's start, so that no word is walked twice; none is shorter than _LONG_WORD.
_KNOWN_KEY = _compiled(
    r"(?:SG\.(?<![\w-]...)[\w-]{5,}+\.[\w-]{7,}+"
    r"|eyJ(?<![\w-]...)[\w-]{5,}+\.[\w-]{7,}+(?:\.[\w-]++)?+"
    r"|AKIA(?<![\w-]....)[0-9A-Z]{12,}+|ASIA(?<![\w-]....)[0-9A-Z]{12,}+"
    r"|key-(?<![\w-]....)(?=[a-z]{0,64}[0-9])[0-9A-Za-z]{12,}+"
    r"|sk[_-](?<![\w-]...)[\w-]{16,}+|whsec_[\w-]{16,}+"
    r"|gh[pousr]_(?<![\w-]....)[\w-]{16,}+|xox[abp]-[\w-]{16,}+)"
)
_OPAQUE = _compiled(rf"[A-Za-z0-9+/_-]{{{_LONG_WORD},}}+(?:={{1,2}}(?![\w=]))?+")
_GMAIL_ID = _compiled(r"\.[0-9]{1,9} - gsmtp")
_LONG_HEX = _compiled(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_LONG_TOKEN = 32  # longer than known queue ids in mixed case (Exim 23, SendGrid and Mimecast 22)
_CASES = _compiled(r"[a-z]+|[A-Z]+|[0-9]+")
_SASL_BYTES = _compiled(rb"[\x00\x01\x20-\x7e]++")
_ENCODED_WORD = r"=\?[^?\s]{1,64}\?([bBqQ])\?([^?\s]{0,2000})\?="
_ENCODED_WORDS = _compiled(rf"{_ENCODED_WORD}(?:\s{{1,80}}{_ENCODED_WORD})*")


def _unbase64(value: str) -> bytes:
    """The bytes; empty if it is not base64."""
    plain = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return b""


def _unword(encoding: str, payload: str) -> str:
    """An RFC 2047 word decoded as UTF-8: what has to be found is ASCII in all usual charsets."""
    if encoding in "bB":
        return _unbase64(payload).decode("utf-8", "replace")
    return _decode(payload.replace("_", " "), "=")


def _looks_random(value: str) -> bool:
    """Whether a word changes between cases and digits as often as random base64; paths do not."""
    runs = _CASES.findall(value)
    kinds = {run[0].isdigit() + 2 * run[0].isupper() for run in runs}
    return len(kinds) == 3 and 4 * len(runs) >= len(value)


def _is_login(decoded: bytes) -> bool:
    """Whether decoded base64 is a SASL login (NUL in PLAIN, SOH in XOAUTH2), or an address."""
    return _SASL_BYTES.fullmatch(decoded) is not None and any(mark in decoded for mark in b"@\0\1")


def _is_opaque(word: str) -> bool:
    """Whether a long word can only be a key or a blob: padded base64, much hex, or random."""
    if word.endswith("="):
        return len(word) % 4 == 0 and word.lower() != word != word.upper()
    return len(word) >= _LONG_TOKEN and bool(_LONG_HEX.search(word) or _looks_random(word))


# --- X.500 names: /O=ACME/OU=FIRST GROUP/CN=RECIPIENTS/CN=JDOE, CN=Jane Doe,OU=Sales,DC=example ---
_X500_KEY = (
    r"(?:CN|OU|O|DC|C|L|ST|T|G|S|I|SN|GN|UID|UserID|GivenName|Surname|Title|E|Email|EmailAddress"
    r"|SerialNumber)"
)
# Keys that name a person; the others name organisations and places.
_X500_PERSON = frozenset({
    "cn", "uid", "userid", "g", "gn", "givenname", "s", "sn", "surname", "i", "e", "email",
    "emailaddress",
})  # fmt: skip
_X500_HINT = _compiled(r"(?i)(?:cn|uid|userid|surname|givenname|gn|sn|emailaddress)\s?=")
# Two parts at least, for one alone is as likely a parameter; 21 at most, so that the search stays
# linear. A value goes to the next part, to a word in lower case, or to the end of a line.
_X500 = _compiled(
    rf"(?i)(?<![a-z0-9])(?:(?<=IMCEAEX-)_|[/_])?{_X500_KEY}\s?=[^=\r\n<>\"]{{1,200}}?"
    rf"(?:(?:[ ]?[,;+/][ ]?|_){_X500_KEY}\s?=[^=\r\n<>\"]{{1,200}}?){{1,20}}"
    rf"(?=[\r\n<>\"')\]]|[ ]?[,;/](?![ ]?{_X500_KEY}\s?=)|@|\.?[ ](?!\S*=)(?-i:[a-z(])|\.?\Z)"
)
_X500_PART = _compiled(
    rf"(?i)({_X500_KEY})(\s?=)(.*?)(?=(?:[ ]?[,;+/][ ]?|_){_X500_KEY}\s?=|\Z)", re.DOTALL
)
# Containers, not people.
_X500_GROUP = frozenset({"recipients", "users", "configuration", "microsoft exchange", "system"})
_HOST_NAME = _compiled(r"(?i)(?:\*\.)?[a-z0-9-]+(?:\.[a-z0-9-]+)+")


# --- numbers ---
_IPV4 = _compiled(r"(?<![0-9])(?<![0-9]\.)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9])(?!\.[0-9])")
_IPV6 = _compiled(
    r"(?i)(?<![0-9a-z])(?:IPv6:)?(?:[0-9a-f]{1,4}|:(?=:))(?::[0-9a-f]{0,4}){2,7}"
    r"(?:(?:\.[0-9]{1,3}){3})?"
    r"(?![0-9a-z])(?:%[a-z0-9]{1,15})?"
)
# A zone such as +1000 has four digits and then a space; a country code has at most three.
_PHONE = _compiled(
    r"(?i)(?<![0-9a-z])(?:\+|%2B)[1-9](?:[0-9]{6,14}(?![0-9])"
    r"|[0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)|(?<=[ .-])[0-9]{1,4})"
    r"(?:[ .-]{1,2}[0-9]{2,8}){1,4}(?![0-9]))"
)


def _normal_ip(value: str) -> str | None:
    """The canonical spelling of an IP address, a mapped IPv4 as IPv4; None if it is not one."""
    if ":" not in value:
        value = ".".join(part.lstrip("0") or "0" for part in value.split("."))
    try:
        address = ipaddress.ip_address(value.partition("%")[0])
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def _host(name: str) -> str:
    """A host name or IP address, normalised for comparison with keep_hosts."""
    bare = name.strip().strip("[]").rstrip(".").lower()
    return _normal_ip(bare.removeprefix("ipv6:")) or bare


class Redactor:
    """Redacts under one key; host names and IP addresses in `keep_hosts` stay readable."""

    __slots__ = ("_keep", "_key")

    def __init__(self, key: bytes, keep_hosts: Iterable[str] = ()) -> None:
        self._key = key
        names = frozenset(map(_host, keep_hosts))
        # their labels, too: a long one looks like a token
        self._keep = names.union(*(name.split(".") for name in names))

    def hosts(self, *names: str) -> Redactor:
        """The same redactor, which also leaves these hosts readable."""
        return Redactor(self._key, self._keep.union(names))

    def __call__(self, text: str) -> str:
        if _is_clean(text):
            return text
        for _ in range(_ROUNDS):
            before, text = text, self._round(_ENCODED_WORDS.sub(self._encoded_word, text))
            if text == before:
                break
        return text

    def _round(self, text: str) -> str:
        if "=" in text and _X500_HINT.search(text):
            text = _X500.sub(self._x500, text)
        text = self._numbers(self._addresses(self._credentials(text)))
        return _OPAQUE.sub(self._opaque_word, text)

    def _token(self, value: str) -> str:
        # surrogatepass: undecodable bytes of a reply arrive as lone surrogates
        digest = hmac.digest(self._key, value.encode("utf-8", "surrogatepass"), "sha256")
        return f"<redacted:{digest[:4].hex()}>"

    def _encoded_word(self, found: re.Match[str]) -> str:
        decoded = "".join(_unword(*word) for word in re.findall(_ENCODED_WORD, found[0]))
        return self._tokens_of(decoded) or found[0]

    def _tokens_of(self, decoded: str) -> str:
        """The tokens of a decoded text, without the rest of it; empty if nothing is redacted."""
        redacted = self._round(decoded)
        if redacted == decoded:
            return ""
        return " ".join(_TOKEN.findall(redacted))

    def _x500(self, found: re.Match[str]) -> str:
        return _X500_PART.sub(self._x500_part, found[0])

    def _x500_part(self, found: re.Match[str]) -> str:
        key, equals, value = found.groups()
        bare = value.strip()
        is_person = (
            key.lower() in _X500_PERSON
            and bare.lower() not in _X500_GROUP
            and not _HOST_NAME.fullmatch(bare)
        )
        if not bare or not is_person or _TOKEN.fullmatch(bare):
            return found[0]
        before, _, after = value.partition(bare)
        return f"{key}{equals}{before}{self._token(bare.casefold())}{after}"

    def _credentials(self, text: str) -> str:
        if "://" in text and "@" in text:
            text = _URL_LOGIN.sub(self._url_login, text)
        if _SECRET_HINTS.search(text.lower()):
            text = _SASL.sub(self._sasl, _SECRET.sub(self._secret, text))
        return _KNOWN_KEY.sub(lambda found: self._token(found[0]), text)

    def _url_login(self, found: re.Match[str]) -> str:
        is_hint = found[0] == _PLACEHOLDER_LOGIN and found.string.startswith("@host:", found.end())
        if is_hint:
            return found[0]
        return self._token(found[0])

    def _secret(self, found: re.Match[str]) -> str:
        head, value = found["head"], found["value"]
        bare = value.strip("\"'").rstrip(".)")
        is_prose = not head.endswith("=") and _PROSE.fullmatch(bare.rstrip(":")) is not None
        is_word = head[:5].lower() == "basic" and bare.isalpha() and bare.lower() == bare
        if not bare or is_prose or is_word or bare.startswith("realm="):
            return found[0]
        before, _, after = value.partition(bare)
        return f"{head}{before}{self._token(bare)}{after}"

    def _sasl(self, found: re.Match[str]) -> str:
        head, blob = found.groups()
        is_word = blob.isalpha() and blob in (blob.lower(), blob.capitalize())
        if is_word or _MECHANISM.fullmatch(blob):
            return found[0]
        return head + self._token(blob)

    def _opaque_word(self, found: re.Match[str]) -> str:
        word = found[0]
        decoded = _unbase64(word)
        if _is_login(decoded):
            return self._tokens_of(decoded.decode("ascii").replace("\0", " ")) or self._token(word)
        is_kept = word.lower() in self._keep or _GMAIL_ID.match(found.string, found.end())
        if is_kept or not _is_opaque(word):
            return word
        return self._token(word)

    def _addresses(self, text: str) -> str:
        if "<" in text:
            text = _BRACKETED.sub(self._bracketed, text)
            text = _MESSAGE_ID.sub(
                lambda found: found[1] + self._token(_normal_address(found[2])), text
            )
        if any(hint in text for hint in _AT_HINTS):
            text = self._bare_addresses(text)
        return text

    def _bracketed(self, found: re.Match[str]) -> str:
        """An address in angle brackets, which may be folded anywhere; not tags and URLs."""
        inside = _FOLD.sub("", found[1]).strip()
        if "://" in inside or not _ONE_ADDRESS.fullmatch(inside) or inside in _PLACEHOLDERS:
            return found[0]
        return self._token(_normal_address(inside))

    def _bare_addresses(self, text: str) -> str:
        """Redact the address around each at sign; matching leftwards on reversed text is linear."""
        reverse = ""
        size = len(text)
        parts: list[str] = []
        done = 0
        for at in _AT.finditer(text):
            if at.start() < done:
                continue
            sigil = ""
            if not at["literal"]:
                sigil = at[0][0]
            end = _domain_end(text, at.end(), sigil)
            if not _is_domain(text[at.end() : end], sigil):
                continue
            reverse = reverse or text[::-1]
            local = _LOCAL_REVERSED.match(reverse, size - at.start(), size - done)
            if local is None:
                continue
            start = _skip(text, size - local.end(), at.start())
            if start == at.start() or text[start:end] in _PLACEHOLDERS:
                continue
            token = self._token(_normal_address(text[start:end], sigil))
            start, end = _with_brackets(text, start, end)
            parts += (text[done:start], token)
            done = end
        return "".join((*parts, text[done:]))

    def _numbers(self, text: str) -> str:
        if text.count(":") >= 2:
            text = _IPV6.sub(self._ipv6, text)
        if text.count(".") >= 3:
            text = _IPV4.sub(self._ipv4, text)
        if "+" in text or "%2" in text:
            text = _PHONE.sub(self._phone, text)
        return text

    def _ipv4(self, found: re.Match[str]) -> str:
        address = _normal_ip(found[0])
        if address is None or address in self._keep:
            return found[0]
        return self._token(address)

    def _ipv6(self, found: re.Match[str]) -> str:
        value = found[0].lower().removeprefix("ipv6:")
        bare = value
        if not value.endswith("::"):
            bare = value.rstrip(":")
        address = _normal_ip(bare)
        is_time_or_mac = address is None and "::" not in bare
        if is_time_or_mac or address in self._keep or not bare.strip(":"):
            return found[0]
        return self._token(address or bare) + value[len(bare) :]

    def _phone(self, found: re.Match[str]) -> str:
        digits = re.sub("[^0-9]", "", found[0].lower().removeprefix("%2b"))
        if not 7 <= len(digits) <= 15:
            return found[0]
        return self._token("+" + digits)


def redact_pii(text: str, key: bytes, keep_hosts: Iterable[str] = ()) -> str:
    """`Redactor` for one text."""
    return Redactor(key, keep_hosts)(text)
