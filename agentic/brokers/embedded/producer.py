"""Producers: gather records, then write them all at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from confluent_kafka import murmur2

from agentic.brokers.base import Consumer, Headers, Position, TopicPartition
from agentic.brokers.embedded.consumer import EmbeddedConsumer
from agentic.brokers.embedded.store import Rows, Store
from agentic.errors import (
    BrokerError,
    DeliveryFailed,
    Fenced,
    NotOwner,
    RecordTooLarge,
    TransactionAborted,
    UnknownTopic,
)

logger = logging.getLogger(__name__)

#: Records gathered before a write does not wait for the linger any more.
WRITE_AT = 1_000
#: Bytes gathered likewise.
WRITE_AT_BYTES = 1 << 20
#: Bytes that a record takes in memory and in the log beside its own, about.
OVERHEAD = 40
#: The greatest timestamp that a log keeps.
LATEST = (1 << 63) - 1


class EmbeddedProducer:
    """See `agentic.brokers.base.Producer`. Not transactional: what is written can be read at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._rows: dict[TopicPartition, Rows] = {}
        self._backlog = 0
        self._size = 0
        self._timer: asyncio.Handle | None = None
        self._turn: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self._refused: str | None = None
        #: Was it logged that writes fail?
        self._failing = False
        self._closed = False

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None:
        size = self._measure(topic, key, value, headers)
        if not 0 <= timestamp <= LATEST:
            raise BrokerError(
                f"{self._store.name}: topic {topic!r}: timestamp {timestamp}:"
                " must be milliseconds since 1970, at least 0, in 63 bits"
            )
        if size > self._store.record_limit:
            raise RecordTooLarge(
                f"{self._store.name}: topic {topic!r}: a record of {size} bytes;"
                f" at most {self._store.record_limit} are taken: send a reference to the data instead"
            )
        n = self._partitions.get(topic) or self._count(topic)
        if partition < 0:
            if key is None:
                partition = self._turn[topic] = (self._turn.get(topic, -1) + 1) % n
            else:
                partition = murmur2(key, n)
        elif partition >= n:
            raise UnknownTopic(
                f"{self._store.name}: topic {topic!r} has partitions 0 to {n - 1}, and a record is for {partition}"
            )
        tp = TopicPartition(topic, partition)
        rows = self._rows.get(tp)
        if rows is None:
            rows = self._rows[tp] = Rows()
        rows.timestamps.append(timestamp)
        rows.keys.append(key)
        rows.values.append(value)
        rows.headers.append(headers)
        rows.size += size
        self._backlog += 1
        self._size += size + OVERHEAD
        if self._timer is None:
            self._schedule()

    def _measure(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
        """Return a record's bytes; what is written must be bytes, or it could not be read again."""
        size = 0
        for what, data in (("key", key), ("value", value)):
            if data is not None:
                if not isinstance(data, bytes):
                    raise TypeError(f"topic {topic!r}: a record's {what} is a {type(data).__name__}, and must be bytes")
                size += len(data)
        if headers:
            for name, data in headers:
                if not isinstance(data, bytes):
                    raise TypeError(f"topic {topic!r}: header {name!r} is a {type(data).__name__}, and must be bytes")
                size += len(name.encode()) + len(data)
        return size

    def _count(self, topic: str) -> int:
        if self._closed:
            raise BrokerError(f"{self._store.name}: this producer is closed; a record for {topic!r} was not taken")
        with self._store.view() as view:
            self._partitions = view.topics()
        if topic not in self._partitions:
            raise UnknownTopic(
                f"{self._store.name}: no topic {topic!r}; create it first: 'agentic topics create {topic}'"
            )
        return self._partitions[topic]

    def _schedule(self) -> None:
        linger = self._store.linger
        self._timer = (
            self._loop.call_later(linger, self._try_to_write) if linger else self._loop.call_soon(self._try_to_write)
        )

    @property
    def backlog(self) -> int:
        return self._backlog

    def _write(self) -> None:
        """Write what is gathered; what can never be written is noted for `flush`.

        What a failure kept from being written, a full disk for one, stays gathered: nothing is
        lost, and the next write tries again.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        refused = None
        with self._store.change(self._size) as change:
            for tp, part in self._rows.items():
                try:
                    change.append(tp, part)
                except UnknownTopic as error:
                    refused = refused or f"{len(part)} records for {tp} were not written: {error}"
        self._rows = {}
        self._failing = False
        self._backlog = self._size = 0
        # A topic may have been made anew, with another number of partitions.
        self._partitions = {}
        self._refused = self._refused or refused

    def _try_to_write(self) -> None:
        try:
            self._write()
        except BrokerError as error:
            if not self._failing:
                self._failing = True
                logger.warning("%d records wait to be written, and will be tried again: %s", self._backlog, error)

    async def ready(self) -> None:
        if self._backlog >= WRITE_AT or self._size >= WRITE_AT_BYTES:
            self._write()
            await asyncio.sleep(0)

    async def flush(self) -> None:
        if self._rows:
            self._write()
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise DeliveryFailed(refused)

    async def commit_transaction(self, positions: Mapping[TopicPartition, Position], consumer: Consumer) -> None:
        raise BrokerError(f"{self._store.name}: this producer has no transactional id; make it with one")

    async def abort_transaction(self) -> None:
        raise BrokerError(f"{self._store.name}: this producer has no transactional id; make it with one")

    async def close(self) -> None:
        self._closed = True
        self._partitions = {}
        if self._rows:
            self._try_to_write()

    def abandon(self) -> None:
        """Stop without a goodbye: what is not written is lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        self._rows = {}


class TransactionalProducer(EmbeddedProducer):
    """Keeps a transaction's records in memory until its commit writes them, together with the positions.

    So a reader never meets an open or aborted transaction, and a crash needs no clean-up. A
    transaction must fit into memory: what bounds it is the commit interval.
    """

    def __init__(self, store: Store, transactional_id: str) -> None:
        super().__init__(store)
        self._id = transactional_id
        with store.change() as change:
            self._epoch = change.next_epoch()
            change.set_epoch(transactional_id, self._epoch)

    def open_records(self) -> dict[TopicPartition, int]:
        """Return how many records of each partition the open transaction has."""
        return {tp: len(rows) for tp, rows in self._rows.items()}

    def _schedule(self) -> None:
        """Only a commit writes."""

    async def ready(self) -> None:
        """A transaction's records wait for its commit: nothing would come of waiting here."""

    async def flush(self) -> None:
        """The commit writes; here only the right to it is looked at."""
        with self._store.view() as view:
            self._check_epoch(view.epoch(self._id))

    def _check_epoch(self, latest: int) -> None:
        # 0: the store forgot an id that was not used for long. Nobody else took it, or there were an epoch.
        if latest not in (self._epoch, 0):
            self._drop()
            raise Fenced(
                f"{self._store.name}: another producer has the transactional id {self._id!r} now;"
                " give each producer its own, or stop this one"
            )

    def _drop(self) -> dict[TopicPartition, Rows]:
        rows, self._rows = self._rows, {}
        self._backlog = self._size = 0
        self._partitions = {}
        return rows

    async def commit_transaction(self, positions: Mapping[TopicPartition, Position], consumer: Consumer) -> None:
        size = self._size
        rows = self._drop()
        assert isinstance(consumer, EmbeddedConsumer), "positions are committed where the records are"
        try:
            with self._store.change(size) as change:
                latest = change.epoch(self._id)
                self._check_epoch(latest)
                if not latest:
                    change.set_epoch(self._id, self._epoch)
                if positions:
                    consumer.record(change, positions)
                for tp, part in rows.items():
                    change.append(tp, part)
        except (NotOwner, UnknownTopic) as error:
            raise TransactionAborted(f"the transaction of {self._id!r} was undone: {error}") from error

    async def abort_transaction(self) -> None:
        self._drop()

    async def close(self) -> None:
        self._drop()
        self._closed = True
