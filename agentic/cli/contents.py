"""What a table holds, as seen from outside: on this machine's disk, and in the changelog beyond that.

The content of a table is what its changelog comes to. A local copy is a part of that, done in
advance: it says up to which offset, and what follows is read from the changelog. Where there
is no copy that can be used, all of the changelog is read. Both may be done beside the
worker; what is shown is what was committed when the reading began.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentic.app import App
from agentic.brokers.base import Broker, TopicPartition
from agentic.cli.places import bounds_of, copies_by_task, opened, place_of, state_home
from agentic.cli.reading import between
from agentic.core import versioned
from agentic.core.metadata import decode
from agentic.core.partitioning import partition_of
from agentic.core.versioned import NOTHING_OBSERVED, Versions
from agentic.runtime.marks import number, observed, upto
from agentic.runtime.replay import Replay, Replayed, SourceReplay, replay
from agentic.runtime.tables import Layout
from agentic.state.base import Store
from agentic.state.envelope import unwrap
from agentic.state.keys import KeyFormat
from agentic.state.lmdb import LmdbStore
from agentic.table import GlobalTable, Table

#: Records behind a local copy that are kept in memory; for more, the changelog is read into a file.
LONGEST_TAIL = 200_000
#: Rows of a changelog that are written to that file together, and bytes of address space to begin it with.
LOT = 50_000
SCRATCH_MAP = 64 << 20


class Row(NamedTuple):
    """A row as it is stored.

    Attributes:
        stored_key: its key's bytes in the order of the keys.
        value: the codec's bytes; of a table with versions those of the latest, None where that is a tombstone.
        timestamp: of the last update, in ms.
        versions: all that are kept; None for a table without versions.
        strays: it is in another partition than its key belongs to; see `Reading.placed`.
    """

    partition: int
    stored_key: bytes
    value: bytes | None
    timestamp: int
    versions: Versions | None = None
    strays: bool = False


def keys_of(table: Table[Any, Any]) -> KeyFormat:
    """Return how a table's keys are stored."""
    return Layout(table).keys


#: Rows on their way over others, as a store has them; None: deleted.
Changes: TypeAlias = dict[bytes, bytes | None]


class Local(NamedTuple):
    """A local copy of a partition.

    Attributes:
        at: the changelog offset up to which it goes; -1 where it does not say.
        observed: the stream time of a table with versions.
        rows: those that are looked for, as they were when the reading began.
    """

    store: Store
    at: int
    observed: int
    rows: Iterator[tuple[bytes, bytes]]


