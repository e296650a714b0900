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
from dataclasses import dataclass
from heapq import merge
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentic.app import App
from agentic.brokers.base import Batch, Broker, TopicPartition
from agentic.cli.reading import between
from agentic.core.metadata import decode
from agentic.errors import AgenticError, CodecError, ConfigurationError, UnknownTopic, named
from agentic.runtime.groups import groups
from agentic.runtime.state import number, upto
from agentic.settings import Settings
from agentic.state.envelope import unwrap, wrap
from agentic.state.keys import KeyFormat, key_format
from agentic.state.lmdb import Copy, LmdbStore, copies, in_use
from agentic.table import Table
from agentic.topic import nearest

#: Records behind a local copy that are kept in memory; for more, the changelog is read into a file.
LONGEST_TAIL = 200_000
#: Rows of a changelog that are written to that file together.
LOT = 50_000


class Row(NamedTuple):
    """A row as it is stored: the key's bytes in the order of the keys, the codec's bytes of the value, ms."""

    partition: int
    stored_key: bytes
    value: bytes
    timestamp: int


@dataclass(frozen=True)
class Place:
    """Where a table's rows belong.

    Attributes:
        topics: the names of its group's.
        partitions: how many each has.
    """

    topics: tuple[str, ...]
    partitions: int

    @property
    def topic(self) -> str:
        """The first topic by name: the tasks are named after it."""
        return min(self.topics)

    def task(self, partition: int) -> str:
        """Return the name of the task that has a partition."""
        return f"{self.topic}-{partition}"


class Bounds(NamedTuple):
    """The part of a changelog partition that the table consists of: from an offset on, up to before another."""

    start: int
    end: int


def table_of(app: App, name: str) -> Table[Any, Any]:
    """Return a table of an app. Raises `ConfigurationError` with the nearest name."""
    if name not in app.tables:
        raise ConfigurationError(f"app {app.name!r} has no table {name!r}; {nearest(name, list(app.tables))}")
    return app.tables[name]


def keys_of(table: Table[Any, Any]) -> KeyFormat:
    """Return how a table's keys are stored."""
    return key_format(getattr(table.key, "declared", None), table.key)


def place_of(app: App, table: Table[Any, Any], known: Mapping[str, int]) -> Place:
    """Return where a table's rows belong.

    Args:
        known: all topics with their number of partitions.

    Raises:
        ConfigurationError: no agent uses it.
        UnknownTopic: the app has never been started.
    """
    for agents, topics in groups(app.processors()):
        if any(table in agent.tables for agent in agents):
            if missing := [topic.name for topic in topics if topic.name not in known]:
                raise UnknownTopic(
                    f"table {table.name!r} has the partitions of {named('topic', missing)}, which the broker has not; "
                    "start the app, or 'agentic topics create'"
                )
            return Place(tuple(topic.name for topic in topics), known[topics[0].name])
    raise ConfigurationError(f"table {table.name!r}: no agent uses it, so it has no partitions and no rows")


def state_home(settings: Settings) -> Path:
    """Return the directory with this machine's copies of an app's tables."""
    return Path(settings.state_dir) / settings.name / "state"


def copies_by_task(settings: Settings) -> dict[str, list[Copy]]:
    """Return this machine's copies by the name of their task.

    Raises:
        ConfigurationError: they can't be looked for.
    """
    found: dict[str, list[Copy]] = {}
    try:
        for copy in copies(settings.state_dir, settings.name):
            found.setdefault(copy.task, []).append(copy)
    except OSError as error:
        raise ConfigurationError(
            f"local state {str(error.filename or state_home(settings))!r} can't be read ({error.strerror}); "
            "check its owner and mode, or run as the worker's user"
        ) from None
    return found


def is_in_use(copy: Copy) -> bool:
    """Does a process have a copy now? Raises `ConfigurationError` where that can't be told."""
    try:
        return in_use(copy)
    except OSError as error:
        raise ConfigurationError(
            f"{copy.directory}: whether a worker has it can't be told ({error.strerror}); run as the worker's user"
        ) from None


