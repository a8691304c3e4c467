"""The API as people and programs meet it: with curl, by its description, on its pages, in the metrics."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from pillarbox.api.problem_types import TYPES
from pillarbox.api.v1 import description
from tests.integration.api.api_helpers import MAIL, Api, api_of

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url, development="on") as api:
        yield api


async def curl(*arguments: str, given: bytes = b"") -> tuple[int, Any, str]:
    """Status, answer and what curl said about its way there."""
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "-v", "-w", "\n%{http_code}", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate(given)
    assert process.returncode == 0, err
    body, _, status = out.decode().rpartition("\n")
    return int(status), json.loads(body) if body.startswith(("{", "[")) else body, err.decode()


# --- curl


@needs_curl
async def test_curl_with_a_key(api: Api) -> None:
    url = f"{api.nobody.url}/api/v1/messages"
    key = f"Authorization: Bearer {api.shop.key}"
    status, answer, _ = await curl(url, "-H", key, "--json", json.dumps(MAIL))
    assert status == 202
    status, told, _ = await curl(f"{url}/{answer['id']}", "-H", key)
    assert (status, told["subject"]) == (200, "Hello")
    status, mail, _ = await curl(f"{url}/{answer['id']}/raw", "-H", key)
    assert status == 200
    assert "Subject: Hello" in mail
    status, answer, _ = await curl("-X", "POST", f"{url}/{answer['id']}/cancel", "-H", key)
    assert (status, answer["deliveries"][0]["state"]) == (200, "cancelled")


@needs_curl
async def test_curl_without_a_key_in_development(api: Api) -> None:
    url = f"{api.nobody.url}/api/v1/messages"
    assert (await curl(url, "--json", json.dumps(MAIL)))[0] == 202
    status, problem, _ = await curl(url, "-d", json.dumps(MAIL))
    assert (status, problem["type"]) == (415, "/problems/unsupported-media-type")


@needs_curl
async def test_curl_sends_a_large_body_only_when_it_may(api: Api) -> None:
    """It asks first (Expect: 100-continue), and sends nothing when it is told no."""
    url = f"{api.nobody.url}/api/v1/messages"
    large = json.dumps(MAIL | {"text": "x" * 2**20}).encode()
    body = (
        "-H",
        "Content-Type: application/json",
        "-H",
        "Expect: 100-continue",
        "--data-binary",
        "@-",
    )
    status, _, said = await curl(url, *body, given=large)
    assert status == 202
    assert "100 Continue" in said
    status, _, said = await curl(url, *body, "-H", "Authorization: Bearer wrong", given=large)
    assert status == 401
    assert "100 Continue" not in said


@needs_curl
async def test_curl_in_chunks(api: Api) -> None:
    url = f"{api.nobody.url}/api/v1/messages"
    chunked = (
        "-H",
        "Content-Type: application/json",
        "-H",
        "Transfer-Encoding: chunked",
        "--data-binary",
        "@-",
    )
    assert (await curl(url, *chunked, given=json.dumps(MAIL).encode()))[0] == 202


# --- the description


async def test_the_description_needs_a_key_whatever_it_allows(database_url: str) -> None:
    async with api_of(database_url, development="off") as api:
        for place in ("/openapi.json", "/"):
            assert (await api.nobody.get(place)).status == 401
            assert (await api.shop.get(place)).status == 200


async def test_the_description_is_served(api: Api) -> None:
    answer = await api.shop.get("/openapi.json")
    assert answer.status == 200
    assert answer.json == description()
    assert answer.json["openapi"].startswith("3.1")
    assert answer.json["servers"] == [{"url": "/api/v1"}]


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, one)
        for path, some in description()["paths"].items()
        for method, one in some.items()
    ]


# What needs no key: it is how an administrator gets a session.
PUBLIC = ("/admin/login", "/admin/verify")


def test_clients_can_be_generated_from_it() -> None:
    ids = [one["operationId"] for _, _, one in operations()]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z_]+", one) for one in ids)
    for _, path, one in operations():
        assert one["summary"], path
        assert one["tags"], path
        assert path in PUBLIC or one["security"][0]["key"], path
        good = [status for status in one["responses"] if status.startswith("2")]
        assert len(good) == 1, path


def test_every_error_is_described_as_a_problem() -> None:
    for method, path, one in operations():
        for status, response in one["responses"].items():
            if not status.startswith("2"):
                assert list(response["content"]) == ["application/problem+json"], (
                    method,
                    path,
                    status,
                )
                for example in response["content"]["application/problem+json"]["examples"].values():
                    assert example["value"]["status"] == int(status)
        assert {"401", "403", "429", "503"} <= one["responses"].keys(), path
        assert ("{" not in path) or "404" in one["responses"], path
        assert ("requestBody" not in one) or {"400", "413", "415", "422"} <= one[
            "responses"
        ].keys(), path


def test_references_lead_somewhere() -> None:
    text = json.dumps(description())
    schemas = description()["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= schemas.keys()
    assert "HTTPValidationError" not in schemas


# --- pages


async def page(api: Api, path: str) -> tuple[int, str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{api.nobody.url}{path}") as answer:
        return answer.status, await answer.text(), answer.headers


@pytest.mark.parametrize("path", ["/api/v1/", "/problems", "/problems/invalid-mail"])
async def test_pages_load_nothing_from_anywhere(api: Api, path: str) -> None:
    status, text, headers = await page(api, path)
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert not re.search(r"<script|https?://|<link|<img|@import", text)
    assert "default-src 'none'" in headers["content-security-policy"]


async def test_the_page_of_the_api_lists_every_operation(api: Api) -> None:
    _, text, _ = await page(api, "/api/v1/")
    for _, path, one in operations():
        assert f"/api/v1{path}" in text
        assert one["summary"].replace("'", "&#x27;") in text


@pytest.mark.parametrize("name", TYPES)
async def test_the_type_of_a_problem_leads_to_its_page(api: Api, name: str) -> None:
    status, text, _ = await page(api, f"/problems/{name}")
    assert status == 200
    assert TYPES[name].title.replace("'", "&#x27;") in text


async def test_an_unknown_type_has_no_page(api: Api) -> None:
    assert (await page(api, "/problems/<script>"))[0] == 404


# --- metrics


async def test_requests_are_counted_by_template(api: Api) -> None:
    message = await api.shop.sent_id()
    await api.shop.get(f"/messages/{message}")
    await api.shop.get("/messages/0198c5a2-7d7e-7b0c-9e55-0c2f0c3d7a11")
    await api.shop("BREW", "/nonesuch")

    def count(route: str, method: str, status: str) -> float | None:
        labels = {"route": route, "method": method, "status": status}
        return api.app.metrics.registry.get_sample_value("pillarbox_http_requests_total", labels)

    assert count("/api/v1/messages", "POST", "2xx") == 1
    assert count("/api/v1/messages/{message_id}", "GET", "2xx") == 1
    assert count("/api/v1/messages/{message_id}", "GET", "4xx") == 1
    text = api.app.metrics.render().decode()
    assert message not in text
    assert "BREW" not in text
    assert "nonesuch" not in text
    assert 'pillarbox_http_request_seconds_count{route="/api/v1/messages"} 1.0' in text
