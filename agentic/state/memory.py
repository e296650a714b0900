"""A store in memory: for apps on ``memory://``, and for the TestDriver."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from agentic.state.base import Rows


class MemoryStore:
    """Rows and marks in dicts. What is closed can be read again: a test may look at it after a crash."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._marks: dict[str, bytes] = {}

    def get(self, table: str, key: bytes) -> bytes | None:
        rows = self._tables.get(table)
        return None if rows is None else rows.values.get(key)

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(table, key) for key in keys]

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._tables.get(table)
        found = [] if rows is None else rows.range(start, stop)
        return (row for row in (reversed(found) if reverse else found))

    def count(self, table: str) -> int:
        rows = self._tables.get(table)
        return 0 if rows is None else len(rows.values)

    def mark(self, name: str) -> bytes | None:
        return self._marks.get(name)

    def marks(self) -> dict[str, bytes]:
        return dict(self._marks)

    def write(self, rows: Mapping[str, Rows], marks: Mapping[str, bytes | None]) -> None:
        # A source of rows may fail on the way: nothing is changed before all are here.
        for table, changes in {table: list(changes) for table, changes in rows.items()}.items():
            self._tables.setdefault(table, _Table()).apply(changes)
        for name, mark in marks.items():
            if mark is None:
                self._marks.pop(name, None)
            else:
                self._marks[name] = mark

    def clear(self, table: str) -> None:
        self._tables.pop(table, None)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class _Table:
    """The rows of a table. Their keys are sorted when a scan asks for it, and not with each write."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._keys: list[bytes] | None = None

    def apply(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        size, deleted = len(self.values), False
        for key, value in changes:
            if value is None:
                deleted = self.values.pop(key, None) is not None or deleted
            else:
                self.values[key] = value
        if deleted or len(self.values) != size:
            self._keys = None

    def range(self, start: bytes, stop: bytes | None) -> list[tuple[bytes, bytes]]:
        if self._keys is None:
            self._keys = sorted(self.values)
        end = len(self._keys) if stop is None else bisect_left(self._keys, stop)
        return [(key, self.values[key]) for key in self._keys[bisect_left(self._keys, start) : end]]
