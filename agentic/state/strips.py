"""Windows of one key beside each other in memory: sliding windows and sessions, which are found by their neighbours.

A *strip* has the windows of one key in the order of their ends, no two of which are the same. Sliding windows are in
the order of their starts, too, and so are sessions that are not closed.

Nothing is noted of a row that changes: what a checkpoint has to write of a strip is what tells its rows from
those that the checkpoint before has taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

from agentic.core.windows import Row as Window
from agentic.core.windows import Step, end_of, new
from agentic.state.buffer import Encoded, Row
from agentic.state.envelope import unwrap
from agentic.state.grouped import Due, GroupedBuffer
from agentic.state.window_keys import WindowKeys

E = TypeVar("E")

#: A place in the index: the end of a window, its start, the bytes of its key.
Place = tuple[int, int, bytes]
#: That of no window: after all others.
NOWHERE: Final[Place] = (1 << 64, 0, b"")
#: After the end of any window.
_LAST: Final = 1 << 64

_key = attrgetter("key")


class Strip:
    """The windows of one key.

    Attributes:
        key: its bytes in the store.
        rows: the windows, with their entries for values, those of the event at work included; one whose entry is None
            must be loaded.
        out: how many of them, the first ones, are closed and have been given out.
        saved: the rows that the store, or the changelog, has.
        low: the least end of a row that may be another than what is saved; None where all are the same.
        flushing: what the checkpoint that is under way writes.
        armed: its place in the index of what is open.
        leaving: is it in the index of what is to be forgotten?
    """

    __slots__ = ("armed", "flushing", "key", "leaving", "low", "out", "rows", "saved")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.rows: list[Window] = []
        self.out = 0
        self.saved: list[Window] = []
        self.low: int | None = None
        self.flushing: list[Window] | None = None
        self.armed = NOWHERE
        self.leaving = False

    def undo(self, steps: list[Step], rows: list[Window]) -> None:
        """Take the steps of an event back, in the strip's rows or a copy of them."""
        for now, before in reversed(steps):
            at = bisect_left(rows, now[1], key=end_of)
            if now[2] is None:
                if before is not None:
                    rows.insert(at, before)
            elif before is None:
                del rows[at]
            else:
                rows[at] = before


