"""`pillarbox.Client` and `AsyncClient` against a real server, also when the way there is bad."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from pillarbox import AsyncClient, Attachment, Client, Mail
from pillarbox.client.calls import Sent
from pillarbox.errors import (
    IdempotencyConflict,
    InvalidMail,
    NoAnswer,
    NotAllowed,
    NotFound,
    NotPossible,
    StoreError,
    Throttled,
    Unauthorized,
    UnknownName,
)
from pillarbox.model.access import Scope
from pillarbox.testing.certificates import CertificateAuthority
from tests.integration.accept.intake_helpers import count
from tests.integration.api.api_helpers import Api, api_of
from tests.unsubscribing import CASES, HTTPS, INJECTION, unsubscribe_fields

Ask = Callable[..., Any]


class Both:
    """Either client behind one face: every method is awaited, a listing comes as a list."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Ask:
        method = getattr(self.client, name)
        if inspect.iscoroutinefunction(method):
            return method  # type: ignore[no-any-return]
        if name == "list":
            return self._listed

        async def in_thread(*arguments: Any, **named: Any) -> Any:
            return await asyncio.to_thread(method, *arguments, **named)

        return in_thread

    async def _listed(self, **filters: Any) -> list[Any]:
        if isinstance(self.client, AsyncClient):
            return [one async for one in self.client.list(**filters)]
        return await asyncio.to_thread(lambda: list(self.client.list(**filters)))  # type: ignore[arg-type]


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> type[Client] | type[AsyncClient]:
    return request.param  # type: ignore[no-any-return]


@asynccontextmanager
async def connected(kind: Any, url: str, key: str | None, **options: Any) -> AsyncIterator[Both]:
    client = kind(url, key, **options)
    try:
        yield Both(client)
    finally:
        await Both(client).close()


@pytest.fixture
async def client(kind: Any, api: Api) -> AsyncIterator[Both]:
    async with connected(kind, api.nobody.url, api.shop.key) as both:
        yield both


def mail(number: int = 1, **fields: Any) -> Mail:
    defaults = {
        "sender": "Shop <hello@shop.example>",
        "to": f"user{number}@mail.example",
        "subject": "Hello",
    }
    return Mail(**(defaults | {"text": "Hi!"} | fields))


RICH = mail(
    to=["Ünal <ünal@mail.example>", "b@mail.example"], cc="c@mail.example", bcc=["d@mail.example"],
    reply_to="r@shop.example", subject="Grüße", html="<p>é</p>", headers={"X-Campaign": "spring"},
    attachments=[Attachment("logo.png", bytes(range(256)), "image/png", "logo@x")], class_="bulk", kind="newsletter",
    priority="bulk", max_attempts=3, tags=["one", "two"], metadata={"order": 7, "nested": [None, 1.5, "é"]},
    expires_at=datetime(2999, 1, 1, tzinfo=UTC),
)  # fmt: skip


