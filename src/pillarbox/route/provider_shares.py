"""How many slots of a worker's window one of several providers may hold. Pure.

A worker holds at most one window of mails, whatever the number of its providers: that bounds what a
kill leaves unknown. A provider may hold three quarters of the slots that it has or that are free.
So a slow provider never takes them all: one keeps 75 of 100, two keep 43 each, three 30 each, and
the others share the rest. Slots that no other provider needs can be borrowed.
"""

from __future__ import annotations

# Of the slots that a provider has or could have, in quarters.
QUARTERS = 3
# A provider with room for less than this part of its share gets no mails for now: few large claims
# cost less than many small ones.
WORTH_CLAIMING = 0.25


def headroom(free: int, held: int) -> int:
    """How many more mails a provider may get; one that holds none always gets the first."""
    if held == 0:
        share = max(1, QUARTERS * free // 4)
        return min(free, share)
    room = (QUARTERS * free - (4 - QUARTERS) * held) // 4
    return max(0, room)


def has_enough(free: int, held: int) -> bool:
    """Whether a provider should get no more for now."""
    share = QUARTERS * (free + held) / 4
    return headroom(free, held) < max(1, int(WORTH_CLAIMING * share))
