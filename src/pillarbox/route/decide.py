"""Decides the next step of a delivery attempt: send, wait, refuse or release. Pure.

This is the one layer that decides about waiting for a provider. Channels report their state, the
quota reports its limits; `next_step` turns both into a step, and `hold_or_postpone` says whether
the lane waits with the mail. `deliver/delivery_attempt.py` performs the steps.

Every Send names a provider that this attempt has not used yet, so an attempt has at most as many
sends as its route has providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from pillarbox.model.outcome import Outcome, Reason, deferred
from pillarbox.route.failover import cannot_take

# A wait this short keeps the order of the lane: the whole lane waits. For a longer one the mail
# goes to the next provider, or is postponed.
SHORT_WAIT = 5.0
# A provider that asks for a pause gets it, up to this: its mails wait, and do not fail over.
LONGEST_PAUSE = 60.0
# A mail that a limit holds back asks again after this at the latest: the limit, or the budget of
# the month, may be raised.
LONGEST_LIMIT_WAIT = 3600.0
# The quota is asked again after this when the database is unavailable.
STORE_WAIT = 1.0
# A mail is postponed this long when its route has no usable provider: long enough not to be
# claimed in vain again and again, short enough not to be noticed once a provider is back.
SHORTEST_POSTPONE, LONGEST_POSTPONE = 5.0, 60.0


class ChannelState(NamedTuple):
    """What decides whether a provider can take a mail now."""

    provider_id: int
    refusal: Outcome | None = None  # why it can never carry this mail
    unusable_for: float | None = None  # seconds, by its breaker or a pause; None: usable
    paused_for: float = 0.0  # seconds
    has_room: bool = True  # its share of the worker's window is not used up
    pool_usable: bool = True  # some provider is usable, for any mail


class ProviderWait(NamedTuple):
    """A provider cannot take the mail now. `patient`: the mail waits and does not fail over."""

    seconds: float
    reason: Reason
    patient: bool = False


class SendStatus(Enum):
    """How sending through a provider ended, unless it must be waited for."""

    ANSWERED = "answered"  # for every recipient it was given
    INTERRUPTED = "interrupted"  # it is usable and gave the mail back: nothing more may begin


SendEnd = SendStatus | ProviderWait


class Progress(NamedTuple):
    """What has happened so far to recipients with the same route.

    `outcomes` has the recipients whose mail no provider has taken: None, or the outcome because of
    which it fails over. `used` has the providers of this attempt, and how sending ended.
    """

    outcomes: Mapping[int, Outcome | None]
    used: Mapping[int, SendEnd]
    begun: bool = False  # a provider has answered for some recipient of the message
    stopped: bool = False  # the worker stops: nothing more may begin
    age: float = 0.0  # seconds since the message was accepted
    no_provider: bool = False  # none is enabled


class Send(NamedTuple):
    """Send through this provider."""

    provider_id: int
    recipients: Sequence[int]


class Wait(NamedTuple):
    """No provider can take the mail now. `full_provider`: the lane waits until it has room."""

    seconds: float
    reason: Reason
    recipients: Sequence[int] = ()
    full_provider: int | None = None


class Refuse(NamedTuple):
    """These recipients get this outcome, without a provider."""

    outcome: Outcome
    recipients: Sequence[int]


class Release(NamedTuple):
    """Nothing may begin any more: the claim is given back."""

    recipients: Sequence[int] = ()


Stop = Wait | Release
Step = Send | Refuse | Stop | None  # None: nothing is left to do


def unusable_for(open_for: float | None, paused_for: float) -> float | None:
    """Seconds until a provider is worth asking again; None: its breaker and pauses allow sending.

    A short pause is waited for in the channel, behind the mails that are on their way.
    """
    if open_for is not None:
        return open_for
    if paused_for > SHORT_WAIT:
        return paused_for
    return None


def quota_wait(seconds: float, limit: str | None) -> ProviderWait:
    """The wait for a limit of a provider, by its name in the quota's answer."""
    reason = Reason.RATE_LIMITED
    if limit == "budget_per_month":
        reason = Reason.BUDGET
    return ProviderWait(min(seconds, LONGEST_LIMIT_WAIT), reason, patient=seconds < SHORT_WAIT)


