"""A windowed table whose rows are in panes, as the one instance that writes it sees it: the hot path of windows.

A value goes into its panes at once, and what was there is noted: if the event fails, it is put
back. Until the event is complete nothing of it is *dirty*, so that no checkpoint has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agentic.core.windows import FixedWindowing, Refused, Update
from agentic.runtime.operators import Operator
from agentic.runtime.tables import Layout
from agentic.runtime.windowing import Value, WindowedView
from agentic.state.buffer import Row
from agentic.state.panes import Pane, PanedBuffer
from agentic.stream import Event
from agentic.windows import Window, WindowedTable


class PanedView(WindowedView):
    """See `agentic.windows.WindowView`."""

    buffer: PanedBuffer[Any]

    __slots__ = (
        "_add",
        "_begin",
        "_first_end",
        "_fixed",
        "_from",
        "_into",
        "_panes",
        "_to",
        "_writes",
    )

    def __init__(
        self,
        table: WindowedTable[Any, Any],
        layout: Layout,
        buffer: PanedBuffer[Any],
        slot: Any,
        partition: int,
        partitions: int,
        operator: Operator,
    ) -> None:
        super().__init__(table, layout, buffer, slot, partition, partitions, operator)
        assert operator.fixed is not None, "else it has no panes"
        self._fixed: FixedWindowing = operator.fixed
        self._panes = buffer.panes
        #: What the current event has written, in order: where, the row, and the row before, if there was one.
        self._writes: list[tuple[Pane, bytes, Row, Row | None]] = []
        aggregate = table.aggregate
        self._begin: Callable[[Any], Any] = aggregate.begin if aggregate.first is None else aggregate.first
        self._add = aggregate.add
        #: The panes that the last value went into, the first one's end, and the stretch of time that has the same ones.
        self._into: tuple[Pane, ...] = ()
        self._first_end = self._from = self._to = -1

    # -- writing ------------------------------------------------------------------------------

    def _put_in(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        self._put(((key, raw, value, timestamp),))

    def add_many(self, events: Iterable[Event]) -> None:
        self._put(self._values(events))

    def _put(self, values: Iterable[Value]) -> None:
        """Put values into the panes that they are in."""
        if not self._pending:
            self._touch()
        operator, writes = self._operator, self._writes
        begin, add, value_of, scalar = self._begin, self._add, self._value_of, self._scalar
        latest, grace = operator.latest, self._fixed.grace
        for key, raw, value, timestamp in values:
            if latest is not None and timestamp > latest():
                self._drops.append("ahead")
                continue
            if timestamp > self._time:
                self._time = timestamp
            close = self._time - grace
            if not self._from <= timestamp < self._to or self._first_end <= close:
                refused = self._find(timestamp, close)
                if refused:
                    self._note_late(key, raw, value, timestamp, refused, close)
            self._finals = True
            begun = len(writes)
            try:
                for pane in self._into:
                    rows = pane.rows
                    before = rows.get(raw)
                    old = None
                    if before is None:
                        total, newest = begin(value), timestamp
                    else:
                        entry, newest = before
                        if entry is None:
                            entry, newest = self.buffer.stored_row(pane, raw)
                        old = entry if value_of is None else value_of(entry)
                        total = add(old, value)
                        if newest < timestamp:
                            newest = timestamp
                    if total.__class__ is scalar:
                        row = rows[raw] = (total, newest)
                    elif total is not None:
                        row = rows[raw] = (self._entry(total), newest)
                    else:
                        # It has been erased by its aggregate (spec, A.5).
                        row = (None, newest)
                        rows.pop(raw, None)
                    writes.append((pane, raw, row, before))
                    if operator.updates:
                        self._updates.append((key, raw, Update(pane.start, pane.end, total, old, newest)))
            except BaseException:
                # The agent may go on all the same: then the value is in none of its windows, rather than in some.
                self._undo(begun)
                raise

    def _find(self, timestamp: int, close: int) -> list[Refused]:
        """Find the panes that a time is in; return the windows that are closed."""
        begun, over, starts = self._fixed.slice(timestamp)
        bounds = [(start, self._fixed.end(start)) for start in starts]
        refused = [Refused(start, end) for start, end in bounds if end <= close]
        self._into = tuple(self._operator.pane(start) for start, end in bounds if end > close)
        if refused:
            # To be noted for each value.
            self._from = self._to = -1
        else:
            self._from, self._to, self._first_end = begun, over, bounds[0][1]
        return refused

    def _touch(self) -> None:
        super()._touch()
        self._time = self._operator.time

    # -- the event is over --------------------------------------------------------------------

    def apply(self) -> None:
        operator, complete = self._operator, self.buffer.complete
        for pane, raw, row, _ in self._writes:
            dirty = pane.dirty
            if dirty is None or row[0] is None:
                complete(pane, raw, row)
            else:
                dirty[raw] = row
        self._writes.clear()
        if self._time > operator.time:
            operator.move_to(self._time)
        self._over()

    def forget(self) -> None:
        self._undo(0)
        super().forget()

    def _undo(self, begun: int) -> None:
        """Take back the writes from the one with this number on, and what was noted of them."""
        undone = self._writes[begun:]
        for pane, raw, _, before in reversed(undone):
            if before is None:
                pane.rows.pop(raw, None)
            else:
                pane.rows[raw] = before
        del self._writes[begun:]
        if undone and self._operator.updates:
            del self._updates[-len(undone) :]

    # -- reading ------------------------------------------------------------------------------

    def windows(self, key: Any, start: int, end: int) -> list[Window[Any, Any]]:
        raw, _ = self._ours_of(key)
        found = []
        for at in sorted(at for at in self._panes if start <= at <= end):
            pane = self._panes[at]
            entry, timestamp = self.buffer.row(pane, raw)
            if entry is not None:
                found.append(Window(key, at, pane.end, self._operator.value_of(entry), timestamp))
        return found

    def _all(self) -> Iterator[tuple[bytes, Window[Any, Any]]]:
        # Not by a scan: of a pane that is forgotten by now the store may still have rows.
        if self._slot.working_on is None:
            raise self._no_event()
        decode, operator = self._keys.decode, self._operator
        for pane in self._panes.values():
            for raw in pane.rows:
                entry, timestamp = self.buffer.row(pane, raw)
                yield raw, Window(decode(raw), pane.start, pane.end, operator.value_of(entry), timestamp)
