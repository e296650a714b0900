"""Appending records: one call of librdkafka a record, and one shared callback for what fails.

librdkafka's queue is bounded and refuses when it is full. A caller must not see that, so what
is refused waits here, in order, and `ready` is where the caller waits for room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from agentic.brokers.base import Consumer, Headers, Position, TopicPartition
from agentic.brokers.kafka import config
from agentic.brokers.kafka.config import Config
from agentic.brokers.kafka.errors import FENCED, FORBIDDEN, TOO_LARGE, UNAVAILABLE, UNKNOWN_TOPIC, cause, translate
from agentic.brokers.kafka.offloop import off_loop
from agentic.errors import BrokerError, BrokerUnavailable, DeliveryFailed

#: `ready` waits while more records than this are on their way. At full speed some 20,000 are;
#: each costs about 200 bytes beside its own.
READY_BELOW = 25_000
#: Seconds between two looks while `ready` waits.
LOOK = 0.002
#: Seconds a first send may wait for a connection.
CONNECT = 2.0
#: Seconds of one blocking flush: so long a closing producer may go on.
SLICE = 0.1
#: Seconds of a whole flush, after which its caller is told that the broker is away; nothing is lost by that.
FLUSH = 30.0
#: Seconds a close waits for what is under way.
CLOSE = 5.0

#: Reports on what we have thrown away ourselves, at an abort or a close; they may come late.
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

Record = tuple[str, bytes | None, bytes | None, int, None, None, int, Any]


class KafkaProducer:
    """See `agentic.brokers.base.Producer`.

    A timestamp of 0 is sent as 1: librdkafka takes 0 for "now".
    """

    def __init__(self, settings: Config, address: str, error_cb: Any) -> None:
        self._address = address
        self._settings = {**settings, "error_cb": error_cb, "on_delivery": self._on_delivery}
        self._loop = asyncio.get_running_loop()
        #: Records that librdkafka has not taken yet: it is full, or not connected.
        self._overflow: deque[Record] = deque()
        #: While it is set, what is sent queues behind the overflow, so that order is kept.
        self._queueing = True
        self._cold = True
        self._connecting: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._refused: BrokerError | None = None
        self._closed = False
        self._producer: Any = None
        self._make()

    def _make(self) -> None:
        try:
            self._producer = ck.Producer(self._settings)
        except (KafkaException, ValueError, TypeError) as problem:
            raise config.refused(problem, self._address) from problem
        self._produce = self._producer.produce

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None:
        if self._queueing:
            self._later((topic, value, key, partition, None, None, timestamp or 1, list(headers) if headers else None))
            return
        try:
            if headers:
                self._produce(topic, value, key, partition, None, None, timestamp or 1, list(headers))
            else:
                self._produce(topic, value, key, partition, None, None, timestamp or 1)
        except BufferError:
            self._queueing = True
            self._later((topic, value, key, partition, None, None, timestamp or 1, list(headers) if headers else None))
        except KafkaException as problem:
            if (refused := self._not_taken(problem, topic, partition)) is not None:
                raise refused from problem

    def _not_taken(self, problem: KafkaException, topic: str, partition: int) -> BrokerError | None:
        """Return the error for a record that librdkafka did not take, None if nothing is to be said of it."""
        return refusal(cause(problem), topic, partition)

    def _later(self, record: Record) -> None:
        self._overflow.append(record)
        if not self._cold:
            self._drain()
        if self._overflow and (self._worker is None or self._worker.done()):
            self._worker = self._loop.create_task(self._work_off())

    async def _work_off(self) -> None:
        """Empty the overflow, so that what is sent goes out even when nobody waits for it."""
        try:
            await self._connected()
            while self._overflow:
                self._producer.poll(0)
                self._drain()
                if self._overflow:
                    await asyncio.sleep(LOOK)
        except BrokerError as problem:
            self._refused = self._refused or problem

    @property
    def backlog(self) -> int:
        return len(self._producer) + len(self._overflow)

    async def ready(self) -> None:
        if self._cold:
            await self._connected()
        self._producer.poll(0)
        while self._overflow or len(self._producer) > READY_BELOW:
            self._drain()
            if not self._overflow and len(self._producer) <= READY_BELOW:
                return
            await asyncio.sleep(LOOK)
            self._producer.poll(0)

    async def _connected(self) -> None:
        """Return when the producer may send; one connects for all who wait."""
        if not self._cold:
            return
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._connect())
        await asyncio.shield(self._connecting)
        self._drain()

    async def _connect(self) -> None:
        """Wait until a broker answers, or CONNECT is over: what is produced sooner takes half a second longer."""
        with suppress(KafkaException):
            await off_loop(lambda: self._producer.list_topics(timeout=CONNECT))
        self._cold = False

    def _drain(self) -> None:
        """Give librdkafka what waits here, as much as it takes."""
        overflow = self._overflow
        while overflow:
            record = overflow[0]
            try:
                self._produce(*record)
            except BufferError:
                return
            except KafkaException as problem:
                self._refused = self._refused or self._not_taken(problem, record[0], record[3])
            overflow.popleft()
        self._queueing = False

    async def flush(self) -> None:
        await self._flush()
        self._raise_refused()

    async def _flush(self) -> None:
        until = self._loop.time() + FLUSH
        await self._connected()
        while self._overflow:
            self._producer.poll(0)
            self._drain()
            if self._overflow:
                self._look_at_clock(until)
                await asyncio.sleep(LOOK)
        while len(self._producer):
            self._look_at_clock(until)
            try:
                await off_loop(self._producer.flush, SLICE)
            except KafkaException as problem:
                self._broken(cause(problem))
                return
        self._producer.poll(0)

    def _look_at_clock(self, until: float) -> None:
        if self._loop.time() > until:
            raise BrokerUnavailable(
                f"{self._address}: {self.backlog} records are not acknowledged after {FLUSH:g} s; they go on waiting:"
                " is the broker up, and has each topic a leader?"
            )

    def _broken(self, error: KafkaError) -> None:
        """Take a fatal error of the producer."""
        raise self._refused or translate(error, f"{self._address}: producer")

    def _raise_refused(self) -> None:
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused

    def _on_delivery(self, error: Any, message: Any) -> None:
        # May run in the thread of a flush. It must let nothing out: see member.py.
        if error is None or self._refused is not None or error.code() in PURGED:
            return
        self._refused = refusal(error, message.topic(), message.partition())

    async def commit_transaction(self, positions: Mapping[TopicPartition, Position], consumer: Consumer) -> None:
        raise BrokerError("this producer has no transactional id: use delivery='exactly_once', or flush and commit")

    async def abort_transaction(self) -> None:
        raise BrokerError("this producer has no transactional id: use delivery='exactly_once'")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(TimeoutError, BrokerError):
            await asyncio.wait_for(self._flush(), CLOSE)
        self._overflow.clear()
        if self._worker is not None:
            self._worker.cancel()
        self._producer.purge()
        # With a broker away its close can take long; it goes on in a thread of its own.
        with suppress(TimeoutError):
            await asyncio.wait_for(off_loop(self._producer.close), CLOSE)


def refusal(error: KafkaError, topic: str, partition: int | None) -> BrokerError:
    """Return the error for a record that was not written."""
    where = f"topic {topic!r}" + (f", partition {partition}" if partition is not None and partition >= 0 else "")
    code = error.code()
    if code in TOO_LARGE | UNKNOWN_TOPIC | FORBIDDEN | FENCED:
        return translate(error, f"send to {where}")
    kind: type[BrokerError] = BrokerUnavailable if code in UNAVAILABLE else DeliveryFailed
    return kind(
        f"send to {where}: not written: {error.str()} ({error.name()}); what was not acknowledged is to be sent again"
    )
