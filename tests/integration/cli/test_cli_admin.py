"""`pillarbox admin`: administrators at the command line."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from tests.integration.cli.cli_helpers import Cli

EMAIL, PASSWORD = "ada@example.com", "seven green chairs"


@pytest.fixture
def ada(cli: Cli) -> str:
    cli("admin", "create", EMAIL, "--name", "Ada", "--password-stdin", stdin=f"{PASSWORD}\n")
    return EMAIL


def sessions(cli: Cli) -> list[bool]:
    """Whether each session is in force."""
    return [
        row[0]
        for row in cli.sql(
            "SELECT ended_at IS NULL FROM pillarbox.admin_sessions ORDER BY created_at"
        )
    ]


def test_create_and_list(cli: Cli) -> None:
    assert "no administrator" in cli("admin", "list").err
    answer = cli(
        "admin", "create", EMAIL, "--name", "Ada", "--password-stdin", stdin=f"{PASSWORD}\n"
    )
    assert "added ada@example.com" in answer.out
    assert "recovery-codes" in answer.out
    [shown] = cli.json("admin", "list")
    assert (shown["email"], shown["name"], shown["disabled_at"], shown["sessions"]) == (
        EMAIL,
        "Ada",
        None,
        0,
    )
    assert "password" not in shown
    assert PASSWORD not in answer.out + answer.err + str(
        cli.sql("SELECT password FROM pillarbox.admins")
    )
    assert "ada@example.com  Ada   in force  never" in cli("admin", "list").out


def test_a_password_from_a_variable(cli: Cli) -> None:
    cli.env["ADA"] = PASSWORD
    assert cli.json("admin", "create", EMAIL, "--password-env", "ADA") == {
        "id": 1,
        "email": EMAIL,
        "name": None,
    }


@pytest.mark.parametrize(
    ("email", "password", "said"),
    [
        (EMAIL, "short", "at least 12 characters"),
        (EMAIL, "password1234", "too easy to guess"),
        (EMAIL, "", "the password is empty"),
        ("not an address", PASSWORD, "not a legal e-mail address"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    cli: Cli, email: str, password: str, said: str
) -> None:
    answer = cli("admin", "create", email, "--password-stdin", stdin=f"{password}\n", code=1)
    assert said in answer.err
    assert not password or password not in answer.err
    assert cli.json("admin", "list") == []


def test_without_a_password_nothing_is_made(cli: Cli) -> None:
    assert "--password-stdin" in cli("admin", "create", EMAIL, stdin="", code=2).err


def test_an_address_is_taken_once(cli: Cli, ada: str) -> None:
    answer = cli("admin", "create", ada.upper(), "--password-stdin", stdin=f"{PASSWORD}\n", code=1)
    assert "already" in answer.err


@pytest.mark.parametrize("command", ["disable", "enable", "recovery-codes", "sign-in"])
def test_strangers_are_not_found(cli: Cli, command: str) -> None:
    assert "no administrator with this address" in cli("admin", command, EMAIL, code=1).err
    assert (
        "no administrator"
        in cli("admin", "password", EMAIL, "--password-stdin", stdin=f"{PASSWORD}\n", code=1).err
    )


def test_sign_in_prints_a_session_after_a_question(cli: Cli, ada: str) -> None:
    assert "pbs_" not in cli("admin", "sign-in", ada, stdin="n\n", code=1).out
    assert sessions(cli) == []
    answer = cli("admin", "sign-in", ada, stdin="y\n")
    assert re.search(r"^pbs_[A-Za-z0-9]{43}$", answer.out, re.MULTILINE)
    assert "Begin a session as ada@example.com?" in answer.err
    shown = cli.json("admin", "sign-in", ada, "--yes")
    assert set(shown) == {"session", "expires_at"}
    assert sessions(cli) == [True, True]


def test_disabling_ends_sessions_and_enabling_does_not_bring_them_back(cli: Cli, ada: str) -> None:
    cli("admin", "sign-in", ada, "--yes")
    cli("admin", "disable", ada, stdin="\n", code=1)
    assert sessions(cli) == [True]
    assert "disabled ada@example.com" in cli("admin", "disable", ada, "--yes").out
    assert sessions(cli) == [False]
    assert "  disabled  " in cli("admin", "list").out
    assert "is disabled" in cli("admin", "sign-in", ada, "--yes", code=1).err
    assert cli.json("admin", "enable", ada)["email"] == ada
    assert sessions(cli) == [False]
    cli("admin", "sign-in", ada, "--yes")


def test_another_password_ends_sessions(cli: Cli, ada: str) -> None:
    cli("admin", "sign-in", ada, "--yes")
    before = cli.sql("SELECT password FROM pillarbox.admins")
    assert (
        "short"
        not in cli("admin", "password", ada, "--password-stdin", stdin="short\n", code=1).err
    )
    assert (cli.sql("SELECT password FROM pillarbox.admins"), sessions(cli)) == (before, [True])
    answer = cli("admin", "password", ada, "--password-stdin", stdin="nine yellow tables\n")
    assert "sessions have ended" in answer.out
    assert cli.sql("SELECT password FROM pillarbox.admins") != before
    assert sessions(cli) == [False]


def test_recovery_codes_are_shown_once_and_replaced(cli: Cli, ada: str) -> None:
    cli("admin", "recovery-codes", ada, stdin="n\n", code=1)
    assert cli.json("admin", "list")[0]["recovery_codes"] == 0
    codes = re.findall(
        r"^[2-9a-z]{4}(?:-[2-9a-z]{4}){3}$",
        cli("admin", "recovery-codes", ada, stdin="y\n").out,
        re.M,
    )
    assert len(set(codes)) == 10
    first = {bytes(row[0]) for row in cli.sql("SELECT hash FROM pillarbox.admin_recovery_codes")}
    shown = cli.json("admin", "recovery-codes", ada, "--yes")
    assert not set(shown["recovery_codes"]) & set(codes)
    second = {bytes(row[0]) for row in cli.sql("SELECT hash FROM pillarbox.admin_recovery_codes")}
    assert len(second) == 10
    assert not first & second
    assert cli.json("admin", "list")[0]["recovery_codes"] == 10


def test_nothing_hostile_reaches_the_terminal(cli: Cli) -> None:
    cli(
        "admin", "create", EMAIL, "--name", "A\x1b[31mda", "--password-stdin", stdin=f"{PASSWORD}\n"
    )
    assert "\x1b" not in cli("admin", "list").out


def typed(cli: Cli, *lines: str) -> tuple[int, str]:
    """Run `admin create` on a terminal, and type these lines when asked; returns its exit code and what it showed."""
    master, slave = pty.openpty()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pillarbox", "admin", "create", EMAIL, "--database-url", cli.database_url],
        stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    shown, waiting, asked = "", list(lines), 0
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(master, 4096).decode()
            except OSError:  # it has ended
                break
            if waiting and shown.count(": ") > asked:
                asked += 1
                os.write(master, f"{waiting.pop(0)}\n".encode())
        return process.wait(60), shown
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_password_is_typed_twice_and_not_shown(cli: Cli) -> None:
    code, shown = typed(cli, PASSWORD, "seven green chair")
    assert code == 1
    assert "the two passwords differ" in shown
    assert cli.json("admin", "list") == []
    code, shown = typed(cli, PASSWORD, PASSWORD)
    assert code == 0, shown
    assert f"password of {EMAIL}: " in shown
    assert "green" not in shown
    assert len(cli.json("admin", "list")) == 1
