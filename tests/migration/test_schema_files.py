"""`store/schema/*.sql` and a migrated database have the same functions, views and triggers."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable

import asyncpg
import pytest

from pillarbox.store import lifecycle_schema
from pillarbox.store.migrations import migrate

RELEASED = 13  # the newest migration of version 0.1.0
SCHEMAS = {"pillarbox": "", "lifecycle": "lifecycle"}
FUNCTIONS = """
SELECT format('function %s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) AS name,
  split_part(pg_get_functiondef(p.oid), 'AS $function$', 1) || ' AS ' || p.prosrc AS definition
FROM pg_proc p WHERE p.pronamespace = $1::regnamespace AND p.proname NOT LIKE 'replaced\\_%'
"""
VIEWS = """
SELECT format('view %s', c.relname) AS name,
  concat(pg_get_viewdef(c.oid), c.reloptions::text, obj_description(c.oid)) AS definition
FROM pg_class c WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'v'
"""
TRIGGERS = """
SELECT format('trigger %s', t.tgname) AS name, pg_get_triggerdef(t.oid) AS definition
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = $1::regnamespace AND NOT t.tgisinternal
"""
# Before the files are applied: their text must create everything by itself. Functions are renamed,
# since defaults of columns depend on some.
CLEAR = """
SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) AS statement, 1 AS step
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = $1::regnamespace AND NOT t.tgisinternal
UNION ALL SELECT format('DROP VIEW IF EXISTS %s CASCADE', c.oid::regclass), 2
FROM pg_class c WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'v'
UNION ALL SELECT format('ALTER FUNCTION %s RENAME TO replaced_%s', p.oid::regprocedure, p.oid), 3
FROM pg_proc p WHERE p.pronamespace = $1::regnamespace
ORDER BY step
"""
TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|\w+|\S")


def files(schema: str) -> list[Traversable]:
    folder = resources.files("pillarbox.store.schema").joinpath(SCHEMAS[schema])
    return sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name
    )


def texts(schema: str) -> str:
    return "\n".join(file.read_text("utf-8") for file in files(schema))


async def objects(connection: asyncpg.Connection, schema: str) -> dict[str, str]:
    """PostgreSQL's definition of each function, view and trigger, without comments and layout."""
    found = {}
    for query in (FUNCTIONS, VIEWS, TRIGGERS):
        for row in await connection.fetch(query, schema):
            tokens = TOKEN.findall(row["definition"])
            found[row["name"]] = " ".join(one for one in tokens if not one.startswith("--"))
    return found


async def objects_of_files(connection: asyncpg.Connection, schema: str) -> dict[str, str]:
    """As `objects`, for what the files create; the database stays as it is."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("SET LOCAL check_function_bodies = off")
        for row in await connection.fetch(CLEAR, schema):
            await connection.execute(row["statement"])
        await connection.execute(texts(schema).replace("{schema}", f'"{schema}"'))
        return await objects(connection, schema)
    finally:
        await transaction.rollback()


def statements_of(schema: str, name: str) -> str:
    """The text of an object in the files, for a migration."""
    kind, word = re.match(r"(\w+) (\w+)", name).groups()  # type: ignore[union-attr]
    pattern = rf"(?:^--[^\n]*\n)*^CREATE [A-Z ]*{kind} (?:[\w{{}}]+\.)?{word}\b.*?;\n(?=\n|CREATE|COMMENT|\Z)"
    found = re.search(pattern, texts(schema), re.DOTALL | re.MULTILINE | re.IGNORECASE)
    return found[0] if found else f"-- {name}: see the files"


def difference(schema: str, database: dict[str, str], wanted: dict[str, str]) -> str:
    """What a migration must do, as SQL; empty: nothing."""
    parts = [f"DROP {name.replace(' ', f' {schema}.', 1)};" for name in database.keys() - wanted]
    parts += [
        statements_of(schema, name)
        for name, definition in sorted(wanted.items())
        if database.get(name) != definition
    ]
    return "\n".join(parts)


@pytest.mark.parametrize("start", [None, RELEASED])
async def test_a_migrated_database_has_what_the_files_say(
    empty_database_url: str, start: int | None
) -> None:
    connection = await asyncpg.connect(empty_database_url)
    if start is not None:
        await migrate(connection, to=start)
        await connection.execute("INSERT INTO pillarbox.tenants (name) VALUES ('old')")
    await migrate(connection)
    await lifecycle_schema.install(connection, "lifecycle")
    for schema in SCHEMAS:
        found = await objects(connection, schema)
        wanted = await objects_of_files(connection, schema)
        missing = difference(schema, found, wanted)
        assert not missing, f"a new migration of the schema {schema} must do this:\n\n{missing}"
    await connection.close()


async def test_a_difference_is_found_and_printed(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE OR REPLACE FUNCTION pillarbox._rank(kind text) RETURNS int2 LANGUAGE sql IMMUTABLE"
        " AS 'SELECT 0::int2'; DROP TRIGGER open_rate ON pillarbox.providers;"
        "CREATE FUNCTION pillarbox._forgotten() RETURNS int LANGUAGE sql AS 'SELECT 1'"
    )
    found = await objects(connection, "pillarbox")
    wanted = await objects_of_files(connection, "pillarbox")
    printed = difference("pillarbox", found, wanted)
    assert "DROP function pillarbox._forgotten();" in printed
    assert "CREATE OR REPLACE FUNCTION pillarbox._rank(kind text)" in printed
    assert "CREATE TRIGGER open_rate AFTER INSERT OR UPDATE OF" in printed
    assert printed.count("CREATE") == 2
    await connection.execute(printed)
    assert await objects(connection, "pillarbox") == wanted


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_function_is_described(schema: str) -> None:
    lines = texts(schema).splitlines()
    starts = [
        number
        for number, line in enumerate(lines)
        if re.match(r"(CREATE OR REPLACE (FUNCTION|VIEW)|DO) ", line)
    ]
    assert starts
    assert [lines[number] for number in starts if not lines[number - 1].startswith("--")] == []


async def test_no_function_may_be_executed_by_everyone(connection: asyncpg.Connection) -> None:
    await lifecycle_schema.install(connection, "lifecycle")
    rows = await connection.fetch(
        "SELECT oid::regprocedure::text AS name FROM pg_proc p"
        " WHERE pronamespace IN ('pillarbox'::regnamespace, 'lifecycle'::regnamespace)"
        " AND has_function_privilege('public', oid, 'EXECUTE')"
    )
    assert [row["name"] for row in rows] == []
