"""The command line: preparing, sending, providers, keys, tenants, captured mails, settings, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import click
import psycopg
import pytest
import typer

from pillarbox.cli.main import root
from pillarbox.store import migrations
from pillarbox.store.vault import generate_key
from tests.integration.cli.cli_helpers import Cli
from tests.unsubscribing import CASES


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, sub in command.commands.items():
            yield from leaves(sub, (*path, name))
    else:
        yield path, command


def test_every_command_teaches_by_example() -> None:
    commands = dict(leaves(typer.main.get_command(root)))
    assert len(commands) > 25
    for path, command in commands.items():
        assert "pillarbox " + path[0] in command.help, path
        assert click.formatting.wrap_text(command.help), path
    wide = [
        (path, line)
        for path, one in commands.items()
        for line in one.help.splitlines()
        if len(line) > 110
    ]
    assert wide == []


def test_every_listing_has_json(cli: Cli) -> None:
    for words in (
        ("queue", "list"),
        ("provider", "list"),
        ("tenant", "list"),
        ("class", "list"),
        ("key", "list"),
        ("smtp-login", "list"),
        ("captured", "list"),
    ):
        assert isinstance(cli.json(*words), list)


def test_migrate_says_what_it_applied(empty_database_url: str) -> None:
    cli = Cli(empty_database_url)
    assert "run `pillarbox migrate`" in cli("queue", "list", code=1).err
    applied = cli.json("migrate")
    assert [one["version"] for one in applied] == [one.version for one in migrations.available()]
    assert "up to date" in cli("migrate").out
    assert cli.json("migrate") == []


# --- send


def test_send_prints_the_id(cli: Cli) -> None:
    message_id = cli.send(
        "--subject",
        "Hi",
        "--text",
        "there",
        "--kind",
        "welcome",
        "--priority",
        "urgent",
        "--tag",
        "a",
    )
    [row] = cli.sql("SELECT id::text, subject, kind, lane, tags FROM pillarbox.messages")
    assert row == (message_id, "Hi", "welcome", 0, ["a"])


def test_send_says_how_to_unsubscribe(cli: Cli) -> None:
    for urls, _ in CASES:
        cli.send(*(word for url in urls for word in ("--list-unsubscribe", url)))
    rows = cli.sql("SELECT headers FROM pillarbox.messages ORDER BY created_at")
    assert [headers or {} for (headers,) in rows] == [expected for _, expected in CASES]
    bad = ("send", "--from", "a@b.example", "--to", "c@d.example", "--list-unsubscribe", "x")
    assert "list_unsubscribe: must be https:, http: or mailto: URLs" in cli(*bad, code=1).err


def test_send_attaches_files(cli: Cli, tmp_path: Any) -> None:
    file = tmp_path / "note.txt"
    file.write_bytes(b"hello")
    cli.send("--attach", str(file))
    [(stored,)] = cli.sql("SELECT attachments FROM pillarbox.contents")
    assert stored == [{"filename": "note.txt", "content": "aGVsbG8=", "content_type": "text/plain"}]
    assert (
        "No such file"
        in cli(
            "send", "--from", "a@b.example", "--to", "c@d.example", "--attach", "/nope", code=1
        ).err
    )


def test_send_many(cli: Cli) -> None:
    ids = cli.json("send", "--from", "a@b.example", "--to", "c@d.example", "--count", "1201")["ids"]
    assert len(set(ids)) == 1201
    assert cli.sql("SELECT count(*) FROM pillarbox.deliveries") == [(1201,)]


def test_send_later(cli: Cli) -> None:
    cli.send("--send-at", "10m")
    [row] = cli.sql(
        "SELECT state::text, next_attempt_at - now() > '9 minutes' FROM pillarbox.deliveries"
    )
    assert row == ("pending", True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--from", "not an address"], "sender: not a legal e-mail address"),
        (["--from", "a@b.example", "--class", "nope"], "class: there is no class 'nope'"),
        (
            ["--from", "a@b.example", "--priority", "high"],
            "priority: must be urgent, normal or bulk",
        ),
        ([], "sender: an address is missing"),
    ],
)
def test_a_bad_mail_gets_one_clear_line(cli: Cli, arguments: list[str], complaint: str) -> None:
    error = cli("send", "--to", "c@d.example", *arguments, code=1).err
    assert error.startswith(f"error: {complaint}")
    assert error.count("\n") == 1
    assert cli.sql("SELECT count(*) FROM pillarbox.messages") == [(0,)]


def test_waiting_in_vain_says_why(cli: Cli) -> None:
    answer = cli(
        "send",
        "--from",
        "a@b.example",
        "--to",
        "c@d.example",
        "--wait",
        "--timeout",
        "200ms",
        code=1,
    )
    assert "1 delivery not settled after 200 ms" in answer.err
    assert "pillarbox queue show" in answer.err


# --- providers


def add_relay(cli: Cli, *arguments: str, **more: Any) -> None:
    cli.env["PILLARBOX_SECRET_KEYS"] = generate_key()
    cli(
        "provider",
        "add",
        "smtp",
        "relay",
        "--host",
        "mail.example",
        "--username",
        "me",
        *arguments,
        **more,
    )


@pytest.mark.req("REQ-QUEUE-N003")
def test_a_password_comes_from_stdin_and_is_shown_nowhere(cli: Cli) -> None:
    add_relay(
        cli, "--password-stdin", "--max-age", "2m", "--connections", "3", stdin="hunter2-secret\n"
    )
    shown = [
        cli("provider", "list"),
        cli("provider", "list", "--json"),
        cli("provider", "show", "relay"),
    ]
    shown += [cli("provider", "show", "relay", "--json"), cli("config"), cli("config", "--json")]
    assert not any("hunter2" in one.out + one.err for one in shown)
    public = cli.json("provider", "show", "relay")
    assert public["secret"] == "****"
    assert public["settings"] == {
        "host": "mail.example", "tls": "starttls", "username": "me", "connections": 3, "max_age": 120.0,
    }  # fmt: skip
    assert b"hunter2" not in bytes(cli.sql("SELECT secret FROM pillarbox.providers")[0][0])


def test_a_password_comes_from_a_variable(cli: Cli) -> None:
    cli.env["RELAY_PASSWORD"] = "from the environment"
    add_relay(cli, "--password-env", "RELAY_PASSWORD")
    assert cli.json("provider", "show", "relay")["secret"] == "****"


def test_implicit_tls_has_its_own_port(cli: Cli) -> None:
    cli("provider", "add", "smtp", "relay", "--host", "mail.example", "--tls", "implicit")
    assert cli.json("provider", "show", "relay")["settings"]["port"] == 465


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["relay", "--host", "x.example", "--port", "70000"], "65535"),
        (["relay", "--host", "x.example", "--tls", "ssl3"], "ssl3"),
        (["relay", "--host", "x.example:25"], "without a port"),
        (["re lay", "--host", "x.example"], "a name is"),
        (
            [
                "relay",
                "--host",
                "x.example",
                "--tls",
                "none",
                "--username",
                "me",
                "--password-stdin",
            ],
            "--insecure",
        ),
        (["relay", "--host", "x.example", "--username", "me"], "no password"),
        (["relay", "--host", "x.example", "--password-stdin"], "needs a --username"),
        (["relay", "--host", "x.example", "--max-idle", "soon"], "give a duration"),
        (["relay", "--host", "x.example", "--retry", "never"], "quadratic"),
        (["relay", "--host", "x.example", "--ca-file", "/nope"], "cannot be read"),
        (["relay"], "--host"),
    ],
)
def test_a_wrong_provider_is_refused(cli: Cli, arguments: list[str], complaint: str) -> None:
    answer = cli("provider", "add", "smtp", *arguments, code=2, stdin="secret\n")
    assert complaint in " ".join(answer.err.replace("│", " ").split())
    assert cli.json("provider", "list") == []


def test_a_secret_needs_a_key(cli: Cli) -> None:
    arguments = ("--host", "x.example", "--username", "me", "--password-stdin")
    answer = cli("provider", "add", "smtp", "relay", *arguments, code=1, stdin="secret\n")
    assert "PILLARBOX_SECRET_KEYS" in answer.err


def test_the_life_of_a_provider(cli: Cli) -> None:
    cli("provider", "add", "capture", "dev")
    assert "already" in cli("provider", "add", "capture", "dev", code=1).err
    cli("provider", "disable", "dev")
    assert [one["enabled"] for one in cli.json("provider", "list", "--disabled")] == [False]
    assert cli.json("provider", "list", "--enabled") == []
    cli("provider", "enable", "dev")
    assert "nothing is sent out" in cli("provider", "test", "dev").out
    assert (
        cli.json("provider", "test", "dev", "--send-to", "me@mail.example")["sent"][0]["verdict"]
        == "accepted"
    )
    assert cli.json("captured", "list")[0]["recipients"] == ["me@mail.example"]
    cli("provider", "remove", "dev", code=1, stdin="n\n")
    cli("provider", "remove", "dev", "--yes")
    assert cli.json("provider", "list") == []
    assert "there is no provider" in cli("provider", "show", "dev", code=1).err


def test_a_provider_that_is_away_is_told_in_words(cli: Cli, free_port: int) -> None:
    cli(
        "provider",
        "add",
        "smtp",
        "relay",
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port),
        "--tls",
        "none",
    )
    assert cli("provider", "test", "relay", code=1).err.startswith("error: unavailable:")


# --- keys, tenants, classes, grants


def test_keys_rotate(cli: Cli) -> None:
    add_relay(cli, "--password-stdin", stdin="secret\n")
    assert cli.json("keys", "rotate")["resealed"] == 0
    new = cli("keys", "generate").out.strip()
    cli.env["PILLARBOX_SECRET_KEYS"] = f"{new},{cli.env['PILLARBOX_SECRET_KEYS']}"
    assert cli.json("keys", "rotate")["resealed"] == 1
    cli.env["PILLARBOX_SECRET_KEYS"] = new
    assert "0 of 1" in cli("keys", "rotate").out


def test_tenants(cli: Cli) -> None:
    cli("tenant", "add", "shop", "--sender", "The Shop <hello@shop.example>")
    assert "already" in cli("tenant", "add", "shop", code=1).err
    assert "legal" in cli("tenant", "add", "other", "--sender", "nobody", code=2).err
    assert [one["name"] for one in cli.json("tenant", "list")] == ["default", "shop"]
    cli("send", "--tenant", "shop", "--to", "reader@mail.example")
    assert [one["sender"] for one in cli.json("queue", "list", "--tenant", "shop")] == [
        "The Shop <hello@shop.example>"
    ]


def test_classes_change_only_what_is_given(cli: Cli) -> None:
    cli("class", "set", "codes", "--secret", "--retry", "lifecycle", "--unknown", "hold")
    cli("class", "set", "codes", "--keep", "2d")
    [codes] = [one for one in cli.json("class", "list") if one["name"] == "codes"]
    policies = {
        "retry": "lifecycle",
        "unknown": "hold",
        "secret": True,
        "content_retention": 172800.0,
    }
    policies |= {"max_wait": 432000.0}
    assert codes == {"name": "codes"} | policies
    cli("class", "set", "codes", "--retry", "sometimes", code=2)


def test_a_granted_role_can_enqueue_and_nothing_else(cli: Cli) -> None:
    cli.sql('CREATE ROLE "odd name"')
    try:
        cli("grant", "--app", "odd name")
        with psycopg.connect(cli.database_url) as connection:
            connection.execute('SET ROLE "odd name"')
            send = "SELECT pillarbox.enqueue(sender => 'a@b.example', \"to\" => '{c@d.example}', text => 'x')"
            assert connection.execute(send).fetchone() is not None
            connection.commit()
            for table in ("messages", "contents", "deliveries", "providers", "captured"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT * FROM pillarbox.{table}")
                connection.rollback()
        assert "no role" in cli("grant", "--app", "nobody here", code=1).err
    finally:
        cli.sql('DROP OWNED BY "odd name"')
        cli.sql('DROP ROLE "odd name"')


# --- captured mails


CAPTURED = b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nbody \x1b[31m\xff\r\n"


def capture(cli: Cli, content: bytes, to: str = "ada@mail.example") -> str:
    [(number,)] = cli.sql(
        "INSERT INTO pillarbox.captured (provider_id, message_id, sender, recipients, content)"
        " VALUES (1, gen_random_uuid(), 's@shop.example', %s, %s) RETURNING id", [to], content,
    )  # fmt: skip
    return str(number)


def test_captured_mails_are_listed_and_shown_exactly(cli: Cli) -> None:
    cli("provider", "add", "capture", "dev")
    number = capture(cli, CAPTURED)
    other = capture(cli, b"Subject: x\r\n\r\n", "bob@mail.example")
    [listed] = cli.json("captured", "list", "--recipient", "ADA@")
    assert (str(listed["id"]), listed["subject"], listed["size"]) == (
        number,
        "Grüße",
        len(CAPTURED),
    )
    assert [str(one["id"]) for one in cli.json("captured", "list", "--before", other)] == [number]
    assert cli("captured", "show", number, "--raw").raw == CAPTURED
    shown, text = cli("captured", "show", number).out, cli("captured", "show", number, "--text").out
    assert "Grüße" in shown
    assert "Grüße" not in text
    for printed in (shown, text):
        assert "body" in printed
        assert "\x1b" not in printed
    assert "there is no captured mail 99" in cli("captured", "show", "99", code=1).err


LINK = (
    "https://shop.example/activate?token="
    + "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_6nSHtQPxHcOGxB4n-lTJ33i"
)


def test_captured_mails_show_links_that_work(cli: Cli) -> None:
    """Quoted-printable breaks long links and writes = as =3D: what is shown is decoded."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "s@shop.example", "ada@mail.example", "Welcome"
    mail.set_content(f"Activate: {LINK}\n", cte="quoted-printable")
    mail.add_alternative(f'<p><a href="{LINK}">here</a></p>', subtype="html")
    cli("provider", "add", "capture", "dev")
    number = capture(cli, mail.as_bytes())
    assert LINK not in cli("captured", "show", number, "--raw").out
    shown = cli("captured", "show", number).out
    assert f"Activate: {LINK}" in shown
    assert "Welcome" in shown
    assert "--raw or --text" in cli("captured", "show", number, "--raw", "--text", code=2).err


