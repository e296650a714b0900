"""Which windows come out when: an index of a task's windows of one table, by their ends.

A window is *open* until its end is given out by `due`, *kept* until it is given out by `expired`.
What a look costs is what it gives out, however many are open. Source: spec, C.2; rule C.2's scan in
the order of the ends, and of the keys' bytes within one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any


class Ends:
    """The windows of one table in one task. A window is named by the bytes that it is stored by.

    Args:
        order: gives what windows of one end are sorted by.

    The name of a window that was removed stays in the index until its end is given out: the caller passes over it. One
    that is made again is there twice, and given out once.
    """

    def __init__(self, order: Callable[[bytes], Any]) -> None:
        self._order = order
        self._named: dict[int, list[bytes]] = {}
        self._open: list[int] = []
        self._kept: list[int] = []
        #: How many windows there are with each end that is open: of those that were removed names alone are left.
        self._live: dict[int, int] = {}
        self._open_windows = 0
        #: All ends up to this one have been given out by `due`.
        self._given = -1

    def __len__(self) -> int:
        return sum(map(len, self._named.values()))

    def add(self, end: int, name: bytes) -> None:
        """A window has come into being."""
        named = self._named.get(end)
        if named is None:
            self._named[end] = [name]
            heappush(self._open if end > self._given else self._kept, end)
        else:
            named.append(name)
        if end > self._given:
            self._live[end] = self._live.get(end, 0) + 1
            self._open_windows += 1

    def removed(self, end: int) -> None:
        """A window with this end is no more."""
        if end > self._given:
            self._live[end] -= 1
            self._open_windows -= 1

    def begin_at(self, given: int) -> None:
        """Before the first window: all ends up to this one have been given out."""
        self._given = given

    def next_due(self) -> int | None:
        """Return the least end that is open and has a window."""
        while self._open and self._open[0] > self._given and not self._live[self._open[0]]:
            end = heappop(self._open)
            del self._live[end], self._named[end]
        return self._open[0] if self._open else None

    def due(self, upto: int) -> Iterator[tuple[int, list[bytes]]]:
        """Give out the open ends up to one, rising, with their windows in order."""
        if upto > self._given:
            self._given = upto
        while self._open and self._open[0] <= upto:
            end = heappop(self._open)
            self._open_windows -= self._live.pop(end)
            heappush(self._kept, end)
            yield end, sorted(set(self._named[end]), key=self._order)

    def expired(self, upto: int) -> Iterator[list[bytes]]:
        """Forget the kept ends up to one; give out their windows."""
        while self._kept and self._kept[0] <= upto:
            yield self._named.pop(heappop(self._kept))

    @property
    def open_ends(self) -> int:
        """How many different ends are open."""
        return len(self._open)

    def open_windows(self) -> int:
        """How many windows are open."""
        return self._open_windows
