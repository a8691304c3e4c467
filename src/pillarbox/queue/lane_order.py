"""The claimed mails of one worker on which the order of their lanes depends."""

from __future__ import annotations

from collections import Counter

from pillarbox.model.fairness import LaneId


class LaneOrder:
    """Says which lanes may be claimed from, what may begin, and which lanes may change hands.

    A mail counts until it begins; in a strict lane, until it ends.
    """

    def __init__(self) -> None:
        self._unbegun: Counter[LaneId] = Counter()
        self._returning: set[LaneId] = set()  # lanes with an unbegun mail that is being released
        self._strict: set[LaneId] = set()  # strict lanes with a mail in flight

    def closed(self) -> set[LaneId]:
        """Lanes not to claim from: one of their claimed mails comes before all others."""
        return self._returning | self._strict

    def is_idle(self, lane_id: LaneId) -> bool:
        """Whether another worker may dispatch the lane."""
        return lane_id not in self._unbegun

    def is_strict(self, lane_id: LaneId) -> bool:
        """Whether a mail of this lane is in flight, and nothing may overtake it."""
        return lane_id in self._strict

    def claimed(self, lane_id: LaneId, count: int, strict: bool) -> None:
        self._unbegun[lane_id] += count
        if strict:
            self._strict.add(lane_id)

    def may_begin(self, lane_id: LaneId) -> bool:
        """Whether a claimed mail may begin: not while one of its lane is being released."""
        return lane_id not in self._returning

    def begun(self, lane_id: LaneId) -> None:
        """A claimed mail has begun: its lane's order no longer depends on it, unless strict."""
        if lane_id not in self._strict:
            self._count_down(lane_id)

    def returning(self, lane_id: LaneId) -> None:
        """An unbegun mail will be released, and so must all unbegun mails of its lane."""
        self._returning.add(lane_id)

    def ended(self, lane_id: LaneId, begun: bool) -> bool:
        """A claimed mail was settled or released; True if its lane was closed and is open now."""
        if begun and lane_id not in self._strict:
            return False
        self._count_down(lane_id)
        if lane_id in self._unbegun:
            return False
        if lane_id not in self._returning and lane_id not in self._strict:
            return False
        self._returning.discard(lane_id)
        self._strict.discard(lane_id)
        return True

    def _count_down(self, lane_id: LaneId) -> None:
        self._unbegun[lane_id] -= 1
        if self._unbegun[lane_id] <= 0:
            del self._unbegun[lane_id]
