"""Rate limits of tenants and providers: what is over them waits, and says for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pillarbox.store import providers, tenants
from pillarbox.store.database import Database
from pillarbox.store.rate_limit_wait import find_rate_limit_wait
from pillarbox.testing import SmtpServer
from tests.harness import add_smtp, enqueue, settled, working
from tests.integration.cli.cli_helpers import Cli


async def most_in(database: Database, seconds: float) -> int:
    """The most mails that were claimed within any such time."""
    rows = await database.fetch("SELECT claimed_at FROM pillarbox.deliveries ORDER BY claimed_at")
    times = [row["claimed_at"] for row in rows]
    window = timedelta(seconds=seconds)
    return max(sum(begun <= other < begun + window for other in times) for begun in times)


async def test_a_tenant_over_its_rate_is_delayed_not_refused(
    database: Database, database_url: str
) -> None:
    await tenants.change_tenant(database, "default", rate_per_second=20)
    async with SmtpServer() as server:
        await add_smtp(database, server)
        ids = [await enqueue(database) for _ in range(60)]
        begun = datetime.now(UTC)
        async with working(database_url):
            for message_id in ids:
                await settled(database, message_id, "sent")
    assert (datetime.now(UTC) - begun).total_seconds() > 2.5
    assert await most_in(database, 1.0) <= 23  # the limit, a tenth of it, and the clock's breath


async def test_a_provider_over_its_rate_delays_all_tenants(
    database: Database, database_url: str
) -> None:
    await tenants.add_tenant(database, "shop")
    async with SmtpServer() as server:
        await add_smtp(database, server)
        await providers.limit_provider(database, "relay", 20, None, None)
        ids = [await enqueue(database, tenant=("default", "shop")[n % 2]) for n in range(50)]
        begun = datetime.now(UTC)
        async with working(database_url):
            for message_id in ids:
                await settled(database, message_id, "sent")
    # Twenty a second, after a tenth of a second's worth at once.
    assert (datetime.now(UTC) - begun).total_seconds() > 2


async def test_a_mail_that_waits_says_for_what_and_until_when(
    database: Database, database_url: str
) -> None:
    await tenants.change_tenant(database, "default", rate_per_hour=3600)
    ids = [await enqueue(database) for _ in range(400)]
    asked = datetime.now(UTC)
    held = await find_rate_limit_wait(database, ids[-1])
    assert held is not None
    assert (held.waits_for, held.limit, held.period) == ("tenant_rate", 3600, "hour")
    # 360 leave at once, 40 a second apart.
    assert (held.expected_at - asked).total_seconds() > 35
    assert (held.expected_at - datetime.now(UTC)).total_seconds() < 41
    assert await find_rate_limit_wait(database, ids[0]) is None
    await providers.add_provider(database, lambda: None, "relay", "capture", {})
    await providers.limit_provider(database, "relay", None, None, 100)
    held = await find_rate_limit_wait(database, ids[-1])
    assert held is not None
    assert (held.waits_for, held.period) == ("provider_rate", "day")


def test_the_commands_show_limits_and_waits(cli: Cli) -> None:
    cli("provider", "add", "capture", "relay")
    cli("provider", "limit", "relay", code=2)
    cli("provider", "limit", "relay", "--rate-per-second", "0", code=2)
    cli("provider", "limit", "nobody", "--rate-per-day", "5", code=1)
    assert "10 per day" in cli("provider", "limit", "relay", "--rate-per-day", "10").out
    shown = cli.json("provider", "show", "relay")
    assert (shown["rate_per_second"], shown["rate_per_day"]) == (None, 10)
    ids = [cli.send() for _ in range(3)]
    told = cli("queue", "show", ids[-1]).out
    assert "waits for the rate limit of the provider (10 per day); expected to leave in" in told
    assert cli.json("queue", "show", ids[-1])["waiting"]["waits_for"] == "provider_rate"
    assert "no limit" in cli("provider", "limit", "relay", "--none").out