def test_a_mail_of_html_alone_is_shown_as_text_with_its_links(cli: Cli) -> None:
    mail = EmailMessage()
    mail.set_content(
        f'<style>p{{}}</style><h1>Hi</h1><p>Go <a href="{LINK}">here</a></p><ul><li>one</ul>',
        "html",
    )
    cli("provider", "add", "capture", "dev")
    shown = cli("captured", "show", capture(cli, mail.as_bytes()), "--text").out
    assert shown.split("\n") == ["Hi", "", f"Go here <{LINK}>", "", "- one", ""]


# --- settings and errors


def test_config_hides_secrets_and_names_sources(cli: Cli, tmp_path: Any) -> None:
    file = tmp_path / "pillarbox.toml"
    file.write_text('worker_poll_interval = "2s"\n')
    cli.env["PILLARBOX_DATABASE_URL"] = "postgresql://me:hunter2@db.example/mail"
    cli.env["PILLARBOX_SECRET_KEYS"] = key = generate_key()
    answers = [
        cli("config", *more, "--config", str(file), "--concurrency", "7")
        for more in ([], ["--json"], ["--explain"])
    ]
    assert not any("hunter2" in one.out or key in one.out for one in answers)
    rows = {row["name"]: row for row in answers[1].json}
    assert (rows["worker_poll_interval"]["value"], rows["worker_poll_interval"]["source"]) == (
        "2s",
        str(file),
    )
    assert (rows["worker_concurrency"]["value"], rows["worker_concurrency"]["source"]) == (
        "7",
        "flag",
    )
    assert rows["database_url"]["source"] == "env PILLARBOX_DATABASE_URL"


