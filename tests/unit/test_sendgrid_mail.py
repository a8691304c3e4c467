"""A mail as SendGrid wants it: roles of recipients, texts, files, headers."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.deliver.transports.base import OutgoingMail, Recipient
from pillarbox.deliver.transports.http_request import ProviderRequest
from pillarbox.deliver.transports.http_responses import ProviderResponse
from pillarbox.deliver.transports.sendgrid import SendGridApi
from pillarbox.deliver.transports.sendgrid_mail import layout
from pillarbox.model.message import Attachment, Content, Message
from pillarbox.model.outcome import Outcome, Reason
from pillarbox.model.provider_kinds.sendgrid import SendgridSettings
from pillarbox.testing.twins.sendgrid_rules import faults

ID = UUID("018f0000-0000-7000-8000-000000000001")
API = SendGridApi(SendgridSettings(), 7)


def packed(
    to: list[str], *recipients: str, parts: Content | None = None, **fields: Any
) -> OutgoingMail:
    given_fields = {"sender": "Shop <info@shop.example>", "subject": "Hello"} | fields
    message = Message(ID, to=to, created_at=datetime(2030, 1, 1, tzinfo=UTC), **given_fields)
    numbered = [
        Recipient(number, address)
        for number, address in enumerate(recipients or ["a@mail.example"])
    ]
    return OutgoingMail(
        ID, 1, "info@shop.example", numbered, b"", message=message, parts=parts or Content("Hi!")
    )


def made(outgoing: OutgoingMail) -> dict[str, Any]:
    """The request's body; the twin has nothing to say against it."""
    call = API.build_request(outgoing, outgoing.recipients)
    assert isinstance(call, ProviderRequest)
    body: dict[str, Any] = json.loads(call.body)
    assert faults(body) == []
    return body


def personalizations(outgoing: OutgoingMail) -> list[dict[str, Any]]:
    return made(outgoing)["personalizations"]  # type: ignore[no-any-return]


def test_one_recipient_carries_the_id_of_its_delivery() -> None:
    body = made(packed(["Ann <a@mail.example>"], "a@mail.example"))
    assert body["personalizations"] == [
        {
            "to": [{"email": "a@mail.example", "name": "Ann"}],
            "custom_args": {"pillarbox_delivery": f"{ID}.0"},
        }
    ]
    assert body["custom_args"] == {"pillarbox_message": str(ID), "pillarbox_provider": "7"}
    assert body["from"] == {"email": "info@shop.example", "name": "Shop"}
    assert body["headers"] == {"Message-ID": f"<{ID.hex}@shop.example>"}


def test_several_see_to_and_cc_as_they_were_written_and_never_bcc() -> None:
    envelope = ["a@mail.example", "b@mail.example", "c@mail.example", "secret@mail.example"]
    [row] = personalizations(
        packed(["a@mail.example", "B <B@mail.example>"], *envelope, cc=["C <c@mail.example>"])
    )
    assert row == {
        "to": [{"email": "a@mail.example"}, {"email": "b@mail.example", "name": "B"}],
        "cc": [{"email": "c@mail.example", "name": "C"}],
        "bcc": [{"email": "secret@mail.example"}],
    }


def test_cc_takes_the_place_of_to_when_nobody_of_to_is_left() -> None:
    outgoing = packed(["a@mail.example"], "c@mail.example", "d@mail.example", cc=["c@mail.example"])
    assert personalizations(outgoing) == [
        {"to": [{"email": "c@mail.example"}], "bcc": [{"email": "d@mail.example"}]},
    ]


def test_blind_copies_alone_do_not_see_each_other() -> None:
    rows = personalizations(packed(["a@mail.example"], "x@mail.example", "y@mail.example"))
    assert rows == [
        {"to": [{"email": "x@mail.example"}], "custom_args": {"pillarbox_delivery": f"{ID}.0"}},
        {"to": [{"email": "y@mail.example"}], "custom_args": {"pillarbox_delivery": f"{ID}.1"}},
    ]


NAMES = st.sampled_from([f"{letter}@mail.example" for letter in "abcdefABC"])


@given(
    to=st.lists(NAMES, max_size=4),
    cc=st.lists(NAMES, max_size=4),
    recipients=st.lists(NAMES, min_size=1, max_size=8),
)
def test_everybody_gets_it_once_and_no_blind_copy_is_shown(
    to: list[str], cc: list[str], recipients: list[str]
) -> None:
    outgoing = packed(to, *recipients, cc=cc)
    assert outgoing.message is not None
    made(outgoing)
    rows = layout(outgoing.message, outgoing.recipients)
    people = [person for row in rows for person in (*row.to, *row.cc, *row.bcc)]
    assert sorted(place for person in people for place in person.indexes) == list(
        range(len(recipients))
    )
    assert len({person.address.lower() for person in people}) == len(people)
    named = {address.lower() for address in (*to, *cc)}
    for row in rows:
        seen = [*row.to, *row.cc]
        if len(seen) + len(row.bcc) > 1:
            assert all(person.address.lower() in named for person in seen)


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        (Content("a", "<b>"), [("text/plain", "a"), ("text/html", "<b>")]),
        (Content(None, "<b>"), [("text/html", "<b>")]),
        (Content("", ""), [("text/plain", " "), ("text/html", " ")]),
        (Content(), [("text/plain", " ")]),
    ],
)
def test_texts(parts: Content, content: list[tuple[str, str]]) -> None:
    found = made(packed(["a@mail.example"], parts=parts, subject=""))
    assert [(one["type"], one["value"]) for one in found["content"]] == content
    assert found["subject"] == " "