async def test_send_and_see(client: Both) -> None:
    sent = await client.send(RICH)
    assert [(one.recipient, one.role, one.state) for one in sent.deliveries] == [
        ("ünal@mail.example", "to", "queued"), ("b@mail.example", "to", "queued"), ("c@mail.example", "cc", "queued"),
        ("d@mail.example", "bcc", "queued"),
    ]  # fmt: skip
    assert sent.deliveries[2].id == f"{sent.id}.2"
    assert not sent.repeated
    told = await client.get(sent.id)
    assert (told.id, told.sender, list(told.to)) == (sent.id, RICH.sender, list(RICH.to))
    assert (told.class_, told.kind, told.priority, told.tags) == (
        "bulk",
        "newsletter",
        "bulk",
        ("one", "two"),
    )
    assert (told.metadata, told.max_attempts, told.expires_at) == (
        RICH.metadata,
        3,
        RICH.expires_at,
    )
    assert abs(told.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert [one.state for one in told.deliveries] == ["queued"] * 4
    assert told.deliveries[0].attempts == ()
    assert told.content is not None
    raw = await client.raw(str(sent.id))
    assert b"X-Campaign: spring" in raw
    assert b"d@mail.example" not in raw


async def test_a_raw_mail(client: Both) -> None:
    whole = b"From: a@shop.example\r\nSubject: raw\r\n\r\nBody\xff\r\n"
    sent = await client.send(mail(raw=whole, text=None, subject=None))
    assert (await client.raw(sent.id)).endswith(whole)  # beside what it lacked: a date, an id


async def test_unsubscribing(client: Both) -> None:
    mails = [mail(number, list_unsubscribe=urls) for number, (urls, _) in enumerate(CASES)]
    sent = [await client.send(mails[0]), *await client.send_many(mails[1:])]
    for receipt, (_, expected) in zip(sent, CASES, strict=True):
        assert unsubscribe_fields(await client.raw(receipt.id)) == expected
    resent = await client.resend(sent[0].id)
    assert unsubscribe_fields(await client.raw(resent.id)) == CASES[0][1]
    with pytest.raises(InvalidMail) as refused:
        await client.send(mail(list_unsubscribe=INJECTION))
    assert (refused.value.code, refused.value.field) == ("bad_url", "list_unsubscribe")
    with pytest.raises(InvalidMail) as refused:
        await client.send(mail(list_unsubscribe=HTTPS, headers={"List-Unsubscribe": "<x>"}))
    assert (refused.value.code, refused.value.field) == ("reserved_header", "headers")


async def test_list(client: Both) -> None:
    sent = [
        await client.send(mail(n, tags=["even"] if n % 2 == 0 else [], kind=f"k{n}"))
        for n in range(7)
    ]
    ids = [one.id for one in reversed(sent)]
    assert [one.id for one in await client.list()] == ids
    assert [one.id for one in await client.list(page_size=2)] == ids
    assert [one.id for one in await client.list(page_size=2, tag="even")] == ids[::2]
    (found,) = await client.list(
        state=["queued", "failed"], kind="k3", since=datetime.now(UTC) - timedelta(hours=1)
    )
    assert (found.id, found.subject, found.deliveries[0].recipient) == (
        sent[3].id,
        "Hello",
        "user3@mail.example",
    )
    assert await client.list(state="failed") == []
    with pytest.raises(InvalidMail) as caught:
        await client.list(state="sometimes")
    assert caught.value.field.startswith("state")


async def test_cancel_reschedule_resend(client: Both, api: Api) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    sent = await client.send(mail(send_at=later - timedelta(hours=1)))
    assert sent.deliveries[0].state == "pending"
    changes = await client.reschedule(sent.id, later)
    assert (changes.id, changes.deliveries[0].changed, changes.deliveries[0].next_attempt_at) == (
        sent.id,
        True,
        later,
    )
    changes = await client.cancel(sent.id)
    assert changes.deliveries[0].state == "cancelled"
    with pytest.raises(NotPossible, match="cancelled"):
        await client.cancel(sent.id)
    again = await client.resend(sent.id, idempotency_key="once")
    assert again.id != sent.id
    assert (await client.resend(sent.id, idempotency_key="once")).repeated
    assert {one.kind for one in (await client.get(sent.id)).events} >= {"cancelled", "resent"}
    await api.database.execute("DELETE FROM pillarbox.contents")
    for what in (client.resend, client.raw):
        with pytest.raises(NotPossible, match="deleted"):
            await what(sent.id)


async def test_in_flight_says_so(client: Both, api: Api) -> None:
    sent = await client.send(mail())
    await api.database.execute(
        "UPDATE pillarbox.deliveries SET state = 'processing', claim = 1, worker = 1"
    )
    with pytest.raises(NotPossible, match="is being sent"):
        await client.cancel(sent.id)


async def test_errors_are_ours(client: Both, kind: Any, api: Api) -> None:
    with pytest.raises(UnknownName, match="no class 'gold'") as unknown:
        await client.send(mail(class_="gold"))
    assert (unknown.value.code, unknown.value.field) == ("unknown_class", "class")
    with pytest.raises(InvalidMail) as late:
        await client.send(mail(send_at=datetime.now(UTC) + timedelta(days=400)))
    assert (late.value.code, late.value.field) == ("out_of_range", "send_at")
    with pytest.raises(InvalidMail) as nobody:
        await client.send(mail(sender=None))
    assert (nobody.value.code, nobody.value.field) == ("bad_address", "sender")
    await client.send(mail(idempotency_key="k"))
    assert (await client.send(mail(idempotency_key="k"))).repeated
    with pytest.raises(IdempotencyConflict):
        await client.send(mail(2, idempotency_key="k"))
    with pytest.raises(NotFound):
        await client.get(uuid4())
    async with connected(kind, api.nobody.url, None) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.send(mail())
    reader = await api.key("shop", Scope.READ)
    async with connected(kind, api.nobody.url, reader.key) as only_reads:
        with pytest.raises(NotAllowed) as lacking:
            await only_reads.send(mail())
        assert lacking.value.code == "scope"


async def test_another_tenant_sees_nothing(client: Both, kind: Any, api: Api) -> None:
    sent = await client.send(mail())
    async with connected(kind, api.nobody.url, api.other.key) as other:
        assert await other.list() == []
        for what in (other.get, other.raw, other.cancel, other.resend):
            with pytest.raises(NotFound):
                await what(sent.id)


@pytest.mark.req("REQ-QUEUE-O002")
async def test_send_many(client: Both, api: Api) -> None:
    mails = [mail(n) for n in range(230)]
    mails[7] = mail(to="nobody")
    mails[150] = mail(class_="gold")
    results = await client.send_many(iter(mails), idempotency_key="newsletter 7")
    assert len(results) == 230
    assert [place for place, one in enumerate(results) if not isinstance(one, Sent)] == [7, 150]
    assert [results[place].position for place in (7, 150)] == [7, 150]
    assert isinstance(results[150], UnknownName)
    rows = await api.database.fetch("SELECT message_id FROM pillarbox.deliveries ORDER BY seq")
    assert [row["message_id"] for row in rows] == [
        one.id for one in results if isinstance(one, Sent)
    ]
    again = await client.send_many(mails, idempotency_key="newsletter 7")
    assert all(one.repeated for one in again if isinstance(one, Sent))
    assert await count(api.database) == 228
    assert await client.send_many([]) == []


async def test_they_close_themselves(api: Api) -> None:
    async with AsyncClient(api.nobody.url, api.shop.key) as client:
        await client.send(mail())

    def in_thread() -> None:
        with Client(api.nobody.url, api.shop.key) as client:
            client.send(mail())

    await asyncio.to_thread(in_thread)
    assert await count(api.database) == 2


async def test_a_call_for_many_that_fails_as_a_whole(kind: Any, api: Api) -> None:
    async with connected(kind, api.nobody.url, None) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.send_many([mail()])


async def test_a_large_mail(client: Both) -> None:
    sent = await client.send(mail(attachments=[Attachment("big.bin", bytes(8 * 2**20))]))
    assert len(await client.raw(sent.id)) > 10 * 2**20


async def test_without_a_key_in_development(kind: Any, database_url: str) -> None:
    async with (
        api_of(database_url, development="on") as api,
        connected(kind, api.nobody.url + "/", None) as client,
    ):
        assert (await client.send(mail())).deliveries[0].state == "queued"


async def test_nobody_is_there(kind: Any, free_port: int) -> None:
    async with connected(kind, f"http://127.0.0.1:{free_port}", None, retries=1) as client:
        with pytest.raises(NoAnswer) as caught:
            await client.send(mail())
        assert not caught.value.reached


@dataclass
class Proxy:
    """A bad way to a server: does to each connection what stands next in `script`, then forwards faithfully.

    `lose` passes the request on and drops the answer, `cut` drops the connection, `hang` answers nothing; a number is
    answered as that status, with `headers`.
    """

    upstream: int
    script: list[str | int] = field(default_factory=list)
    headers: str = ""
    body: bytes = b""
    requests: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _message(reader):
                self.requests += 1
                act = self.script.pop(0) if self.script else "forward"
                if act == "hang":
                    await reader.read()
                if act in ("cut", "hang"):
                    return
                writer.write(await self._answer(act, request))
                await writer.drain()
                if act == "lose":
                    return
        finally:
            writer.close()

    async def _answer(self, act: str | int, request: bytes) -> bytes:
        if isinstance(act, int):
            head = f"HTTP/1.1 {act} X\r\n{self.headers}Content-Length: {len(self.body)}\r\n\r\n"
            return head.encode() + self.body
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        writer.write(request)
        answer = await _message(reader)
        writer.close()
        return b"" if act == "lose" else answer


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One request or answer; nothing at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)


