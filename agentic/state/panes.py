"""Windows of fixed bounds in memory, by their start.

A *pane* is one window of time with the rows of all keys that have something in it. Putting a
value into a window is a look into its pane, by the bytes of the key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from agentic.state.buffer import ABSENT, Encoded, Row
from agentic.state.envelope import unwrap, unwrap_all
from agentic.state.grouped import Due, GroupedBuffer
from agentic.state.window_keys import TIMES

E = TypeVar("E")

#: In a pane, a row that the store has: no entry, and other than `ABSENT` to whoever asks which.
STORED: Final[Row] = (None, -1)
#: Rows that are let go of at once: a millisecond's worth.
LARGE = 20_000


class Pane:
    """One window of time. Within it, a row is known by the bytes of its key.

    Attributes:
        rows: all that there are, those of the event at work included; `STORED` where it must be loaded.
        suffix: the end of all rows' names.
        dirty: rows of completed events since the last checkpoint began; without an entry, a row that is gone.
        flushing: rows of the checkpoint that is under way.
        saved: rows that the store, or the changelog, has.
    """

    __slots__ = ("dirty", "end", "flushing", "rows", "saved", "start", "suffix")

    def __init__(self, start: int, end: int, rows: dict[bytes, Row]) -> None:
        self.dirty: dict[bytes, Row] | None = None
        self.flushing: dict[bytes, Row] | None = None
        self.saved: set[bytes] | None = None
        self.start = start
        self.end = end
        self.rows = rows
        self.suffix = start.to_bytes(8, "big")

    def named(self, rows: Mapping[bytes, Row]) -> Iterator[tuple[bytes, Row]]:
        """Iterate over rows with their names."""
        suffix = self.suffix
        return ((key + suffix, row) for key, row in rows.items())

    def encode(self, rows: Mapping[bytes, Row], dump: Callable[[Any], bytes]) -> Encoded:
        """Return rows as a checkpoint writes them, in any order."""
        suffix = self.suffix
        return [
            (key + suffix, None if entry is None else dump(entry), timestamp)
            for key, (entry, timestamp) in rows.items()
        ]

    def taken(self, rows: Mapping[bytes, Row]) -> None:
        """A checkpoint has begun that writes these rows: note which ones the store has from now on."""
        # One that was erased stays: to delete it twice does no harm, and it is rare.
        if self.saved is None:
            self.saved = set(rows)
        else:
            self.saved.update(rows)

    def trim(self, rows: Mapping[bytes, Row]) -> None:
        """Keep none of these rows in memory, which the store has, unless another has taken its place."""
        mine = self.rows
        for key, row in rows.items():
            # The event at work may have written another: it has the right one to go back to.
            if mine.get(key) is row:
                mine[key] = STORED


class PanedBuffer(GroupedBuffer[E]):
    """A windowed table's rows in one task, where its windows have fixed bounds.

    Attributes:
        panes: by start; all that are not closed and forgotten.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.panes: dict[int, Pane] = {}
        #: Panes with rows that no checkpoint has begun to write; with rows of the one that is under way.
        self._soiled: list[Pane] = []
        self._flushed: list[Pane] = []
        #: Rows of the last checkpoint that was stored, if there are too many for the cache.
        self._resting: list[tuple[Pane, Mapping[bytes, Row]]] = []

    def open(self, start: int, end: int, rows: dict[bytes, Row]) -> Pane:
        """Make the pane of a window."""
        pane = self.panes[start] = Pane(start, end, rows)
        return pane

    def close(self, start: int) -> Iterator[bytes]:
        """Forget a pane; return the names of its rows that are left to be dropped."""
        pane = self.panes.pop(start)
        if pane.dirty is not None:
            pane.dirty.clear()
        return self._left(pane)

    def _left(self, pane: Pane) -> Iterator[bytes]:
        suffix, rows, saved = pane.suffix, pane.rows, pane.saved or set()
        if len(rows) > LARGE:
            # Let go of all at once, they would hold everybody up: they go as their names do.
            while rows:
                key, _ = rows.popitem()
                if key in saved:
                    saved.remove(key)
                    self.saved.add(key + suffix)
                yield key + suffix
        for key in saved:
            name = key + suffix
            self.saved.add(name)
            yield name

    def soil(self, pane: Pane) -> dict[bytes, Row]:
        """Return where to put what has changed in a pane, with nothing in it yet."""
        self._soiled.append(pane)
        dirty = pane.dirty = {}
        return dirty

    def complete(self, pane: Pane, key: bytes, row: Row) -> None:
        """A completed event has written a row; one that is gone, and was never written, leaves no trace."""
        dirty = self.soil(pane) if pane.dirty is None else pane.dirty
        dirty[key] = row
        if row[0] is None and (pane.saved is None or key not in pane.saved):
            del dirty[key]

    def restore(self, pane: Pane, key: bytes, row: Row) -> None:
        """Take a row over that the store has, when the task begins."""
        self.held += 1
        if self.full:
            row, self.trimmed = STORED, True
        pane.rows[key] = row
        pane.taken({key: row})

    def ungroup(self) -> None:
        super().ungroup()
        self.panes.clear()

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

    def due(self, pane: Pane, keys: Sequence[bytes]) -> list[Due]:
        """Return windows of a pane as they come out, whether they are in memory or not."""
        rows, suffix, start, end = pane.rows, pane.suffix, pane.start, pane.end
        found = [rows[key] for key in keys]
        if STORED in found:
            names = [key + suffix for key, row in zip(keys, found) if row is STORED]
            blobs = [blob for blob in self.store.get_many(self.name, names) if blob is not None]
            assert len(blobs) == len(names), "a checkpoint has written them"
            load = self._load
            loaded = iter([(load(value), timestamp) for value, timestamp in unwrap_all(blobs)])
            found = [next(loaded) if row is STORED else row for row in found]
        return [(key, start, end, *row) for key, row in zip(keys, found)]

    def _pending(self, key: bytes) -> Row | None:
        pane = self.panes.get(int.from_bytes(key[-8:], "big")) if len(key) >= 8 else None
        if pane is not None:
            for layer in (pane.dirty, pane.flushing):
                if layer is not None and (row := layer.get(key[:-8])) is not None:
                    return row
        return super()._pending(key)

    def _above(self, over: Mapping[bytes, Row], start: bytes, stop: bytes | None) -> dict[bytes, Row]:
        above: dict[bytes, Row] = {}
        for pane in {*self._flushed, *self._soiled}:
            for layer in (pane.flushing, pane.dirty):
                for name, row in pane.named(layer or {}):
                    if name >= start and (stop is None or name < stop):
                        above[name] = row
        above |= super()._above(over, start, stop)
        self.order = None  # of what lies there, hardly anything is in it
        return above

    # -- checkpoint ---------------------------------------------------------------------------

    @property
    def dirty_bytes(self) -> int:
        rows = len(self.dirty) + sum(len(pane.dirty) for pane in self._soiled if pane.dirty)
        return int(rows * self._size)

    def take(self) -> int:
        taken = super().take()
        for pane in self._soiled:
            dirty, pane.dirty = pane.dirty, None
            if dirty:
                if pane.flushing is None:
                    self._flushed.append(pane)
                    pane.flushing = dirty
                else:
                    pane.flushing = {**pane.flushing, **dirty}
                pane.taken(dirty)
        self._soiled = []
        return taken + sum(len(pane.flushing) for pane in self._flushed if pane.flushing)

    def encode(self) -> Encoded:
        encoded = super().encode()
        if not self._flushed:
            return encoded
        dump = self._dump_value
        # A pane that is gone by now has its rows dropped, if they were written.
        over = self._flushing if len(self._flushing) > (TIMES in self._flushing) else ()
        for pane in self._flushed:
            rows = pane.encode(pane.flushing or {}, dump)
            encoded += [row for row in rows if row[0] not in over] if over else rows
        encoded.sort()  # no two have one name: nothing beyond it is compared
        self._measure(encoded)
        return encoded

    def stored(self) -> None:
        self.held = sum(len(pane.rows) for pane in self.panes.values())
        super().stored()
        # Rows that are written in each checkpoint stay in memory, however many others there are.
        resting, self._resting = self._resting, []
        if self.full:
            for pane, rows in resting:
                pane.trim(rows)
                self.trimmed = True
            self._resting = [(pane, pane.flushing or {}) for pane in self._flushed]
        for pane in self._flushed:
            pane.flushing = None
        self._flushed = []
