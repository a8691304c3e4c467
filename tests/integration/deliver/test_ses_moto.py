"""SES against moto's server: somebody else's idea of the API, with botocore's of everything around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import boto3
import pytest
import pytest_asyncio
from moto.core import DEFAULT_ACCOUNT_ID
from moto.server import ThreadedMotoServer
from moto.ses.models import ses_backends

from pillarbox.deliver.transports.http import HttpTransport
from pillarbox.model.outcome import Reason, Verdict
from tests.integration.deliver.http_helpers import outgoing, to_url


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest_asyncio.fixture
async def transport(moto_url: str) -> AsyncIterator[HttpTransport]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{moto_url}/moto-api/reset") as answer,
    ):
        await answer.read()
    account = {"region_name": "eu-west-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client("sesv2", endpoint_url=moto_url, **account)
    client.create_email_identity(EmailIdentity="shop.example")
    client.close()
    async with to_url("ses", moto_url) as ready:
        yield ready


@pytest.mark.req("REQ-QUEUE-U003")
@pytest.mark.req("REQ-QUEUE-E003")
async def test_a_mail_is_accepted_with_an_id(transport: HttpTransport) -> None:
    report = await transport.send(outgoing("a@mail.example", "b@mail.example"))
    assert report.plainly_accepted
    [first, second] = [one.provider_message_id for one in report.outcomes]
    assert first == second
    assert first


async def test_the_mail_is_the_one_we_composed_and_copies_stay_hidden(
    transport: HttpTransport,
) -> None:
    sent = outgoing("a@mail.example", "hidden@mail.example", to=["a@mail.example"])
    await transport.send(sent)
    [mail] = ses_backends[DEFAULT_ACCOUNT_ID]["eu-west-1"].sent_messages
    assert mail.raw_data.encode() == sent.content
    assert set(mail.destinations) == {"a@mail.example", "hidden@mail.example"}
    assert "hidden" not in mail.raw_data


@pytest.mark.req("REQ-QUEUE-N002")
async def test_a_sender_that_is_not_verified_is_refused_for_good(transport: HttpTransport) -> None:
    stranger = outgoing(sender="x@stranger.example")
    stranger.sender = "x@stranger.example"
    [outcome] = (await transport.send(stranger)).outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.REJECTED, Reason.BLOCKED_SENDER)


async def test_a_check_bears_that_moto_has_no_account(transport: HttpTransport) -> None:
    assert "Amazon SES" in await transport.check()
