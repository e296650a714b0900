"""What stands in the files: keys, rows and chunks, and the number of their format.

Databases of the environment (all integers in keys big-endian, so that they sort):

=============  ==================================  =============================================
database       key                                 value
=============  ==================================  =============================================
``meta``       a name                              format, the log's id, counters, the housekeeper's lease
``topics``     topic name                          `TopicRow`
``partitions`` topic id u32, partition u32         `PartitionRow`
``log``        topic id, partition, last offset    a chunk
``groups``     group name                          `Membership`
``positions``  group name, 0, topic id, partition  `Position`
``epochs``     transactional id                    `EpochRow`
``garbage``    topic id u32                        nothing: rows of a deleted topic are to be removed
=============  ==================================  =============================================

A *chunk* is a run of records of one partition, written at once: a header (CRC-32 of the rest,
greatest timestamp) and the columns as MessagePack. Decoding a column costs a twentieth of
decoding its records one by one. Its key is the *last* offset, so that the first key not below
an offset is the chunk that has it, or the next one.

The engine is LMDB 0.9's, the default of every binding: its format is what all of them can
open, and its one drawback, keys of at most 511 bytes, does not touch keys like these.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import msgspec

from agentic.brokers.base import Headers, TopicSpec
from agentic.brokers.embedded.store import Rows

#: Raised whenever an older version could not read what a newer one writes.
FORMAT = 1
DATABASES = (b"meta", b"topics", b"partitions", b"log", b"groups", b"positions", b"epochs", b"garbage")

FORMAT_KEY = b"format"
#: What tells this log from all others: a random text, put there when the log is made. Older logs have none.
LOG_ID_KEY = b"log_id"
TOPIC_IDS_KEY = b"topic_ids"
#: The last epoch of any producer. Epochs of one id may be forgotten, and must not come again.
EPOCHS_KEY = b"epochs"
#: Raised with each topic that comes or goes: who knows topics by heart looks at it first.
TOPICS_VERSION_KEY = b"topics_version"
HOUSEKEEPER_KEY = b"housekeeper"

#: Bytes of records in a chunk: a few pages in a row, cheap to find room for and to write again.
CHUNK_BYTES = 64 << 10
CHUNK_RECORDS = 1_000
#: Bytes that MessagePack and the columns add to a record, about.
RECORD_OVERHEAD = 20
#: Bytes of a group's name or a transactional id, which are parts of keys (511 bytes at most).
NAME_LIMIT = 400

PARTITION_KEY = struct.Struct(">II")
LOG_KEY = struct.Struct(">IIQ")
TOPIC_ID = struct.Struct(">I")
U64 = struct.Struct(">Q")
_CHUNK_HEAD = struct.Struct(">Iq")
_PARTITION_ROW = struct.Struct(">QQQQQQQq")


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    id: int
    partitions: int
    retention_ms: int | None
    retention_bytes: int | None
    compacted: bool

    @classmethod
    def of(cls, topic_id: int, spec: TopicSpec) -> TopicRow:
        return cls(topic_id, spec.partitions, spec.retention_ms, spec.retention_bytes, spec.compacted)


class PartitionRow(NamedTuple):
    """One partition's numbers."""

    #: The first offset that may be there, and the next to be written.
    start: int = 0
    end: int = 0
    #: Bytes of all its chunks.
    size: int = 0
    #: The offset up to which a compaction has been, and the bytes of all chunks after it.
    cleaned: int = 0
    clean_size: int = 0
    #: Tombstones below this offset had become the last of their keys by `settled_at`, milliseconds.
    settled: int = 0
    #: Tombstones that the last compaction met.
    tombstones: int = 0
    settled_at: int = 0

    def pack(self) -> bytes:
        return _PARTITION_ROW.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> PartitionRow:
        return cls._make(_PARTITION_ROW.unpack(data))


class EpochRow(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    #: Milliseconds since the epoch when its producer was made.
    made_at: int


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """A run of records. `offsets` is None where they are contiguous, `headers` where there are none."""

    base: int
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None] | None = None
    offsets: list[int] | None = None

    def all_offsets(self) -> list[int]:
        return list(range(self.base, self.base + len(self.timestamps))) if self.offsets is None else self.offsets

    def last(self) -> int:
        return self.base + len(self.timestamps) - 1 if self.offsets is None else self.offsets[-1]


_encoder = msgspec.msgpack.Encoder()
_chunks = msgspec.msgpack.Decoder(Chunk)


class Damaged(Exception):
    """A row is not what was written."""


def encode_chunk(chunk: Chunk) -> bytes:
    body = _encoder.encode(chunk)
    greatest = max(chunk.timestamps)
    return _CHUNK_HEAD.pack(zlib.crc32(body), greatest) + body


def decode_chunk(data: bytes) -> Chunk:
    """Raises `Damaged`."""
    view = memoryview(data)[_CHUNK_HEAD.size :]
    if len(data) < _CHUNK_HEAD.size or zlib.crc32(view) != _CHUNK_HEAD.unpack_from(data)[0]:
        raise Damaged("its checksum is wrong")
    try:
        return _chunks.decode(view)
    except msgspec.DecodeError as error:
        raise Damaged(str(error)) from error


def greatest_timestamp(data: bytes) -> int:
    return int(_CHUNK_HEAD.unpack_from(data)[1])


def cut(rows: Rows, base: int) -> list[Chunk]:
    """Cut rows into chunks whose offsets begin at `base`."""
    n = len(rows.timestamps)
    headers = rows.headers if any(rows.headers) else None
    if n <= CHUNK_RECORDS and rows.size + n * RECORD_OVERHEAD <= CHUNK_BYTES:
        return [Chunk(base, rows.timestamps, rows.keys, rows.values, headers)]
    mean = rows.size // n + RECORD_OVERHEAD
    step = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // mean))
    return [
        Chunk(
            base + i,
            rows.timestamps[i : i + step],
            rows.keys[i : i + step],
            rows.values[i : i + step],
            None if headers is None else headers[i : i + step],
        )
        for i in range(0, n, step)
    ]


def position_prefix(group: str) -> bytes:
    return group.encode() + b"\0"
