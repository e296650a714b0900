"""The keys of windows in a store: the key's own bytes, then the window's bounds, big-endian.

Time and sliding windows have their start there; sessions their end and then their start, so that those of one key stand
in the order in which a session looks for its neighbours. Source: spec, B.6 (the layouts for updates).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from agentic.errors import CodecError
from agentic.state.buffer import Encoded
from agentic.state.keys import KeyFormat

#: The row that has a table's times: no window has an empty key.
TIMES = b""
#: All windows' keys are above it, and `TIMES` is below.
FIRST = b"\0"

_START = struct.Struct(">Q")
_BOUNDS = struct.Struct(">QQ")


class WindowKeys(KeyFormat):
    """How windows are named in a store.

    Args:
        end_of: returns the end of the window that starts at a time; None for a session, whose start does not decide it.

    Attributes:
        inner: how the keys themselves are stored.
        width: bytes of the bounds.
    """

    def __init__(self, inner: KeyFormat, end_of: Callable[[int], int | None]) -> None:
        self.inner = inner
        self.identity = False
        self._end_of = end_of
        self._sessions = end_of(0) is None
        self.width = 16 if self._sessions else 8

    def name(self, key: bytes, start: int, end: int) -> bytes:
        """Return the stored bytes of a window, from its key's."""
        return key + (_BOUNDS.pack(end, start) if self._sessions else _START.pack(start))

    def encoded(self, key: bytes, rows: Iterable[tuple[int, int, Any, int]], dump: Callable[[Any], bytes]) -> Encoded:
        """Return windows of one key as a checkpoint writes them: of start, end, entry, timestamp."""
        if self._sessions:
            bounds = _BOUNDS.pack
            return [
                (key + bounds(end, start), None if entry is None else dump(entry), timestamp)
                for start, end, entry, timestamp in rows
            ]
        pack = _START.pack
        return [
            (key + pack(start), None if entry is None else dump(entry), timestamp)
            for start, _, entry, timestamp in rows
        ]

    def start(self, name: bytes) -> int:
        """Return the start of a window."""
        return int.from_bytes(name[-8:], "big")

    def end(self, name: bytes) -> int:
        """Return the end of a window."""
        end = self._end_of(int.from_bytes(name[-8:], "big"))
        return int.from_bytes(name[-16:-8], "big") if end is None else end

    def key(self, name: bytes) -> bytes:
        """Return the stored bytes of a window's key."""
        return name[: -self.width]

    def encode(self, key: Any) -> bytes:
        """Return the stored bytes of a key, without a window."""
        return self.inner.encode(key)

    def encode_prefix(self, prefix: Any) -> bytes:
        return self.inner.encode_prefix(prefix)

    def decode(self, stored: bytes) -> Any:
        """Return a window: key and start; of a session key, start and end."""
        key = self.inner.decode(self.key(stored))
        return (key, self.start(stored), self.end(stored)) if self._sessions else (key, self.start(stored))

    def from_wire(self, wire: bytes) -> bytes:
        if wire == TIMES:
            return wire
        if len(wire) < self.width:
            raise CodecError(f"window's key of {len(wire)} bytes; it has at least {self.width}")
        return self.inner.from_wire(self.key(wire)) + wire[-self.width :]

    def to_wire(self, stored: bytes) -> bytes:
        if self.inner.identity or stored == TIMES:
            return stored
        return self.inner.to_wire(self.key(stored)) + stored[-self.width :]
