"""Retention, compaction and the remains of deleted topics, in steps of some milliseconds.

One process at a time keeps house: a lease in the log says which. The lease only saves work:
each step reads afresh what it changes, so two housekeepers at once, one of them frozen for an
hour between two steps for example, do no harm.

*Retention* removes chunks from the head of a partition: those that lie below its start, as
`delete_records` has moved it, those whose greatest timestamp is too old, and those without
which the partition is still as large as it may be. Nothing behind the first chunk that stays is
looked at.

*Compaction* first learns the last offset of each key written since the time before, as far as
`KEYS_AT_ONCE` keys go, then walks the partition from its start and writes anew what is left of
each run of chunks. A record is removed only for a later one of its key, so the last record of
a key is never touched, a pass that breaks off half-way has done no harm, and offsets stay. A
record without a key is kept.

*Tombstones* go when they have been the last of their keys for `TOMBSTONE_MS`, so that a reader
who keeps up sees each of them: a pass notes up to where it has been and when (`settled`), and
a later one may remove tombstones below. Source of the idea: Kafka's delete horizon (KIP-534),
here one for each partition and not one for each batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from itertools import compress

import msgspec

from agentic.brokers.base import Headers, TopicPartition
from agentic.brokers.local import layout
from agentic.brokers.local.layout import Chunk, PartitionRow, TopicRow
from agentic.brokers.local.store import LocalChange, LocalStore, LocalView
from agentic.errors import BrokerError, UnknownTopic

logger = logging.getLogger(__name__)

#: Seconds between two rounds.
EVERY = 30.0
#: Seconds between two steps, which leave the loop to the work that pays.
PAUSE = 0.005
#: Seconds that the lease holds without a sign of its holder.
LEASE = 60.0
#: Rows that a step reads or removes, at most.
STEP_ROWS = 500
#: Bytes of chunks that a step of a compaction reads, about.
STEP_BYTES = 512 << 10
#: Keys that a compaction learns at once: some 20 MB of memory.
KEYS_AT_ONCE = 200_000
#: Bytes that must be new before a compaction is worth its while, beside half of the whole.
WORTHWHILE = 64 << 10
#: Milliseconds after which the epoch of a transactional id that no producer took again is forgotten:
#: Kafka's default transactional.id.expiration.ms.
EPOCH_MS = 7 * 24 * 3_600_000
#: Milliseconds for which a tombstone stays readable: Kafka's default delete.retention.ms.
TOMBSTONE_MS = 24 * 3_600_000

Steps = Iterator[None]


class Lease(msgspec.Struct, frozen=True, array_like=True):
    holder: str
    #: Seconds on the store's clock.
    deadline: float


_encode = msgspec.msgpack.Encoder().encode
_decode_lease = msgspec.msgpack.Decoder(Lease).decode


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


class Housekeeper:
    """Keeps house in a log while it has the lease.

    Args:
        tombstone_ms: how long a tombstone stays readable once it is the last of its key.
        clock: milliseconds since the epoch.
    """

    def __init__(
        self, store: LocalStore, *, tombstone_ms: int = TOMBSTONE_MS, clock: Callable[[], int] = wall_clock
    ) -> None:
        self._store = store
        self._tombstone_ms = tombstone_ms
        self._clock = clock
        self._name = uuid.uuid4().hex

    async def run(self) -> None:
        """Keep house for ever; a round that fails is logged, and the next one tries again."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                self._store.environment.clear_readers()
                if self.claim():
                    for _ in self.round():
                        await asyncio.sleep(PAUSE)
            except BrokerError as error:
                logger.warning("housekeeping broke off and will be tried again in %.0f s: %s", EVERY, error)

    def claim(self) -> bool:
        """Take or renew the lease; False where another process has it."""
        now = self._store.clock()
        with self._store.view() as view:
            data = view.meta(layout.HOUSEKEEPER_KEY)
        if data is not None:
            lease = _decode_lease(data)
            if lease.holder != self._name and now <= lease.deadline <= now + LEASE:
                return False
        with self._store.change() as change:
            if change.meta(layout.HOUSEKEEPER_KEY) != data:
                return False
            change.set_meta(layout.HOUSEKEEPER_KEY, _encode(Lease(self._name, now + LEASE)))
        return True

    def round(self) -> Steps:
        """All there is to do now; each step is one short transaction."""
        yield from self._remove_deleted()
        with self._store.change() as change:
            change.forget_epochs(self._clock() - EPOCH_MS)
        with self._store.view() as view:
            topics = dict(view.topic_rows())
        for name, topic in topics.items():
            for n in range(topic.partitions):
                tp = TopicPartition(name, n)
                try:
                    yield from self._tidy(tp, topic)
                except UnknownTopic:
                    # Deleted meanwhile: its chunks are for the next round.
                    break
                if not self.claim():
                    return

    def _tidy(self, tp: TopicPartition, topic: TopicRow) -> Steps:
        yield from self.retain(tp, topic)
        if topic.compacted:
            with self._store.view() as view:
                row = _row(view, tp, topic)
            new = row.size - row.clean_size
            if (new >= max(WORTHWHILE, row.clean_size) and row.cleaned < row.end) or self._tombstones_due(row):
                yield from self.compact(tp, topic)

    def retain(self, tp: TopicPartition, topic: TopicRow) -> Steps:
        """Remove what lies below the start, is too old or too much from the head of a partition."""
        oldest = None if topic.retention_ms is None else self._clock() - topic.retention_ms
        more = True
        while more:
            with self._store.view() as view:
                expired = self._expired(view, tp, topic, oldest)
            if expired:
                with self._store.change() as change:
                    more = self._remove_head(change, tp, topic, oldest)
                yield
            else:
                more = False

    def _expired(self, view: LocalView, tp: TopicPartition, topic: TopicRow, oldest: int | None) -> list[bytes]:
        """Keys of the chunks at the head that must go, at most a step of them."""
        row = _row(view, tp, topic)
        size = row.size
        found: list[bytes] = []
        for key, data in view.chunks(topic.id, tp.partition, 0):
            too_much = topic.retention_bytes is not None and size - len(data) >= topic.retention_bytes
            too_old = oldest is not None and layout.greatest_timestamp(data) < oldest
            below = layout.LOG_KEY.unpack(key)[2] < row.start
            if not (below or too_much or too_old) or len(found) == STEP_ROWS:
                break
            size -= len(data)
            found.append(key)
        return found

    def _remove_head(self, change: LocalChange, tp: TopicPartition, topic: TopicRow, oldest: int | None) -> bool:
        row = _row(change, tp, topic)
        expired = self._expired(change, tp, topic, oldest)
        if expired:
            freed = sum(change.remove_chunk(key) for key in expired)
            start = max(row.start, layout.LOG_KEY.unpack(expired[-1])[2] + 1)
            row = row._replace(
                start=start,
                size=row.size - freed,
                cleaned=max(row.cleaned, start),
                clean_size=max(0, row.clean_size - freed),
            )
            change.save_partition(topic.id, tp.partition, row)
        return len(expired) == STEP_ROWS

    def _tombstones_due(self, row: PartitionRow) -> bool:
        return row.tombstones > 0 and self._clock() >= row.settled_at + self._tombstone_ms

    def compact(self, tp: TopicPartition, topic: TopicRow) -> Steps:
        """Remove, up to some offset, each record that has a later one of its key, and tombstones that are due."""
        with self._store.view() as view:
            before = _row(view, tp, topic)
        latest: dict[bytes | None, int] = {}
        upto = yield from self._learn(tp, topic, before, latest)
        due = self._tombstones_due(before)
        #: Tombstones below go.
        settled = before.settled if due else 0
        tombstones = 0
        at = before.start
        while at < upto:
            with self._store.view() as view:
                run = _run(view, topic, tp.partition, at, upto)
                if not run:
                    break
                chunks = [view.chunk(tp, key, data) for key, data in run]
            kept = _Kept()
            for chunk in chunks:
                kept.sift(chunk, latest, settled)
            pieces = kept.cut()
            # Crumbs, chunks of few records, are worth a rewrite too.
            if kept.removed or len(run) >= 4 * len(pieces):
                with self._store.change() as change:
                    if not _rewrite(change, tp, topic, run, pieces, upto):
                        continue
            tombstones += kept.tombstones
            at = layout.LOG_KEY.unpack(run[-1][0])[2] + 1
            yield
        with self._store.change() as change:
            row = _row(change, tp, topic)
            if row.cleaned == before.cleaned and row.settled_at == before.settled_at:
                row = row._replace(cleaned=upto, clean_size=row.size, tombstones=tombstones)
                if due or not before.tombstones:
                    row = row._replace(settled=upto, settled_at=self._clock())
                change.save_partition(topic.id, tp.partition, row)

    def _learn(
        self, tp: TopicPartition, topic: TopicRow, row: PartitionRow, latest: dict[bytes | None, int]
    ) -> Generator[None, None, int]:
        """Note the last offset of each key from where the last compaction ended; return how far that is."""
        at = max(row.cleaned, row.start)
        while at < row.end and len(latest) < KEYS_AT_ONCE:
            with self._store.view() as view:
                run = _run(view, topic, tp.partition, at, row.end)
                if not run:
                    return row.end
                for key, data in run:
                    chunk = view.chunk(tp, key, data)
                    # A part of it from before `at` does no harm: its keys' last offsets come after.
                    latest.update(zip(chunk.keys, chunk.all_offsets(), strict=True))
            at = layout.LOG_KEY.unpack(run[-1][0])[2] + 1
            yield
        return at

    def _remove_deleted(self) -> Steps:
        with self._store.view() as view:
            garbage = view.garbage()
        for topic_id in garbage:
            more = True
            while more:
                with self._store.change() as change:
                    more = change.remove_garbage(topic_id, STEP_ROWS)
                yield


