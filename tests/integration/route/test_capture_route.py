"""When mails are captured: never in place of a provider that sends, unless a route or a person says so."""

from __future__ import annotations

import asyncio
from uuid import UUID

from pillarbox.app import serve, tend, work
from pillarbox.cli.first_run import ensure_provider
from pillarbox.model.provider import Provider
from pillarbox.store import providers, routes
from pillarbox.store.database import Database
from pillarbox.testing import SmtpServer
from tests.harness import add_smtp, enqueue, eventually, no_keys, opened, settled, states, working
from tests.integration.cli.cli_helpers import Cli


async def add_capture(database: Database, name: str = "capture") -> int:
    return await providers.add_provider(database, no_keys, name, "capture", {})


async def captured(database: Database) -> int:
    return int(await database.fetchval("SELECT count(*) FROM pillarbox.captured"))


async def waits_visibly(database: Database, message_id: UUID) -> None:
    """Until it is shown as waiting for a provider."""
    query = "SELECT state::text = 'pending' AND reason = 'no_provider' FROM pillarbox.deliveries WHERE message_id = $1"
    await eventually(lambda: database.fetchval(query, message_id), 60)


async def test_disabling_the_last_real_provider_captures_nothing(
    database: Database, database_url: str
) -> None:
    """Also in development: the mail waits, visibly, and leaves once the provider is back."""
    await add_capture(database)
    async with SmtpServer() as server:
        await add_smtp(database, server)
        await providers.enable_provider(database, "relay", False)
        for development in ("on", "off"):
            async with working(database_url, development=development):
                message_id = await enqueue(database)
                await waits_visibly(database, message_id)
        assert await captured(database) == 0
        await providers.enable_provider(database, "relay", True)
        await database.execute("UPDATE pillarbox.deliveries SET next_attempt_at = now()")
        async with working(database_url):
            await settled(database, message_id, "sent", seconds=60)
        assert len(server.mails) == 2


async def test_removing_the_last_real_provider_captures_nothing(
    database: Database, database_url: str
) -> None:
    """What was ever configured is remembered, whether it is still there or not."""
    async with SmtpServer() as server:
        await add_smtp(database, server)
    await providers.remove_provider(database, "relay")
    await add_capture(database)
    async with working(database_url, development="on"):
        await waits_visibly(database, await enqueue(database))
    assert await captured(database) == 0


async def test_outside_development_a_route_must_name_what_captures(
    database: Database, database_url: str
) -> None:
    await add_capture(database)
    async with working(database_url):
        await waits_visibly(database, await enqueue(database))
        await routes.add_route(database, "keep", None, ["capture"])
        await eventually(lambda: _tried_again(database), 60)


async def _tried_again(database: Database) -> bool:
    """Whether the waiting mail was captured, now that it is due again."""
    await database.execute(
        "UPDATE pillarbox.deliveries SET next_attempt_at = now() WHERE state = 'pending'"
    )
    return await captured(database) == 1


async def test_in_development_mails_are_captured_until_another_is_configured(
    database: Database, database_url: str
) -> None:
    await add_capture(database)
    async with SmtpServer() as server:
        async with working(database_url, development="on"):
            await settled(database, await enqueue(database), "sent", seconds=60)
            assert await captured(database) == 1
            await add_smtp(database, server)
            await eventually(lambda: _leaves(database, server), 60)
        assert await captured(database) < await database.fetchval(
            "SELECT count(*) FROM pillarbox.messages"
        )


async def _leaves(database: Database, server: SmtpServer) -> bool:
    """Whether a new mail reaches the server: the worker has heard of the provider."""
    message_id = await enqueue(database)
    await eventually(lambda: _is_sent(database, message_id), 60)
    return bool(server.mails)


async def _is_sent(database: Database, message_id: UUID) -> bool:
    return await states(database, message_id) == ["sent"]


async def test_capture_all_keeps_everything_here(database: Database, database_url: str) -> None:
    """Whatever routes and people say; a provider that captures is added where there is none."""
    async with SmtpServer() as server, opened(database_url) as app:
        number = await add_smtp(database, server)
        await routes.add_route(database, "out", None, ["relay"])
        app.capture_all = True
        await ensure_provider(app, development=False)
        book = await app.load_providers()
        assert ([one.kind for one in book.providers], list(book.rules), book.captures) == (
            ["capture"],
            [],
            True,
        )
        message_id = await enqueue(database)
        await database.execute("UPDATE pillarbox.deliveries SET via = $1", number)
        stop = asyncio.Event()
        task = asyncio.create_task(serve(app, stop, work, tend))
        await settled(database, message_id, "sent", seconds=60)
        stop.set()
        await asyncio.wait_for(task, 60)
        assert (await captured(database), server.mails) == (1, [])


async def test_a_release_only_provider_is_used_where_it_is_named(
    database: Database, database_url: str
) -> None:
    """In development it does not end the capturing of all other mails."""
    await add_capture(database)
    async with SmtpServer() as server:
        given = {"host": server.host, "port": server.port, "tls": "none"}
        number = await providers.add_provider(
            database, no_keys, "relay", "smtp", given, release_only=True
        )
        async with working(database_url, development="on"):
            await settled(database, await enqueue(database), "sent", seconds=60)
            assert (await captured(database), server.mails) == (1, [])
            await database.execute(
                "UPDATE pillarbox.deliveries SET state = 'queued', via = $1, settled_at = NULL, attempts = 0",
                number,
            )
            await eventually(lambda: _arrived(server), 60)
        await providers.set_release_only(database, "relay", False)
        assert not await providers.captures_by_default(database, development=True)


async def _arrived(server: SmtpServer) -> bool:
    return bool(server.mails)


async def test_a_demo_does_not_end_capturing(database: Database) -> None:
    await providers.add_provider(
        database, no_keys, "demo-ses", "ses", {"url": "http://127.0.0.1:1"}, demo=True
    )
    await providers.remove_provider(database, "demo-ses")
    assert await providers.captures_by_default(database, development=True)
    assert not await providers.captures_by_default(database, development=False)


async def test_a_removed_provider_keeps_its_name(database: Database, database_url: str) -> None:
    """Its mails still name it, marked; another may have its name."""
    cli = Cli(database_url)
    async with SmtpServer() as server:
        await add_smtp(database, server)
        async with working(database_url):
            message_id = await enqueue(database)
            await settled(database, message_id, "sent", seconds=60)
        await providers.remove_provider(database, "relay")
        number = await add_smtp(database, server)
    shown = (await asyncio.to_thread(cli, "queue", "show", str(message_id))).out
    assert "via relay (removed)" in shown
    assert "-removed-" not in shown
    told = await asyncio.to_thread(cli.json, "queue", "show", str(message_id))
    assert [(one["provider"], one["provider_removed"]) for one in told["attempts"]] == [
        ("relay", True)
    ]
    assert [one.id for one in await providers.list_providers(database)] == [number]
    assert isinstance((await providers.get_provider(database, "relay")), Provider)


def test_release_only_at_the_command_line(cli: Cli) -> None:
    cli("provider", "add", "smtp", "relay", "--host", "mail.example", "--release-only")
    assert cli.json("provider", "list")[0]["release_only"] is True
    assert "release only" in cli("provider", "list").out
    assert "no provider" in cli("route", "explain", "--to", "a@b.example").err
    assert "by default, too" in cli("provider", "release-only", "relay", "--off").out
    assert cli.json("provider", "health")[0]["release_only"] is False
    assert "leaves through relay" in cli("route", "explain", "--to", "a@b.example").out
