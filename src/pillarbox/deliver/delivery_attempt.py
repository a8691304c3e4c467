"""The way of a claimed message to its providers: refuse early, route, pack, send, go elsewhere."""

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
from pillarbox.queue.base import ClaimedMessage
from pillarbox.route.failover import cannot_take, goes_elsewhere
from pillarbox.route.router import chance_of
from pillarbox.telemetry import logs

log = logs.get("pillarbox.attempt")
# A limit that ends this soon is waited for with the whole lane, in order. For longer ones a mail
# steps aside.
SHORT_WAIT = 5.0
# A provider that asks for a pause gets it, up to this: the mails wait for it, and no other provider
# feels it.
LONGEST_PAUSE = 60.0
# A mail that a limit holds back asks again after this at the latest: the limit, or the month's
# budget, may be raised.
LONGEST_WAIT = 3600.0
# A store that does not say what a provider may send is asked again after this.
STORE_WAIT = 1.0
# How long a mail steps aside whose route has no provider that could be used: long enough not to be
# claimed for nothing again and again, short enough not to be noticed once one is back.
SHORTEST_ASIDE, LONGEST_ASIDE = 5.0, 60.0


class MustWait(Exception):
    """Nothing was sent, and nothing can be for so long; `briefly`: the whole lane waits, lest mails overtake it."""

    def __init__(self, seconds: float, reason: Reason) -> None:
        super().__init__(reason)
        self.seconds = seconds
        self.reason = reason

    @property
    def briefly(self) -> bool:
        return self.seconds < SHORT_WAIT and self.reason is not Reason.NO_PROVIDER


@dataclass(slots=True)
class RecipientResult:
    """How it ended for one recipient, and through which provider, if any."""

    outcome: Outcome
    channel: ProviderChannel | None
    started: float
    ended: float


@dataclass(slots=True)
class SendGate:
    """A mail's question whether it may begin; remembers that it did."""

    may_begin: Callable[[], bool]
    begun: bool = False

    def __call__(self) -> bool:
        self.begun = self.may_begin()
        return self.begun


