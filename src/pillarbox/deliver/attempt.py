"""One attempt at one claimed message: carry it to its providers, then decide what becomes of each delivery."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pillarbox.deliver.journey import Ending, Journey
from pillarbox.deliver.line import Line
from pillarbox.deliver.roster import Roster
from pillarbox.model.delivery import MessageClass, decide
from pillarbox.queue.base import ClaimedMessage, EarlierAttempt, Settlement


@dataclass(slots=True)
class Result:
    """What an attempt came to, ready to be settled."""

    claimed: ClaimedMessage
    settlements: Sequence[Settlement]
    conversation: str | None
    secret: bool
    events: Sequence[tuple[str, str]] = ()  # kind, and data as JSON


async def attempt(claimed: ClaimedMessage, roster: Roster, may_begin: Callable[[], bool]) -> Result:
    """Carry one claimed message to its end.

    Raises NotStarted when nothing was sent and the claim can be released, MustWait when it must wait besides.
    `may_begin` is asked right before the first byte leaves: whether the claim's lease still allows it.
    """
    journey = Journey(claimed, roster, may_begin)
    await journey.run()
    return conclude(journey)


def conclude(journey: Journey) -> Result:
    """Decide what becomes of each delivery, and redact what the providers said."""
    claimed = journey.claimed
    message_class = journey.roster.class_of(claimed.class_name)
    settlements = [
        settlement(journey, place, message_class) for place in range(len(journey.endings))
    ]
    return Result(
        claimed, settlements, conversation(journey.said), message_class.secret, journey.events
    )


def conversation(said: Sequence[tuple[Line, str]]) -> str | None:
    """What was said, with whom if there were several."""
    if len(said) < 2:
        return said[0][0].redact(said[0][1]) if said else None
    return "\n".join(f"--- {line.provider.name}\n{line.redact(text)}" for line, text in said)


def settlement(journey: Journey, place: int, message_class: MessageClass) -> Settlement:
    """What becomes of one delivery."""
    ending = journey.endings[place]
    assert ending is not None
    claimed, outcome, line = journey.claimed, ending.outcome, ending.line
    policy = journey.policy(line)
    chance = random.random()  # noqa: S311 -- jitter, not a secret
    made = claimed.attempts[place] + 1
    decision = decide(outcome, made, policy, message_class.unknown, claimed.max_attempts, chance)
    return Settlement(
        claimed.message.id,
        claimed.recipient_numbers[place],
        claimed.claim,
        decision.state,
        outcome,
        decision.reason,
        decision.delay,
        policy.name if decision.delay is not None else None,
        line.provider.id if line else None,
        line.provider.name if line else "",
        journey.roster.redact(line, outcome.text) if outcome.text else None,
        ending.ended,
        ending.ended - ending.started,
        claimed.expires_at,
        earlier_tries(journey, place, ending) if journey.earlier else (),
    )


def earlier_tries(journey: Journey, place: int, last: Ending) -> list[EarlierAttempt]:
    """What providers did that were left for another; the last stands where the next one was not begun."""
    tries = []
    for one in journey.earlier.get(place, ()):
        if one is not last and one.line is not None:
            reply = journey.roster.redact(one.line, one.outcome.text) if one.outcome.text else None
            tries.append(
                EarlierAttempt(
                    one.line.provider.id, one.outcome, reply, one.ended, one.ended - one.started
                )
            )
    return tries
