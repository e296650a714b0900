"""What a task remembers: the tables of one task, over one store.

A checkpoint passes through it in steps: `take` what is to be written, `changes` for the
changelog, and once these are committed, `write` for the store, with the changelog's end, so
that the store knows which part of the changelog it already has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from agentic.brokers.base import TopicPartition
from agentic.core.calendar import CalendarWindows
from agentic.core.versioned import NOTHING_OBSERVED
from agentic.core.windows import TimeWindows
from agentic.runtime.instance import Instance
from agentic.runtime.marks import ADVANCE, STANDBY, WRITTEN, as_mark, log_of, number, observed, position, restored, upto
from agentic.runtime.replay import Replay, Replayed, replay
from agentic.runtime.stores import Stores
from agentic.runtime.tables import CLOSED, ExpiringView, FedVersionedView, FedView, Layout, TableView, VersionedView
from agentic.state.base import Store
from agentic.state.buffer import Encoded, TableBuffer
from agentic.state.envelope import unwrap, wrap_all
from agentic.state.grouped import GroupedBuffer
from agentic.state.panes import PanedBuffer
from agentic.state.strips import StripedBuffer
from agentic.state.window_keys import WindowKeys
from agentic.table import Table
from agentic.windows import WindowedTable

#: Rows that one checkpoint looks at to find expired ones: some milliseconds' worth.
SWEEP = 2_000
#: Rows that are written to a store in one turn of the loop: some milliseconds' worth.
PIECE = 4_000


class Timed(Protocol):
    """What has something to write whenever a checkpoint begins."""

    def note_times(self) -> None: ...


def _buffer(table: Table[Any, Any], layout: Layout, store: Store) -> TableBuffer[Any]:
    """Return the rows of a table over a store."""
    if not isinstance(table, WindowedTable):
        return TableBuffer(table.name, store, load=layout.load, dump=layout.dump)
    codecs = {"load": layout.load, "dump": layout.dump, "dump_value": layout.dump_value}
    if isinstance(table.windowing, TimeWindows | CalendarWindows):
        return PanedBuffer(table.name, store, **codecs)
    assert isinstance(layout.keys, WindowKeys), "a windowed table has such keys"
    return StripedBuffer(table.name, store, keys=layout.keys, **codecs)


class TaskState:
    """The tables of one task.

    Args:
        name: the task's.
        partition: its number.
        partitions: how many tasks its group has.
        store: opened; closed by `close`.
        stores: where it came from.
    """

    def __init__(
        self,
        name: str,
        partition: int,
        partitions: int,
        tables: Sequence[Table[Any, Any]],
        store: Store,
        *,
        stores: Stores,
    ) -> None:
        self.name = name
        self.partition = partition
        self.store = store
        self._stores = stores
        self._partitions = partitions
        self._layouts = {table: Layout(table) for table in tables}
        self.buffers: dict[Table[Any, Any], TableBuffer[Any]] = {
            table: _buffer(table, layout, store) for table, layout in self._layouts.items()
        }
        #: For each table the changelog offset up to which the store has its rows.
        self.upto: dict[Table[Any, Any], int] = {
            table: offset for table in tables if (offset := number(store.mark(upto(table.name)))) is not None
        }
        #: For each table whose rows expire, the key from which the next look for such rows begins.
        self._swept: dict[Table[Any, Any], bytes] = {}
        #: For each table the id of the changelog that the rows are of.
        self.logs: dict[Table[Any, Any], str] = {
            table: mark.decode() for table in tables if (mark := store.mark(log_of(table.name))) is not None
        }
        #: The ids of the worker's source topics, as far as they are known: their positions are noted with the rows.
        self.sources: Mapping[str, str] = {}
        #: Those that keep the time of windowed tables, while the task's agents run.
        self.operators: Sequence[Timed] = ()
        self._writing = asyncio.Lock()
        for table in tables:
            self._see_time(table)
        self._observed: dict[Table[Any, Any], int] = {}
        self._encoded: dict[Table[Any, Any], Encoded] = {}
        #: Brings the store back from another process that restores it, while one has it.
        self.lent: Callable[[], Awaitable[None]] | None = None
        self.closed = False

    def layout(self, table: Table[Any, Any]) -> Layout:
        """How a table's keys and values stand in the store."""
        return self._layouts[table]

    def windows(self, table: WindowedTable[Any, Any]) -> GroupedBuffer[Any]:
        """The rows of a table with windows."""
        buffer = self.buffers[table]
        assert isinstance(buffer, GroupedBuffer), "made so"
        return buffer

    def view(self, table: Table[Any, Any], slot: Instance[Any]) -> TableView:
        """Return the table as the instance in `slot` sees it."""
        kind: type[TableView]
        if table.versioned is not None:
            kind = VersionedView if table.source is None else FedVersionedView
        else:
            kind = FedView if table.source is not None else ExpiringView if table.ttl is not None else TableView
        return kind(table, self._layouts[table], self.buffers[table], slot, self.partition, self._partitions)

    def counted(self, topic: str) -> tuple[int, str] | None:
        """Return up to which offset of a source topic the store's rows go at least, and that topic's id.

        None where no commit of rows had a position of it.
        """
        mark = self.store.mark(position(topic))
        return None if mark is None else (int.from_bytes(mark[:8], "big", signed=True), mark[8:].decode())

    def cache(self, size: int) -> None:
        """Let the tables' caches take about `size` bytes together."""
        for buffer in self.buffers.values():
            buffer.cache_bytes = size // len(self.buffers)

    def rows(self, table: Table[Any, Any]) -> Iterator[tuple[bytes, Any, Any]]:
        """Iterate over a table's rows after the last completed event: the key's bytes in the store, key, value."""
        layout = self._layouts[table]
        value_of = layout.value_of
        for raw, entry in self.buffers[table].pairs({}, layout.first):
            if entry is CLOSED:
                continue  # a window that has come out early
            value = entry if value_of is None else value_of(entry)
            if isinstance(table, WindowedTable) and table.shown is not None:
                value = table.shown(value)
            if value is not None:  # the last version of a key may be a tombstone
                yield raw, layout.keys.decode(raw), value

    def sweep(self, table: Table[Any, Any], clock: int) -> None:
        """Delete rows of a table that have expired at `clock`, as far as one look of `SWEEP` rows finds them."""
        ttl = table.ttl_ms
        assert ttl is not None, "only such tables expire"
        buffer = self.buffers[table]
        begun = self._swept.get(table, b"")
        rows = list(islice(self.store.scan(table.name, begun), SWEEP))
        self._swept[table] = rows[-1][0] + b"\0" if len(rows) == SWEEP else b""
        for key, blob in rows:
            if unwrap(blob)[1] + ttl <= clock:
                # The row in memory may be another by now: `load` knows the last one.
                entry, timestamp = buffer.rows.get(key) or buffer.load(key)
                if entry is not None and timestamp + ttl <= clock:
                    buffer.apply({key: (None, timestamp)})

    # -- checkpoint ---------------------------------------------------------------------------

    @property
    def dirty_bytes(self) -> int:
        """About how much memory the rows take that no checkpoint has begun to write."""
        return sum(buffer.dirty_bytes for buffer in self.buffers.values())

    def take(self) -> bool:
        """A checkpoint begins: fix what it writes; return whether there is anything."""
        for operator in self.operators:
            operator.note_times()
        taken = [buffer.take() for buffer in self.buffers.values()]
        self._encoded = {}
        self._observed = {table: self.buffers[table].observed for table in self.buffers if table.versioned is not None}
        return any(taken)

    def changes(self) -> Iterator[tuple[str, Encoded]]:
        """Encode what the checkpoint writes; yield the changelog of each table with its own, and its rows."""
        for table, buffer in self.buffers.items():
            encoded = self._encoded[table] = buffer.encode()
            topic = table.changelog_topic
            if topic is None or table.source is not None:
                continue
            layout = self._layouts[table]
            if not layout.same_in_changelog:
                to_wire = layout.keys.to_wire
                encoded = [(to_wire(key), value, timestamp) for key, value, timestamp in encoded]
            yield topic, encoded

    def logged(self) -> list[TopicPartition]:
        """Return the changelog partitions to which the checkpoint writes."""
        return [
            TopicPartition(topic, self.partition)
            for table, encoded in self._encoded.items()
            if encoded and table.source is None and (topic := table.changelog_topic) is not None
        ]

    def largest(self, topic: str) -> tuple[Table[Any, Any], bytes, bytes] | None:
        """Return the largest row that the checkpoint writes to a changelog: table, key and value as they are stored."""
        rows = [
            (table, key, value)
            for table, encoded in self._encoded.items()
            if table.source is None and table.changelog_topic == topic
            for key, value, _ in encoded
            if value is not None
        ]
        return max(rows, key=lambda row: len(row[1]) + len(row[2]), default=None)

    async def write(self, ends: Mapping[TopicPartition, int]) -> None:
        """The checkpoint is committed: bring it to the store.

        Args:
            ends: how far the changelogs go by now, and what is committed of the sources: for topics that are
                changelogs themselves that is how far their records are in the tables.

        Raises:
            StorageFull, StorageCorrupt: see `Store.write`.
        """
        async with self._writing:
            if self.closed:
                return
            marks: dict[str, bytes | None] = {}
            for table in self.buffers:
                end = ends.get(TopicPartition(table.changelog_topic or "", self.partition))
                if end is not None and end != self.upto.get(table):
                    self.upto[table] = end
                    marks |= {upto(table.name): as_mark(end), log_of(table.name): self.logs.get(table, "").encode()}
            for table, time_of in self._observed.items():
                marks[observed(table.name)] = as_mark(time_of)
            for tp, end in ends.items():
                if tp.partition == self.partition and (topic_id := self.sources.get(tp.topic)) is not None:
                    marks[position(tp.topic)] = as_mark(end) + topic_id.encode()
            rows = {table.name: encoded for table, encoded in self._encoded.items() if encoded}
            if rows or marks:
                marks[ADVANCE] = as_mark(sum(self.upto.values()))
                marks[WRITTEN] = as_mark(time.time_ns() // 1_000_000)
                await self._write({name: wrap_all(encoded) for name, encoded in rows.items()}, marks)
            for buffer in self.buffers.values():
                buffer.stored()
            self._encoded = {}

    async def _write(
        self, rows: Mapping[str, list[tuple[bytes, bytes | None]]], marks: Mapping[str, bytes | None]
    ) -> None:
        """Write rows in pieces, so that others get a turn of the loop between; the marks come with the last.

        Not in another thread: the binding gives up the interpreter's lock for each row, and beside a
        thread that computes waits for it each time. A crash between two pieces leaves rows whose marks
        are behind, and these rows are committed: the tail of the changelog brings them again.
        """
        last: dict[str, list[tuple[bytes, bytes | None]]] = {}
        for table, all_rows in rows.items():
            whole = (len(all_rows) - 1) // PIECE * PIECE
            for begin in range(0, whole, PIECE):
                self.store.write({table: all_rows[begin : begin + PIECE]}, {})
                await asyncio.sleep(0)
            last[table] = all_rows[whole:]
        self.store.write(last, marks)

    # -- recovery -----------------------------------------------------------------------------

    def replay(self, table: Table[Any, Any]) -> Replay:
        """Return what collects a table's rows out of its changelog."""
        return replay(table, self._layouts[table], self.store, self.buffers[table].observed)

    async def restore(
        self,
        table: Table[Any, Any],
        rows: Replayed,
        position: int,
        time_of: int = NOTHING_OBSERVED,
        *,
        complete: bool = False,
    ) -> None:
        """Write rows that were read from a table's changelog up to `position`; the task has not begun yet.

        Args:
            time_of: the greatest timestamp met by then; kept for a table with versions.
            complete: whether the store then has all that the changelogs of its tables have.
        """
        async with self._writing:
            if self.closed:
                return
            self.upto[table] = position
            log = self.logs.get(table, "")
            marks = restored(
                table.name,
                position,
                log,
                self.upto.values(),
                self.store,
                time_of=None if table.versioned is None else time_of,
                complete=complete,
            )
            await self._write({table.name: sorted(rows.items())}, marks)
            self._see_time(table)

    def come_back(self) -> None:
        """The store was lent, and is back: see how far it is."""
        for table in self.buffers:
            known = number(self.store.mark(upto(table.name)))
            if known is not None:
                self.upto[table] = known
            self._see_time(table)

    def _see_time(self, table: Table[Any, Any]) -> None:
        """Take a table's stream time from the store, if it has versions."""
        if table.versioned is not None:
            known = number(self.store.mark(observed(table.name)))
            self.buffers[table].observed = NOTHING_OBSERVED if known is None else known

    async def clear(self, table: Table[Any, Any]) -> None:
        """Remove all rows of a table, that it be restored whole."""
        async with self._writing:
            if self.closed:
                return
            self.upto.pop(table, None)
            self.buffers[table].observed = NOTHING_OBSERVED
            # The mark first: a store that claims rows which it has not would never get them back.
            await self._stores.run(self.store.write, {}, {upto(table.name): None, observed(table.name): None})
            await self._stores.run(self.store.clear, table.name)

    async def is_standby(self, yes: bool) -> None:
        """Note in the store whether it is a standby's, for those who look at it from outside."""
        async with self._writing:
            if not self.closed and yes != (self.store.mark(STANDBY) is not None):
                self.store.write({}, {STANDBY: b"" if yes else None})

    async def set_aside(self) -> bool:
        """Take the store out of the way, closed, where that is allowed; the task's next one is another."""
        await self._have()
        async with self._writing:
            if not self.closed:
                self.closed = await self._stores.set_aside(self.store)
            return self.closed

    async def hand_over(self) -> Store:
        """Return the store, still open, to be used by another, once a write that is under way is done."""
        await self._have()
        async with self._writing:
            self.closed = True
            return self.store

    async def _have(self) -> None:
        """See that the store is with this process."""
        if self.lent is not None:
            await self.lent()

    async def close(self) -> None:
        """Let go of the store once a write that is under way is done; what no checkpoint has written is dropped."""
        await self._have()
        async with self._writing:
            if not self.closed:
                self.closed = True
                await self._stores.close(self.store)
