"""The composer against the standard library: generated and real mails parse back to what was meant."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import getaddresses, parsedate_to_datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox.deliver.mime import compose, message_id_header, needs_smtputf8
from pillarbox.model.address import address_of, ascii_domain, split_mailbox
from pillarbox.model.message import Attachment, Content, Message

ID = UUID("0192f0c1-2b3c-7d4e-8f50-61728394a5b6")
AT = datetime(2026, 3, 1, 9, 5, 7, 123456, tzinfo=UTC)
Pair = tuple[str, str]  # display name, address
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def mail(**changes: Any) -> Message:
    fields = {
        "sender": "shop@example.com",
        "to": ["jane@example.org"],
        "subject": "Hi",
        "created_at": AT,
    }
    return Message(**{"id": ID, **fields, **changes})


def parse(data: bytes, how: policy.EmailPolicy = policy.default) -> EmailMessage:
    return cast("EmailMessage", message_from_bytes(data, policy=how))


def mailboxes(data: bytes, name: str) -> list[Pair]:
    """Names and addresses of a field by the library's old reader, checked against its new one.

    The new one (3.11) keeps the blank between adjacent encoded words of a name, which RFC 2047 6.2
    says to drop, and makes one blank of several inside a word: there only what is not blank can be
    compared.
    """
    field = message_from_bytes(data)[name]
    old = [
        (str(make_header(decode_header(n))), a) for n, a in getaddresses([field] if field else [])
    ]
    new = parse(data)[name].addresses if field else []
    assert [(solid(a.display_name), a.addr_spec) for a in new] == [(solid(n), a) for n, a in old]
    return old


def solid(text: str) -> str:
    return "".join(text.split())


def newlines(text: str) -> str:
    """What a body becomes: all line ends alike, and one at its end."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.endswith("\n") else text + "\n"


def text_of(part: EmailMessage) -> str:
    return str(part.get_content()).replace("\r\n", "\n")


def structure(part: EmailMessage) -> Any:
    if part.is_multipart() and part.get_content_maintype() == "multipart":
        return part.get_content_type(), [structure(child) for child in part.iter_parts()]
    return part.get_content_type()


def assert_legal(data: bytes) -> None:
    """CRLF only, 7-bit, no line over 998, no encoded word over 75, and no defect."""
    rest = data.replace(b"\r\n", b"")
    assert not re.search(rb"[\r\n\0]", rest)
    assert rest.isascii()
    assert max(map(len, data.split(b"\r\n"))) <= 998
    for part in parse(data).walk():
        assert part.defects == []
        assert [defect for value in part.values() for defect in value.defects] == []
    for word in re.findall(rb"=\?utf-8\?[bq]\?[^?]*\?=", data.partition(b"\r\n\r\n")[0]):
        assert len(word) <= 75


# --- generated mails ----------------------------------------------------------------------------------------

words = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(codec="ascii"))
)
prose = st.builds(lambda text, times: text * times, words, st.sampled_from([1, 1, 5, 200]))
line = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=200).map(
    lambda s: s.strip(" ")
)
atext = st.sampled_from("abcXYZ019!#$%&'*+/^_`{|}~-")
locals_ = st.lists(st.text(atext, min_size=1, max_size=12), min_size=1, max_size=3).map(".".join)
domains = st.from_regex(r"[a-z0-9]{1,20}(-[a-z0-9]{1,20})?(\.[a-z0-9]{1,20}){0,3}", fullmatch=True)
addresses = st.builds("{}@{}".format, locals_, domains)
pairs = st.tuples(st.one_of(st.just(""), line.map(str.strip)), addresses)
files = st.builds(
    Attachment,
    filename=line.map(str.strip).filter(bool),
    content=st.binary(max_size=400),
    content_type=st.sampled_from(
        ["application/pdf", "image/png", "application/octet-stream", "text/csv"]
    ),
    content_id=st.sampled_from([None, None, "logo@example.com", "<a.b>"]),
)
maybe = st.one_of(st.none(), prose)
contents = st.builds(Content, text=maybe, html=maybe, attachments=st.lists(files, max_size=3))


