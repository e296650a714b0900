"""Session windows: runs of a key's events, each at most a gap apart from the next.

A session [start, end] holds both its ends: they are those of its first and its last event. An event
extends the sessions that are at most a gap away from it, and makes one of two or more. It is open
while end ≥ close; once closed, no event ever finds it again, in update and in final mode alike. Source: spec, B.5,
deviation 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentic.core.windows import Aggregate, Change, Refused, Row, Rows, Update, new, put


@dataclass(frozen=True)
class SessionWindows:
    """Sessions of events at most `gap` ms apart. Those of a key never overlap."""

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
        """Put an event into the session around it.

        A session that becomes part of another is gone: an update with the value None says so, before that of the whole.

        Raises:
            ValueError: the aggregate has no `merge`.
        """
        if aggregate.merge is None:
            raise ValueError(
                "an aggregate of session windows has no merge: give merge=, which makes one of two sessions"
            )
        found = rows.ending(key, max(timestamp - self.gap, close), timestamp + self.gap)
        if not found:
            if timestamp < close:
                return Change((), (Refused(timestamp, timestamp),))
            made = put(
                rows, key, timestamp, timestamp, None, _merged(aggregate, aggregate.merge, found, value), timestamp
            )
            return Change((made,), ())

        start, end = min(timestamp, found[0].start), max(timestamp, found[-1].end)
        merged = _merged(aggregate, aggregate.merge, found, value)
        if start == end:
            # The events are all of one time: the session stays what it is, and nothing is gone.
            return Change((put(rows, key, start, end, found[0], merged, end),), ())
        # The whole first: where it is refused, as of a type that it must not be, nothing may be gone.
        # Only one that is alone can have the bounds of the whole, as sessions do not overlap.
        first = found[0]
        same = first if first.start == start and first.end == end else None
        put(rows, key, start, end, same, merged, end)
        if same is None:
            for row in found:
                rows.remove(key, row.start, row.end)
        updates = [new(Update, (row.start, row.end, None, row.value, row.end)) for row in found]
        updates.append(new(Update, (start, end, merged, None, end)))
        return Change(updates, ())


def _merged(aggregate: Aggregate, merge: Callable[[Any, Any], Any], found: Sequence[Row], value: Any) -> Any:
    """Return the aggregate of the sessions found, the older first, and a value.

    The initial value, if there is one, is merged with the first session, as Kafka does: a merge may tell.
    """
    if aggregate.first is None:
        total = aggregate.initial()
        rest = found
    elif found:
        total = found[0].value
        rest = found[1:]
    else:
        return aggregate.first(value)
    for row in rest:
        total = merge(total, row.value)
    return aggregate.add(total, value)
