"""The clients' core: what is asked, how answers are read, when it is asked again."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.integration.accept.enqueue_corpus import corpus

import pillarbox
from pillarbox import Attachment, Mail
from pillarbox.accept.mail import ALL_FIELDS
from pillarbox.accept.request_hash_1 import request_hash_1
from pillarbox.api.new_message import NewMessage
from pillarbox.api.problem_types import TYPES
from pillarbox.api.problems import ProblemError, problem_of
from pillarbox.client import api_call, calls
from pillarbox.client.api_call import MAX_WAIT, ApiCall, HttpRequest, HttpResponse
from pillarbox.client.batches import MAX_PER_CALL, Batches
from pillarbox.client.calls import Sent
from pillarbox.client.problems import error_of, of_problem
from pillarbox.errors import (
    IdempotencyConflict,
    InvalidMail,
    NoAnswer,
    NotAllowed,
    NotFound,
    NotPossible,
    PillarboxError,
    StoreError,
    Throttled,
    Unauthorized,
    UnknownName,
)

ID = "0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11"


def mail(**fields: Any) -> Mail:
    return Mail(
        **(
            {"sender": "a@shop.example", "to": "b@mail.example", "subject": "Hi", "text": "x"}
            | fields
        )
    )


# --- what is asked


def arrived_as_given(arrived: Mail, given: Mail) -> bool:
    """Whether all fields but the key, which is a header, are the same."""
    return ALL_FIELDS.given(arrived) == ALL_FIELDS.given(replace(given, idempotency_key=None))


def test_a_mail_arrives_as_it_was_given() -> None:
    """Whatever the mail: the server makes the same request of it that the client was given."""
    seen = 0
    for fields in corpus():
        try:
            given = Mail(**fields)
            text = calls.mail_json(given)
        except (InvalidMail, TypeError):
            continue
        arrived = NewMessage.model_validate_json(text).to_mail()
        assert request_hash_1(arrived) == request_hash_1(given), fields
        seen += 1
    assert seen > 400


def test_every_field_is_sent() -> None:
    given = mail(
        cc="c@x.example", bcc=["d@x.example"], reply_to="r@x.example", html="<p>", headers={"X-A": "b"},
        attachments=[Attachment("a.bin", bytes(range(256)), "image/png", "logo")], class_="bulk", kind="k",
        priority="urgent", send_at=datetime(2030, 1, 1, tzinfo=UTC), expires_at=datetime(2031, 1, 1, tzinfo=UTC),
        max_attempts=3, tags=["t"], metadata={"a": [1, None]},
    )  # fmt: skip
    arrived = NewMessage.model_validate_json(calls.mail_json(given)).to_mail()
    assert arrived_as_given(arrived, given)
    assert calls.mail_json(mail(metadata={})).count("metadata") == 1


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (mail(to="nobody"), "to"),
        (mail(text=None), "text"),
        (mail(tenant="other"), "tenant"),
        (mail(idempotency_key="ключ"), "idempotency_key"),
    ],
)
def test_bad_mails_are_not_even_sent(bad: Mail, field: str) -> None:
    with pytest.raises(InvalidMail) as caught:
        calls.send(bad)
    assert caught.value.field == field


def test_a_key_is_made_once_for_all_tries_of_a_call() -> None:
    one, other = calls.send(mail()), calls.send(mail())
    assert len(one.request.headers["Idempotency-Key"]) == 32
    assert one.request.headers["Idempotency-Key"] != other.request.headers["Idempotency-Key"]
    assert calls.send(mail(idempotency_key="mine")).request.headers["Idempotency-Key"] == "mine"
    assert "Idempotency-Key" in calls.resend(ID, None).request.headers


@pytest.mark.parametrize("bad", ["../keys", "", "x", f"{ID}/raw", "0"])
def test_ids_are_ids(bad: str) -> None:
    for call in (calls.get, calls.raw, calls.cancel):
        with pytest.raises(ValueError, match="UUID"):
            call(bad)


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://127.0.0.1:8025", "http://127.0.0.1:8025/api/v1"),
        ("https://mail.example.com/", "https://mail.example.com/api/v1"),
        ("https://x.example/mail/api/v1/", "https://x.example/mail/api/v1"),
    ],
)
def test_addresses(base_url: str, expected: str) -> None:
    assert api_call.address(base_url) == expected


@pytest.mark.parametrize(
    "bad",
    ["", "mail.example.com", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x#y"],
)
def test_bad_addresses(bad: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        api_call.address(bad)


@pytest.mark.parametrize("bad", ["", " ", "a\r\nX: y", "ключ"])
def test_bad_keys(bad: str) -> None:
    with pytest.raises(ValueError, match="api_key"):
        api_call.headers(bad, "1")


def test_filters() -> None:
    since = datetime(2030, 1, 1, tzinfo=UTC)
    found = calls.checked_filters(
        {"state": ["sent", "failed"], "class_": "bulk", "since": since, "page_size": 7}
    )
    assert found == [
        ("state", "sent"), ("state", "failed"), ("class", "bulk"), ("since", "2030-01-01T00:00:00+00:00"),
        ("limit", "7"),
    ]  # fmt: skip
    assert calls.checked_filters({"state": "sent"}) == [("state", "sent")]
    with pytest.raises(TypeError, match="no filter 'tags'"):
        calls.checked_filters({"tags": "x"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidMail):
        calls.checked_filters({"until": datetime(2030, 1, 1)})


# --- several mails


def test_many_mails_go_in_bounded_calls() -> None:
    batches = Batches([mail(text="x" * 100) for _ in range(250)], None)
    some = list(batches.calls())
    assert [len(places) for places, _ in some] == [100, 100, 50]
    keys = [call.request.headers["Idempotency-Key"] for _, call in some]
    assert len(set(keys)) == 3
    assert MAX_PER_CALL == 100
    large = Batches([mail(text="x" * 2**20) for _ in range(20)], "mine")
    assert [len(places) for places, _ in large.calls()] == [7, 7, 6]


def test_bad_mails_among_many_are_their_own_results() -> None:
    batches = Batches([mail(to="nobody"), mail(), mail(idempotency_key="k")], None)
    ((places, _),) = batches.calls()
    assert list(places) == [1]
    batches.put(places, [StoreError("away")])
    first, second, third = batches.results()
    assert isinstance(first, InvalidMail)
    assert first.position == 0
    assert isinstance(second, StoreError)
    assert isinstance(third, InvalidMail)
    assert (third.field, third.position) == ("idempotency_key", 2)


def test_a_failed_call_is_raised_only_while_nothing_was_sent() -> None:
    batches = Batches([mail()] * 150, None)
    (first, _), (second, _) = batches.calls()
    with pytest.raises(StoreError):
        batches.fail(first, StoreError("away"))
    sent = Sent(UUID(ID), ())
    batches.put(first, [sent] * 100)
    batches.fail(second, StoreError("away"))
    assert [type(one) for one in batches.results()] == [Sent] * 100 + [StoreError] * 50


def test_a_key_that_cannot_be_sent_is_refused_first() -> None:
    with pytest.raises(InvalidMail):
        Batches([mail()], "x" * 255)


# --- answers


def read(call: ApiCall[Any], body: Any, status: int = 200, **headers: str) -> Any:
    return call.read(HttpResponse(status, headers, json.dumps(body).encode()))


def test_what_the_server_says_beyond_what_we_know_is_passed_over() -> None:
    body = {
        "id": ID,
        "more": 1,
        "deliveries": [
            {"id": f"{ID}.0", "recipient": "b", "role": "to", "state": "queued", "x": 2}
        ],
    }
    sent = read(calls.send(mail()), body, 202)
    assert str(sent.id) == ID
    assert [one.recipient for one in sent.deliveries] == ["b"]
    assert not sent.repeated


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"id": "x", "deliveries": []}', b"null", b"\xff"]
)
def test_answers_that_are_none_of_ours(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        calls.send(mail()).read(HttpResponse(200, {}, body))
    for status in (200, 302, 404, 500, 502):
        with pytest.raises(NoAnswer) as caught:
            calls.get(ID).read(HttpResponse(status, {}, body))
        assert caught.value.status == status


ERRORS: list[tuple[PillarboxError, type[PillarboxError]]] = [
    (InvalidMail("bad_address", "sender", "not legal", "write name@domain"), InvalidMail),
    (UnknownName("unknown_class", "class", "there is none", "see …"), UnknownName),
    (
        IdempotencyConflict("idempotency_conflict", "idempotency_key", "used", None),
        IdempotencyConflict,
    ),
    (NotAllowed("sender_domain", "sender", "not from there", "ask"), NotAllowed),
    (Unauthorized("x"), Unauthorized),
    (Throttled("slowly", 7.0), Throttled),
    (NotFound("x"), NotFound),
    (NotPossible("it is sent"), NotPossible),
    (StoreError("x"), StoreError),
]


@pytest.mark.parametrize(("raised", "kind"), ERRORS, ids=lambda one: getattr(one, "__name__", ""))
def test_errors_of_the_server_come_back_as_they_were(
    raised: PillarboxError, kind: type[PillarboxError]
) -> None:
    problem = problem_of(raised)
    found = error_of(problem.type.status, problem.headers, json.dumps(problem.body()).encode())
    assert type(found) is kind
    for name in ("code", "field", "message", "hint", "retry_after"):
        assert getattr(found, name, None) == getattr(raised, name, None)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_problem_is_an_error(name: str) -> None:
    error = of_problem(ProblemError(name, "so it is").body())
    assert "so it is" in str(error)
    assert isinstance(error, NoAnswer) == (
        name
        in (
            "internal",
            "method-not-allowed",
            "unsupported-media-type",
            "wrong-host",
            "head-too-large",
        )
        or name
        in ("request-timeout", "invalid-setting", "forged", "link", "password", "wrong-password")
    )


# --- asking again

AWAY = HttpResponse(503, {"Retry-After": "5"}, b"")
LOST = NoAnswer("lost")
UNREACHED = NoAnswer("no connection", reached=False)


@pytest.mark.parametrize(
    ("outcome", "repeatable", "wait"),
    [
        (HttpResponse(202, {}, b""), True, None),
        (HttpResponse(422, {}, b""), True, None),
        (HttpResponse(500, {}, b""), True, None),
        (HttpResponse(404, {}, b""), True, None),
        (AWAY, True, 5.0),
        (AWAY, False, None),
        (HttpResponse(429, {"Retry-After": "3"}, b""), False, 3.0),
        (HttpResponse(429, {"Retry-After": str(int(MAX_WAIT) + 1)}, b""), True, None),
        (HttpResponse(502, {}, b""), True, 0.2),
        (HttpResponse(504, {"Retry-After": "soon"}, b""), True, 0.2),
        (LOST, True, 0.2),
        (LOST, False, None),
        (UNREACHED, False, 0.2),
    ],
)
def test_when_it_is_asked_again(outcome: Any, repeatable: bool, wait: float | None) -> None:
    call: ApiCall[Any] = ApiCall(
        HttpRequest("POST", "/x", repeatable=repeatable), lambda answer: None
    )
    assert call.wait(outcome, 0, 3, 1.0) == wait
    assert call.wait(outcome, 3, 3, 1.0) is None  # enough


def test_waits_grow_and_scatter() -> None:
    call = calls.send(mail())
    waits = [call.wait(LOST, tried, 9, 1.0) or 0 for tried in range(5)]
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert call.wait(LOST, 0, 9, 0.0) == 0.1


def test_a_batch_with_undecided_mails_is_asked_again() -> None:
    (_, call), *_ = Batches([mail()] * 2, None).calls()

    def answer(*statuses: int) -> HttpResponse:
        return HttpResponse(
            200, {}, json.dumps({"results": [{"status": one} for one in statuses]}).encode()
        )

    assert call.wait(answer(202, 422), 0, 3, 1.0) is None
    assert call.wait(answer(202, 503), 0, 3, 1.0) is not None
    assert call.wait(HttpResponse(200, {}, b"<html>"), 0, 3, 1.0) is None


def test_cancelling_is_not_repeated_after_a_lost_answer() -> None:
    assert calls.cancel(ID).wait(LOST, 0, 3, 0.5) is None
    assert calls.reschedule(ID, datetime.now(UTC) + timedelta(1)).wait(LOST, 0, 3, 0.5) is not None


# --- the package


def test_importing_pillarbox_imports_no_client_and_no_driver() -> None:
    code = (
        "import sys, pillarbox; print([one for one in ('aiohttp', 'urllib3', 'asyncpg', 'fastapi', 'django',"
        " 'pillarbox.client') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_clients_do_not_show_their_keys() -> None:
    for kind in (pillarbox.Client, pillarbox.AsyncClient):
        assert (
            repr(kind("http://x.example", "pbx_secret"))
            == f"{kind.__name__}('http://x.example/api/v1')"
        )
    with pytest.raises(AttributeError):
        pillarbox.nothing  # type: ignore[attr-defined]  # noqa: B018
