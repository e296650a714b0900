"""Which windows come out when: an index of a task's windows of one table, by their ends.

A window is *open* until its end is given out by `due`, *kept* until it is given out by `expired`.
What a look costs is what it gives out, however many are open. Source: spec, C.2.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class EndsOfKeys:
    """As `Ends`, where hardly two windows have the same end: a window is its end, its start and the bytes of its key.

    One that is removed is left where it is, and passed over when its turn comes. Only what is said here counts:
    an event at work may have taken a window away, or made it again, and still fail.
    """

    def __init__(self) -> None:
        #: The least first.
        self._open: list[tuple[int, int, bytes]] = []
        self._kept: list[tuple[int, int, bytes]] = []
        #: Those of them that are no more.
        self._open_gone: set[tuple[int, int, bytes]] = set()
        self._kept_gone: set[tuple[int, int, bytes]] = set()
        self._given = -1

    def add(self, end: int, start: int, key: bytes) -> None:
        """A window has come into being, or is there again."""
        window = (end, start, key)
        ends, gone = (self._open, self._open_gone) if end > self._given else (self._kept, self._kept_gone)
        if window in gone:
            gone.remove(window)
        else:
            heappush(ends, window)

    def removed(self, end: int, start: int, key: bytes) -> None:
        """A window is no more."""
        (self._open_gone if end > self._given else self._kept_gone).add((end, start, key))

    def begin_at(self, given: int) -> None:
        """See `Ends.begin_at`."""
        self._given = given

    def ahead(self) -> tuple[int | None, int | None]:
        """See `Ends.ahead`; there are windows with these ends."""
        return self.next_due(), self.next_kept()

    def next_due(self) -> int | None:
        """See `Ends.next_due`."""
        return self._least(self._open, self._open_gone)

    def next_kept(self) -> int | None:
        """See `Ends.next_kept`."""
        return self._least(self._kept, self._kept_gone)

    @staticmethod
    def _least(ends: list[tuple[int, int, bytes]], gone: set[tuple[int, int, bytes]]) -> int | None:
        while ends and ends[0] in gone:
            gone.remove(heappop(ends))
        return ends[0][0] if ends else None

    def due(self, upto: int) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """Give out the open windows with ends up to one, rising, those of one end by start and key."""
        opened, kept, gone = self._open, self._kept, self._open_gone
        while opened and opened[0][0] <= upto:
            end = opened[0][0]
            found: list[tuple[int, bytes]] = []
            while opened and opened[0][0] == end:
                window = heappop(opened)
                if window in gone:
                    gone.remove(window)
                    continue
                heappush(kept, window)
                found.append(window[1:])
            self._given = end
            if found:
                yield end, found
        self._given = max(self._given, upto)

    def none_due(self, upto: int) -> bool:
        """Is there no open window with an end up to one? Then it counts as given out."""
        due = self.next_due()
        if due is not None and due <= upto:
            return False
        self._given = max(self._given, upto)
        return True

    def expired(self, upto: int) -> Iterator[tuple[bytes, int, int]]:
        """Forget the kept windows with ends up to one; give them out: key, start, end."""
        kept, gone = self._kept, self._kept_gone
        while kept and kept[0][0] <= upto:
            window = heappop(kept)
            if window in gone:
                gone.remove(window)
            else:
                end, start, key = window
                yield key, start, end

    def open_windows(self) -> int:
        """How many windows are open."""
        return len(self._open) - len(self._open_gone)
