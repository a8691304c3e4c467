"""One attempt at a claimed message: performs the steps that `route/decide.py` decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pillarbox.deliver.mime import compose
from pillarbox.deliver.provider_channel import ProviderChannel
from pillarbox.deliver.provider_pool import ProviderPool
from pillarbox.deliver.transports.base import OutgoingMail, Recipient, SendResult
from pillarbox.errors import NotStarted, StoreError
from pillarbox.model.access import domain_of
from pillarbox.model.delivery import LANES
from pillarbox.model.fairness import LaneId
from pillarbox.model.outcome import Outcome, Reason, deferred, rejected, unknown
from pillarbox.model.retry import RetryPolicy
from pillarbox.model.routing import MailFacts
from pillarbox.queue.records import ClaimedMessage
from pillarbox.route import decide
from pillarbox.route.decide import (
    ChannelState,
    Progress,
    ProviderWait,
    Refuse,
    Release,
    Send,
    SendEnd,
    SendStatus,
    Stop,
    Wait,
)
from pillarbox.route.failover import should_fail_over
from pillarbox.route.router import chance_of
from pillarbox.telemetry import logs

log = logs.get("pillarbox.attempt")


@dataclass(slots=True)
class RecipientResult:
    """The outcome for one recipient, and the channel it came from, if any."""

    outcome: Outcome
    channel: ProviderChannel | None
    started: float
    ended: float


@dataclass(slots=True)
class SendGate:
    """Asked by a transport before the first byte leaves; remembers that sending began."""

    may_begin: Callable[[], bool]
    begun: bool = False

    def __call__(self) -> bool:
        self.begun = self.may_begin()
        return self.begun


@dataclass(slots=True)
class DeliveryAttempt:
    """An attempt in progress: the latest result of each recipient, by index, and transcripts."""

    claimed: ClaimedMessage
    pool: ProviderPool
    may_begin: Callable[[], bool]
    lane: LaneId = field(init=False)
    results: list[RecipientResult | None] = field(init=False)
    # Results of providers that were left for another, by recipient.
    failed_over: dict[int, list[RecipientResult]] = field(default_factory=dict)
    transcripts: list[tuple[ProviderChannel, str]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    composed: bytes | None = None
    begun: bool = False  # a provider has answered for some recipient
    stopped: bool = False  # past the deadline of a shutdown: nothing more is begun

    def __post_init__(self) -> None:
        self.lane = LaneId(self.claimed.tenant_id, self.claimed.lane)
        self.results = [None] * len(self.claimed.recipient_numbers)

    async def run(self) -> Stop | None:
        """Deliver to all recipients. A Stop: no provider has the mail, and the claim goes back."""
        refusal = self.refusal()
        if refusal is not None:
            self.finish(Refuse(refusal, range(len(self.results))))
            return None
        stops: list[Stop] = []
        for recipients, providers in self.groups():
            stop = await self.deliver(recipients, providers)
            if stop is not None:
                stops.append(stop)
        if not stops:
            return None
        end = decide.combine(stops, self.taken)
        if isinstance(end, Wait | Release):
            return end
        for step in end:
            self.finish(step)
        return None

    async def deliver(self, recipients: Sequence[int], providers: Sequence[int]) -> Stop | None:
        """Decide and perform one step after the other for recipients with the same route."""
        used: dict[int, SendEnd] = {}
        while True:
            outcomes = self.undelivered(recipients)
            if not outcomes:
                return None
            progress = Progress(
                outcomes, used, self.begun, self.stopped, self.claimed.age, not len(self.pool)
            )
            step = decide.next_step(self.channel_states(providers), progress)
            if isinstance(step, Send):
                used[step.provider_id] = await self.send(step)
            elif isinstance(step, Refuse):
                self.finish(step)
                return None
            else:
                # After a time instead, mails of other lanes could always be served first.
                if isinstance(step, Wait) and step.full_provider is not None:
                    self.pool.capacity.note(self.lane, step.full_provider)
                return step

    # -- what the decision needs to know

    def refusal(self) -> Outcome | None:
        """Why no provider is asked at all, if so."""
        claimed = self.claimed
        if claimed.expired:
            return rejected(Reason.EXPIRED)
        if claimed.content is None:
            return rejected(Reason.CONTENT_PURGED)
        # Attempts that a crash interrupted count too: a mail that crashes workers is not tried for
        # ever.
        if self.policy(None).exhausted(min(claimed.attempts), claimed.max_attempts):
            return rejected(Reason.EXHAUSTED)
        return None

    def groups(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Recipients with the same route, and its providers. Suppressed recipients are refused."""
        claimed = self.claimed
        recipients: Sequence[int] = range(len(self.results))
        if claimed.suppressed:
            numbers = claimed.recipient_numbers
            suppressed = [index for index in recipients if numbers[index] in claimed.suppressed]
            self.finish(Refuse(rejected(Reason.SUPPRESSED), suppressed))
            recipients = [index for index in recipients if index not in suppressed]
        simple = self.pool.router.simple
        if simple is not None and not any(claimed.via):
            if recipients:
                yield recipients, simple.providers
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for index in recipients:
            groups.setdefault(self.route(index), []).append(index)
        for providers, alike in groups.items():
            yield alike, providers

    def route(self, index: int) -> tuple[int, ...]:
        """The providers for a recipient: the one that a person chose, or those of the rules."""
        claimed = self.claimed
        chosen = claimed.via[index] if claimed.via else None
        if chosen is not None and chosen in self.pool.known:
            return (chosen,)
        choice = self.pool.router.choose(self.facts(index), chance_of(claimed.message.id))
        return tuple(choice.providers)

    def facts(self, index: int) -> MailFacts:
        claimed = self.claimed
        return MailFacts(
            claimed.tenant_id,
            domain_of(claimed.message.sender),
            domain_of(claimed.recipients[index]),
            LANES[claimed.lane],
            claimed.class_name,
            claimed.kind,
            claimed.tags,
            claimed.size,
        )

    def undelivered(self, recipients: Sequence[int]) -> dict[int, Outcome | None]:
        """Recipients whose mail no provider has taken, with the outcome that makes it fail over."""
        outcomes: dict[int, Outcome | None] = {}
        for index in recipients:
            result = self.results[index]
            if result is None:
                outcomes[index] = None
            elif should_fail_over(result.outcome):
                outcomes[index] = result.outcome
        return outcomes

    def channel_states(self, providers: Sequence[int]) -> Iterator[ChannelState]:
        """The state of each enabled provider, read when the decision comes to it."""
        for provider_id in providers:
            channel = self.pool.channel(provider_id)
            if channel is None:
                continue
            refusal, unusable_for = self.cannot_carry(channel), channel.unusable_for()
            if unusable_for is None:
                has_room = self.pool.capacity.has_room(channel)
                yield ChannelState(provider_id, refusal, None, 0.0, has_room)
            else:
                paused_for, usable = channel.paused_for(), self.pool.usable
                yield ChannelState(provider_id, refusal, unusable_for, paused_for, True, usable)

    def cannot_carry(self, channel: ProviderChannel) -> Outcome | None:
        """Why a provider can never carry this mail, if so."""
        limits, content = channel.transport.limits, self.claimed.content
        kind = channel.provider.kind
        if limits.takes_parts and content is not None and content.raw is not None:
            return rejected(Reason.UNSUPPORTED, text=f"{kind} takes no finished mails")
        if limits.max_bytes is not None and self.claimed.size > limits.max_bytes:
            text = f"over the {limits.max_bytes:,} bytes that {kind} takes"
            return rejected(Reason.TOO_BIG, text=text)
        return None

    @property
    def taken(self) -> bool:
        """Whether some recipient has an answer that stands: accepted, unknown, or final."""
        return any(
            result is not None
            and result.channel is not None
            and not should_fail_over(result.outcome)
            for result in self.results
        )

    # -- sending

    async def send(self, step: Send) -> SendEnd:
        """Send through one provider, if its quota allows it."""
        channel, recipients = self.pool.channel(step.provider_id), step.recipients
        assert channel is not None  # the decision has just seen it
        if channel.limited:
            denied = await self.ask_quota(channel, len(recipients))
            if denied is not None:
                return denied
        if self.begun:
            self.record_failover(channel, recipients)
        self.pool.capacity.note(self.lane, step.provider_id)
        size = channel.transport.limits.max_recipients or len(recipients)
        for start in range(0, len(recipients), size):
            if not await self.send_some(channel, recipients[start : start + size]):
                unusable_for = channel.unusable_for()
                if unusable_for is None:
                    return SendStatus.INTERRUPTED
                return ProviderWait(unusable_for, Reason.NO_PROVIDER)
        return SendStatus.ANSWERED

    async def ask_quota(self, channel: ProviderChannel, recipients: int) -> SendEnd | None:
        """Use up rate and budget of a provider for one mail; None: they allow it."""
        try:
            seconds, limit = await channel.use_quota(self.claimed.lane, recipients)
        except asyncio.CancelledError:
            self.stopped = True
            return SendStatus.INTERRUPTED
        except StoreError as error:
            log.warning("cannot check a quota: the database is unavailable", error=str(error))
            return decide.quota_wait(decide.STORE_WAIT, None)
        return decide.quota_wait(seconds, limit) if seconds else None

    def record_failover(self, channel: ProviderChannel, recipients: Sequence[int]) -> None:
        """Record which recipients fail over to this provider, if any, and why."""
        tried = [(index, result) for index in recipients if (result := self.results[index])]
        for index, result in tried:
            self.failed_over.setdefault(index, []).append(result)
        if not tried:
            return
        _, first = tried[0]
        assert first.channel is not None  # without a provider, nothing fails over
        outcome = first.outcome
        data = {
            "from": first.channel.provider.name,
            "to": channel.provider.name,
            "reason": outcome.reason,
            "code": outcome.code,
        }
        self.events.append(("failed_over", json.dumps(data)))
        self.pool.failed_over(first.channel, channel, outcome.reason or "")

    async def send_some(self, channel: ProviderChannel, recipients: Sequence[int]) -> bool:
        """One call of the transport; False when it was given back before anything was sent."""
        if self.stopped:
            return False
        outgoing = self.compose(channel, recipients)
        if isinstance(outgoing, Outcome):
            self.finish(Refuse(outgoing, recipients))
            return True
        sent = await self.hand_over(channel, outgoing)
        if sent is None:
            return False
        self.begun = True
        for index, outcome in zip(recipients, sent.outcomes, strict=True):
            self.results[index] = RecipientResult(outcome, channel, sent.started, sent.ended)
        if sent.transcript:
            self.transcripts.append((channel, sent.transcript))
        return True

    def compose(
        self, channel: ProviderChannel, recipients: Sequence[int]
    ) -> OutgoingMail | Outcome:
        """The envelope and the mail; or an outcome if the content does not make a legal mail."""
        claimed = self.claimed
        envelope = [
            Recipient(claimed.recipient_numbers[index], claimed.recipients[index])
            for index in recipients
        ]
        try:
            sender = self.pool.sender_of(channel, claimed.message)
            if channel.transport.limits.takes_parts:
                outgoing = OutgoingMail(claimed.message.id, claimed.claim, sender, envelope, b"")
                outgoing.message, outgoing.parts = claimed.message, claimed.content
                return outgoing
            if self.composed is None:
                assert claimed.content is not None
                self.composed = compose(claimed.message, claimed.content)
                if len(self.pool) == 1:
                    # The composed bytes replace it: memory is bounded by bytes in flight.
                    claimed.content = None
        except ValueError as error:
            return rejected(Reason.MALFORMED, text=str(error))
        except Exception as error:  # a bug here: the mail keeps its attempts for a fixed version
            log.error(
                "composing failed", message=claimed.message.id, attempt=claimed.claim, exc=error
            )
            return deferred(Reason.MALFORMED, text=type(error).__name__)
        return OutgoingMail(claimed.message.id, claimed.claim, sender, envelope, self.composed)

    async def hand_over(
        self, channel: ProviderChannel, outgoing: OutgoingMail
    ) -> SendResult | None:
        """Hand a mail to the channel; None when it was given back before anything was sent."""
        gate = outgoing.may_begin = SendGate(self.may_begin)
        started = asyncio.get_running_loop().time()
        try:
            return await channel.send(outgoing, self.lane)
        except NotStarted:
            return None
        except asyncio.CancelledError:
            self.stopped = True
            if not gate.begun:
                return None
            text = "stopped before the answer came"  # past the deadline of a shutdown
        except Exception as error:  # a bug here, while sending: the mail may have left
            log.error(
                "sending failed", message=outgoing.message_id, attempt=outgoing.attempt, exc=error
            )
            text = type(error).__name__
        outcomes = [unknown(Reason.LOST, text)] * len(outgoing.recipients)
        return SendResult(outcomes, started, asyncio.get_running_loop().time())

    # -- results

    def finish(self, step: Refuse) -> None:
        """Give recipients an outcome without a provider."""
        now = asyncio.get_running_loop().time()
        for index in step.recipients:
            self.results[index] = RecipientResult(step.outcome, None, now, now)

    def policy(self, channel: ProviderChannel | None) -> RetryPolicy:
        """The retry policy of the message's class, or else of a provider."""
        return self.pool.class_of(self.claimed.class_name).retry or self.pool.policy_of(channel)
