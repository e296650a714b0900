"""A windowed table as one agent's instance sees it.

Like any view it notes what the current event does, and applies it in one step when the event is
complete. What comes out is handed to the agents that read it in that step, so that emission
and commit are one. What all instances share is the *operator*: `agentic.runtime.operators`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from agentic.core.emission import Ends
from agentic.core.sessions import SessionWindows
from agentic.core.windows import Refused, Row, Update
from agentic.runtime.operators import Operator, insert
from agentic.runtime.tables import CLOSED, MAX_KEY, Layout, TableView
from agentic.state.buffer import ABSENT
from agentic.state.grouped import GroupedBuffer
from agentic.state.window_keys import FIRST
from agentic.stream import Event
from agentic.windows import Late, Window, WindowedTable

if TYPE_CHECKING:
    from agentic.runtime.instance import Instance

#: What is put in: key, its bytes, value, timestamp in ms.
Value = tuple[Any, bytes, Any, int]


class WindowedView(TableView):
    """See `agentic.windows.WindowView`; and `agentic.core.windows.Rows`, which it is for the operator's algorithm."""

    __slots__ = (
        "_before",
        "_changed_neighbours",
        "_drops",
        "_early",
        "_finals",
        "_fresh",
        "_gone",
        "_got",
        "_late",
        "_operator",
        "_pending",
        "_same_bytes",
        "_seen",
        "_time",
        "_updates",
        "_windowing",
    )

    buffer: GroupedBuffer[Any]

    def __init__(
        self,
        table: WindowedTable[Any, Any],
        layout: Layout,
        buffer: GroupedBuffer[Any],
        slot: Instance[Any],
        partition: int,
        partitions: int,
        operator: Operator,
    ) -> None:
        super().__init__(table, layout, buffer, slot, partition, partitions)
        #: What `get` has found last, within one call of `add`.
        self._got: tuple[bytes, int, int, bytes, Any] = NOTHING_GOT
        self._operator = operator
        self._windowing = operator.windowing
        self._keys = operator.keys.inner
        #: Topics whose keys have the very bytes that keys of the table have.
        self._same_bytes = frozenset(
            source.topic
            for source in slot.agent.sources
            if self._keys.identity and source.topic.key_declared and source.topic.key is table.key
        )
        self._reset()
        self.overlay = {}

    def _reset(self) -> None:
        #: Has the current event done anything here?
        self._pending = False
        self._time = -1
        self._finals = False
        self._drops: list[str] = []
        self._updates: list[tuple[Any, bytes, Update]] = []
        self._late: list[tuple[Any, bytes, Late[Any]]] = []
        self._early: list[tuple[Any, bytes, Window[Any, Any]]] = []
        self._fresh: list[tuple[bytes, int]] = []
        self._gone: list[bytes] = []
        self._changed_neighbours: dict[bytes, list[tuple[int, int]]] = {}
        #: Where others may write at the same time: the bounds that were looked at, by key.
        self._seen: dict[bytes, tuple[tuple[int, int], ...]] = {}

    # -- writing ------------------------------------------------------------------------------

    def add(self, key: Any, value: Any, timestamp: int | None) -> None:
        event = self._slot.working_on
        if key is None:
            self._refuse("null_key")
            return
        if event is not None and key is event.key and event.origin.topic in self._same_bytes:
            raw = event.raw_key
            assert raw is not None, "only a null key has no bytes"
            if len(raw) > MAX_KEY:
                self._admit(key, event)
        else:
            raw = self._raw if key is self._key and event is self._event else self._admit(key, event)
        assert event is not None, "else the key was refused"
        if value is None and not self._windowing.takes_null:
            self._refuse("null_value")
            return
        self._put_in(key, raw, value, event.timestamp if timestamp is None else timestamp)

    def add_many(self, events: Iterable[Event]) -> None:
        for key, raw, value, timestamp in self._values(events):
            self._put_in(key, raw, value, timestamp)

    def _values(self, events: Iterable[Event]) -> list[Value]:
        """Return what is to be put in of events."""
        if self._slot.working_on is None:
            raise self._no_event()
        same_bytes, takes_null = self._same_bytes, self._windowing.takes_null
        values: list[Value] = []
        for event in events:
            key, value, raw = event.key, event.value, event.raw_key
            if key is None:
                self._refuse("null_key")
            elif value is None and not takes_null:
                self._refuse("null_value")
            else:
                if raw is None or len(raw) > MAX_KEY or event.origin.topic not in same_bytes:
                    raw = self._admit(key, event)
                values.append((key, raw, value, event.timestamp))
        return values

    def _comes(self, timestamp: int) -> bool:
        """Let the table's time move to that of a value that comes; return whether it is one that is taken."""
        if not self._pending:
            self._touch()
        operator = self._operator
        if operator.latest is not None and timestamp > operator.latest():
            self._drops.append("ahead")
            return False
        self._time = max(operator.time, self._time, timestamp)
        return True

    def _put_in(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        if not self._comes(timestamp):
            return
        operator, time = self._operator, self._time
        self._got = NOTHING_GOT
        close = operator.close_at(time)
        reopens = close
        if operator.table.late_policy == "reopen":
            # A window that was forgotten before a restart would be counted from nothing.
            reopens = max(close - operator.extra, min(close, operator.gone_before))
        try:
            change = self._windowing.add(self, raw, value, timestamp, time, reopens, operator.table.aggregate)
        except _ClosedEarly:
            _, start, end, _, _ = self._got
            self._note_late(key, raw, value, timestamp, [Refused(start, end)], close)
            self._finals = True
            return
        self._finals = self._finals or change.finals
        if change.refused:
            self._note_late(key, raw, value, timestamp, change.refused, close)
        if operator.updates or reopens < close:
            self._updates += [(key, raw, update) for update in change.updates]
        if operator.on_close is not None:
            for update in change.updates:
                self._close_early(operator.on_close, key, raw, update)

    def _close_early(
        self, on_close: Callable[[Window[Any, Any]], object], key: Any, raw: bytes, update: Update
    ) -> None:
        """Ask whether a window is complete as it is; if so, nothing more goes into it."""
        operator = self._operator
        if update.value is None:
            return
        window = Window(key, update.start, update.end, operator.show(update.value), update.timestamp)
        if on_close(window):
            name = operator.keys.name(raw, update.start, update.end)
            self.overlay[name] = (CLOSED, update.timestamp)
            self._early.append((key, raw, window))

    def _note_late(
        self, key: Any, raw: bytes, value: Any, timestamp: int, refused: Iterable[Refused], close: int
    ) -> None:
        for start, end in refused:
            self._drops.append("late")
            if self._operator.lates:
                self._late.append((key, raw, Late(key, value, timestamp, start, end, close - end)))

    def _refuse(self, reason: str) -> None:
        if self._slot.working_on is None:
            raise self._no_event()
        if not self._pending:
            self._touch()
        self._drops.append(reason)

    def _touch(self) -> None:
        self._pending = True
        self._slot.touched.append(self)

    # -- rows, as the algorithm sees them -----------------------------------------------------

    def get(self, key: bytes, start: int, end: int) -> Row | None:  # type: ignore[override]
        """See `Rows.get`."""
        name = self._operator.keys.name(key, start, end)
        row = self._row(name, end)
        self._got = (key, start, end, name, row)
        entry, timestamp = row
        if entry is None:
            return None
        if entry is CLOSED:
            raise _ClosedEarly
        return Row(start, end, entry if self._value_of is None else self._value_of(entry), timestamp)

    def starting(self, key: bytes, earliest: int, latest: int) -> Iterable[Row]:
        """See `Rows.starting`."""
        bounds = self._bounds(key)
        last = bisect_left(bounds, (latest + 1,))
        for start, end in reversed(bounds[bisect_left(bounds, (earliest,), 0, last) : last]):
            row = self.get(key, start, end)
            if row is not None:
                yield row

    def ending(self, key: bytes, earliest: int, latest_start: int) -> Sequence[Row]:
        """See `Rows.ending`."""
        return self._found(key, ((s, e) for e, s in self._bounds(key) if e >= earliest and s <= latest_start))

    def _bounds(self, key: bytes) -> Sequence[tuple[int, int]]:
        mine = self._changed_neighbours.get(key)
        if mine is not None:
            return mine
        assert self._operator.neighbours is not None, "asked by those kinds alone"
        bounds = self._operator.neighbours.get(key, ())
        if self.shared:
            self._seen.setdefault(key, tuple(bounds))
        return bounds

    def outdated(self) -> bool:
        neighbours = self._operator.neighbours
        if neighbours is not None and any(tuple(neighbours.get(key, ())) != seen for key, seen in self._seen.items()):
            return True
        return super().outdated()

    def _found(self, key: bytes, bounds: Iterable[tuple[int, int]]) -> list[Row]:
        return [row for start, end in bounds if (row := self.get(key, start, end)) is not None]

    def put(self, key: bytes, row: Row, fresh: bool) -> None:
        """See `Rows.put`."""
        start, end, value, timestamp = row
        got_key, got_start, got_end, name, _ = self._got
        if got_start != start or got_end != end or got_key is not key:
            name = self._operator.keys.name(key, start, end)
        self.overlay[name] = (value if value.__class__ is self._scalar else self._entry(value), timestamp)
        if fresh:
            if self.shared:
                self.read.setdefault(name, self._rows.get(name, ABSENT))
            self._fresh.append((name, end))
            if self._operator.neighbours is not None:
                insert(self._own_neighbours(key), self._mine(start, end))

    def remove(self, key: bytes, start: int, end: int) -> None:  # type: ignore[override]
        """See `Rows.remove`."""
        name = self._operator.keys.name(key, start, end)
        before = self._row(name, end)
        if before[0] is None:
            return
        self.overlay[name] = (None, before[1])
        self._gone.append(name)
        if self._operator.neighbours is not None:
            self._own_neighbours(key).remove(self._mine(start, end))

    def _row(self, name: bytes, end: int) -> Any:
        """Return the row of a window as the current event sees it."""
        row = self.overlay.get(name)
        if row is None:
            row = self._rows.get(name)
            if row is None:
                # Whatever is stored is in the index: a new window costs no look into the store.
                ends = self._operator.ends
                row = self._load(name) if isinstance(ends, Ends) and ends.has(end, name) else ABSENT
            if self.shared:
                self.read.setdefault(name, row)
        return row

    def _mine(self, start: int, end: int) -> tuple[int, int]:
        return (end, start) if isinstance(self._windowing, SessionWindows) else (start, end)

    def _own_neighbours(self, key: bytes) -> list[tuple[int, int]]:
        mine = self._changed_neighbours.get(key)
        if mine is None:
            mine = self._changed_neighbours[key] = list(self._bounds(key))
        return mine

    # -- the event is over --------------------------------------------------------------------

    def apply(self) -> None:
        operator = self._operator
        overlay = self.overlay
        # What was removed may have been made again by the same event.
        gone = [name for name in self._gone if overlay[name][0] is None]
        if len(overlay) == 1 and self.buffer.order is None:
            name, row = overlay.popitem()
            self._rows[name] = self.buffer.dirty[name] = row
        elif overlay:
            self.buffer.apply(overlay)
            overlay.clear()
        for name, end in self._fresh:
            operator.made(name, end)
        if gone:
            assert isinstance(operator.ends, Ends), "by name"
            for name in gone:
                operator.ends.removed(operator.keys.end(name), name)
            self.buffer.drop(gone, max(operator.time, self._time, 0))
        if self._changed_neighbours:
            neighbours = operator.neighbours
            assert neighbours is not None, "noted only then"
            for key, bounds in self._changed_neighbours.items():
                if bounds:
                    neighbours[key] = bounds
                else:
                    neighbours.pop(key, None)
        for reason in self._drops:
            operator.drop(reason, 1)
        operator.move_to(self._time)
        if self._updates:
            self._hand_updates(self._updates)
        for key, raw, late in self._late:
            operator.hand_out(operator.lates, key, self._wire(raw), late, late.timestamp)
        for key, raw, window in self._early:
            if operator.has_come_out(operator.keys.name(raw, window.start, window.end), window.end):
                continue  # it was reopened: it has come again as a correction
            operator.hand_out(operator.finals, key, self._wire(raw), window, window.timestamp)
            operator.numbers.emitted(1)
        finals = self._finals
        self._pending = self._finals = False
        self._time = -1
        if (
            self._fresh
            or self._gone
            or self._drops
            or self._updates
            or self._early
            or self._changed_neighbours
            or self._seen
        ):
            self._reset()
        if finals:
            operator.emit()

    def _over(self) -> None:
        """What the event has written is the table's: give out what it leads to."""
        operator = self._operator
        finals = self._finals
        self._pending = self._finals = False
        self._time = -1
        if self._drops or self._updates:
            for reason in self._drops:
                operator.drop(reason, 1)
            if self._updates:
                self._hand_updates(self._updates)
            for key, raw, late in self._late:
                operator.hand_out(operator.lates, key, self._wire(raw), late, late.timestamp)
            self._reset()
        if finals and operator.time >= operator.next:
            operator.emit()

    def _hand_updates(self, updates: Iterable[tuple[Any, bytes, Update]]) -> None:
        operator = self._operator
        for key, raw, update in updates:
            window = Window(
                key,
                update.start,
                update.end,
                operator.show(update.value),
                update.timestamp,
                operator.show(update.old),
            )
            wire = self._wire(raw)
            name = operator.keys.name(raw, update.start, update.end)
            if operator.updates:
                operator.hand_update(name, key, wire, window)
            if update.value is not None and operator.finals and operator.has_come_out(name, update.end):
                correction = Window(
                    key, update.start, update.end, window.value, update.timestamp, window.old, correction=True
                )
                operator.hand_out(operator.finals, key, wire, correction, update.timestamp)

    def _wire(self, raw: bytes) -> bytes:
        inner = self._operator.keys.inner
        return raw if inner.identity else inner.to_wire(raw)

    def forget(self) -> None:
        super().forget()
        self._reset()

    def detach(self) -> Any:
        assert self._operator.by_name, "one instance writes what is in groups, and its events are never set aside"
        noted = {name: getattr(self, name) for name in _NOTES}
        return dict(self.overlay), noted

    def lay_over(self, notes: Any) -> None:
        rows, noted = notes
        self.overlay.update(rows)
        for name, value in noted.items():
            setattr(self, name, value)

    # -- reading ------------------------------------------------------------------------------

    def windows(self, key: Any, start: int, end: int) -> list[Window[Any, Any]]:
        raw, _ = self._ours_of(key)
        keys, operator = self._operator.keys, self._operator
        if isinstance(self._windowing, SessionWindows):
            bounds = sorted((s, e) for e, s in self._bounds(raw) if start <= s <= end)
            rows = self._found(raw, bounds)
            return [Window(key, r.start, r.end, operator.show(r.value), r.timestamp) for r in rows]
        low, high = keys.name(raw, start, 0), keys.name(raw, min(end + 1, (1 << 63) - 1), 0)
        return [
            Window(key, keys.start(name), keys.end(name), operator.value_of(entry), timestamp)
            for name, entry, timestamp in self.buffer.scan(self.overlay, low, high)
            if entry is not None and entry is not CLOSED and keys.key(name) == raw
        ]

    def all_windows(self, start: int, end: int) -> list[Window[Any, Any]]:
        found = [(window.start, raw, window) for raw, window in self._all() if start <= window.start <= end]
        return [window for _, _, window in sorted(found, key=lambda each: each[:2])]

    def sessions(self, earliest_end: int, latest_end: int) -> list[Window[Any, Any]]:
        found = [
            (window.end, window.start, raw, window)
            for raw, window in self._all()
            if earliest_end <= window.end <= latest_end
        ]
        return [window for _, _, _, window in sorted(found, key=lambda each: each[:3])]

    def count(self) -> int:
        return sum(1 for _ in self._all())

    def _all(self) -> Iterator[tuple[bytes, Window[Any, Any]]]:
        if self._slot.working_on is None:
            raise self._no_event()
        keys, operator = self._operator.keys, self._operator
        for name, entry, timestamp in self.buffer.scan(self.overlay, FIRST):
            if entry is not None and entry is not CLOSED:
                raw = keys.key(name)
                key = keys.inner.decode(raw)
                value = operator.value_of(entry)
                yield raw, Window(key, keys.start(name), keys.end(name), value, timestamp)

    def wire_of(self, raw: bytes) -> bytes:
        return self._wire(self._operator.keys.key(raw))


class _ClosedEarly(Exception):
    """A window takes no more, since it was found complete."""


NOTHING_GOT: Final = (b"", -1, -1, b"", ABSENT)
#: What a view has noted of the current event, beside the rows.
_NOTES = (
    "_pending",
    "_time",
    "_finals",
    "_drops",
    "_updates",
    "_late",
    "_early",
    "_fresh",
    "_gone",
    "_changed_neighbours",
    "_seen",
)
