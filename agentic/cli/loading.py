"""Sending a file of JSON lines, from its beginning or from where an interrupted send stopped.

Resuming needs no note of what was sent: the records of one partition are a beginning of the
lines that go to it, in their order, since a broker appends in the order of sending. So the
first lines of each partition, as many as it has records, are left out.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol, TypeAlias, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from agentic.brokers.base import Broker, Headers, TopicPartition
from agentic.cli.records import Form, Record, read_line
from agentic.core.partitioning import partition_of
from agentic.errors import ConfigurationError, many

#: Lines between two looks at the producer's backlog and the progress bar.
LOT = 1_000
#: Seconds that a record which the broker says it has may take to come.
PATIENCE = 10.0

_GZIP = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Bytes: TypeAlias = "io.BufferedReader[Any]"


@dataclass
class Loaded:
    """How a load went: lines sent, lines left out because the topic had them, and the least timestamp that was sent."""

    sent: int = 0
    skipped: int = 0
    oldest: int | None = None

    @property
    def remark(self) -> str:
        """What to say of the lines left out."""
        return f" ({self.skipped:,} were there already)" if self.skipped else ""


class Sink(Protocol):
    """Where records go: see `agentic.brokers.base.Producer`."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None: ...

    async def ready(self) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


async def load(
    broker: Broker, form: Form, partitions: int, path: str, *, resume: bool, sink: Sink | None = None
) -> Loaded:
    """Send the lines of the file at `path`, ``-`` for standard input; return when the broker has them all.

    Args:
        sink: takes the records, and is closed; by default a producer of the broker's.

    Raises:
        ConfigurationError: a line that can't be read or sent, with its number, and how many lines before
            it were sent; with `resume`, a topic that holds other records.
    """
    there = await There.look(broker, form.topic, partitions) if resume else None
    producer = broker.producer() if sink is None else sink
    loaded = Loaded()
    name = "standard input" if path == "-" else path
    try:
        with _opened(path) as source, _progress(source, path, form.topic) as advance:
            numbered = enumerate(_lines(source, name), 1)
            try:
                while lot := list(islice(numbered, LOT)):
                    for number, line in lot:
                        record = _read(line, form, partitions, f"{name}, line {number}")
                        if record is None:
                            continue
                        if there is not None and there.has(record, f"{name}, line {number}"):
                            loaded.skipped += 1
                            continue
                        at = time.time_ns() // 1_000_000 if record.timestamp is None else record.timestamp
                        producer.send(form.topic, record.key, record.value, at, record.headers, record.partition)
                        loaded.sent += 1
                        if loaded.oldest is None or at < loaded.oldest:
                            loaded.oldest = at
                    await producer.ready()
                    advance()
            except ConfigurationError as error:
                await producer.flush()
                were = "was" if loaded.sent == 1 else "were"
                raise ConfigurationError(f"{error}; {many(loaded.sent, 'record')} before it {were} sent") from error
        if there is not None:
            there.check_all_seen(name)
        await producer.flush()
    finally:
        await producer.close()
    return loaded


def _read(line: bytes, form: Form, partitions: int, where: str) -> Record | None:
    """Return a line's record, None for an empty line."""
    if not line.strip():
        return None
    try:
        record = read_line(line, form)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if record.partition >= partitions:
        raise ConfigurationError(
            f"{where}: topic {form.topic!r} has no partition {record.partition}, only 0 to {partitions - 1}"
        )
    return record


@contextmanager
def _opened(path: str) -> Iterator[Bytes]:
    if path == "-":
        # Buffered once more: it may be a stream that can't be looked ahead in.
        yield io.BufferedReader(cast(Any, sys.stdin.buffer))
    else:
        with open(path, "rb") as file:
            yield file


def _lines(source: Bytes, name: str) -> Iterator[bytes]:
    compressed = source.peek(2)[:2] == _GZIP
    lines: Iterator[bytes] = iter(gzip.GzipFile(fileobj=source) if compressed else source)
    try:
        first = next(lines, b"")
        if first.startswith(_UTF_16):
            raise ConfigurationError(f"{name}: it is UTF-16; write it as UTF-8")
        # Some programs begin a text with a mark of its byte order, which UTF-8 has not and JSON forbids.
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigurationError(f"{name}: the gzip file is damaged: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{name}: can't be read: {error.strerror}") from error


