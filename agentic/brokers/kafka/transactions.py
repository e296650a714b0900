"""Transactions: records and positions become visible together, or neither does.

What to do with an error is librdkafka's to say, in this order: *fatal* ends the producer,
*requires abort* ends the transaction, *retriable* asks for the same call again (never for an
abort after a commit that timed out: it may have been done). A fatal commit answers later
calls with retriable conflicts for ever, so fatal is looked at first.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from agentic.brokers.base import Consumer, Position, TopicPartition
from agentic.brokers.kafka.config import Config
from agentic.brokers.kafka.consumer import KafkaConsumer, check_metadata
from agentic.brokers.kafka.errors import FENCED, cause
from agentic.brokers.kafka.member import names_of
from agentic.brokers.kafka.offloop import off_loop
from agentic.brokers.kafka.producer import CLOSE, KafkaProducer
from agentic.errors import BrokerError, BrokerUnavailable, Fenced, TransactionAborted

#: Seconds of one blocking transactional call: afterwards it is called again.
CALL = 5.0
#: Seconds that a call may take beyond its own timeout before its producer is given up. librdkafka 2.16
#: sends positions with no regard to the timeout, for ever, when the group's coordinator was out of the
#: metadata for a moment, as one that restarts is (confluentinc/librdkafka#5511).
STUCK = 3.0
#: Seconds between two tries of the same call.
AGAIN = 0.05


class _Abort(Exception):
    """The transaction can only be aborted."""


class _Dead(Exception):
    """The producer can do nothing more."""


class TransactionalProducer(KafkaProducer):
    """A `KafkaProducer` in transactions.

    The producer's id is fetched at the first `ready`, `flush` or commit, which fences any former
    holder of the transactional id; what is sent before waits.
    """

    def __init__(self, settings: Config, address: str, error_cb: Any) -> None:
        self._id = settings["transactional.id"]
        self._patience = int(settings["transaction.timeout.ms"]) / 1_000
        self._open = False
        self._fenced = False
        self._fatal: KafkaError | None = None
        #: The call from which this producer has not come back, be it that nobody waits for it any more.
        self._stuck: asyncio.Future[object] | None = None
        #: Why the open transaction can only be undone; what is sent meanwhile belongs to it and is let go.
        self._doomed: _Abort | _Dead | None = None
        #: When the broker was last known to keep a transaction of ours, by time.monotonic().
        self._alive_at = time.monotonic()
        self._about = f"transactional id {self._id!r}"
        super().__init__(settings, address, error_cb)

    def _drain(self) -> None:
        if self._overflow and not self._open and not self._cold:
            self._begin()
        super()._drain()
        self._queueing |= not self._open

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as problem:
            error = cause(problem)
            if error.code() in FENCED and not self._overslept():
                raise self._error(error, "begin") from problem
            self._doomed = _Dead(error.str())
        self._open = True

    def _overslept(self) -> bool:
        """Have we been away for longer than a transaction lives?

        Then the broker has undone it and raised our epoch, which looks as if another had our id.
        """
        return time.monotonic() - self._alive_at > self._patience

    def _not_taken(self, problem: KafkaException, topic: str, partition: int) -> BrokerError | None:
        error = cause(problem)
        if error.code() in FENCED and not self._overslept():
            return self._error(error, "send")
        if error.code() == KafkaError._STATE or error.code() in FENCED:
            # The transaction has failed already; its commit will say so, and its events are read again.
            self._doomed = _Dead(error.str())
            return None
        return super()._not_taken(problem, topic, partition)

    async def _connect(self) -> None:
        """Get a producer id, which fences any former holder of ours."""
        try:
            await self._insist(self._producer.init_transactions, "init", 2 * self._patience)
        except (_Abort, _Dead) as problem:
            raise BrokerError(f"{self._about}: init: {problem}; check the ACLs of this user") from problem
        except BrokerUnavailable:
            if self._stuck is not None:
                await self._replace()
            raise
        self._cold = False
        self._alive_at = time.monotonic()

    async def ready(self) -> None:
        await self._prepare()
        await super().ready()

    async def flush(self) -> None:
        # What was refused is told by the commit, which knows what is to become of the transaction.
        await self._flush()

    async def _flush(self) -> None:
        await self._prepare()
        await super()._flush()

    def _broken(self, error: KafkaError) -> None:
        self._fatal = error

    async def _prepare(self) -> None:
        """Have a producer id, and a transaction if something waits for one."""
        if self._fenced:
            raise Fenced(f"{self._about}: another producer has it; this one is dead: restart the worker")
        await self._connected()

    async def _insist(self, call: Callable[..., object], name: str, patience: float, *args: object) -> None:
        """Call until it is done, as librdkafka asks for it.

        Raises:
            _Abort, _Dead, Fenced, BrokerUnavailable: see the module's docstring.
        """
        until = time.monotonic() + patience
        while True:
            try:
                await self._once(call, name, *args)
                return
            except RuntimeError as problem:
                # The client was replaced or closed meanwhile; whoever did that settles what is open.
                raise BrokerUnavailable(f"{self._about}: {name}: {problem}") from problem
            except KafkaException as problem:
                error = cause(problem)
                if error.fatal() or error.code() in FENCED:
                    if error.code() in FENCED and not error.txn_requires_abort() and not self._overslept():
                        raise self._error(error, name) from problem
                    if error.fatal():
                        raise _Dead(error.str()) from problem
                if error.txn_requires_abort():
                    raise _Abort(error.str()) from problem
                if not error.retriable():
                    raise _Dead(error.str()) from problem
                if time.monotonic() > until:
                    raise BrokerUnavailable(
                        f"{self._about}: {name}: not done within {patience:.0f} s: {error.str()};"
                        " whether it was, the committed positions tell"
                    ) from problem
                await asyncio.sleep(AGAIN)

    async def _once(self, call: Callable[..., object], name: str, *args: object) -> None:
        """Call off the loop; a call that outlives its own timeout is left behind."""
        self._stuck = running = asyncio.ensure_future(off_loop(call, *args, CALL))
        done, _ = await asyncio.wait([running], timeout=CALL + STUCK)
        if not done:
            raise BrokerUnavailable(
                f"{self._about}: {name}: the client did not come back within {CALL + STUCK:g} s; it is replaced"
            )
        self._stuck = None
        running.result()

    def _error(self, error: KafkaError, name: str) -> BrokerError:
        if error.code() in FENCED:
            self._fenced = True
            return Fenced(
                f"{self._about}: {name}: another producer has it ({error.str()});"
                " give each worker an id of its own, or stop the other one"
            )
        return BrokerError(f"{self._about}: {name}: {error.str()} ({error.name()})")

    async def commit_transaction(self, positions: Mapping[TopicPartition, Position], consumer: Consumer) -> None:
        if not self._open and not self._overflow and not positions:
            return
        check_metadata(positions)
        await self._prepare()
        if not self._open:
            self._begin()
        if self._doomed is not None:
            await self._end(self._doomed, "send")
        # What can never be written must not be tried again with the next transaction: it is raised as it is.
        await self._flush()
        if self._refused is not None and not isinstance(self._refused, BrokerUnavailable | Fenced):
            refused = self._refused
            # A refused record leaves a gap in the sequence numbers: librdkafka would fail the next transaction on it.
            await self._renew()
            raise refused
        metadata = None
        if positions:
            assert isinstance(consumer, KafkaConsumer)
            # The broker asks whether we are a member, and not whether the partition is ours.
            if foreign := consumer.foreign(positions):
                await self.abort_transaction()
                raise TransactionAborted(f"{self._about}: {names_of(foreign)}: not ours any more; all was undone")
            try:
                metadata = await consumer.group_metadata()
            except BrokerError as problem:
                await self.abort_transaction()
                raise TransactionAborted(f"{self._about}: {problem}") from problem
        offsets = [ck.TopicPartition(tp.topic, tp.partition, at.offset, at.metadata) for tp, at in positions.items()]
        try:
            await self._commit(offsets, metadata)
        except (_Abort, _Dead) as problem:
            await self._end(problem, "commit")
        except BrokerUnavailable as problem:
            # Nobody knows; the init of the next producer settles it one way or the other.
            await self._replace()
            raise TransactionAborted(str(problem)) from problem
        finally:
            self._closed_transaction()

    async def _commit(self, offsets: list[Any], metadata: Any) -> None:
        if offsets:
            send_offsets = self._producer.send_offsets_to_transaction
            await self._insist(send_offsets, "positions", self._patience, offsets, metadata)
        await self._insist(self._producer.commit_transaction, "commit", self._patience)

    def _closed_transaction(self) -> None:
        self._open = False
        self._queueing = True  # the next record begins the next transaction
        self._refused = None
        self._doomed = None
        self._alive_at = time.monotonic()

    async def _end(self, problem: Exception, name: str) -> NoReturn:
        """Undo the transaction, with its producer if need be."""
        if self._fatal is not None and self._fatal.code() in FENCED and not self._overslept():
            raise self._error(self._fatal, name) from problem
        if isinstance(problem, _Dead):
            await self._renew()
        else:
            await self.abort_transaction()
        raise TransactionAborted(f"{self._about}: {name}: undone: {problem}") from problem

    async def abort_transaction(self) -> None:
        self._overflow.clear()
        if not self._open:
            await self._connected()
            return
        try:
            await self._insist(self._producer.abort_transaction, "abort", self._patience)
            self._producer.poll(0)
        except (_Abort, _Dead):
            await self._renew()
        except BrokerUnavailable:
            # librdkafka would take nothing but this very call again; a new producer's init does the same.
            await self._replace()
            raise
        finally:
            self._closed_transaction()

    async def _renew(self) -> None:
        """Replace a producer that can do nothing more, and have what it left open undone."""
        await self._replace()
        await self._prepare()

    async def _replace(self) -> None:
        """Make a new producer; its init, before it does anything else, settles what the old one left open."""
        old = self._producer
        self._overflow.clear()
        self._cold, self._fatal = True, None
        self._closed_transaction()
        self._make()
        await self._part_with(old)

    async def _part_with(self, producer: Any) -> None:
        """End a producer; one that is stuck when it has come back, since its close could wait as long."""
        if self._stuck is None:
            await off_loop(_discard, producer)
        else:
            self._stuck.add_done_callback(lambda call: _leave(call, producer))
            self._stuck = None

    async def close(self) -> None:
        if not self._closed and self._open and not self._fenced:
            try:
                await self.abort_transaction()
            except BrokerError:
                self._open = False  # the broker undoes it when transaction.timeout.ms is over
        if self._worker is not None:
            self._worker.cancel()
        if self._connecting is not None:
            # One that is under way fails with the client that it connects; nobody waits for it any more.
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not self._closed:
            self._closed = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._part_with(self._producer), CLOSE)


def _leave(call: asyncio.Future[object], producer: Any) -> None:
    """End a producer that has come back at last; how its call ended matters to nobody any more."""
    if call.cancelled():
        return  # the loop ends, and the call may go on
    call.exception()
    threading.Thread(target=_discard, args=(producer,), name="agentic-kafka-discard", daemon=True).start()


def _discard(producer: Any) -> None:
    """End a producer and drop what it still holds; that its transaction can't be aborted is known."""
    with warnings.catch_warnings(), suppress(KafkaException):
        warnings.simplefilter("ignore", RuntimeWarning)
        producer.purge()
        producer.close()