def test_files() -> None:
    files = [
        Attachment("a.txt", b"\x00\xff", "text/plain; charset=x"),
        Attachment("i.png", b"i", "image/png", "<logo>"),
        Attachment("", b""),
    ]
    first, inline, last = made(
        packed(["a@mail.example"], parts=Content("a", "<b>", attachments=files))
    )["attachments"]
    assert (first["type"], first["filename"], first["disposition"]) == (
        "text/plain",
        "a.txt",
        "attachment",
    )
    assert b64decode(first["content"]) == b"\x00\xff"
    assert (inline["disposition"], inline["content_id"]) == ("inline", "logo")
    assert last["filename"] == "file"
    [plain] = made(packed(["a@mail.example"], parts=Content("a", attachments=files[1:2])))[
        "attachments"
    ]
    assert plain["disposition"] == "attachment", "without HTML nothing can refer to it"


def test_headers_and_replies() -> None:
    headers = [
        ["X-Tag", "a"],
        ["x-tag", "b"],
        ["X-Word", "grün"],
        ["List-Unsubscribe", "<https://x.example>"],
    ]
    body = made(packed(["a@mail.example"], headers=headers, reply_to=["R <r@shop.example>"]))
    assert body["reply_to"] == {"email": "r@shop.example", "name": "R"}
    assert body["headers"]["X-Tag"] == "a, b"
    assert body["headers"]["X-Word"].startswith("=?utf-8?")
    assert body["headers"]["List-Unsubscribe"] == "<https://x.example>"
    own = {"Message-ID": "<mine@shop.example>", "Date": "Tue, 1 Jan 2030 00:00:00 +0000"}
    body = made(
        packed(["a@mail.example"], headers=own | {"Reply-To": '"A, B" <a@b.example>, c@d.example'})
    )
    assert body["headers"] == {"Message-ID": "<mine@shop.example>"}
    assert body["reply_to_list"] == [
        {"email": "a@b.example", "name": "A, B"},
        {"email": "c@d.example"},
    ]


def test_domains_go_as_ascii() -> None:
    body = made(packed(["a@bücher.example"], "a@bücher.example", sender="Ä <info@bücher.example>"))
    assert body["personalizations"][0]["to"] == [{"email": "a@xn--bcher-kva.example"}]
    assert body["from"] == {"email": "info@xn--bcher-kva.example", "name": "Ä"}


@pytest.mark.parametrize(
    "headers", [{"X-Evil": "a\r\nBcc: x@y.example"}, {"Bcc": "x@y.example"}, {"Bad Name": "x"}]
)
def test_headers_that_no_mail_may_have_are_refused(headers: dict[str, str]) -> None:
    outgoing = packed(["a@mail.example"], headers=headers)
    with pytest.raises(ValueError, match="header"):
        API.build_request(outgoing, outgoing.recipients)


@pytest.mark.req("REQ-QUEUE-S006")
def test_what_it_cannot_carry() -> None:
    raw = API.build_request(
        packed(["a@mail.example"], parts=Content(raw=b"Subject: x\r\n\r\n")),
        [Recipient(0, "a@mail.example")],
    )
    assert isinstance(raw, Outcome)
    assert raw.reason is Reason.UNSUPPORTED
    huge = API.build_request(
        packed(["a@mail.example"], parts=Content("x" * 30_000_001)),
        [Recipient(0, "a@mail.example")],
    )
    assert isinstance(huge, Outcome)
    assert huge.reason is Reason.TOO_BIG


def test_the_blamed_are_found_by_the_fields_name() -> None:
    outgoing = packed(
        ["a@mail.example", "b@mail.example"],
        "z@mail.example",
        "b@mail.example",
        "a@mail.example",
        "B@mail.example",
    )
    fields = [
        "personalizations.0.to.0.email",
        "personalizations.0.bcc.0.email",
        "personalizations.9.to.0.email",
        "from.email",
    ]
    body = json.dumps({"errors": [{"message": "no", "field": field} for field in fields]}).encode()
    assert API.invalid_recipients(
        ProviderResponse(400, {}, body), outgoing, outgoing.recipients
    ) == [0, 1, 3]
    assert (
        API.invalid_recipients(ProviderResponse(400, {}, b"{}"), outgoing, outgoing.recipients)
        == []
    )
