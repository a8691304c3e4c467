"""The walk-through of seed 003, statement by statement, typed into psql with the search path set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests import PATIENCE
from tests.integration.cli.cli_helpers import Cli

Row = dict[str, str]
Psql = Callable[[str], list[list[Row]]]


def psql_program() -> str | None:
    """psql of the PostgreSQL under test, of Debian's, or of the path."""
    chosen = os.environ.get("TEST_POSTGRES_BIN")
    folders = [
        *([Path(chosen)] if chosen else []),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
    ]
    found = (shutil.which("psql", path=str(folder)) for folder in folders)
    return next((one for one in found if one), None) or shutil.which("psql")


@pytest.fixture
def url(database_url: str) -> str:
    """A database with the schema of accounts and tokens, installed by the command."""
    assert "lifecycle" in Cli(database_url)("migrate", "--with", "lifecycle").out
    return database_url


@pytest.fixture
def typed(url: str) -> Psql:
    """Types statements; answers with the rows of each that had some, as texts."""
    program = psql_program()

    def by_psql(statements: str) -> list[list[Row]]:
        typed = (
            "SET search_path = lifecycle;\n\\pset expanded on\n\\pset format unaligned\n"
            + statements
        )
        done = subprocess.run(
            [program or "", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", url],
            input=typed, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [*parsed(done.stdout)]

    def by_psycopg(statements: str) -> list[list[Row]]:
        with psycopg.connect(
            url, autocommit=True, options="-c search_path=lifecycle"
        ) as connection:
            found = []
            for statement in filter(str.strip, statements.split(";")):
                done = connection.execute(statement)
                if done.description:
                    names = [column.name for column in done.description]
                    found.append(
                        [dict(zip(names, map(shown, row), strict=True)) for row in done.fetchall()]
                    )
            return found

    return by_psql if program else by_psycopg


def parsed(printed: str) -> Iterator[list[Row]]:
    """What psql prints, expanded and unaligned: `name|value` lines, an empty line between rows."""
    rows = [
        dict(line.split("|", 1) for line in block.splitlines() if "|" in line)
        for block in printed.split("\n\n")
    ]
    yield [row for row in rows if row]


def shown(value: object) -> str:
    return "" if value is None else "\\x" + value.hex() if isinstance(value, bytes) else str(value)


ACCOUNT_COLUMNS = [
    "id", "email", "status", "login", "created_at",
    "status_changed_at", "activated_at", "suspended_at", "unsuspended_at",
]  # fmt: skip
TOKEN_COLUMNS = [
    "id",
    "action",
    "secret",
    "code",
    "account",
    "expires_at",
    "consumed_at",
    "created_at",
]
NEW_ACCOUNT = """INSERT INTO accounts (email, login)
\tVALUES ('user@example.com', 'user123');
"""
# The seed's tip, as printf makes it.
RANDOM_ACCOUNT = (
    "INSERT INTO accounts (email, login) VALUES ('user' || md5(random()::text) || '@fake.mail',"
    " 'user' || substr(md5(random()::text), 1, 20));\n"
)
SELECT_ACCOUNT = "SELECT * FROM accounts WHERE id = 1;\n"
SELECT_TOKEN = "SELECT * FROM tokens WHERE account = 1;\n"
CONSUME = """UPDATE
\ttokens
SET
\tconsumed_at = extract(epoch FROM now())
WHERE
\taccount = 1
\tAND action = 'activation';
"""
PENDING = """SELECT
    t.account,
    t.secret,
    t.code,
    t.expires_at,
    t.id,
    t.action,
    a.email,
    a.login
FROM
    jobs
    JOIN tokens t
        ON t.id > jobs.last_seq
        AND t.expires_at > EXTRACT(EPOCH FROM NOW())
        AND t.consumed_at IS NULL
        AND t.action IN ('activation', 'password_recovery')
    JOIN accounts a
    ON a.id = t.account
    AND (
      (t.action = 'activation' AND a.status = 'provisioned')
      OR (t.action = 'password_recovery' AND a.status = 'active')
    )
WHERE
    jobs.job_type = 'mailroom'
ORDER BY
    id ASC
LIMIT 10
"""
DEQUEUE = f"""WITH token_data AS (
{PENDING}
),
updated_jobs AS (
  UPDATE
    jobs
  SET
    last_seq = (SELECT MAX(id) FROM token_data)
  WHERE
    EXISTS (SELECT 1 FROM token_data)
  RETURNING last_seq
)
SELECT
  td.action,
  td.email,
  td.login,
  td.secret,
  td.code
FROM
  token_data td;
"""


def only(typed: Psql, statement: str) -> Row:
    ((row,),) = typed(statement)
    return row


def test_the_jobs_table_begins_at_zero(typed: Psql) -> None:
    assert only(typed, "SELECT * FROM jobs;") == {"job_type": "mailroom", "last_seq": "0"}


def test_a_new_account_gets_an_activation_token(typed: Psql) -> None:
    typed(NEW_ACCOUNT)
    account, token = only(typed, SELECT_ACCOUNT), only(typed, SELECT_TOKEN)
    assert list(account)[:9] == ACCOUNT_COLUMNS
    assert (account["id"], account["email"], account["status"], account["login"]) == (
        "1", "user@example.com", "provisioned", "user123",
    )  # fmt: skip
    assert abs(int(account["created_at"]) - time.time()) < 60
    assert [account[name] for name in ACCOUNT_COLUMNS[5:]] == ["", "", "", ""]
    assert list(token)[:8] == TOKEN_COLUMNS
    assert (token["id"], token["action"], token["account"], token["consumed_at"]) == (
        "1",
        "activation",
        "1",
        "",
    )
    assert re.fullmatch(r"\\x[0-9a-f]{64}", token["secret"])
    assert re.fullmatch(r"\d{5}", token["code"])
    assert int(token["expires_at"]) == int(token["created_at"]) + 900


def test_three_random_accounts_by_the_tip(typed: Psql) -> None:
    typed(RANDOM_ACCOUNT * 3)
    assert only(typed, "SELECT count(*) AS accounts FROM accounts;") == {"accounts": "3"}
    assert only(typed, "SELECT count(DISTINCT account) AS tokens FROM tokens;") == {"tokens": "3"}


def test_from_activation_to_suspension_and_back(typed: Psql) -> None:
    typed(NEW_ACCOUNT)
    typed(CONSUME)
    active = only(typed, SELECT_ACCOUNT)
    assert active["status"] == "active"
    assert active["activated_at"] == active["status_changed_at"] != ""
    assert only(typed, SELECT_TOKEN)["consumed_at"] != ""

    typed("UPDATE accounts SET status = 'suspended' WHERE id = 1;")
    suspended = only(typed, SELECT_ACCOUNT)
    assert (suspended["status"], suspended["unsuspended_at"]) == ("suspended", "")
    assert suspended["suspended_at"] != ""

    typed("UPDATE accounts SET status = 'active' WHERE id = 1;")
    back = only(typed, SELECT_ACCOUNT)
    assert (back["status"], back["suspended_at"]) == ("active", "")
    assert back["unsuspended_at"] != ""


def test_notifications_arrive(url: str, typed: Psql) -> None:
    program = psql_program()
    if program is None:
        with psycopg.connect(url, autocommit=True) as listening:
            listening.execute("LISTEN token_insert")
            typed(RANDOM_ACCOUNT * 3)
            assert len(list(listening.notifies(timeout=PATIENCE, stop_after=3))) == 3
        return
    # What others insert, psql tells after the next statement; what the session itself inserts, too.
    statements = "SET search_path = lifecycle;\nLISTEN token_insert;\n" + RANDOM_ACCOUNT * 3 + ";\n"
    done = subprocess.run(
        [program, "--no-psqlrc", url],
        input=statements,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert (
        done.stdout.count('Asynchronous notification "token_insert" received from server process')
        == 3
    )


def test_the_seeds_queries_find_and_dequeue(typed: Psql) -> None:
    typed(RANDOM_ACCOUNT * 3)
    ((*pending,),) = typed(PENDING + ";")
    assert [row["id"] for row in pending] == ["1", "2", "3"]
    ((*taken,),) = typed(DEQUEUE)
    assert [list(row) for row in taken] == [["action", "email", "login", "secret", "code"]] * 3
    assert {row["secret"] for row in taken} == {row["secret"] for row in pending}
    assert only(typed, "SELECT last_seq FROM jobs;") == {"last_seq": "3"}
    assert not any(typed(DEQUEUE))


def test_recovery_is_for_active_accounts_only(typed: Psql) -> None:
    typed(NEW_ACCOUNT)
    typed(CONSUME)
    typed("INSERT INTO tokens (account, action) VALUES (1, 'password_recovery');")
    ((*pending,),) = typed(PENDING + ";")
    assert [(row["id"], row["action"]) for row in pending] == [("2", "password_recovery")]
    typed("UPDATE accounts SET status = 'suspended' WHERE id = 1;")
    assert not any(typed(PENDING + ";"))
