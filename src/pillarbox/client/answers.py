"""What the server answers, as values of Python. A field that this version does not know is passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

# Names that are words of Python, or clearer in it.
_NAMES = {"sender": "from", "class_": "class"}
Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class SentDelivery:
    """One recipient of an accepted mail."""

    id: str
    recipient: str
    role: str  # to, cc or bcc
    state: str  # queued, or pending until its send_at


@dataclass(frozen=True, slots=True)
class Sent:
    """A mail that was accepted: it is committed, and will be delivered or visibly fail.

    `repeated`: it had been accepted before under the same idempotency key, by another call or by a try of this one
    whose answer was lost.
    """

    id: UUID
    deliveries: Sequence[SentDelivery]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class DeliverySummary:
    """One recipient of a message, in short."""

    id: str
    recipient: str
    role: str
    state: str
    reason: str | None
    provider: str | None
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A message in a listing."""

    id: UUID
    created_at: datetime
    sender: str
    subject: str
    class_: str
    kind: str | None
    priority: str
    tags: Sequence[str]
    deliveries: Sequence[DeliverySummary]


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages of a listing, and where the next begin."""

    messages: Sequence[MessageSummary]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One try at a delivery, in short. Texts are redacted."""

    number: int
    started_at: datetime
    ended_at: datetime
    provider: str | None
    verdict: str
    reason: str | None
    code: int | None
    reply: str | None


@dataclass(frozen=True, slots=True)
class Attempt(AttemptSummary):
    """One try at a delivery. Texts are redacted."""

    provider_message_id: str | None
    conversation: str | None


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry schedule that a delivery follows."""

    policy: str | None
    max_attempts: int | None
    then_after_seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class Transition:
    """A state that a delivery entered."""

    at: datetime
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One recipient of a message, and what became of it."""

    id: str
    recipient: str
    role: str
    state: str
    reason: str | None
    attempts_made: int
    next_attempt_at: datetime | None
    settled_at: datetime | None
    provider: str | None
    retry: Retry
    attempts: Sequence[Attempt]
    waits_for: str | None = None
    expected_at: datetime | None = None
    history: Sequence[
        Transition
    ] = ()  # every state since the message was accepted; servers before 0.2 do not tell


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a message, or to one of its deliveries."""

    at: datetime
    delivery: str | None
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A message's whole story, as far as retention left it."""

    id: UUID
    created_at: datetime
    sender: str
    to: Sequence[str]
    cc: Sequence[str]
    reply_to: Sequence[str]
    subject: str
    headers: Mapping[str, Any]
    class_: str
    secret: bool
    kind: str | None
    priority: str
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    size: int
    send_at: datetime | None
    expires_at: datetime | None
    max_attempts: int | None
    idempotency_key: str | None
    content: Mapping[str, int] | None
    deliveries: Sequence[Delivery]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class ChangedDelivery:
    """A delivery after a change that was asked for, and whether it is one of those changed."""

    id: str
    recipient: str
    role: str
    state: str
    changed: bool
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What came of a change: at least one delivery was changed."""

    id: UUID
    deliveries: Sequence[ChangedDelivery]


def read(kind: type[Shown], given: Any) -> Shown:
    """An object of JSON as one of the classes above; KeyError, TypeError or ValueError if it is none."""
    readers = _readers(kind)  # type: ignore[arg-type]  # classes can be hashed
    return kind(
        **{name: read_field(given[key]) for name, key, read_field in readers if key in given}
    )


@cache
def _readers(kind: Any) -> list[tuple[str, str, Callable[[Any], Any]]]:
    hints = get_type_hints(kind)
    return [
        (one.name, _NAMES.get(one.name, one.name), _reader(hints[one.name])) for one in fields(kind)
    ]


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a value of this type is read."""
    arguments = get_args(hint)
    if isinstance(hint, UnionType):
        (inner,) = (_reader(one) for one in arguments if one is not NoneType)
        return lambda value: None if value is None else inner(value)
    if get_origin(hint) is Sequence:
        inner = _reader(arguments[0])
        return lambda values: tuple(inner(value) for value in values)
    if is_dataclass(hint):
        return lambda value: read(hint, value)  # type: ignore[arg-type]  # a class, not an instance
    return _PLAIN.get(hint, _same)


def _same(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Callable[[Any], Any]] = {UUID: UUID, datetime: datetime.fromisoformat}
