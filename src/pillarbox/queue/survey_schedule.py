"""When a worker surveys lanes: before every claim while there are few, else now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pillarbox.model.fairness import ReadyLane

# Up to so many lanes, a survey costs a small part of a claim (a quarter of a millisecond), and
# comes before each one. Then the first claim after a commit takes the new mail; what goes before it
# was claimed by then: a batch at most.
FEW_LANES = 32
# With more lanes, while busy, look for newly filled ones this often; and this often after a hint,
# which is as often as enqueuers send them. One tenant's mails are a small part of what is claimed
# meanwhile.
SURVEY_INTERVAL = 0.05
HINTED_INTERVAL = 0.01
# Enqueuers send at most one hint in ten milliseconds: after a hint, look once more for mails that
# were committed just behind it.
TRAILING_LOOK = 0.012
# A survey of very many lanes takes long: it gets this share of the time at most. A short one may
# have waited for other statements, so its time counts up to LANE_COST seconds per lane.
SURVEY_SHARE = 0.1
LANE_COST = 30e-6
NEVER, ALWAYS = float("inf"), float("-inf")


class SurveySchedule:
    """Decides when the next survey is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = ALWAYS
        self._next_hinted = ALWAYS
        self._few = True  # whether the last survey saw few lanes
        self._hinted = False  # since the last survey
        self._trailing_at = NEVER  # when to look for mails committed just behind a hint

    def hint(self) -> None:
        """A mail may have come in."""
        self._hinted = True
        self._trailing_at = self._clock() + TRAILING_LOOK

    def is_due(self, known: Iterable[ReadyLane]) -> bool:
        """Whether to survey now; `known` are the lanes of the last survey."""
        if self._few and any(lane.fresh or lane.due for lane in known):
            return True
        now = self._clock()
        if self._hinted or now >= self._trailing_at:
            return now >= self._next_hinted
        return now >= self._next

    def surveyed(self, lanes: int, asked_at: float) -> None:
        """Note a survey of so many lanes that was started at `asked_at`."""
        now = self._clock()
        self._few = lanes <= FEW_LANES
        self._hinted = False
        if asked_at >= self._trailing_at:
            self._trailing_at = NEVER
        seconds = min(now - asked_at, (1 + lanes) * LANE_COST)
        pause = seconds / SURVEY_SHARE
        self._next = now + max(SURVEY_INTERVAL, pause)
        self._next_hinted = now + max(HINTED_INTERVAL, pause)

    def reset(self) -> None:
        """Survey at the next opportunity."""
        self._next = ALWAYS
        self._next_hinted = ALWAYS
