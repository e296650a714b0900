"""Windows over a table's keys: what an event changes in them, as values.

An operator keeps, for each key, windows with a value each. An event at time `t` is put into
the windows of its key that contain it and are not *closed*; what closes them is the operator's
stream time `T`, less its grace. The rules are Kafka Streams', less its faults: spec, B.

Times are integers, milliseconds since the epoch. How windows are stored is the caller's: an
operator sees them through `Rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol


class Row(NamedTuple):
    """A window of a key as it is stored.

    Attributes:
        end: of time windows the first time that is not in it; of sliding and session windows the last that is.
        value: the aggregate; never None.
        timestamp: the greatest timestamp of an event in it.
    """

    start: int
    end: int
    value: Any
    timestamp: int


#: Makes the end of a row, by which rows of a key are in order.
end_of: Final[Callable[[Row], int]] = itemgetter(1)


class Rows(Protocol):
    """The windows of one operator. A key is the bytes that it is stored by."""

    def get(self, key: bytes, start: int, end: int) -> Row | None:
        """Return the window of a key with these bounds."""

    def starting(self, key: bytes, earliest: int, latest: int) -> Iterable[Row]:
        """Iterate over the windows of a key that start between two times, both included, the last first.

        Windows that are there may be written meanwhile; what is not looked at costs nothing.
        """

    def ending(self, key: bytes, earliest: int, latest_start: int) -> Sequence[Row]:
        """Return the windows of a key that end at `earliest` or later and start at `latest_start` or earlier.

        By their ends, then by their starts.
        """

    def put(self, key: bytes, row: Row, fresh: bool) -> None:
        """Write a window in place of the one with its bounds; `fresh`: there is none."""

    def remove(self, key: bytes, start: int, end: int) -> None:
        """Remove a window, if it is there."""


#: What has become of a window by an event, and the row before; None where there was none. Of one that is gone, or never
#: came to be, the new row has the value None. Steps are in the order in which they are to go on as updates.
Step = tuple[Row, Row | None]


class Update(NamedTuple):
    """A window that an event has changed.

    Attributes:
        value: the aggregate by now; None: the window is gone.
        old: what it was before; None where there was none (spec, deviation 6).
        timestamp: the result's own.
    """

    start: int
    end: int
    value: Any
    old: Any
    timestamp: int


class Refused(NamedTuple):
    """A window that was closed when the event came; of an event that is late as a whole, the one it would be in."""

    start: int
    end: int


class Change(NamedTuple):
    """What an event did.

    Attributes:
        updates: in the order in which they are to go on.
        refused: the windows that it came too late for.
        finals: may finals be emitted because of it? Kafka's early sliding path emits none.
    """

    updates: Sequence[Update]
    refused: Sequence[Refused]
    finals: bool = True


#: What an event has been refused, and whether finals may be emitted because of it: see `Change`.
Outcome = tuple[Sequence[Refused], bool]
#: That of an event of which no window is closed.
TAKEN: Final[Outcome] = ((), True)


@dataclass(frozen=True)
class Aggregate:
    """How the values of a window become one.

    Attributes:
        initial: makes the aggregate of no events.
        add: makes the next aggregate of the last one and a value; None erases the window.
        merge: makes one aggregate of two, the older session's first.
        first: makes the aggregate of a window's first value, where it is not ``add(initial(), value)``.
        counts: is it an integer, whatever the values are?
    """

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None = None
    first: Callable[[Any], Any] | None = None
    counts: bool = False

    def begin(self, value: Any) -> Any:
        """Return the aggregate of one value."""
        return self.add(self.initial(), value) if self.first is None else self.first(value)


class Windowing(Protocol):
    """A kind of window: which ones there are, and what an event does to them."""

    @property
    def grace(self) -> int:
        """How long after its end, in stream time, a window still takes events."""

    @property
    def takes_null(self) -> bool:
        """Does an event with the value None count?"""

    def close(self, time: int) -> int:
        """Return the close time that goes with a stream time: what `closed` compares with."""

    def end(self, start: int) -> int | None:
        """Return the end of the window that starts at a time; None for a session, whose start does not decide it."""

    def closed(self, end: int, close: int) -> bool:
        """Is a window with this end closed?"""

    def last_closed(self, close: int) -> int:
        """Return the greatest end that is closed."""

    def needed_until(self, close: int) -> int:
        """Return a time: closed windows that start before it matter to no event that may still come.

        They may be forgotten once their result is out, if there is to be one (spec, deviation 1). A session that is
        not closed may have started before it, too.
        """

    def add(
        self, rows: Rows, key: bytes, value: Any, timestamp: int, time: int, close: int, aggregate: Aggregate
    ) -> Change:
        """Put an event into the windows of its key.

        Args:
            timestamp: the event's.
            time: the operator's stream time, this event's timestamp counted in.
            close: the close time; that of `time`, or less where the task's clock holds it back.
        """


class NeighbouringWindowing(Windowing, Protocol):
    """A kind of window that is found by those beside it: what an event changes depends on what is there."""

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
        """Put an event into the windows of its key, as `add` does.

        Args:
            rows: the key's windows, in the order of their ends, no two of which are the same; changed in place.
            steps: what it does is added to it, one by one, so that it can be undone if the aggregate raises.
            stored: between the rows and their values, where the rows do not have these themselves.
        """


class Stored(Protocol):
    """Between a row and its value, where a row has something else in its place."""

    def load(self, row: Row) -> Any:
        """Return the value of a row."""

    def dump(self, value: Any) -> Any:
        """Return what a row has in place of a value; of None, None."""


class FixedWindowing(Windowing, Protocol):
    """A kind of window whose bounds do not depend on what is in them, nor on their key."""

    def starts(self, timestamp: int) -> Iterable[int]:
        """Return the starts of the windows that contain a time, rising; never negative."""

    def slice(self, timestamp: int) -> tuple[int, int, Iterable[int]]:
        """Return the longest stretch of time around one that lies in the very same windows: from, to, their starts.

        The end is not in it.
        """

    def start(self, end: int) -> int:
        """Return the start of the window that ends at a time."""

    def end(self, start: int) -> int:
        """Return the end of the window that starts at a time."""


#: Makes a named tuple in one call of C, in place of one of Python: each value that comes makes several.
new: Final = tuple.__new__


def put(rows: Rows, key: bytes, start: int, end: int, old: Row | None, value: Any, timestamp: int) -> Update:
    """Write what has become of a window; None erases it (spec, A.5)."""
    if value is None:
        rows.remove(key, start, end)
    else:
        rows.put(key, new(Row, (start, end, value, timestamp)), old is None)
    return new(Update, (start, end, value, None if old is None else old[2], timestamp))


def write(rows: Rows, key: bytes, steps: Sequence[Step]) -> list[Update]:
    """Bring steps to the rows of an operator; return them as updates.

    What is new comes first: where it is refused, as of a type that it must not be, nothing may be gone.
    """
    before: dict[tuple[int, int], Row | None] = {}
    after: dict[tuple[int, int], Row] = {}
    for row, old in steps:
        bounds = (row.start, row.end)
        before.setdefault(bounds, old)
        after[bounds] = row
    for bounds, row in after.items():
        if row.value is not None:
            rows.put(key, row, before[bounds] is None)
    for bounds, row in after.items():
        if row.value is None and before[bounds] is not None:
            rows.remove(key, *bounds)
    return [
        new(Update, (row.start, row.end, row.value, None if old is None else old.value, row.timestamp))
        for row, old in steps
    ]


def into(aggregate: Aggregate, old: Any, old_timestamp: int, value: Any, timestamp: int) -> tuple[Any, int]:
    """Return what becomes of a window's aggregate and timestamp by a value; an `old` of None is no window."""
    if old is None:
        return aggregate.begin(value), timestamp
    return aggregate.add(old, value), old_timestamp if old_timestamp > timestamp else timestamp