@dataclass
class There:
    """What a topic holds, while the lines that made it are gone through once more."""

    topic: str
    starts: list[int]
    ends: list[int]
    last: dict[int, tuple[bytes | None, bytes | None]]
    _seen: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = [0] * len(self.ends)

    @classmethod
    async def look(cls, broker: Broker, topic: str, partitions: int) -> There:
        """Read how many records each partition has, and the last one of each."""
        tps = [TopicPartition(topic, n) for n in range(partitions)]
        starts = [start for _, (start, _) in sorted((await broker.describe_topic(topic)).offsets.items())]
        ends = await broker.end_offsets(tps)
        offsets = {tp: ends[tp] - 1 for tp in tps if starts[tp.partition] < ends[tp]}
        last = {tp.partition: (key, value) async for tp, key, value in _at(broker, offsets)}
        return cls(topic, starts, [ends[tp] for tp in tps], last)

    def has(self, record: Record, where: str) -> bool:
        """Is this line's record there already? To be asked of all lines in their order.

        Raises:
            ConfigurationError: it can't be told, or something else stands in its place.
        """
        if record.partition >= 0:
            partition = record.partition
        elif record.key is not None:
            partition = _by_key(record.key, len(self.ends))
        else:
            raise ConfigurationError(f"{where}: it has neither key nor partition, so --resume can't tell where it went")
        at = self._seen[partition]
        self._seen[partition] += 1
        if at == self.ends[partition] - 1 and self.last.get(partition) != (record.key, record.value):
            if at < self.starts[partition]:
                raise ConfigurationError(
                    f"{where}: what stood at {self.topic}-{partition} offset {at} is gone, by the topic's retention, "
                    "so --resume can't compare; send without it, or to a new topic that keeps old records "
                    '(on Kafka retention.ms=-1, app.topic(…, config={"retention.ms": "-1"}))'
                )
            raise ConfigurationError(
                f"{where}: {self.topic}-{partition} offset {at} holds another record, so --resume can't go on; "
                "the topic was not made of this file alone"
            )
        return at < self.ends[partition]

    def check_all_seen(self, name: str) -> None:
        """Raise `ConfigurationError` where the topic has more records than the file has lines."""
        for partition, (seen, end) in enumerate(zip(self._seen, self.ends)):
            if seen < end:
                raise ConfigurationError(
                    f"{self.topic}-{partition} has {end:,} records, and {name} only {seen:,} for it; "
                    "the topic was not made of this file alone"
                )


@lru_cache(maxsize=10_000)
def _by_key(key: bytes, partitions: int) -> int:
    return partition_of(key, partitions)


async def _at(
    broker: Broker, offsets: dict[TopicPartition, int]
) -> AsyncIterator[tuple[TopicPartition, bytes | None, bytes | None]]:
    """Yield the record at one offset of each partition, where it is still there."""
    if not offsets:
        return
    wanted = dict(offsets)
    reader = broker.reader(offsets)
    deadline = time.monotonic() + PATIENCE
    try:
        while wanted and time.monotonic() < deadline:
            for batch in await reader.poll(1.0):
                if batch.tp in wanted and (len(batch) or batch.position > wanted[batch.tp]):
                    if len(batch) and batch.offsets[0] == wanted[batch.tp]:
                        yield batch.tp, batch.keys[0], batch.values[0]
                    del wanted[batch.tp]
    finally:
        await reader.close()


@contextmanager
def _progress(source: Bytes, path: str, topic: str) -> Iterator[Callable[[], None]]:
    """Show how far the file has been read; yields what to call now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    visible = path != "-" and sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not visible) as progress:
        task = progress.add_task(topic, total=os.path.getsize(path) if visible else None)

        def advance() -> None:
            if visible:
                progress.update(task, completed=source.tell())

        yield advance
