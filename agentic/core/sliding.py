"""Sliding windows: for each event the ones that end with it and begin right after it.

A window holds both its ends. Of each key there are, for each event at `t`, a *left* window
[t − size, t], and a *right* window [t + 1, t + 1 + size] if any event lies in it; together they are all
the different sets of events that a span of that length can hold. What would start before zero is one window,
[0, size]. Source: spec, B.4, whose order of updates is kept: a test against Kafka's own sees it.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agentic.core.windows import (
    TAKEN,
    Aggregate,
    Change,
    Outcome,
    Refused,
    Row,
    Rows,
    Step,
    Stored,
    new,
    write,
)

#: What can be in two windows at once without harm: nobody can change it in place.
_CONSTANT = frozenset({int, float, str, bytes, bool, type(None)})


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
        steps: list[Step] = []
        found: list[Row] = []
        if timestamp + self.size >= close:
            found = list(rows.starting(key, max(0, timestamp - 2 * self.size), timestamp + 1))[::-1]
        refused, finals = self.into(found, value, timestamp, close, aggregate, steps, None)
        return Change(write(rows, key, steps), refused, finals)

    def into(
        self,
        rows: list[Row],
        value: Any,
        timestamp: int,
        close: int,
        aggregate: Aggregate,
        steps: list[Step],
        stored: Stored | None,
    ) -> Outcome:
        """See `agentic.core.windows.NeighbouringWindowing.into`."""
        size = self.size
        if timestamp + size < close:
            start = max(0, timestamp - size)
            return (Refused(start, start + size),), False
        if timestamp < size:
            return self._into_early(rows, value, timestamp, close, aggregate, steps, stored), False

        add = aggregate.add
        refused: list[Refused] = []
        after = len(rows)  # how many start by the time at which the right window does
        if after and rows[-1][0] > timestamp + 1:
            after = bisect_left(rows, (timestamp + 2,))
        at = after - 1
        seed: Row | None = None
        if at >= 0:
            last = rows[at]
            if last[0] > timestamp:
                at -= 1
            elif last[3] > timestamp:
                seed = _right(last, timestamp, size, stored)

        # Those that contain the event, the last to start first, down to the one before them.
        before: Row | None = None
        previous = -1  # the time of the event before
        has_left = False
        erased: list[int] = []
        while at >= 0:
            row = rows[at]
            start, end, old, newest = row
            if end < timestamp:
                if start >= timestamp - 2 * size:
                    before, previous = row, newest
                break
            if end < close:
                refused.append(Refused(start, end))
            else:
                total = add(old, value) if stored is None else stored.dump(add(stored.load(row), value))
                now = new(Row, (start, end, total, newest if newest > timestamp else timestamp))
                steps.append((now, row))
                if total is not None:
                    rows[at] = now
                else:
                    del rows[at]
                    erased.append(start)
                    after -= 1
            if end == timestamp:
                if newest == timestamp:
                    # An event at this very time has made all its windows already.
                    return (refused, True) if refused else TAKEN
                has_left, previous = True, newest
            at -= 1

        first = at + 1
        if previous >= 0 and previous + 1 + size >= timestamp:
            start = previous + 1
            at = bisect_left(rows, (start,), first, after)
            if (at == after or rows[at][0] != start) and start not in erased:
                # The right window of the event before, which was empty until now.
                if start + size < close:
                    refused.append(Refused(start, start + size))
                else:
                    total = _begun(aggregate, value, stored)
                    after += _step(rows, at, new(Row, (start, start + size, total, timestamp)), None, steps)
        if not has_left:
            start = timestamp - size
            if timestamp < close:
                refused.append(Refused(start, timestamp))
            else:
                if before is not None and before[3] >= start:
                    total = add(_unshared(before[2] if stored is None else stored.load(before)), value)
                    if stored is not None:
                        total = stored.dump(total)
                else:
                    total = _begun(aggregate, value, stored)
                # Kafka writes, and sends on, a window twice that is the right one of the event before, and the left.
                opened = rows[first] if first < after and rows[first][0] == start else None
                after += _step(rows, first, new(Row, (start, timestamp, total, timestamp)), opened, steps)
        if seed is not None:
            # It can't be closed by now.
            _step(rows, after, seed, None, steps)
        return (refused, True) if refused else TAKEN

    def _into_early(
        self,
        rows: list[Row],
        value: Any,
        timestamp: int,
        close: int,
        aggregate: Aggregate,
        steps: list[Step],
        stored: Stored | None,
    ) -> list[Refused]:
        """Put an event in that comes before the first window could end with one: [0, size] is the left one of all."""
        refused: list[Refused] = []

        def enter(start: int, old: Row | None) -> None:
            if start + self.size < close:
                refused.append(Refused(start, start + self.size))
                return
            if old is None:
                total, newest = _begun(aggregate, value, stored), timestamp
            else:
                total = aggregate.add(old.value if stored is None else stored.load(old), value)
                total, newest = total if stored is None else stored.dump(total), max(timestamp, old.timestamp)
            now = Row(start, start + self.size, total, newest)
            _step(rows, bisect_left(rows, (start,)), now, old, steps)

        found = rows[: bisect_left(rows, (timestamp + 2,))]
        starts = {row.start for row in found}
        last = found[-1] if found else None
        seed = None
        if last is not None and last.start <= timestamp < last.timestamp:
            seed = _right(last, timestamp, self.size, stored)
        combined = found[0] if 0 in starts else None
        for row in found:
            if 0 < row.start <= timestamp:
                enter(row.start, row)
        if seed is not None:
            _step(rows, bisect_left(rows, (seed.start,)), seed, None, steps)
        if combined is not None and combined.timestamp < timestamp and combined.timestamp + 1 not in starts:
            enter(combined.timestamp + 1, None)
        enter(0, combined)
        return refused


def _step(rows: list[Row], at: int, now: Row, old: Row | None, steps: list[Step]) -> int:
    """Write a window at its place, where `old` is, if it is not None; return by how much there are more rows."""
    steps.append((now, old))
    if old is None:
        if now[2] is None:
            return 0
        rows.insert(at, now)
        return 1
    if now[2] is None:
        del rows[at]
        return -1
    rows[at] = now
    return 0


def _begun(aggregate: Aggregate, value: Any, stored: Stored | None) -> Any:
    """Return the aggregate of a value alone."""
    total = aggregate.begin(value) if aggregate.first is None else aggregate.first(value)
    return total if stored is None else stored.dump(total)


def _right(last: Row, timestamp: int, size: int, stored: Stored | None) -> Row:
    """Return the window that begins right after an event, where it is missing and not empty.

    `last` is the last to start until then. No window starts between it and the right one, so both have the same events
    after `timestamp`, and, as the events at or before `timestamp` would have opened a window in between, it has no
    others.
    """
    value = _unshared(last[2]) if stored is None else stored.dump(stored.load(last))
    return new(Row, (timestamp + 1, timestamp + 1 + size, value, last[3]))


def _unshared(value: Any) -> Any:
    """Return a window's value as one of its own: an aggregate may be one that is changed in place."""
    return value if type(value) in _CONSTANT else deepcopy(value)
