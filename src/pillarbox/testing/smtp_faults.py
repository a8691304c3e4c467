"""What a scripted SMTP server offers, and everything that can be made to go wrong in it."""

from __future__ import annotations

import random
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pillarbox.testing.smtp_session import Session

Stage = Literal[
    "connect",
    "ehlo",
    "helo",
    "starttls",
    "auth",
    "mail",
    "rcpt",
    "data",
    "body",
    "rset",
    "noop",
    "quit",
]


@dataclass(frozen=True, slots=True)
class Say:
    """Give this reply. A plain string means the same; several lines are separated by a newline."""

    reply: str


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answer, until the client gives up or the server stops."""

    stored: bool = False  # at `body`: whether the mail was kept all the same


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection: before the reply unless told otherwise."""

    after_reply: bool = False
    reset: bool = False  # RST rather than FIN
    stored: bool = False  # at `body`: whether the mail was kept all the same
    after_bytes: int | None = None  # at `data`: say 354, read that much of the body, then close


@dataclass(frozen=True, slots=True)
class Raw:
    """Send exactly these bytes; a leading three-digit code decides what the server does next."""

    data: bytes
    stored: bool = False  # at `body`: whether the mail was kept although no code says so


@dataclass(frozen=True, slots=True)
class Trickle:
    """Give the reply (the usual one unless told) in one-byte writes."""

    reply: str | None = None


@dataclass(frozen=True, slots=True)
class Endless:
    """Begin a multi-line reply and go on with it until the client has had enough."""

    line: str = "250-and another thing"


@dataclass(frozen=True, slots=True)
class BrokenTls:
    """At `starttls`: say 220, answer the client's handshake with these bytes, then close."""

    data: bytes = b"this is not TLS\r\n"


NOT_SMTP = Raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
BINARY = Raw(bytes(range(256)) + b"\r\n")
LONG_LINE = Raw(b"250 " + b"x" * 1_000_000 + b"\r\n")
UNENDED = Raw(b"250-one\r\n250-two\r\n")  # a multi-line reply whose last line never comes
STARTTLS_INJECTION = Raw(b"220 2.0.0 go ahead\r\n250-injected.example\r\n250 AUTH PLAIN LOGIN\r\n")

Fault: TypeAlias = Say | Hang | Drop | Raw | Trickle | Endless | BrokenTls
Choice: TypeAlias = str | Fault | None  # None: what the server would have done anyway
Decider: TypeAlias = Callable[["Session", str], Choice | Awaitable[Choice]]
Dial: TypeAlias = Choice | Decider | Sequence[Choice | Decider] | Iterator[Choice | Decider]


@dataclass(slots=True)
class Extensions:
    """What the server offers while all is well."""

    pipelining: bool = True
    size: int | None = (
        26_214_400  # 25 MiB, what large providers take; 0: no limit; None: SIZE is not offered
    )
    eight_bit_mime: bool = True
    smtputf8: bool = True
    enhanced_status_codes: bool = True
    starttls: ssl.SSLContext | None = None
    users: Mapping[str, str] | None = None  # AUTH is offered when set
    any_login: bool = False  # AUTH is offered and every login succeeds
    mechanisms: Sequence[str] = ("PLAIN", "LOGIN")
    auth_needs_tls: bool = False  # AUTH is neither offered nor taken in clear
    auth_required: bool = False  # MAIL is refused with 530 until someone logged in
    helo_only: bool = False  # an old server: EHLO gets 502


@dataclass(slots=True)
class Faults:
    """The dials. Each speaks only where the server would otherwise have said yes.

    A dial is a reply ("451 4.7.1 try later"), a fault (Hang(), Drop(), …), a callable (session,
    argument) giving either (or None for the usual reply; it may be async), or a sequence or
    iterator of these, used up one at a time. A 421 always closes the connection.
    """

    connect: Dial = None
    ehlo: Dial = None
    helo: Dial = None
    starttls: Dial = None
    auth: Dial = None
    mail: Dial = None
    rcpt: Dial = None
    data: Dial = None
    body: Dial = None  # after the final dot
    rset: Dial = None
    noop: Dial = None
    quit: Dial = None
    recipients: dict[str, Dial] = field(default_factory=dict)  # by address; asked before `rcpt`
    delay: dict[Stage, float] = field(default_factory=dict)  # seconds before each reply at a stage
    data_without_recipients: bool = False  # say 354 though every recipient was refused
    mails_per_connection: int | None = None  # the next MAIL gets 421
    concurrent_connections: int | None = None  # one more gets 421 for a banner

    def take(self, stage: Stage, address: str | None = None) -> Choice | Decider:
        """What the dial of a stage says this time; a sequence becomes one shorter."""
        if address is not None and address in self.recipients:
            named, self.recipients[address] = _split(self.recipients[address])
            if named is not None:
                return named
        choice, rest = _split(getattr(self, stage))
        setattr(self, stage, rest)
        return choice


def _split(dial: Dial) -> tuple[Choice | Decider, Dial]:
    """What a dial says now, and the dial that remains."""
    if isinstance(dial, Iterator):
        return next(dial, None), dial
    if isinstance(dial, Sequence) and not isinstance(dial, str):
        if not dial:
            return None, None
        return dial[0], dial[1:]
    return dial, dial


def chaos(
    seed: int,
    *,
    defer: float = 0.1,
    reject: float = 0.05,
    drop_after_dot: float = 0.02,
    drop_before: float = 0.05,
) -> Faults:
    """Random faults at these probabilities; the same commands and seed give the same faults.

    Half of the mails dropped after the dot were stored: clients cannot know which.
    """
    dice = random.Random(seed)

    def mail(session: Session, argument: str) -> Choice:
        if dice.random() >= drop_before:
            return None
        return Drop(reset=dice.random() < 0.5)

    def rcpt(session: Session, argument: str) -> Choice:
        roll = dice.random()
        if roll < defer:
            return "451 4.7.1 chaos: try later"
        if roll < defer + reject:
            return "550 5.1.1 chaos: never"
        return None

    def body(session: Session, argument: str) -> Choice:
        if dice.random() >= drop_after_dot:
            return None
        return Drop(stored=dice.random() < 0.5)

    return Faults(mail=mail, rcpt=rcpt, body=body)
