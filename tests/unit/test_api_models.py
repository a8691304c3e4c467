"""What the API reads and shows, without a server: models beside what they stand for, values, cursors, places."""

from __future__ import annotations

import base64
from dataclasses import fields
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pillarbox.accept.mail import Mail
from pillarbox.api.access_models import RETENTIONS, TenantDetails, TenantSettings
from pillarbox.api.fields import Base64, StringList, Timestamp
from pillarbox.api.new_message import NewMessage
from pillarbox.api.pagination import cursor_of, read_cursor
from pillarbox.api.problems import MAX_FIELD_LENGTH, ProblemError, path_of, problem_of
from pillarbox.api.substitutions import Template
from pillarbox.errors import InvalidMail, PillarboxError, StoreError, Throttled
from pillarbox.model.access import Tenant
from pillarbox.model.access_settings import SETTINGS


def test_a_new_message_has_every_field_of_a_mail() -> None:
    ours = {name.rstrip("_") for name in NewMessage.model_fields} - {"template", "locale", "data"}
    assert ours == {one.name.rstrip("_") for one in fields(Mail)} - {"tenant", "idempotency_key"}


def named(names: tuple[str, ...] | set[str]) -> set[str]:
    return {f"{name}_seconds" if name in RETENTIONS else name for name in names}


def test_every_setting_of_a_tenant_can_be_given_and_is_shown() -> None:
    assert TenantSettings.model_fields.keys() == named(SETTINGS)
    assert TenantDetails.model_fields.keys() == named({one.name for one in fields(Tenant)} - {"id"})


@pytest.mark.parametrize("given", [b"", b"x", b"\x00\xff" * 1000])
def test_base64_with_and_without_lines(given: bytes) -> None:
    read = TypeAdapter(Base64).validate_python
    assert read(base64.b64encode(given).decode()) == given
    assert read(base64.encodebytes(given).decode()) == given


@pytest.mark.parametrize("given", ["x", "====", "a$b=", "ä", 5, None, b"eA=="])
def test_what_is_not_base64(given: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Base64).validate_python(given)


def test_times() -> None:
    read = TypeAdapter(Timestamp).validate_python
    assert read("2030-01-02T03:04:05+01:00") == datetime(2030, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert read("2030-01-02T03:04Z") == datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    for wrong in (
        "2030-01-02",
        "2030-01-02T03:04:05",
        1,
        True,
        None,
        "1700000000",
        "0001-01-01T00:00+14:00",
        "soon",
    ):
        with pytest.raises(ValidationError):
            read(wrong)


def test_one_string_is_a_list_of_one() -> None:
    read = TypeAdapter(StringList).validate_python
    assert read("a") == ("a",)
    assert read(["a", "b"]) == ("a", "b")


@given(st.uuids())
def test_cursors(message_id: UUID) -> None:
    cursor = cursor_of(message_id)
    assert read_cursor(cursor) == message_id
    assert len(cursor) == 22


def test_places_in_a_body() -> None:
    assert path_of(("attachments", 0, "content")) == "attachments[0].content"
    assert path_of(()) == "body"
    assert len(path_of(("x" * 10_000,))) == MAX_FIELD_LENGTH


def test_what_is_not_ours_says_nothing() -> None:
    for error in (RuntimeError("secret"), PillarboxError("secret"), KeyError("secret")):
        problem = problem_of(error)
        assert problem.type.status == 500
        assert b"secret" not in problem.response().body


def test_waiting_times_are_whole_seconds() -> None:
    assert problem_of(Throttled("x", 0.2)).headers["Retry-After"] == "1"
    assert int(problem_of(StoreError("x")).headers["Retry-After"]) > 0


def test_names_with_half_a_character_can_be_answered() -> None:
    assert ProblemError("invalid-request", "x", field="\ud800").response().body


# --- substitutions


def filled(text: str, html: str = "", **values: str | int | float) -> Mail:
    return Template(Mail(subject="s", text=text, html=html)).fill(("a@b.example",), values, None)


@given(st.text(), st.text())
def test_a_value_comes_out_as_it_went_in(name: str, other: str) -> None:
    mail = filled("<{{a}}|{{ b }}|{{a}}>", a=name, b=other)
    assert mail.text == f"<{name}|{other}|{name}>"


@given(st.text())
def test_no_value_becomes_markup(value: str) -> None:
    html = filled("", "{{a}}", a=value).html
    assert html is not None
    assert not set("<>\"'") & set(html)


@pytest.mark.parametrize(
    "text", ["{{}}", "{{ }}", "{{1a}}", "{{a b}}", "{ {a} }", "{a}", "{{a", "a}}", "{{ä}}"]
)
def test_what_is_no_place_stays(text: str) -> None:
    assert filled(text).text == text


def test_too_many_and_too_few_values() -> None:
    with pytest.raises(InvalidMail, match="is missing"):
        filled("{{a}}")
    with pytest.raises(InvalidMail, match="does not occur"):
        filled("x", a=1)
