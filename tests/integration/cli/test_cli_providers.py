"""The command line for HTTP providers: adding, showing, trying, limiting, their feedback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pillarbox.store.vault import generate_key
from pillarbox.testing.twins import MailgunTwin, SendGridTwin, SesTwin
from pillarbox.testing.twins.base import Twin
from tests.integration.cli.cli_helpers import Cli

ACCESS = ("--region", "eu-west-1", "--access-key-id", "AKIAIOSFODNN7EXAMPLE")


@pytest.fixture
def cli(database_url: str) -> Cli:
    cli = Cli(database_url)
    cli.env["PILLARBOX_SECRET_KEYS"] = generate_key()
    cli.env["API_KEY"] = "key-hunter2"
    cli.env["SIGNING_KEY"] = "sign-hunter2"
    return cli


@contextmanager
def serving(twin: Twin) -> Iterator[Twin]:
    """A twin on a loop of its own, beside the command's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(twin.start(), loop).result(10)
    try:
        yield twin
    finally:
        asyncio.run_coroutine_threadsafe(twin.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def plain(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.req("REQ-QUEUE-N003")
@pytest.mark.parametrize(
    ("kind", "arguments", "settings"),
    [
        ("sendgrid", (), {}),
        (
            "sendgrid",
            ("--url", "https://api.eu.sendgrid.com"),
            {"url": "https://api.eu.sendgrid.com"},
        ),
        (
            "ses",
            (
                *ACCESS,
                "--configuration-set",
                "mail",
                "--topic",
                "arn:aws:sns:eu-west-1:123456789012:mail",
            ),
            {
                "region": "eu-west-1",
                "access_key_id": "AKIAIOSFODNN7EXAMPLE",
                "configuration_set": "mail",
                "topics": ["arn:aws:sns:eu-west-1:123456789012:mail"],
            },
        ),
        (
            "mailgun",
            (
                "--domain",
                "mg.shop.example",
                "--region",
                "eu",
                "--timeout",
                "10s",
                "--connections",
                "50",
            ),
            {"domain": "mg.shop.example", "region": "eu", "timeout": 10.0, "connections": 50},
        ),
    ],
)
def test_a_provider_is_added_and_its_secret_is_shown_nowhere(
    cli: Cli, kind: str, arguments: tuple[str, ...], settings: dict[str, object]
) -> None:
    signing = ("--webhook-secret-env", "SIGNING_KEY") if kind == "mailgun" else ()
    added = cli("provider", "add", kind, "esp", *arguments, "--secret-env", "API_KEY", *signing)
    assert f"/webhooks/{kind}/1" in added.out
    shown = [
        cli("provider", "list"),
        cli("provider", "list", "--json"),
        cli("provider", "show", "esp"),
    ]
    public = cli.json("provider", "show", "esp")
    assert not any("hunter2" in one.out + one.err for one in (added, *shown))
    assert public["settings"] == settings
    assert (public["secret"], public["webhook_secret"]) == ("****", "****" if signing else None)
    [(sealed, signed)] = cli.sql("SELECT secret, webhook_secret FROM pillarbox.providers")
    assert b"hunter2" not in bytes(sealed)
    assert b"hunter2" not in bytes(signed or b"")
    assert "esp" in shown[0].out
    assert cli.json("provider", "list", "--kind", kind)[0]["name"] == "esp"


def test_secrets_come_from_stdin_line_by_line(cli: Cli) -> None:
    arguments = ("--domain", "mg.shop.example", "--secret-stdin", "--webhook-secret-stdin")
    cli("provider", "add", "mailgun", "mg", *arguments, stdin="first\nsecond\n")
    assert cli.json("keys", "rotate")["secrets"] == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sendgrid", "x", "--url", "http://api.sendgrid.com"], "https://"),
        (["sendgrid", "x", "--url", "https://me:secret@api.sendgrid.com"], "without a user"),
        (["sendgrid", "x", "--webhook-key", "c2hvcnQ="], "not a public key"),
        (["sendgrid", "x", "--timeout", "0s"], "more than nothing"),
        (
            ["ses", "x", "--region", "mars", "--access-key-id", "AKIAIOSFODNN7EXAMPLE"],
            "a region such as",
        ),
        (["ses", "x", *ACCESS, "--topic", "arn:aws:sqs:eu-west-1:1:x"], "a topic such as"),
        (["ses", "x", "--region", "eu-west-1"], "--access-key-id"),
        (["mailgun", "x", "--domain", "no domain"], "a domain such as"),
        (["mailgun", "x", "--domain", "mg.shop.example", "--region", "asia"], "us, eu"),
        (["mailgun", "x", "--domain", "mg.shop.example", "--secret-stdin"], "not both"),
    ],
)
def test_a_wrong_provider_is_refused(cli: Cli, arguments: list[str], complaint: str) -> None:
    answer = cli("provider", "add", *arguments, "--secret-env", "API_KEY", code=2)
    assert complaint in plain(answer.err)
    assert "me:secret" not in answer.err
    assert cli.json("provider", "list") == []


def test_without_a_secret_nothing_is_added(cli: Cli) -> None:
    assert "no API key" in plain(cli("provider", "add", "sendgrid", "sg", code=2).err)
    assert (
        "is NOT_SET set?"
        in cli("provider", "add", "sendgrid", "sg", "--secret-env", "NOT_SET", code=1).err
    )
    assert (
        "not plain text"
        in cli(
            "provider", "add", "sendgrid", "sg", "--secret-stdin", code=1, stdin="k\u00e9y\n"
        ).err
    )
    assert cli.json("provider", "list") == []


