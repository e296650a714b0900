"""A windowed table whose rows are in strips, as the one instance that writes it sees it.

A value is put beside its neighbours at once, and what was there is noted: if the event fails, it is
put back. Until the event is complete nothing of it is *dirty*, so that no checkpoint has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentic.core.emission import EndsOfKeys
from agentic.core.windows import Row
from agentic.runtime.operators import Operator
from agentic.runtime.tables import Layout
from agentic.runtime.windowing import WindowedView
from agentic.state.strips import Strip, StripedBuffer
from agentic.windows import Window, WindowedTable


class StripedView(WindowedView):
    """See `agentic.windows.WindowView`; and `agentic.core.windows.Rows`, which it is for the operator's algorithm."""

    __slots__ = ("_aggregate", "_changes", "_ends", "_plain", "_strips")

    buffer: StripedBuffer[Any]

    def __init__(
        self,
        table: WindowedTable[Any, Any],
        layout: Layout,
        buffer: StripedBuffer[Any],
        slot: Any,
        partition: int,
        partitions: int,
        operator: Operator,
    ) -> None:
        super().__init__(table, layout, buffer, slot, partition, partitions, operator)
        assert isinstance(operator.ends, EndsOfKeys), "else it has no strips"
        self._ends = operator.ends
        self._aggregate = table.aggregate
        self._strips = buffer.strips
        #: Are entries what they are the entries of?
        self._plain = self._value_of is None
        #: What the current event has written, in order: where, the window now, and before; None where there is none.
        self._changes: list[tuple[Strip, Row | None, Row | None]] = []

    # -- writing ------------------------------------------------------------------------------

    def _put_in(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        if not self._comes(timestamp):
            return
        time, windowing = self._time, self._windowing
        close = windowing.close(time)
        change = windowing.add(self, raw, value, timestamp, time, close, self._aggregate)
        if change.finals:
            self._finals = True
        if change.refused:
            self._note_late(key, raw, value, timestamp, change.refused, close)
        if self._operator.updates:
            self._updates += [(key, raw, update) for update in change.updates]

    # -- rows, as the algorithm sees them -----------------------------------------------------

    def get(self, key: bytes, start: int, end: int) -> Row | None:  # type: ignore[override]
        strip = self._strips.get(key)
        row = None if strip is None else strip.find(start, end)
        return None if row is None else self._shown(key, row)

    def starting(self, key: bytes, earliest: int, latest: int) -> Iterable[Row]:
        strip = self._strips.get(key)
        if strip is None:
            return ()
        rows = strip.rows
        last = bisect_left(rows, (latest + 1,))
        found = rows[bisect_left(rows, (earliest,), 0, last) : last]
        found.reverse()
        return found if self._plain and not self.buffer.trimmed else (self._shown(key, row) for row in found)

    def ending(self, key: bytes, earliest: int, latest_start: int) -> Sequence[Row]:
        strip = self._strips.get(key)
        if strip is None:
            return ()
        rows = strip.rows
        first = last = bisect_left(rows, (latest_start + 1,))
        while first and rows[first - 1][1] >= earliest:
            first -= 1
        found = rows[first:last]
        return found if self._plain and not self.buffer.trimmed else [self._shown(key, row) for row in found]

    def _shown(self, key: bytes, row: Row) -> Row:
        row = self.buffer.loaded(key, row)
        return row if self._value_of is None else row._replace(value=self._value_of(row.value))

    def put(self, key: bytes, row: Row, fresh: bool) -> None:
        if row[2].__class__ is not self._scalar:
            row = row._replace(value=self._entry(row[2]))
        strip = self._strips.get(key)
        if strip is None:
            strip = self.buffer.strip(key)
        rows = strip.rows
        at = bisect_left(rows, (row[0], row[1]))
        if fresh:
            rows.insert(at, row)
            self._changes.append((strip, row, None))
        else:
            self._changes.append((strip, row, rows[at]))
            rows[at] = row

    def remove(self, key: bytes, start: int, end: int) -> None:  # type: ignore[override]
        strip = self._strips.get(key)
        before = None if strip is None else strip.find(start, end)
        if strip is not None and before is not None:
            del strip.rows[strip.place(start, end)]
            self._changes.append((strip, None, before))

    # -- the event is over --------------------------------------------------------------------

    def apply(self) -> None:
        operator, buffer, ends = self._operator, self.buffer, self._ends
        operator.move_to(self._time)
        for strip, row, before in self._changes:
            if row is None:
                assert before is not None, "a window that was there has gone"
                buffer.held -= 1
                buffer.gone(strip, before.start, before.end, max(operator.time, 0))
                ends.removed(before.end, before.start, strip.key)
                if not strip.rows:
                    buffer.tidy(strip)
                continue
            buffer.complete(strip, row)
            if before is None:
                buffer.held += 1
                operator.made_at(row[1], row[0], strip.key)
        self._changes.clear()
        self._over()

    def forget(self) -> None:
        for strip, row, before in reversed(self._changes):
            if row is not None:
                del strip.rows[strip.place(row.start, row.end)]
            if before is not None:
                strip.rows.insert(strip.place(before.start, before.end), before)
            if not strip.rows:
                self.buffer.tidy(strip)
        self._changes.clear()
        super().forget()

    # -- reading ------------------------------------------------------------------------------

    def windows(self, key: Any, start: int, end: int) -> list[Window[Any, Any]]:
        raw, _ = self._ours_of(key)
        strip = self._strips.get(raw)
        if strip is None:
            return []
        rows = [self.buffer.loaded(raw, row) for row in strip.rows if start <= row.start <= end]
        return [Window(key, r.start, r.end, self._operator.value_of(r.value), r.timestamp) for r in rows]

    def _own_rows(self) -> Mapping[bytes, Any]:
        name = self._operator.keys.name
        own: dict[bytes, Any] = {}
        for strip, row, before in self._changes:
            if row is not None:
                own[name(strip.key, row.start, row.end)] = (row.value, row.timestamp)
            elif before is not None:
                own[name(strip.key, before.start, before.end)] = (None, before.timestamp)
        return own