@dataclass(slots=True)
class DeliveryAttempt:
    """A message on its way: how it ended for each recipient so far, and the transcripts."""

    claimed: ClaimedMessage
    pool: ProviderPool
    may_begin: Callable[[], bool]
    endings: list[RecipientResult | None] = field(init=False)
    earlier: dict[int, list[RecipientResult]] = field(
        default_factory=dict
    )  # of those that failed over, before the last
    transcripts: list[tuple[ProviderChannel, str]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    composed: bytes | None = None
    stopped: bool = False  # past the deadline of a shutdown: nothing more is begun

    def __post_init__(self) -> None:
        self.endings = [None] * len(self.claimed.recipient_numbers)

    async def run(self) -> None:
        if (refusal := self.refused()) is not None:
            self.end(range(len(self.endings)), refusal)
            return
        await self.carry_all(list(self.routed()))

    async def carry_all(self, groups: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Groups of recipients with providers of their own. Once some were sent, others that wait are deferred.

        Also of a single group: a provider may take some of it, and be gone before the rest.
        """
        left: list[tuple[Sequence[int], MustWait | NotStarted]] = []
        for indexes, providers in groups:
            try:
                await self.carry(indexes, providers)
            except (MustWait, NotStarted) as error:
                left.append((indexes, error))
        if left and not any(
            ending and ending.channel and not goes_elsewhere(ending.outcome)
            for ending in self.endings
        ):
            raise next((wait for _, wait in left if isinstance(wait, MustWait)), left[0][1])
        for indexes, wait in left:
            seconds = wait.seconds if isinstance(wait, MustWait) else None
            self.end(self.unended(indexes), deferred(Reason.NO_PROVIDER, retry_after=seconds))

    def refused(self) -> Outcome | None:
        """The reason not to begin at all, if there is one."""
        claimed = self.claimed
        if claimed.expired:
            return rejected(Reason.EXPIRED)
        if claimed.content is None:
            return rejected(Reason.CONTENT_PURGED)
        # Attempts that a crash cut short count too: a mail that brings workers down is not tried
        # for ever.
        policy = self.policy(None)
        if all(policy.exhausted(made, claimed.max_attempts) for made in claimed.attempts):
            return rejected(Reason.EXHAUSTED)
        return None

    # -- route

    def routed(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Recipients that go the same way, with the providers to try in order. Suppressed ones go nowhere."""
        claimed = self.claimed
        indexes: Sequence[int] = range(len(claimed.recipient_numbers))
        if claimed.suppressed:
            barred = [
                index for index in indexes if claimed.recipient_numbers[index] in claimed.suppressed
            ]
            self.end(barred, rejected(Reason.SUPPRESSED))
            indexes = [index for index in indexes if index not in barred]
        simple = self.pool.router.simple
        if simple is not None and not any(claimed.via):
            if indexes:
                yield indexes, simple.providers
            return
        ways: dict[tuple[int, ...], list[int]] = {}
        for index in indexes:
            ways.setdefault(self.way(index), []).append(index)
        for way, alike in ways.items():
            yield alike, way

    def way(self, index: int) -> tuple[int, ...]:
        """The providers for one recipient: a person's choice, unless it was removed since, or the rules'."""
        claimed = self.claimed
        if claimed.via and (chosen := claimed.via[index]) is not None and chosen in self.pool.known:
            return (chosen,)
        return tuple(
            self.pool.router.choose(self.facts(index), chance_of(claimed.message.id)).providers
        )

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

    async def carry(self, indexes: Sequence[int], providers: Sequence[int]) -> None:
        """Try the providers in order, until every recipient's mail is with one or cannot be."""
        left = indexes
        waits: list[tuple[float, Reason]] = []
        cannot: Outcome | None = None
        before: ProviderChannel | None = None
        for channel in filter(None, map(self.pool.channel, providers)):
            if (refusal := self.cannot_carry(channel)) is not None:
                cannot = cannot or refusal
                continue
            if (wait := await self.must_wait(channel, len(left))) is not None:
                waits.append(wait)
                continue
            if before is not None:
                self.went_elsewhere(before, channel, left)
            try:
                left = await self.send(channel, left)
            except NotStarted:
                left = self.to_carry(left)  # of several calls the first may have been made
                if (
                    unusable := channel.unusable_for()
                ) is None:  # the claim's end, not the provider's
                    if before is None:
                        raise
                    return  # the answer of the previous provider stands
                waits.append((unusable, Reason.NO_PROVIDER))
                continue
            if not left:
                return
            before = channel
        if waits:  # whom one could not carry waits for one that perhaps can
            for index in left:
                if (ending := self.endings[index]) is not None and cannot_take(ending.outcome):
                    self.endings[index] = None
        self.give_up(self.unended(left), waits, cannot)

    def give_up(
        self, left: Sequence[int], waits: Sequence[tuple[float, Reason]], cannot: Outcome | None
    ) -> None:
        """Nobody took the mail: it waits for a provider that could, or fails for good if none ever can."""
        if not left:
            return
        if waits:
            seconds, reason = min(waits)
            # A provider that only a limit holds back was found: then it is the limit that the mail
            # waits for.
            limits = (why for _, why in waits if why is not Reason.NO_PROVIDER)
            raise MustWait(seconds, next(limits, reason))
        if cannot is not None:
            self.end(left, cannot)
        elif not self.pool.channels:
            raise NotStarted("no provider is enabled")
        else:  # its route names only providers that are switched off
            raise MustWait(LONGEST_ASIDE, Reason.NO_PROVIDER)

    def cannot_carry(self, channel: ProviderChannel) -> Outcome | None:
        """Why a provider can never carry this mail, if so."""
        limits, content = channel.transport.limits, self.claimed.content
        if limits.takes_parts and content is not None and content.raw is not None:
            return rejected(
                Reason.UNSUPPORTED, text=f"{channel.provider.kind} takes no finished mails"
            )
        if limits.max_bytes is not None and self.claimed.size > limits.max_bytes:
            return rejected(
                Reason.TOO_BIG,
                text=f"over the {limits.max_bytes:,} octets that {channel.provider.kind} takes",
            )
        return None

    async def must_wait(
        self, channel: ProviderChannel, recipients: int
    ) -> tuple[float, Reason] | None:
        """How long a provider cannot be used, and why. MustWait if that is so short that the whole lane waits."""
        if self.stopped:
            raise NotStarted("stopped before it began")
        if (wait := channel.unusable_for()) is not None:
            if SHORT_WAIT < channel.paused_for() <= LONGEST_PAUSE:
                raise MustWait(wait, Reason.RATE_LIMITED)
            aside = min(max(SHORTEST_ASIDE, self.claimed.age / 4), LONGEST_ASIDE)
            return max(wait, aside) if self.pool.usable else wait, Reason.NO_PROVIDER
        if not self.pool.has_room(channel) and not self.begun:
            # The pool bars the lane while the provider has enough. A time would let other lanes
            # overtake it.
            self.pool.feed(self.lane, channel)
            raise MustWait(0.0, Reason.RATE_LIMITED)
        if channel.limited:
            wait, why = await self.allowed(channel, recipients)
            if wait:
                reason = Reason.BUDGET if why == "budget_per_month" else Reason.RATE_LIMITED
                if wait < SHORT_WAIT:
                    raise MustWait(wait, reason)
                return min(wait, LONGEST_WAIT), reason
        return None

    async def allowed(self, channel: ProviderChannel, recipients: int) -> tuple[float, str | None]:
        """Ask for the right to send. Others of the recipients may have the mail: no way out but NotStarted and MustWait."""
        try:
            return await channel.allowed(self.claimed.lane, recipients)
        except asyncio.CancelledError:
            self.stopped = True
            raise NotStarted("stopped before it began") from None
        except StoreError as error:
            log.warning(
                "cannot ask for the right to send while the store is away", error=str(error)
            )
            raise MustWait(STORE_WAIT, Reason.RATE_LIMITED) from None

    def went_elsewhere(
        self, before: ProviderChannel, channel: ProviderChannel, indexes: Sequence[int]
    ) -> None:
        """Tell who failed over to whom."""
        ending = self.endings[indexes[0]]
        assert ending is not None
        outcome = ending.outcome
        data = {
            "from": before.provider.name,
            "to": channel.provider.name,
            "reason": outcome.reason,
            "code": outcome.code,
        }
        self.events.append(("failed_over", json.dumps(data)))
        for index in indexes:
            if (tried := self.endings[index]) is not None:
                self.earlier.setdefault(index, []).append(tried)
        self.pool.failed_over(before, channel, outcome.reason or "")

    # -- pack and send

    async def send(self, channel: ProviderChannel, indexes: Sequence[int]) -> Sequence[int]:
        """Send to these recipients through one provider; returns those that another should have at once."""
        self.pool.feed(self.lane, channel)
        most = channel.transport.limits.max_recipients or len(indexes)
        if len(indexes) <= most:
            await self.send_some(channel, indexes)
        else:
            chunks = [indexes[start : start + most] for start in range(0, len(indexes), most)]
            for chunk in chunks:
                await self.send_some(channel, chunk)
        return self.to_carry(indexes)

    async def send_some(self, channel: ProviderChannel, indexes: Sequence[int]) -> None:
        if self.stopped:
            raise NotStarted("stopped before it began")
        outgoing = self.pack(channel, indexes)
        if isinstance(outgoing, Outcome):
            self.end(indexes, outgoing)
            return
        gate = SendGate(self.may_begin)
        outgoing.may_begin = gate
        report = await self.hand_over(channel, outgoing, gate)
        for index, outcome in zip(indexes, report.outcomes, strict=True):
            self.endings[index] = RecipientResult(outcome, channel, report.started, report.ended)
        if report.transcript:
            self.transcripts.append((channel, report.transcript))

    def pack(self, channel: ProviderChannel, indexes: Sequence[int]) -> OutgoingMail | Outcome:
        """The envelope and the mail; or an outcome when the content cannot be made into a legal mail."""
        claimed = self.claimed
        recipients = [
            Recipient(claimed.recipient_numbers[index], claimed.recipients[index])
            for index in indexes
        ]
        try:
            sender = self.pool.sender_of(channel, claimed.message)
            if channel.transport.limits.takes_parts:
                outgoing = OutgoingMail(claimed.message.id, claimed.claim, sender, recipients, b"")
                outgoing.message, outgoing.parts = claimed.message, claimed.content
                return outgoing
            if self.composed is None:
                assert claimed.content is not None
                self.composed = compose(claimed.message, claimed.content)
                if len(self.pool.channels) == 1:
                    claimed.content = (
                        None  # the composed bytes replace it: memory is bounded by bytes in flight
                    )
        except ValueError as error:
            return rejected(Reason.MALFORMED, text=str(error))
        except (
            Exception
        ) as error:  # a fault of ours, not the mail's: it keeps its attempts for the mended version
            log.error(
                "composing broke", message=claimed.message.id, attempt=claimed.claim, exc=error
            )
            return deferred(Reason.MALFORMED, text=type(error).__name__)
        return OutgoingMail(claimed.message.id, claimed.claim, sender, recipients, self.composed)

    async def hand_over(
        self, channel: ProviderChannel, outgoing: OutgoingMail, gate: SendGate
    ) -> SendResult:
        """Hand the mail to the provider's transport; cancelling leaves its end unknown, if it began."""
        started = asyncio.get_running_loop().time()
        try:
            return await channel.send(outgoing, self.lane)
        except NotStarted:
            raise
        except asyncio.CancelledError:
            self.stopped = True
            if not gate.begun:
                raise NotStarted("stopped before it began") from None
            # Past the deadline of a shutdown: nobody will see how it ends.
            text = "stopped before the answer came"
        except Exception as error:  # a fault of ours in the midst of sending: it may have left
            log.error(
                "sending broke", message=outgoing.message_id, attempt=outgoing.attempt, exc=error
            )
            text = type(error).__name__
        outcomes = [unknown(Reason.LOST, text)] * len(outgoing.recipients)
        return SendResult(outcomes, started, asyncio.get_running_loop().time())

    @property
    def lane(self) -> LaneId:
        return LaneId(self.claimed.tenant_id, self.claimed.lane)

    @property
    def begun(self) -> bool:
        """Whether something of it was handed to a provider."""
        return any(ending is not None and ending.channel is not None for ending in self.endings)

    # -- how it ended

    def end(self, indexes: Sequence[int], outcome: Outcome) -> None:
        """The same outcome for these recipients, without a provider."""
        now = asyncio.get_running_loop().time()
        for index in indexes:
            self.endings[index] = RecipientResult(outcome, None, now, now)

    def to_carry(self, indexes: Sequence[int]) -> list[int]:
        """Those whose mail is with nobody, and may go to another provider."""
        endings = ((index, self.endings[index]) for index in indexes)
        return [
            index for index, ending in endings if ending is None or goes_elsewhere(ending.outcome)
        ]

    def unended(self, indexes: Sequence[int]) -> list[int]:
        return [index for index in indexes if self.endings[index] is None]

    def policy(self, channel: ProviderChannel | None) -> RetryPolicy:
        return self.pool.class_of(self.claimed.class_name).retry or self.pool.policy_of(channel)
