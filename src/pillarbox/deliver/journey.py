"""The way of a claimed message to its providers: refuse early, route, pack, send, go elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pillarbox.deliver.line import Line
from pillarbox.deliver.mime import compose
from pillarbox.deliver.roster import Roster
from pillarbox.deliver.transports.base import OutgoingMail, Recipient, SendResult
from pillarbox.errors import NotStarted, StoreError
from pillarbox.model.access import domain_of
from pillarbox.model.delivery import LANES
from pillarbox.model.fairness import LaneId
from pillarbox.model.outcome import Outcome, Reason, deferred, rejected, unknown
from pillarbox.model.retry import RetryPolicy
from pillarbox.model.routing import Facts
from pillarbox.queue.base import ClaimedMessage
from pillarbox.route.fault import cannot_take, goes_elsewhere
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
class Ending:
    """How it ended for one recipient, and through which provider, if any."""

    outcome: Outcome
    line: Line | None
    started: float
    ended: float


@dataclass(slots=True)
class Permit:
    """A mail's question whether it may begin; remembers that it did."""

    may_begin: Callable[[], bool]
    begun: bool = False

    def __call__(self) -> bool:
        self.begun = self.may_begin()
        return self.begun


@dataclass(slots=True)
class Journey:
    """A message on its way: how it ended for each recipient so far, and what was said."""

    claimed: ClaimedMessage
    roster: Roster
    may_begin: Callable[[], bool]
    endings: list[Ending | None] = field(init=False)
    earlier: dict[int, list[Ending]] = field(
        default_factory=dict
    )  # of those that failed over, before the last
    said: list[tuple[Line, str]] = field(default_factory=list)
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
        for positions, providers in groups:
            try:
                await self.carry(positions, providers)
            except (MustWait, NotStarted) as error:
                left.append((positions, error))
        if left and not any(
            ending and ending.line and not goes_elsewhere(ending.outcome) for ending in self.endings
        ):
            raise next((wait for _, wait in left if isinstance(wait, MustWait)), left[0][1])
        for positions, wait in left:
            seconds = wait.seconds if isinstance(wait, MustWait) else None
            self.end(self.unended(positions), deferred(Reason.NO_PROVIDER, retry_after=seconds))

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
        positions: Sequence[int] = range(len(claimed.recipient_numbers))
        if claimed.suppressed:
            barred = [
                place
                for place in positions
                if claimed.recipient_numbers[place] in claimed.suppressed
            ]
            self.end(barred, rejected(Reason.SUPPRESSED))
            positions = [place for place in positions if place not in barred]
        simple = self.roster.router.simple
        if simple is not None and not any(claimed.via):
            if positions:
                yield positions, simple.providers
            return
        ways: dict[tuple[int, ...], list[int]] = {}
        for place in positions:
            ways.setdefault(self.way(place), []).append(place)
        for way, places in ways.items():
            yield places, way

    def way(self, place: int) -> tuple[int, ...]:
        """The providers for one recipient: a person's choice, unless it was removed since, or the rules'."""
        claimed = self.claimed
        if (
            claimed.via
            and (chosen := claimed.via[place]) is not None
            and chosen in self.roster.known
        ):
            return (chosen,)
        return tuple(
            self.roster.router.choose(self.facts(place), chance_of(claimed.message.id)).providers
        )

    def facts(self, place: int) -> Facts:
        claimed = self.claimed
        return Facts(
            claimed.tenant_id,
            domain_of(claimed.message.sender),
            domain_of(claimed.recipients[place]),
            LANES[claimed.lane],
            claimed.class_name,
            claimed.kind,
            claimed.tags,
            claimed.size,
        )

    async def carry(self, positions: Sequence[int], providers: Sequence[int]) -> None:
        """Try the providers in order, until every recipient's mail is with one or cannot be."""
        left = positions
        waits: list[tuple[float, Reason]] = []
        cannot: Outcome | None = None
        before: Line | None = None
        for line in filter(None, map(self.roster.line, providers)):
            if (refusal := self.cannot_carry(line)) is not None:
                cannot = cannot or refusal
                continue
            if (wait := await self.must_wait(line, len(left))) is not None:
                waits.append(wait)
                continue
            if before is not None:
                self.went_elsewhere(before, line, left)
            try:
                left = await self.send(line, left)
            except NotStarted:
                left = self.to_carry(left)  # of several calls the first may have been made
                if (unusable := line.unusable_for()) is None:  # the claim's end, not the provider's
                    if before is None:
                        raise
                    return  # what the provider before said stands
                waits.append((unusable, Reason.NO_PROVIDER))
                continue
            if not left:
                return
            before = line
        if waits:  # whom one could not carry waits for one that perhaps can
            for place in left:
                if (ending := self.endings[place]) is not None and cannot_take(ending.outcome):
                    self.endings[place] = None
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
        elif not self.roster.lines:
            raise NotStarted("no provider is enabled")
        else:  # its route names only providers that are switched off
            raise MustWait(LONGEST_ASIDE, Reason.NO_PROVIDER)

    def cannot_carry(self, line: Line) -> Outcome | None:
        """Why a provider can never carry this mail, if so."""
        limits, content = line.transport.limits, self.claimed.content
        if limits.takes_parts and content is not None and content.raw is not None:
            return rejected(
                Reason.UNSUPPORTED, text=f"{line.provider.kind} takes no finished mails"
            )
        if limits.max_bytes is not None and self.claimed.size > limits.max_bytes:
            return rejected(
                Reason.TOO_BIG,
                text=f"over the {limits.max_bytes:,} octets that {line.provider.kind} takes",
            )
        return None

    async def must_wait(self, line: Line, recipients: int) -> tuple[float, Reason] | None:
        """How long a provider cannot be used, and why. MustWait if that is so short that the whole lane waits."""
        if self.stopped:
            raise NotStarted("stopped before it began")
        if (wait := line.unusable_for()) is not None:
            if SHORT_WAIT < line.paused_for() <= LONGEST_PAUSE:
                raise MustWait(wait, Reason.RATE_LIMITED)
            aside = min(max(SHORTEST_ASIDE, self.claimed.age / 4), LONGEST_ASIDE)
            return max(wait, aside) if self.roster.usable else wait, Reason.NO_PROVIDER
        if not self.roster.has_room(line) and not self.begun:
            # The roster bars the lane while the provider has enough. A time would let other lanes
            # overtake it.
            self.roster.feed(self.lane, line)
            raise MustWait(0.0, Reason.RATE_LIMITED)
        if line.limited:
            wait, why = await self.allowed(line, recipients)
            if wait:
                reason = Reason.BUDGET if why == "budget_per_month" else Reason.RATE_LIMITED
                if wait < SHORT_WAIT:
                    raise MustWait(wait, reason)
                return min(wait, LONGEST_WAIT), reason
        return None

    async def allowed(self, line: Line, recipients: int) -> tuple[float, str | None]:
        """Ask for the right to send. Others of the recipients may have the mail: no way out but those of a journey."""
        try:
            return await line.allowed(self.claimed.lane, recipients)
        except asyncio.CancelledError:
            self.stopped = True
            raise NotStarted("stopped before it began") from None
        except StoreError as error:
            log.warning(
                "cannot ask for the right to send while the store is away", error=str(error)
            )
            raise MustWait(STORE_WAIT, Reason.RATE_LIMITED) from None

    def went_elsewhere(self, before: Line, line: Line, positions: Sequence[int]) -> None:
        """Tell who failed over to whom."""
        ending = self.endings[positions[0]]
        assert ending is not None
        outcome = ending.outcome
        data = {
            "from": before.provider.name,
            "to": line.provider.name,
            "reason": outcome.reason,
            "code": outcome.code,
        }
        self.events.append(("failed_over", json.dumps(data)))
        for place in positions:
            if (tried := self.endings[place]) is not None:
                self.earlier.setdefault(place, []).append(tried)
        self.roster.failed_over(before, line, outcome.reason or "")

    # -- pack and send

    async def send(self, line: Line, positions: Sequence[int]) -> Sequence[int]:
        """Send to these recipients through one provider; returns those that another should have at once."""
        self.roster.feed(self.lane, line)
        most = line.transport.limits.max_recipients or len(positions)
        if len(positions) <= most:
            await self.send_some(line, positions)
        else:
            chunks = [positions[start : start + most] for start in range(0, len(positions), most)]
            for chunk in chunks:
                await self.send_some(line, chunk)
        return self.to_carry(positions)

    async def send_some(self, line: Line, positions: Sequence[int]) -> None:
        if self.stopped:
            raise NotStarted("stopped before it began")
        outgoing = self.pack(line, positions)
        if isinstance(outgoing, Outcome):
            self.end(positions, outgoing)
            return
        permit = Permit(self.may_begin)
        outgoing.may_begin = permit
        report = await self.hand_over(line, outgoing, permit)
        for place, outcome in zip(positions, report.outcomes, strict=True):
            self.endings[place] = Ending(outcome, line, report.started, report.ended)
        if report.conversation:
            self.said.append((line, report.conversation))

    def pack(self, line: Line, positions: Sequence[int]) -> OutgoingMail | Outcome:
        """The envelope and the mail; or an outcome when the content cannot be made into a legal mail."""
        claimed = self.claimed
        recipients = [
            Recipient(claimed.recipient_numbers[place], claimed.recipients[place])
            for place in positions
        ]
        try:
            sender = self.roster.sender_of(line, claimed.message)
            if line.transport.limits.takes_parts:
                outgoing = OutgoingMail(claimed.message.id, claimed.claim, sender, recipients, b"")
                outgoing.message, outgoing.parts = claimed.message, claimed.content
                return outgoing
            if self.composed is None:
                assert claimed.content is not None
                self.composed = compose(claimed.message, claimed.content)
                if len(self.roster.lines) == 1:
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

    async def hand_over(self, line: Line, outgoing: OutgoingMail, permit: Permit) -> SendResult:
        """Hand the mail to the provider's transport; cancelling leaves its end unknown, if it began."""
        started = asyncio.get_running_loop().time()
        try:
            return await line.send(outgoing, self.lane)
        except NotStarted:
            raise
        except asyncio.CancelledError:
            self.stopped = True
            if not permit.begun:
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
        return any(ending is not None and ending.line is not None for ending in self.endings)

    # -- how it ended

    def end(self, positions: Sequence[int], outcome: Outcome) -> None:
        """The same outcome for these recipients, without a provider."""
        now = asyncio.get_running_loop().time()
        for place in positions:
            self.endings[place] = Ending(outcome, None, now, now)

    def to_carry(self, positions: Sequence[int]) -> list[int]:
        """Those whose mail is with nobody, and may go to another provider."""
        endings = ((place, self.endings[place]) for place in positions)
        return [
            place for place, ending in endings if ending is None or goes_elsewhere(ending.outcome)
        ]

    def unended(self, positions: Sequence[int]) -> list[int]:
        return [place for place in positions if self.endings[place] is None]

    def policy(self, line: Line | None) -> RetryPolicy:
        return self.roster.class_of(self.claimed.class_name).retry or self.roster.policy_of(line)