async def bounds_of(
    app: App, table: Table[Any, Any], place: Place, known: Mapping[str, int], broker: Broker
) -> list[Bounds] | None:
    """Return for each partition which part of the changelog the table consists of; None without a changelog.

    A changelog that was not made yet has nothing. Of a topic that fills a table, what is not
    committed is yet to come to it.
    """
    topic = table.changelog_topic
    if topic is None:
        return None
    if topic not in known:
        return [Bounds(0, 0)] * place.partitions
    if known[topic] != place.partitions:
        raise ConfigurationError(
            f"changelog {topic!r} has {known[topic]} partitions, and topic {place.topic!r} {place.partitions}; "
            "'agentic reset' deletes it with the app's state"
        )
    offsets = (await broker.describe_topic(topic)).offsets
    if table.source is None:
        return [Bounds(*offsets[n]) for n in range(place.partitions)]
    positions = (await broker.describe_group(app.name)).positions
    taken = [positions.get(TopicPartition(topic, n)) for n in range(place.partitions)]
    return [Bounds(offsets[n][0], 0 if at is None else at.offset) for n, at in enumerate(taken)]


@contextmanager
def opened(found: Sequence[Copy], say: Callable[[str], None]) -> Iterator[list[tuple[Copy, LmdbStore]]]:
    """Open copies to look at them; say of those that can't be read why."""
    with ExitStack() as stack:
        readable = []
        for copy in found:
            try:
                readable.append((copy, stack.enter_context(closing(LmdbStore.open_readonly(copy.directory)))))
            except AgenticError as error:
                say(str(error))
        yield readable


