"""Rows of windowed tables as people and programs read them: the key, the window, the value."""

from __future__ import annotations

from typing import Any

import msgspec

from agentic.cli.contents import Row, keys_of
from agentic.cli.records import clock_time, shown
from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.runtime.tables import CLOSED, Layout
from agentic.state.window_keys import WindowKeys
from agentic.windows import WindowedTable


class Reader:
    """Reads the rows of one windowed table."""

    def __init__(self, table: WindowedTable[Any, Any]) -> None:
        keys = keys_of(table)
        assert isinstance(keys, WindowKeys), "a windowed table has such keys"
        self._table = table
        self._keys = keys
        #: What stands in place of a window that came out early, until it would have been closed.
        self._mark = Layout(table).dump(CLOSED)
        #: Does a window hold its end?
        self._closed = isinstance(table.windowing, SlidingWindows | SessionWindows)

    def range_of(self, wire: bytes) -> tuple[bytes, bytes]:
        """Return between which stored keys the windows of a key are; others may be among them."""
        raw = self._keys.inner.from_wire(wire)
        return raw, raw + b"\xff" * (self._keys.width + 1)

    def is_of(self, row: Row, wire: bytes) -> bool:
        """Is it a window of this key?"""
        return self._keys.key(row.stored_key) == self._keys.inner.from_wire(wire)

    def is_there(self, row: Row) -> bool:
        """Is it a window, and not the mark of one that came out early?"""
        return row.value != self._mark

    def key(self, row: Row) -> bytes:
        """Return the key as JSON."""
        return shown(self._table.key, self._keys.inner.to_wire(self._keys.key(row.stored_key)))

    def bounds(self, row: Row) -> tuple[int, int]:
        """Return start and end, in ms."""
        return self._keys.start(row.stored_key), self._keys.end(row.stored_key)

    def value(self, row: Row) -> bytes:
        """Return the value as an agent reads it, as JSON."""
        if self._table.shown is None or row.value is None:
            return shown(self._table.value, row.value)
        return msgspec.json.encode(self._table.shown(self._table.value.decode(row.value)), enc_hook=repr)

    def told(self, start: int, end: int) -> str:
        """Return a window in words, with a bracket where it holds its end."""
        return f"[{clock_time(start)}, {clock_time(end)}{']' if self._closed else ')'}"

    def line(self, row: Row) -> bytes:
        """Return a row as a line for people: key, window, value."""
        return b"%s  %s  %s\n" % (self.key(row), self.told(*self.bounds(row)).encode(), self.value(row))

    def json(self, row: Row) -> bytes:
        """Return a row as a line of JSON."""
        start, end = self.bounds(row)
        form = b'{"key":%s,"start":%d,"end":%d,"value":%s,"timestamp":%d}\n'
        return form % (self.key(row), start, end, self.value(row), row.timestamp)
