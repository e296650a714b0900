"""The stream time of a task, held back by what is not finished.

Kafka Streams' stream time is the greatest timestamp of a record so far. When events run out of
order, a later one may finish first; were its timestamp to move the clock at once, a window could
close before an earlier event, still in flight, is in it. So whatever is unfinished holds the clock.

One convention (spec rule 25): a hold at `h` keeps the clock at `h - 1` or before. `h` is the earliest
timestamp that may still come from the holder, and something due at `h` is due when the clock has
reached it: so an event with timestamp `t` holds at `t`. An event that is late already can't take the
clock back: it holds at the clock + 1, and keeps the clock where it is. This is rule 26, whose
``max(t - 1, clock at its issue)`` names the last value that the clock may have, one below the hold.
Then ``now = max(now, min(seen, least hold - 1))``, at each change of `seen` or of a hold.

From it follows:

* While an event with timestamp `t` is in flight, the clock is at most `t - 1`, or what Kafka Streams'
  stream time was before that event, if that is later: running out of order makes no event late.
* One event after the other: between them the clock is the greatest timestamp so far, Kafka Streams'
  stream time. Inside of the agent it is ``max(now, t)`` there, and so it is to be shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

#: The clock of a task that has seen nothing: before any timestamp.
NEVER = -(1 << 63)
#: So many released holds may lie about in the heap before it is rebuilt without them.
_SLACK = 64


class Hold:
    """What keeps a clock back.

    Attributes:
        at: the clock stays at `at` - 1 or before.
        owner: what the holder gave, to be shown.
    """

    __slots__ = ("_clock", "at", "owner")

    def __init__(self, clock: Clock, at: int, owner: object) -> None:
        self._clock: Clock | None = clock
        self.at = at
        self.owner = owner

    def release(self) -> None:
        """Take it away. See `Clock.release`."""
        if self._clock is None:
            raise ValueError(f"{self!r} was released before")
        self._clock.release(self)

    def __repr__(self) -> str:
        return f"Hold(at={self.at}, owner={self.owner!r})"


class Clock:
    """A task's input clock, in milliseconds. It never goes back.

    What may leave something behind, as an event that sets a timer or is deferred, places the holds of
    that before its own is released: in between, the clock would pass it.

    Args:
        restored: where the clock stood at the last commit, if it ever stood anywhere. Not the greatest
            timestamp then: what was unfinished comes again, and would be late.

    Attributes:
        now: the time that all has been processed up to, `NEVER` at first.
        seen: the greatest timestamp so far, `NEVER` at first.
    """

    __slots__ = ("_heap", "_placed", "_released", "now", "seen")

    def __init__(self, restored: int | None = None) -> None:
        self.now = self.seen = NEVER if restored is None else restored
        # A hold that is released before it is the least stays until it comes up, so the least is
        # always live. Equal holds go by when they were placed.
        self._heap: list[tuple[int, int, Hold]] = []
        self._placed = 0
        self._released = 0

    @property
    def oldest(self) -> Hold | None:
        """What keeps the clock back most, the longest placed of equals."""
        return self._heap[0][2] if self._heap else None

    @property
    def holds(self) -> int:
        """How many holds there are."""
        return len(self._heap) - self._released

    def issue(self, timestamp: int, owner: object = None) -> Hold:
        """Take note of an event that is to be processed, and return its hold, to be released when it is finished."""
        hold = self.hold(timestamp, owner)
        if timestamp > self.seen:
            self.seen = timestamp
            # The event's own hold is at its timestamp, so the least is not beyond what is seen.
            self.now = self._heap[0][0] - 1
        return hold

    def skip(self, timestamp: int) -> None:
        """Take note of an event that is finished already, as one that was done before a restart."""
        if timestamp > self.seen:
            self.seen = timestamp
            self._advance()

    def hold(self, at: int, owner: object = None) -> Hold:
        """Keep the clock at `at` - 1 or before; where it stands, if it is there or further already."""
        if at <= self.now:
            at = self.now + 1
        hold = Hold(self, at, owner)
        self._placed = placed = self._placed + 1
        heappush(self._heap, (at, placed, hold))
        return hold

    def release(self, hold: Hold) -> None:
        """Take a hold away, and move the clock as far as it may.

        Raises:
            ValueError: it was released before, or is not of this clock.
        """
        if hold._clock is not self:
            raise ValueError(f"{hold!r} is not held by this clock; release a hold once, on the clock that gave it")
        hold._clock = None
        heap = self._heap
        if heap[0][2] is hold:
            heappop(heap)
            while heap and heap[0][2]._clock is None:
                heappop(heap)
                self._released -= 1
            self._advance()
        else:
            self._released += 1
            if self._released > _SLACK and 2 * self._released > len(heap):
                # Else one hold of an hour would keep in memory all that were released behind it.
                self._heap = [entry for entry in heap if entry[2]._clock is not None]
                heapify(self._heap)
                self._released = 0

    def _advance(self) -> None:
        # Neither is ever before now: holds are placed behind it, and seen only grows.
        heap = self._heap
        least = heap[0][0] if heap else None
        self.now = self.seen if least is None or least > self.seen else least - 1


class Holds:
    """Many holds of one holder, each at the same time on the same clocks, for the memory of a number each.

    No clock knows of more than the earliest. It keeps a clock where all of them would: one that is placed behind
    a clock holds it where it stands, whether it is placed then, or when those before it are lifted.

    Args:
        owner: see `Hold`.
    """

    __slots__ = ("_ats", "_clocks", "_lifted", "_owner", "_placed")

    def __init__(self, clocks: Sequence[Clock], owner: object = None) -> None:
        self._clocks = clocks
        self._owner = owner
        #: Heaps: what was placed, and what of it is lifted and not the earliest.
        self._ats: list[int] = []
        self._lifted: list[int] = []
        self._placed: list[Hold] = []

    def __len__(self) -> int:
        return len(self._ats) - len(self._lifted)

    def place(self, at: int) -> None:
        """Keep the clocks at `at` - 1 or before; see `Clock.hold`."""
        earliest = not self._ats or at < self._ats[0]
        heappush(self._ats, at)
        if earliest:
            self._move()

    def lift(self, at: int) -> None:
        """Take one away that was placed at `at`.

        Raises:
            ValueError: there is none; noticed at the latest when it would be the earliest.
        """
        ats, lifted = self._ats, self._lifted
        heappush(lifted, at)
        before = ats[0] if ats else None
        while ats and lifted and lifted[0] == ats[0]:
            heappop(ats)
            heappop(lifted)
        if lifted and (not ats or lifted[0] < ats[0]):
            raise ValueError(f"nothing holds at {lifted[0]}; lift what was placed, once")
        if not ats or ats[0] != before:
            self._move()
        elif len(lifted) > _SLACK and 2 * len(lifted) > len(ats):
            # Else one hold of an hour would keep in memory all that were lifted behind it.
            left = Counter(ats)
            left.subtract(lifted)
            self._ats = sorted(left.elements())
            self._lifted = []

    def _move(self) -> None:
        """Hold the clocks by what is the earliest now."""
        before = self._placed
        self._placed = [clock.hold(self._ats[0], self._owner) for clock in self._clocks] if self._ats else []
        for hold in before:
            hold.release()
