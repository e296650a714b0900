"""Windows of fixed bounds in memory, by their start.

A *pane* is one window of time with the rows of all keys that have something in it. Putting a
value into a window is a look into its pane, by the bytes of the key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from agentic.state.buffer import ABSENT, Encoded, Row
from agentic.state.envelope import unwrap
from agentic.state.grouped import Group, GroupedBuffer

E = TypeVar("E")

#: In a pane, a row that the store has: no entry, and other than `ABSENT` to whoever asks which.
STORED: Final[Row] = (None, -1)
#: Rows that are let go of at once: a millisecond's worth.
LARGE = 20_000


class Pane(Group):
    """One window of time. Within it, a row is known by the bytes of its key.

    Attributes:
        rows: all that there are, those of the event at work included; `STORED` where it must be loaded.
        suffix: the end of all rows' names.
    """

    __slots__ = ("end", "rows", "start", "suffix")

    def __init__(self, start: int, end: int, rows: dict[bytes, Row]) -> None:
        super().__init__()
        self.start = start
        self.end = end
        self.rows = rows
        self.suffix = start.to_bytes(8, "big")

    def named(self, rows: Mapping[bytes, Row]) -> Iterator[tuple[bytes, Row]]:
        suffix = self.suffix
        return ((key + suffix, row) for key, row in rows.items())

    def encode(self, rows: Mapping[bytes, Row], dump: Callable[[Any], bytes]) -> Encoded:
        suffix = self.suffix
        return [
            (key + suffix, None if entry is None else dump(entry), timestamp)
            for key, (entry, timestamp) in rows.items()
        ]

    def taken(self, rows: Mapping[bytes, Row]) -> None:
        # One that was erased stays: to delete it twice does no harm, and it is rare.
        if self.saved is None:
            self.saved = set(rows)
        else:
            self.saved.update(rows)

    def trim(self, rows: Mapping[bytes, Row]) -> None:
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

    def group_of(self, name: bytes) -> tuple[Pane, bytes] | None:
        pane = self.panes.get(int.from_bytes(name[-8:], "big")) if len(name) >= 8 else None
        return None if pane is None else (pane, name[:-8])

    def stored(self) -> None:
        self.held = sum(len(pane.rows) for pane in self.panes.values())
        super().stored()