def next_step(channels: Iterable[ChannelState], progress: Progress) -> Step:
    """The next step for recipients with the same route, whose providers are given in order."""
    outcomes = progress.outcomes
    if not outcomes:
        return None
    if progress.stopped or SendStatus.INTERRUPTED in progress.used.values():
        unsent = _unsent(outcomes)
        if not unsent:
            return None  # the answers of providers stand
        return Release(unsent)
    waits: list[ProviderWait] = []
    refusal: Outcome | None = None
    for channel in channels:
        end = progress.used.get(channel.provider_id)
        if end is None:
            if channel.refusal is not None:
                refusal = refusal or channel.refusal
                continue
            end = _channel_wait(channel, progress.age)
            if end is None:
                if channel.has_room or progress.begun:
                    return Send(channel.provider_id, tuple(outcomes))
                waiting = _may_wait(outcomes)
                return Wait(0.0, Reason.RATE_LIMITED, waiting, channel.provider_id)
        if isinstance(end, ProviderWait):
            if end.patient:
                return Wait(end.seconds, end.reason, _may_wait(outcomes))
            waits.append(end)
    return _without_provider(progress, waits, refusal)


def _channel_wait(channel: ChannelState, age: float) -> ProviderWait | None:
    """Why a provider cannot take a mail of this age now, as far as its channel knows."""
    seconds = channel.unusable_for
    if seconds is None:
        return None
    if SHORT_WAIT < channel.paused_for <= LONGEST_PAUSE:
        return ProviderWait(seconds, Reason.RATE_LIMITED, patient=True)
    if channel.pool_usable:  # the older the mail, the less often it is claimed in vain
        postpone = min(max(SHORTEST_POSTPONE, age / 4), LONGEST_POSTPONE)
        seconds = max(seconds, postpone)
    return ProviderWait(seconds, Reason.NO_PROVIDER)


def _without_provider(
    progress: Progress, waits: Sequence[ProviderWait], refusal: Outcome | None
) -> Step:
    """No provider of the route can take the mail now: wait for one that could, or refuse."""
    if waits:
        waiting = _may_wait(progress.outcomes)
        if not waiting:
            return None
        # If a limit is among the reasons, it is the reason: that provider is healthy.
        reasons: list[Reason] = [
            wait.reason for wait in waits if wait.reason is not Reason.NO_PROVIDER
        ]
        reasons.append(Reason.NO_PROVIDER)
        return Wait(min(waits).seconds, reasons[0], waiting)
    unsent = _unsent(progress.outcomes)
    if not unsent:
        return None
    if refusal is not None:
        return Refuse(refusal, unsent)
    if progress.no_provider:
        return Release(unsent)
    # The route names only providers that are disabled or removed.
    return Wait(LONGEST_POSTPONE, Reason.NO_PROVIDER, unsent)


def _unsent(outcomes: Mapping[int, Outcome | None]) -> list[int]:
    return [recipient for recipient, outcome in outcomes.items() if outcome is None]


def _may_wait(outcomes: Mapping[int, Outcome | None]) -> list[int]:
    """Recipients without an outcome that stands: another provider perhaps can carry their mail."""
    return [
        recipient
        for recipient, outcome in outcomes.items()
        if outcome is None or cannot_take(outcome)
    ]


def combine(stops: Sequence[Stop], taken: bool) -> Stop | Sequence[Refuse]:
    """One end for all groups of recipients.

    `taken`: some recipient has an answer that stands. Then the message cannot wait as a whole, and
    the recipients that would wait are deferred.
    """
    if not taken:
        for stop in stops:
            if isinstance(stop, Wait):
                return stop
        return stops[0]
    refusals = []
    for stop in stops:
        seconds = stop.seconds if isinstance(stop, Wait) else None
        outcome = deferred(Reason.NO_PROVIDER, retry_after=seconds)
        refusals.append(Refuse(outcome, stop.recipients))
    return refusals


class HoldLane(NamedTuple):
    """The lane waits, and the mail stays its next. `marked`: shown as waiting for a provider."""

    seconds: float
    marked: bool


class Postpone(NamedTuple):
    """The mail waits by itself; other mails of its lane go before it."""

    seconds: float


def hold_or_postpone(wait: Wait, *, pool_usable: bool, may_postpone: bool) -> HoldLane | Postpone:
    """Whether the lane waits with its mail: briefly, without a provider, or in strict order."""
    without_provider = wait.reason is Reason.NO_PROVIDER
    short = wait.seconds < SHORT_WAIT and not without_provider
    if short or not pool_usable or not may_postpone:
        seconds = min(wait.seconds, LONGEST_POSTPONE)
        return HoldLane(seconds, marked=pool_usable and without_provider)
    return Postpone(wait.seconds)