@dataclass(frozen=True)
class TimeWindows:
    """Tumbling and hopping windows: [start, start + size), one at each multiple of `advance`. Source: spec, B.2."""

    size: int
    advance: int
    grace: int = 0
    takes_null: bool = True

    def close(self, time: int) -> int:
        return time - self.grace

    def end(self, start: int) -> int:
        return start + self.size

    def start(self, end: int) -> int:
        return end - self.size

    def closed(self, end: int, close: int) -> bool:
        return end <= close

    def last_closed(self, close: int) -> int:
        return close

    def needed_until(self, close: int) -> int:
        return close - self.size + 1

    def starts(self, timestamp: int) -> Iterable[int]:
        if self.advance == self.size:
            return (timestamp - timestamp % self.size,)
        first = max(0, timestamp - self.size + self.advance) // self.advance * self.advance
        return range(first, timestamp + 1, self.advance)

    def slice(self, timestamp: int) -> tuple[int, int, Iterable[int]]:
        starts = tuple(self.starts(timestamp))
        first, last = starts[0], starts[-1]
        # The window before the first has ended by then, if there was one.
        begun = max(last, first + self.size - self.advance) if first else last
        return begun, min(last + self.advance, first + self.size), starts

    def add(
        self, rows: Rows, key: bytes, value: Any, timestamp: int, time: int, close: int, aggregate: Aggregate
    ) -> Change:
        steps: list[Step] = []
        refused: list[Refused] = []
        for start in self.starts(timestamp):
            end = start + self.size
            if end <= close:
                refused.append(Refused(start, end))
                continue
            old = rows.get(key, start, end)
            if old is None:
                total, newest = into(aggregate, None, 0, value, timestamp)
            else:
                total, newest = into(aggregate, old.value, old.timestamp, value, timestamp)
            steps.append((Row(start, end, total, newest), old))
        # Not before: an aggregate may raise for one of them, and then the value is in none.
        return Change(
            [put(rows, key, row.start, row.end, old, row.value, row.timestamp) for row, old in steps], refused
        )
