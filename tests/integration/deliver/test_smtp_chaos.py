"""The SMTP transport under random trouble: every mail is reported once, honestly; nothing arrives twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pillarbox.deliver.transports.base import SendResult
from pillarbox.model.outcome import Verdict
from pillarbox.testing.smtp import (
    BINARY,
    NOT_SMTP,
    Drop,
    Extensions,
    Faults,
    Hang,
    Raw,
    Session,
    SmtpServer,
    Trickle,
    chaos,
)
from tests import PATIENCE
from tests.integration.deliver.smtp_helpers import MAIL, outgoing, send, talking

NAMES = [f"{number}@x.test" for number in range(300)]
LOSSES = (Drop(), Drop(reset=True), NOT_SMTP, BINARY, Hang(), "421 4.3.2 bye")
REFUSALS = (
    "451 4.3.0 later",
    "550 5.7.1 never",
    Trickle("450-4.7.1 grey\n450 4.7.1 listed"),
    Trickle(),
)
AMBIGUITIES = (
    Drop(stored=True),
    Drop(stored=True, reset=True),
    Drop(after_reply=True),
    Drop(after_reply=True, reset=True),
    Raw(b"gar\r\nbage", stored=True),
    Raw(b"250 ok\r\n250 ok\r\n"),
    Hang(stored=True),
)


def check_honesty(server: SmtpServer, reports: Sequence[SendResult]) -> Counter[Verdict]:
    """Accepted means stored, stored means accepted or unknown, and nothing is stored twice."""
    verdicts = {
        address: outcome.verdict
        for name, report in zip(NAMES, reports, strict=True)
        for address, outcome in zip((name, f"second-{name}"), report.outcomes, strict=True)
    }
    arrived = Counter(address for mail in server.mails for address in mail.recipients)
    assert len(verdicts) == 2 * len(NAMES)
    assert set(arrived.values()) == {1}
    assert {verdicts[address] for address in arrived} <= {Verdict.ACCEPTED, Verdict.UNKNOWN}
    assert {address for address, verdict in verdicts.items() if verdict is Verdict.ACCEPTED} <= set(
        arrived
    )
    return Counter(verdicts.values())


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("seed", range(4))
async def test_trouble_at_a_bearable_rate(seed: int, pipelining: bool) -> None:
    faults = chaos(seed, drop_after_dot=0.1, drop_before=0.1)
    async with talking(faults, Extensions(pipelining=pipelining), connections=5) as (
        server,
        transport,
    ):
        reports = await send(transport, *(outgoing(name, f"second-{name}") for name in NAMES))
    assert set(check_honesty(server, reports)) == set(Verdict)
    assert server.violations == []


def everything(seed: int) -> Faults:
    """Every kind of fault at every stage of a mail."""
    dice = random.Random(seed)

    def sometimes(rate: float, *faults: Any) -> Callable[[Session, str], Any]:
        return lambda session, argument: dice.choice(faults) if dice.random() < rate else None

    return Faults(
        mail=sometimes(0.06, *LOSSES, *REFUSALS, Raw(b"354 too early\r\n")),
        rcpt=sometimes(0.06, *LOSSES, *REFUSALS),
        data=sometimes(0.06, *LOSSES, *REFUSALS, Drop(after_bytes=10), Raw(b"250 what?\r\n")),
        body=sometimes(0.1, *LOSSES, *REFUSALS, *AMBIGUITIES),
        rset=sometimes(0.2, *LOSSES, "500 5.5.1 what?"),
        data_without_recipients=seed % 2 == 0,
        mails_per_connection=dice.choice([None, 7]),
    )


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_everything_at_once(seed: int, pipelining: bool) -> None:
    haste = {"command_timeout": 0.1, "data_timeout": 0.15, "max_messages": 50}
    extensions = Extensions(pipelining=pipelining)
    async with talking(everything(seed), extensions, connections=8, **haste) as (server, transport):
        window = asyncio.Semaphore(40)  # what a worker has in flight
        dice = random.Random(seed)

        async def deliver(name: str) -> SendResult:
            async with window:
                content = MAIL * dice.choice([1, 1, 1, 50, 8000])
                return await transport.send(outgoing(name, f"second-{name}", content=content))

        reports = await asyncio.wait_for(asyncio.gather(*map(deliver, NAMES)), PATIENCE)
        assert transport.waiting == 0
    assert set(check_honesty(server, reports)) == set(Verdict)
