"""The versions of one key of a versioned table: what its value was, as of any time within the history.

The logical model is a sorted map from timestamp to value or tombstone, of which nothing is ever
forgotten; reads and puts behind the history do not look into it. The rule kept here: what is
discarded could not be seen any more, so that nobody can tell the two apart.

Beside the versions of its keys a store has one *observed* stream time, the greatest timestamp
that it accepted (`NOTHING_OBSERVED` at first), and one *history*, in milliseconds, which is
also its grace; *horizon* is observed − history. Source: KIP-889, KIP-914; spec, D.2. A tombstone
at the timestamp of the latest version is a version like any other, against Kafka (deviation 6).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import neg
from typing import Final, NamedTuple

#: The observed stream time of a store that has accepted nothing.
NOTHING_OBSERVED: Final = -1
#: `Put.valid_to` of a version that no other follows.
LATEST: Final = -1

_FORMAT = 1
#: Format, number of versions.
_HEAD = struct.Struct(">BI")
#: Of each version: its timestamp and the length of its value, `_TOMBSTONE` without one.
_VERSION_BYTES = 12
_TOMBSTONE = -1


class Versions(NamedTuple):
    """The versions of one key, newest first.

    Attributes:
        timestamps: in ms, falling.
        values: what the key had from each timestamp on; None is a tombstone.
    """

    timestamps: tuple[int, ...]
    values: tuple[bytes | None, ...]


#: A key without any version.
EMPTY: Final = Versions((), ())


class Put(NamedTuple):
    """What an accepted put has made.

    Attributes:
        versions: of the key, after it.
        observed: the store's stream time after it.
        valid_to: the timestamp of the version that follows, `LATEST` where none does.
        old: the latest value before it, which is not always the one that was valid at its time.
    """

    versions: Versions
    observed: int
    valid_to: int
    old: bytes | None

    @property
    def is_latest(self) -> bool:
        """Whether it is what the key has now."""
        return self.valid_to == LATEST


def put(versions: Versions, timestamp: int, value: bytes | None, *, observed: int, history: int) -> Put | None:
    """Add a version, in the place of one with the same timestamp; return None where it came after its history.

    Versions that can't be seen any more are discarded by the way.

    Args:
        timestamp: from when on the key has the value, in ms.
        value: None for a tombstone.
        observed: the store's stream time before.
        history: how far before the stream time the store can be read and written, in ms.
    """
    if timestamp < observed - history:
        return None
    if timestamp > observed:
        observed = timestamp
    timestamps, values = versions
    at = bisect_left(timestamps, -timestamp, key=neg)
    after = at + (at < len(timestamps) and timestamps[at] == timestamp)
    changed = Versions(
        (*timestamps[:at], timestamp, *timestamps[after:]),
        (*values[:at], value, *values[after:]),
    )
    return Put(
        discard(changed, observed=observed, history=history),
        observed,
        timestamps[at - 1] if at else LATEST,
        latest(versions),
    )


def latest(versions: Versions) -> bytes | None:
    """Return the latest value, whatever its age; None for a tombstone, or without any version."""
    return versions.values[0] if versions.values else None


def at(versions: Versions, timestamp: int, *, observed: int, history: int) -> bytes | None:
    """Return the value as of `timestamp`; None where there was none.

    Before the horizon only the latest version is still known, if it is as old as that.
    """
    timestamps, values = versions
    if timestamp < observed - history:
        return values[0] if timestamps and timestamps[0] <= timestamp else None
    place = bisect_left(timestamps, -timestamp, key=neg)
    return values[place] if place < len(values) else None


def discard(versions: Versions, *, observed: int, history: int) -> Versions:
    """Return the versions without those that can't be seen any more; `EMPTY` means that the row can go.

    These are the versions whose valid-to lies before the horizon, and the oldest one that is left
    if it is a tombstone before the horizon: it says what its absence says, and nothing can
    be put before it. So a key that was deleted is forgotten in the end, the tombstone too.
    """
    timestamps, values = versions
    horizon = observed - history
    if not timestamps or timestamps[-1] >= horizon:
        return versions
    # The first that is older than the horizon is valid at it; those behind ended before.
    oldest = bisect_right(timestamps, -horizon, key=neg)
    kept = oldest if values[oldest] is None else oldest + 1
    if kept == len(timestamps):
        return versions
    return Versions(timestamps[:kept], values[:kept]) if kept else EMPTY


def encode(versions: Versions) -> bytes:
    """Return the bytes of a row: a format byte, the number of versions, their timestamps, lengths, values."""
    timestamps, values = versions
    count = len(timestamps)
    lengths = [_TOMBSTONE if value is None else len(value) for value in values]
    columns = struct.pack(f">{count}q{count}i", *timestamps, *lengths)
    return b"".join((_HEAD.pack(_FORMAT, count), columns, *filter(None, values)))


def decode(row: bytes) -> Versions:
    """Return the versions of a row.

    Raises:
        ValueError: the row is of another format, or cut off.
    """
    if row[:1] != bytes([_FORMAT]):
        found = f"format {row[0]}" if row else "an empty row"
        raise ValueError(
            f"versions of a key: {found}, and this release reads format {_FORMAT}; "
            "run the release that wrote it, or restore the table from its changelog"
        )
    try:
        _, count = _HEAD.unpack_from(row)
        columns = struct.unpack_from(f">{count}q{count}i", row, _HEAD.size)
        lengths = columns[count:]
        values = tuple(_values(row, _HEAD.size + _VERSION_BYTES * count, lengths))
    except struct.error:
        raise _torn(row) from None
    return Versions(columns[:count], values)


def _values(row: bytes, start: int, lengths: tuple[int, ...]) -> Iterator[bytes | None]:
    for length in lengths:
        if length == _TOMBSTONE:
            yield None
            continue
        end = start + length
        yield row[start:end]
        start = end
    if start != len(row):
        raise _torn(row)


def _torn(row: bytes) -> ValueError:
    return ValueError(f"versions of a key: a row of {len(row)} bytes is torn; restore the table from its changelog")