@pytest.mark.parametrize("kind", [SendGridTwin, SesTwin, MailgunTwin])
def test_a_provider_is_tried_out(cli: Cli, kind: type[Twin]) -> None:
    with serving(kind()) as twin:
        cli.env["API_KEY"] = twin.secret
        settings = twin.provider_settings()
        own = {"ses": ("region", "access_key_id"), "mailgun": ("domain",)}.get(twin.kind, ())
        arguments = [
            part for name in own for part in (f"--{name.replace('_', '-')}", settings[name])
        ]
        cli(
            "provider",
            "add",
            twin.kind,
            "esp",
            "--url",
            twin.url,
            *arguments,
            "--secret-env",
            "API_KEY",
        )
        assert "ok" in cli("provider", "test", "esp").out
        tried = cli.json("provider", "test", "esp", "--send-to", "me@mail.example")
        assert tried["sent"][0]["verdict"] == "accepted"
        assert twin.mails[0].recipients == ("me@mail.example",)
        cli.env["API_KEY"] = "wrong"
        cli(
            "provider",
            "add",
            twin.kind,
            "wrong",
            "--url",
            twin.url,
            *arguments,
            "--secret-env",
            "API_KEY",
        )
        assert cli("provider", "test", "wrong", code=1).err.startswith("error: credential:")


def test_what_feedback_is_checked_with_can_be_given_later(cli: Cli) -> None:
    cli("provider", "add", "sendgrid", "sg", "--secret-env", "API_KEY")
    key = SendGridTwin().webhook_key
    assert cli.json("provider", "feedback", "sg", "--webhook-key", key) == {
        "name": "sg",
        "webhook": "/webhooks/sendgrid/1",
        "changed": True,
    }
    assert cli.json("provider", "show", "sg")["settings"] == {"webhook_key": key}
    assert cli.json("provider", "feedback", "sg")["changed"] is False
    assert "--topic is for ses" in plain(
        cli("provider", "feedback", "sg", "--topic", "x", code=2).err
    )
    assert "no webhook signing key" in plain(
        cli("provider", "feedback", "sg", "--webhook-secret-env", "SIGNING_KEY", code=2).err
    )
    cli(
        "provider", "add", "mailgun", "mg", "--domain", "mg.shop.example", "--secret-env", "API_KEY"
    )
    cli("provider", "feedback", "mg", "--webhook-secret-env", "SIGNING_KEY")
    assert cli.json("provider", "show", "mg")["webhook_secret"] == "****"
    cli("provider", "add", "capture", "dev")
    assert "gives no feedback" in plain(cli("provider", "feedback", "dev", code=2).err)
    cli("provider", "feedback", "nobody", code=1)


def test_both_secrets_are_rotated_and_forgotten(cli: Cli) -> None:
    arguments = (
        "--domain",
        "mg.shop.example",
        "--secret-env",
        "API_KEY",
        "--webhook-secret-env",
        "SIGNING_KEY",
    )
    cli("provider", "add", "mailgun", "mg", *arguments)
    cli.env["PILLARBOX_SECRET_KEYS"] = f"{generate_key()},{cli.env['PILLARBOX_SECRET_KEYS']}"
    told = cli.json("keys", "rotate")
    assert (told["resealed"], told["secrets"]) == (2, 2)
    assert cli.json("keys", "rotate")["resealed"] == 0
    cli("provider", "remove", "mg", "--yes")
    assert cli.sql("SELECT secret, webhook_secret FROM pillarbox.providers") == [(None, None)]


def test_money_and_reserves_are_limits_too(cli: Cli) -> None:
    cli("provider", "add", "capture", "dev")
    said = cli(
        "provider", "limit", "dev", "--price-per-thousand", "0.10", "--budget-per-month", "200"
    ).out
    assert "0.1 per thousand" in said
    assert "200.00 per month" in said
    cli("provider", "limit", "dev", "--reserve-urgent", "5", "--reserve-normal", "0")
    told = cli.json("provider", "limit", "dev", "--rate-per-day", "1000")
    assert told == {
        "name": "dev", "rate_per_second": None, "rate_per_hour": None, "rate_per_day": 1000,
        "price_per_thousand": 0.1, "budget_per_month": 200.0, "reserve_urgent": 5, "reserve_normal": 0,
    }  # fmt: skip
    assert cli.json("provider", "show", "dev")["budget_per_month"] == 200.0
    assert "no limit" in cli("provider", "limit", "dev", "--none").out
    lifted = cli.json("provider", "show", "dev")
    assert [
        lifted[name] for name in ("price_per_thousand", "reserve_urgent", "reserve_normal")
    ] == [None, 10, 20]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budget-per-month", "5"], "needs a --price-per-thousand"),
        (["--budget-per-month", "-5", "--price-per-thousand", "1"], "0 or more"),
        (["--price-per-thousand", "0.00001"], "4 decimal places"),
        (["--price-per-thousand", "cheap"], "a number such as"),
        (["--price-per-thousand", "NaN"], "0 or more"),
        (["--reserve-urgent", "60", "--reserve-normal", "41"], "more than 100"),
        (["--reserve-urgent", "95"], "more than 100"),
        (["--reserve-urgent", "101"], "100"),
    ],
)
def test_a_wrong_limit_is_refused(cli: Cli, arguments: list[str], complaint: str) -> None:
    cli("provider", "add", "capture", "dev")
    assert complaint in plain(cli("provider", "limit", "dev", *arguments, code=2).err)
    assert cli.json("provider", "show", "dev")["reserve_urgent"] == 10
