"""What a process tells the others of its providers' health, while that goes on changing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pillarbox.deliver.roster import Book, Roster
from pillarbox.deliver.transports.capture import CaptureTransport
from pillarbox.deliver.vitals import Vitals
from pillarbox.model.outcome import Reason
from pillarbox.model.provider import Provider
from pillarbox.route.health import LONGEST_WAIT
from pillarbox.store import vitals as store
from pillarbox.store.database import Database
from pillarbox.telemetry.metrics import Metrics
from tests import PATIENCE


async def test_a_provider_whose_probe_hangs_holds_up_no_news_of_others(database: Database) -> None:
    class Hangs(CaptureTransport):
        async def check(self) -> str:
            never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            return await never

    async def book() -> Book:
        return Book([Provider(1, "relay", "smtp", {}, None)])

    roster = Roster(book, lambda _: Hangs(_keep), lambda _: str)
    one = Vitals("here", database, roster, Metrics())
    await roster.refresh()
    line = roster.line(1)
    assert line is not None
    line.failed(Reason.CREDENTIAL)
    line.health = replace(line.health, retry_at=0.0)
    await one.share()
    async with asyncio.timeout(PATIENCE):
        await one.exchange()


async def _keep(outgoing: Any) -> int:
    return 1


async def test_a_breaker_that_turns_while_it_is_being_told_is_told_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all would know it as half open, which nobody probes, and here it is open: it would never be used again."""

    async def book() -> Book:
        return Book([Provider(1, "relay", "smtp", {}, None)])

    roster = Roster(book, lambda _: CaptureTransport(_keep), lambda _: str)
    one = Vitals("here", database, roster, Metrics())
    await roster.refresh()
    line = roster.line(1)
    assert line is not None
    line.failed(Reason.CREDENTIAL)
    await one.share()
    turn = store.turn

    async def slowly(*given: Any) -> Any:
        since = await turn(*given)
        if given[2] == "half_open":
            line.failed(Reason.UNAVAILABLE)
        return since

    monkeypatch.setattr(store, "turn", slowly)
    line.adopt(line.health.probed(line.health.retry_at))
    await one.share()
    [known] = await store.read(database)
    assert (known.state, line.health.circuit) == ("open", "open")


async def test_a_breaker_is_probed_soon_whatever_an_older_process_wrote(database: Database) -> None:
    """Earlier versions waited for up to five minutes."""

    async def book() -> Book:
        return Book([Provider(1, "relay", "smtp", {}, None)])

    roster = Roster(book, lambda _: CaptureTransport(_keep), lambda _: str)
    one = Vitals("here", database, roster, Metrics())
    await roster.refresh()
    await store.turn(database, 1, "open", "unavailable", 6, 300.0, "elsewhere")
    await one.exchange()
    line = roster.line(1)
    assert line is not None
    assert line.unusable_for() is not None
    assert line.health.retry_at <= asyncio.get_running_loop().time() + LONGEST_WAIT
    line.health = replace(line.health, retry_at=0.0)
    await one.probe_all()
    assert line.unusable_for() is None
