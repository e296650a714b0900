"""What all instances of a task share of a windowed table: its time, which windows are closed, and what comes out.

The times are a row of the table itself, so that a restart, or a new owner, judges lateness and
goes on emitting exactly where the last commit was. Source: spec, B and C, and deviations 1 and 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentic.codecs.raw import Text
from agentic.core import bursts
from agentic.core.bursts import in_order
from agentic.core.calendar import CalendarWindows
from agentic.core.clock import Clock, Hold
from agentic.core.emission import Ends
from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.core.windows import FixedWindowing, TimeWindows
from agentic.errors import StateMismatch
from agentic.runtime.gate import Emitted, Gate
from agentic.runtime.tables import CLOSED, Layout, Times
from agentic.runtime.window_numbers import WindowNumbers
from agentic.state.buffer import Row
from agentic.state.envelope import unwrap
from agentic.state.grouped import Due, GroupedBuffer
from agentic.state.panes import Pane, PanedBuffer
from agentic.state.strip_ends import EndsOfStrips
from agentic.state.strips import StripedBuffer
from agentic.state.window_keys import FIRST, TIMES, WindowKeys
from agentic.stream import Event
from agentic.table import Table
from agentic.windows import LAST, Emissions, Window, WindowedTable

if TYPE_CHECKING:
    from agentic.runtime.instance import Children

log = logging.getLogger("agentic.worker")

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
        latest: gives the latest time that is taken for one; None: any is.
        all_again: are all events done that were under way before a restart, and come again?

    Attributes:
        time: the table's stream time, -1 before any event.
        clock: that time, held back by events at work; None where none need hold it.
        fixed: the kind of windows, where their rows are in panes: if their bounds are fixed. Neither panes nor strips
            are for tables that several instances write, or whose windows may be closed early or open again, nor as
            long as what was so before a restart may still show.
        next: before this time nothing comes out, and nothing is forgotten.
    """

    def __init__(
        self,
        table: WindowedTable[Any, Any],
        layout: Layout,
        buffer: GroupedBuffer[Any],
        readers: Sequence[Reader],
        gate: Gate,
        contended: bool,
        numbers: WindowNumbers,
        latest: Callable[[], int] | None,
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
        self._sessions = isinstance(self.windowing, SessionWindows)
        self._decode = bytes.decode if isinstance(table.key, Text) else self.keys.inner.decode
        self.fixed: FixedWindowing | None = None
        self._panes: PanedBuffer[Any] | None = None
        self._strips: StripedBuffer[Any] | None = None
        self.ends: Ends | EndsOfStrips = Ends()
        #: How windows of one end are put in order. Those in groups are known by what puts them in order.
        self._order: Callable[[Any], Any] | None = None
        #: For kinds that look for neighbours: key -> bounds of its windows, in order.
        self.neighbours: dict[bytes, list[tuple[int, int]]] | None = None
        #: How much longer than needed windows are kept, to be read or reopened.
        self.extra = table.retention - table.least_retention
        self._given = -1
        self._due: Iterator[list[Due] | None] | None = None
        #: Is a burst under way, with more to follow?
        self._bursting = False
        #: The names of rows that are to be removed, some at a time.
        self._unneeded: deque[Iterator[bytes]] = deque()
        #: A window that ends at `e` is closed from the time `e` + the first of these on, and forgotten from the second.
        self.closes_after = -self.windowing.last_closed(self.windowing.close(0))
        self.forgotten_after = -self._forgettable(self.windowing.close(0))
        self.next = 0
        #: Where windows may open again, each event looks.
        self._looks_always = table.late_policy == "reopen"
        #: Where they may, the names of those that are still to come out of the end that is being given out.
        self._coming: set[bytes] = set()
        self._noted = Times(-1, -1, -1, repr(self.windowing))
        self._held = -1
        #: The greatest end of windows that may have been removed; and the close time until which that was so at first.
        self._forgotten = -1
        self._restore_times()
        self.gone_before = self._forgotten - self.windowing.last_closed(0)
        # What was at work before a restart may be behind the table's time, though nothing runs beside it now.
        contended = contended or self._held < self.time
        if contended or self.on_close or table.late_policy != "drop" or not self._restore_groups():
            self._restore_names()
        # The windows are found by their ends from here on: no scan needs an order that each event has to keep.
        buffer.order = None
        #: Holds the clock where it was, until what was at work then, and comes again, is done.
        self._again: Hold | None = None
        self._all_again = all_again
        if contended:
            self.clock = Clock(self._held)
            self._again = self.clock.hold(self._held + 1, "events that were under way before a restart")
            self.clock.skip(self.time)
            self.look_back()

    def _restore_times(self) -> None:
        blob = self.buffer.store.get(self.buffer.name, TIMES)
        if blob is not None:
            self.time, self._given, self._held, windows, self._forgotten = Times.decode(unwrap(blob)[0])
            if windows not in ("", self._noted.windows):
                # A store of others is refused when it is opened: these rows are out of the changelog.
                raise StateMismatch(
                    f"changelog {self.table.changelog_topic!r} is of {windows}, and table {self.table.name!r} has now "
                    f"{self._noted.windows}; declare these again, give the table another name, or let 'agentic reset' "
                    "delete it with the app's state"
                )
            if self._looks_always and self._forgotten > self._forgettable(self.windowing.close(self._held)):
                log.warning(
                    "table %s keeps windows for longer than before, by retention= or late='reopen': those that end at "
                    "%d or earlier have been forgotten by now, and values for them stay late",
                    self.table.name,
                    self._forgotten,
                )

    def _restore_groups(self) -> bool:
        """Put the windows that there are into groups; return False, with nothing done, if one is closed early.

        By an `on_close` that is not there any more: it has come out all the same, and takes nothing.
        """
        if isinstance(self.buffer, PanedBuffer):
            assert isinstance(self.windowing, TimeWindows | CalendarWindows), "others have no panes"
            self._panes, self.fixed = self.buffer, self.windowing
        elif isinstance(self.buffer, StripedBuffer):
            self._strips = self.buffer
        if isinstance(self.ends, Ends):
            self.ends.begin_at(self._given)
        for name, entry, timestamp in self.buffer.scan({}, FIRST):
            if entry is CLOSED:
                self._panes = self._strips = self.fixed = None
                self.buffer.ungroup()
                return False
            self._restore_window(name, (entry, timestamp))
        if self._strips is not None:
            self.ends = EndsOfStrips(self._strips)
            self.ends.begin_at(self._given)
        return True

    def _restore_names(self) -> None:
        self._order = _session_order if self._sessions else _window_order
        if isinstance(self.windowing, SessionWindows | SlidingWindows):
            self.neighbours = {}
        self.ends = Ends()
        self.ends.begin_at(self._given)
        for name, _ in self.buffer.pairs({}, FIRST):
            self.buffer.saved.add(name)
            self._made(name)

    @property
    def by_name(self) -> bool:
        """Are the rows kept by their names, in neither panes nor strips?"""
        return self._order is not None

    # -- the index ----------------------------------------------------------------------------

    def _made(self, name: bytes) -> None:
        assert isinstance(self.ends, Ends), "by name"
        end = self.keys.end(name)
        self.ends.add(end, name)
        if self.neighbours is not None:
            bounds = (end, self.keys.start(name)) if self._sessions else (self.keys.start(name), end)
            insert(self.neighbours.setdefault(self.keys.key(name), []), bounds)

    def _restore_window(self, name: bytes, row: Row) -> None:
        if self._panes is not None:
            self._panes.restore(self.pane(self.keys.start(name)), self.keys.key(name), row)
        elif self._strips is not None:
            self._strips.restore(name, row)

    def pane(self, start: int) -> Pane:
        """Return the pane of a window, made where it is the first."""
        assert self._panes is not None and self.fixed is not None and isinstance(self.ends, Ends), "else it has none"
        pane = self._panes.panes.get(start)
        if pane is None:
            end = self.fixed.end(start)
            pane = self._panes.open(start, end, self.ends.named(end))
            self.next = min(self.next, end + self.closes_after)
        return pane

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
                # Of one that has come and gone meanwhile nobody has heard (spec, C.1).
                if window.value is not None or window.old is not None:
                    self.hand_out(self.updates, key, wire, window, window.timestamp)

    def emit(self) -> None:
        """Give out the windows that are closed by now, in order, and forget what is not needed any more."""
        if self._again is not None:
            self.look_back()
        if self._bursting:
            return  # whoever is done with what is on its way looks again
        time = self.held
        if time < self.next and not self._looks_always:
            return
        close = self.windowing.close(time)
        given = self.windowing.last_closed(close)
        if given > self._given:
            self._given = given
            if isinstance(self.ends, EndsOfStrips):
                if self._emit_strips(self.ends):
                    return
            elif self.finals:
                self._due = self._rows_due(given)
                self._emit_some()
                return
            else:
                for _ in self.ends.due(given):
                    continue
        self._forget(close)
        self.next = self._when_next()

    def _when_next(self) -> int:
        """Return the time from which on there is something to do again."""
        if self._unneeded:
            return -1
        due, kept = self.ends.ahead()
        return min(
            LAST if due is None else due + self.closes_after,
            LAST if kept is None else kept + self.forgotten_after,
        )

    def made(self, name: bytes, end: int) -> None:
        """A window has come into being, with a row by its name."""
        assert isinstance(self.ends, Ends), "else it has no name"
        self.ends.add(end, name)
        if end + self.closes_after < self.next:
            self.next = end + self.closes_after

    def _rows_due(self, given: int) -> Iterator[list[Due] | None]:
        """Iterate over the windows that are due, some at a time, in order; None after each work that takes its time."""
        assert isinstance(self.ends, Ends), "others give out by themselves"
        for end, names in self.ends.due(given):
            if self._panes is not None and self.fixed is not None:
                pane, due = self._panes.panes[self.fixed.start(end)], self._panes.due
                for some in in_order(names, self._order):
                    yield None if some is None else due(pane, some)
                continue
            rows, peek, keys = self.buffer.rows, self.buffer.peek, self.keys
            if self._looks_always:
                self._coming.update(names)
            for some in in_order(names, self._order):
                if some is None:
                    yield None
                    continue
                self._coming.difference_update(some)
                found = [(name, *(rows.get(name) or peek(name))) for name in some]
                yield [
                    (keys.key(name), keys.start(name), end, entry, timestamp)
                    for name, entry, timestamp in found
                    # Else it was erased, has become part of another, or has come out before.
                    if entry is not None and entry is not CLOSED
                ]

    def _emit_some(self) -> None:
        """Give out a burst; the rest when the agents are done with it."""
        assert self._due is not None, "there is something due"
        began = perf_counter()
        rows: list[Due] = []
        for some in self._due:
            if some is not None:
                rows += some
            if some is None or len(rows) >= bursts.BURST:
                self._hand_rows(rows, began)
                self._more_later(self._emit_some)
                return
        self._hand_rows(rows, began)
        self._due = None
        self._bursting = False
        self.next = -1
        self.emit()

    def _emit_strips(self, ends: EndsOfStrips) -> bool:
        """Give out a burst of windows in strips; return whether there are more, later."""
        assert self._strips is not None, "both, or none"
        while True:
            began = perf_counter()
            due = ends.due(self._given, bursts.BURST)
            if self.finals:
                self._hand_rows(self._strips.loaded(due) if self._strips.trimmed else due, began)
            if len(due) < bursts.BURST:
                return False
            if self.finals:
                self._more_later(self._go_on)
                return True

    def _go_on(self) -> None:
        """The agents are done with a burst of windows in strips."""
        assert isinstance(self.ends, EndsOfStrips), "others have no such bursts"
        if not self._emit_strips(self.ends):
            self._bursting = False
            self.next = -1
            self.emit()

    def _more_later(self, emit: Callable[[], None]) -> None:
        self._bursting = True
        self.next = LAST
        self._gate.later(emit)

    def _hand_rows(self, rows: Sequence[Due], began: float) -> None:
        """Give windows to those who read them."""
        if not rows:
            return
        decode, value_of = self._decode, self._layout.value_of if self.table.shown is None else self.value_of
        identity, to_wire = self.keys.inner.identity, self.keys.inner.to_wire
        (crew, origin, _), *others = self.finals
        events: list[Event] = []
        for raw, start, end, entry, timestamp in rows:
            key = decode(raw)
            window = Window(key, start, end, entry if value_of is None else value_of(entry), timestamp)
            wire = raw if identity else to_wire(raw)
            events.append(Event(key, window, timestamp, -1, origin, wire, None))
        self._gate.born(len(rows) * len(self.finals))
        crew.put_children(events)
        for other, its_origin, _ in others:
            other.put_children([Event(e.key, e.value, e.timestamp, -1, its_origin, e.raw_key, None) for e in events])
        self.numbers.emitted(len(rows), perf_counter() - began)

    def note_times(self) -> None:
        """Write the times beside the windows, if they are others by now: a checkpoint begins."""
        times = Times(self.time, self._given, max(-1, self.held), self._noted.windows, self._forgotten)
        if self._strips is not None:
            self._strips.time = self.time
        if times != self._noted:
            self._noted = times
            self.buffer.apply({TIMES: (times, max(self.time, 0))})

    def has_come_out(self, name: bytes, end: int) -> bool:
        """Is a window closed, and has a burst that is under way not still to give it out?"""
        if self._bursting and isinstance(self.ends, Ends):
            return self.ends.passed(end) and name not in self._coming
        return end <= self._given

    def _forget(self, close: int) -> None:
        """Remove rows that no event can need any more, some at a time."""
        buffer = self.buffer
        upto = self._forgettable(close)
        self._forgotten = max(self._forgotten, upto)
        if isinstance(self.ends, EndsOfStrips):
            self.ends.sweep(upto, SWEEP)
            return
        gone: list[bytes] = []
        for end, names in self.ends.expired(upto):
            if self._panes is not None and self.fixed is not None:
                self._unneeded.append(self._panes.close(self.fixed.start(end)))
            elif self._unneeded or len(gone) + len(names) > SWEEP:
                self._unneeded.append(iter(names))
            else:
                gone += names
        while self._unneeded and len(gone) < SWEEP:
            before = len(gone)
            gone += islice(self._unneeded[0], SWEEP - before)
            if len(gone) == before:
                self._unneeded.popleft()
        if gone:
            buffer.drop(gone, max(self.time, 0))
        if self.neighbours is not None:
            for name in gone:
                self._leave(name)

    def _forgettable(self, close: int) -> int:
        """Return the greatest end of windows that may be forgotten."""
        closed = self.windowing.last_closed(close)
        if isinstance(self.windowing, SlidingWindows):
            closed = min(closed, self.windowing.needed_until(close) + self.windowing.size - 1)
        return closed - self.extra

    def _leave(self, name: bytes) -> None:
        assert self.neighbours is not None, "asked only then"
        key = name[: -self.keys.width]
        bounds = self.neighbours.get(key)
        if bounds is None:
            return
        start, end = self.keys.start(name), self.keys.end(name)
        mine = (end, start) if self._sessions else (start, end)
        if bounds[0] == mine:
            del bounds[0]  # the one that is needed no more is mostly the first
        elif mine in bounds:
            bounds.remove(mine)
        if not bounds:
            del self.neighbours[key]

    @property
    def feeds(self) -> set[Table[Any, Any]]:
        """The tables that agents use which read what comes out."""
        return {table for reader in (*self.finals, *self.updates) for table in reader.crew.agent.used}

    def closed_from(self, end: int) -> int:
        """Return the stream time from which on a window with this end is closed."""
        return end + self.closes_after

    # -- numbers ------------------------------------------------------------------------------

    def behind(self) -> int | None:
        """Return by how much stream time the oldest open window is from being closed; None without one."""
        end = self.ends.next_due()
        return None if end is None else end - self.windowing.last_closed(self.close_at(self.time))


def insert(bounds: list[tuple[int, int]], mine: tuple[int, int]) -> None:
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
