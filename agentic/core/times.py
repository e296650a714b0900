"""Timestamps and durations as users give them, turned into the integers that we compute with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def timestamp_ms(when: int | datetime) -> int:
    """Return milliseconds since the epoch.

    Raises:
        ValueError: it is negative, or a datetime without a time zone.
        TypeError: it is neither an integer nor a datetime.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"timestamp {when!r} has no time zone; write datetime(…, tzinfo=timezone.utc)")
        when = (when - _EPOCH) // _MILLISECOND
    elif not isinstance(when, int) or isinstance(when, bool):
        raise TypeError(
            f"timestamp {when!r} is a {type(when).__name__}; give milliseconds as int, or an aware datetime"
        )
    if when < 0:
        raise ValueError(f"timestamp {when} is negative; a record's time begins in 1970")
    return when


def seconds(duration: timedelta | float) -> float:
    """Return a duration in seconds; a plain number is seconds already.

    Raises:
        ValueError: it is negative.
        TypeError: it is neither a timedelta nor a number.
    """
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    elif not isinstance(duration, int | float) or isinstance(duration, bool):
        raise TypeError(f"duration {duration!r} is a {type(duration).__name__}; give a timedelta, or seconds")
    if duration < 0:
        raise ValueError(f"duration {duration} is negative")
    return float(duration)
