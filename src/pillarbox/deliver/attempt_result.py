"""The result of a delivery attempt: what becomes of each delivery, ready to be settled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pillarbox.deliver.delivery_attempt import DeliveryAttempt, RecipientResult
from pillarbox.deliver.provider_channel import ProviderChannel
from pillarbox.deliver.provider_pool import ProviderPool
from pillarbox.model.delivery import MessageClass, decide
from pillarbox.queue.records import ClaimedMessage, EarlierAttempt, Settlement
from pillarbox.route.decide import Stop


@dataclass(slots=True)
class AttemptResult:
    """What an attempt at a message came to."""

    claimed: ClaimedMessage
    settlements: Sequence[Settlement]
    transcript: str | None
    secret: bool
    events: Sequence[tuple[str, str]] = ()  # kind, and data as JSON


async def attempt(
    claimed: ClaimedMessage, pool: ProviderPool, may_begin: Callable[[], bool]
) -> AttemptResult | Stop:
    """Make one attempt at a claimed message. A Stop: nothing was sent, and the claim goes back.

    `may_begin` is asked right before the first byte leaves: whether the claim's lease allows it.
    """
    running = DeliveryAttempt(claimed, pool, may_begin)
    stop = await running.run()
    if stop is not None:
        return stop
    return conclude(running)


def conclude(attempt: DeliveryAttempt) -> AttemptResult:
    """Decide what becomes of each delivery, and redact the transcripts."""
    claimed = attempt.claimed
    message_class = attempt.pool.class_of(claimed.class_name)
    settlements = [
        settlement(attempt, index, result, message_class)
        for index, result in enumerate(attempt.results)
        if result is not None
    ]
    assert len(settlements) == len(attempt.results)
    return AttemptResult(
        claimed,
        settlements,
        join_transcripts(attempt.transcripts),
        message_class.secret,
        attempt.events,
    )


def join_transcripts(transcripts: Sequence[tuple[ProviderChannel, str]]) -> str | None:
    """The redacted transcripts, with the names of the providers if there were several."""
    if not transcripts:
        return None
    if len(transcripts) == 1:
        channel, text = transcripts[0]
        return channel.redact(text)
    return "\n".join(
        f"--- {channel.provider.name}\n{channel.redact(text)}" for channel, text in transcripts
    )


def settlement(
    attempt: DeliveryAttempt, index: int, result: RecipientResult, message_class: MessageClass
) -> Settlement:
    """What becomes of one delivery."""
    claimed, outcome, channel = attempt.claimed, result.outcome, result.channel
    policy = attempt.policy(channel)
    chance = random.random()  # noqa: S311 -- jitter, not a secret
    made = claimed.attempts[index] + 1
    decision = decide(outcome, made, policy, message_class.unknown, claimed.max_attempts, chance)
    settled = Settlement(
        claimed.message.id,
        claimed.recipient_numbers[index],
        claimed.claim,
        decision.state,
        outcome,
        decision.reason,
        decision.delay,
        ended=result.ended,
        took=result.ended - result.started,
        expires_at=claimed.expires_at,
    )
    if decision.delay is not None:
        settled.retry = policy.name
    if channel is not None:
        settled.provider_id, settled.provider = channel.provider.id, channel.provider.name
    if outcome.text:
        settled.reply = attempt.pool.redact(channel, outcome.text)
    if attempt.failed_over:
        settled.earlier = earlier_attempts(attempt, index, result)
    return settled


def earlier_attempts(
    attempt: DeliveryAttempt, index: int, last: RecipientResult
) -> list[EarlierAttempt]:
    """Attempts through providers that were left for another, without the one that stands."""
    earlier = []
    for result in attempt.failed_over.get(index, ()):
        channel, outcome = result.channel, result.outcome
        if result is last or channel is None:
            continue
        reply = attempt.pool.redact(channel, outcome.text) if outcome.text else None
        took = result.ended - result.started
        earlier.append(EarlierAttempt(channel.provider.id, outcome, reply, result.ended, took))
    return earlier