def written(pair: Pair) -> str:
    name, address = pair
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}" <{address}>' if name else address


def expected_structure(content: Content) -> Any:
    kinds = [
        (a.content_type, bool(a.content_id and content.html is not None))
        for a in content.attachments
    ]
    inline, attached = (
        [kind for kind, within in kinds if within is wanted] for wanted in (True, False)
    )
    bodies: list[Any] = ["text/plain"] if content.text is not None else []
    if content.html is not None:
        bodies.append(("multipart/related", ["text/html", *inline]) if inline else "text/html")
    if len(bodies) > 1:
        bodies = [("multipart/alternative", bodies)]
    return ("multipart/mixed", [*bodies, *attached]) if attached else (bodies or ["text/plain"])[0]


def assert_same_content(parsed: EmailMessage, content: Content) -> None:
    leaves = [part for part in parsed.walk() if not part.is_multipart()]
    texts = [text for text in (content.text, content.html) if text is not None]
    bodies = [part for part in leaves if part.get_content_disposition() is None]
    if texts or content.attachments:
        assert [text_of(part) for part in bodies] == [newlines(text) for text in texts]
    files = [part for part in leaves if part.get_content_disposition()]
    # Not get_filename(): that takes quotes and angle brackets off a name that has them at both
    # ends.
    names = [part["Content-Disposition"].params["filename"] for part in files]
    found = sorted(zip(names, (part.get_payload(decode=True) for part in files), strict=True))
    assert found == sorted((a.filename, a.content) for a in content.attachments)
    inline = {part["Content-ID"] for part in files if part.get_content_disposition() == "inline"}
    assert inline == {f"<{a.content_id.strip('<>')}>" for a in content.attachments if a.content_id}


@given(contents)
def test_any_content_parses_back(content: Content) -> None:
    data = compose(mail(), content)
    assert_legal(data)
    for how in (policy.default, policy.SMTP):
        parsed = parse(data, how)
        assert structure(parsed) == expected_structure(content)
        assert_same_content(parsed, content)


@given(
    pairs, st.lists(pairs, max_size=12), st.lists(pairs, max_size=3), st.lists(pairs, max_size=2)
)
def test_any_mailboxes_parse_back(
    sender: Pair, to: list[Pair], cc: list[Pair], reply_to: list[Pair]
) -> None:
    lists = {
        "to": [*map(written, to)],
        "cc": [*map(written, cc)],
        "reply_to": [*map(written, reply_to)],
    }
    data = compose(mail(sender=written(sender), **lists), Content(text="x"))
    assert_legal(data)
    assert mailboxes(data, "From") == [sender]
    assert (mailboxes(data, "To"), mailboxes(data, "Cc")) == (to, cc)
    assert mailboxes(data, "Reply-To") == reply_to


@given(line)
@example("=?utf-8?q?not_a_word?=")
@example("two  blanks   and\tmore" + " word" * 30)
@example("x" * 3000)
@example("\U0001f468\u200d\U0001f469\u200d\U0001f467" * 30)
def test_any_subject_parses_back(subject: str) -> None:
    data = compose(mail(subject=subject), Content(text="x"))
    assert_legal(data)
    assert max(map(len, data.split(b"\r\n"))) <= 78
    assert parse(data)["Subject"] == subject


@given(line.filter(lambda value: "=?" not in value))
@example("<mailto:u@example.com>, <https://example.com/" + "u" * 300 + ">")
@example("{" + "j" * 3000 + "}")
def test_any_custom_header_parses_back(value: str) -> None:
    data = compose(mail(headers={"X-Custom": value}), Content(text="x"))
    assert_legal(data)
    # Of a field folded behind its colon, 3.11's parser keeps the blank that starts the next line.
    assert parse(data)["X-Custom"].strip(" ") == value


