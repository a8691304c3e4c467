"""One attempt at one claimed message: carry it to its providers, then decide what becomes of each delivery."""

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
    """What an attempt came to, ready to be settled."""

    claimed: ClaimedMessage
    settlements: Sequence[Settlement]
    conversation: str | None
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
    return conclude(running) if stop is None else stop


def conclude(attempt: DeliveryAttempt) -> AttemptResult:
    """Decide what becomes of each delivery, and redact the transcripts."""
    claimed = attempt.claimed
    message_class = attempt.pool.class_of(claimed.class_name)
    settlements = [
        settlement(attempt, index, message_class) for index in range(len(attempt.results))
    ]
    return AttemptResult(
        claimed,
        settlements,
        conversation(attempt.transcripts),
        message_class.secret,
        attempt.events,
    )


def conversation(transcripts: Sequence[tuple[ProviderChannel, str]]) -> str | None:
    """The transcripts, with the names of the providers if there were several."""
    if len(transcripts) < 2:
        return transcripts[0][0].redact(transcripts[0][1]) if transcripts else None
    return "\n".join(
        f"--- {channel.provider.name}\n{channel.redact(text)}" for channel, text in transcripts
    )


def settlement(attempt: DeliveryAttempt, index: int, message_class: MessageClass) -> Settlement:
    """What becomes of one delivery."""
    ending = attempt.results[index]
    assert ending is not None
    claimed, outcome, channel = attempt.claimed, ending.outcome, ending.channel
    policy = attempt.policy(channel)
    chance = random.random()  # noqa: S311 -- jitter, not a secret
    made = claimed.attempts[index] + 1
    decision = decide(outcome, made, policy, message_class.unknown, claimed.max_attempts, chance)
    return Settlement(
        claimed.message.id,
        claimed.recipient_numbers[index],
        claimed.claim,
        decision.state,
        outcome,
        decision.reason,
        decision.delay,
        policy.name if decision.delay is not None else None,
        channel.provider.id if channel else None,
        channel.provider.name if channel else "",
        attempt.pool.redact(channel, outcome.text) if outcome.text else None,
        ending.ended,
        ending.ended - ending.started,
        claimed.expires_at,
        earlier_tries(attempt, index, ending) if attempt.failed_over else (),
    )


def earlier_tries(
    attempt: DeliveryAttempt, index: int, last: RecipientResult
) -> list[EarlierAttempt]:
    """What providers did that were left for another; the last stands where the next one was not begun."""
    tries = []
    for one in attempt.failed_over.get(index, ()):
        if one is not last and one.channel is not None:
            reply = attempt.pool.redact(one.channel, one.outcome.text) if one.outcome.text else None
            tries.append(
                EarlierAttempt(
                    one.channel.provider.id, one.outcome, reply, one.ended, one.ended - one.started
                )
            )
    return tries