def _row(view: LocalView, tp: TopicPartition, topic: TopicRow) -> PartitionRow:
    """Raises `UnknownTopic`, also where another topic has the name by now."""
    topic_id, row = view.locate(tp)
    if topic_id != topic.id:
        raise UnknownTopic(f"topic {tp.topic!r} was made anew")
    return row


def _run(view: LocalView, topic: TopicRow, partition: int, at: int, upto: int) -> list[tuple[bytes, bytes]]:
    """The next chunks with offsets from `at` to `upto`, as many as a step takes."""
    run: list[tuple[bytes, bytes]] = []
    size = 0
    for key, data in view.chunks(topic.id, partition, at):
        run.append((key, data))
        size += len(data)
        if layout.LOG_KEY.unpack(key)[2] + 1 >= upto or size >= STEP_BYTES or len(run) == STEP_ROWS:
            break
    return run


def _rewrite(
    change: LocalChange,
    tp: TopicPartition,
    topic: TopicRow,
    run: list[tuple[bytes, bytes]],
    pieces: list[Chunk],
    upto: int,
) -> bool:
    """Put the pieces in the place of a run of chunks; False if the run is no longer what it was."""
    row = _row(change, tp, topic)
    first = layout.LOG_KEY.unpack(run[0][0])[2]
    if _run(change, topic, tp.partition, first, upto) != run:
        return False
    size = row.size - sum(change.remove_chunk(key) for key, _ in run)
    size += sum(change.put_chunk(topic.id, tp.partition, piece) for piece in pieces)
    change.save_partition(topic.id, tp.partition, row._replace(size=size))
    return True


