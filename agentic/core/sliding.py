"""Sliding windows: for each event the ones that end with it and begin right after it.

A window holds both its ends. Of each key there are, for each event at `t`, a *left* window
[t − size, t], and a *right* window [t + 1, t + 1 + size] if any event lies in it; together they are all
the different sets of events that a span of that length can hold. What would start before zero is one window,
[0, size]. Source: spec, B.4, whose order of updates is kept: a test against Kafka's own sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agentic.core.windows import Aggregate, Change, Refused, Row, Rows, Update, put

#: What can be in two windows at once without harm: nobody can change it in place.
_CONSTANT = frozenset({int, float, str, bytes, bool, type(None)})


class _Event:
    """An event on its way into windows, and what it did to them so far."""

    __slots__ = ("aggregate", "close", "key", "refused", "rows", "size", "timestamp", "updates", "value")

    def __init__(
        self, rows: Rows, key: bytes, value: Any, timestamp: int, size: int, close: int, aggregate: Aggregate
    ) -> None:
        self.rows = rows
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.size = size
        self.close = close
        self.aggregate = aggregate
        self.updates: list[Update] = []
        self.refused: list[Refused] = []

    def enter(self, start: int, base: Row | None, old: Row | None) -> None:
        """Go into a window, on top of what `base` has, unless it is closed."""
        end = start + self.size
        if end < self.close:
            self.refused.append(Refused(start, end))
            return
        if base is None:
            value, newest = self.aggregate.begin(self.value), self.timestamp
        else:
            value, newest = self.aggregate.add(base.value, self.value), max(self.timestamp, base.timestamp)
        self.updates.append(put(self.rows, self.key, start, end, old, value, newest))

    def open_right(self, seed: Row | None) -> None:
        """Make the window that begins right after the event, where it is missing: it can't be closed by now."""
        if seed is not None:
            start = self.timestamp + 1
            self.updates.append(put(self.rows, self.key, start, start + self.size, None, seed.value, seed.timestamp))


@dataclass(frozen=True)
class SlidingWindows:
    """Windows [start, start + size], one for each set of a key's events that are at most `size` ms apart.

    Windows that are closed and out are still needed: those in between are made of them. Source: spec, B.4.
    """

    size: int
    grace: int = 0
    takes_null: bool = False

    def close(self, time: int) -> int:
        return time - self.grace

    def end(self, start: int) -> int:
        return start + self.size

    def closed(self, end: int, close: int) -> bool:
        return end < close

    def last_closed(self, close: int) -> int:
        return close - 1

    def needed_until(self, close: int) -> int:
        """Return a time: windows that start before it matter to no event that may still come.

        An event that is not late as a whole has `t` ≥ close − size, and looks for windows from `t` − 2 · size on
        (spec, deviation 1). Those that start before have ended, and are out, long since.
        """
        return close - 3 * self.size

    def add(
        self, rows: Rows, key: bytes, value: Any, timestamp: int, time: int, close: int, aggregate: Aggregate
    ) -> Change:
        size = self.size
        if timestamp + size < close:
            start = max(0, timestamp - size)
            return Change((), (Refused(start, start + size),), finals=False)
        event = _Event(rows, key, value, timestamp, size, close, aggregate)
        if timestamp < size:
            self._add_early(event, list(rows.starting(key, 0, timestamp + 1))[::-1])
            return Change(event.updates, event.refused, finals=False)
        self._add(event, rows.starting(key, max(0, timestamp - 2 * size), timestamp + 1))
        return Change(event.updates, event.refused)

    def _add(self, event: _Event, found: Iterable[Row]) -> None:
        timestamp, size = event.timestamp, self.size
        seed: Row | None = None
        before: Row | None = None
        previous: int | None = None
        has_left = False
        starts: list[int] = []
        for row in found:
            if not starts:
                seed = _seed_of_right(row, timestamp)
            starts.append(row.start)
            if row.start > timestamp:
                continue
            if row.end < timestamp:
                before, previous = row, row.timestamp
                break
            event.enter(row.start, row, row)
            if row.end == timestamp:
                if row.timestamp == timestamp:
                    # An event at this very time has made all its windows already.
                    return
                has_left, previous = True, row.timestamp

        opened: Row | None = None
        if previous is not None and previous + 1 + size >= timestamp and previous + 1 not in starts:
            event.enter(previous + 1, None, None)
        if not has_left:
            start = timestamp - size
            base = _unshared(before) if before is not None and before.timestamp >= start else None
            if previous is not None and previous + 1 == start:
                # Kafka writes, and sends on, this window twice: as the right one of the event before, and as the left.
                opened = event.rows.get(event.key, start, timestamp)
            event.enter(start, base, opened)
        event.open_right(seed)

    def _add_early(self, event: _Event, found: Sequence[Row]) -> None:
        timestamp = event.timestamp
        seed = _seed_of_right(found[-1], timestamp) if found else None
        starts = {row.start for row in found}
        combined: Row | None = None
        for row in found:
            if row.start == 0:
                combined = row
            elif row.start <= timestamp:
                event.enter(row.start, row, row)
        event.open_right(seed)
        if combined is not None and combined.timestamp < timestamp and combined.timestamp + 1 not in starts:
            event.enter(combined.timestamp + 1, None, None)
        event.enter(0, combined, combined)


def _seed_of_right(last: Row, timestamp: int) -> Row | None:
    """Return the window whose aggregate a missing right window begins with; None: it is there, or would be empty.

    It is the last to start. No window starts between it and the right one, so both have the same events after
    `timestamp`, and, as the events at or before `timestamp` would have opened a window in between, it has no others.
    """
    return None if last.start > timestamp or last.timestamp <= timestamp else _unshared(last)


def _unshared(row: Row) -> Row:
    """Return a window's row with a value of its own, as an aggregate may be one that is changed in place."""
    if type(row.value) in _CONSTANT:
        return row
    return row._replace(value=deepcopy(row.value))
