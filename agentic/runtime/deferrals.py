"""Events that were put off: rows of a table of the task, until they are due.

An event moves there in the same commit as its offset, so it keeps nothing back and survives any
crash; when it is due it comes again, and its row goes in the same commit as its effects. While
one of a key is there, later events of that key wait behind it in the table, in their order,
unless it was put off with ``block_key=False``.

A row's key is a number that rises with each row: their order is the order of arrival. In memory there
is no more of a row than its key, when it is due and what it holds back.

Source: spec, B7.8; rules 21 and 22.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from agentic.agent import Agent
from agentic.core.clock import Clock, Holds
from agentic.errors import DecodeFailed, StateMismatch
from agentic.runtime.lane import Putting
from agentic.runtime.partition import name_of_event
from agentic.runtime.tables import TableView
from agentic.stream import Event
from agentic.topic import Topic

#: The number of the first row: there is room before it.
FIRST = 1 << 48
#: Bits that a row's number takes.
NUMBER = 64
#: Events of one key that may wait behind one that is put off; the next stays in the partition, with all behind it.
#: In memory they take some megabytes.
PER_KEY = 100_000
#: From one number to the next: free are those of what comes before rows that are there, more than events of a key
#: may wait.
STEP = 1 << 20

#: Where records come from: a topic and a partition of it.
Source = tuple[str, int]


class Row(msgspec.Struct, array_like=True):
    """What is kept of an event that is put off.

    Attributes:
        due_at: on the wall clock, in ms; 0: as soon as what stands before it is done.
        blocks: do later events of its key wait behind it?
        holds: does the task's clock wait for it?
        failures: attempts that have failed.
        reason: why it was put off.
        since: when the first attempt on it began, on the wall clock in ms; 0: there was none.
        deferred: how often it has been put off; 0: it waits behind one that was.
    """

    due_at: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    blocks: bool
    holds: bool
    failures: int = 0
    reason: str = ""
    since: int = 0
    deferred: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode


def decode_row(value: bytes) -> Row:
    """Return what a row of a table of deferred events says."""
    return _decode(value)


class Parked:
    """Where an event comes from that was put off: see `agentic.stream.Origin`. It retires with its row."""

    __slots__ = ("_deferrals", "_left", "deferred", "failures", "kept", "number", "partition", "row", "topic")

    def __init__(self, deferrals: Deferrals, number: int, row: Row, topic: Topic[Any, Any]) -> None:
        self._deferrals = deferrals
        self._left = 1
        self.number = number
        self.row = row
        self.topic = topic
        self.partition = row.partition
        self.failures = row.failures
        self.deferred = row.deferred
        #: Was it put off again? Then its row stays.
        self.kept = False

    def retire(self, offset: int) -> bool:
        self._left -= 1
        if self._left:
            return False
        if not self.kept:
            self._deferrals.remove(self.number, self.row)
        return True

    def adopt(self, offset: int, children: int) -> None:
        self._left += children

    def idempotency_key(self, event: Event) -> str:
        return name_of_event(self.topic, self.partition, event.offset)

    @property
    def ledger_base(self) -> None:
        """It is in no ledger."""


class Deferrals:
    """The deferred events of one agent in one task.

    Args:
        view: the table.
        clocks: those that events which are still to come hold back.
        base_of: gives the lowest unfinished offset of a topic's partition, None while nothing is known of it.
    """

    def __init__(
        self,
        view: TableView,
        agent: Agent,
        task: str,
        clocks: Sequence[Clock],
        base_of: Callable[[str, int], int | None],
    ) -> None:
        self._buffer = view.buffer
        self._key = view.layout.keys.encode
        self._number = view.layout.keys.decode
        self._agent = agent.name
        self._ordered = agent.execution.order != "none"
        self._task = task
        self._topics = {topic.name: topic for topic in agent.topics}
        self._base_of = base_of
        #: Rows of events that may be delivered once more: a crash came between their row and their offset.
        self._known: set[tuple[str, int, int]] = set()
        #: The last offset among those of each source: what was read before it may come again, until the source's
        #: base has passed it.
        self._again: dict[Source, int] = {}
        #: The greatest offset of each source that has had a row: what comes after it goes behind all of its key.
        self._greatest: dict[Source, int] = {}
        #: Keys whose first row waits until what was read before it is done again: where that row comes from.
        self._awaiting: dict[bytes, tuple[Source, int]] = {}
        #: The bases at the last look at them.
        self._bases: list[int | None] = []
        #: key -> the number of the first of its rows; of those that block it, and of what waits behind.
        self._first: dict[bytes, int] = {}
        #: key -> the numbers of those behind, in order; only where there are any.
        self._behind: dict[bytes, deque[int]] = {}
        #: Keys whose first row waits for events of the key that are in flight, or are still to be done again.
        self._dormant: set[bytes] = set()
        #: A heap of what is due when: the time in ms, with the number in the lower bits. Pairs take twice the memory.
        self._due: list[int] = []
        #: When those are due that have their queue's first before them, where they wait for a time as well.
        self._later: dict[int, int] = {}
        self._holds = Holds(clocks, self)
        self._next = self._lowest = FIRST
        #: Where the last event of a key has gone that came before others of the key that are here: its source and
        #: offset, and the place after it among the key's rows.
        self._wedges: dict[bytes, tuple[Source, int, int]] = {}
        self.parked = 0
        self._restore()

    def _restore(self) -> None:
        for row in self.rows():
            # What the agent does not read any more does not come again either.
            if row.topic in self._topics and row.offset >= (self._base_of(row.topic, row.partition) or 0):
                self._known.add((row.topic, row.partition, row.offset))
                if row.blocks and row.key is not None:
                    source = (row.topic, row.partition)
                    self._again[source] = max(row.offset, self._again.get(source, -1))
        for key, entry in self._buffer.pairs({}):
            number = int.from_bytes(self._number(key), "big")
            self._lowest = min(self._lowest, number)
            self._next = max(self._next, number + STEP)
            row = _decode(entry)
            source = (row.topic, row.partition)
            self._greatest[source] = max(row.offset, self._greatest.get(source, -1))
            self._admit(number, row, restored=True)

    def _admit(self, number: int, row: Row, *, restored: bool = False) -> None:
        """Take a row into memory; where it is not restored, all of its key that was read before it is done or here."""
        self.parked += 1
        if row.holds:
            self._holds.place(row.timestamp)
        if not row.blocks or row.key is None:
            self._wait_until(row.due_at, number)
        elif self._join_queue(number, row.key, row.due_at):
            if restored:
                self._be_first(row.key, number, row.due_at, row)
            else:
                self._wait_until(row.due_at, number)

    def _be_first(self, key: bytes, number: int, due_at: int, row: Row | None = None) -> None:
        """A row is the first of its key: it comes when it is due, and all is done that was read before it.

        Args:
            row: what it says, where that is known already.
        """
        if self._again:
            row = self._read(number) if row is None else row
            source = (row.topic, row.partition)
            if row.offset <= self._again.get(source, -1) and row.offset >= (self._base_of(*source) or 0):
                self._awaiting[key] = source, row.offset
                self._dormant.add(key)
                if due_at:
                    self._later[number] = due_at
                return
        self._wait_until(due_at, number)

    def _join_queue(self, number: int, key: bytes, due_at: int) -> bool:
        """Stand at the end of a key's queue; return whether that is its beginning."""
        if self._first.setdefault(key, number) == number:
            return True
        self._behind.setdefault(key, deque()).append(number)
        if due_at:
            self._later[number] = due_at
        return False

    def _wait_until(self, due_at: int, number: int) -> None:
        """Let a row come when it is due."""
        heapq.heappush(self._due, due_at << NUMBER | number)

    def _write(self, number: int, row: Row | None) -> None:
        if row is not None:
            source = (row.topic, row.partition)
            self._greatest[source] = max(row.offset, self._greatest.get(source, -1))
        entry = None if row is None else _encode(row)
        key = self._key(number.to_bytes(8, "big"))
        self._buffer.apply({key: (entry, 0 if row is None else row.timestamp)})
        # It is looked at once more, and that may be long after: no cache is to keep it.
        del self._buffer.rows[key]

    def _read(self, number: int) -> Row:
        entry, _ = self._buffer.peek(self._key(number.to_bytes(8, "big")))
        return _decode(entry)

    # -- putting off --------------------------------------------------------------------------

    def put(self, event: Event, putting: Putting, failures: int, now: int, since: int) -> None:
        """Put an event off. Its offset is to be retired in the same step.

        Args:
            now: the wall clock, in ms.
            since: when the first attempt on it began, likewise.
        """
        blocks = putting.block_key and event.raw_key is not None
        due_at = now + round(putting.after * 1000)
        row = _row(event, due_at, blocks=blocks, holds=putting.hold is not None, failures=failures, why=putting.reason)
        row.since = since
        row.deferred = event.deferred + 1
        if event.origin.__class__ is not Parked:
            if row.key is not None and blocks and (self._ordered or row.key in self._dormant):
                # Later ones of its key may have come here while it was at work, alone or in a list.
                place = 0 if row.key in self._dormant else self._place_of(event, row.key)[0]
                if place is not None:
                    self._insert(row, place)
                    return
            number, self._next = self._next, self._next + STEP
            self._write(number, row)
            self._admit(number, row)
            return
        # It keeps its row's number, and so its place before what waits behind it.
        parked: Parked = event.origin
        parked.kept = True
        number = parked.number
        self._write(number, row)
        if row.holds:
            self._holds.place(row.timestamp)
        if parked.row.holds:
            self._holds.lift(parked.row.timestamp)
        if parked.row.blocks and not blocks:
            self._leave_queue(parked.row)
        elif blocks and not parked.row.blocks:
            assert row.key is not None, "only then does it block"
            if not self._join_queue(number, row.key, row.due_at):
                return  # those there have overtaken it, and may be under way
        self._wait_until(row.due_at, number)

    def _insert(self, row: Row, place: int) -> None:
        """Let a row stand at a place among those of its key, before one that is there; after a restart too."""
        key = row.key
        assert key is not None, "it has a queue"
        behind = self._behind.setdefault(key, deque())
        if place:
            before = self._first[key] if place == 1 else behind[place - 2]
            number = before + 1
            assert number < behind[place - 1], "each row has left room behind it"
            behind.insert(place - 1, number)
            if row.due_at:
                self._later[number] = row.due_at
        else:
            number = self._lowest = self._lowest - STEP
            behind.appendleft(self._first[key])
            self._first[key] = number
            self._dormant.discard(key)
            self._awaiting.pop(key, None)
        self._wedges[key] = (row.topic, row.partition), row.offset, place + 1
        self._write(number, row)
        self.parked += 1
        if row.holds:
            self._holds.place(row.timestamp)
        if not place:
            self._wait_until(row.due_at, number)

    def _place_of(self, event: Event, key: bytes) -> tuple[int | None, bool]:
        """Return the place of an event among the rows of its key: before those of its source that came after it.

        Before the first it has none but where that is dormant: it may be under way.

        Returns:
            None for behind all that are there; and does one of its source stand before it?
        """
        source = (event.topic, event.partition)
        if key not in self._first or event.offset > self._greatest.get(source, -1):
            return None, True
        last, offset, start = self._wedges.get(key, (source, event.offset, 0))
        follows = last == source and offset < event.offset
        if not follows:
            start = 0
        numbers = itertools.chain([self._first[key]], self._behind.get(key, ()))
        for place, number in enumerate(itertools.islice(numbers, start, None), start):
            row = self._read(number)
            if (row.topic, row.partition) == source:
                if row.offset > event.offset and (place or key in self._dormant):
                    return place, follows
                follows = True
        return None, follows

    def follow(self, event: Event, *, from_station: bool = False) -> None:
        """Let an event wait behind those of its key. Its offset is to be retired in the same step.

        Args:
            from_station: it stood behind the event that was put off last.
        """
        key = event.raw_key
        assert key is not None, "a null key has no order"
        row = _row(event, 0, blocks=True, holds=True, failures=0, why="")
        place = self._wedges[key][2] if from_station and key in self._wedges else self._place_of(event, key)[0]
        if place is not None:
            self._insert(row, place)
            return
        number, self._next = self._next, self._next + STEP
        self._write(number, row)
        self.parked += 1
        self._holds.place(row.timestamp)
        if self._join_queue(number, key, 0):
            self._dormant.add(key)

    def remove(self, number: int, row: Row) -> None:
        """An event that was put off is complete."""
        self._write(number, None)
        self.parked -= 1
        if row.holds:
            self._holds.lift(row.timestamp)
        if row.blocks and row.key is not None:
            self._leave_queue(row)

    def _leave_queue(self, row: Row) -> None:
        """The first of a key's rows is no longer there, or does not block its key any more."""
        assert row.key is not None, "it has a queue"
        behind = self._behind.get(row.key)
        source, offset, place = self._wedges.pop(row.key, (("", 0), 0, 0))
        if place > 1:
            self._wedges[row.key] = source, offset, place - 1
        if behind is None:
            del self._first[row.key]
            return
        first = self._first[row.key] = behind.popleft()
        if not behind:
            del self._behind[row.key]
        self._be_first(row.key, first, self._later.pop(first, 0))

    # -- coming again -------------------------------------------------------------------------

    def has(self, event: Event) -> bool:
        """Is there a row of this very event? Then its offset only has to be finished."""
        return bool(self._known) and (event.topic, event.partition, event.offset) in self._known

    def comes_before(self, event: Event, key: bytes) -> bool:
        """Was an event read before all of its key and source that are here? A crash lets it come again."""
        place, follows = self._place_of(event, key)
        return place is not None and not follows

    def look_at_bases(self) -> None:
        """Let rows be due before which all is done by now."""
        bases = [self._base_of(*source) for source in self._again]
        if bases == self._bases:
            return
        for key, (source, offset) in list(self._awaiting.items()):
            if (self._base_of(*source) or 0) > offset:
                del self._awaiting[key]
                self.wake(key)
        self._again = {source: last for source, last in self._again.items() if last >= (self._base_of(*source) or 0)}
        self._bases = [self._base_of(*source) for source in self._again]

    @property
    def awaits(self) -> bool:
        """Are there rows that wait until what was read before them is done again?"""
        return bool(self._again)

    def blocks(self, key: bytes) -> bool:
        """Do events of a key have to wait here?"""
        return key in self._first

    def holds_back(self, key: bytes) -> bool:
        """Is one of a key put off, so that what comes after it has to wait here?"""
        return key in self._first and key not in self._dormant

    def has_room(self, key: bytes) -> bool:
        """May one more event of a key wait here?"""
        return len(self._behind.get(key, ())) < PER_KEY

    def wake(self, key: bytes) -> bool:
        """No event of a key is in flight any more: let the first that waits for that be due, if there is one."""
        if key not in self._dormant or key in self._awaiting:
            return False
        self._dormant.discard(key)
        first = self._first[key]
        self._wait_until(self._later.pop(first, 0), first)
        return True

    def pop(self, now: int) -> Event | None:
        """Return the next event that is due by the wall clock, in ms; None while there is none.

        Raises:
            StateMismatch: the agent does not read its topic any more.
            DecodeFailed: its topic's types do not take it any more.
        """
        if not self.is_due(now):
            return None
        number = heapq.heappop(self._due) & ((1 << NUMBER) - 1)
        row = self._read(number)
        topic = self._topics.get(row.topic)
        if topic is None:
            raise StateMismatch(
                f"agent {self._agent!r} of task {self._task}: it has put off an event of topic {row.topic!r}, and "
                f"does not read that topic any more; let it read the topic until 'agentic deferred ls "
                f"{self._agent}' shows none of it, or give all up by 'agentic reset'"
            )
        origin = Parked(self, number, row, topic)
        try:
            decoded_key = None if row.key is None else topic.key.decode(row.key)
            value = None if row.value is None else topic.value.decode(row.value)
        except Exception as error:
            raise DecodeFailed(
                f"agent {self._agent!r} of task {self._task}: the event of {row.topic}-{row.partition} offset "
                f"{row.offset} that was put off does not fit the topic's types any more: {error}"
            ) from error
        return Event(decoded_key, value, row.timestamp, row.offset, origin, row.key, tuple(row.headers), row.value)

    def is_due(self, now: int) -> bool:
        """Is one due by the wall clock, in ms?"""
        return bool(self._due) and self._due[0] >> NUMBER <= now

    @property
    def due_at(self) -> int | None:
        """When the next one is due, on the wall clock in ms; None while none waits for a time."""
        return self._due[0] >> NUMBER if self._due else None

    def rows(self) -> Iterator[Row]:
        """Iterate over what is put off, in order."""
        for _, entry in self._buffer.pairs({}):
            yield _decode(entry)


def _row(event: Event, due_at: int, *, blocks: bool, holds: bool, failures: int, why: str) -> Row:
    return Row(
        due_at,
        event.topic,
        event.partition,
        event.offset,
        event.timestamp,
        event.raw_key,
        event.raw_value,
        list(event.headers),
        blocks,
        holds,
        failures,
        why,
    )
