"""What a twin does differently from a service on a good day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Trouble = Literal["credential", "suspended", "paused", "quota"]
Drop = Literal["before", "after"]


@dataclass(slots=True)
class Dials:
    """How a twin answers. All of it may be changed or replaced any time.

    Checks of the account feel the dials, too, but only sends use up `times`: a check in between
    changes no test.
    """

    status: int | None = None  # answer this instead
    body: Mapping[str, Any] | None = None  # with this; else what the service says with that status
    retry_after: float | None = None  # seconds, in the header Retry-After
    hang: bool = False  # never answer
    stored: bool = False  # with `hang`: the mail was accepted all the same
    latency: float = 0.0  # seconds before each answer
    drop: Drop | None = None  # close the connection before, or after, the mail is accepted
    times: int | None = None  # for how many sends; None: until changed
    trouble: Trouble | None = None  # the service's own answer for that
    share: float = 1.0  # of the sends that get it; the others go well (latency is for all)

    @property
    def fails(self) -> bool:
        """Whether anything but latency is dialled."""
        return bool(self.status or self.hang or self.drop or self.trouble)


@dataclass(slots=True)
class FeedbackDials:
    """What becomes of each accepted recipient by itself, where `webhook_url` is set. Shares are 0 to 1.

    A recipient bounces or is delivered; one who got the mail may open, click, complain or
    unsubscribe.
    """

    delivered: bool = True
    bounced: float = 0.0
    deferred: float = 0.0  # said before the end
    opened: float = 0.0
    clicked: float = 0.0
    complained: float = 0.0
    unsubscribed: float = 0.0
    delay: float = 0.0  # seconds from accepting a mail to its first event
    late: float = 0.0  # seconds more for bounces and complaints
    duplicate: float = 0.0  # said twice, the very same event
    shuffled: bool = False  # in any order
    forged: float = 0.0  # beside the true ones: events with a signature that is not ours
    seed: int = 0  # the same seed, the same lots