class Reading:
    """Reads the rows of one table, once.

    Args:
        known: all topics with their number of partitions.
        say: takes a line on where the rows come from.
    """

    def __init__(
        self, app: App, table: Table[Any, Any], known: Mapping[str, int], broker: Broker, say: Callable[[str], None]
    ) -> None:
        self._app = app
        self._table = table
        self._known = known
        self._broker = broker
        self._say = say
        self._keys = keys_of(table)
        self._place = place_of(app, table, known)
        self._copies = copies_by_task(app.settings)
        self._stack = ExitStack()
        self._low = b""
        self._high: bytes | None = None

    @property
    def partitions(self) -> int:
        """How many partitions the table has."""
        return self._place.partitions

    async def rows(self, low: bytes, high: bytes | None, partitions: Sequence[int]) -> Iterator[Row]:
        """Return the rows with ``low <= stored key < high``, in the order of the keys; `close` when done."""
        self._low, self._high = low, high
        # In this order: a copy's offset, then its rows, then the changelog's end. So no row is newer than
        # the end, and whatever is newer than the offset is read from the changelog.
        local = {n: found for n in partitions if (found := self._local(n)) is not None}
        bounds = await bounds_of(self._app, self._table, self._place, self._known, self._broker)
        topic = self._table.changelog_topic
        if bounds is None or topic is None:
            if missing := [n for n in partitions if n not in local]:
                self._say(f"{self._table.name} has no changelog, and this machine no copy of {_numbered(missing)}")
            self._say_local([n for n in partitions if n in local])
            return self._merged({n: rows for n, (_, rows) in local.items()}, {}, await self._clocks())
        reaches = await self._reaches(topic, local)
        usable = {
            n: (at, rows)
            for n, (at, rows) in local.items()
            if at is not None and bounds[n].start <= at <= reaches[n] and bounds[n].end - at <= LONGEST_TAIL
        }
        whole = [n for n in partitions if n not in usable and bounds[n].start < bounds[n].end]
        self._say_local(sorted(usable))
        if whole:
            self._say(f"{self._table.name}: {_numbered(whole)} from topic {topic}")
        scratch = self._scratch(whole)
        tails: dict[int, dict[bytes, bytes | None]] = {n: {} for n in usable}
        starts = {TopicPartition(topic, n): at for n, (at, _) in usable.items()}
        starts.update({TopicPartition(topic, n): bounds[n].start for n in whole})
        await self._read(starts, {tp: bounds[tp.partition].end for tp in starts}, tails, scratch)
        stored = {n: rows for n, (_, rows) in usable.items()}
        if scratch is not None:
            stored.update({n: scratch.scan(str(n)) for n in whole})
        return self._merged(stored, tails, await self._clocks())

    def close(self) -> None:
        """Let go of the copies."""
        self._stack.close()

    def _say_local(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._say(f"{self._table.name}: {_numbered(partitions)} from {state_home(self._app.settings)}")

    def _local(self, partition: int) -> tuple[int | None, Iterator[tuple[bytes, bytes]]] | None:
        """Return the offset up to which the furthest copy has the changelog, and its rows; None without a copy."""
        readable = self._stack.enter_context(opened(self._copies.get(self._place.task(partition), []), self._say))
        marked = [(number(store.mark(upto(self._table))), store) for _, store in readable]
        having = [(at, store) for at, store in marked if self._table.name in store.tables]
        if not having:
            return None
        at, store = max(having, key=lambda each: -1 if each[0] is None else each[0])
        rows = store.scan(self._table.name, self._low, self._high)
        self._stack.callback(rows.close)  # type: ignore[attr-defined]
        # From its first row on an iterator sees what there was then, whatever the worker writes.
        first = next(rows, None)
        return at, iter(()) if first is None else chain([first], rows)

    async def _reaches(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return how far a changelog's partitions go at all: a copy that claims more is of one that is gone.

        A copy may be ahead of what readers see by now, for the moment that a commit takes to get about.
        """
        if topic not in self._known:
            return dict.fromkeys(partitions, 0)
        ends = await self._broker.end_offsets([TopicPartition(topic, n) for n in partitions], with_open=True)
        return {tp.partition: end for tp, end in ends.items()}

    def _scratch(self, whole: Sequence[int]) -> LmdbStore | None:
        """Make a store for what is read from the changelog: it need not fit into memory."""
        if not whole:
            return None
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agentic-tables-"))
        tables = {str(n): self._table.shape for n in whole}
        return self._stack.enter_context(closing(LmdbStore.open(directory, identity={}, tables=tables)))

    async def _read(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        tails: Mapping[int, dict[bytes, bytes | None]],
        scratch: LmdbStore | None,
    ) -> None:
        """Read the changelog: into `tails` what lies over a local copy, into `scratch` all else."""
        lots: dict[int, dict[bytes, bytes | None]] = {}

        def write(n: int) -> None:
            assert scratch is not None, "there is one where a partition is read whole"
            scratch.write({str(n): sorted(lots.pop(n).items())}, {})

        with _progress(self._table.name, sum(max(0, ends[tp] - start) for tp, start in starts.items())) as advance:
            position = dict(starts)
            async for batch in between(self._broker, starts, ends):
                n = batch.tp.partition
                into = tails[n] if n in tails else lots.setdefault(n, {})
                into.update(self._changes(batch))
                if n not in tails and len(into) >= LOT:
                    write(n)
                advance(batch.position - position[batch.tp])
                position[batch.tp] = batch.position
        for n in list(lots):
            write(n)

    def _changes(self, batch: Batch) -> Iterator[tuple[bytes, bytes | None]]:
        low, high, from_wire = self._low, self._high, self._keys.from_wire
        for wire, value, timestamp in zip(batch.keys, batch.values, batch.timestamps):
            if wire is None:
                continue
            try:
                key = from_wire(wire)
            except CodecError:
                if self._table.source is None:
                    raise
                # A record that the worker could not decode either, and was told to skip.
                continue
            if low <= key and (high is None or key < high):
                yield key, None if value is None else wrap(value, timestamp)

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
        tails: Mapping[int, dict[bytes, bytes | None]],
        clocks: Mapping[int, int],
    ) -> Iterator[Row]:
        parts = [_part(n, rows, tails.get(n, {})) for n, rows in stored.items()]
        rows = merge(*parts, key=lambda row: (row.stored_key, row.partition))
        if (ttl := self._table.ttl_ms) is None:
            return rows
        return (row for row in rows if row.timestamp + ttl > clocks.get(row.partition, row.timestamp))


def _part(partition: int, stored: Iterator[tuple[bytes, bytes]], tail: dict[bytes, bytes | None]) -> Iterator[Row]:
    """Yield the rows of a partition; of two for one key that of the tail, which comes first."""
    last = None
    rows: Iterator[tuple[bytes, bytes | None]] = merge(sorted(tail.items()), stored, key=itemgetter(0))
    for key, blob in rows:
        if key != last and blob is not None:
            yield Row(partition, key, *unwrap(blob))
        last = key


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
