"""A windowed table whose rows are in strips, as the one instance that writes it sees it.

A value is put beside its neighbours at once, and what was there is noted: if the event fails, it is
put back. Until the event is complete nothing of it is *dirty*, so that no checkpoint has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.core.windows import Row, Step, Update
from agentic.runtime.operators import Operator
from agentic.runtime.tables import Layout
from agentic.runtime.windowing import WindowedView
from agentic.state.strip_ends import EndsOfStrips
from agentic.state.strips import Strip, StripedBuffer
from agentic.windows import Window, WindowedTable


class StripedView(WindowedView):
    """See `agentic.windows.WindowView`."""

    __slots__ = ("_aggregate", "_behind", "_ends", "_into", "_plain", "_strips", "_work")

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
        assert isinstance(operator.ends, EndsOfStrips), "else it has no strips"
        assert isinstance(table.windowing, SessionWindows | SlidingWindows), "others have no strips"
        self._ends = operator.ends
        self._into = table.windowing.into
        #: By how much the close time is behind the table's.
        self._behind = -table.windowing.close(0)
        self._aggregate = table.aggregate
        self._strips = buffer.strips
        #: Are entries the values, whatever the aggregate makes of them?
        self._plain = table.aggregate.counts and self._scalar is int
        #: What the current event has done, in order.
        self._work = buffer.at_work

    # -- writing ------------------------------------------------------------------------------

    def _put_in(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        operator = self._operator
        if not self._pending:
            self._touch()
        if operator.latest is not None and timestamp > operator.latest():
            self._drops.append("ahead")
            return
        if timestamp > self._time:
            self._time = timestamp
        close = self._time - self._behind
        strip = self._strips.get(raw)
        if strip is None:
            strip = self.buffer.strip(raw)
        steps: list[Step] = []
        self._work.append((strip, steps))
        stored = None if self._plain and not self.buffer.trimmed else _Stored(self, raw)
        try:
            refused, finals = self._into(strip.rows, value, timestamp, close, self._aggregate, steps, stored)
        except BaseException:
            # The agent may go on all the same: then the value is in none of its windows, rather than in some.
            strip.undo(steps, strip.rows)
            steps.clear()
            raise
        if finals:
            self._finals = True
        if refused:
            self._note_late(key, raw, value, timestamp, refused, close)
        if operator.updates:
            value_of = self._value_of_row
            for now, before in steps:
                total = None if now[2] is None else value_of(raw, now)
                old = None if before is None else value_of(raw, before)
                self._updates.append((key, raw, Update(now[0], now[1], total, old, now[3])))

    def _touch(self) -> None:
        super()._touch()
        self._time = self._operator.time

    def _value_of_row(self, raw: bytes, row: Row) -> Any:
        entry = self.buffer.entry(raw, row)
        return entry if self._value_of is None else self._value_of(entry)

    # -- the event is over --------------------------------------------------------------------

    def apply(self) -> None:
        operator, buffer, ends = self._operator, self.buffer, self._ends
        operator.move_to(self._time)
        upto = operator.time - operator.forgotten_after
        for strip, steps in self._work:
            if not steps:
                if not strip.rows:
                    buffer.tidy(strip)
                continue
            buffer.complete(strip, steps)
            if strip.out and strip.rows[0][1] <= upto:
                ends.forget(strip, upto)
            ends.arm(strip)
            due = strip.armed[0] + operator.closes_after
            if due < operator.next:
                operator.next = due
        self._work.clear()
        self._over()

    def forget(self) -> None:
        operator = self._operator
        for strip in self.buffer.fail():
            self._ends.arm(strip)
            # Whoever has looked meanwhile what comes next has not seen what is there again.
            operator.next = min(operator.next, strip.armed[0] + operator.closes_after)
        super().forget()

    # -- reading ------------------------------------------------------------------------------

    def windows(self, key: Any, start: int, end: int) -> list[Window[Any, Any]]:
        raw, _ = self._ours_of(key)
        strip = self._strips.get(raw)
        if strip is None:
            return []
        rows = sorted(row for row in self._kept(strip) if start <= row.start <= end)
        return [self._window(key, raw, row) for row in rows]

    def _kept(self, strip: Strip) -> Iterable[Row]:
        """Return the windows of a strip, without those that are only not yet forgotten."""
        upto = self._operator.time - self._operator.forgotten_after
        return (row for at, row in enumerate(strip.rows) if at >= strip.out or row.end > upto)

    def _window(self, key: Any, raw: bytes, row: Row) -> Window[Any, Any]:
        value = self._operator.value_of(self.buffer.entry(raw, row))
        return Window(key, row.start, row.end, value, row.timestamp)

    def _all(self) -> Iterator[tuple[bytes, Window[Any, Any]]]:
        if self._slot.working_on is None:
            raise self._no_event()
        for raw, strip in self._strips.items():
            key = self._keys.decode(raw)
            for row in self._kept(strip):
                yield raw, self._window(key, raw, row)


class _Stored:
    """Between the rows of a key and their values. See `agentic.core.windows.Stored`."""

    __slots__ = ("_raw", "_view")

    def __init__(self, view: StripedView, raw: bytes) -> None:
        self._view = view
        self._raw = raw

    def load(self, row: Row) -> Any:
        return self._view._value_of_row(self._raw, row)

    def dump(self, value: Any) -> Any:
        return value if value is None or value.__class__ is self._view._scalar else self._view._entry(value)
