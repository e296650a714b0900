"""Which windows come out when: an index of a task's windows of one table, by their ends.

A window is *open* until its end is given out by `due`, *kept* until it is given out by `expired`.
What a look costs is what it gives out, however many are open. Source: spec, C.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush


class Ends:
    """The windows of one table in one task. A window is named by the bytes that it is stored by."""

    def __init__(self) -> None:
        self._named: dict[int, dict[bytes, None]] = {}
        #: Ends, the least first. One that has no windows any more is passed over.
        self._open: list[int] = []
        self._kept: list[int] = []
        self._open_windows = 0
        #: All ends up to this one have been given out by `due`.
        self._given = -1

    def __len__(self) -> int:
        return sum(map(len, self._named.values()))

    def add(self, end: int, name: bytes) -> None:
        """A window has come into being, or is there again."""
        named = self._named.get(end)
        if named is None:
            named = self._named[end] = {}
            heappush(self._open if end > self._given else self._kept, end)
        if end > self._given and name not in named:
            self._open_windows += 1
        named[name] = None

    def removed(self, end: int, name: bytes) -> None:
        """A window is no more."""
        named = self._named.get(end)
        if named is None or name not in named:
            return
        del named[name]
        if end > self._given:
            self._open_windows -= 1
        if not named:
            del self._named[end]

    def has(self, end: int, name: bytes) -> bool:
        """Is a window there?"""
        named = self._named.get(end)
        return named is not None and name in named

    def begin_at(self, given: int) -> None:
        """Before the first window: all ends up to this one have been given out."""
        self._given = given

    def next_due(self) -> int | None:
        """Return the least end that is open and has a window."""
        while self._open and self._open[0] <= self._given:
            heappop(self._open)  # it was there twice, since all its windows had gone meanwhile
        return self._least(self._open)

    def next_kept(self) -> int | None:
        """Return the least end that is kept and has a window."""
        return self._least(self._kept)

    def _least(self, ends: list[int]) -> int | None:
        while ends and ends[0] not in self._named:
            heappop(ends)
        return ends[0] if ends else None

    def due(self, upto: int) -> Iterator[tuple[int, list[bytes]]]:
        """Give out the open ends up to one, rising, each with its windows in the order in which they came."""
        while (end := self.next_due()) is not None and end <= upto:
            heappop(self._open)
            self._given = end
            heappush(self._kept, end)
            names = list(self._named[end])
            self._open_windows -= len(names)
            yield end, names
        self._given = max(self._given, upto)

    def expired(self, upto: int) -> Iterator[Iterable[bytes]]:
        """Forget the kept ends up to one; give out their windows."""
        while (end := self._least(self._kept)) is not None and end <= upto:
            heappop(self._kept)
            yield self._named.pop(end)

    def open_windows(self) -> int:
        """How many windows are open."""
        return self._open_windows