class Reading:
    """Reads the rows of one table, once.

    Args:
        known: all topics with their number of partitions.
        say: takes a line on where the rows come from.
        local: read this machine's copies as they are, and no changelog.
    """

    def __init__(
        self,
        app: App,
        table: Table[Any, Any],
        known: Mapping[str, int],
        broker: Broker,
        say: Callable[[str], None],
        *,
        local: bool = False,
    ) -> None:
        self._app = app
        self._table = table
        self._known = known
        self._broker = broker
        self._say = say
        self._only_local = local
        self._layout = Layout(table)
        self._place = place_of(app, table, known)
        self._copies = copies_by_task(app.settings)
        self._stack = ExitStack()
        self._low = b""
        self._high: bytes | None = None

    @property
    def partitions(self) -> int:
        """How many partitions the table has."""
        return self._place.partitions

    @property
    def first(self) -> bytes:
        """The least stored key of a row; what a table with windows notes beside them is below."""
        return self._layout.first

    async def rows(self, low: bytes, high: bytes | None, partitions: Sequence[int]) -> Iterator[Row]:
        """Return the rows with ``low <= stored key < high``, in the order of the keys; `close` when done.

        If it raises, it is closed already.
        """
        try:
            return await self._rows(low, high, partitions)
        except BaseException:
            # Cancelled or failed, whoever asked has nothing to close: copies and scratch files are let go of here.
            self.close()
            raise

    async def _rows(self, low: bytes, high: bytes | None, partitions: Sequence[int]) -> Iterator[Row]:
        self._low, self._high = low, high
        # In this order: a copy's offset, then its rows, then the changelog's end. So no row is newer than
        # the end, and whatever is newer than the offset is read from the changelog.
        local = {n: found for n in partitions if (found := self._local(n)) is not None}
        bounds, topic = None, self._table.changelog_topic
        if not self._only_local:
            bounds = await bounds_of(self._app, self._table, self._place, self._known, self._broker)
        if bounds is None or topic is None:
            if missing := [n for n in partitions if n not in local]:
                why = "is read here alone, and there is" if self._only_local else "has no changelog, and this machine"
                self._say(f"{self._table.name} {why} no copy of {_numbered(missing)}")
            self._say_local([n for n in partitions if n in local])
            return self._merged({n: found.rows for n, found in local.items()}, {}, await self._clocks())
        reaches = await self._reaches(topic, local)
        usable = {
            n: found
            for n, found in local.items()
            if bounds[n].start <= found.at <= reaches[n] and bounds[n].end - found.at <= LONGEST_TAIL
        }
        whole = [n for n in partitions if n not in usable and bounds[n].start < bounds[n].end]
        self._say_local(sorted(usable))
        if gone := [n for n, found in local.items() if found.at > reaches[n]]:
            self._say(
                f"{self._table.name}: {_numbered(gone)} here is of another topic {topic} than there is now; "
                f"'agentic tables dump {self._table.name} --local' shows it"
            )
        if whole:
            self._say(f"{self._table.name}: {_numbered(whole)} from topic {topic}")
        scratch = {n: self._scratch() for n in whole}
        replays = {n: self._replay(found.store, found.observed) for n, found in usable.items()}
        replays.update({n: self._replay(scratch[n], NOTHING_OBSERVED) for n in whole})
        starts = {TopicPartition(topic, n): found.at for n, found in usable.items()}
        starts.update({TopicPartition(topic, n): bounds[n].start for n in whole})
        await self._read(starts, {tp: bounds[tp.partition].end for tp in starts}, replays, scratch)
        stored = {n: found.rows for n, found in usable.items()}
        stored.update({n: store.scan(self._table.name, low, high) for n, store in scratch.items()})
        tails = {n: self._within(replays[n].take()) for n in usable}
        return self._merged(stored, tails, await self._clocks())

    def placed(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Note of each row whether it strays."""
        wire_of, partitions = self._layout.keys.to_wire, self.partitions
        for row in rows:
            home = partition_of(wire_of(row.stored_key), partitions)
            yield row if home == row.partition else row._replace(strays=True)

    def close(self) -> None:
        """Let go of the copies."""
        self._stack.close()

    def _say_local(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._say(f"{self._table.name}: {_numbered(partitions)} from {state_home(self._app.settings)}")

    def _local(self, partition: int) -> Local | None:
        """Return the furthest copy of a partition, and its rows; None without a copy that can be read."""
        readable = self._stack.enter_context(opened(self._copies.get(self._place.task(partition), []), self._say))
        marked = [
            (-1 if (at := number(store.mark(upto(self._table.name)))) is None else at, store)
            for _, store in readable
            if store.tables.get(self._table.name) == self._table.shape
        ]
        if not marked:
            return None
        at, store = max(marked, key=itemgetter(0))
        known = number(store.mark(observed(self._table.name)))
        rows = store.scan(self._table.name, self._low, self._high)
        self._stack.callback(rows.close)  # type: ignore[attr-defined]
        # From its first row on an iterator sees what there was then, whatever the worker writes.
        first = next(rows, None)
        return Local(
            store,
            at,
            NOTHING_OBSERVED if known is None else known,
            iter(()) if first is None else chain([first], rows),
        )

    async def _reaches(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return how far a changelog's partitions go at all: a copy that claims more is of one that is gone.

        A copy may be ahead of what readers see by now, for the moment that a commit takes to get about.
        """
        if topic not in self._known:
            return dict.fromkeys(partitions, 0)
        ends = await self._broker.end_offsets([TopicPartition(topic, n) for n in partitions], with_open=True)
        return {tp.partition: end for tp, end in ends.items()}

    def _replay(self, store: Store, observed: int) -> Replay:
        if isinstance(self._table, GlobalTable):
            return SourceReplay(self._table, self._layout)
        return replay(self._table, self._layout, store, observed)

    def _scratch(self) -> LmdbStore:
        """Make a store for a partition that is read from the changelog: it need not fit into memory."""
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agentic-tables-"))
        tables = {self._table.name: self._table.shape}
        store = LmdbStore.open(directory, identity={}, tables=tables, map_size=SCRATCH_MAP)
        return self._stack.enter_context(closing(store))

    async def _read(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        replays: Mapping[int, Replay],
        scratch: Mapping[int, Store],
    ) -> None:
        """Read the changelog: what lies over a local copy stays in its replay, all else goes to `scratch`."""
        with _progress(self._table.name, sum(max(0, ends[tp] - start) for tp, start in starts.items())) as advance:
            position = dict(starts)
            async for batch in between(self._broker, starts, ends):
                n = batch.tp.partition
                replays[n].add(batch.keys, batch.values, batch.timestamps)
                if n in scratch and len(replays[n]) >= LOT:
                    self._write(scratch[n], replays[n])
                advance(batch.position - position[batch.tp])
                position[batch.tp] = batch.position
        for n, store in scratch.items():
            self._write(store, replays[n])

    def _write(self, store: Store, replayed: Replay) -> None:
        store.write({self._table.name: sorted(self._within(replayed.take()).items())}, {})

    def _within(self, rows: Replayed) -> Changes:
        """Return those rows that are looked for, as a store has them."""
        low, high = self._low, self._high
        return {key: blob for key, blob in rows.items() if low <= key and (high is None or key < high)}

    async def _clocks(self) -> dict[int, int]:
        """Return for each partition the time by which its rows expire; none for a table whose rows stay."""
        clocks: dict[int, int] = {}
        if self._table.ttl is None:
            return clocks
        for tp, at in (await self._broker.describe_group(self._app.name)).positions.items():
            time = decode(at.offset, at.metadata).stream_time
            if tp.topic in self._place.topics and time is not None:
                clocks[tp.partition] = max(time, clocks.get(tp.partition, time))
        return clocks

    def _merged(
        self,
        stored: Mapping[int, Iterator[tuple[bytes, bytes]]],
        tails: Mapping[int, Changes],
        clocks: Mapping[int, int],
    ) -> Iterator[Row]:
        parts = [_part(n, rows, tails.get(n, {})) for n, rows in stored.items()]
        rows = merge(*parts, key=lambda row: (row.stored_key, row.partition))
        if self._table.versioned is not None:
            return map(_latest, rows)
        if (ttl := self._table.ttl_ms) is None:
            return rows
        return (row for row in rows if row.timestamp + ttl > clocks.get(row.partition, row.timestamp))


def _part(partition: int, stored: Iterator[tuple[bytes, bytes]], tail: Changes) -> Iterator[Row]:
    """Yield the rows of a partition; of two for one key that of the tail, which comes first."""
    last = None
    rows: Iterator[tuple[bytes, bytes | None]] = merge(sorted(tail.items()), stored, key=itemgetter(0))
    for key, blob in rows:
        if key != last and blob is not None:
            yield Row(partition, key, *unwrap(blob))
        last = key


def _latest(row: Row) -> Row:
    """Return the row of a table with versions by its latest."""
    assert row.value is not None, "versions are stored as bytes"
    versions = versioned.decode(row.value)
    return row._replace(value=versioned.latest(versions), timestamp=versions.timestamps[0], versions=versions)


def _numbered(partitions: Sequence[int]) -> str:
    """Return ``partition 3``, ``partitions 0-3, 7``."""
    runs: list[list[int]] = []
    for n in partitions:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}"


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of a changelog was read; yields what to call with each further number of offsets."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty() or not total
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda offsets: progress.update(task, advance=offsets)
