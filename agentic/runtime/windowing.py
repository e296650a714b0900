"""A windowed table at work in one task: what its instances write, and what comes out of it.

The *operator* has what all instances share: the table's stream time, which of its windows are
closed, and when the others will be. A *view* is the table as one instance sees it; like any
view it notes what the current event does, and applies it in one step when the event is
complete. What comes out is handed to the agents that read it in that step, so that emission
and commit are one.

The times are a row of the table itself, so that a restart, or a new owner, judges lateness and
goes on emitting exactly where the last commit was. Source: spec, B and C, and deviations 1 and 2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from agentic.core.calendar import CalendarWindows
from agentic.core.clock import Clock, Hold
from agentic.core.emission import Ends
from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.core.windows import Refused, Row, TimeWindows, Update, into
from agentic.runtime.gate import Emitted, Gate
from agentic.runtime.tables import CLOSED, Layout, TableView, Times
from agentic.runtime.window_numbers import WindowNumbers
from agentic.state.buffer import ABSENT, TableBuffer
from agentic.state.envelope import unwrap
from agentic.state.window_keys import FIRST, TIMES, WindowKeys
from agentic.stream import Event
from agentic.table import Table
from agentic.windows import LAST, Emissions, Late, Window, WindowedTable

if TYPE_CHECKING:
    from agentic.runtime.instance import Children, Instance

#: Windows that are handed out at once; the next ones when the agents are done with these.
BURST = 500
#: Windows of one end that are put in order at once: some milliseconds' worth.
PIECE = 20_000
#: Rows that are removed at once when they are not needed any more.
SWEEP = 1_000


class Reader(NamedTuple):
    """Who reads what comes out: the crew, the origin of the events, and as it was declared."""

    crew: Children
    origin: Emitted
    source: Emissions[Any]


class Operator:
    """One windowed table in one task.

    Args:
        readers: those that read what comes out.
        gate: counts what they have not finished.
        contended: may events be at work that write it at the same time? Then each holds the table's clock while it is.
        numbers: counts what is refused, and what comes out.
        latest: gives the latest time that is taken for one, None for any.
        all_again: are all events done that were under way before a restart, and come again?

    Attributes:
        time: the table's stream time, -1 before any event.
        clock: that time, held back by events at work; None where none need hold it.
    """

    def __init__(
        self,
        table: WindowedTable[Any, Any],
        layout: Layout,
        buffer: TableBuffer[Any],
        readers: Sequence[Reader],
        gate: Gate,
        contended: bool,
        numbers: WindowNumbers,
        latest: Callable[[], int | None],
        all_again: Callable[[], bool],
    ) -> None:
        assert isinstance(layout.keys, WindowKeys), "a windowed table has such keys"
        self.table = table
        self.windowing = table.windowing
        self.keys = layout.keys
        self.buffer = buffer
        self.clock: Clock | None = None
        self.time = -1
        self.latest = latest
        self.numbers = numbers
        self.drop = numbers.dropped
        self._gate = gate
        self._layout = layout
        self.finals = [reader for reader in readers if reader.source.mode == "final"]
        self.updates = [reader for reader in readers if reader.source.mode == "update"]
        #: Closes a window early; windows that were closed so stay as a mark until they would have been closed.
        self.on_close = next((reader.source.on_close for reader in self.finals if reader.source.on_close), None)
        #: Updates that wait to be merged with later ones of their windows, until a time or the next commit.
        self.within = next((reader.source.within for reader in self.updates if reader.source.within), None)
        self._merged: dict[bytes, tuple[Any, bytes, Window[Any, Any]]] = {}
        self._merging: asyncio.TimerHandle | None = None
        self.lates = [reader for reader in readers if reader.source.mode == "late"]
        #: Of windows that all have one.
        self._size: int | None = getattr(self.windowing, "size", None)
        self._sessions = isinstance(self.windowing, SessionWindows)
        self.ends = Ends()
        self._order = _session_order if self._sessions else _window_order
        #: For kinds that look for neighbours: key -> bounds of its windows, in order.
        self.neighbours: dict[bytes, list[tuple[int, int]]] | None = (
            {} if isinstance(self.windowing, SessionWindows | SlidingWindows) else None
        )
        #: How much longer than needed windows are kept, to be read or reopened.
        self.extra = table.retention - table.least_retention
        self._given = -1
        self._due: Iterator[tuple[int, bytes | None]] | None = None
        self._unneeded: deque[bytes] = deque()
        #: A window that ends at `e` is closed from the time `e` + the first of these on, and forgotten from the second.
        self._closes_after = -self.windowing.last_closed(self.windowing.close(0))
        self._forgotten_after = -self._forgettable(self.windowing.close(0))
        #: Before this time nothing comes out, and nothing is forgotten. Where windows may open again, each event looks.
        self._next = 0
        self._looks_always = table.late_policy == "reopen"
        self._noted = Times(-1, -1, -1)
        self._held = -1
        buffer.forgets = True
        self._restore()
        #: Holds the clock where it was, until what was at work then, and comes again, is done.
        self._again: Hold | None = None
        self._all_again = all_again
        if contended:
            self.clock = Clock(self._held)
            self._again = self.clock.hold(self._held + 1, "events that were under way before a restart")
            self.clock.skip(self.time)
            self.look_back()

    def _restore(self) -> None:
        blob = self.buffer.store.get(self.buffer.name, TIMES)
        if blob is not None:
            self.time, self._given, self._held = Times.decode(unwrap(blob)[0])
            self.ends.begin_at(self._given)
        for name, _ in self.buffer.pairs({}, FIRST):
            self._made(name)
        # The windows are found by their ends from here on: no scan needs an order that each event has to keep.
        self.buffer.order = None

    # -- the index ----------------------------------------------------------------------------

    def end_of(self, name: bytes) -> int:
        """Return the end of a window, from its name."""
        if self._sessions:
            return self.keys.end(name)
        start = self.keys.start(name)
        if self._size is None:
            assert isinstance(self.windowing, CalendarWindows), "others have one size"
            return self.windowing.bounds(start)[1]
        return start + self._size

    def _made(self, name: bytes) -> None:
        end = self.end_of(name)
        self.ends.add(end, name)
        if self.neighbours is not None:
            bounds = (end, self.keys.start(name)) if self._sessions else (self.keys.start(name), end)
            _insert(self.neighbours.setdefault(self.keys.key(name), []), bounds)

    # -- time ---------------------------------------------------------------------------------

    def look_back(self) -> None:
        """See whether what was under way before a restart is done by now."""
        if self._again is not None and self._all_again():
            self._again.release()
            self._again = None

    def hold(self, owner: object) -> Hold:
        """An event begins: until it is over, no window is closed that was open for it by now.

        In order, it would have come when the table's time was what it is: so the hold is there, not at its own time,
        which need not be that of what it adds.
        """
        assert self.clock is not None, "only where events may run beside each other"
        return self.clock.hold(self.time + 1, owner)

    def move_to(self, time: int) -> None:
        """The table's time moves on."""
        if time > self.time:
            self.time = time
            if self.clock is not None:
                self.clock.skip(time)

    @property
    def held(self) -> int:
        """The stream time by which windows are closed."""
        return self.time if self.clock is None or self.clock.now > self.time else self.clock.now

    def close_at(self, time: int) -> int:
        """Return the close time that goes with a stream time, held back by events in flight."""
        if self.clock is not None and self.clock.now < time:
            time = self.clock.now
        return self.windowing.close(time)

    # -- what comes out -----------------------------------------------------------------------

    def value_of(self, entry: Any) -> Any:
        """Return what is shown of a row's entry."""
        value = entry if self._layout.value_of is None else self._layout.value_of(entry)
        return value if self.table.shown is None else self.table.shown(value)

    def show(self, value: Any) -> Any:
        """Return what is shown of an aggregate."""
        return value if value is None or self.table.shown is None else self.table.shown(value)

    def hand_out(self, readers: Sequence[Reader], key: Any, wire: bytes, value: Any, timestamp: int) -> None:
        """Give something to those who read it."""
        self._gate.born(len(readers))
        for crew, origin, _ in readers:
            crew.put_child(Event(key, value, timestamp, -1, origin, wire, None))

    def hand_update(self, name: bytes, key: Any, wire: bytes, window: Window[Any, Any]) -> None:
        """Give out a change of a window, or let it wait for the next one."""
        if self.within is None:
            self.hand_out(self.updates, key, wire, window, window.timestamp)
            return
        before = self._merged.pop(name, None)
        if before is not None:
            window = msgspec.structs.replace(window, old=before[2].old)
        self._merged[name] = (key, wire, window)
        if self._merging is None:
            self._merging = asyncio.get_running_loop().call_later(self.within / 1000, self.flush)

    def flush(self) -> None:
        """Give out the updates that wait: their time is over, or a commit is to have them."""
        if self._merging is not None:
            self._merging.cancel()
            self._merging = None
        merged, self._merged = self._merged, {}
        if not self._gate.ended:
            for key, wire, window in merged.values():
                self.hand_out(self.updates, key, wire, window, window.timestamp)

    def emit(self) -> None:
        """Give out the windows that are closed by now, in order, and forget what is not needed any more."""
        if self._again is not None:
            self.look_back()
        time = self.held
        if time < self._next and not self._looks_always:
            return
        close = self.windowing.close(time)
        given = self.windowing.last_closed(close)
        if given > self._given:
            self._given = given
            if self.finals:
                if self._due is None:
                    self._due = self._names_due(given)
                    self._emit_some()
                # Otherwise a burst is under way, and goes on to what is due by then.
            else:
                for _ in self.ends.due(given):
                    continue
        self._forget(close)
        self._next = self._when_next()

    def _when_next(self) -> int:
        """Return the time from which on there is something to do again."""
        if self._unneeded or self._due is not None:
            return -1
        due, kept = self.ends.next_due(), self.ends.next_kept()
        return min(
            LAST if due is None else due + self._closes_after,
            LAST if kept is None else kept + self._forgotten_after,
        )

    def made(self, name: bytes, end: int) -> None:
        """A window has come into being."""
        self.ends.add(end, name)
        if end + self._closes_after < self._next:
            self._next = end + self._closes_after

    def _names_due(self, given: int) -> Iterator[tuple[int, bytes | None]]:
        """Iterate over what is due, in order; None after each piece of work that takes its time."""
        for end, names in self.ends.due(given):
            if len(names) <= PIECE:
                ordered: Iterable[bytes] = sorted(names, key=self._order)
            else:
                pieces = []
                for begin in range(0, len(names), PIECE):
                    pieces.append(sorted(names[begin : begin + PIECE], key=self._order))
                    yield end, None
                ordered = merge(*pieces, key=self._order)
            for name in ordered:
                yield end, name

    def _emit_some(self) -> None:
        """Give out a burst; the rest when the agents are done with it."""
        assert self._due is not None, "there is something due"
        keys, rows, load = self.keys, self.buffer.rows, self.buffer.load
        decode, inner = keys.inner.decode, keys.inner
        out: list[tuple[list[Event], Emitted]] = [([], origin) for _, origin, _ in self.finals]
        number = emitted = 0
        began = perf_counter()
        for end, name in islice(self._due, BURST):
            if name is None:
                number = BURST  # others get a turn
                break
            number += 1
            entry, timestamp = rows.get(name) or load(name)
            if entry is None or entry is CLOSED:
                continue  # it was erased, has become part of another, or has come out before
            raw = keys.key(name)
            key = decode(raw)
            wire = raw if inner.identity else inner.to_wire(raw)
            window = Window(key, keys.start(name), end, self.value_of(entry), timestamp)
            for events, origin in out:
                events.append(Event(key, window, timestamp, -1, origin, wire, None))
            emitted += 1
        if emitted:
            self._gate.born(emitted * len(out))
            for (events, _), reader in zip(out, self.finals):
                reader.crew.put_children(events)
            self.numbers.emitted(emitted, perf_counter() - began)
        if number == BURST:
            self._gate.later(self._emit_some)
            return
        self._due = None
        if self.ends.next_due() is not None and self.ends.next_due() <= self._given:  # type: ignore[operator]
            self._due = self._names_due(self._given)
            self._gate.later(self._emit_some)
            return
        self._forget(self.close_at(self.time))
        self._next = self._when_next()

    def note_times(self) -> None:
        """Write the times beside the windows, if they are others by now: a checkpoint begins."""
        times = Times(self.time, self._given, max(-1, self.held))
        if times != self._noted:
            self._noted = times
            self.buffer.apply({TIMES: (times, max(self.time, 0))})

    @property
    def given(self) -> int:
        """All windows that end at it or earlier have been given out."""
        return self._given

    def _forget(self, close: int) -> None:
        """Remove rows that no event can need any more, some at a time."""
        if self._due is not None:
            return  # they may be on their way out
        upto = self._forgettable(close)
        if len(self._unneeded) < SWEEP:
            for names in self.ends.expired(upto):
                self._unneeded += names
                if len(self._unneeded) >= SWEEP:
                    break
        removed: dict[bytes, tuple[Any, int]] = {}
        for _ in range(min(SWEEP, len(self._unneeded))):
            name = self._unneeded.popleft()
            row = self.buffer.rows.get(name) or self.buffer.load(name)
            if row[0] is not None:
                removed[name] = (None, row[1])
            if self.neighbours is not None:
                self._leave(name)
        if removed:
            self.buffer.apply(removed)

    def _forgettable(self, close: int) -> int:
        """Return the greatest end of windows that may be forgotten."""
        closed = self.windowing.last_closed(close)
        if isinstance(self.windowing, SlidingWindows):
            closed = min(closed, self.windowing.needed_until(close) + self.windowing.size - 1)
        return closed - self.extra

    def _leave(self, name: bytes) -> None:
        assert self.neighbours is not None, "asked only then"
        key = self.keys.key(name)
        bounds = self.neighbours.get(key)
        if bounds is None:
            return
        end, start = self.end_of(name), self.keys.start(name)
        mine = (end, start) if self._sessions else (start, end)
        if mine in bounds:
            bounds.remove(mine)
        if not bounds:
            del self.neighbours[key]

    @property
    def feeds(self) -> set[Table[Any, Any]]:
        """The tables that agents use which read what comes out."""
        return {table for reader in (*self.finals, *self.updates) for table in reader.crew.agent.used}

    def closed_from(self, end: int) -> int:
        """Return the stream time from which on a window with this end is closed."""
        return end + self._closes_after

    # -- numbers ------------------------------------------------------------------------------

    def behind(self) -> int | None:
        """Return by how much stream time the oldest open window is from being closed; None without one."""
        end = self.ends.next_due()
        return None if end is None else end - self.windowing.last_closed(self.close_at(self.time))


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
        "_quiet",
        "_seen",
        "_time",
        "_updates",
        "_windowing",
    )

    def __init__(
        self,
        table: WindowedTable[Any, Any],
        layout: Layout,
        buffer: TableBuffer[Any],
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
        self._quiet = (
            isinstance(operator.windowing, TimeWindows)
            and not operator.updates
            and operator.on_close is None
            and table.late_policy == "drop"
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
        raw = self._raw if key is self._key and event is self._event else self._admit(key, event)
        assert event is not None, "else the key was refused"
        if value is None and not self._windowing.takes_null:
            self._refuse("null_value")
            return
        self._put(key, raw, value, event.timestamp if timestamp is None else timestamp)

    def add_many(self, events: Iterable[Event]) -> None:
        if self._slot.working_on is None:
            raise self._no_event()
        for event in events:
            if event.key is None:
                self._refuse("null_key")
            elif event.value is None and not self._windowing.takes_null:
                self._refuse("null_value")
            else:
                raw = self._encode_key(event.key)
                if raw != event.raw_key:
                    self._check(raw, event.key)
                self._put(event.key, raw, event.value, event.timestamp)

    def _put_in_quietly(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        """Put a value into time windows of which nobody reads the changes: as `TimeWindows.add`, in fewer steps."""
        if not self._pending:
            self._touch()
        operator = self._operator
        latest = operator.latest()
        if latest is not None and timestamp > latest:
            self._drops.append("ahead")
            return
        time = max(operator.time, self._time, timestamp)
        self._time = time
        self._finals = True
        close = operator.close_at(time)
        windows = self._windowing
        assert isinstance(windows, TimeWindows), "only those are put in so"
        overlay, rows, size, aggregate = self.overlay, self._rows, windows.size, operator.table.aggregate
        for start in windows.starts(timestamp):
            end = start + size
            if end <= close:
                self._note_late(key, raw, value, timestamp, (Refused(start, end),), close)
                continue
            name = raw + start.to_bytes(8, "big")
            row = overlay.get(name) or rows.get(name)
            if row is None:
                row = self._load(name) if operator.ends.has(end, name) else ABSENT
            old = row[0]
            if old is None:
                self._fresh.append((name, end))
            elif self._value_of is not None:
                old = self._value_of(old)
            total, newest = into(aggregate, old, row[1], value, timestamp)
            if total.__class__ is not self._scalar:
                if total is None:
                    self._erase(name, row)
                    continue
                total = self._entry(total)
            overlay[name] = (total, newest)

    def _erase(self, name: bytes, row: Any) -> None:
        """A window has been erased by its aggregate (spec, A.5)."""
        if row[0] is None:
            self._fresh.pop()
        else:
            self.overlay[name] = (None, row[1])
            self._gone.append(name)

    def _put_in(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        if not self._pending:
            self._touch()
        operator = self._operator
        latest = operator.latest()
        if latest is not None and timestamp > latest:
            self._drops.append("ahead")
            return
        time = max(operator.time, self._time, timestamp)
        self._time = time
        self._got = NOTHING_GOT
        close = operator.close_at(time)
        reopens = close - operator.extra if operator.table.late_policy == "reopen" else close
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

    def _put(self, key: Any, raw: bytes, value: Any, timestamp: int) -> None:
        if self._quiet and not self.shared:
            self._put_in_quietly(key, raw, value, timestamp)
        else:
            self._put_in(key, raw, value, timestamp)

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

    def starting(self, key: bytes, earliest: int, latest: int) -> Sequence[Row]:
        """See `Rows.starting`."""
        return self._found(key, ((s, e) for s, e in self._bounds(key) if earliest <= s <= latest))

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

    def put(self, key: bytes, row: Row) -> None:
        """See `Rows.put`."""
        got_key, got_start, got_end, name, before = self._got
        if got_key is not key or got_start != row.start or got_end != row.end:
            name = self._operator.keys.name(key, row.start, row.end)
            before = self._row(name, row.end)
        elif name in self.overlay:
            before = self.overlay[name]  # it may have been removed since
        value = row.value
        entry = value
        if value.__class__ is not self._scalar:
            entry = self._entry(value)
        self.overlay[name] = (entry, row.timestamp)
        if before[0] is None:
            self._fresh.append((name, row.end))
            if self._operator.neighbours is not None:
                _insert(self._own_neighbours(key), self._mine(row.start, row.end))

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
                row = self._load(name) if self._operator.ends.has(end, name) else ABSENT
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
        for name in gone:
            operator.ends.removed(operator.end_of(name), name)
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
            if operator.updates:
                operator.hand_update(operator.keys.name(raw, update.start, update.end), key, wire, window)
            if update.end <= operator.given and update.value is not None and operator.finals:
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
            Window(key, keys.start(name), operator.end_of(name), operator.value_of(entry), timestamp)
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

    def _all(self) -> Iterator[tuple[bytes, Window[Any, Any]]]:
        if self._slot.working_on is None:
            raise self._no_event()
        keys, operator = self._operator.keys, self._operator
        for name, entry, timestamp in self.buffer.scan(self.overlay, FIRST):
            if entry is not None and entry is not CLOSED:
                raw = keys.key(name)
                key = keys.inner.decode(raw)
                value = operator.value_of(entry)
                yield raw, Window(key, keys.start(name), operator.end_of(name), value, timestamp)

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


def _insert(bounds: list[tuple[int, int]], mine: tuple[int, int]) -> None:
    """Put bounds in their place; most come last."""
    if not bounds or bounds[-1] < mine:
        bounds.append(mine)
    elif mine not in bounds:
        bounds.append(mine)
        bounds.sort()


def _window_order(name: bytes) -> bytes:
    # Of one end, so of one start: by the key.
    return name[:-8]


def _session_order(name: bytes) -> tuple[bytes, bytes]:
    return name[-8:], name[:-16]