class _Kept:
    """Records that stay, as columns."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        #: How many go, and how many tombstones stay.
        self.removed = 0
        self.tombstones = 0

    def sift(self, chunk: Chunk, latest: dict[bytes | None, int], settled: int) -> None:
        """Add of a chunk what stays: no later record has its key, and it is no tombstone below `settled`."""
        offsets = chunk.all_offsets()
        headers = chunk.headers or [None] * len(offsets)
        stays = [
            key is None or (latest.get(key, 0) <= offset and (value is not None or offset >= settled))
            for offset, key, value in zip(offsets, chunk.keys, chunk.values, strict=True)
        ]
        self.offsets += compress(offsets, stays)
        self.timestamps += compress(chunk.timestamps, stays)
        self.keys += compress(chunk.keys, stays)
        values = list(compress(chunk.values, stays))
        self.values += values
        self.headers += compress(headers, stays)
        self.removed += len(stays) - len(values)
        self.tombstones += sum(
            value is None and key is not None for key, value in zip(compress(chunk.keys, stays), values, strict=True)
        )

    def cut(self) -> list[Chunk]:
        chunks = []
        first = size = 0
        for i, (key, value, headers) in enumerate(zip(self.keys, self.values, self.headers, strict=True)):
            size += len(key or b"") + len(value or b"") + layout.RECORD_OVERHEAD
            size += sum(len(name) + len(data) for name, data in headers or ())
            if size >= layout.CHUNK_BYTES or i + 1 - first == layout.CHUNK_RECORDS:
                chunks.append(self._chunk(first, i + 1))
                first, size = i + 1, 0
        if first < len(self.offsets):
            chunks.append(self._chunk(first, len(self.offsets)))
        return chunks

    def _chunk(self, first: int, stop: int) -> Chunk:
        offsets = self.offsets[first:stop]
        headers = self.headers[first:stop]
        contiguous = offsets[-1] - offsets[0] == len(offsets) - 1
        return Chunk(
            offsets[0],
            self.timestamps[first:stop],
            self.keys[first:stop],
            self.values[first:stop],
            headers if any(headers) else None,
            None if contiguous else offsets,
        )
