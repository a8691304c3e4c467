"""How many of a worker's places one of several providers may hold. Pure.

A worker holds at most one window of mails, whatever the number of its providers: that bounds what a
kill leaves unknown. A provider may hold three quarters of the places that it has or that are free.
So one that is slow, or hangs, never takes them all: one keeps 75 of 100, two keep 43 each, three 30
each, and the others share the rest. Places that no other provider needs can be borrowed.
"""

from __future__ import annotations

# Of the places that a provider has or could have, in quarters.
QUARTERS = 3
# A provider with room for less than this share of its places gets no mails for now: few large
# claims cost less.
WORTH = 0.25


def headroom(free: int, held: int) -> int:
    """How many more mails a provider may get that holds so many, where so many places are free; the first always."""
    if held == 0:
        return min(free, max(1, QUARTERS * free // 4))
    return max(0, (QUARTERS * free - (4 - QUARTERS) * held) // 4)


def has_enough(free: int, held: int) -> bool:
    """Whether a provider should get no more for now."""
    return headroom(free, held) < max(1, int(WORTH * QUARTERS * (free + held) / 4))
