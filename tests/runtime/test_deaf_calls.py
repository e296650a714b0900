"""A partition moves on while calls are under way that ignore their cancellation: what they do later counts nowhere."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agentic import App, BlockingStream, Stream
from agentic.brokers.base import TopicPartition
from agentic.brokers.memory import MemoryBroker
from agentic.runtime import assignment, task
from agentic.runtime.worker import Worker

PARTITIONS = 4
COUNT = 40
PATIENCE = 30.0
KINDS: dict[str, dict[str, Any]] = {
    "one-at-a-time": {},
    "many": {"concurrency": 20},
    "many-in-order": {"concurrency": 20, "emit": "offset"},
    "in-threads": {"concurrency": 20, "threads": True},
}


def deaf(delivery: Any, options: dict[str, Any], until: threading.Event, begun: list[int], returned: list[int]) -> App:
    """An app that passes numbers on as soon as the time has come, whoever cancels it before."""
    app = App("deaf", delivery=delivery, topic_partitions=PARTITIONS)
    source, sink = app.topic("in", value=int), app.topic("out", value=int)

    async def awaiting(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            begun.append(n)
            while not until.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue
            returned.append(n)
            yield n

    def blocking(stream: BlockingStream[int]) -> Iterator[int]:
        for n in stream:
            begun.append(n)
            until.wait(PATIENCE)
            returned.append(n)
            yield n

    app.agent(source, to=sink, **options)(blocking if "threads" in options else awaiting)
    return app


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not done():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.01)


def owned(worker: Worker) -> set[TopicPartition]:
    return set(worker.assignment.sources) if worker.assignment else set()


async def outputs(broker: MemoryBroker) -> Counter[int]:
    tps = [TopicPartition("out", n) for n in range(PARTITIONS)]
    ends = await broker.end_offsets(tps, with_open=True)
    reached = dict.fromkeys(tps, 0)
    reader = broker.reader(reached)
    seen: Counter[int] = Counter()
    while any(reached[tp] < end for tp, end in ends.items()):
        for batch in await reader.poll(1):
            reached[batch.tp] = batch.position
            seen.update(int(value or b"") for value in batch.values)
    await reader.close()
    return seen


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_returns_after_its_partition_has_moved_on_has_no_effect_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, kind: str, delivery: str
) -> None:
    monkeypatch.setattr(assignment, "REVOKE_TIMEOUT", 0.05)
    monkeypatch.setattr(task, "CANCEL_TIMEOUT", 0.05)

    async def scenario() -> None:
        broker = MemoryBroker()
        now, at_once = threading.Event(), threading.Event()
        at_once.set()
        begun: list[int] = []
        returned: list[int] = []
        first = Worker(deaf(delivery, KINDS[kind], now, begun, returned), broker=broker, transactional_id="first")
        await first.start()
        await until(lambda: len(owned(first)) == PARTITIONS)
        producer = broker.producer()
        for n in range(COUNT):
            producer.send("in", None, b"%d" % n, 1, None, n % PARTITIONS)
        await producer.flush()
        await until(lambda: len(begun) == (COUNT if KINDS[kind] else PARTITIONS))
        second = Worker(deaf(delivery, KINDS[kind], at_once, [], []), broker=broker, transactional_id="second")
        await second.start()
        await until(lambda: len(owned(first)) == len(owned(second)) == PARTITIONS // 2)
        await until(lambda: second.assignment is not None and second.app.metrics.total("events_out") == COUNT / 2)
        now.set()
        await until(lambda: first.app.metrics.total("events_out") == COUNT / 2 and len(returned) == len(begun))
        await first.stop()
        await second.stop()
        assert first.failure is None
        assert await outputs(broker) == Counter(range(COUNT))

    asyncio.run(scenario())
