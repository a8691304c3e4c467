"""How many mails are worth claiming, and from which lanes: no provider holds the whole window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pillarbox.deliver.provider_channel import ProviderChannel
from pillarbox.model.fairness import LaneId
from pillarbox.route.provider_shares import has_enough, headroom


class ClaimCapacity:
    """Divides the window of a worker between its providers, so that few claims end in a wait."""

    def __init__(self) -> None:
        self._channels: Mapping[int, ProviderChannel] = {}
        self._provider_of: dict[LaneId, int] = {}  # of the last mail of each lane
        # How many slots of the worker's window are free; None: any number.
        self.free: Callable[[], int] | None = None

    def replace(self, channels: Mapping[int, ProviderChannel]) -> None:
        """The enabled providers changed."""
        self._channels = channels
        self._provider_of = {
            lane: provider_id
            for lane, provider_id in self._provider_of.items()
            if provider_id in channels
        }

    def note(self, lane: LaneId, provider_id: int) -> None:
        """A mail of a lane goes to this provider: the next ones most likely go there, too."""
        if len(self._channels) > 1:
            self._provider_of[lane] = provider_id

    def has_room(self, channel: ProviderChannel) -> bool:
        """Whether a claimed mail may go to this provider, or others need its slot."""
        if self.free is None or len(self._channels) < 2:
            return True
        return headroom(self.free() + 1, channel.held) > 0  # its own slot is free, too

    def barred_lanes(self) -> set[LaneId]:
        """Lanes not to claim from: their mails go to a provider that has enough."""
        full = {channel.provider.id for channel in self._full()}
        if not full:
            return set()
        return {lane for lane, provider_id in self._provider_of.items() if provider_id in full}

    def stuck(self) -> int:
        """Slots held by providers that have enough: they may not become free soon."""
        return sum(channel.held for channel in self._full())

    def claimable(self, limit: int) -> int:
        """How many mails are worth claiming, up to a limit, whichever provider they go to."""
        channels = self._channels.values()
        if self.free is not None and len(channels) > 1:
            free = self.free()
            rooms = [
                headroom(free, channel.held)
                for channel in channels
                if not has_enough(free, channel.held)
            ]
            limit = min(limit, min(rooms, default=0))
        by_quota = [channel.claimable() for channel in channels]
        known = [count for count in by_quota if count is not None]
        if not known or len(known) < len(by_quota):  # some provider takes any number
            return limit
        return min(limit, sum(known))

    def least_room(self, free: int) -> int:
        """How many more mails the provider with the least room may get."""
        if len(self._channels) < 2:
            return free
        rooms = [headroom(free, channel.held) for channel in self._channels.values()]
        return min(free, *rooms)

    def _full(self) -> list[ProviderChannel]:
        """Those of several providers that should get no more for now."""
        if self.free is None or len(self._channels) < 2:
            return []
        free = self.free()
        return [channel for channel in self._channels.values() if has_enough(free, channel.held)]
