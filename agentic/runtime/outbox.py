"""What a worker sends: the effects of completed events, and what tasks and commands send beside them.

The rule that it keeps: what is sent while a checkpoint is under way belongs to the next one.
A checkpoint *holds* the outbox; effects that are applied meanwhile wait in order and follow
on release, or are discarded with the events they belong to when the checkpoint is undone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from agentic.brokers.base import Consumer, Headers, Position, Producer, TopicPartition
from agentic.errors import BrokerUnavailable
from agentic.metrics import Metrics
from agentic.stream import HeadersLike
from agentic.topic import Outgoing, Topic

log = logging.getLogger("agentic.worker")

#: Effects that may wait while a checkpoint is under way; a checkpoint takes long when the broker is away.
HELD_LIMIT = 10_000
#: Records of an open transaction at which its checkpoint does not wait for the interval any more:
#: a driver may have to keep them in memory until then.
TRANSACTION_LIMIT = 50_000
#: Seconds between two attempts to reach a broker that is away; the driver's own back-off comes on top.
AGAIN = 1.0

#: Takes the arguments of `Producer.send`.
Send = Callable[..., None]


def wall_ms() -> int:
    """The wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Outbox:
    """One worker's producer for effects.

    Attributes:
        send: takes an effect over, as `Producer.send` does. The hot path calls it directly; it is
            the producer's own method, or the holding one while a checkpoint is under way.
    """

    def __init__(self, producer: Producer, *, transactional: bool) -> None:
        self.producer = producer
        self.transactional = transactional
        self._held: list[Outgoing] = []
        self._released = asyncio.Event()
        self._away = False
        #: Set from an undone checkpoint until its events are read again.
        self.spoiled = False
        self.send: Send = producer.send

    def hold(self) -> None:
        """From now on, keep what is sent."""
        self._released.clear()
        self.send = self._hold

    def _hold(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None:
        self._held.append((topic, key, value, timestamp, headers, partition))

    def release(self) -> None:
        """Send what was kept, and go on."""
        if self.spoiled:
            return
        self.send = self.producer.send
        self._released.set()
        held, self._held = self._held, []
        for effect in held:
            self.producer.send(*effect)

    def spoil(self) -> None:
        """The checkpoint was undone: forget what was kept and take nothing until `restart`.

        The ledgers still count the undone events as finished. Until they are read again, nothing
        may be sent or committed on their word.
        """
        self.spoiled = True
        self._held = []
        self.send = self._drop
        self._released.set()

    def _drop(self, *effect: object) -> None:
        """The event that this belongs to is read again."""

    def restart(self) -> None:
        """The ledgers begin anew: go on."""
        self.spoiled = False
        self._held = []
        self.send = self.producer.send
        self._released.set()

    async def ready(self) -> None:
        """Return when there is room for the effects of another batch, however long the broker is away."""
        while len(self._held) > HELD_LIMIT:
            await self._released.wait()
        while True:
            try:
                await self.producer.ready()
            except BrokerUnavailable as error:
                if not self._away:
                    self._away = True
                    log.warning("can't send, tried again until it succeeds: %s", error)
                await asyncio.sleep(AGAIN)
            else:
                break
        if self._away:
            self._away = False
            log.info("sends again")

    @property
    def full(self) -> bool:
        """Has the open transaction grown so large that it should be committed now?"""
        return self.transactional and self.producer.backlog >= TRANSACTION_LIMIT

    async def flush(self) -> None:
        """Return when all that was sent before `hold` is written; under exactly once in the open transaction.

        Raises:
            DeliveryFailed, BrokerUnavailable, Fenced: see `Producer`.
        """
        await self.producer.flush()
        if not self.transactional:
            # It is safe: what is sent from here on may go out while the rest of the checkpoint is done.
            self.release()

    async def commit(self, positions: Mapping[TopicPartition, Position], consumer: Consumer) -> None:
        """Commit positions; under exactly once with all that was sent before `hold`.

        Raises:
            TransactionAborted: none of it is (exactly once).
            NotOwner: the outputs are out, the positions are not committed (at least once).
            BrokerUnavailable, Fenced: see `Producer`.
        """
        if self.transactional:
            await self.producer.commit_transaction(positions, consumer)
            self.release()
        elif positions:
            await consumer.commit(positions)


class AppOutlet:
    """What `Topic.send` uses outside of agents: returns when the broker has the record.

    Senders that wait at the same time share one flush.
    """

    def __init__(self, make_producer: Callable[[], Producer], metrics: Metrics, now: Callable[[], int]) -> None:
        self._make_producer = make_producer
        self._metrics = metrics
        self._now = now
        self._producer: Producer | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def send(
        self,
        topic: Topic[Any, Any],
        key: Any,
        value: Any,
        headers: HeadersLike | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> None:
        when = self._now() if timestamp is None else timestamp
        record = topic.outgoing(topic.encode_key(key), value, headers, when, partition)
        if self._producer is None:
            self._producer = self._make_producer()
        await self._producer.ready()
        self._producer.send(*record)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(self._producer))
        await done
        self._metrics.counter("events_out", agent="").add()

    async def _flush(self, producer: Producer) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            error: BaseException | None = None
            try:
                await producer.flush()
            except asyncio.CancelledError:
                for done in waiting:
                    done.cancel()
                raise
            except Exception as failure:  # noqa: BLE001 - it is handed to those who wait for it
                error = failure
            for done in waiting:
                if done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    async def close(self) -> None:
        """Finish what is on its way, then close the producer."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if self._producer is not None:
            await self._producer.close()
