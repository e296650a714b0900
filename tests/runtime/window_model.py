"""A windowed table as short as it can be said: its windows in a dict, the engine's algorithm over it, and finals."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from agentic.core.windows import Row
from agentic.windows import WindowedTable


class Rows:
    """See `agentic.core.windows.Rows`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, int, int], Row] = {}

    def get(self, key: bytes, start: int, end: int) -> Row | None:
        return self.rows.get((key, start, end))

    def starting(self, key: bytes, earliest: int, latest: int) -> Sequence[Row]:
        found = [row for (owner, start, _), row in self.rows.items() if owner == key and earliest <= start <= latest]
        return sorted(found, key=lambda row: row.start, reverse=True)

    def ending(self, key: bytes, earliest: int, latest_start: int) -> Sequence[Row]:
        found = [row for (owner, start, end), row in self.rows.items() if owner == key and end >= earliest]
        return sorted((row for row in found if row.start <= latest_start), key=lambda row: row.end)

    def put(self, key: bytes, row: Row, fresh: bool) -> None:
        self.rows[key, row.start, row.end] = row

    def remove(self, key: bytes, start: int, end: int) -> None:
        self.rows.pop((key, start, end), None)


class Model:
    """One task's windows of a table.

    Attributes:
        time: stream time.
        late: how many values were refused.
    """

    def __init__(self, table: WindowedTable[Any, Any]) -> None:
        self.table = table
        self.rows = Rows()
        self.time = -1
        self.late = 0
        self._given = -1

    def event(self, values: Iterable[tuple[str, Any, int]], *, fails: bool) -> list[list[Any]]:
        """Put in what an event adds: key, value, timestamp; return the windows that come out, as `shown` makes them.

        If it fails by itself, or the aggregate raises a ValueError, nothing is left of it.
        """
        windowing, before, looks = self.table.windowing, dict(vars(self)), False
        for key, value, timestamp in values:
            self.time = max(self.time, timestamp)
            # Each window with a value of its own, as one that is read from its bytes has.
            self.rows = copy.deepcopy(self.rows)
            try:
                change = windowing.add(
                    self.rows,
                    key.encode(),
                    value,
                    timestamp,
                    self.time,
                    windowing.close(self.time),
                    self.table.aggregate,
                )
            except ValueError:
                fails = True
                break
            self.late += len(change.refused)
            looks = looks or change.finals
        if fails:
            vars(self).update(before)
        return self._finals() if looks and not fails else []

    def _finals(self) -> list[list[Any]]:
        upto = self.table.windowing.last_closed(self.table.windowing.close(self.time))
        due = [(e, s, key) for key, s, e in self.rows.rows if self._given < e <= upto]
        self._given = max(self._given, upto)
        rows = [(key.decode(), self.rows.rows[key, start, end]) for end, start, key in sorted(due)]
        return [[key, row.start, row.end, row.value, row.timestamp] for key, row in rows]
