"""Session windows: runs of a key's events, each at most a gap apart from the next.

A session [start, end] holds both its ends: they are those of its first and its last event. An event
extends the sessions that are at most a gap away from it, and makes one of two or more. It is open
while end ≥ close; once closed, no event ever finds it again, in update and in final mode alike. Source: spec, B.5,
deviation 4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
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
    end_of,
    new,
    write,
)


@dataclass(frozen=True)
class SessionWindows:
    """Sessions of events at most `gap` ms apart.

    Those of a key that are not closed never overlap. One that grows may come to lie over others that are.
    """

    gap: int
    grace: int = 0
    takes_null: bool = True

    def close(self, time: int) -> int:
        """Return the close time: a session waits for the gap after it, and for the grace after that."""
        return time - self.grace - self.gap

    def end(self, start: int) -> None:
        return None

    def closed(self, end: int, close: int) -> bool:
        return end < close

    def last_closed(self, close: int) -> int:
        return close - 1

    def needed_until(self, close: int) -> int:
        """Return the close time: what has ended before it matters no more, and no such session starts after it.

        Of a session, its start alone decides nothing: one that is still open may have started at any time.
        """
        return close

    def add(
        self, rows: Rows, key: bytes, value: Any, timestamp: int, time: int, close: int, aggregate: Aggregate
    ) -> Change:
        steps: list[Step] = []
        found = list(rows.ending(key, max(timestamp - self.gap, close), timestamp + self.gap))
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
        """Put an event into the session around it. See `agentic.core.windows.NeighbouringWindowing.into`.

        A session that becomes part of another is gone: a step with the value None says so, before that of the whole.

        Raises:
            ValueError: the aggregate has no `merge`.
        """
        if aggregate.merge is None:
            raise ValueError(
                "an aggregate of session windows has no merge: give merge=, which makes one of two sessions"
            )
        earliest, latest = timestamp - self.gap, timestamp + self.gap
        if earliest < close:
            earliest = close
        # Those that are not closed are apart from each other, so in the order of their starts, too.
        first = last = len(rows)
        if first and rows[-1][0] > latest:
            first = last = bisect_left(rows, earliest, key=end_of)
            while last < len(rows) and rows[last][0] <= latest:
                last += 1
        else:
            while first and rows[first - 1][1] >= earliest:
                first -= 1
        if first == last and timestamp < close:
            return (Refused(timestamp, timestamp),), True

        found = rows[first:last]
        start = end = timestamp
        if found:
            if found[0][0] < start:
                start = found[0][0]
            if found[-1][1] > end:
                end = found[-1][1]
        total = _merged(aggregate, found, value, stored)
        now = new(Row, (start, end, total, end))
        if found and start == end:
            # The events are all of one time: the session stays what it is, and nothing is gone.
            steps.append((now, found[0]))
        else:
            for row in found:
                steps.append((new(Row, (row[0], row[1], None, row[1])), row))
            steps.append((now, None))
        rows[first:last] = () if total is None else (now,)
        return TAKEN


def _merged(aggregate: Aggregate, found: Sequence[Row], value: Any, stored: Stored | None) -> Any:
    """Return what is kept of the sessions found, the older first, and a value.

    The initial value, if there is one, is merged with the first session, as Kafka does: a merge may tell.
    """
    values = [row[2] for row in found] if stored is None else [stored.load(row) for row in found]
    if aggregate.first is None:
        total = aggregate.initial()
    elif values:
        total = values.pop(0)
    else:
        total = aggregate.first(value)
        return total if stored is None else stored.dump(total)
    merge = aggregate.merge
    assert merge is not None, "else it is refused"
    for each in values:
        total = merge(total, each)
    total = aggregate.add(total, value)
    return total if stored is None else stored.dump(total)
