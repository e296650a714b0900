"""The log in LMDB, as the store that `agentic.brokers.embedded` works over.

All reads and writes run on the event loop's thread, in transactions of about a millisecond: a
second thread that runs Python would cost more than they do.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from agentic.brokers.base import Batch, Headers, Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.embedded.membership import Membership, Process
from agentic.brokers.embedded.store import Rows, Signal
from agentic.brokers.local import layout, liveness
from agentic.brokers.local.environment import Environment
from agentic.brokers.local.layout import Chunk, Damaged, EpochRow, PartitionRow, TopicRow
from agentic.errors import BrokerError, StorageCorrupt, TopicExists, UnknownTopic

#: Seconds between two looks for what other processes wrote: while records come, and when none do.
LOOK_HOT = 0.001
LOOK_COLD = 0.01
#: Seconds without news after which looking becomes rare.
HOT_FOR = 0.1
#: Bytes of chunks after which a read of one partition ends, however few its records.
READ_BYTES = 1 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(TopicRow).decode
_decode_epoch = msgspec.msgpack.Decoder(EpochRow).decode
_decode_membership = msgspec.msgpack.Decoder(Membership).decode
_decode_position = msgspec.msgpack.Decoder(tuple[int, str]).decode


class LocalStore:
    """See `agentic.brokers.embedded.store.Store`."""

    linger = 0.001
    look_every: float | None = 0.05

    def __init__(self, environment: Environment, name: str, record_limit: int) -> None:
        self.environment = environment
        self.name = name
        self.record_limit = record_limit
        self.records = Signal()
        self.members = Signal()
        #: Topics by name, as of this version of the list.
        self.topics: dict[str, TopicRow] = {}
        self.topics_version = -1
        self._seen = -1
        self._hot_until = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._ticker_loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def view(self) -> Iterator[LocalView]:
        with self.environment.read() as txn:
            yield LocalView(self, txn)

    @contextmanager
    def change(self, size: int = 0) -> Iterator[LocalChange]:
        with self.environment.write(size) as txn:
            change = LocalChange(self, txn)
            yield change
            number = txn.id()
        if change.records:
            if self._seen == number - 1:
                # Only what others write is news to find; who waits here is told now.
                self._seen = number
            self.records.notify()
        if change.members:
            self.members.notify()

    def clock(self) -> float:
        """The machine's monotonic clock: the same for all processes, and nobody sets it."""
        return time.monotonic()

    def process(self) -> Process | None:
        return liveness.this_process()

    def dead(self, process: Process) -> bool:
        return liveness.dead(process)

    async def wait_records(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        if self._ticker is None or self._ticker_loop is not loop:
            self._ticker_loop = loop
            # Not now: who waits has looked already, and what was written since must still be news.
            self._ticker = loop.call_later(LOOK_HOT, self._tick)
        await self.records.wait(timeout)

    def _tick(self) -> None:
        """Look whether any process wrote, for as long as somebody waits for it."""
        assert self._ticker_loop is not None
        now = self._ticker_loop.time()
        latest = self.environment.txnid()
        if latest != self._seen:
            self._seen = latest
            self._hot_until = now + HOT_FOR
            self.records.notify()
        pause = LOOK_HOT if now < self._hot_until else LOOK_COLD
        self._ticker = self._ticker_loop.call_later(pause, self._tock)

    def _tock(self) -> None:
        if self.records.waited_for:
            self._tick()
        else:
            self._ticker = None


class LocalView:
    """See `agentic.brokers.embedded.store.View`."""

    def __init__(self, store: LocalStore, txn: Any) -> None:
        self._store = store
        self._txn = txn
        self._db = store.environment.db

    def _damaged(self, what: str, why: object) -> StorageCorrupt:
        return StorageCorrupt(
            f"{self._store.environment.file}: {what} is damaged ({why});"
            " restore the file from a backup, or move it away to begin anew"
        )

    def _row(self, decode: Any, data: bytes, what: str) -> Any:
        try:
            return decode(data)
        except (msgspec.DecodeError, Damaged) as error:
            raise self._damaged(what, error) from error

    def topic_rows(self) -> dict[str, TopicRow]:
        store = self._store
        version = self._number(layout.TOPICS_VERSION_KEY)
        if version != store.topics_version:
            store.topics = self._read_topics()
            store.topics_version = version
        return store.topics

    def _read_topics(self) -> dict[str, TopicRow]:
        rows = self._txn.cursor(db=self._db[b"topics"]).iternext()
        return {name.decode(): self._row(_decode_topic, data, f"the row of topic {name!r}") for name, data in rows}

    def meta(self, key: bytes) -> bytes | None:
        data: bytes | None = self._txn.get(key, db=self._db[b"meta"])
        return data

    def _number(self, key: bytes) -> int:
        data = self.meta(key)
        return 0 if data is None else int(layout.U64.unpack(data)[0])

    def topics(self) -> dict[str, int]:
        return {name: row.partitions for name, row in self.topic_rows().items()}

    def _topic(self, name: str) -> TopicRow:
        row = self.topic_rows().get(name)
        if row is None:
            raise UnknownTopic(f"{self._store.name}: no topic {name!r}; see 'agentic topics list'")
        return row

    def describe(self, topic: str) -> TopicInfo:
        row = self._topic(topic)
        offsets = {n: self.bounds(TopicPartition(topic, n)) for n in range(row.partitions)}
        return TopicInfo(topic, offsets, row.retention_ms, row.retention_bytes, row.compacted, self._unique_id(row))

    def _unique_id(self, topic: TopicRow) -> str:
        """Return a topic's id that no topic of another log has; in a log that has no id of its own, only its number."""
        log = self.meta(layout.LOG_ID_KEY)
        return str(topic.id) if log is None else f"{log.decode()}/{topic.id}"

    def locate(self, tp: TopicPartition) -> tuple[int, PartitionRow]:
        """The topic's id and the partition's row. Raises `UnknownTopic`."""
        topic = self._topic(tp.topic)
        data = self._txn.get(layout.PARTITION_KEY.pack(topic.id, tp.partition), db=self._db[b"partitions"])
        if data is None:
            raise UnknownTopic(f"{self._store.name}: no partition {tp}; see 'agentic topics describe {tp.topic}'")
        return topic.id, PartitionRow.unpack(data)

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        row = self.locate(tp)[1]
        return row.start, row.end

    def chunks(self, topic_id: int, partition: int, offset: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the chunks from the one that has `offset` on."""
        cursor = self._txn.cursor(db=self._db[b"log"])
        if cursor.set_range(layout.LOG_KEY.pack(topic_id, partition, offset)):
            prefix = layout.PARTITION_KEY.pack(topic_id, partition)
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    return
                yield key, value

    def chunk(self, tp: TopicPartition, key: bytes, data: bytes) -> Chunk:
        chunk: Chunk = self._row(layout.decode_chunk, data, f"{tp} at offset {layout.LOG_KEY.unpack(key)[2]}")
        return chunk

    def read(self, tp: TopicPartition, offset: int, limit: int) -> Batch:
        topic_id, row = self.locate(tp)
        offsets: list[int] = []
        timestamps: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: list[Headers | None] = []
        position = offset
        size = 0
        for key, data in self.chunks(topic_id, tp.partition, offset):
            chunk = self.chunk(tp, key, data)
            chunk_offsets = chunk.all_offsets()
            # Whole chunks: the rest of one that is cut would have to be decoded again.
            first = bisect_left(chunk_offsets, offset)
            if first == 0:
                offsets += chunk_offsets
                timestamps += chunk.timestamps
                keys += chunk.keys
                values += chunk.values
            else:
                offsets += chunk_offsets[first:]
                timestamps += chunk.timestamps[first:]
                keys += chunk.keys[first:]
                values += chunk.values[first:]
            headers += chunk.headers[first:] if chunk.headers else [None] * (len(chunk_offsets) - first)
            position = offsets[-1] + 1
            size += len(data)
            if len(offsets) >= limit or size >= READ_BYTES:
                break
        else:
            position = row.end
        return Batch(tp, offsets, timestamps, keys, values, headers, position, row.end)

    def garbage(self) -> list[int]:
        """Ids of deleted topics of which something is left."""
        keys = self._txn.cursor(db=self._db[b"garbage"]).iternext(values=False)
        return [layout.TOPIC_ID.unpack(key)[0] for key in keys]

    def membership(self, group: str) -> Membership:
        data = self._txn.get(self._group_key(group), db=self._db[b"groups"])
        if data is None:
            return Membership()
        membership: Membership = self._row(_decode_membership, data, f"the row of group {group!r}")
        return membership

    def _group_key(self, group: str) -> bytes:
        key = group.encode()
        if not 0 < len(key) <= layout.NAME_LIMIT or b"\0" in key:
            raise BrokerError(f"group {group!r}: a name has 1 to {layout.NAME_LIMIT} bytes, and none is 0")
        return key

    def position(self, group: str, tp: TopicPartition) -> Position | None:
        topic = self.topic_rows().get(tp.topic)
        if topic is None:
            return None
        key = layout.position_prefix(group) + layout.PARTITION_KEY.pack(topic.id, tp.partition)
        data = self._txn.get(key, db=self._db[b"positions"])
        return None if data is None else Position(*self._row(_decode_position, data, f"{group!r}'s position of {tp}"))

    def positions(self, group: str) -> dict[TopicPartition, Position]:
        names = {row.id: name for name, row in self.topic_rows().items()}
        prefix = layout.position_prefix(group)
        found: dict[TopicPartition, Position] = {}
        cursor = self._txn.cursor(db=self._db[b"positions"])
        if cursor.set_range(prefix):
            for key, data in cursor.iternext():
                if not key.startswith(prefix):
                    break
                topic_id, partition = layout.PARTITION_KEY.unpack(key[len(prefix) :])
                # What was committed for a topic that is deleted counts for nothing.
                if topic_id in names:
                    tp = TopicPartition(names[topic_id], partition)
                    found[tp] = Position(*self._row(_decode_position, data, f"{group!r}'s position of {tp}"))
        return found

    def groups(self) -> list[str]:
        names = {
            name
            for name, data in self._txn.cursor(db=self._db[b"groups"])
            if self._row(_decode_membership, data, f"the row of group {bytes(name)!r}").joined
        }
        names |= {
            key[: -layout.PARTITION_KEY.size - 1]
            for key in self._txn.cursor(db=self._db[b"positions"]).iternext(values=False)
        }
        return [name.decode() for name in names]

    def epoch(self, transactional_id: str) -> int:
        data = self._txn.get(self._id_key(transactional_id), db=self._db[b"epochs"])
        return 0 if data is None else self._row(_decode_epoch, data, f"the epoch of {transactional_id!r}").epoch

    def _id_key(self, transactional_id: str) -> bytes:
        key = transactional_id.encode()
        if not 0 < len(key) <= layout.NAME_LIMIT:
            raise BrokerError(f"transactional id {transactional_id!r}: must have 1 to {layout.NAME_LIMIT} bytes")
        return key


class LocalChange(LocalView):
    """See `agentic.brokers.embedded.store.Change`."""

    def __init__(self, store: LocalStore, txn: Any) -> None:
        super().__init__(store, txn)
        self.records = False
        self.members = False
        self._topics_changed = False

    def topic_rows(self) -> dict[str, TopicRow]:
        # What this change did to topics may be undone: nobody must come to know it by heart.
        return self._read_topics() if self._topics_changed else super().topic_rows()

    def _put(self, database: bytes, key: bytes, value: bytes) -> None:
        self._txn.put(key, value, db=self._db[database])

    def _remove(self, database: bytes, key: bytes) -> None:
        self._txn.delete(key, db=self._db[database])

    def _count(self, key: bytes) -> int:
        number = self._number(key) + 1
        self.set_meta(key, layout.U64.pack(number))
        return number

    def create(self, spec: TopicSpec) -> None:
        if self._txn.get(spec.name.encode(), db=self._db[b"topics"]) is not None:
            raise TopicExists(f"{self._store.name}: topic {spec.name!r} exists already")
        topic = TopicRow.of(self._count(layout.TOPIC_IDS_KEY), spec)
        self._put(b"topics", spec.name.encode(), _encode(topic))
        for n in range(spec.partitions):
            self.save_partition(topic.id, n, PartitionRow())
        self._change_topics()

    def _change_topics(self) -> None:
        self._count(layout.TOPICS_VERSION_KEY)
        self._topics_changed = True

    def delete(self, topic: str) -> None:
        """Its chunks go later, in small steps: see `agentic.brokers.local.housekeeping`."""
        row = self._topic(topic)
        self._remove(b"topics", topic.encode())
        for n in range(row.partitions):
            self._remove(b"partitions", layout.PARTITION_KEY.pack(row.id, n))
        self._put(b"garbage", layout.TOPIC_ID.pack(row.id), b"")
        self._change_topics()
        self.records = self.members = True

    def save_partition(self, topic_id: int, partition: int, row: PartitionRow) -> None:
        self._put(b"partitions", layout.PARTITION_KEY.pack(topic_id, partition), row.pack())

    def append(self, tp: TopicPartition, rows: Rows) -> None:
        topic_id, row = self.locate(tp)
        size = row.size
        for chunk in layout.cut(rows, row.end):
            size += self.put_chunk(topic_id, tp.partition, chunk)
        self.save_partition(topic_id, tp.partition, row._replace(end=row.end + len(rows), size=size))
        self.records = True

    def move_start(self, tp: TopicPartition, offset: int) -> None:
        """Its chunks go later, in small steps: see `agentic.brokers.local.housekeeping`."""
        topic_id, row = self.locate(tp)
        self.save_partition(topic_id, tp.partition, row._replace(start=offset, cleaned=max(row.cleaned, offset)))

    def put_chunk(self, topic_id: int, partition: int, chunk: Chunk) -> int:
        """Return its bytes. The partition's row is the caller's affair."""
        data = layout.encode_chunk(chunk)
        self._put(b"log", layout.LOG_KEY.pack(topic_id, partition, chunk.last()), data)
        return len(data)

    def remove_chunk(self, key: bytes) -> int:
        """Return the bytes that it had. The partition's row is the caller's affair."""
        return len(self._txn.pop(key, db=self._db[b"log"]) or b"")

    def set_meta(self, key: bytes, value: bytes) -> None:
        self._put(b"meta", key, value)

    def remove_garbage(self, topic_id: int, limit: int) -> bool:
        """Remove what a deleted topic left, at most `limit` chunks of it; True if there is more."""
        prefix = layout.TOPIC_ID.pack(topic_id)
        cursor = self._txn.cursor(db=self._db[b"log"])
        found = cursor.set_range(prefix)
        for _ in range(limit):
            if not found or not cursor.key().startswith(prefix):
                break
            found = cursor.delete()
        else:
            return True
        positions = self._txn.cursor(db=self._db[b"positions"])
        found = positions.first()
        # Where the last row was deleted the cursor stands on none, and its key is empty.
        while found and positions.key():
            of_topic = positions.key()[-layout.PARTITION_KEY.size :].startswith(prefix)
            found = positions.delete() if of_topic else positions.next()
        self._remove(b"garbage", prefix)
        return False

    def forget_epochs(self, made_before: int) -> None:
        """Forget the transactional ids whose last producer was made before, milliseconds since the epoch."""
        rows = self._txn.cursor(db=self._db[b"epochs"]).iternext()
        old = [
            key for key, data in rows if self._row(_decode_epoch, data, "the epoch of a producer").made_at < made_before
        ]
        for key in old:
            self._remove(b"epochs", key)

    def save(self, group: str, membership: Membership) -> None:
        self._put(b"groups", self._group_key(group), _encode(membership))
        self.members = True

    def set_position(self, group: str, tp: TopicPartition, position: Position | None) -> None:
        self._group_key(group)
        key = layout.position_prefix(group) + layout.PARTITION_KEY.pack(self._topic(tp.topic).id, tp.partition)
        if position is None:
            self._remove(b"positions", key)
        else:
            self._put(b"positions", key, _encode(position))

    def next_epoch(self) -> int:
        return self._count(layout.EPOCHS_KEY)

    def set_epoch(self, transactional_id: str, epoch: int) -> None:
        row = EpochRow(epoch, int(time.time() * 1000))
        self._put(b"epochs", self._id_key(transactional_id), _encode(row))
