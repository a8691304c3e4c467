"""The embedded PostgreSQL's log tells of the server, never of mails."""

from __future__ import annotations

import asyncpg

from pillarbox.store.embedded import EmbeddedPostgres

ADDRESS, SUBJECT = "ada.secret@mail.example", "Your biopsy results"
PRIVATE = ("ada.secret", "biopsy")
ENQUEUE = 'SELECT pillarbox.enqueue(sender => $1, "to" => $2, subject => $3, text => $4)'
# Each fails, in ways that quote values: in the message, the detail, the statement, its parameters,
# the context.
FAILING: list[tuple[str, list[object]]] = [
    (ENQUEUE, [f"{ADDRESS}\nBcc: x", [ADDRESS], SUBJECT, SUBJECT]),
    (ENQUEUE, ["shop@shop.example", [f"{ADDRESS}@@"], SUBJECT, SUBJECT]),
    (ENQUEUE, ["shop@shop.example", [ADDRESS], f"{SUBJECT}\r\nX: y", SUBJECT]),
    (f"SELECT pillarbox.enqueue(sender => '{ADDRESS}', no_such_argument => '{SUBJECT}')", []),
    (f"SELECT '{ADDRESS}'::uuid", []),
    (f'SELECT \'{{"subject": "{SUBJECT}"\'::jsonb', []),
    ("SELECT $1::text::timestamptz", [SUBJECT]),
    (f"INSERT INTO people VALUES ('{ADDRESS}', '{SUBJECT}')", []),
    ("INSERT INTO people VALUES ($1, NULL)", [ADDRESS]),
    (f"DO $$ BEGIN RAISE EXCEPTION '{ADDRESS} %', '{SUBJECT}'; END $$", []),
    (f"DO $$ BEGIN RAISE WARNING '{ADDRESS} %', '{SUBJECT}'; RAISE 'stop'; END $$", []),
    (f"SELECT 1 /* {ADDRESS} {SUBJECT} */ FROM nowhere", []),
]


async def test_failing_statements_leave_no_trace(stoppable: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(stoppable.url())
    try:
        await connection.execute(
            "CREATE TABLE people (email text PRIMARY KEY, subject text NOT NULL)"
        )
        await connection.execute("INSERT INTO people VALUES ($1, $2)", ADDRESS, SUBJECT)
        for statement, values in FAILING:
            try:
                await connection.execute(statement, *values)
            except asyncpg.PostgresError:
                continue
            raise AssertionError(f"did not fail: {statement}")
    finally:
        await connection.close()
    log = (stoppable.data / "server.log").read_text("utf-8")
    assert "ready to accept connections" in log
    assert [word for word in PRIVATE if word in log] == []
