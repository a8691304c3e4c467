"""Mails around every limit and rule of `enqueue`, as fields of `Mail`: hand-written and generated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pillarbox import Attachment

Fields = dict[str, Any]
PLAIN: Fields = {
    "sender": "Shop <shop@example.com>",
    "to": ["user@example.net"],
    "subject": "Hi",
    "text": "Body",
}
NOW = datetime.now(UTC)
LABEL = "l" * 63
# Every character that some rule treats in its own way, and neighbours of each range.
ODD = "".join(
    map(
        chr, (1, 8, 9, 10, 11, 13, 0x1F, 0x7F, 0x80, 0x85, 0x9F, 0xA0, 0xA1, 0x1680, 0x180E, 0x1FFF)
    )
)
ODD += "\u2000\u200b\u200f\u2010\u2027\u2028\u2029\u202e\u202f\u2030\u205e\u205f\u206f\u2070\u2fff\u3000\u3001"
ODD += "\ufefe\ufeff\uff0e\uffff\U0001f600\U0010ffff ßé漢İıK \"'(),.:;<>@[\\]^_`{|}~-+=!#$%&*/?"

ADDRESSES = [
    "", " ", "a", "@", "a@", "@b", "a@b", "a@b.example", "A@B.EXAMPLE", " a@b", "a@b ", "a @b", "a@ b",
    "a@b@c", "a..b@c", ".a@b", "a.@b", "a@b.", "a@.b", "a@b..c", "a.b.c@d.e.f", "a@-b", "a@b-",
    "a@b-.c", "a@b.-c", "a@b--c", "a@b_c", "a_b@c", "a+b@c", "a=b@c", "o'neil@c", "a/b@c",
    "!#$%&'*+/=?^_`{|}~-@c", "a@b,c", "a,b@c", "a;b@c", "a:b@c", "mailto:a@b", "a@b:25", "a@[1.2.3.4]",
    "a@[1.2.3]", "a@[1.2.3.4444]", "a@[IPv6:::1]", "a@[ipv6:::1]", "a@[IPv6:]",
    "a@[IPv6:" + "1" * 45 + "]", "a@[IPv6:" + "1" * 46 + "]", "a@[x]", "a@[1.2.3.4", "a@1.2.3.4",
    '"a b"@c', '"a@b"@c', '"a\\"b"@c', '"a\\é"@c', '"a"b"@c', '""@c', '"a\\"@c', '"é"@c', '"\x85"@c',
    '"a"@', '"a@c', '"\t"@c', "a\\@c", "(x)a@b", "a(x)@b", "a@b(x)", "é@c", "é@ü.example", "用户@例子.公司",
    "ユーザー@c", "\u200ba@c", "a\u3000b@c", "a\u1680b@c", "a@b\u1680c", "a@b\u3002c", "a@b\uff0ec",
    "a\u202eb@c", "😀@😀.example", "a@xn--bcher-kva.example", "l" * 64 + "@c", "l" * 65 + "@c",
    "é" * 32 + "@c", "é" * 32 + "x@c", '"' + "l" * 62 + '"@c', '"' + "l" * 63 + '"@c', f"a@{LABEL}.c",
    f"a@{LABEL}x.c", f"a@{'é' * 63}", f"a@{'é' * 64}", f"a@{LABEL}.{LABEL}.{LABEL}.{'d' * 60}",
    f"a@{LABEL}.{LABEL}.{LABEL}.{'d' * 61}", f"a@{'é' * 63}.{'é' * 62}.c", f"a@{'é' * 63}.{'é' * 63}.c",
    "a@" + "b." * 125 + "c", "a@" + "b." * 126 + "c", "<a@b>", "<>", "< a@b>", "<a@b >", "<a@b", "a@b>",
    "x <a@b>", "x<a@b>", "x <a@b> ", " <a@b>", "x <a@b>>", "x <<a@b>>", "x <y> <a@b>", "x > <a@b>",
    '"x <y>" <a@b>', "x <a>", '"Doe, John" <a@b>', "Doe, John <a@b>", 'x <"y z"@b>', 'x <"y<z"@b>',
    "é <a@b>", "x\ty <a@b>", "x\ny <a@b>", "x\r\nBcc: e@f <a@b>", "a@b\n", "\na@b", "a@b\r\n",
    "a\x7f@b", "\x01a@b", "x" * 993 + " <a@b>", "x" * 992 + " <a@b>", "é" * 496 + " <a@b>",
    "é" * 497 + "<a@b>", "x" * 999, "\x01" * 999, "x" * 991 + "\n <a@b>", "a@b, c@d", "a@b;c@d",
]  # fmt: skip


def _sized(octets: int, letter: str = "x") -> str:
    return (letter * octets).encode()[:octets].decode(errors="ignore").ljust(1)


def _hand_written() -> Iterator[Fields]:
    """Changes to PLAIN."""
    for address in ADDRESSES:
        for field in ("sender", "to", "cc", "bcc", "reply_to"):
            yield {field: address}
    yield from (
        {"to": to}
        for to in ([], (), "", [None], ["a@b", None], ["a@b", ""], ["a@b"] * 100, ["a@b"] * 101)
    )
    yield from ({"to": to, "cc": "c@d"} for to in ([], ["a@b"] * 99, ["a@b"] * 100, ["x"] * 101))
    yield {"to": ["a@b"] * 34, "cc": ["a@b"] * 33, "bcc": ["a@b"] * 33}
    yield {"to": ["a@b"] * 34, "cc": ["a@b"] * 33, "bcc": ["a@b"] * 34}
    yield {"to": [], "bcc": "a@b"}
    yield from ({"reply_to": ["a@b"] * count} for count in (0, 100, 101))
    for octets in (997, 998, 999):
        yield from ({"subject": _sized(octets, letter)} for letter in "xé漢😀")
    yield from ({"subject": f"a{odd}b"} for odd in ODD)
    yield from (
        {"subject": subject}
        for subject in (None, "", "\t", "\n", "a\r\nBcc: x@y", "x" * 999 + "\n")
    )
    for field in ("text", "html"):
        yield from ({field: _sized(2**20 + more, letter)} for more in (-1, 0, 1) for letter in "xé")
        yield {field: ODD}
    yield from _contents()
    yield from _headers()
    yield from _attachments()
    yield from _unsubscribing()
    yield from _labels()
    yield from _numbers_and_times()
    yield from _wrong_types()


def _contents() -> Iterator[Fields]:
    for text in (None, "", "x"):
        for html in (None, "", "x"):
            yield {"text": text, "html": html}
            yield {"text": text, "html": html, "raw": b"x"}
            yield {"text": text, "html": html, "attachments": []}
    bare: Fields = {"text": None}
    yield from (bare | {"raw": raw} for raw in (b"", b"x", b"\0", b"a\0b", b"\xff\xfe"))
    lines = (
        b"a\r\nb",
        b"a\nb\r\n",
        b"\n",
        b"\r\n\r\n",
        b"\\r\\015\n",
        b"\r",
        b"a\rb",
        b"\n\r",
        b"a\r\r\nb",
        b"\xff\r\xfe",
    )
    yield from (bare | {"raw": raw} for raw in lines)
    # Counted as it travels, with CRLF.
    yield from (
        bare | {"raw": b"x\n" * ((25 * 2**20 - 1026) // 3) + b"x" * more} for more in (0, 1, 2)
    )
    # 1024 octets of overhead and two of subject
    yield from (bare | {"raw": b"x" * (25 * 2**20 - 1026 + more)} for more in (0, 1))
    for parts in (
        {"headers": {"X-A": "b"}},
        {"attachments": [Attachment("a", b"")]},
        {"reply_to": "a@b"},
    ):
        yield bare | {"raw": b"x"} | parts
        yield bare | parts
    yield bare | {
        "raw": b"x",
        "headers": {},
        "attachments": [],
        "reply_to": [],
        "cc": "c@d",
        "bcc": ["e@f"],
    }


def _headers() -> Iterator[Fields]:
    names = [
        "X-A",
        "x",
        "",
        " ",
        "X A",
        "X:A",
        "é",
        "X\n",
        "x" * 76,
        "x" * 77,
        "!",
        "~",
        "9",
        ";",
        "Date",
        "Message-ID",
    ]
    names += [
        "From",
        "FROM",
        "to",
        "Cc",
        "bcc",
        "Subject",
        "Reply-To",
        "Sender",
        "MIME-Version",
        "Received",
        "Return-Path",
    ]
    names += [
        "Content-Type",
        "content-x",
        "CONTENT-ID",
        "content",
        "Resent-To",
        "RESENT-",
        "resent",
        "X-From",
        "List-ID",
    ]
    yield from ({"headers": {name: "v"}} for name in names)
    yield from ({"headers": {"X-A": f"a{odd}b"}} for odd in ODD)
    yield from (
        {"headers": {"X-A": _sized(octets, letter)}} for octets in (998, 999) for letter in "xé漢"
    )
    yield from (
        {"headers": {"X-A": value}}
        for value in ("", None, 1, True, ["x"], {"a": "b"}, "x" * 999 + "\n")
    )
    yield from (
        {"headers": {f"X-{number}": "v" for number in range(count)}} for count in (0, 50, 51)
    )
    yield {"headers": {"X-Longer": "bad\n", "to": "x", "X-B": 1, "": ""}}
    yield {"headers": {"X-B": 1, "X-A": "\n"}}
    yield {"headers": {"bb": 1, "é": "\n", "From": ""}}


def _unsubscribing() -> Iterator[Fields]:
    url = "https://shop.example/u?id=1"
    urls: list[Any] = [
        url, "http://shop.example", "HTTPS://shop.example", "https:", "https://", "https:///x", "ftp://shop.example",
        "https://[::1]/x", "mailto:u@shop.example", "mailto:u@shop.example?subject=Stop%20it", "mailto:", "mailto:u",
        "mailto:@x", "javascript:alert(1)", "", " ", "u@shop.example", f"<{url}>", f"{url},x", f"{url} x", f"{url}\t",
        f"{url}\r\nBcc: x@y.example", f"{url}\n", f"\n{url}", f"{url}\x7f", f"{url}é", "https://é.example",
        f"{url}{{{{id}}}}", "https://shop.example/{id}", f"{url}|~", None, 1,
    ]  # fmt: skip
    for value in urls:
        yield {"list_unsubscribe": value}
        yield {"list_unsubscribe": [url, value]}
    yield from ({"list_unsubscribe": [url] * count} for count in (0, 2, 10, 11))
    yield from ({"list_unsubscribe": f"https://x/{'y' * (985 + more)}"} for more in (0, 1))
    yield from (
        {"list_unsubscribe": [f"https://x/{'y' * (470 + more)}"] * 2} for more in (13, 14, 15, 16)
    )
    yield {"list_unsubscribe": url, "raw": b"x", "text": None}
    yield {"list_unsubscribe": [], "raw": b"x", "text": None}
    for name in ("List-Unsubscribe", "list-unsubscribe-POST", "List-Unsubscribe-X"):
        yield {"list_unsubscribe": url, "headers": {name: "<x>"}}
        yield {"headers": {name: "<https://shop.example/u>"}}
    for count in (48, 49, 51):
        yield {"list_unsubscribe": url, "headers": {f"X-{number}": "x" for number in range(count)}}
    yield {"list_unsubscribe": url, "headers": "none"}
    yield {"list_unsubscribe": {"a": url}}


def _attachments() -> Iterator[Fields]:
    def one(filename: Any = "a.txt", content: Any = b"x", *rest: Any) -> Fields:
        return {"attachments": [Attachment(filename, content, *rest)]}

    for name in (
        "",
        None,
        "a",
        "é" * 127,
        "é" * 128,
        "x" * 255,
        "x" * 256,
        "a/b",
        "a\\b",
        "..",
        "a\nb",
        "a\x7f",
        " ",
        'a"b',
        5,
    ):
        yield one(name)
    types = [
        "text/plain",
        "text",
        "",
        "a/b",
        "/b",
        "a/",
        "a/b/c",
        "text/plain; charset=utf-8",
        "a/b;c=d",
        "a/b ; c=d",
        7,
    ]
    types += [
        "a/b;c",
        "a/b;c=",
        'a/b;c="d e"',
        'a/b;c="d',
        'a/b;c="é"',
        "é/b",
        "a/b\n",
        "a/b; c=d; e=f",
        "a/b;",
        "a b/c",
        None,
    ]
    types += [
        "a" * 127 + "/" + "b" * 127,
        "a" * 128 + "/b",
        "a/" + "b" * 128,
        "a/b;c=" + "d" * 249,
        "a/b;c=" + "d" * 250,
    ]
    yield from (one("a", b"", type_) for type_ in types)
    for content_id in (
        "a",
        "a@b",
        "",
        "<a>",
        "a b",
        "a>",
        "é",
        "a\n",
        "x" * 255,
        "x" * 256,
        None,
        5,
        "!;=?~",
    ):
        yield one("a", b"", "a/b", content_id)
    yield from (one("a", content) for content in (b"", b"\0", bytes(range(256)), None))
    yield from ({"attachments": [Attachment("a", b"")] * count} for count in (100, 101))
    # Body and overhead make 1030; base64 counts in fours.
    yield from (one("a", b"x" * ((25 * 2**20 - 1030) // 4 * 3 + more)) for more in (0, 1))
    yield {"text": None, "attachments": [Attachment("a", b"")]}
    yield {"attachments": [Attachment("a", b""), Attachment("", b"")]}


def _labels() -> Iterator[Fields]:
    for label in ("", " ", "a", "x" * 64, "x" * 65, "é" * 32, "é" * 33, *ODD):
        yield {"kind": label}
        yield {"tags": [label]}
        yield {"tags": label}
        yield {"idempotency_key": label}
    yield from (
        {"tags": tags} for tags in ([], ["a"] * 20, ["a"] * 21, ["a", None], ["a", ""], [""] * 21)
    )
    yield from (
        {"idempotency_key": key} for key in ("", "k" * 255, "k" * 256, "é" * 127, "é" * 128, "a\nb")
    )
    yield from (
        {"priority": lane} for lane in ("urgent", "normal", "bulk", "", "high", "Normal", "normal ")
    )
    yield from (
        {"metadata": data}
        for data in ({}, {"a": 1}, {"": None}, {"é": [1.5, {"b": "\n"}]}, {"a": "\\u0000"})
    )


def _numbers_and_times() -> Iterator[Fields]:
    yield from (
        {"max_attempts": n}
        for n in (None, -1, 0, 1, 2, 99, 100, 101, 2**31 - 1, 2**31, -(2**31) - 1, 10**30)
    )
    day, hours = timedelta(days=1), timedelta(hours=5)
    for send_at in (None, NOW - day, NOW + day, NOW + 365 * day, datetime(1970, 1, 1, tzinfo=UTC)):
        for expires_at in (
            None,
            NOW + day,
            NOW + 2 * day,
            NOW + day - timedelta(microseconds=1),
            NOW + 365 * day,
        ):
            yield {"send_at": send_at, "expires_at": expires_at}
    yield {"send_at": (NOW + day).astimezone(tz=None), "expires_at": NOW + day + hours}


def _wrong_types() -> Iterator[Fields]:
    for field in (
        "sender",
        "subject",
        "text",
        "html",
        "kind",
        "priority",
        "idempotency_key",
        "tenant",
        "class_",
    ):
        yield from ({field: value} for value in (1, 1.5, True, ["x"], {"a": "b"}, []))
    for field in ("to", "cc", "bcc", "reply_to", "tags"):
        yield from (
            {field: value} for value in (1, True, {"a": "b"}, ["a@b", 1], [["a@b"]], [True], [{}])
        )
    yield from ({"headers": value} for value in (1, "x", ["x"], True))
    yield from (
        {"attachments": value} for value in (1, "x", {"a": "b"}, True, ["x"], [None], [["x"]])
    )
    yield from ({"metadata": value} for value in (1, "x", ["x"], True, []))
    yield from ({"max_attempts": value} for value in (1.5, "1", True, ["x"], {}))
    yield from (
        {field: value} for field in ("send_at", "expires_at") for value in (1, True, "soon", ["x"])
    )


# What only the database can know: Python accepts, SQL refuses with this code and field.
ONLY_THE_DATABASE: list[tuple[Fields, tuple[str, str]]] = [
    ({"tenant": ""}, ("unknown_tenant", "tenant")),
    ({"tenant": "Default"}, ("unknown_tenant", "tenant")),
    ({"tenant": "'; DROP TABLE x; --"}, ("unknown_tenant", "tenant")),
    ({"class_": "gold"}, ("unknown_class", "class")),
    ({"class_": "x" * 10_000}, ("unknown_class", "class")),
    ({"send_at": NOW + timedelta(days=367)}, ("out_of_range", "send_at")),
    ({"send_at": datetime.max.replace(tzinfo=UTC)}, ("out_of_range", "send_at")),
    ({"expires_at": NOW - timedelta(seconds=1)}, ("out_of_range", "expires_at")),
    ({"expires_at": datetime.min.replace(tzinfo=UTC)}, ("out_of_range", "expires_at")),
    ({"metadata": {"a": "x" * 16_384}}, ("too_big", "metadata")),
    ({"metadata": {"a": "é" * 8_190}}, ("too_big", "metadata")),
]

_odd_text = st.text(st.sampled_from("ab.@<>-" * 3 + ODD), max_size=12)
_mailbox = st.one_of(
    _odd_text,
    st.builds(
        "{}@{}".format,
        st.text(st.sampled_from("abé." + ODD), max_size=6),
        st.sampled_from(["b.example", "é.x"]),
    ),
    st.builds("{}@{}".format, st.just("a"), st.text(st.sampled_from("abé.-" + ODD), max_size=6)),
    st.builds("{} <{}>".format, _odd_text, st.sampled_from(["a@b.example", '"x y"@b', "é@é"])),
    st.builds('"{}"@{}'.format, _odd_text, st.sampled_from(["b.example", "[1.2.3.4]"])),
    st.sampled_from(["a@b.example", "A <a@b.example>"]),
)
_label = st.text(st.sampled_from("abcé" * 20 + ODD), max_size=70)
_attachment = st.builds(
    Attachment,
    st.text(st.sampled_from("abé." * 20 + ODD), max_size=20),
    st.binary(max_size=20),
    st.one_of(
        st.just("text/plain"),
        st.builds("text/{}".format, st.text(st.sampled_from("ab;=\" '" + ODD), max_size=6)),
    ),
    st.one_of(st.none(), _odd_text),
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "sender": _mailbox,
    "to": st.lists(_mailbox, max_size=3),
    "cc": st.lists(_mailbox, max_size=2),
    "bcc": st.lists(_mailbox, max_size=2),
    "reply_to": st.lists(_mailbox, max_size=2),
    "subject": _label,
    "text": st.one_of(st.none(), _label),
    "html": st.one_of(st.none(), _label),
    "raw": st.binary(max_size=5),
    "headers": st.dictionaries(
        st.one_of(st.sampled_from(["X-A", "X-B", "From", "x-é"]), _odd_text),
        st.one_of(_label, st.integers()),
        max_size=3,
    ),
    "attachments": st.lists(_attachment, max_size=2),
    "kind": _label,
    "priority": st.sampled_from(["urgent", "normal", "bulk", "x"]),
    "max_attempts": st.integers(-2, 103),
    "idempotency_key": _label,
    "tags": st.lists(_label, max_size=3),
}
_changes = st.lists(st.sampled_from(sorted(_FIELDS)), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _FIELDS[name] for name in names})
)


def _generated(count: int) -> list[Fields]:
    """Mails with one to four fields drawn from what may break a rule; the same ones in every run."""
    drawn: list[Fields] = []

    @seed(20)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_changes)
    def collect(changes: Fields) -> None:
        drawn.append(changes)

    collect()
    return drawn


def corpus() -> list[Fields]:
    """Every mail, as the fields of `Mail`."""
    return [PLAIN | changes for changes in (*_hand_written(), *_generated(900))]