# --- as EmailMessage would ----------------------------------------------------------------------------------

tame = st.text("abc DEF,.;:'()@éüßш日本語🎉", min_size=1, max_size=30).map(str.strip).filter(bool)


def by_the_library(message: Message, content: Content) -> EmailMessage:
    made = EmailMessage(policy=policy.SMTP)
    for field, listed in (("From", [message.sender]), ("To", message.to)):
        split = [split_mailbox(mailbox) for mailbox in listed]
        made[field] = [Address(name or "", addr_spec=address) for name, address in split]
    made["Subject"] = message.subject
    made["Date"] = message.created_at.replace(microsecond=0)
    made["Message-ID"] = message_id_header(message.id, message.sender)
    if content.text is not None:
        made.set_content(content.text)
    if content.html is not None:
        made.add_alternative(content.html, subtype="html")
    for file in content.attachments:
        maintype, subtype = file.content_type.split("/")
        made.add_attachment(
            file.content, maintype=maintype, subtype=subtype, filename=file.filename
        )
    return made


@given(
    tame, tame, st.lists(tame, min_size=1, max_size=4), prose, prose, st.lists(files, max_size=2)
)
def test_equals_what_the_library_composes(
    subject: str, name: str, to: list[str], text: str, html: str, attached: list[Attachment]
) -> None:
    recipients = [written((who, "b@example.org")) for who in to]
    message = mail(sender=written((name, "a@example.com")), to=recipients, subject=subject)
    plain = [
        Attachment(f"file {n}.bin", file.content, file.content_type)
        for n, file in enumerate(attached)
    ]
    content = Content(text=text, html=html, attachments=plain)
    composed, library = compose(message, content), by_the_library(message, content)
    ours, theirs = parse(composed), parse(library.as_bytes())
    assert structure(ours) == structure(theirs)
    # What the library holds, not what it writes: 3.11 folds a comma between mailboxes into an
    # encoded word.
    for header in ("Subject", "Date", "Message-ID"):
        assert ours[header] == library[header]
    for header in ("From", "To"):
        held = [(a.display_name, a.addr_spec) for a in library[header].addresses]
        assert mailboxes(composed, header) == held
    for mine, other in zip(ours.walk(), theirs.walk(), strict=True):
        assert mine.get_filename() == other.get_filename()
        assert mine.get_content_disposition() == other.get_content_disposition()
        if mine.get_content_maintype() == "text" and mine.get_filename() is None:
            assert text_of(mine) == text_of(other)
        elif not mine.is_multipart():
            assert mine.get_payload(decode=True) == other.get_payload(decode=True)


# --- real mails ---------------------------------------------------------------------------------------------

