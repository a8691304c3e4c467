"""Django's e-mail backend: a real Django, its own connection, its own transaction."""

from __future__ import annotations

import email
import email.policy
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.mime.base import MIMEBase
from email.mime.image import MIMEImage
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.core import mail
from django.core.mail import EmailMessage, EmailMultiAlternatives, get_connection
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.test.utils import override_settings
from django.utils.translation import gettext_lazy
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from pillarbox.errors import InvalidMail, UnknownName
from tests.unsubscribing import CASES, HTTPS

BACKEND = "pillarbox.django.EmailBackend"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
if not settings.configured:
    settings.configure(
        EMAIL_BACKEND=BACKEND,
        DEFAULT_FROM_EMAIL="Shop <shop@example.com>",
        USE_TZ=True,
        LOGGING_CONFIG=None,
        DATABASES={
            name: {"ENGINE": "django.db.backends.postgresql"} for name in ("default", "other")
        },
    )
    django.setup()


@pytest.fixture
def database(database_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Both aliases of Django lead to the test's database; gives a connection of our own, to look from outside."""
    given = conninfo_to_dict(database_url)
    place = {"NAME": given["dbname"], "HOST": given.get("host", ""), "PORT": given.get("port", "")}
    place |= {"USER": given.get("user", ""), "PASSWORD": given.get("password", "")}
    place |= {"OPTIONS": {"passfile": given["passfile"]} if "passfile" in given else {}}
    for alias in ("default", "other"):
        connections.settings[alias].update(place)
        if hasattr(connections._connections, alias):
            del connections[alias]
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as outside:
        yield outside
    connections.close_all()


def message(**fields: Any) -> EmailMessage:
    return EmailMessage(
        **({"subject": "Hello", "body": "A body", "to": ["user@example.net"]} | fields)
    )


def stored(database: psycopg.Connection[dict[str, Any]]) -> list[dict[str, Any]]:
    return database.execute(
        "SELECT m.*, c.text, c.html, c.raw, c.attachments, t.name AS tenant FROM pillarbox.messages m"
        " JOIN pillarbox.contents c ON c.message_id = m.id JOIN pillarbox.tenants t ON t.id = m.tenant_id"
        " JOIN (SELECT message_id, min(seq) AS seq FROM pillarbox.deliveries GROUP BY 1) d ON d.message_id = m.id"
        " ORDER BY seq"
    ).fetchall()


def recipients(database: psycopg.Connection[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = database.execute(
        "SELECT role::text AS role, recipient FROM pillarbox.deliveries ORDER BY seq, n"
    ).fetchall()
    return [(row["role"], row["recipient"]) for row in rows]


Database = psycopg.Connection[dict[str, Any]]


def test_in_autocommit_it_is_there_at_once(database: Database) -> None:
    one = message()
    assert one.send() == 1
    (row,) = stored(database)
    assert row["id"] == one.pillarbox_id  # type: ignore[attr-defined]
    assert (row["sender"], row["to"], row["subject"], row["text"], row["html"], row["raw"]) == (
        "Shop <shop@example.com>", ["user@example.net"], "Hello", "A body", None, None,
    )  # fmt: skip
    assert mail.send_mail("Again", "x", None, ["a@example.net"], html_message="<p>x") == 1
    assert [row["html"] for row in stored(database)] == [None, "<p>x"]


def test_it_is_sent_if_the_transaction_commits(database: Database) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE orders (id int)")
        assert message().send() == 1
        assert stored(database) == []
    assert len(stored(database)) == 1


def test_it_never_existed_if_the_transaction_rolls_back(database: Database) -> None:
    with transaction.atomic():
        message().send()
        transaction.set_rollback(True)
    with transaction.atomic():
        message(subject="kept").send()
        with transaction.atomic():
            message(subject="dropped").send()
            transaction.set_rollback(True)
    assert [row["subject"] for row in stored(database)] == ["kept"]


def test_a_refused_mail_leaves_the_transaction_usable(database: Database) -> None:
    with transaction.atomic():
        message(subject="first").send()
        with pytest.raises(InvalidMail):
            message(to=["nobody"]).send()
        refused = message()
        refused.pillarbox = {"class_": "gold"}  # type: ignore[attr-defined]  # the database alone can know
        with pytest.raises(UnknownName):
            refused.send()
        message(subject="last").send()
    assert [row["subject"] for row in stored(database)] == ["first", "last"]


def test_several_go_together_or_not_at_all(database: Database) -> None:
    many = [message(subject=str(n)) for n in range(5)]
    assert get_connection().send_messages(many) == 5
    assert [row["subject"] for row in stored(database)] == list("01234")
    with pytest.raises(InvalidMail, match="legal"):
        get_connection().send_messages([message(), message(to=["nobody"])])
    assert len(stored(database)) == 5
    assert (
        mail.send_mass_mail(
            [("a", "b", None, ["x@example.net"]), ("c", "d", None, ["y@example.net"])]
        )
        == 2
    )


def test_nobody_to_send_to(database: Database) -> None:
    assert message(to=[]).send() == 0
    assert get_connection().send_messages([]) == 0
    assert get_connection().send_messages([message(to=[]), message(to=["", "a@example.net"])]) == 1
    assert recipients(database) == [("t", "a@example.net")]


def test_failing_silently(database: Database) -> None:
    with transaction.atomic():
        refused = message()
        refused.pillarbox = {"class_": "gold"}  # type: ignore[attr-defined]
        many = [message(subject="a"), message(to=["nobody"]), refused, message(subject="b")]
        assert get_connection(fail_silently=True).send_messages(many) == 2
    assert [row["subject"] for row in stored(database)] == ["a", "b"]
    connections.settings["default"]["NAME"] = "no_such_database"
    connection.close()
    del connections["default"]
    assert message().send(fail_silently=True) == 0
    with pytest.raises(OperationalError):
        message().send()


def test_a_broken_transaction_is_djangos_error(database: Database) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():  # noqa: PT012 -- Django raises at the second
        with pytest.raises(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT 1/0")
        message().send()
    assert stored(database) == []


def test_every_field(database: Database) -> None:
    one = EmailMultiAlternatives(
        gettext_lazy("Grüße"), "Text", "Ünal <u@example.com>", ["A <a@example.net>", "b@example.net"],
        bcc=["d@example.net"], cc=["c@example.net"], reply_to=["r@example.com"],
        headers={"X-Campaign": gettext_lazy("x")},
    )  # fmt: skip
    one.attach_alternative("<p>Html", "text/html")
    one.attach("ä.txt", "größer", "text/plain")
    one.attach("a.bin", b"\x00\xff", "application/octet-stream")
    image = MIMEImage(PNG, "png")
    image.add_header("Content-ID", "<logo@x>")
    image.add_header("Content-Disposition", "inline", filename="logo.png")
    one.attach(image)
    one.send()
    (row,) = stored(database)
    assert (row["raw"], row["text"], row["html"], row["subject"]) == (
        None,
        "Text",
        "<p>Html",
        "Grüße",
    )
    assert (row["sender"], row["to"], row["cc"]) == (
        "Ünal <u@example.com>", ["A <a@example.net>", "b@example.net"], ["c@example.net"],
    )  # fmt: skip
    assert (row["reply_to"], row["headers"]) == (["r@example.com"], {"X-Campaign": "x"})
    assert recipients(database) == [
        ("t", "a@example.net"), ("t", "b@example.net"), ("c", "c@example.net"), ("b", "d@example.net"),
    ]  # fmt: skip
    types = [
        (file["filename"], file["content_type"], file.get("content_id"))
        for file in row["attachments"]
    ]
    assert types == [
        ("ä.txt", 'text/plain; charset="utf-8"', None), ("a.bin", "application/octet-stream", None),
        ("logo.png", "image/png", "logo@x"),
    ]  # fmt: skip


def test_a_body_of_html(database: Database) -> None:
    one = message(body="<p>x")
    one.content_subtype = "html"
    one.send()
    empty = EmailMultiAlternatives("s", "", None, ["a@example.net"])
    empty.attach_alternative("<p>y", "text/html")
    empty.send()
    message(body="").send()
    assert [(row["text"], row["html"]) for row in stored(database)] == [
        (None, "<p>x"),
        (None, "<p>y"),
        ("", None),
    ]


def signed(**fields: Any) -> EmailMessage:
    class Signed(EmailMessage):
        def message(self, *arguments: Any, **named: Any) -> Any:
            made = super().message(*arguments, **named)
            made["X-Signature"] = "abc"
            return made

    return Signed(**({"subject": "Hello", "body": "b", "to": ["user@example.net"]} | fields))


def exotic() -> Iterator[tuple[str, EmailMessage]]:
    yield "X-Signature", signed()
    yield "Sender", message(headers={"Sender": "other@example.com"})
    yield "To", message(headers={"To": "undisclosed"})
    calendar = EmailMultiAlternatives("Hello", "b", None, ["user@example.net"])
    calendar.attach_alternative("BEGIN:VCALENDAR", "text/calendar")
    yield "Content-Type", calendar
    forwarded = message()
    forwarded.attach(None, message(), "message/rfc822")
    yield "Content-Type", forwarded
    related = message()
    related.mixed_subtype = "related"
    related.attach("a.png", PNG, "image/png")
    yield "Content-Type", related
    nameless = message()
    nameless.attach(None, PNG, "image/png")
    yield "Content-Type", nameless
    old = message(body="größer")
    old.encoding = "iso-8859-1"
    yield "Content-Type", old
    strange = message()
    part = MIMEBase("application", "x-y")
    part.set_payload("abc")
    part.add_header("X-Own", "1")
    strange.attach(part)
    yield "Content-Type", strange


@pytest.mark.parametrize(
    ("header", "one"), list(exotic()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_what_means_more_than_its_fields_goes_as_django_wrote_it(
    header: str, one: EmailMessage, database: Database
) -> None:
    one.bcc = ["hidden@example.net"]
    one.send()
    (row,) = stored(database)
    raw = bytes(row["raw"])
    assert b"\n" not in raw.replace(b"\r\n", b"")
    assert b"hidden@example.net" not in raw
    parsed = email.message_from_bytes(raw, policy=email.policy.default)
    expected = one.message()
    assert (parsed["Subject"], row["subject"], row["to"]) == (
        "Hello",
        "Hello",
        ["user@example.net"],
    )
    assert str(parsed[header]).split(";")[0] == str(expected[header]).split(";")[0]
    assert [part.get_content_type() for part in parsed.walk()] == [
        part.get_content_type() for part in expected.walk()
    ]
    assert recipients(database) == [("t", "user@example.net"), ("b", "hidden@example.net")]


def test_options_of_ours(database: Database) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    one = message()
    one.pillarbox = {  # type: ignore[attr-defined]
        "tags": ["one"], "kind": "welcome", "class_": "bulk", "priority": "urgent", "metadata": {"order": 7},
        "send_at": later, "max_attempts": 3, "idempotency_key": "k",
    }  # fmt: skip
    one.send()
    again = message()
    again.pillarbox = one.pillarbox  # type: ignore[attr-defined]
    again.send()
    assert again.pillarbox_id == one.pillarbox_id  # type: ignore[attr-defined]
    (row,) = stored(database)
    assert (row["tags"], row["kind"], row["class"], row["lane"], row["metadata"]) == (
        ["one"], "welcome", "bulk", 0, {"order": 7},
    )  # fmt: skip
    assert (row["send_at"], row["max_attempts"]) == (later, 3)
    for wrong in ({"tag": "x"}, ["tags"]):
        bad = message()
        bad.pillarbox = wrong  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match=r"message\.pillarbox must be a dict"):
            bad.send()


def test_unsubscribing(database: Database) -> None:
    for urls, _ in CASES:
        one = message(headers={"X-A": "b"})
        one.pillarbox = {"list_unsubscribe": urls}  # type: ignore[attr-defined]
        one.send()
    assert [row["headers"] for row in stored(database)] == [
        {"X-A": "b"} | expected for _, expected in CASES
    ]


def test_two_ways_of_unsubscribing_are_refused(database: Database) -> None:
    own_header = message(headers={"List-Unsubscribe": f"<{HTTPS}>"})
    for one, code in ((own_header, "reserved_header"), (signed(), "raw_and_parts")):
        one.pillarbox = {"list_unsubscribe": HTTPS}  # type: ignore[attr-defined]
        with pytest.raises(InvalidMail) as refused:
            one.send()
        assert refused.value.code == code
    message(headers={"List-Unsubscribe": f"<{HTTPS}>"}).send()
    signed(headers={"List-Unsubscribe": f"<{HTTPS}>"}).send()
    structured, raw = stored(database)
    assert structured["headers"] == {"List-Unsubscribe": f"<{HTTPS}>"}
    assert f"List-Unsubscribe: <{HTTPS}>\r\n".encode() in bytes(raw["raw"])


def test_another_database_and_tenant(database: Database) -> None:
    database.execute("INSERT INTO pillarbox.tenants (name) VALUES ('shop'), ('desk')")
    get_connection(using="other", tenant="shop").send_messages([message()])
    with (
        override_settings(PILLARBOX_DATABASE="other", PILLARBOX_TENANT="desk"),
        transaction.atomic(),
    ):
        message().send()
        assert len(stored(database)) == 2  # `default` has a transaction, `other` has none
    one = message()
    one.pillarbox = {"tenant": "default"}  # type: ignore[attr-defined]
    get_connection(tenant="shop").send_messages([one])
    assert [row["tenant"] for row in stored(database)] == ["shop", "desk", "default"]


def test_debugging_keeps_no_mails(database: Database) -> None:
    with override_settings(DEBUG=True):
        message(body="secret-code-12345").send()
        assert "12345" not in json.dumps(connection.queries)


def test_without_django_it_says_so(tmp_path: Path) -> None:
    code = "import sys; sys.modules['django'] = None\ntry:\n import pillarbox.django\nexcept ImportError as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert (
        done.stdout.strip()
        == "pillarbox.django needs Django, which is not installed: pip install django"
    )
