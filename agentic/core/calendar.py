"""Calendar windows: the days, weeks and months of a time zone.

A window goes from one local midnight to another, so that a day may have 23 or 25 hours. Where clocks skip
midnight, or show it twice, a day begins at the first moment that has its date or a later one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from agentic.core.windows import Aggregate, Change, Refused, Rows, put

Unit = Literal["day", "week", "month"]

_DAY: Final = timedelta(days=1)
#: Bounds that hold no time.
_NOWHERE: Final = (0, 0)


@dataclass(frozen=True)
class CalendarWindows:
    """Windows [start, end) between local midnights; weeks begin on Monday (ISO 8601).

    As of all windows over time none starts before 1970: the one that would starts there.

    Args:
        unit: "day", "week" or "month".
        zone: a name of the IANA time zone database.

    Raises:
        ValueError: there is no such unit or zone.
    """

    unit: Unit
    zone: str
    grace: int = 0
    takes_null: bool = True
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    # Bounds of the last windows looked for: that of the event before, and that of the close time.
    _last: tuple[int, int] = field(init=False, repr=False, compare=False, default=_NOWHERE)
    _closing: tuple[int, int] = field(init=False, repr=False, compare=False, default=_NOWHERE)

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"calendar unit {self.unit!r} is unknown: give one of {', '.join(get_args(Unit))}")
        try:
            zone = ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"time zone {self.zone!r} is unknown on this machine: give a name such as 'Europe/Berlin', "
                "or install the package tzdata"
            ) from error
        object.__setattr__(self, "_zone", zone)

    def close(self, time: int) -> int:
        return time - self.grace

    def end(self, start: int) -> int:
        return self.bounds(start)[1]

    def start(self, end: int) -> int:
        return self.bounds(end - 1)[0]

    def closed(self, end: int, close: int) -> bool:
        return end <= close

    def last_closed(self, close: int) -> int:
        return close

    def needed_until(self, close: int) -> int:
        """Return the start of the window that holds the close time: all before it are closed, no other is."""
        if close < 0:
            return close
        start, end = self._closing
        if not start <= close < end:
            start, end = self._find(close)
            object.__setattr__(self, "_closing", (start, end))
        return start

    def bounds(self, timestamp: int) -> tuple[int, int]:
        """Return the start and the end of the window that holds a time, in ms since 1970.

        Raises:
            ValueError: the time is before 1970, or in a month beyond what the calendar of Python has.
        """
        start, end = last = self._last
        if start <= timestamp < end:
            return last
        last = self._find(timestamp)
        object.__setattr__(self, "_last", last)
        return last

    def starts(self, timestamp: int) -> tuple[int]:
        return (self.bounds(timestamp)[0],)

    def slice(self, timestamp: int) -> tuple[int, int, tuple[int]]:
        start, end = self.bounds(timestamp)
        return start, end, (start,)

    def add(
        self, rows: Rows, key: bytes, value: Any, timestamp: int, time: int, close: int, aggregate: Aggregate
    ) -> Change:
        start, end = self.bounds(timestamp)
        if end <= close:
            return Change((), (Refused(start, end),))
        old = rows.get(key, start, end)
        if old is None:
            return Change((put(rows, key, start, end, None, aggregate.begin(value), timestamp),), ())
        newest = max(timestamp, old.timestamp)
        return Change((put(rows, key, start, end, old, aggregate.add(old.value, value), newest),), ())

    def _find(self, timestamp: int) -> tuple[int, int]:
        if timestamp < 0:
            raise ValueError(f"timestamp {timestamp} is before 1970: calendar windows hold none of that time")
        try:
            first = self._first_day(datetime.fromtimestamp(timestamp // 1000, self._zone).date())
            following = self._next(first)
            start, end = self._midnight(first), self._midnight(following)
            while timestamp >= end:
                # The clocks went back over midnight: they show yesterday's date, but the day has begun.
                following = self._next(following)
                start, end = end, self._midnight(following)
        except (OverflowError, ValueError) as error:
            raise ValueError(
                f"timestamp {timestamp} is in no {self.unit} of the calendar, which ends with the year 9999: "
                "refuse such events with max_ahead="
            ) from error
        return max(0, start), end

    def _first_day(self, day: date) -> date:
        match self.unit:
            case "day":
                return day
            case "week":
                return day - day.weekday() * _DAY
            case "month":
                return day.replace(day=1)

    def _next(self, first: date) -> date:
        match self.unit:
            case "day":
                return first + _DAY
            case "week":
                return first + 7 * _DAY
            case "month":
                return (first + 31 * _DAY).replace(day=1)

    def _midnight(self, day: date) -> int:
        """Return the first moment, in ms, at which the clocks show a date or a later one."""
        earlier = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        before, after = int(earlier.timestamp()), int(earlier.replace(fold=1).timestamp())
        if after >= before:
            return before * 1000
        # Clocks skip midnight, somewhere in between: after `after`, and `before` at the latest.
        while after < before:
            middle = (after + before) // 2
            if datetime.fromtimestamp(middle, self._zone).date() >= day:
                before = middle
            else:
                after = middle + 1
        return before * 1000
