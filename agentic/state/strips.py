"""Windows of one key beside each other in memory: sliding windows and sessions, which are found by their neighbours.

A *strip* has the windows of one key in the order of their starts; sessions of a key never overlap,
so that is the order of their ends, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from agentic.core.windows import Row as Window
from agentic.state.buffer import Encoded, Row
from agentic.state.envelope import unwrap
from agentic.state.grouped import Group, GroupedBuffer

E = TypeVar("E")

#: The bounds of a window: start, end.
Bounds = tuple[int, int]


class Strip(Group):
    """The windows of one key. Within it, a row is known by its bounds.

    Attributes:
        key: its bytes in the store.
        rows: the windows, with their entries for values, those of the event at work included; one whose entry is None
            must be loaded.
    """

    __slots__ = ("_name", "key", "rows")

    def __init__(self, key: bytes, name: Callable[[bytes, int, int], bytes]) -> None:
        super().__init__()
        self.key = key
        self.rows: list[Window] = []
        self._name = name

    def place(self, start: int, end: int) -> int:
        """Return where a window is, or belongs."""
        return bisect_left(self.rows, (start, end))

    def find(self, start: int, end: int) -> Window | None:
        """Return the window with these bounds."""
        rows = self.rows
        at = bisect_left(rows, (start, end))
        if at == len(rows):
            return None
        row = rows[at]
        return row if row[0] == start and row[1] == end else None

    def named(self, rows: Mapping[Bounds, Window]) -> Iterator[tuple[bytes, Row]]:
        key, name = self.key, self._name
        return ((name(key, start, end), (entry, timestamp)) for start, end, entry, timestamp in rows.values())

    def encode(self, rows: Mapping[Bounds, Window], dump: Callable[[Any], bytes]) -> Encoded:
        key, name = self.key, self._name
        return [
            (name(key, start, end), None if entry is None else dump(entry), timestamp)
            for start, end, entry, timestamp in rows.values()
        ]

    def taken(self, rows: Mapping[Bounds, Window]) -> None:
        saved = self.saved
        if saved is None:
            saved = self.saved = set()
        for bounds, row in rows.items():
            if row[2] is None:
                saved.discard(bounds)
            else:
                saved.add(bounds)

    def trim(self, rows: Mapping[Bounds, Window]) -> None:
        for (start, end), row in rows.items():
            at = self.place(start, end)
            if at < len(self.rows) and self.rows[at] is row:
                self.rows[at] = Window(start, end, None, row.timestamp)


class StripedBuffer(GroupedBuffer[E]):
    """A windowed table's rows in one task, where its windows are found by their neighbours.

    Args:
        name_of: makes the name of a window of its key, its start and its end.
        parts_of: makes these of the name.

    Attributes:
        strips: by key; one without windows is let go of.
    """

    def __init__(
        self,
        *arguments: Any,
        name_of: Callable[[bytes, int, int], bytes],
        parts_of: Callable[[bytes], tuple[bytes, int, int]],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.strips: dict[bytes, Strip] = {}
        #: Rows that no checkpoint has begun to write.
        self._dirty_rows = 0
        self._name_of = name_of
        self._parts_of = parts_of

    def strip(self, key: bytes) -> Strip:
        """Return the strip of a key, made where it has none."""
        strip = self.strips.get(key)
        if strip is None:
            strip = self.strips[key] = Strip(key, self._name_of)
        return strip

    def complete(self, strip: Strip, row: Window) -> None:
        """A completed event has written a window."""
        dirty = self.soil(strip) if strip.dirty is None else strip.dirty
        before = len(dirty)
        dirty[row[0], row[1]] = row
        self._dirty_rows += len(dirty) - before

    def gone(self, strip: Strip, start: int, end: int, timestamp: int) -> None:
        """A window is no more; one that was never written leaves no trace."""
        bounds = (start, end)
        if strip.saved is not None and bounds in strip.saved:
            self.complete(strip, Window(start, end, None, timestamp))
        elif strip.dirty is not None and strip.dirty.pop(bounds, None) is not None:
            self._dirty_rows -= 1

    def forget_window(self, key: bytes, start: int, end: int, timestamp: int) -> None:
        """Remove a window that no event can need any more."""
        strip = self.strips[key]
        del strip.rows[strip.place(start, end)]
        self.held -= 1
        self.gone(strip, start, end, timestamp)
        if not strip.rows:
            self.tidy(strip)

    def tidy(self, strip: Strip) -> None:
        """Let go of a strip, if there is nothing in it."""
        if not (strip.rows or strip.dirty or strip.flushing or strip.saved):
            self.strips.pop(strip.key, None)

    def restore(self, name: bytes, row: Row) -> tuple[bytes, int, int]:
        """Take a row over that the store has, when the task begins; return its key and bounds."""
        key, start, end = self._parts_of(name)
        entry, timestamp = row
        self.held += 1
        if self.full:
            entry, self.trimmed = None, True
        strip = self.strip(key)
        strip.rows.append(Window(start, end, entry, timestamp))
        if strip.saved is None:
            strip.saved = set()
        strip.saved.add((start, end))
        return key, start, end

    def ungroup(self) -> None:
        super().ungroup()
        self.strips.clear()

    # -- reading ------------------------------------------------------------------------------

    def loaded(self, key: bytes, row: Window) -> Window:
        """Return a window with its entry."""
        start, end, entry, _ = row
        if entry is not None:
            return row
        blob = self.store.get(self.name, self._name_of(key, start, end))
        assert blob is not None, "a checkpoint has written it"
        value, timestamp = unwrap(blob)
        return Window(start, end, self._load(value), timestamp)

    def group_of(self, name: bytes) -> tuple[Strip, Bounds] | None:
        if not name:
            return None  # no window has an empty name
        key, start, end = self._parts_of(name)
        strip = self.strips.get(key)
        return None if strip is None else (strip, (start, end))

    @property
    def dirty_bytes(self) -> int:
        return int((len(self.dirty) + self._dirty_rows) * self._size)

    def take(self) -> int:
        self._dirty_rows = 0
        return super().take()

    def stored(self) -> None:
        flushed = list(self._flushed)
        super().stored()
        for strip in flushed:
            assert isinstance(strip, Strip), "it has no others"
            if not strip.rows:
                self.tidy(strip)
