"""Rows of windows that lie in memory in groups: what an event changes is found without a name for each row.

That a row has a name, with its window's bounds, concerns only those that live to see a checkpoint.
Most never do: they are given out and forgotten before it, and leave no trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from agentic.state.base import Store
from agentic.state.buffer import Encoded, Row, TableBuffer
from agentic.state.window_keys import TIMES

E = TypeVar("E")


class Group(ABC):
    """Rows that belong together. Within it a row is known by what sets it apart from the others.

    Attributes:
        dirty: rows of completed events since the last checkpoint began; without an entry, a row that is gone.
        flushing: rows of the checkpoint that is under way.
        saved: rows that the store, or the changelog, has.
    """

    __slots__ = ("dirty", "flushing", "saved")

    def __init__(self) -> None:
        self.dirty: dict[Any, Any] | None = None
        self.flushing: dict[Any, Any] | None = None
        self.saved: set[Any] | None = None

    @abstractmethod
    def named(self, rows: Mapping[Any, Any]) -> Iterator[tuple[bytes, Row]]:
        """Iterate over rows with their names."""

    @abstractmethod
    def encode(self, rows: Mapping[Any, Any], dump: Callable[[Any], bytes]) -> Encoded:
        """Return rows as a checkpoint writes them, in any order."""

    @abstractmethod
    def taken(self, rows: Mapping[Any, Any]) -> None:
        """A checkpoint has begun that writes these rows: note which ones the store has from now on."""

    @abstractmethod
    def trim(self, rows: Mapping[Any, Any]) -> None:
        """Keep none of these rows in memory, which the store has, unless another has taken its place."""


class GroupedBuffer(TableBuffer[E], ABC):
    """A windowed table's rows in one task; see `TableBuffer`. A row that is in no group is kept as by that.

    Args:
        dump_value: makes a stored value of an entry in a group.

    Attributes:
        saved: the names of rows in no group that the store, or the changelog, has.
        held: how many rows the groups have.
        trimmed: are there rows that are not in memory?
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        load: Callable[[bytes], E],
        dump: Callable[[E], bytes],
        dump_value: Callable[[E], bytes],
    ) -> None:
        super().__init__(name, store, load=load, dump=dump)
        self._dump_value = dump_value
        self.saved: set[bytes] = set()
        self.held = 0
        self.trimmed = False
        #: Groups with rows that no checkpoint has begun to write; with rows of the one that is under way.
        self._soiled: list[Group] = []
        self._flushed: list[Group] = []
        #: Rows of the last checkpoint that was stored, if there are too many for the cache.
        self._resting: list[tuple[Group, Mapping[Any, Any]]] = []

    def soil(self, group: Group) -> dict[Any, Any]:
        """Return where to put what has changed in a group, with nothing in it yet."""
        self._soiled.append(group)
        dirty = group.dirty = {}
        return dirty

    @abstractmethod
    def ungroup(self) -> None:
        """Let go of all groups, with which nothing has been done: the rows are kept by their names."""
        self.held = 0
        self.trimmed = False

    def drop(self, names: Iterable[bytes], timestamp: int) -> None:
        """Delete rows that are in no group."""
        rows, aged, dirty, saved = self.rows, self._aged, self.dirty, self.saved
        gone = (None, timestamp)
        for name in names:
            rows.pop(name, None)
            aged.pop(name, None)
            if name in saved:
                dirty[name] = gone
            else:
                dirty.pop(name, None)

    @property
    def full(self) -> bool:
        """Are there more rows than the cache may hold?"""
        return self.held * self._size > self.cache_bytes

    # -- reading ------------------------------------------------------------------------------

    @abstractmethod
    def group_of(self, name: bytes) -> tuple[Group, Any] | None:
        """Return the group that a row belongs to, and what it is known by there; None where there is no such group."""

    def _pending(self, key: bytes) -> Row | None:
        place = self.group_of(key)
        if place is not None:
            group, which = place
            for layer in (group.dirty, group.flushing):
                if layer is not None and which in layer:
                    ((_, row),) = group.named({which: layer[which]})
                    return row
        return super()._pending(key)

    def _above(self, over: Mapping[bytes, Row], start: bytes, stop: bytes | None) -> dict[bytes, Row]:
        above: dict[bytes, Row] = {}
        for group in {*self._flushed, *self._soiled}:
            for layer in (group.flushing, group.dirty):
                for name, row in group.named(layer or {}):
                    if name >= start and (stop is None or name < stop):
                        above[name] = row
        above |= super()._above(over, start, stop)
        self.order = None  # of what lies there, hardly anything is in it
        return above

    # -- checkpoint ---------------------------------------------------------------------------

    @property
    def dirty_bytes(self) -> int:
        rows = len(self.dirty) + sum(len(group.dirty) for group in self._soiled if group.dirty)
        return int(rows * self._size)

    def take(self) -> int:
        self.saved.update(name for name, row in self.dirty.items() if row[0] is not None)
        self.saved.difference_update(name for name, row in self.dirty.items() if row[0] is None)
        taken = super().take()
        for group in self._soiled:
            dirty, group.dirty = group.dirty, None
            if dirty:
                if group.flushing is None:
                    self._flushed.append(group)
                    group.flushing = dirty
                else:
                    group.flushing = {**group.flushing, **dirty}
                group.taken(dirty)
        self._soiled = []
        return taken + sum(len(group.flushing) for group in self._flushed if group.flushing)

    def encode(self) -> Encoded:
        encoded = super().encode()
        if not self._flushed:
            return encoded
        dump = self._dump_value
        # A group that is gone by now has its rows dropped, if they were written.
        over = self._flushing if len(self._flushing) > (TIMES in self._flushing) else ()
        for group in self._flushed:
            rows = group.encode(group.flushing or {}, dump)
            encoded += [row for row in rows if row[0] not in over] if over else rows
        encoded.sort()  # no two have one name: nothing beyond it is compared
        self._measure(encoded)
        return encoded

    def stored(self) -> None:
        super().stored()
        # Rows that are written in each checkpoint stay in memory, however many others there are.
        resting, self._resting = self._resting, []
        if self.full:
            for group, rows in resting:
                group.trim(rows)
                self.trimmed = True
            self._resting = [(group, group.flushing or {}) for group in self._flushed]
        for group in self._flushed:
            group.flushing = None
        self._flushed = []
