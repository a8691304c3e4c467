"""How many mails a provider gets at the same time: fewer when it asks for less, slowly more when all goes well."""

from __future__ import annotations

# Halving and adding one per round is what TCP does: it finds what the other side takes, and shares
# it.
LESS = 0.5
# Answers to what was sent before we slowed down must not slow us down again: not for so long, nor
# during a pause.
PAUSE = 1.0
# A provider that asks for a pause without saying how long gets this much, doubled each time it asks
# again.
FIRST_HOLD = 1.0
LONGEST_HOLD = 60.0
# A provider that asks for more is asked again after this: who asks for a day may mean an hour.
LONGEST_ASKED = 3600.0


class AimdLimiter:
    """Additive increase, multiplicative decrease between one and `most`; and pauses that the provider asks for."""

    def __init__(self, most: int) -> None:
        self.most = max(1, most)
        self.limit = float(self.most)
        self.held_until = 0.0
        self._slowed_at = float("-inf")
        self._hold = FIRST_HOLD

    def went_well(self) -> None:
        """A mail was taken."""
        if self.limit < self.most:
            self.limit = min(self.most, self.limit + 1.0 / self.limit)
        else:
            self._hold = FIRST_HOLD

    def slow_down(self, now: float, retry_after: float | None) -> bool:
        """The provider said: too many. Says whether this is news."""
        late = now < max(self.held_until, self._slowed_at + PAUSE)
        if retry_after is not None:
            self.held_until = max(self.held_until, now + min(retry_after, LONGEST_ASKED))
        if late:
            return False
        self._slowed_at = now
        self.limit = max(1.0, self.limit * LESS)
        if retry_after is None:
            self.held_until = max(self.held_until, now + self._hold)
            self._hold = min(self._hold * 2, LONGEST_HOLD)
        return True

    def places(self, now: float, ahead: int = 1) -> int:
        """How many mails may be out: none during a pause, `ahead` times the most while nothing asks for less."""
        if now < self.held_until:
            return 0
        return int(self.limit) if self.limit < self.most else self.most * ahead
