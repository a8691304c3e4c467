"""One attempt as named steps over one claimed message: refuse early, route, pack, send, conclude."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pillarbox.deliver.mime import compose
from pillarbox.deliver.roster import Line, Roster
from pillarbox.deliver.transports.base import Parcel, Recipient, Report
from pillarbox.errors import NotStarted
from pillarbox.model.address import address_of
from pillarbox.model.delivery import MessageClass, decide
from pillarbox.model.outcome import Outcome, Reason, deferred, rejected, unknown
from pillarbox.model.retry import RetryPolicy
from pillarbox.queue.base import Claimed, Settlement
from pillarbox.telemetry import logs

log = logs.get("pillarbox.attempt")


@dataclass(slots=True)
class Result:
    """What an attempt came to, ready to be settled."""

    claimed: Claimed
    settlements: Sequence[Settlement]
    provider: str
    conversation: str | None
    secret: bool


async def attempt(claimed: Claimed, roster: Roster, may_begin: Callable[[], bool]) -> Result:
    """Carry one claimed message to its end. Raises NotStarted when nothing was sent and the claim can be released.

    `may_begin` is asked right before the first byte leaves: whether the claim's lease still allows it.
    """
    line = route(roster)
    policy = roster.class_of(claimed.class_name).retry or line.policy
    if (refusal := refuse(claimed, policy)) is not None:
        return conclude(claimed, roster, line, policy, same_for_all(claimed, refusal))
    parcel = pack(claimed, may_begin)
    if isinstance(parcel, Outcome):
        return conclude(claimed, roster, line, policy, same_for_all(claimed, parcel))
    return conclude(claimed, roster, line, policy, await send(claimed, line, parcel))


def route(roster: Roster) -> Line:
    """The provider to use: the first that is enabled."""
    if not roster.lines:
        raise NotStarted("no provider is enabled")
    return roster.lines[0]


def refuse(claimed: Claimed, policy: RetryPolicy) -> Outcome | None:
    """The reason not to begin at all, if there is one."""
    if claimed.expired:
        return rejected(Reason.EXPIRED)
    if claimed.content is None:
        return rejected(Reason.CONTENT_PURGED)
    # Attempts that a crash cut short count too: a mail that brings workers down is not tried for ever.
    if all(policy.exhausted(made, claimed.max_attempts) for made in claimed.attempts):
        return rejected(Reason.EXHAUSTED)
    return None


def pack(claimed: Claimed, may_begin: Callable[[], bool]) -> Parcel | Outcome:
    """The envelope and the bytes; or an outcome when the content cannot be made into a legal mail."""
    assert claimed.content is not None
    try:
        content = compose(claimed.message, claimed.content)
        sender = address_of(claimed.message.sender)
    except ValueError as error:
        return rejected(Reason.MALFORMED, text=str(error))
    except Exception as error:  # a fault of ours, not the mail's: it keeps its attempts for the mended version
        log.error("composing broke", message=claimed.message.id, attempt=claimed.claim, exc=error)
        return deferred(Reason.MALFORMED, text=type(error).__name__)
    claimed.content = None  # the composed bytes replace it: memory is bounded by bytes in flight
    recipients = [Recipient(n, address) for n, address in zip(claimed.ns, claimed.recipients, strict=True)]
    return Parcel(claimed.message.id, claimed.claim, sender, recipients, content, may_begin)


async def send(claimed: Claimed, line: Line, parcel: Parcel) -> Report:
    """Hand the parcel to the provider's transport; cancelling leaves its end unknown."""
    started = asyncio.get_running_loop().time()
    try:
        return await line.transport.send(parcel)
    except asyncio.CancelledError:
        # Past the deadline of a shutdown: nobody will see how it ends.
        return same_for_all(claimed, unknown(Reason.LOST, "stopped before the answer came"), started)
    except NotStarted:
        raise
    except Exception as error:  # a fault of ours in the midst of sending: it may have left
        log.error("sending broke", message=parcel.message_id, attempt=parcel.attempt, exc=error)
        return same_for_all(claimed, unknown(Reason.LOST, type(error).__name__), started)


def same_for_all(claimed: Claimed, outcome: Outcome, started: float | None = None) -> Report:
    now = asyncio.get_running_loop().time()
    return Report([outcome] * len(claimed.ns), now if started is None else started, now)


def conclude(claimed: Claimed, roster: Roster, line: Line, policy: RetryPolicy, report: Report) -> Result:
    """Decide what becomes of each delivery, and redact what the provider said."""
    message_class = roster.class_of(claimed.class_name)
    settlements = [
        settlement(claimed, line, policy, message_class, report, n, made, outcome)
        for n, made, outcome in zip(claimed.ns, claimed.attempts, report.outcomes, strict=True)
    ]
    conversation = line.redact(report.conversation) if report.conversation else None
    return Result(claimed, settlements, line.provider.name, conversation, message_class.secret)


def settlement(
    claimed: Claimed,
    line: Line,
    policy: RetryPolicy,
    message_class: MessageClass,
    report: Report,
    n: int,
    made: int,
    outcome: Outcome,
) -> Settlement:
    """What becomes of one delivery."""
    chance = random.random()  # noqa: S311 -- jitter, not a secret
    decision = decide(outcome, made + 1, policy, message_class.unknown, claimed.max_attempts, chance)
    return Settlement(
        claimed.message.id,
        n,
        claimed.claim,
        decision.state,
        outcome,
        decision.reason,
        decision.delay,
        policy.name if decision.delay is not None else None,
        line.provider.id,
        line.redact(outcome.text) if outcome.text else None,
        report.ended,
        report.ended - report.started,
        claimed.expires_at,
    )
