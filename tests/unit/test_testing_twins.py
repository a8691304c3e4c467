"""What all twins have in common: dials, waiting, feedback by itself, a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import aiohttp
import pytest
from tests.unit.twin_helpers import (
    UUID,
    Listener,
    call,
    check,
    listening,
    send,
    sendgrid_mail,
    to_sendgrid,
)

from pillarbox.testing.twins import TWINS, Dials, FeedbackDials, SendGridTwin
from pillarbox.testing.twins.mail import Recorder, read_records

ON_BOTH_LOOPS = True


@pytest.fixture(params=TWINS)
async def twin(request):
    async with TWINS[request.param]() as running:
        yield running


async def test_takes_a_mail(twin):
    answer = await send(twin, "ada@example.org", "bob@example.org")
    assert answer.status in (200, 202)
    mail = await twin.next_mail()
    assert mail.recipients == ("ada@example.org", "bob@example.org")
    assert (mail.sender, mail.subject, mail.message_uuid) == ("shop@example.com", "Grüße", UUID)
    assert mail.mime is None or mail.message["Subject"] == "Grüße"
    assert twin.mails == [mail]
    assert mail.headers["user-agent"]


async def test_tells_of_its_account(twin):
    assert (await check(twin)).status == 200
    assert (await call("GET", twin.url + "/nowhere", {})).status in (401, 403, 404)


async def test_settings_are_those_of_a_provider(twin):
    settings = twin.provider_settings()
    assert settings["url"] == twin.url
    assert twin.secret
    assert (twin.webhook_secret is not None) == (twin.kind == "mailgun")


# --- dials


async def test_answers_what_it_is_told(twin):
    twin.dials = Dials(status=418, body={"short": "stout"})
    answer = await send(twin)
    assert (answer.status, answer.json()) == (418, {"short": "stout"})
    assert twin.accepted == 0


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_fails_in_the_services_own_words(twin, status):
    twin.dials = Dials(status=status, retry_after=7)
    answer = await send(twin)
    assert (answer.status, answer.headers["Retry-After"]) == (status, "7")
    said = answer.json()
    assert said["errors"][0]["message"] if twin.kind == "sendgrid" else said["message"]
    assert (await check(twin)).status == status


async def test_dials_hold_for_so_many_sends(twin):
    dials = Dials(status=503, times=2)
    twin.dials = dials
    assert [(await send(twin)).status for _ in range(2)] == [503, 503]
    assert (await check(twin)).status == 200
    assert (await send(twin)).status in (200, 202)
    twin.dials = dials
    assert (await send(twin)).status == 503, "a twin counts in a copy of its own"


async def test_a_check_uses_up_no_send(twin):
    twin.dials = Dials(status=503, times=1)
    assert (await check(twin)).status == 503
    assert (await send(twin)).status == 503
    assert (await send(twin)).status in (200, 202)


async def test_a_share_of_the_sends_fails(twin):
    twin.dials = Dials(status=503, share=0.5)
    statuses = Counter([(await send(twin)).status for _ in range(30)])
    assert 3 < statuses[503] < 27


@pytest.mark.parametrize(("drop", "accepted"), [("before", 0), ("after", 1)])
async def test_drops_the_connection(twin, drop, accepted):
    twin.dials = Dials(drop=drop)
    with pytest.raises(aiohttp.ClientConnectionError):
        await send(twin)
    assert twin.accepted == accepted


@pytest.mark.parametrize("stored", [False, True])
async def test_hangs(twin, stored):
    twin.dials = Dials(hang=True, stored=stored)
    sending = asyncio.create_task(send(twin))
    await twin.wait_for(lambda: twin.requests == 1)
    assert twin.accepted == stored
    done, _ = await asyncio.wait([sending], timeout=0.05)
    assert not done
    sending.cancel()


async def test_takes_its_time(twin):
    twin.dials = Dials(latency=0.05)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.gather(*(send(twin) for _ in range(5)))
    assert loop.time() - begun >= 0.05
    assert twin.accepted == 5


async def test_stops_in_the_midst_and_starts_again(twin):
    port = twin.port
    twin.dials = Dials(hang=True)
    sending = asyncio.create_task(send(twin))
    await twin.wait_for(lambda: twin.requests == 1)
    await twin.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await sending
    twin.dials = Dials()
    await twin.start()
    assert twin.port == port
    assert (await send(twin)).status in (200, 202)


async def test_says_what_came_when_nothing_does(twin):
    await send(twin)
    with pytest.raises(TimeoutError, match="1 requests, 1 mails accepted"):
        await twin.wait_for(lambda: twin.accepted == 2, timeout=0.01)


async def test_keeps_the_newest_only_when_asked_to():
    async with SendGridTwin(keep=2) as twin:
        for number in range(5):
            await to_sendgrid(twin, sendgrid_mail(f"reader{number}@example.org"))
        assert twin.accepted == 5
        assert [mail.recipients[0] for mail in twin.mails[-2:]] == [
            "reader3@example.org",
            "reader4@example.org",
        ]
        assert len(twin.mails) < 4


async def test_writes_down_what_it_took_before_it_says_so(twin, tmp_path):
    twin._recorder = Recorder(tmp_path / "mails.txt")
    twin.dials = Dials(drop="after")
    with pytest.raises(aiohttp.ClientConnectionError):
        await send(twin, "ada@example.org", "bob@example.org")
    [record] = read_records(tmp_path / "mails.txt")
    assert (record.message_uuid, record.recipients) == (
        UUID,
        ["ada@example.org", "bob@example.org"],
    )
    twin._recorder.close()


# --- HTTP


async def test_garbage_is_refused_and_the_connection_closed(twin):
    reader, writer = await asyncio.open_connection(twin.host, twin.port)
    writer.write(b"\x00\x01 not HTTP\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    await writer.wait_closed()


async def test_answers_pipelined_requests_in_order():
    async with SendGridTwin(Dials(latency=0.01)) as twin:
        reader, writer = await asyncio.open_connection(twin.host, twin.port)
        head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {twin.secret}\r\n\r\n"
        writer.write(f"GET /v3/scopes {head}GET /v3/nothing {head}".encode())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"]}")
        assert b"404 Not Found" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()


async def test_closes_when_the_client_wants_no_more(twin):
    reader, writer = await asyncio.open_connection(twin.host, twin.port)
    writer.write(b"GET /_twin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_takes_chunks_and_says_continue():
    async with SendGridTwin() as twin:
        body = json.dumps(sendgrid_mail()).encode()
        reader, writer = await asyncio.open_connection(twin.host, twin.port)
        writer.write(
            b"POST /v3/mail/send HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\n\r\n"
            % twin.secret.encode()
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for part in (body[:10], body[10:], b""):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 202")
        assert twin.accepted == 1
        writer.close()
        await writer.wait_closed()


# --- feedback


async def test_nobody_to_tell(twin):
    await send(twin)
    with pytest.raises(ValueError, match="webhook_url"):
        await twin.feed(twin.mails[0], "delivered")


async def test_says_what_the_listener_answered(twin):
    async with listening() as listener:
        twin.webhook_url, listener.statuses = listener.url, [403]
        await send(twin)
        assert await twin.feed(twin.mails[0], "delivered") == 403
        assert await twin.feed(twin.mails[0], "delivered") == 200
        assert twin.posted == {403: 1, 200: 1}


async def test_feedback_by_itself_with_duplicates_and_forgeries(twin):
    async with listening() as listener:
        twin.webhook_url = listener.url
        twin.feedback = FeedbackDials(opened=1, duplicate=1, forged=1)
        await send(twin)
        await twin.wait_for(lambda: told(listener).count(b"pillarbox_message") == 6)
        assert b"deliver" in told(listener)
        assert b"open" in told(listener)
        await twin.wait_for(lambda: twin.posted[200] == len(listener.posts))


def told(listener: Listener) -> bytes:
    return b"".join(body for _, body in listener.posts).lower()


async def test_a_listener_that_fails_is_told_again(twin, monkeypatch):
    monkeypatch.setattr("pillarbox.testing.twins.feeder.PAUSE", 0.001)
    async with listening() as listener:
        listener.statuses = [500, 503]
        twin.webhook_url, twin.feedback = listener.url, FeedbackDials()
        await send(twin)
        await twin.wait_for(lambda: twin.posted[200] == 1)
        assert len({body for _, body in listener.posts}) == 1, "the very same request"


async def test_events_out_of_order():
    people = [f"reader{number}@example.org" for number in range(20)]
    async with listening() as listener, SendGridTwin(webhook_url=listener.url) as twin:
        twin.feedback = FeedbackDials(opened=1, complained=1, shuffled=True)
        await send(twin, *people)
        await twin.wait_for(lambda: told(listener).count(b"pillarbox_delivery") == 60)
        events = [event for _, body in listener.posts for event in json.loads(body)]
        by_person = {
            one: [event["event"] for event in events if event["email"] == one] for one in people
        }
        assert all(
            sorted(kinds) == ["delivered", "open", "spamreport"] for kinds in by_person.values()
        )
        assert len({tuple(kinds) for kinds in by_person.values()}) > 1


async def test_late_events_come_last_and_end_with_the_twin(twin):
    async with listening() as listener:
        twin.webhook_url = listener.url
        twin.feedback = FeedbackDials(bounced=1, deferred=1, late=3600)
        await send(twin)
        await twin.wait_for(lambda: twin.posted[200] == 1)
        assert len(listener.posts) == 1


# --- from other processes


async def test_other_processes_turn_the_dials(twin):
    url = twin.url + "/_twin"
    told = (await call("PUT", url + "/dials", {}, b'{"status": 503, "times": 1}')).json()
    assert (told["kind"], told["dials"]["status"]) == (twin.kind, 503)
    assert (await send(twin)).status == 503
    await call("PUT", url + "/webhook_url", {}, b'"http://127.0.0.1:9/"')
    await call("PUT", url + "/feedback", {}, b"null")
    assert (twin.webhook_url, twin.feedback) == ("http://127.0.0.1:9/", None)
    for wrong in ("/dials", "/nothing"):
        assert (await call("PUT", url + wrong, {}, b'{"no": 1}')).status == 400
    assert (await call("GET", url, {})).json()["requests"] == twin.requests


@contextmanager
def twin_process(*options: str):
    command = [sys.executable, "-m", "pillarbox.testing.twins", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("kind", TWINS)
async def test_runs_as_a_process_of_its_own(kind, tmp_path):
    out = tmp_path / "mails.txt"
    with twin_process(kind, "--latency", "0.001", "--out", str(out)) as (process, told):
        assert told["settings"]["url"] == told["url"]
        like = TWINS[kind](port=int(told["url"].rpartition(":")[2]))
        like.api_key = like.secret_access_key = told["secret"]
        like.access_key_id = told["settings"].get("access_key_id")
        assert (await send(like)).status in (200, 202)
        process.terminate()
        assert json.loads(process.stdout.read())["accepted"] == 1
        assert process.wait() == 0
    assert [record.recipients for record in read_records(out)] == [["ada@example.org"]]