def test_a_wrong_setting_is_named(cli: Cli) -> None:
    cli.env["PILLARBOX_WORKER_POL_INTERVAL"] = "5s"
    assert "did you mean PILLARBOX_WORKER_POLL_INTERVAL?" in cli("config", code=1).err


@pytest.mark.parametrize("path", ["db", "no_such_database"])
def test_a_database_that_is_away_is_named_without_its_password(
    cli: Cli, path: str, free_port: int
) -> None:
    cli.env["PILLARBOX_DATABASE_URL"] = (
        f"postgresql://me:hunter2@127.0.0.1:{free_port}/mail"
        if path == "db"
        else cli.database_url.replace("/test_", "/absent_")
    )
    error = cli("queue", "list", code=1).err
    assert error.startswith("error: cannot connect to postgresql://")
    assert "hunter2" not in error
    assert "PILLARBOX_DATABASE_URL" in error
    assert error.count("\n") == 1


def test_without_any_database_it_says_what_to_do(cli: Cli, tmp_path: Any) -> None:
    cli.env["PILLARBOX_DATABASE_URL"] = None
    assert (
        "Start it with `pillarbox up`" in cli("queue", "list", "--data", str(tmp_path), code=1).err
    )


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("pillarbox ")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@[::1/mail",
        "postgresql://me:hun/ter2@db.example/mail",
        "postgresql://db.example:port/mail?password=hunter2",
        "dbname=mail port=abc password=hunter2",
        "postgresql://me:hunter2@db.example/mail?sslmode=sometimes",
    ],
)
def test_a_wrong_database_url_is_told_without_its_password(url: str) -> None:
    error = Cli(url)("queue", "stats", code=1).err
    assert "URL" in error
    assert "postgresql://" in error
    assert "unexpected" not in error
    assert "hun" not in error


@pytest.mark.parametrize(
    "command",
    [
        "config",
        "config --json",
        "keys generate",
        "--help",
        "class list",
        "class list --json",
        "queue stats --watch",
    ],
)
def test_a_reader_that_has_enough_is_no_error(cli: Cli, command: str) -> None:
    """As in `pillarbox queue list | head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pillarbox", *command.split()],
        env=os.environ | {"PILLARBOX_DATABASE_URL": cli.database_url},
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_flags_are_shown_without_a_type(cli: Cli) -> None:
    for arguments in (("send", "--help"), ("captured", "--help"), ("--help",)):
        shown = cli(*arguments).out
        assert "--help" in shown
        assert "<bool>" not in shown