@asynccontextmanager
async def proxied(url: str, *script: str | int, **fields: Any) -> AsyncIterator[Proxy]:
    proxy = Proxy(int(url.rpartition(":")[2]), list(script), **fields)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2**24)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy


@pytest.mark.parametrize(
    "script", [("lose",), ("cut",), ("lose", "cut", "lose"), (502, "lose", 503), (429,)]
)
async def test_a_lost_answer_makes_no_second_mail(script: Any, kind: Any, api: Api) -> None:
    async with (
        proxied(api.nobody.url, *script, headers="Retry-After: 0\r\n") as proxy,
        connected(kind, proxy.url, api.shop.key) as client,
    ):
        sent = await client.send(mail())
        assert proxy.requests == len(script) + 1
        assert sent.repeated == ("lose" in script)
        assert await api.database.fetchval("SELECT array_agg(id) FROM pillarbox.messages") == [
            sent.id
        ]
        proxy.script.extend(script)
        results = await client.send_many([mail(n) for n in range(5)])
        assert all(isinstance(one, Sent) for one in results)
        assert await count(api.database) == 6
        proxy.script.extend(script)
        assert isinstance((await client.resend(sent.id)).id, UUID)
        assert await count(api.database) == 7


async def test_a_server_that_hangs(kind: Any, api: Api) -> None:
    async with (
        proxied(api.nobody.url, "hang") as proxy,
        connected(kind, proxy.url, api.shop.key, timeout=2) as client,
    ):
        await client.send(mail())
        assert proxy.requests == 2
        assert await count(api.database) == 1


