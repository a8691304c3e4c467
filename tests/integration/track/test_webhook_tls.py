"""Calls to customers over real TLS: whose certificates are believed, and what is said of the others."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from pillarbox.errors import SettingsError
from pillarbox.model.webhook import CallState
from pillarbox.store import webhooks
from pillarbox.testing.certificates import Certificate, CertificateAuthority, make_ca
from pillarbox.testing.webhook_receiver import WebhookReceiver
from pillarbox.track.webhook_client import tls_context
from pillarbox.track.webhook_dispatcher import send_test_call
from tests.harness import enqueue, eventually, opened
from tests.integration.track.test_customer_webhooks import KEYS, add, notifying, tell


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return make_ca(tmp_path)


async def outcome(
    database_url: str, certificate: Certificate | None, ca_file: Path | None, host: str = ""
) -> str | None:
    """What a test call to such a receiver came to: None, or why it failed."""
    settings = KEYS | ({"webhook_ca_file": str(ca_file)} if ca_file else {})
    async with (
        WebhookReceiver(certificate=certificate) as receiver,
        opened(database_url, **settings) as app,
    ):
        if host:
            receiver.url = receiver.url.replace("127.0.0.1", host)
        endpoint = await add(app, receiver)
        result = await send_test_call(app.database, app.keys, app.webhook_client(), endpoint.id, 1)
        assert (result.error is None) == (result.state is CallState.DELIVERED)
        assert len(receiver.calls) == (1 if result.error is None else 0)
        if result.error is None:
            assert receiver.calls[0].type == "webhook.test"  # the signature is right
        return result.error


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_authority_of_ones_own(
    database_url: str, ca: CertificateAuthority, host: str
) -> None:
    assert await outcome(database_url, ca.issue(), ca.path, host) is None


async def test_an_authority_that_is_not_known(database_url: str, ca: CertificateAuthority) -> None:
    error = await outcome(database_url, ca.issue(), None)
    assert error == "TLS failed: the certificate was issued by an unknown authority"


async def test_another_name(database_url: str, ca: CertificateAuthority) -> None:
    for host, word in (("localhost", "name"), ("127.0.0.1", "address")):
        error = await outcome(database_url, ca.wrong_name(), ca.path, host)
        assert error == f"TLS failed: the certificate is for another {word}"


async def test_an_expired_certificate(database_url: str, ca: CertificateAuthority) -> None:
    assert (
        await outcome(database_url, ca.expired(), ca.path)
        == "TLS failed: the certificate has expired"
    )


async def test_a_certificate_signed_by_itself(database_url: str, ca: CertificateAuthority) -> None:
    error = await outcome(database_url, ca.self_signed(), ca.path)
    assert error == "TLS failed: the certificate is self-signed"


async def test_a_receiver_without_tls(database_url: str, ca: CertificateAuthority) -> None:
    async with WebhookReceiver() as receiver, opened(database_url, **KEYS) as app:
        receiver.url = receiver.url.replace("http:", "https:")
        endpoint = await add(app, receiver)
        result = await send_test_call(app.database, app.keys, app.webhook_client(), endpoint.id, 1)
        assert result.error is not None
        assert result.error.startswith("TLS failed")


async def test_private_addresses_are_refused_before_any_handshake(
    database_url: str, ca: CertificateAuthority
) -> None:
    settings = KEYS | {"webhook_allow_private": "false", "webhook_ca_file": str(ca.path)}
    async with (
        WebhookReceiver(certificate=ca.issue()) as receiver,
        opened(database_url, **settings) as app,
    ):
        endpoint = await add(app, receiver)
        result = await send_test_call(app.database, app.keys, app.webhook_client(), endpoint.id, 1)
        assert result.error is not None
        assert "public internet" in result.error
        assert receiver.calls == []


async def test_a_call_is_repeated_until_the_certificate_is_right(
    database_url: str, ca: CertificateAuthority
) -> None:
    """Through the queue of calls: nothing is lost while a certificate is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with opened(database_url, **KEYS, webhook_ca_file=str(ca.path)) as app:
        message_id = await enqueue(app.database, "ada@mail.example")
        async with WebhookReceiver(certificate=ca.expired(), port=port) as receiver, notifying(app):
            endpoint = await add(app, receiver)
            await tell(app.database, message_id, "message.delivered")

            async def tried() -> bool:
                row = await app.database.fetchrow(
                    "SELECT attempts, error FROM pillarbox.webhook_calls"
                )
                return row is not None and row["attempts"] == 1 and "has expired" in row["error"]

            await eventually(tried)
            assert receiver.calls == []
        secrets = receiver.secrets
        await app.database.execute("UPDATE pillarbox.webhook_calls SET next_at = now()")
        async with (
            WebhookReceiver(certificate=ca.issue(), port=port, secrets=secrets) as receiver,
            notifying(app),
        ):
            await receiver.wait_for(lambda: bool(receiver.calls))
            assert receiver.calls[0].type == "message.delivered"

            async def delivered() -> bool:
                state = await app.database.fetchval("SELECT state FROM pillarbox.webhook_calls")
                return bool(state == "delivered")

            await eventually(delivered)
        assert (await webhooks.get_endpoint(app.database, endpoint.id, 1)).enabled


def test_a_file_that_holds_no_certificates(tmp_path: Path) -> None:
    for content in (None, b"", b"nonsense"):
        file = tmp_path / "ca.pem"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(SettingsError, match="webhook_ca_file"):
            tls_context(file)


def test_the_oldest_versions_of_tls_are_refused() -> None:
    context = tls_context()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
