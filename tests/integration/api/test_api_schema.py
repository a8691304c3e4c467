"""The API against its own description: whatever is asked, the answer is one that it names, and never a 500."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pillarbox.api.v1 import description
from tests.integration.api.api_helpers import api_of

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
# Some two hundred requests a second: all operations together stay within a minute.
EXAMPLES = 30
schemathesis.serializer.alias("message/rfc822", "text/plain")
schema = schemathesis.openapi.from_dict(description())


class Served(NamedTuple):
    url: str
    tenant: str
    admin: str


@pytest.fixture
def served(database_url: str) -> Iterator[Served]:
    """A server in a thread of its own: schemathesis asks in this one."""
    ready, stop = threading.Event(), threading.Event()
    found: list[Served] = []
    thread = threading.Thread(target=asyncio.run, args=(serve(database_url, found, ready, stop),))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    stop.set()
    thread.join(60)


async def serve(
    database_url: str, found: list[Served], ready: threading.Event, stop: threading.Event
) -> None:
    async with api_of(database_url, secret_keys="11" * 32) as api:
        for n in range(3):
            await api.shop.sent_id(subject=str(n))
        found.append(Served(api.nobody.url, str(api.shop.key), str(api.admin.key)))
        ready.set()
        await asyncio.to_thread(stop.wait)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, database=None,
    phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_every_answer_is_as_described(case: schemathesis.Case, served: Served) -> None:
    key = served.admin if case.path.startswith("/admin") else served.tenant
    headers = {"Authorization": f"Bearer {key}"}
    case.call_and_validate(base_url=f"{served.url}/api/v1", headers=headers, checks=CHECKS)
