"""`template`, `locale` and `data` of POST /messages: rendered mails are accepted, others change nothing and say why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pillarbox import AsyncClient, Client, Mail
from pillarbox.errors import IdempotencyConflict, InvalidMail, RenderError, SettingsError
from pillarbox.model.message import Content
from pillarbox.store import messages
from tests.integration.api.api_helpers import Api, api_of
from tests.unit.template_helpers import write

ORDER = {
    "shop__order__en_subject": "Order {{ order }}",
    "shop__order__de_subject": "Bestellung {{ order }}",
    "shop__order__en_txt": "Hello {{ name }}",
    "shop__order__de_txt": "Hallo {{ name }}",
    "shop__order__en_html": "<p>Hello {{ name }}</p>",
    "shop__order__de_html": "<p>\n{{ name }}</p>",
}
TO = {"from": "Shop <hello@shop.example>", "to": ["ada@mail.example"]}
DATA = {"order": 4711, "name": "Ada & <b>"}


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_of(database_url, template_dirs=str(write(tmp_path, **ORDER))) as api:
        yield api


async def test_a_wrong_folder_is_told_at_once(database_url: str) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        async with api_of(database_url, template_dirs="nope"):
            pass


async def count(api: Api) -> int:
    return int(await api.database.fetchval("SELECT count(*) FROM pillarbox.messages"))


async def content(api: Api, message_id: str | UUID) -> Content:
    found = await messages.content(api.database, UUID(str(message_id)))
    assert found is not None
    return found


async def send(api: Api, **fields: Any) -> Any:
    return await api.shop.post("/messages", TO | {"template": "shop/order", "data": DATA} | fields)


async def test_a_template_makes_the_mail(api: Api) -> None:
    answer = await send(api, locale="de-AT", tags=["a"])
    assert answer.status == 202, answer.content
    told = (await api.shop.get(f"/messages/{answer.json['id']}")).json
    assert (told["subject"], told["kind"], told["tags"]) == ("Bestellung 4711", "shop_order", ["a"])
    assert told["class"] == "transactional"
    stored = await content(api, answer.json["id"])
    assert (stored.text, stored.html) == ("Hallo Ada & <b>", "<p>\nAda &amp; &lt;b&gt;</p>")


async def test_kind_and_class_are_the_callers(api: Api) -> None:
    answer = await send(api, kind="mine", **{"class": "bulk"})
    told = (await api.shop.get(f"/messages/{answer.json['id']}")).json
    assert (told["kind"], told["class"], told["subject"]) == ("mine", "bulk", "Order 4711")


async def test_a_template_that_comes_with_pillarbox(api: Api) -> None:
    account = {"login": "ada", "name": "Ada", "email": "ada@mail.example"}
    answer = await send(api, template="hub/welcome", data={"account": account})
    assert answer.status == 202, answer.content


async def test_a_missing_variable_is_named_with_part_and_line(api: Api) -> None:
    answer = await send(api, locale="de", data={"order": 1})
    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json == {
        "type": "/problems/template", "title": "The template cannot be rendered", "status": 422,
        "detail": "there is no variable name", "code": "missing", "field": "data.name",
        "template": "shop/order", "part": "text", "line": 1, "variable": "name",
    }  # fmt: skip
    assert await count(api) == 0


@pytest.mark.parametrize("name", ["shop/nope", "../../etc/passwd", "", "layout/base"])
async def test_an_unknown_template(api: Api, name: str) -> None:
    answer = await send(api, template=name)
    assert (answer.status, answer.json["type"]) == (422, "/problems/template")
    assert (answer.json["field"], answer.json["detail"]) == (
        "template",
        f"there is no such template in {api.app.settings.template_dirs[0]}, nor among those that come with Pillarbox",
    )
    assert await count(api) == 0


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"subject": "x"}, "invalid-mail", "subject"),
        ({"text": "x"}, "invalid-mail", "text"),
        ({"html": "x"}, "invalid-mail", "html"),
        ({"raw": "eA=="}, "invalid-mail", "raw"),
        ({"template": None, "text": "x"}, "invalid-mail", "data"),
        ({"template": None, "data": None, "text": "x", "locale": "de"}, "invalid-mail", "locale"),
        ({"locale": "not a language"}, "invalid-request", "locale"),
        ({"locale": 3}, "invalid-request", "locale"),
        ({"data": [1]}, "invalid-request", "data"),
        ({"template": 3}, "invalid-request", "template"),
        ({"template": "x" * 101}, "invalid-request", "template"),
        ({"data": DATA | {"name": "x" * 70_000}}, "invalid-mail", "data"),
        ({"data": DATA | {"name": float("nan")}}, "invalid-mail", "data"),
        ({"to": ["nobody"]}, "invalid-mail", "to"),
    ],
)
async def test_what_does_not_go_together(
    api: Api, fields: dict[str, Any], kind: str, field: str
) -> None:
    answer = await send(api, **fields)
    assert answer.status == 422, answer.content
    assert answer.json["type"] == f"/problems/{kind}"
    assert answer.json["field"] == field
    assert await count(api) == 0


async def test_names_cannot_become_headers(api: Api) -> None:
    answer = await send(api, data=DATA | {"order": "1\r\nBcc: eve@mail.example"})
    told = (await api.shop.get(f"/messages/{answer.json['id']}")).json
    assert told["subject"] == "Order 1 Bcc: eve@mail.example"
    assert len(told["deliveries"]) == 1


async def test_data_is_never_a_template(api: Api) -> None:
    answer = await send(api, data=DATA | {"name": "{{ order }}{% include 'x' %}"})
    assert (await content(api, answer.json["id"])).text == "Hello {{ order }}{% include 'x' %}"


async def test_the_same_key_and_the_same_words_are_the_same_mail(api: Api) -> None:
    headers = {"Idempotency-Key": "k"}
    body = TO | {"template": "shop/order", "data": DATA}
    first = await api.shop.post("/messages", body, headers=headers)
    again = await api.shop.post("/messages", body, headers=headers)
    assert (again.status, again.json["id"]) == (202, first.json["id"])
    other = await api.shop.post("/messages", body | {"locale": "de"}, headers=headers)
    assert other.json["type"] == "/problems/idempotency-conflict"


async def test_a_batch_of_templates(api: Api) -> None:
    mail = TO | {"template": "shop/order"}
    given = [
        mail | {"data": DATA},
        mail | {"data": {}},
        mail | {"data": DATA, "text": "x"},
        TO | {"text": "plain"},
    ]
    answer = await api.shop.post("/messages/batch", {"messages": given})
    assert answer.status == 200
    assert [one["status"] for one in answer.json["results"]] == [202, 422, 422, 202]
    assert answer.json["results"][1]["problem"]["type"] == "/problems/template"
    assert answer.json["results"][1]["problem"]["variable"] == "order"
    assert await count(api) == 2


async def test_a_template_for_many_recipients_with_their_own_values(api: Api) -> None:
    message = {
        "from": TO["from"],
        "template": "shop/order",
        "locale": "de",
        "data": {"order": 1, "name": "Kunde"},
    }
    recipients = [
        {"to": ["a@mail.example"], "substitutions": {"name": "Ada"}},
        {"to": ["b@mail.example"]},
        {"to": ["c@mail.example"], "substitutions": {"name": "{{order}}"}},
    ]
    answer = await api.shop.post("/messages/batch", {"message": message, "recipients": recipients})
    assert [one["status"] for one in answer.json["results"]] == [202, 202, 202]
    ids = [one["message"]["id"] for one in answer.json["results"]]
    assert [(await content(api, one)).text for one in ids] == [
        "Hallo Ada",
        "Hallo Kunde",
        "Hallo {{order}}",
    ]
    missing = message | {"data": {}}
    answer = await api.shop.post("/messages/batch", {"message": missing, "recipients": recipients})
    assert [one["status"] for one in answer.json["results"]] == [422, 422, 422]


async def test_a_missing_language_is_counted(api: Api) -> None:
    await send(api, locale="fr")
    assert b"pillarbox_template_fallbacks_total 1.0" in api.app.metrics.render()


async def test_the_python_clients(api: Api) -> None:
    mail = Mail(sender="hello@shop.example", to="ada@mail.example")
    async with AsyncClient(api.shop.url, api.shop.key) as client:
        sent = await client.send(mail, template="shop/order", locale="de", data=DATA)
        assert (await content(api, sent.id)).text == "Hallo Ada & <b>"
        with pytest.raises(RenderError) as raised:
            await client.send(mail, template="shop/order", data={"order": 1})
        assert (raised.value.variable, raised.value.part, raised.value.line) == ("name", "text", 1)
        with pytest.raises(InvalidMail, match="subject: is set by the template"):
            await client.send(Mail(to="a@b.example", subject="x"), template="shop/order")
        with pytest.raises(InvalidMail, match="template: is required with locale and data"):
            await client.send(mail, data=DATA)
        with pytest.raises(InvalidMail, match="cannot be encoded as JSON"):
            await client.send(mail, template="shop/order", data={"x": object()})
        with pytest.raises(TypeError, match="there is no argument 'tmeplate'"):
            await client.send(mail, tmeplate="shop/order")  # type: ignore[call-arg]


async def test_the_plain_client_has_it_too(api: Api) -> None:
    def ask() -> str:
        with Client(api.shop.url, api.shop.key) as client:
            mail = Mail(sender="hello@shop.example", to="ada@mail.example", idempotency_key="k")
            sent = client.send(mail, template="shop/order", data=DATA)
            assert client.send(mail, template="shop/order", data=DATA).repeated
            with pytest.raises(IdempotencyConflict):
                client.send(mail, template="shop/order", data=DATA | {"order": 2})
            return str(sent.id)

    assert (await content(api, await asyncio.to_thread(ask))).text == "Hello Ada & <b>"
