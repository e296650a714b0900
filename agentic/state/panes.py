"""Rows of windows that lie in memory by their start: what windows of fixed bounds are put into and taken out of.

A *pane* is one window of time with the rows of all keys that have something in it. Putting a
value into a window is a look into its pane, by the bytes of the key alone; that a row has a name
with its window's start concerns only those rows that live to see a checkpoint. Most never do:
they are given out and forgotten before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from agentic.state.base import Store
from agentic.state.buffer import ABSENT, Encoded, Row, TableBuffer
from agentic.state.envelope import unwrap
from agentic.state.window_keys import TIMES

E = TypeVar("E")

#: In a pane, a row that the store has: no entry, and other than `ABSENT` to whoever asks which.
STORED: Final[Row] = (None, -1)


class Pane:
    """One window of time.

    Attributes:
        rows: by key, of all that there are, those of the event at work included; `STORED` where it must be loaded.
        dirty: rows of completed events since the last checkpoint began; without an entry, a row that is gone.
        flushing: rows of the checkpoint that is under way.
        saved: keys of which the store, or the changelog, has had a row.
        suffix: the end of all rows' names.
    """

    __slots__ = ("dirty", "end", "flushing", "rows", "saved", "start", "suffix")

    def __init__(self, start: int, end: int, rows: dict[bytes, Row]) -> None:
        self.start = start
        self.end = end
        self.rows = rows
        self.dirty: dict[bytes, Row] = {}
        self.flushing: dict[bytes, Row] = {}
        self.saved: set[bytes] = set()
        self.suffix = start.to_bytes(8, "big")

    def erased(self, key: bytes) -> None:
        """A completed event has taken a row away: one that no checkpoint has had is gone without a trace."""
        if key not in self.saved:
            del self.dirty[key]


class PanedBuffer(TableBuffer[E]):
    """A windowed table's rows in one task; see `TableBuffer`. A row that is in no pane is kept as by that.

    Args:
        dump_value: makes a stored value of an entry in a pane.

    Attributes:
        panes: by start; all that are not closed and forgotten.
        saved: the names of rows in no pane of which the store, or the changelog, has had one.
    """

    panes: dict[int, Pane]

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
        self.panes = {}
        self.saved: set[bytes] = set()
        self._dump_value = dump_value
        #: Panes with rows in the checkpoint that is under way; some may be closed by now.
        self._flushed: list[Pane] = []
        self._restored = 0

    def open(self, start: int, end: int, rows: dict[bytes, Row]) -> Pane:
        """Make the pane of a window."""
        pane = self.panes[start] = Pane(start, end, rows)
        return pane

    def close(self, start: int) -> Iterator[bytes]:
        """Forget a pane; return the names of its rows that are left to be dropped."""
        pane = self.panes.pop(start)
        pane.dirty.clear()
        return self._left(pane)

    def _left(self, pane: Pane) -> Iterator[bytes]:
        suffix = pane.suffix
        for key in pane.saved:
            name = key + suffix
            self.saved.add(name)
            yield name

    def drop(self, names: Iterable[bytes], timestamp: int) -> None:
        """Delete rows that are in no pane: most have come and gone between two checkpoints, and leave no trace."""
        rows, aged, dirty, saved = self.rows, self._aged, self.dirty, self.saved
        gone = (None, timestamp)
        for name in names:
            rows.pop(name, None)
            aged.pop(name, None)
            if name in saved:
                dirty[name] = gone
            else:
                dirty.pop(name, None)

    def restore(self, pane: Pane, key: bytes, row: Row) -> None:
        """Take a row over that the store has, when the task begins."""
        self._restored += 1
        pane.rows[key] = STORED if self._restored * self._size > self.cache_bytes else row
        pane.saved.add(key)

    # -- reading ------------------------------------------------------------------------------

    def row(self, pane: Pane, key: bytes) -> Row:
        """Return a row of a pane as it is after the event at work, `ABSENT` where there is none."""
        row = pane.rows.get(key, ABSENT)
        return self.stored_row(pane, key) if row is STORED else row

    def stored_row(self, pane: Pane, key: bytes) -> Row:
        """Return a row of a pane that is not in memory."""
        blob = self.store.get(self.name, key + pane.suffix)
        assert blob is not None, "a checkpoint has written it"
        value, timestamp = unwrap(blob)
        return self._load(value), timestamp

    def _pending(self, key: bytes) -> Row | None:
        pane = self.panes.get(int.from_bytes(key[-8:], "big")) if len(key) >= 8 else None
        row = None if pane is None else pane.dirty.get(key[:-8]) or pane.flushing.get(key[:-8])
        return super()._pending(key) if row is None else row

    def _above(self, over: Mapping[bytes, Row], start: bytes, stop: bytes | None) -> dict[bytes, Row]:
        above: dict[bytes, Row] = {}
        for pane in {*self._flushed, *self.panes.values()}:
            for layer in (pane.flushing, pane.dirty):
                for key, row in layer.items():
                    name = key + pane.suffix
                    if name >= start and (stop is None or name < stop):
                        above[name] = row
        above |= super()._above(over, start, stop)
        self.order = None  # of what lies there, hardly anything is in it
        return above

    def count(self, over: Mapping[bytes, Row]) -> int:
        return super().count(over) if not self.panes else sum(len(pane.rows) for pane in self.panes.values())

    # -- checkpoint ---------------------------------------------------------------------------

    @property
    def dirty_bytes(self) -> int:
        rows = len(self.dirty) + sum(len(pane.dirty) for pane in self.panes.values())
        return int(rows * self._size)

    @property
    def _crowded(self) -> bool:
        """Are there more rows than the cache may hold?"""
        return sum(len(pane.rows) for pane in self.panes.values()) * self._size > self.cache_bytes

    def take(self) -> int:
        self.saved.update(name for name, row in self.dirty.items() if row[0] is not None)
        self.saved.difference_update(name for name, row in self.dirty.items() if row[0] is None)
        taken = super().take()
        for pane in self.panes.values():
            if pane.dirty:
                dirty = pane.dirty
                pane.dirty = {}
                if not pane.flushing:
                    self._flushed.append(pane)
                pane.flushing = {**pane.flushing, **dirty} if pane.flushing else dirty
                pane.saved.update(dirty)
        return taken + sum(len(pane.flushing) for pane in self._flushed)

    def encode(self) -> Encoded:
        encoded = super().encode()
        if not self._flushed:
            return encoded
        dump = self._dump_value
        # A pane that is closed by now has its rows dropped, if they were written.
        over = self._flushing if len(self._flushing) > (TIMES in self._flushing) else ()
        for pane in self._flushed:
            suffix = pane.suffix
            rows = [
                (key + suffix, None if entry is None else dump(entry), timestamp)
                for key, (entry, timestamp) in pane.flushing.items()
            ]
            encoded += [row for row in rows if row[0] not in over] if over else rows
        encoded.sort()  # no two have one name: nothing beyond it is compared
        self._measure(encoded)
        return encoded

    def stored(self) -> None:
        super().stored()
        crowded = self._crowded
        for pane in self._flushed:
            if crowded:
                rows, dirty = pane.rows, pane.dirty
                for key, row in pane.flushing.items():
                    # The event at work may have written another: it has the right one to go back to.
                    if rows.get(key) is row and key not in dirty:
                        rows[key] = STORED
            pane.flushing = {}
        self._flushed = []