ICS = b"BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nSUMMARY:Caf\xc3\xa9\r\nEND:VCALENDAR\r\n"
REAL = {
    "newsletter": (
        mail(
            headers={
                "List-Unsubscribe": "<https://example.com/u/" + "a1" * 60 + ">",
                "Precedence": "bulk",
            }
        ),
        Content(
            text="See the web version.",
            html="<table>" + "<td style='x'>Deal</td>" * 400 + "</table>",
        ),
    ),
    "invoice": (
        mail(sender='"Billing, ACME" <billing@acme.example>', subject="Invoice 2026-0042"),
        Content(
            "Attached.",
            attachments=[Attachment("Rechnung März.pdf", b"%PDF-1.7\n", "application/pdf")],
        ),
    ),
    "inline logo": (
        mail(),
        Content(
            "Hi",
            "<img src='cid:logo'>",
            attachments=[Attachment("l.png", PNG, "image/png", "logo")],
        ),
    ),
    "invite": (
        mail(subject="Invitation: standup"),
        Content(text="Join", attachments=[Attachment("invite.ics", ICS, "text/calendar")]),
    ),
    "japanese": (
        mail(
            sender="株式会社テスト <info@example.jp>",
            subject="【重要】ご注文ありがとうございます" * 5,
        ),
        Content(text="山田様\n\nありがとうございます。\n" * 50, html="<p>ご注文</p>" * 200),
    ),
    "arabic": (
        mail(to=["محمد <m@example.org>"], subject="مرحبا بكم في متجرنا"),
        Content(text="مرحبا\u200f!\n", html="<p dir=rtl>مرحبا</p>"),
    ),
    "emoji": (
        mail(subject="🎉 Party 🎂 time 👩‍👩‍👧"),
        Content(text="🎉\n.\n..\nFrom me\n--\nsig  \n"),
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_mails_parse_back(name: str) -> None:
    message, content = REAL[name]
    data = compose(message, content)
    assert_legal(data)
    parsed = parse(data)
    assert parsed["Subject"] == message.subject
    assert mailboxes(data, "From") == [
        (split_mailbox(message.sender)[0] or "", address_of(message.sender))
    ]
    assert structure(parsed) == expected_structure(content)
    assert_same_content(parsed, content)


# --- one promise each ---------------------------------------------------------------------------------------


def test_every_attempt_sends_the_same_bytes() -> None:
    message, content = REAL["inline logo"]
    assert compose(message, content) == compose(message, content)
    assert parse(compose(message, content))["Message-ID"] == f"<{ID.hex}@example.com>"


@pytest.mark.parametrize(
    "at", [AT, AT.astimezone(timezone(timedelta(hours=9))), AT.replace(tzinfo=None)]
)
def test_date_is_when_the_message_was_accepted_in_utc(at: datetime) -> None:
    date = parse(compose(mail(created_at=at), Content(text="")))["Date"]
    assert date == "Sun, 01 Mar 2026 09:05:07 +0000"
    assert parsedate_to_datetime(date) == AT.replace(microsecond=0)


def test_boundary_occurs_in_no_part() -> None:
    decoys = "".join(f"--=_{ID.hex}{tail}\n" for tail in ("a", "m", "_1a", "_1", "--"))
    content = Content(text=decoys, html=decoys, attachments=[Attachment("f", b"x")])
    assert_same_content(parse(compose(mail(), content)), content)


FIELDS = ["sender", "to", "cc", "reply_to", "subject", "value", "name", "file", "type"]


@pytest.mark.parametrize("bad", ["a\r\nBcc: x@y.example", "a\nb", "a\rb", "a\0b", "a\udc80b"])
@pytest.mark.parametrize("where", FIELDS)
def test_nothing_breaks_out_of_its_header(where: str, bad: str) -> None:
    mailbox = f"{bad} <a@example.com>"
    changes: dict[str, Any] = {
        "sender": {"sender": mailbox},
        "subject": {"subject": bad},
        "value": {"headers": {"X-A": bad}},
        "name": {"headers": [(bad, "x")]},
    }.get(where, {where: [mailbox]} if where in ("to", "cc", "reply_to") else {})
    file = Attachment(
        bad if where == "file" else "f", b"", f"text/{bad}" if where == "type" else "text/plain"
    )
    with pytest.raises(ValueError):
        compose(mail(**changes), Content(text="x", attachments=[file]))


@pytest.mark.parametrize(
    "name", ["From", "to", "BCC", "Subject", "MIME-version", "Content-Type", "Received"]
)
def test_fields_of_ours_are_not_the_callers_to_set(name: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        compose(mail(headers={name: "x"}), Content(text="x"))


def test_callers_date_message_id_and_reply_to_win() -> None:
    own = [
        ("Date", "Mon, 02 Mar 2026 00:00:00 +0000"),
        ("message-id", "<a@b.example>"),
        ("Reply-To", "Ö <r@x.example>"),
    ]
    parsed = parse(compose(mail(headers=own, reply_to=["z@x.example"]), Content(text="x")))
    assert [parsed.get_all(name) for name, _ in own] == [[value] for _, value in own]


def test_lone_surrogates_are_refused_in_bodies_too() -> None:
    with pytest.raises(ValueError):
        compose(mail(), Content(text="\ud800"))


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("short\nlines\n", "7bit"),
        ("x" * 998, "7bit"),
        ("x" * 999, "quoted-printable"),
        ("nul \0", "quoted-printable"),
        (
            "caf\u00e9 and cafe\u0301 with a lot of ASCII around them, trailing  \n" * 9,
            "quoted-printable",
        ),
        ("日本語", "base64"),
    ],
)
def test_body_encoding(text: str, encoding: str) -> None:
    data = compose(mail(), Content(text=text))
    parsed = parse(data)
    assert (parsed["Content-Transfer-Encoding"], text_of(parsed)) == (encoding, newlines(text))
    assert encoding == "7bit" or max(map(len, data.split(b"\r\n"))) <= 78


@given(st.text("a =é\t.\n", max_size=300))
@example("============aaaaaaaaééééé ")
def test_encoded_lines_stay_within_76(text: str) -> None:
    body = compose(mail(), Content(text="é" + "x" * 300 + text)).partition(b"\r\n\r\n")[2]
    assert max(map(len, body.split(b"\r\n"))) <= 76


def test_forwarded_mail_is_not_encoded_and_an_8bit_one_goes_as_a_file() -> None:
    inner = b"From: a@b.example\nSubject: in\n\nbody\n"
    files = [
        Attachment("a.eml", inner, "message/rfc822"),
        Attachment("b.eml", inner + b"\xe9", "message/rfc822"),
    ]
    forwarded, plain = parse(compose(mail(), Content(attachments=files))).iter_parts()
    assert (forwarded["Content-Transfer-Encoding"], forwarded.get_content()["Subject"]) == (
        "7bit",
        "in",
    )
    assert plain.get_content_type() == "application/octet-stream"
    assert plain.get_content() == inner + b"\xe9"


def test_content_type_parameters_are_kept() -> None:
    kind = "text/calendar; method=REQUEST; charset=utf-8"
    (part,) = parse(
        compose(mail(), Content(attachments=[Attachment("i.ics", ICS, kind)]))
    ).iter_parts()
    assert dict(part["Content-Type"].params) == {"method": "REQUEST", "charset": "utf-8"}
    assert part.get_payload(decode=True) == ICS


@pytest.mark.parametrize(
    "filename", ["a b.pdf", 'q"\\.txt', "x" * 200 + ".pdf", "日本語" * 30 + ".pdf", "=?utf-8?q?a?="]
)
def test_file_names(filename: str) -> None:
    data = compose(mail(), Content(attachments=[Attachment(filename, b"")]))
    assert max(map(len, data.split(b"\r\n"))) <= 78
    (part,) = parse(data).iter_parts()
    assert (part.get_filename(), part.get_content()) == (filename, b"")


@pytest.mark.parametrize(
    ("mailbox", "split"),
    [
        ("a@b.example", (None, "a@b.example")),
        ("<a@b.example>", (None, "a@b.example")),
        ("Doe, John <j@x.example>", ("Doe, John", "j@x.example")),
        ('"Doe, John" <j@x.example>', ("Doe, John", "j@x.example")),
        (r'"J \"JD\" D" <j@x.example>', ('J "JD" D', "j@x.example")),
        ('"odd one"@x.example', (None, '"odd one"@x.example')),
    ],
)
def test_mailboxes_come_apart(mailbox: str, split: tuple[str | None, str]) -> None:
    assert split_mailbox(mailbox) == split
    assert mailboxes(compose(mail(to=[mailbox]), Content(text="x")), "To") == [
        (split[0] or "", split[1])
    ]


@pytest.mark.parametrize(
    "mailbox", ["", "a", "a@", "@b", "a b@c.example", "a@b.example>", "a@b, c@d", f"{'a' * 320}@b"]
)
def test_what_is_no_mailbox_is_refused(mailbox: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        split_mailbox(mailbox)


def test_international_addresses() -> None:
    assert [ascii_domain(d) for d in ("faß.de", "BÜCHER.example", "日本。jp")] == [
        "xn--fa-hia.de", "xn--bcher-kva.example", "xn--wgv71a.jp",
    ]  # fmt: skip
    assert ascii_domain("ü" * 70) == "ü" * 70
    assert message_id_header(ID, "Ü <a@bücher.example>") == f"<{ID.hex}@xn--bcher-kva.example>"
    by_domain = compose(mail(to=["J <j@bücher.example>"]), Content(text="ü"))
    assert b"\r\nTo: J <j@xn--bcher-kva.example>\r\n" in by_domain
    assert not needs_smtputf8(by_domain, "a@b.example", ["j@xn--bcher-kva.example"])
    by_local = compose(mail(to=["J <jörg@b.example>"]), Content(text="x"))
    assert "\r\nTo: J <jörg@b.example>\r\n".encode() in by_local
    assert needs_smtputf8(by_local, "a@b.example", ["c@b.example"])
    assert needs_smtputf8(by_domain, "a@b.example", ["jörg@b.example"])
    assert not needs_smtputf8(by_domain, "Jörg <a@b.example>", [])


COMPLETE = (
    b"DKIM-Signature: v=1;\r\n b=x\r\ndate: x\r\nMessage-Id: <a@b>\r\nSubject:  odd\t \r\n"
    b"\r\nBcc: body\r\n\r\n \xe9\r\n"
)


def test_complete_raw_mail_is_untouched() -> None:
    assert compose(mail(), Content(raw=COMPLETE)) is COMPLETE
    assert compose(mail(), Content(raw=COMPLETE.replace(b"\r\n", b"\n"))) == COMPLETE


@pytest.mark.parametrize(
    "bcc", [b"BCC: x@y\r\n", b"bcc : x@y,\r\n\tz@y\r\n z@z\r\n", b"Bcc:\r\nResent-Bcc: q@y\r\n"]
)
def test_raw_mail_loses_its_bcc(bcc: bytes) -> None:
    for at in (0, COMPLETE.index(b"date"), COMPLETE.index(b"\r\n\r\n") + 2):
        assert compose(mail(), Content(raw=COMPLETE[:at] + bcc + COMPLETE[at:])) == COMPLETE
    assert b"x@y" not in compose(mail(), Content(raw=b"Subject: a\r\nBcc: x@y"))


def test_raw_mail_tells_how_it_came() -> None:
    value = "from client.example ([127.0.0.1]) by mail.example with ESMTP; Sun, 01 Mar 2026 09:05:07 +0000"
    composed = compose(mail(headers={"Received": value}), Content(raw=COMPLETE))
    assert composed.endswith(COMPLETE)
    folded = value.replace("Sun, 01", "Sun,\r\n 01")
    assert composed[: -len(COMPLETE)].decode() == f"Received: {folded}\r\n"
    assert b"\r\n\r\nno header\r\n" in compose(
        mail(headers={"Received": value}), Content(raw=b"no header\r\n")
    )


def test_raw_mail_gets_what_it_lacks() -> None:
    added = (
        f"Date: Sun, 01 Mar 2026 09:05:07 +0000\r\nMessage-ID: <{ID.hex}@example.com>\r\n".encode()
    )
    bare = b"Subject: a\r\n\r\nDate: b\r\n"
    assert compose(mail(), Content(raw=bare)) == added + bare
    assert compose(mail(), Content(raw=b"no header\nat all")) == added + b"\r\nno header\r\nat all"
    assert compose(mail(sender=""), Content(raw=bare)).count(b"@localhost>") == 1
