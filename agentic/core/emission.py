"""Which windows come out when: an index of a task's windows of one table, by their ends.

A window is *open* until its end is given out by `due`, *kept* until it is given out by `expired`.
What a look costs is what it gives out, however many are open. Source: spec, C.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any


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
        if ends and not self._named[ends[0]]:
            # Whoever put windows in has taken them out, and may put others in.
            return min((end for end in ends if self._named.get(end)), default=None)
        return ends[0] if ends else None

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

    def expired(self, upto: int) -> Iterator[tuple[int, dict[bytes, Any]]]:
        """Forget the kept ends up to one; give them out with their windows."""
        kept = self._kept
        while kept and kept[0] <= upto:
            end = heappop(kept)
            names = self._named.pop(end, None)
            if names:
                yield end, names

    def open_windows(self) -> int:
        """How many windows are open."""
        return sum(len(named) for end, named in self._named.items() if end > self._given)


class EndsOfKeys:
    """As `Ends`, where hardly two windows have the same end: a window is its end, its start and the bytes of its key.

    What has gone is found out when its turn comes.

    Args:
        there: is a window there? Given its key, its start and its end.
    """

    def __init__(self, there: Callable[[bytes, int, int], bool]) -> None:
        self._there = there
        #: The least first. A window that has gone may be among them, and one that is there again twice.
        self._open: list[tuple[int, int, bytes]] = []
        self._kept: list[tuple[int, int, bytes]] = []
        #: How many more there are in each than windows: while there are none, nobody needs to look.
        self._open_gone = self._kept_gone = 0
        self._given = -1

    def add(self, end: int, start: int, key: bytes) -> None:
        """A window has come into being, or is there again."""
        heappush(self._open if end > self._given else self._kept, (end, start, key))

    def removed(self, end: int) -> None:
        """A window with this end is no more."""
        if end > self._given:
            self._open_gone += 1
        else:
            self._kept_gone += 1

    def begin_at(self, given: int) -> None:
        """See `Ends.begin_at`."""
        self._given = given

    def next_due(self) -> int | None:
        """See `Ends.next_due`."""
        opened = self._open
        while opened and self._open_gone and not self._there(opened[0][2], opened[0][1], opened[0][0]):
            heappop(opened)
            self._open_gone -= 1
        return opened[0][0] if opened else None

    def next_kept(self) -> int | None:
        """See `Ends.next_kept`."""
        kept = self._kept
        while kept and self._kept_gone and not self._there(kept[0][2], kept[0][1], kept[0][0]):
            heappop(kept)
            self._kept_gone -= 1
        return kept[0][0] if kept else None

    def due(self, upto: int) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """Give out the open windows with ends up to one, rising, those of one end by start and key."""
        opened, kept, there = self._open, self._kept, self._there
        while opened and opened[0][0] <= upto:
            end = opened[0][0]
            found: list[tuple[int, bytes]] = []
            last: tuple[int, int, bytes] | None = None
            while opened and opened[0][0] == end:
                entry = heappop(opened)
                _, start, key = entry
                if self._open_gone and (entry == last or not there(key, start, end)):
                    self._open_gone -= 1
                    continue
                last = entry
                heappush(kept, entry)
                found.append((start, key))
            self._given = end
            if found:
                yield end, found
        self._given = max(self._given, upto)

    def expired(self, upto: int) -> Iterator[tuple[bytes, int, int]]:
        """Forget the kept windows with ends up to one; give them out: key, start, end."""
        kept, there = self._kept, self._there
        while kept and kept[0][0] <= upto:
            end, start, key = heappop(kept)
            if self._kept_gone and not there(key, start, end):
                self._kept_gone -= 1
            else:
                yield key, start, end

    def open_windows(self) -> int:
        """How many windows are open."""
        return len(self._open) - self._open_gone
