"""An SMTP session as a state machine: bytes in, actions out, no I/O, no clock.

    machine = Machine("mail.example", SessionLimits(), policy)
    for action in machine.receive(data): ...

Any chunking gives the same actions. While it waits for a result (of Submit, Authenticate or
StartTls) it only buffers input; `submitted`, `authenticated`, `failed` and `secured` resume it. The
policy decides what the client may send.
"""

from __future__ import annotations

from collections.abc import Callable

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.actions import Action, Close, StartTls, Submit, SubmittedMail
from pillarbox.accept.smtp.commands import COMMANDS, unknown
from pillarbox.accept.smtp.data_reader import DataReader
from pillarbox.accept.smtp.rules import (
    DISCARD_FACTOR,
    MAX_AUTH_LINE,
    MAX_HELD,
    MAX_SKIPPED,
    MemoryBudget,
    SessionLimits,
    SessionPolicy,
)
from pillarbox.accept.smtp.sasl import SaslExchange


class Machine:
    """A session. `starttls`: TLS is offered; `secure`: it is in use.

    Without a policy the client must log in, over TLS; with one it may. `plain_login` allows logins
    without TLS, for loopback listeners of development.
    """

    def __init__(
        self,
        name: str,
        limits: SessionLimits,
        policy: SessionPolicy | None = None,
        *,
        starttls: bool = False,
        secure: bool = False,
        plain_login: bool = False,
        budget: MemoryBudget | None = None,
        on_refusal: Callable[[bytes, bool], None] = lambda reply, whole_mail: None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.policy = self.anonymous_policy = policy
        self.starttls = starttls
        self.secure = secure
        self.plain_login = plain_login
        self.logged_in = False
        self.greeted_as: str | None = None
        self.extended = False
        self.sender: str | None = None
        self.recipients: list[str] = []
        self.utf8 = False
        self.messages = 0
        self._budget = budget or MemoryBudget(2**63)
        self._on_refusal = on_refusal  # called with the reply, and whether it refuses a whole mail
        self._exchange: SaslExchange | None = None
        self._rest = b""
        self._body: DataReader | None = None
        self._skipped = 0
        self._errors = self._commands = 0
        self._leaving = False
        self._said: list[bytes] = []
        self._actions: list[Action] = []
        self._step: Step = Machine._command

    # --- what the shell calls

    @property
    def waiting(self) -> bool:
        """Whether a result is awaited."""
        return self._step is Machine._hold

    @property
    def reading_mail(self) -> bool:
        return self._step is Machine._read_body

    @property
    def closed(self) -> bool:
        return self._step is Machine._ignore

    def greet(self) -> list[Action]:
        """The first thing to say; with implicit TLS, once that is there."""
        return [replies.greeting(self.name)]

    def receive(self, data: bytes) -> list[Action]:
        """Take a chunk of any size."""
        if self._rest:
            data = self._rest + data
        position, size = 0, len(data)
        while position < size:
            after = self._step(self, data, position)
            if after < 0:
                break
            position = after
        self._rest = data[position:]
        return self._take_actions()

    def submitted(self, message_id: object) -> list[Action]:
        """The mail is stored."""
        if not self.waiting:
            return []
        self.messages += 1
        self._errors = self._commands = 0
        self.say(replies.accepted(message_id))
        return self._go_on()

    def authenticated(self, policy: SessionPolicy) -> list[Action]:
        if not self.waiting:
            return []
        self.policy = policy
        self.logged_in = True
        self.say(replies.LOGGED_IN)
        return self._go_on()

    def failed(self, reply: bytes) -> list[Action]:
        """The mail was not stored, or the login was not right. A 421 also ends the session."""
        if not self.waiting:
            return []
        if reply.startswith(b"421"):
            self.close(reply)
        elif self.sender is not None:
            self._refuse_mail(reply)
        else:
            self.refuse(reply)
        return self._go_on()

    def secured(self) -> None:
        """TLS is there: what was said before is forgotten (RFC 3207 4.2)."""
        self.secure = True
        self.policy = self.anonymous_policy
        self.logged_in = False
        self.greeted_as = None
        self._rest = b""
        self._step = Machine._command

    def leave(self, reply: bytes) -> list[Action]:
        """End the session with this reply: at once, or when the result that is awaited is there."""
        if self.waiting:
            self._leaving = True
        elif self._step is Machine._upgrade:
            self.close()
        elif not self.closed:
            self.close(reply)
        return self._take_actions()

    def forget(self) -> None:
        """The connection is gone."""
        self.let_go()
        self._rest = b""
        self._step = Machine._ignore

    # --- what commands call

    @property
    def takes_passwords(self) -> bool:
        """Whether a client may log in now."""
        return (self.secure or self.plain_login) and not self.logged_in

    @property
    def most_octets(self) -> int:
        """How big a mail may be."""
        if self.policy is None:
            return self.limits.message
        return min(self.limits.message, self.policy.max_message)

    def say(self, reply: bytes) -> None:
        self._said.append(reply)

    def refuse(self, reply: bytes) -> None:
        """Say no; too many of these end the session."""
        self._said.append(reply)
        self._on_refusal(reply, False)
        self._count_error()

    def _count_error(self) -> None:
        self._errors += 1
        if self._errors >= self.limits.errors:
            self.close(replies.TOO_MANY_ERRORS)

    def close(self, reply: bytes | None = None) -> None:
        """End the session, with a last word."""
        if self.closed:
            return
        if reply is not None:
            self._said.append(reply)
            if reply[:1] != b"2":
                self._on_refusal(reply, False)
        self.let_go()
        self._do(Close())
        self._step = Machine._ignore

    def let_go(self) -> None:
        """Forget the mail under way."""
        self.sender = None
        self.recipients = []
        if self._body is not None:
            self._body.release()
            self._body = None

    def begin_body(self) -> None:
        self._body = DataReader(self.most_octets, self._budget)
        self._step = Machine._read_body

    def wait_for_tls(self, action: StartTls) -> None:
        self._do(action)
        self._step = Machine._upgrade

    def begin_exchange(self, exchange: SaslExchange, initial: bytes) -> None:
        """Begin to log in; the client may have answered the first question already."""
        self._exchange = exchange
        if initial:
            self._answer(initial)
        else:
            self.say(exchange.prompt)
            self._step = Machine._auth_line

    # --- saying and doing

    def _do(self, action: Action) -> None:
        if self._said:
            self._actions.append(b"".join(self._said))
            self._said = []
        self._actions.append(action)

    def _take_actions(self) -> list[Action]:
        actions, said = self._actions, self._said
        if said:
            actions.append(said[0] if len(said) == 1 else b"".join(said))
            self._said = []
        if actions:
            self._actions = []
        return actions

    def _go_on(self) -> list[Action]:
        """After a result: with what came meanwhile."""
        if not self.closed:
            self.let_go()
            self._step = Machine._command
            if self._leaving:
                self.close(replies.SHUTTING_DOWN)
        return self.receive(b"")

    # --- steps: each reads from a position and returns the next position, or -1 to wait for more

    def _hold(self, data: bytes, start: int) -> int:
        """A result is awaited."""
        if len(data) - start > MAX_HELD:
            self.close()
        return -1

    def _ignore(self, data: bytes, start: int) -> int:
        """The session is over."""
        return len(data)

    def _upgrade(self, data: bytes, start: int) -> int:
        """Plain text after STARTTLS is an injection: it would be read as if it came over TLS."""
        self.close()
        return len(data)

    def _command(self, data: bytes, start: int) -> int:
        end = data.find(b"\n", start)
        if end < 0 or end - start > self.limits.line:
            length = (len(data) if end < 0 else end) - start
            if length > (
                MAX_AUTH_LINE if data[start : start + 5].upper() == b"AUTH " else self.limits.line
            ):
                return self._too_long(start)
            if end < 0:
                return -1
        if (
            end == start or data.find(b"\r", start, end) != end - 1
        ):  # no CR before the LF, or one that stands alone
            self.refuse(replies.BARE_LF)
            return end + 1
        self._commands += 1
        if self._commands > self.limits.commands:
            self.close(replies.TOO_MANY_COMMANDS)
            return end + 1
        verb, _, argument = data[start : end - 1].partition(b" ")
        COMMANDS.get(verb.upper(), unknown)(self, argument)
        return end + 1

    def _auth_line(self, data: bytes, start: int) -> int:
        """A line of an AUTH exchange."""
        end = data.find(b"\n", start)
        if (len(data) if end < 0 else end) - start > MAX_AUTH_LINE:
            return self._too_long(start)
        if end < 0:
            return -1
        self._step = Machine._command
        if end == start or data.find(b"\r", start, end) != end - 1:
            self.refuse(replies.BARE_LF)
        elif data[start : end - 1] == b"*":
            self.refuse(replies.AUTH_CANCELLED)
        else:
            self._answer(data[start : end - 1])
        return end + 1

    def _answer(self, line: bytes) -> None:
        assert self._exchange is not None
        try:
            answer = self._exchange.answer(line)
        except ValueError:
            self.refuse(replies.BAD_BASE64)
            return
        if isinstance(answer, bytes):
            self.say(answer)
            self._step = Machine._auth_line
        else:
            self._do(answer)
            self._step = Machine._hold

    def _too_long(self, start: int) -> int:
        self._skipped = 0
        self._step = Machine._skip_line
        self.refuse(replies.TOO_LONG)
        return start

    def _skip_line(self, data: bytes, start: int) -> int:
        end = data.find(b"\n", start)
        self._skipped += (len(data) if end < 0 else end) - start
        if self._skipped > MAX_SKIPPED:
            self.close()
        elif end >= 0:
            self._step = Machine._command
            return end + 1
        return len(data)

    def _read_body(self, data: bytes, start: int) -> int:
        body = self._body
        assert body is not None
        after = body.feed(data, start)
        octets = body.octets if after >= 0 else body.least_octets
        if octets > self.limits.message * DISCARD_FACTOR:
            self._refuse_mail(body.refusal or replies.TOO_BIG)
            self.close()
        elif after >= 0:
            self._finish(body)
        return after if after >= 0 else len(data)

    def _finish(self, body: DataReader) -> None:
        """The mail is there: let it be stored, or refuse it."""
        refusal = body.judge(self.limits)
        if refusal is None:
            self._do(Submit(self._submitted_mail(body.content)))
            self._step = Machine._hold
        else:
            self._step = Machine._command
            self.let_go()
            self._refuse_mail(refusal)

    def _refuse_mail(self, reply: bytes) -> None:
        self._on_refusal(reply, True)
        self._said.append(reply)
        if reply[:1] == b"5":  # what may go well later is no error of the client
            self._count_error()

    def _submitted_mail(self, content: bytes) -> SubmittedMail:
        assert self.sender is not None
        protocol = "SMTP"
        if self.utf8:
            protocol = "UTF8SMTP"
        elif self.extended:
            protocol = "ESMTP"
        if self.extended and self.secure:
            protocol += "S"
        if self.extended and self.logged_in:
            protocol += "A"
        return SubmittedMail(
            self.sender, self.recipients, content, protocol, self.greeted_as or "unknown"
        )


Step = Callable[[Machine, bytes, int], int]
