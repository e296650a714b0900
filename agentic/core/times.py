"""Timestamps and durations as users give them, turned into the integers that we compute with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
#: Logs keep a timestamp in so many bits and a sign.
TIMESTAMP_BITS = 63
#: A century: longer than any process lives, and what clocks and waits can count.
_LONGEST = 36_500 * 86_400


def timestamp_ms(when: int | datetime) -> int:
    """Return milliseconds since the epoch.

    Raises:
        ValueError: it is negative, beyond 63 bits, or a datetime without a time zone.
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
    if (bits := when.bit_length()) > TIMESTAMP_BITS:
        raise ValueError(f"timestamp has {bits} bits, and a log keeps {TIMESTAMP_BITS}; give milliseconds since 1970")
    if when < 0:
        raise ValueError(f"timestamp {when} is negative; a record's time begins in 1970")
    return when


def seconds(duration: timedelta | float) -> float:
    """Return a duration in seconds; a plain number is seconds already.

    Raises:
        ValueError: it is negative, not a number, or longer than a century.
        TypeError: it is neither a timedelta nor a number.
    """
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    elif not isinstance(duration, int | float) or isinstance(duration, bool):
        raise TypeError(f"duration {duration!r} is a {type(duration).__name__}; give a timedelta, or seconds")
    if duration < 0:
        raise ValueError(f"duration {duration} is negative")
    # In this form for what is no number: it is neither less nor more.
    if not duration <= _LONGEST:
        raise ValueError(f"duration {duration} is no time to wait; give at most {_LONGEST:,} seconds, a century")
    return float(duration)
