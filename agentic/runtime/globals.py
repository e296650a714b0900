"""Global tables: a whole copy of a topic's last records in each worker.

All are read to their ends before the first event, and kept up with their topics from then on,
without regard to the times of records. A copy has no owner and no changelog: what a worker
loses it reads again. Source: spec, D.8.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from agentic import codecs
from agentic.brokers.base import Batch, Broker, TopicInfo, TopicPartition
from agentic.errors import BrokerUnavailable, CodecError, DecodeFailed
from agentic.metrics import Metrics
from agentic.runtime.changelogs import warn_of_retention
from agentic.runtime.marks import WRITTEN, as_mark, number
from agentic.runtime.outbox import AGAIN
from agentic.runtime.recovery import Progress
from agentic.runtime.stores import Stores
from agentic.runtime.tables import Layout, filled
from agentic.runtime.tails import TOMBSTONES_KEPT
from agentic.settings import Settings
from agentic.state.base import Store
from agentic.state.buffer import TableBuffer
from agentic.state.envelope import wrap_all
from agentic.table import MISSING, GlobalTable

log = logging.getLogger("agentic.worker")

#: Rows and bytes that are collected, while a copy is made, before they are written together.
BATCH_ROWS = 100_000
BATCH_BYTES = 16 << 20
#: Seconds that a reader waits at most before it looks round.
LOOK_ROUND = 1.0

#: The name of the mark with the id of the topic that a copy is of.
OF_TOPIC = "topic"

Rows = dict[bytes, tuple[bytes | None, int]]


class Copy:
    """This worker's copy of one global table. A view of it: see `agentic.table.View`.

    Attributes:
        positions: how far each partition of its topic is in the copy.
        topic_id: which topic of that name it is a copy of; None where nothing notes it, as in a new one.
    """

    def __init__(self, table: GlobalTable[Any, Any], store: Store, cache_bytes: int) -> None:
        self.table = table
        self.store = store
        self._layout = Layout(table)
        self._buffer: TableBuffer[Any] = TableBuffer(table.name, store, load=self._layout.load, dump=self._layout.dump)
        self._buffer.cache_bytes = cache_bytes
        self.positions: dict[int, int] = {
            int(name): position
            for name, mark in store.marks().items()
            if name.isdigit() and (position := number(mark)) is not None
        }
        mark = store.mark(OF_TOPIC)
        self.topic_id: str | None = None if mark is None else mark.decode()
        self._collected: Rows = {}
        self._size = 0

    # -- reading ------------------------------------------------------------------------------

    def get(self, key: Any) -> Any:
        raw = self.table.encode_key(self._layout.keys.encode, key)
        entry, _ = self._buffer.rows.get(raw) or self._buffer.load(raw)
        if entry is None:
            return MISSING
        value_of = self._layout.value_of
        return entry if value_of is None else value_of(entry)

    def scan(self, start: Any, stop: Any, prefix: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
        keys, value_of = self._layout.keys, self._layout.value_of
        low, high = self._layout.bounds(start, stop, prefix)
        for raw, entry in self._buffer.pairs({}, low, high, reverse=reverse):
            yield keys.decode(raw), entry if value_of is None else value_of(entry)

    def count(self) -> int:
        return self._buffer.count({})

    def set(self, key: Any, value: Any) -> None:
        raise filled(self.table, self.table.source_topic)

    def remove(self, key: Any) -> bool:
        raise filled(self.table, self.table.source_topic)

    def at(self, key: Any, timestamp: int) -> Any:
        raise TypeError(f"table {self.table.name!r} is global and keeps no history")

    def feed(self, event: Any) -> None:
        raise TypeError(f"table {self.table.name!r} is fed by its worker")

    # -- keeping up ---------------------------------------------------------------------------

    def collect(self, partition: int, position: int, rows: Rows) -> None:
        """Take rows that a partition has up to `position`; `take` gives them on to be written."""
        self._collected.update(rows)
        self._size += sum(len(value or b"") + 48 for value, _ in rows.values())
        self.positions[partition] = position

    @property
    def dirty(self) -> bool:
        """Has anything been read that is not written?"""
        return bool(self._collected)

    @property
    def full(self) -> bool:
        """Is what was collected enough to be written?"""
        return len(self._collected) >= BATCH_ROWS or self._size >= BATCH_BYTES

    def write(self, *, complete: bool) -> list[bytes]:
        """Write what was collected; return the keys, which are to be forgotten by the cache.

        Args:
            complete: with these rows, the copy has all that its topic has.
        """
        rows, self._collected, self._size = self._collected, {}, 0
        encoded = [(key, *row) for key, row in sorted(rows.items())]
        marks = {str(partition): as_mark(position) for partition, position in self.positions.items()}
        # A copy that is behind has not seen all deletions: its age counts from when it last had.
        if complete or self.store.mark(WRITTEN) is None:
            marks[WRITTEN] = as_mark(time.time_ns() // 1_000_000)
        self.store.write({self.table.name: wrap_all(encoded)}, marks)
        return list(rows)

    def forget(self, keys: Sequence[bytes]) -> None:
        """The rows of these keys are to be read anew."""
        self._buffer.forget(keys)

    def clear(self) -> None:
        """Begin the copy anew."""
        # Marks first: a store must not claim rows that it has not. An id of no topic tells that some may be left.
        self.store.write({}, {OF_TOPIC: b"", WRITTEN: None} | {str(partition): None for partition in self.positions})
        self.store.clear(self.table.name)
        self.positions.clear()
        self.topic_id = None

    def note(self, topic_id: str) -> None:
        """Keep in mind which topic the copy is of."""
        self.store.write({}, {OF_TOPIC: topic_id.encode()})
        self.topic_id = topic_id

    def raw_key(self, wire: bytes) -> bytes:
        return self._layout.keys.from_wire(wire)


def _why_whole(copy: Copy, topic: TopicInfo) -> str | None:
    if copy.topic_id not in (None, topic.id):
        return f"topic {topic.name!r} was deleted and made again, or is another broker's"
    written = number(copy.store.mark(WRITTEN))
    old = written is not None and time.time_ns() // 1_000_000 - written > TOMBSTONES_KEPT
    for n, at in sorted(copy.positions.items()):
        if n not in topic.offsets:
            return f"topic {topic.name!r} has no partition {n} by now"
        start, end = topic.offsets[n]
        if not start <= at <= end:
            return f"partition {n} of topic {topic.name!r} has offsets {start} to {end}, and the copy stands at {at}"
        if at < end and old:
            return f"the copy is so old that deletions may be missing from topic {topic.name!r}"
    return None


class Globals:
    """The global tables of one worker.

    Args:
        tables: those of the app.
    """

    def __init__(
        self,
        tables: Sequence[GlobalTable[Any, Any]],
        broker: Broker,
        stores: Stores,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self._tables = list(tables)
        self._broker = broker
        self._stores = stores
        self._settings = settings
        self._metrics = metrics
        self._copies: dict[str, list[Copy]] = {}
        self._targets: dict[TopicPartition, int] = {}
        #: Where each copy stood when its loading began.
        self._begun: dict[Copy, dict[int, int]] = {}

    async def open(self) -> None:
        """Open the copies, and find out how far they have to be read."""
        for table in self._tables:
            store = await self._stores.open(f"global {table.name}", {table.name: table.shape})
            copy = Copy(table, store, self._settings.cache_bytes // (2 * len(self._tables)))
            self._copies.setdefault(table.source_topic.name, []).append(copy)
        await warn_of_retention(self._tables, self._broker)
        for topic, copies in self._copies.items():
            info = await self._broker.describe_topic(topic)
            for copy in copies:
                if why := _why_whole(copy, info):
                    log.warning("global table %s is loaded whole: %s", copy.table.name, why)
                    await self._stores.run(copy.clear)
                if copy.topic_id != info.id:
                    await self._stores.run(copy.note, info.id)
                for n, (start, _) in info.offsets.items():
                    copy.positions.setdefault(n, start)
        tps = [TopicPartition(topic, n) for topic, copies in self._copies.items() for n in copies[0].positions]
        self._targets = await self._broker.end_offsets(tps)
        self._begun = {copy: dict(copy.positions) for copies in self._copies.values() for copy in copies}

    def progress(self) -> Progress:
        """How far the tables are that are being loaded; a partition that is done counts until its table is."""
        found: Progress = {}
        for copy, begun in self._begun.items():
            ends = {tp.partition: end for tp, end in self._targets.items() if tp.topic == copy.table.source_topic.name}
            left = {n: max(0, end - copy.positions[n]) for n, end in ends.items()}
            if any(left.values()):
                found.update({(copy.table.name, n): (left[n], max(0, end - begun[n])) for n, end in ends.items()})
        return found

    @property
    def _behind(self) -> bool:
        return any(
            copy.positions[tp.partition] < end for tp, end in self._targets.items() for copy in self._copies[tp.topic]
        )

    async def run(self, loaded: asyncio.Event) -> None:
        """Load the copies, set `loaded`, and keep them up with their topics from then on.

        Raises:
            DecodeFailed: a record can't be decoded, and the policy is to stop.
        """
        started = time.monotonic()
        while True:
            starts = {tp: min(copy.positions[tp.partition] for copy in self._copies[tp.topic]) for tp in self._targets}
            reader = self._broker.reader(starts)
            try:
                while True:
                    if not loaded.is_set() and not self._behind:
                        await self._write(everything=True)
                        self._publish()
                        names = ", ".join(table.name for table in self._tables)
                        log.info("loaded global tables %s in %.1f s", names, time.monotonic() - started)
                        loaded.set()
                    for batch in await reader.poll(LOOK_ROUND):
                        self._take(batch)
                    await self._write(everything=loaded.is_set())
            except BrokerUnavailable as error:
                log.warning("global tables don't keep up, tried again until they do: %s", error)
                await asyncio.sleep(AGAIN)
            finally:
                await reader.close()

    def _take(self, batch: Batch) -> None:
        for copy in self._copies[batch.tp.topic]:
            partition = batch.tp.partition
            known = copy.positions[partition]
            if known < self._targets[batch.tp]:
                taken = len(batch) - bisect_left(batch.offsets, known)
                self._metrics.counter("restored", table=copy.table.name).add(taken)
            rows: Rows = {}
            for offset, timestamp, key, value in zip(batch.offsets, batch.timestamps, batch.keys, batch.values):
                if offset < known:
                    continue
                if key is None:
                    self._metrics.counter("dropped", reason="null_key").add()
                elif self._decodes(copy, batch.tp, offset, key, value):
                    rows[copy.raw_key(key)] = value, timestamp
            copy.collect(partition, max(known, batch.position), rows)

    def _decodes(self, copy: Copy, tp: TopicPartition, offset: int, key: bytes, value: bytes | None) -> bool:
        """Can a record be decoded? If not, apply the policy: a copy sends no dead letters, each worker would."""
        table = copy.table
        for part, codec, data in (("key", table.key, key), ("value", table.value, value)):
            if data is None:
                continue
            try:
                codec.decode(data)
            except (ValueError, CodecError) as error:
                where = f"{tp} offset {offset} (key {key!r}), global table {table.name!r}"
                reason = f"{part}: {codecs.explain(codec, data, error)}"
                if self._settings.on_decode_error == "stop":
                    raise DecodeFailed(
                        f"{where}: {reason}; mend the producer or the declared type, or set on_decode_error to 'skip'"
                    ) from error
                self._metrics.counter("dropped", reason="undecodable").add()
                log.warning("skipped: %s: %s", where, reason)
                return False
        return True

    async def _write(self, *, everything: bool) -> None:
        for copies in self._copies.values():
            for copy in copies:
                if copy.full or (everything and copy.dirty):
                    copy.forget(await self._stores.run(partial(copy.write, complete=everything)))

    def _publish(self) -> None:
        """Let agents and tasks see the copies."""
        for copies in self._copies.values():
            for copy in copies:
                copy.table.copy = copy

    async def close(self) -> None:
        for copies in self._copies.values():
            for copy in copies:
                copy.table.copy = None
                await self._stores.run(copy.store.close)