class StripedBuffer(GroupedBuffer[E]):
    """A windowed table's rows in one task, where its windows are found by their neighbours.

    Args:
        keys: how windows are named.

    Attributes:
        strips: by key; one without windows is let go of.
        at_work: what the event at work has done, in order.
        time: the table's, for what the changelog is told of rows that are gone.
    """

    def __init__(self, *arguments: Any, keys: WindowKeys, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.strips: dict[bytes, Strip] = {}
        self.at_work: list[tuple[Strip, list[Step]]] = []
        self.time = 0
        self._keys = keys
        #: Strips that have changed since the last checkpoint began; with rows of the one that is under way.
        self._soiled: list[Strip] = []
        self._flushed: list[Strip] = []
        #: About how many rows no checkpoint has begun to write.
        self._dirty_rows = 0
        #: Rows of the last checkpoint that was stored, if there are too many for the cache.
        self._resting: list[tuple[Strip, list[Window]]] = []

    def strip(self, key: bytes) -> Strip:
        """Return the strip of a key, made where it has none."""
        strip = self.strips.get(key)
        if strip is None:
            strip = self.strips[key] = Strip(key)
        return strip

    def complete(self, strip: Strip, steps: list[Step]) -> None:
        """An event that has done these steps is complete."""
        low = strip.low
        if low is None:
            self._soiled.append(strip)
            self._dirty_rows += 1
            low = _LAST
        more = 0
        for now, before in steps:
            if now[1] < low:
                low = now[1]
            if before is None:
                if now[2] is not None:
                    more += 1
            elif now[2] is None:
                more -= 1
        strip.low = low
        self.held += more
        self._dirty_rows += more > 0
        if not strip.rows:
            self.tidy(strip)

    def fail(self) -> list[Strip]:
        """The event at work has failed: take back what it has done; return the strips that it had to do with."""
        for strip, steps in reversed(self.at_work):
            strip.undo(steps, strip.rows)
        strips = [strip for strip, _ in self.at_work]
        self.at_work.clear()
        # Not before all is taken back: what is empty in between may not stay so.
        for strip in strips:
            self.tidy(strip)
        return strips

    def leave(self, strip: Strip, upto: int) -> int:
        """Remove windows that end by a time and have been given out; return how many they were."""
        rows, out = strip.rows, strip.out
        gone = 0
        while gone < out and rows[gone][1] <= upto:
            gone += 1
        if gone:
            del rows[:gone]
            strip.out = out - gone
            self.held -= gone
            if strip.low is None:
                self._soiled.append(strip)
                strip.low = _LAST
            self._dirty_rows += gone
            if not rows and not self.at_work:
                self.tidy(strip)
        return gone

    def tidy(self, strip: Strip) -> None:
        """Let go of a strip, if there is nothing in it.

        Not of one that an event at work has emptied, while it may still fail: what it took out comes back then.
        """
        if not (strip.rows or strip.saved or strip.flushing) and self.strips.get(strip.key) is strip:
            del self.strips[strip.key]

    def restore(self, name: bytes, row: Row) -> Strip:
        """Take a row over that the store has, when the task begins; return its strip. They come in order."""
        key, start, end = self._keys.key(name), self._keys.start(name), self._keys.end(name)
        entry, timestamp = row
        self.held += 1
        if self.full:
            entry, self.trimmed = None, True
        strip = self.strip(key)
        window = Window(start, end, entry, timestamp)
        strip.rows.append(window)
        strip.saved.append(window)
        return strip

    def ungroup(self) -> None:
        super().ungroup()
        self.strips.clear()

    # -- reading ------------------------------------------------------------------------------

    def entry(self, key: bytes, row: Window) -> E:
        """Return the entry of a window."""
        if row[2] is not None:
            return row[2]  # type: ignore[no-any-return]
        blob = self.store.get(self.name, self._keys.name(key, row[0], row[1]))
        assert blob is not None, "a checkpoint has written it"
        return self._load(unwrap(blob)[0])

    def loaded(self, rows: Iterable[Due]) -> list[Due]:
        """Return windows that come out with their entries."""
        return [
            (key, *row) if row[2] is not None else (key, row[0], row[1], self.entry(key, new(Window, row)), row[3])
            for key, *row in rows
        ]

    def _pending(self, key: bytes) -> Row | None:
        strip = self.strips.get(self._keys.key(key)) if key else None  # no window has an empty name
        if strip is not None:
            start, end = self._keys.start(key), self._keys.end(key)
            layers = (strip.flushing or (), () if strip.low is None else self._changed(strip, self._completed(strip)))
            for layer in reversed(layers):
                for row in layer:
                    if row[0] == start and row[1] == end:
                        return row.value, row.timestamp
        return super()._pending(key)

    def _above(self, over: Mapping[bytes, Row], start: bytes, stop: bytes | None) -> dict[bytes, Row]:
        above: dict[bytes, Row] = {}
        name_of = self._keys.name
        layers = [(strip, strip.flushing or ()) for strip in self._flushed]
        layers += [(strip, self._changed(strip, self._completed(strip))) for strip in self._soiled]
        for strip, rows in layers:
            for row in rows:
                name = name_of(strip.key, row[0], row[1])
                if name >= start and (stop is None or name < stop):
                    above[name] = (row.value, row.timestamp)
        above |= super()._above(over, start, stop)
        self.order = None  # of what lies there, hardly anything is in it
        return above

    # -- checkpoint ---------------------------------------------------------------------------

    @property
    def dirty_bytes(self) -> int:
        return int((len(self.dirty) + self._dirty_rows) * self._size)

    def _completed(self, strip: Strip) -> list[Window]:
        """Return the rows of a strip without what the event at work has done."""
        rows = strip.rows
        for other, steps in reversed(self.at_work):
            if other is strip:
                if rows is strip.rows:
                    rows = rows.copy()
                strip.undo(steps, rows)
        return rows

    def _changed(self, strip: Strip, rows: list[Window]) -> list[Window]:
        """Return what a checkpoint has to write of a strip with these rows; those that are gone without an entry."""
        saved, low = strip.saved, strip.low
        assert low is not None, "else there is nothing"
        if not saved:
            return rows.copy()
        # Those before the first row are gone, mostly since they have been forgotten.
        first = 0
        if not rows:
            first = len(saved)
        elif rows[0] is not saved[0]:
            first = bisect_left(saved, rows[0][1], key=end_of)
        gone = saved[:first]
        mine = rows[_least(rows, low) :]
        if saved[-1][1] >= low:
            last = saved[max(first, _least(saved, low)) :]
            known = set(map(id, last))
            written = [row for row in mine if id(row) not in known]
            if len(last) + len(written) > len(mine):
                # Some of the old ones have others in their place, or are gone.
                there = {row[:2] for row in mine}
                gone += [row for row in last if row[:2] not in there]
        else:
            written = mine
        if not gone:
            return written
        time = max(self.time, 0)
        return [new(Window, (start, end, None, time)) for start, end, _, _ in gone] + written

    def take(self) -> int:
        taken = super().take()
        soiled, self._soiled = self._soiled, []
        at_work = {strip.key for strip, _ in self.at_work}
        for strip in soiled:
            rows = self._completed(strip) if strip.key in at_work else strip.rows
            changed = self._changed(strip, rows)
            strip.low = None
            if not changed:
                if not strip.rows and strip.key not in at_work:
                    self.tidy(strip)
                continue
            strip.saved = rows.copy()
            if strip.flushing is None:
                self._flushed.append(strip)
                strip.flushing = changed
            else:
                merged = {row[:2]: row for row in strip.flushing}
                merged.update((row[:2], row) for row in changed)
                strip.flushing = list(merged.values())
        self._dirty_rows = 0
        return taken + len(self._flushed)

    def encode(self) -> Encoded:
        encoded = super().encode()
        if not self._flushed:
            return encoded
        encode, dump = self._keys.encoded, self._dump_value
        self._flushed.sort(key=_key)  # so that the rows are nearly in order
        for strip in self._flushed:
            encoded += encode(strip.key, strip.flushing or (), dump)
        encoded.sort()  # no two have one name: nothing beyond it is compared
        self._measure(encoded)
        return encoded

    def stored(self) -> None:
        super().stored()
        # Rows that are written in each checkpoint stay in memory, however many others there are.
        resting, self._resting = self._resting, []
        if self.full:
            for strip, rows in resting:
                self._trim(strip, rows)
            self._resting = [(strip, strip.flushing or []) for strip in self._flushed]
        at_work = {strip.key for strip, _ in self.at_work}
        for strip in self._flushed:
            strip.flushing = None
            if not strip.rows and strip.key not in at_work:
                self.tidy(strip)
        self._flushed = []

    def _trim(self, strip: Strip, rows: list[Window]) -> None:
        """Keep none of these rows in memory, which the store has, unless another has taken its place."""
        for row in rows:
            if row[2] is None:
                continue
            mine = bisect_left(strip.rows, row[1], key=end_of)
            saved = bisect_left(strip.saved, row[1], key=end_of)
            if (
                mine < len(strip.rows)
                and saved < len(strip.saved)
                and strip.rows[mine] is row
                and strip.saved[saved] is row
            ):
                strip.rows[mine] = strip.saved[saved] = Window(row[0], row[1], None, row[3])
                self.trimmed = True


def _least(rows: list[Window], end: int) -> int:
    """Return the place of the first row that ends at a time or later: near the last one, mostly."""
    at = len(rows)
    while at and rows[at - 1][1] >= end:
        at -= 1
    return at
