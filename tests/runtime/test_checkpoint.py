"""Checkpoints while the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Stream
from agentic.brokers.base import TopicPartition
from agentic.brokers.memory import MemoryBroker
from agentic.errors import BrokerUnavailable, DeliveryFailed, NotOwner, TransactionAborted
from agentic.runtime.outbox import Outbox
from agentic.runtime.worker import Worker

TP = TopicPartition("in", 0)


class Bench:
    """A worker in this loop, whose agent waits for leave to complete each event."""

    def __init__(self, **settings: Any) -> None:
        self.leave = asyncio.Semaphore(0)
        self.broker = MemoryBroker("memory://")
        # Checkpoints come when the test makes them.
        self.app = App("bench", commit_interval=timedelta(hours=1), **settings)
        source = self.app.topic("in", value=int, partitions=1)
        sink = self.app.topic("out", value=int, partitions=1)

        @self.app.agent(source, to=sink)
        async def work(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                await self.leave.acquire()
                yield n

        self.worker = Worker(self.app, broker=self.broker, transactional_id="bench")

    async def __aenter__(self) -> Bench:
        await self.worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.stop()

    async def send(self, *numbers: int) -> None:
        producer = self.broker.producer()
        for n in numbers:
            producer.send("in", None, b"%d" % n, 1, None, 0)
        await producer.flush()
        await self.turns()

    async def turns(self) -> None:
        """Let everything happen that can."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def committed(self) -> int | None:
        position = (await self.broker.describe_group("bench")).positions.get(TP)
        return None if position is None else position.offset

    async def outputs(self) -> int:
        tp = TopicPartition("out", 0)
        return (await self.broker.end_offsets([tp]))[tp]


def during_flush(monkeypatch: pytest.MonkeyPatch, before: Any) -> None:
    """Have `before` awaited, once, in the middle of the next checkpoint."""
    flush = Outbox.flush
    calls = iter([before])

    async def instead(self: Outbox) -> None:
        if (call := next(calls, None)) is not None:
            await call()
        await flush(self)

    monkeypatch.setattr(Outbox, "flush", instead)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_is_finished_during_a_checkpoint_belongs_to_the_next(
    monkeypatch: pytest.MonkeyPatch, delivery: Any
) -> None:
    async def scenario() -> None:
        async with Bench(delivery=delivery) as bench:
            await bench.send(0, 1)
            bench.leave.release()
            await bench.turns()

            async def finish_another() -> None:
                bench.leave.release()
                await bench.turns()

            during_flush(monkeypatch, finish_another)
            await bench.worker.checkpoint()
            assert await bench.committed() == 1
            assignment = bench.worker.assignment
            assert assignment is not None
            assert assignment.dirty.is_set(), "or nobody would ever commit the second"
            await bench.worker.checkpoint()
            assert await bench.committed() == 2
            assert await bench.outputs() == 2

    asyncio.run(scenario())


def failing(error: Exception) -> Any:
    async def fail() -> None:
        raise error

    return fail


def test_after_an_undone_transaction_all_is_read_again_and_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with Bench(delivery="exactly_once") as bench:
            await bench.send(0, 1)
            bench.leave.release()
            await bench.turns()
            during_flush(monkeypatch, failing(TransactionAborted("by the test")))
            await bench.worker.checkpoint()
            assert await bench.committed() is None
            bench.leave.release()
            bench.leave.release()
            await bench.turns()
            await bench.worker.checkpoint()
            assert (await bench.committed(), await bench.outputs()) == (2, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), NotOwner("moved on")])
def test_a_commit_that_does_not_go_through_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            await bench.send(0)
            bench.leave.release()
            await bench.turns()
            during_flush(monkeypatch, failing(error))
            await bench.worker.checkpoint()
            assert await bench.committed() is None
            assignment = bench.worker.assignment
            assert assignment is not None and assignment.dirty.is_set()
            await bench.worker.checkpoint()
            assert (await bench.committed(), await bench.outputs()) == (1, 1)

    asyncio.run(scenario())


def test_an_output_that_is_refused_for_good_stops_the_worker_with_nothing_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            await bench.send(0)
            bench.leave.release()
            await bench.turns()
            during_flush(monkeypatch, failing(DeliveryFailed("by the test")))
            with pytest.raises(DeliveryFailed):
                await bench.worker.checkpoint()
        # Not even the last commit of the stop that follows goes past the missing output.
        assert await bench.committed() is None
        assert isinstance(bench.worker.failure, DeliveryFailed)

    asyncio.run(scenario())
