"""Which windows come out when: an index of a task's windows of one table, by their ends.

A window is *open* until its end is given out by `due`, *kept* until it is given out by `expired`.
What a look costs is what it gives out, however many are open. Source: spec, C.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

P = TypeVar("P", bound=tuple[Any, ...])


class Ends:
    """The windows of one table in one task. Among those of one end each has a name of its own."""

    def __init__(self) -> None:
        self._named: dict[int, dict[bytes, Any]] = {}
        #: Ends, the least first. One that has no windows any more is passed over.
        self._open: list[int] = []
        self._kept: list[int] = []
        #: All ends up to this one have been given out by `due`.
        self._given = -1

    def __len__(self) -> int:
        return sum(map(len, self._named.values()))

    def named(self, end: int) -> dict[bytes, Any]:
        """Return the windows with an end by their names, to be put in and taken out: what is kept of each is free."""
        named = self._named.get(end)
        if named is None:
            named = self._named[end] = {}
            heappush(self._open if end > self._given else self._kept, end)
        return named

    def add(self, end: int, name: bytes) -> None:
        """A window has come into being, or is there again."""
        self.named(end)[name] = None

    def removed(self, end: int, name: bytes) -> None:
        """A window is no more."""
        named = self._named.get(end)
        if named is None or name not in named:
            return
        del named[name]
        if not named:
            del self._named[end]

    def has(self, end: int, name: bytes) -> bool:
        """Is a window there?"""
        named = self._named.get(end)
        return named is not None and name in named

    def begin_at(self, given: int) -> None:
        """Before the first window: all ends up to this one have been given out."""
        self._given = given

    def ahead(self) -> tuple[int | None, int | None]:
        """Return the least end that is open, and the least that is kept.

        All its windows may have been taken out: whoever did so may put others in without another word.
        """
        while self._open and self._open[0] <= self._given:
            heappop(self._open)  # it was there twice, since all its windows had gone meanwhile
        return self._first(self._open), self._first(self._kept)

    def _first(self, ends: list[int]) -> int | None:
        while ends and ends[0] not in self._named:
            heappop(ends)
        return ends[0] if ends else None

    def next_due(self) -> int | None:
        """Return the least end that is open and has a window."""
        return self._least(self.ahead()[0], self._open)

    def next_kept(self) -> int | None:
        """Return the least end that is kept and has a window."""
        return self._least(self.ahead()[1], self._kept)

    def _least(self, first: int | None, ends: list[int]) -> int | None:
        if first is None or self._named[first]:
            return first
        return min((end for end in ends if self._named.get(end)), default=None)

    def due(self, upto: int) -> Iterator[tuple[int, list[bytes]]]:
        """Give out the open ends up to one, rising, each with its windows in the order in which they came."""
        opened, kept = self._open, self._kept
        while opened and opened[0] <= upto:
            end = heappop(opened)
            if end <= self._given:
                continue  # it was there twice, since all its windows had gone meanwhile
            names = self._named.get(end)
            if names is None:
                continue
            heappush(kept, end)
            if names:
                self._given = end
                yield end, list(names)
        self._given = max(self._given, upto)

    def passed(self, end: int) -> bool:
        """Has `due` come to an end by now, or passed it by?"""
        return end <= self._given

    def expired(self, upto: int) -> Iterator[tuple[int, dict[bytes, Any]]]:
        """Forget the kept ends up to one; give them out with their windows, though there be none in them any more."""
        kept = self._kept
        while kept and kept[0] <= upto:
            end = heappop(kept)
            names = self._named.pop(end, None)
            if names is not None:
                yield end, names

    def open_windows(self) -> int:
        """How many windows are open."""
        return sum(len(named) for end, named in self._named.items() if end > self._given)


#: Slots of time in which places wait unsorted, as a shift of ms.
_SLOT = 8


class Places(Generic[P]):
    """Places, tuples that begin with a time in ms, in their order.

    Those far ahead wait unsorted by slots of time: a heap of all would cost each of them a way through all.
    """

    def __init__(self) -> None:
        #: A heap of those before the horizon; of the slots behind it; and what is in these.
        self._soon: list[P] = []
        self._slots: list[int] = []
        self._later: dict[int, list[P]] = {}
        self._horizon = 0

    def push(self, place: P) -> None:
        """Put a place in."""
        if place[0] < self._horizon:
            heappush(self._soon, place)
            return
        slot = place[0] >> _SLOT
        waiting = self._later.get(slot)
        if waiting is None:
            self._later[slot] = [place]
            heappush(self._slots, slot)
        else:
            waiting.append(place)

    def first(self) -> P | None:
        """Return the least, without taking it out; None where there is none."""
        if not self._soon:
            if not self._slots:
                return None
            slot = heappop(self._slots)
            self._soon = self._later.pop(slot)
            heapify(self._soon)
            self._horizon = (slot + 1) << _SLOT
        return self._soon[0]

    def pop(self, upto: int) -> P | None:
        """Take out the least, if its time is `upto` or earlier; return it, or None."""
        soon = self._soon
        if not soon:
            if self.first() is None:
                return None
            soon = self._soon
        return heappop(soon) if soon[0][0] <= upto else None
