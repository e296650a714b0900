"""The events of one agent that are in flight: which may be worked on, and in which order they take effect.

Tomasulo's reservation stations, with a record's key in the place of a register. An event is
*issued* to a station in the order of its partition, *executes* when its key is free, and is
*retired* once its effects are applied; only then does the next event of its key begin. The
ledger sees to it that commits go in order all the same.

====================  ==================================  =====================
from                  event                               to
====================  ==================================  =====================
(none)                issued, its key is busy             QUEUED
(none)                issued                              READY
(none)                entered: issued and begun at once   EXECUTING
QUEUED                the one before it retired           READY
READY                 begun                               EXECUTING
QUEUED                begun along with the one before it  EXECUTING
READY                 withdrawn                           RETIRED
EXECUTING             over, whatever came of it           DONE
EXECUTING             over, and effects applied at once   RETIRED
EXECUTING             failed, to be tried again later     BACKOFF
EXECUTING, DONE       to be done again, as if not begun   READY
EXECUTING             likewise, behind one of its lane    QUEUED
BACKOFF               due                                 READY
BACKOFF               given up                            DONE
DONE                  effects applied                     RETIRED
any but the last two  left to the next owner              ABANDONED
====================  ==================================  =====================

Each attempt has a token; whoever reports with an old one is told so and changes nothing.
Source: spec, B7.2, rules 11 to 18.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Any, Generic, TypeVar

E = TypeVar("E")


class State(Enum):
    """Where an event in flight is."""

    QUEUED = "queued"
    READY = "ready"
    EXECUTING = "executing"
    BACKOFF = "backing off"
    DONE = "done"
    RETIRED = "retired"
    ABANDONED = "abandoned"


# Looked up by each event: a module's name costs less than a class's.
_QUEUED, _READY, _EXECUTING, _BACKOFF = State.QUEUED, State.READY, State.EXECUTING, State.BACKOFF
_DONE, _RETIRED, _ABANDONED = State.DONE, State.RETIRED, State.ABANDONED


class Station(Generic[E]):
    """One event in flight.

    Attributes:
        event: what the caller has issued.
        lane: in whose order it stands: an event with the same one begins only when this is retired.
            None: in nobody's.
        state: see the table above.
        attempt: how often it has begun, this time included; the token of the attempt.
        failures: how many attempts have failed.
        issued_at: when it was issued, in seconds of the caller's clock.
        started_at: when the present attempt began.
        first_started_at: when the first one did; None before.
        due_at: when it may be tried again, while it backs off.
        failure: what the last attempt failed with, for whoever looks.
        holder, hold, work: what the caller keeps with it.
    """

    __slots__ = (
        "attempt",
        "due_at",
        "event",
        "failure",
        "failures",
        "first_started_at",
        "follows",
        "hold",
        "holder",
        "issued_at",
        "lane",
        "number",
        "source",
        "started_at",
        "state",
        "successor",
        "work",
    )

    def __init__(self, number: int, event: E, lane: Hashable | None, source: Hashable, issued_at: float) -> None:
        self.number = number
        self.event = event
        self.lane = lane
        self.source = source
        self.issued_at = issued_at
        self.state = _READY
        self.attempt = 0
        self.started_at = 0.0
        self.first_started_at: float | None = None
        self.due_at = 0.0
        self.failures = 0
        self.failure: BaseException | None = None
        self.holder: Any = None
        self.hold: Any = None
        self.work: Any = None
        #: Has it begun although the one before it in its lane is not retired?
        self.follows = False
        self.successor: Station[E] | None = None

    def __repr__(self) -> str:
        return f"<Station {self.state.value} {self.event!r}>"


class Stations(Generic[E]):
    """The stations of one agent in one task.

    Args:
        in_order: effects are applied in the order in which the events of a source were issued, rather
            than as they are done.

    Attributes:
        live: all that are neither retired nor abandoned, in the order of their issue.
        executing: those that execute, in the order in which they began.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self.live: dict[Station[E], None] = {}
        self.executing: dict[Station[E], None] = {}
        self._in_order = in_order
        self._issued = 0
        self._ready: deque[Station[E]] = deque()
        #: lane -> the last station in it.
        self._tails: dict[Hashable, Station[E]] = {}
        #: (due, number, attempt, station), the earliest first; one that does not wait after that attempt
        #: any more is passed over.
        self._backing_off: list[tuple[float, int, int, Station[E]]] = []
        #: source -> its stations that are not retired, in order; kept only where effects go in order.
        self._prefix: dict[Hashable, deque[Station[E]]] = {}

    def __len__(self) -> int:
        return len(self.live)

    # -- an event's way -----------------------------------------------------------------------

    def issue(self, event: E, lane: Hashable | None, source: Hashable, now: float) -> Station[E]:
        """Give an event a station: READY, or QUEUED behind the last one of its lane.

        Args:
            lane: its key, or whatever else keeps events in order; None: no order.
            source: where it comes from; effects go in order within a source.
            now: in seconds.
        """
        station = self._admit(event, lane, source, now)
        if station.state is _READY:
            self._ready.append(station)
        return station

    def enter(self, event: E, lane: Hashable | None, source: Hashable, now: float) -> Station[E]:
        """Issue an event and begin it at once, if its lane is free: EXECUTING, or QUEUED. Arguments as for `issue`.

        For who has room for one more and knows that nothing else is READY.
        """
        station = self._admit(event, lane, source, now)
        if station.state is _READY:
            # `_begin`, written out: where calls are many, each event comes here.
            station.state = _EXECUTING
            station.attempt = 1
            station.started_at = station.first_started_at = now
            self.executing[station] = None
        return station

    def _admit(self, event: E, lane: Hashable | None, source: Hashable, now: float) -> Station[E]:
        """Give an event a station in its lane: QUEUED, or READY where nothing stands before it."""
        self._issued += 1
        station = Station(self._issued, event, lane, source, now)
        self.live[station] = None
        if self._in_order:
            self._prefix.setdefault(source, deque()).append(station)
        if lane is not None:
            tails = self._tails
            last = tails.get(lane)
            tails[lane] = station
            if last is not None:
                last.successor = station
                station.state = _QUEUED
        return station

    def over(self, station: Station[E], token: int) -> None:
        """An attempt is over and its effects are applied, both in one step: `finish` and `retire` together.

        Only where effects go as they are done.

        Raises:
            AssertionError: the token is stale; the effects should not have been applied.
        """
        if station.attempt != token or station.state is not _EXECUTING:
            raise AssertionError(f"{station!r} is over and was not executing")
        del self.executing[station]
        station.state = _RETIRED
        self._leave(station)

    def begin(self, now: float, only: Callable[[E], bool] | None = None) -> Station[E] | None:
        """Begin an attempt on the first station that is READY; None without any. Its token is its `attempt`.

        Args:
            now: in seconds.
            only: on the first whose event it finds true.
        """
        ready = self._ready
        if only is None:
            if not ready:
                return None
            return self._begin(ready.popleft(), now)
        for i, station in enumerate(ready):
            if only(station.event):
                del ready[i]
                return self._begin(station, now)
        return None

    def follow(self, station: Station[E], now: float) -> Station[E] | None:
        """Begin the one that is queued behind an executing station, by whoever executes that one; None without any.

        The two are over together: if the first fails, the second goes back behind it by `again`.
        """
        successor = station.successor
        if successor is None or successor.state is not _QUEUED or station.state is not _EXECUTING:
            return None
        successor.follows = True
        return self._begin(successor, now)

    def _begin(self, station: Station[E], now: float) -> Station[E]:
        station.state = _EXECUTING
        station.attempt += 1
        station.started_at = now
        if station.first_started_at is None:
            station.first_started_at = now
        self.executing[station] = None
        return station

    def finish(self, station: Station[E], token: int) -> bool:
        """An attempt is over: the station is DONE. False, and nothing, for a stale token."""
        if station.attempt != token or station.state is not _EXECUTING:
            return False
        del self.executing[station]
        station.state = _DONE
        return True

    def give_up(self, station: Station[E]) -> bool:
        """An event that backs off is not tried again: it is DONE. False, and nothing, if it does not back off.

        No attempt's token does that: one that is over may report late.
        """
        if station.state is not _BACKOFF:
            return False
        station.state = _DONE
        return True

    def applicable(self, station: Station[E]) -> list[Station[E]]:
        """Return the stations whose effects may be applied now that this one is DONE, in that order.

        None if it has been retired along with another, or is left to the next owner. The caller applies each
        and retires it before the next.
        """
        if not self._in_order:
            return [station] if station.state is _DONE else []
        found: list[Station[E]] = []
        for each in self._prefix.get(station.source, ()):
            if each.state is not _DONE:
                break
            found.append(each)
        return found

    def retire(self, station: Station[E]) -> Station[E] | None:
        """A DONE station's effects are applied: it is over. Return the next of its lane, now READY, if there is one."""
        if station.state is not _DONE:
            raise AssertionError(f"{station!r} is retired before it is done")
        station.state = _RETIRED
        return self._leave(station)

    def withdraw(self, station: Station[E]) -> Station[E] | None:
        """A READY station is over without an attempt; return the next of its lane, now READY, if there is one."""
        if station.state is not _READY:
            raise AssertionError(f"{station!r} is withdrawn and is not ready")
        self._ready.remove(station)
        station.state = _RETIRED
        return self._leave(station)

    def back_off(self, station: Station[E], token: int, due_at: float) -> bool:
        """An attempt has failed, to be tried again from `due_at` on. False for a stale token: nothing happens."""
        if station.attempt != token or station.state is not _EXECUTING:
            return False
        del self.executing[station]
        station.state = _BACKOFF
        station.due_at = due_at
        heapq.heappush(self._backing_off, (due_at, station.number, token, station))
        return True

    def again(self, station: Station[E], token: int) -> bool:
        """The event is to be done again, before others, and the attempt does not count. False for a stale token.

        The token stays used: whoever still works on that attempt must not be taken for the next.
        """
        if station.attempt != token or (station.state is not _EXECUTING and station.state is not _DONE):
            return False
        self.executing.pop(station, None)
        if station.follows:
            station.follows = False
            station.state = _QUEUED
        else:
            station.state = _READY
            self._ready.appendleft(station)
        return True

    def wake(self, now: float) -> int:
        """Make READY what has backed off long enough; return how many."""
        woken = 0
        while (due_at := self.due_at) is not None and due_at <= now:
            station = heapq.heappop(self._backing_off)[3]
            station.state = _READY
            self._ready.append(station)
            woken += 1
        return woken

    def abandon(self, only: Callable[[Station[E]], bool]) -> list[Station[E]]:
        """Leave stations to the next owner, with all that stand behind them.

        Those are the later ones of their lanes, and where effects are applied in order, of their sources: what
        comes before them is not going to be applied here, so they can't be. The attempts of those that execute
        come to nothing; their tokens are void.

        Returns:
            The stations, in the order of their issue.
        """
        left: list[Station[E]] = []
        lanes: set[Hashable] = set()
        sources: set[Hashable] = set()
        for station in self.live:
            if only(station) or station.lane in lanes or station.source in sources:
                left.append(station)
                if station.lane is not None:
                    lanes.add(station.lane)
                if self._in_order:
                    sources.add(station.source)
        gone = set(left)
        for station in left:
            self.executing.pop(station, None)
            station.state = _ABANDONED
            station.successor = None
            del self.live[station]
            if self._in_order:
                self._forget(station)
        self._ready = deque(station for station in self._ready if station not in gone)
        self._tails = {}
        for station in self.live:
            if station.successor in gone:
                station.successor = None
            if station.lane is not None:
                self._tails[station.lane] = station
        return left

    def _forget(self, station: Station[E]) -> None:
        """Nothing waits for its effects any more."""
        prefix = self._prefix[station.source]
        if prefix[0] is station:
            prefix.popleft()
        else:
            prefix.remove(station)
        if not prefix:
            del self._prefix[station.source]

    def _leave(self, station: Station[E]) -> Station[E] | None:
        del self.live[station]
        if self._in_order:
            self._forget(station)
        lane = station.lane
        if lane is None:
            return None
        successor = station.successor
        if successor is None:
            if self._tails.get(lane) is station:
                del self._tails[lane]
            return None
        station.successor = None
        successor.follows = False
        if successor.state is not _QUEUED:
            return None
        successor.state = _READY
        self._ready.append(successor)
        return successor

    # -- what can be asked --------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many may begin."""
        return len(self._ready)

    @property
    def waiting_again(self) -> int:
        """How many back off."""
        return sum(station.state is _BACKOFF for station in self.live)

    @property
    def due_at(self) -> float | None:
        """When the next one that backs off is due; None while none does."""
        heap = self._backing_off
        while heap:
            due_at, _, attempt, station = heap[0]
            if station.state is _BACKOFF and station.attempt == attempt:
                return due_at
            heapq.heappop(heap)
        return None

    def free(self, lane: Hashable | None) -> bool:
        """May an event of this lane begin at once: none of it is in flight, and no other is READY?"""
        return not self._ready and lane not in self._tails

    def busy(self, lane: Hashable) -> bool:
        """Is an event of this lane in flight?"""
        return lane in self._tails

    def tail(self, lane: Hashable) -> Station[E] | None:
        """Return the last station of a lane that is in flight."""
        return self._tails.get(lane)

    def oldest(self) -> Station[E] | None:
        """Return the one that was issued first."""
        return next(iter(self.live), None)

    def __iter__(self) -> Iterator[Station[E]]:
        return iter(list(self.live))

    def counts(self) -> dict[str, int]:
        """Return how many there are in each state in which there can be any, by its name."""
        counts = dict.fromkeys((state.value for state in State if state not in (_RETIRED, _ABANDONED)), 0)
        for station in self.live:
            counts[station.state.value] += 1
        return counts
