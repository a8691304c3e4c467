"""The SMTP transaction of one mail: commands, replies, result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pillarbox.deliver.transports.base import OutgoingMail, SendResult
from pillarbox.deliver.transports.smtp_replies import SmtpStage, acceptance, printable, refusal
from pillarbox.errors import NotStarted
from pillarbox.model.outcome import Outcome, Reason, deferred

if TYPE_CHECKING:
    from pillarbox.deliver.transports.smtp_envelope import SmtpEnvelope

# Characters. A mail with a thousand recipients has a long one: its beginning and end are kept.
MAX_TRANSCRIPT = 20_000

_INTERMEDIATE = ord("3")  # replies above it refuse


class SmtpTransaction:
    """A mail and the future of its result. Replies stay raw until a transcript needs their text."""

    __slots__ = (
        "body_at",
        "commands",
        "future",
        "mail_refused",
        "outgoing",
        "queued",
        "refused",
        "replies",
        "requeued",
        "settled",
        "started",
    )

    def __init__(self, outgoing: OutgoingMail, future: asyncio.Future[Any], now: float) -> None:
        self.outgoing = outgoing
        self.future = future
        self.queued = now
        self.requeued = False
        self._forget(now)

    def _forget(self, now: float) -> None:
        self.started = now
        self.commands: list[bytes] = []
        self.settled: dict[int, Outcome] = {}
        self.replies: list[tuple[float, bytes]] = []
        self.mail_refused = False
        self.refused = 0
        self.body_at = 0.0

    def begin(self, envelope: SmtpEnvelope, now: float) -> None:
        self.started = now
        self.commands, self.settled = envelope

    def again(self) -> None:
        """Start again: the mail waits for the second and last time."""
        self.requeued = True
        self._forget(self.queued)

    @property
    def nobody_left(self) -> bool:
        """Whether no recipient was accepted (the commands are MAIL, one RCPT each, DATA)."""
        return self.mail_refused or self.refused == len(self.commands) - 2

    def note(self, reply: bytes, now: float) -> None:
        """Record the reply to the next command of the envelope."""
        replies = self.replies
        if reply[0] > _INTERMEDIATE and len(replies) < len(self.commands) - 1:
            if replies:
                self.refused += 1
            else:
                self.mail_refused = True
        replies.append((now, reply))

    def may_begin(self, when: str) -> bool:
        """Ask whether the mail may still be sent; if not, it is given back."""
        if self.future.done() and not self.future.cancelled():  # given back
            return False
        try:
            allowed = self.outgoing.may_begin()
        except Exception as error:  # the caller's fault; the connection must survive
            self.give_back(f"may_begin failed {when}: {error!r}")
            return False
        if not allowed:
            self.give_back(f"the right to send ended {when}")
        return allowed

    def give_back(self, why: str) -> None:
        if not self.future.done():
            self.future.set_result(NotStarted(why))

    def accept(self, reply: bytes, now: float, link: str) -> None:
        """Settle after a positive reply to the final dot."""
        outcome = acceptance(reply)
        if self.refused or self.settled:
            self.replies.append((now, reply))
            self.end(outcome, now, link)
        elif not self.future.done():
            self.future.set_result(
                SendResult([outcome] * len(self.outgoing.recipients), self.started, now)
            )

    def end(self, rest: Outcome, now: float, link: str, remark: str = "") -> None:
        """Settle: refused recipients keep their refusal, all others get `rest`."""
        if not self.future.done():
            report = SendResult(
                self._outcomes(rest), self.started, now, self._transcript(link, remark, now)
            )
            self.future.set_result(report)

    def _outcomes(self, rest: Outcome) -> list[Outcome]:
        positions = range(len(self.outgoing.recipients))
        if self.mail_refused:
            rest = refusal(self.replies[0][1], SmtpStage.MAIL)
            return [self.settled.get(position, rest) for position in positions]
        answers = iter(self.replies[1 : len(self.commands) - 1])
        return [
            self.settled.get(position) or _answered(next(answers, None), rest)
            for position in positions
        ]

    def _transcript(self, link: str, remark: str, now: float) -> str:
        lines = [link] if link else []
        lines += [self._line(self.started, "→", command) for command in self.commands]
        envelope = len(self.commands)
        lines += [self._line(at, "←", reply) for at, reply in self.replies[:envelope]]
        if self.body_at:
            lines.append(self._line(self.body_at, "→", f"({len(self.outgoing.content):,} bytes)"))
        lines += [self._line(at, "←", reply) for at, reply in self.replies[envelope:]]
        if remark:
            lines.append(self._line(now, "!", remark))
        return _shortened("\n".join(lines))

    def _line(self, at: float, arrow: str, said: bytes | str) -> str:
        words = said if isinstance(said, str) else said.decode("utf-8", "replace")
        offset = f"{(at - self.started) * 1000:+6.0f} ms {arrow} "
        return "\n".join(offset + printable(line) for line in words.splitlines())


def _answered(reply: tuple[float, bytes] | None, rest: Outcome) -> Outcome:
    if reply is None or reply[1][0] <= _INTERMEDIATE:
        return rest
    return refusal(reply[1], SmtpStage.RCPT)


def _shortened(text: str) -> str:
    if len(text) <= MAX_TRANSCRIPT:
        return text
    half = MAX_TRANSCRIPT // 2
    return f"{text[:half]}\n…\n{text[-half:]}"


def not_delivered(
    transaction: SmtpTransaction, reason: Reason, text: str, now: float, link: str = ""
) -> None:
    """Defer a mail whose final dot was not written: the server does not have it."""
    transaction.end(deferred(reason, None, text), now, link, text)
