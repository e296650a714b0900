"""The envelope of a stored value: a format byte, flags, a timestamp, and room for the time at which the row expires.

    format (1) | flags (1) | timestamp (8, signed ms) | expiry (8, signed ms; with the flag EXPIRES) | value

A reader in a hurry, a scan of a million rows, may slice: where `blob[:2]` equals `PLAIN` the
value is ``blob[HEAD:]``, whatever the rest. What has other flags goes through `unwrap`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from agentic.errors import StorageCorrupt

FORMAT = 1
#: A flag: the time of expiry stands behind the timestamp.
EXPIRES = 1
_KNOWN = EXPIRES

#: Format and flags of a value that does not expire.
PLAIN = bytes((FORMAT, 0))
#: How many bytes stand before the value in a plain envelope, and in one that expires.
HEAD = 10
EXPIRING_HEAD = 18

_plain = struct.Struct(">BBq")
_expiring = struct.Struct(">BBqq")
_time = struct.Struct(">q")


def wrap(value: bytes, timestamp: int, expiry: int | None = None) -> bytes:
    """Return the blob of a value.

    Args:
        timestamp: milliseconds since the epoch.
        expiry: from when on the row counts as gone, in milliseconds; None for never.
    """
    if expiry is None:
        return _plain.pack(FORMAT, 0, timestamp) + value
    return _expiring.pack(FORMAT, EXPIRES, timestamp, expiry) + value


def wrap_column(values: Iterable[bytes | None], timestamps: Iterable[int]) -> list[bytes | None]:
    """Return the blobs of values, none of which expires; None stays what it is."""
    pack = _plain.pack
    return [None if value is None else pack(FORMAT, 0, time) + value for value, time in zip(values, timestamps)]


def wrap_all(rows: Iterable[tuple[bytes, bytes | None, int]]) -> list[tuple[bytes, bytes | None]]:
    """Return rows as a store takes them, none of which expires: key and blob; None for one that is gone."""
    pack = _plain.pack
    return [(key, None if value is None else pack(FORMAT, 0, timestamp) + value) for key, value, timestamp in rows]


def unwrap(blob: bytes) -> tuple[bytes, int]:
    """Return the value of a blob and its timestamp.

    Raises:
        StorageCorrupt: it is no envelope, or one of a newer format.
    """
    if blob[:2] == PLAIN and len(blob) >= HEAD:
        return blob[HEAD:], _time.unpack_from(blob, 2)[0]
    _check(blob)
    return blob[EXPIRING_HEAD:], _time.unpack_from(blob, 2)[0]


def unwrap_all(blobs: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """Return the values of blobs and their timestamps, as `unwrap` does."""
    time_of = _time.unpack_from
    return [(blob[HEAD:], time_of(blob, 2)[0]) if blob[:2] == PLAIN else unwrap(blob) for blob in blobs]


def expiry(blob: bytes) -> int | None:
    """Return when a blob's row expires, in milliseconds; None for never.

    Raises:
        StorageCorrupt: it is no envelope, or one of a newer format.
    """
    if blob[:2] == PLAIN:
        return None
    _check(blob)
    expires: int = _time.unpack_from(blob, HEAD)[0]
    return expires


def _check(blob: bytes) -> None:
    """Let pass what has the flag EXPIRES and nothing else."""
    if len(blob) < HEAD or blob[0] == 0:
        raise StorageCorrupt(f"a stored value is no envelope (bytes begin {blob[:20]!r}); run the worker with --repair")
    if blob[0] > FORMAT or blob[1] & ~_KNOWN:
        raise StorageCorrupt(
            f"a stored value has format {blob[0]} with flags {blob[1]}, written by a newer agentic; this one reads"
            f" up to format {FORMAT}: upgrade agentic"
        )
    if len(blob) < EXPIRING_HEAD:
        raise StorageCorrupt(f"a stored value is cut short ({len(blob)} bytes); run the worker with --repair")