async def test_enough_is_enough(kind: Any, api: Api) -> None:
    async with (
        proxied(api.nobody.url, *["lose"] * 9) as proxy,
        connected(kind, proxy.url, api.shop.key, retries=2) as client,
    ):
        with pytest.raises(NoAnswer, match="lost"):
            await client.send(mail())
        assert proxy.requests == 3
        with pytest.raises(NoAnswer):
            await client.cancel(uuid4())
        assert proxy.requests == 4  # what must not be done twice is not repeated


async def test_waits_as_it_is_told_and_not_for_ever(kind: Any, api: Api) -> None:
    throttled = b'{"type": "/problems/throttled", "status": 429, "detail": "slowly"}'
    async with (
        proxied(api.nobody.url, 429, headers="Retry-After: 99\r\n", body=throttled) as proxy,
        connected(kind, proxy.url, api.shop.key) as client,
    ):
        with pytest.raises(Throttled, match="slowly") as caught:
            await client.send(mail())
        assert caught.value.retry_after == 99
        assert proxy.requests == 1
        proxy.script, proxy.headers = [429, 429], "Retry-After: 1\r\n"
        before = asyncio.get_running_loop().time()
        await client.send(mail())
        assert asyncio.get_running_loop().time() - before > 1.9


async def test_the_database_is_away(kind: Any, api: Api) -> None:
    away = (
        b'{"type": "/problems/store-away", "status": 503, "detail": "the database does not answer"}'
    )
    async with (
        proxied(api.nobody.url, 503, 503, headers="Retry-After: 0\r\n", body=away) as proxy,
        connected(kind, proxy.url, api.shop.key, retries=1) as client,
    ):
        with pytest.raises(StoreError, match="does not answer"):
            await client.send(mail())


async def test_redirects_are_not_followed(kind: Any, api: Api) -> None:
    """Somebody else's server must not get the key."""
    async with proxied(api.nobody.url) as elsewhere:
        to = f"Location: {elsewhere.url}/api/v1/messages\r\n"
        async with (
            proxied(api.nobody.url, 307, 302, headers=to) as proxy,
            connected(kind, proxy.url, api.shop.key) as client,
        ):
            for _ in range(2):
                with pytest.raises(NoAnswer, match="30"):
                    await client.send(mail())
        assert elsewhere.requests == 0


async def test_https(kind: Any, api: Api, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    proxy = Proxy(int(api.nobody.url.rpartition(":")[2]))
    server = await asyncio.start_server(
        proxy.serve, "127.0.0.1", 0, ssl=authority.issue().server_context()
    )
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with connected(
            kind, url, api.shop.key, ssl_context=authority.client_context()
        ) as client:
            assert isinstance(await client.send(mail()), Sent)
        async with connected(kind, url, api.shop.key, retries=0) as suspicious:
            with pytest.raises(NoAnswer):
                await suspicious.send(mail())
    assert proxy.requests == 1
