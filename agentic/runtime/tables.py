"""A table as one agent's instance sees it in one task: its rows, and the current event's own writes over them.

The rule that it keeps: what an event writes lies in an overlay that only this instance sees,
until the event is complete and the overlay goes over to the table's rows in one step. If the
event fails, the overlay is dropped.

Part of the hot path: a read is a look into the overlay and one into the cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentic.codecs.base import type_name
from agentic.codecs.json import Typed
from agentic.codecs.raw import Raw, Text
from agentic.core import versioned
from agentic.core.partitioning import partition_of
from agentic.errors import AgenticError, CodecError, TableUnavailable, WrongPartition
from agentic.state.buffer import Row, TableBuffer
from agentic.state.keys import KeyFormat, key_format, prefix_end
from agentic.state.window_keys import FIRST, WindowKeys
from agentic.stream import Event, Origin
from agentic.table import MISSING, Change, Table
from agentic.topic import Topic
from agentic.windows import WindowedTable

if TYPE_CHECKING:
    from agentic.runtime.instance import Children, Instance

#: The entry of a window that was closed early, and what is stored of it: no JSON, which begins with no such byte.
CLOSED: Final = object()
_CLOSED = b"\0closed"
_TIMES = struct.Struct(">qqq")
#: Makes JSON of an integer, in one call of C.
_DECIMAL: Final[Callable[[int], bytes]] = b"%d".__mod__
#: Types whose values stay what they are: the bytes of such a key can be remembered.
IMMUTABLE = frozenset((str, bytes, int))
#: Integers below this, either sign, are known to have bytes; others show it when they are assigned.
PLAIN_INT = 1 << 64
#: Bytes of a key that a table takes: longer ones are a mistake more often than a key.
MAX_KEY = 64 << 10


class Layout:
    """How one table's keys and values stand in its store.

    Attributes:
        keys: between keys, their bytes in the store and their bytes in the changelog.
        same_in_changelog: are these the same?
        scalar: the type whose values are kept as they are, since nobody can change them in place; None:
            entries are the codec's bytes.
        load: makes an entry of a stored value.
        dump: makes a stored value of an entry.
        value_of: makes a value of an entry; None where they are the same.
    """

    def __init__(self, table: Table[Any, Any]) -> None:
        codec = table.value
        self.keys: KeyFormat = key_format(getattr(table.key, "declared", None), table.key)
        self.same_in_changelog = self.keys.identity
        #: All rows of the table itself are from this key on.
        self.first = b""
        self.scalar: type | None = None
        self.load: Callable[[bytes], Any] = _as_it_is
        self.dump: Callable[[Any], bytes] = _as_it_is
        self.value_of: Callable[[bytes], Any] | None = codec.decode
        if isinstance(codec, Typed) and codec.declared in (int, bool):
            self.scalar, self.load, self.dump, self.value_of = codec.declared, codec.decode, codec.encode, None
        elif isinstance(codec, Raw):
            self.scalar, self.value_of = bytes, None
        if table.versioned is not None:
            # An entry is what the versions of a key are: immutable, with values as the codec's bytes.
            self.scalar, self.load, self.dump = None, versioned.decode, versioned.encode
            self.value_of = _latest_by(codec.decode)
        #: As `dump`, for rows of which it is known that they are values.
        self.dump_value = _DECIMAL if self.scalar is int else self.dump
        if isinstance(table, WindowedTable):
            self.keys = WindowKeys(self.keys, table.windowing.end)
            self.first = FIRST
            self.load, self.dump = _with_closed(self.load), _with_times(self.dump)
        # The codec's own methods are plain functions of C: the hot path calls them directly.
        text = isinstance(table.key, Text)
        self.encode_key: Callable[[Any], bytes] = str.encode if text else self.keys.encode
        self.decode_key: Callable[[bytes], Any] = bytes.decode if text else self.keys.decode
        self._encoded: Callable[[Callable[[Any], bytes], Any], bytes] = table.encode_key

    def bounds(self, start: Any, stop: Any, prefix: Any) -> tuple[bytes, bytes | None]:
        """Return the stored bytes between which a scan goes; `MISSING` for a bound means none."""
        if prefix is not MISSING:
            low = self._encoded(self.keys.encode_prefix, prefix)
            return low, prefix_end(low)
        low = b"" if start is MISSING else self._encoded(self.keys.encode, start)
        return low, None if stop is MISSING else self._encoded(self.keys.encode, stop)


def _latest_by(decode: Callable[[bytes], Any]) -> Callable[[Any], Any]:
    """What makes the latest value of an entry of versions; None where that is a tombstone."""

    def latest(entry: versioned.Versions) -> Any:
        value = versioned.latest(entry)
        return None if value is None else decode(value)

    return latest


def _as_it_is(data: bytes) -> bytes:
    return data


def _with_times(dump: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """What makes a stored value of an entry of windows, or of the row of their times."""

    def either(entry: Any) -> bytes:
        if entry.__class__ is Times:
            return entry.encode()
        return _CLOSED if entry is CLOSED else dump(entry)

    return either


def _with_closed(load: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """What makes an entry of a stored value, where a window may have been closed early."""
    return lambda data: CLOSED if data == _CLOSED else load(data)


class Times(NamedTuple):
    """The times of a windowed table, as a row of it.

    Attributes:
        time: its stream time, -1 before any event.
        given: all windows that end at it or earlier have been given out.
        held: the stream time by which lateness is judged, which events at work hold back.
        windows: what kind of windows the rows beside it are of; "" where that was not noted.
        forgotten: all windows that end at it or earlier may have been removed; -1 where that was not noted.
    """

    time: int
    given: int
    held: int
    windows: str
    forgotten: int = -1

    def encode(self) -> bytes:
        """Return its bytes: a store, and a changelog, keep it beside the windows."""
        return _TIMES.pack(*self[:3]) + b"%s\0%d" % (self.windows.encode(), self.forgotten)

    @classmethod
    def decode(cls, data: bytes) -> Times:
        """Return what `encode` has made bytes of."""
        time, given, held = _TIMES.unpack_from(data)
        windows, _, forgotten = data[_TIMES.size :].decode().partition("\0")
        return cls(time, given, held, windows, int(forgotten or -1))


class TableView:
    """See `agentic.table.View`.

    Args:
        buffer: the task's rows of the table.
        slot: the instance that looks.
        partition: the task's number.
        partitions: how many there are.
    """

    __slots__ = (
        "_checks",
        "_encode_key",
        "_event",
        "_key",
        "_keys",
        "_load",
        "_ours",
        "_partition",
        "_partitions",
        "_raw",
        "_rows",
        "_scalar",
        "_slot",
        "_value_of",
        "buffer",
        "layout",
        "overlay",
        "read",
        "shared",
        "table",
        "watchers",
    )

    def __init__(
        self,
        table: Table[Any, Any],
        layout: Layout,
        buffer: TableBuffer[Any],
        slot: Instance[Any],
        partition: int,
        partitions: int,
    ) -> None:
        self.table = table
        self.layout = layout
        self.buffer = buffer
        self.overlay: dict[bytes, Row] = {}
        self._slot = slot
        self._partition = partition
        self._partitions = partitions
        self._checks = table.check_keys
        self._keys = layout.keys
        self._encode_key = layout.encode_key
        self._scalar = layout.scalar
        self._value_of = layout.value_of
        self._rows = buffer.rows
        self._load = buffer.load
        #: The key that was looked at last, for which event, and its bytes.
        self._key: Any = MISSING
        self._event: Event | None = None
        self._raw = b""
        #: The last key that was found to be ours, beside the event's own.
        self._ours: bytes | None = None
        #: Do other agents of the task use the table? Then what an event has read is kept until it is complete,
        #: since they may write it meanwhile.
        self.shared = False
        self.read: dict[bytes, Row] = {}
        #: The instances that read the table's changes, and what makes a change's origin of the event's.
        self.watchers: Sequence[tuple[Children, Callable[[Origin], Origin]]] = ()

    # -- the hot path -------------------------------------------------------------------------

    def get(self, key: Any) -> Any:
        event = self._slot.working_on
        raw = self._raw if key is self._key and event is self._event else self._admit(key, event)
        row = self.overlay.get(raw)
        if row is None:
            row = self._rows.get(raw)
            if row is None:
                try:
                    row = self._load(raw)
                except ValueError as error:
                    raise self._unreadable(raw, error) from error
            if self.shared:
                self.read.setdefault(raw, row)
        entry = row[0]
        if entry is None:
            return MISSING
        if self._value_of is None:
            return entry
        try:
            return self._value_of(entry)
        except ValueError as error:
            raise self._unreadable(raw, error) from error

    def set(self, key: Any, value: Any) -> None:
        event = self._slot.working_on
        raw = self._raw if key is self._key and event is self._event else self._admit(key, event)
        entry = value
        if value.__class__ is not self._scalar or (value.__class__ is int and not -PLAIN_INT < value < PLAIN_INT):
            entry = self._entry(value)
        if not self.overlay:
            self._slot.touched.append(self)
        self.overlay[raw] = (entry, event.timestamp)  # type: ignore[union-attr]  # `_admit` has seen that there is one

    def _admit(self, key: Any, event: Event | None) -> bytes:
        """Return a key's bytes, or refuse the key; remember them for the next look at the same one."""
        try:
            raw = self._encode_key(key)
        except (TypeError, ValueError, CodecError):
            raw = self.table.encode_key(self._keys.encode, key)
        if event is None:
            raise self._no_event()
        if len(raw) > MAX_KEY:
            raise CodecError(f"key of table {self.table.name!r}: {len(raw):,} bytes long; at most {MAX_KEY:,}")
        if raw != event.raw_key and raw != self._ours:
            self._check(raw, key)
        if key.__class__ in IMMUTABLE:
            self._key, self._event, self._raw = key, event, raw
        return raw

    def _write(self, raw: bytes, entry: Any, event: Event) -> None:
        if not self.overlay:
            self._slot.touched.append(self)
        self.overlay[raw] = (entry, event.timestamp)

    def _ours_of(self, key: Any) -> tuple[bytes, Event]:
        """Return a key's bytes and the current event, or refuse the key."""
        event = self._slot.working_on
        raw = self._admit(key, event)
        assert event is not None, "else the key was refused"
        return raw, event

    # -- the rest of the mapping --------------------------------------------------------------

    def remove(self, key: Any) -> bool:
        there = self.get(key) is not MISSING
        if there:
            self._writable()
            raw, event = self._ours_of(key)
            self._write(raw, None, event)
        return there

    def scan(self, start: Any, stop: Any, prefix: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
        if self._slot.working_on is None:
            raise self._no_event()
        low, high = self.layout.bounds(start, stop, prefix)
        return self._decoded(self._entries(low, high, reverse))

    def _entries(self, low: bytes, high: bytes | None, reverse: bool) -> Iterator[tuple[bytes, Any]]:
        return self.buffer.pairs(self.overlay, low, high, reverse=reverse)

    def _decoded(self, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[Any, Any]]:
        decode, value_of, raw = self.layout.decode_key, self._value_of, None
        try:
            if value_of is None:
                for raw, entry in rows:
                    yield decode(raw), entry
            else:
                for raw, entry in rows:
                    yield decode(raw), value_of(entry)
        except ValueError as error:
            raise self._unreadable(raw, error) from error

    def count(self) -> int:
        if self._slot.working_on is None:
            raise self._no_event()
        return self.buffer.count(self.overlay)

    def at(self, key: Any, timestamp: int) -> Any:
        raise TypeError(f"table {self.table.name!r} keeps no history; declare it: app.table(…, versioned=timedelta(…))")

    def feed(self, event: Event) -> None:
        raise TypeError(f"table {self.table.name!r} has no source")

    # -- what the slot does -------------------------------------------------------------------

    def outdated(self) -> bool:
        """Has another agent completed a write of a row that the event has read?"""
        return any((self._rows.get(raw) or self._load(raw)) != row for raw, row in self.read.items())

    def apply(self) -> None:
        """The event is complete: its writes are the table's."""
        overlay = self.overlay
        if self.watchers:
            self._note_changes()
        if len(overlay) == 1 and self.buffer.order is None:
            raw, row = overlay.popitem()
            self._rows[raw] = self.buffer.dirty[raw] = row
        else:
            self.buffer.apply(overlay)
            overlay.clear()

    def _note_changes(self) -> None:
        """Make a child of each row that the event has written."""
        for raw, row in self.overlay.items():
            before = self._rows.get(raw) or self._load(raw)
            change = Change(self._keys.decode(raw), self._before(before), self._value(row))
            if not self._changed(change.old, change.new):
                continue
            wire = self._keys.to_wire(raw)
            for number, (slot, origin) in enumerate(self.watchers):
                if number:
                    # Each agent has values of its own: what one does to them in place is not the others' concern.
                    change = Change(change.key, self._before(before), self._value(row))
                self._slot.children.append((slot, origin, change.key, wire, change))

    def _before(self, row: Row) -> Any:
        return self._value(row)

    def _changed(self, old: Any, new: Any) -> bool:
        # What the same event has written and deleted was never there.
        return old is not None or new is not None

    def _value(self, row: Row) -> Any:
        entry = row[0]
        return entry if entry is None or self._value_of is None else self._value_of(entry)

    def wire_of(self, raw: bytes) -> bytes:
        """Return the bytes, as in a record, of the key that a row belongs to."""
        keys = self.layout.keys
        return raw if keys.identity else keys.to_wire(raw)

    def detach(self) -> Any:
        """Return what the current event has done here, for another instance to take over."""
        return dict(self.overlay)

    def lay_over(self, notes: Any) -> None:
        """Take over what another instance's event has done here: what its view's `detach` returned."""
        self.overlay.update(notes)

    def forget(self) -> None:
        """The event failed: nothing is left of its writes."""
        self.overlay.clear()

    # -- what is refused ----------------------------------------------------------------------

    def _entry(self, value: Any) -> Any:
        encoded = self.table.encode_value(value)
        return encoded if self._scalar is None else self.layout.load(encoded)

    def _writable(self) -> None:
        """Raise where agents may only read."""

    def _check(self, raw: bytes, key: Any) -> None:
        """Is it one of the current events' keys, or one that belongs to this partition?"""
        if not self._checks:
            return
        wire = self._keys.to_wire(raw)
        current = self._slot.current()
        # Its producer may have had another partitioner: what is right for this event is not for the next.
        if any(wire == event.raw_key for event in current):
            return
        home = partition_of(wire, self._partitions)
        if home != self._partition:
            if any(self.is_of(event, raw) for event in current):
                return
            raise WrongPartition(
                f"table {self.table.name!r}: key {key!r} belongs to partition {home}, and this task has partition "
                f"{self._partition}: bring the events to their key by topic.group_by(…), or declare check_keys=False; "
                "for what all tasks look up there is app.global_table(…)"
            )
        self._ours = raw

    def is_of(self, event: Event, raw: bytes) -> bool:
        """Is a row's key the event's, even if that is written otherwise: an instant in the time of another zone?"""
        if event.raw_key is None or self._keys.identity:
            return event.raw_key == raw
        try:
            return self._keys.from_wire(event.raw_key) == raw
        except CodecError:
            return False  # keys of the topic are of another type

    def _unreadable(self, raw: bytes | None, error: ValueError) -> CodecError:
        """Return the error for a row that is of another declaration; in a scan the last one that was met."""
        table = self.table
        row = (
            "the first row of a scan"
            if raw is None
            else f"the row of key {self._keys.decode(raw)!r:.200}, or the next,"
        )
        return CodecError(
            f"table {table.name!r}: {row} is not {type_name(getattr(table.value, 'declared', type(table.value)))}: "
            f"{error}; it was written when the table had values of another type: declare that one again, or give the "
            "table another name and bring its rows over by 'agentic tables dump' and 'load'"
        )

    def _no_event(self) -> AgenticError:
        agent = self._slot.agent.name
        if self._slot.closing:
            return TableUnavailable(
                f"table {self.table.name!r}: agent {agent!r} has no event any more, its partition has moved on; "
                "let the cancellation end the agent"
            )
        return TableUnavailable(
            f"table {self.table.name!r}: agent {agent!r} works on no event outside of its loop; use the table inside it"
        )


def filled(table: Table[Any, Any], source: Topic[Any, Any]) -> TableUnavailable:
    """Return the error for whoever writes a table that a topic fills."""
    return TableUnavailable(
        f"table {table.name!r} is filled by topic {source.name!r}: send to that topic in place of writing here"
    )


class FedView(TableView):
    """A table that a topic fills: agents only read it."""

    __slots__ = ()

    def set(self, key: Any, value: Any) -> None:
        self._writable()

    def _writable(self) -> None:
        source = self.table.source
        assert source is not None, "only such tables are fed"
        raise filled(self.table, source)

    def feed(self, event: Event) -> None:
        """Take a record of the source: the last one of a key is its row, a tombstone deletes it.

        Source: spec, A.5: a null key is dropped and counted.
        """
        if event.raw_key is None:
            self._slot.drop("null_key")
            return
        raw = self._keys.from_wire(event.raw_key)
        self._take(raw, event.value, event)

    def _take(self, raw: bytes, value: Any, event: Event) -> None:
        self._write(raw, None if value is None else self._entry(value), event)


class ExpiringView(TableView):
    """A table whose rows live for a time after their last update, by the clock of the agent that looks.

    Source: spec, rule 37. The clock is the greatest timestamp of the agent's events, so that
    the same input gives the same output; a row's life counts from what the clock was at its update.
    """

    __slots__ = ("_ttl",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        ttl = self.table.ttl_ms
        assert ttl is not None, "only such tables expire"
        self._ttl = ttl

    def get(self, key: Any) -> Any:
        value = super().get(key)
        if value is not MISSING:
            raw, _ = self._ours_of(key)
            row = self.overlay.get(raw) or self._rows.get(raw) or self._load(raw)
            if self._ended(row):
                return MISSING
        return value

    def set(self, key: Any, value: Any) -> None:
        super().set(key, value)
        raw, _ = self._ours_of(key)
        self.overlay[raw] = (self.overlay[raw][0], self._slot.clock)

    def _write(self, raw: bytes, entry: Any, event: Event) -> None:
        if not self.overlay:
            self._slot.touched.append(self)
        self.overlay[raw] = (entry, self._slot.clock)

    def _entries(self, low: bytes, high: bytes | None, reverse: bool) -> Iterator[tuple[bytes, Any]]:
        limit = self._slot.clock - self._ttl
        rows = self.buffer.scan(self.overlay, low, high, reverse=reverse)
        return ((raw, entry) for raw, entry, timestamp in rows if timestamp > limit and entry is not None)

    def count(self) -> int:
        return sum(1 for _ in self.scan(MISSING, MISSING, MISSING, False))

    def _before(self, row: Row) -> Any:
        # Whether it is deleted already depends on checkpoints, and a change must not.
        return None if self._ended(row) else self._value(row)

    def _ended(self, row: Row) -> bool:
        return row[1] + self._ttl <= self._slot.clock


class VersionedView(TableView):
    """A table that knows its rows as of earlier times. Source: spec, D.2."""

    __slots__ = ("_history", "_observed")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        history = self.table.history_ms
        assert history is not None, "only such tables have versions"
        self._history = history
        #: The table's stream time with the current event's own writes; None without any.
        self._observed: int | None = None

    def get(self, key: Any) -> Any:
        value = super().get(key)
        return MISSING if value is None else value

    def set(self, key: Any, value: Any) -> None:
        self._writable()
        raw, event = self._ours_of(key)
        self._put(raw, self.table.encode_value(value), event)

    def remove(self, key: Any) -> bool:
        # A late event deletes what the key had at its time, though it may have been deleted since.
        raw, event = self._ours_of(key)
        there = self.get(key) is not MISSING or self.at(key, event.timestamp) is not MISSING
        if there:
            self._writable()
            self._put(raw, None, event)
        return there

    def at(self, key: Any, timestamp: int) -> Any:
        raw, _ = self._ours_of(key)
        value = versioned.at(self._versions(raw), timestamp, observed=self._now(), history=self._history)
        return MISSING if value is None else self.table.value.decode(value)

    def count(self) -> int:
        return sum(1 for _ in self.scan(MISSING, MISSING, MISSING, False))

    def apply(self) -> None:
        if self._observed is not None:
            self.buffer.observed = max(self.buffer.observed, self._observed)
            self._observed = None
        super().apply()

    def lay_over(self, notes: Any) -> None:
        super().lay_over(notes)
        self._observed = max((timestamp for _, timestamp in notes.values()), default=None)

    def forget(self) -> None:
        self._observed = None
        super().forget()

    def _put(self, raw: bytes, value: bytes | None, event: Event) -> None:
        put = versioned.put(self._versions(raw), event.timestamp, value, observed=self._now(), history=self._history)
        if put is None:
            self._slot.drop("expired")
            return
        self._observed = put.observed
        newest = put.versions.timestamps[0] if put.versions.timestamps else event.timestamp
        if not self.overlay:
            self._slot.touched.append(self)
        self.overlay[raw] = (put.versions if put.versions.timestamps else None, newest)

    def _versions(self, raw: bytes) -> versioned.Versions:
        row = self.overlay.get(raw)
        if row is None:
            try:
                row = self._rows.get(raw) or self._load(raw)
            except ValueError as error:
                raise self._unreadable(raw, error) from error
            if self.shared:
                self.read.setdefault(raw, row)
        return versioned.EMPTY if row[0] is None else row[0]

    def _now(self) -> int:
        return self.buffer.observed if self._observed is None else max(self._observed, self.buffer.observed)

    def _decoded(self, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[Any, Any]]:
        return ((key, value) for key, value in super()._decoded(rows) if value is not None)

    def _changed(self, old: Any, new: Any) -> bool:
        # A version that came out of order changes the past only.
        return super()._changed(old, new) and old != new


class FedVersionedView(VersionedView, FedView):
    """A table with versions that a topic fills."""

    __slots__ = ()

    def set(self, key: Any, value: Any) -> None:
        self._writable()

    def _take(self, raw: bytes, value: Any, event: Event) -> None:
        self._put(raw, None if value is None else self.table.encode_value(value), event)


class OwnRows(dict[bytes, Row]):
    """The overlay of an instance that works beside others: it takes the rows of the current events' keys alone.

    Another key's row may be at work in another instance, which would not see the write, or undo it.
    Source: spec, rule 14.
    """

    __slots__ = ("_instance", "_order", "_view")

    def __init__(self, view: TableView, instance: Instance[Any], order: str) -> None:
        super().__init__()
        self._view = view
        self._instance = instance
        self._order = order

    def __setitem__(self, raw: bytes, row: Row) -> None:
        wire = self._view.wire_of(raw)
        if self._order == "none" or all(wire != event.raw_key for event in self._instance.current()):
            raise self._refuse(raw)
        super().__setitem__(raw, row)

    def _refuse(self, raw: bytes) -> WrongPartition:
        agent, table = self._instance.agent.name, self._view.table.name
        key = self._view.layout.keys.decode(raw)
        if self._order == "none":
            return WrongPartition(
                f"agent {agent!r} works on its events in no order (order='none'), and writes key {key!r} of table "
                f"{table!r}: leave out order=, so that events of a key come one after the other"
            )
        if any(self._view.is_of(event, raw) for event in self._instance.current()):
            return WrongPartition(
                f"agent {agent!r} works on many events at once, and table {table!r} takes key {key!r}, which its event "
                "has written otherwise: another event may be at the same key in another writing. Let the producers "
                "write each key in one way (times in UTC), or declare order='partition' or concurrency=1"
            )
        return WrongPartition(
            f"agent {agent!r} works on many events at once, and writes key {key!r} of table {table!r}, which is not "
            "its event's own: another event may be at it. Bring the events to that key by topic.group_by(…), or "
            "declare order='partition' or concurrency=1"
        )
