"""What a process tells the others of its providers' health, while that goes on changing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pillarbox.deliver.health_monitor import HealthMonitor
from pillarbox.deliver.provider_pool import ProviderConfig, ProviderPool
from pillarbox.deliver.transports.capture import CaptureTransport
from pillarbox.model.outcome import Reason
from pillarbox.model.provider import Provider
from pillarbox.route.circuit_breaker import LONGEST_WAIT
from pillarbox.store import shared_health as store
from pillarbox.store.database import Database
from pillarbox.telemetry.metrics import Metrics
from tests import PATIENCE


async def test_a_provider_whose_probe_hangs_holds_up_no_news_of_others(database: Database) -> None:
    class Hangs(CaptureTransport):
        async def check(self) -> str:
            never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            return await never

    async def book() -> ProviderConfig:
        return ProviderConfig([Provider(1, "relay", "smtp", {}, None)])

    pool = ProviderPool(book, lambda _: Hangs(_keep), lambda _: str)
    one = HealthMonitor("here", database, pool, Metrics())
    await pool.refresh()
    channel = pool.channel(1)
    assert channel is not None
    channel.failed(Reason.CREDENTIAL)
    channel.breaker = replace(channel.breaker, retry_at=0.0)
    await one.share()
    async with asyncio.timeout(PATIENCE):
        await one.read_shared()


async def _keep(outgoing: Any) -> int:
    return 1


async def test_a_breaker_that_turns_while_it_is_being_told_is_told_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all would know it as half open, which nobody probes, and here it is open: it would never be used again."""

    async def book() -> ProviderConfig:
        return ProviderConfig([Provider(1, "relay", "smtp", {}, None)])

    pool = ProviderPool(book, lambda _: CaptureTransport(_keep), lambda _: str)
    one = HealthMonitor("here", database, pool, Metrics())
    await pool.refresh()
    channel = pool.channel(1)
    assert channel is not None
    channel.failed(Reason.CREDENTIAL)
    await one.share()
    turn = store.change_state

    async def slowly(*given: Any) -> Any:
        since = await turn(*given)
        if given[2] == "half_open":
            channel.failed(Reason.UNAVAILABLE)
        return since

    monkeypatch.setattr(store, "change_state", slowly)
    channel.adopt(channel.breaker.probed(channel.breaker.retry_at))
    await one.share()
    [known] = await store.list_shared_health(database)
    assert (known.state, channel.breaker.circuit) == ("open", "open")


async def test_a_breaker_is_probed_soon_whatever_an_older_process_wrote(database: Database) -> None:
    """Earlier versions waited for up to five minutes."""

    async def book() -> ProviderConfig:
        return ProviderConfig([Provider(1, "relay", "smtp", {}, None)])

    pool = ProviderPool(book, lambda _: CaptureTransport(_keep), lambda _: str)
    one = HealthMonitor("here", database, pool, Metrics())
    await pool.refresh()
    await store.change_state(database, 1, "open", "unavailable", 6, 300.0, "elsewhere")
    await one.read_shared()
    channel = pool.channel(1)
    assert channel is not None
    assert channel.unusable_for() is not None
    assert channel.breaker.retry_at <= asyncio.get_running_loop().time() + LONGEST_WAIT
    channel.breaker = replace(channel.breaker, retry_at=0.0)
    await one.probe_all()
    assert channel.unusable_for() is None
