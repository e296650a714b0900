"""What the metrics say of tables: how many rows there are, and how far those are that are being restored."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentic import App, Stream
from agentic.brokers.base import Batch, Broker, TopicPartition
from agentic.brokers.embedded.feed import EmbeddedReader
from agentic.brokers.memory import MemoryBroker
from agentic.metrics import Counter, Gauge, Metrics
from agentic.runtime import changelogs, topics
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.table import Table
from agentic.testing import TestDriver
from agentic.topic import Topic

PATIENCE = 30.0


def counting(**settings: Any) -> tuple[App, Topic[str, str], Table[str, int]]:
    app = App(f"counting-{uuid.uuid4().hex}", topic_partitions=2, **settings)
    words = app.topic("words", key=str, value=str)
    counts = app.table("counts", key=str, value=int, default=int)

    @app.agent(words)
    async def count(stream: Stream[str]) -> None:
        async for _ in stream:
            counts[stream.event.key] += 1

    return app, words, counts


def numbers(metrics: Metrics, name: str) -> dict[tuple[str, int], float | None]:
    """The numbers of this name, by table and partition; partition -1 where there is none."""
    return {
        (dict(metric.labels)["table"], int(dict(metric.labels).get("partition", -1))): metric.value
        for metric in metrics
        if metric.name == name and isinstance(metric, Gauge | Counter)
    }


class Tap:
    """Lets readers have a record at a time, when it is opened for it."""

    def __init__(self) -> None:
        self.given: dict[TopicPartition, int] = {}
        self._waiting: dict[TopicPartition, list[Batch]] = {}
        self._moved = asyncio.Event()

    def give(self, topic: str, partition: int, count: int) -> None:
        tp = TopicPartition(topic, partition)
        self.given[tp] = self.given.get(tp, 0) + count
        self._moved.set()

    async def poll(self, poll: Callable[[], Any]) -> list[Batch]:
        for batch in await poll():
            self._waiting.setdefault(batch.tp, []).append(batch)
        while True:
            out = [one for tp in self._waiting for one in self._some(tp)]
            if out:
                return out
            self._moved.clear()
            await self._moved.wait()

    def _some(self, tp: TopicPartition) -> list[Batch]:
        out = []
        for i, batch in enumerate(self._waiting[tp]):
            n = min(self.given.get(tp, 0), len(batch))
            if n:
                self.given[tp] -= n
                out.append(part(batch, slice(n)))
                self._waiting[tp][i] = part(batch, slice(n, None))
        return out


def part(batch: Batch, some: slice) -> Batch:
    """Return some records of a batch; the reader then stands behind the last."""
    offsets = batch.offsets[some]
    return Batch(
        batch.tp,
        offsets,
        batch.timestamps[some],
        batch.keys[some],
        batch.values[some],
        batch.headers[some],
        offsets[-1] + 1 if offsets else batch.position,
        batch.end,
    )


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Tap:
    """What readers outside of groups read comes through it."""
    taps: list[Tap] = []
    poll = EmbeddedReader.poll

    async def tapped(self: EmbeddedReader, timeout: float) -> list[Batch]:
        return await taps[0].poll(lambda: poll(self, 0.01))

    monkeypatch.setattr(EmbeddedReader, "poll", tapped)
    taps.append(Tap())
    return taps[0]


@asynccontextmanager
async def log(app: App) -> AsyncIterator[Broker]:
    """A log with the app's topics, as long as it lasts."""
    broker = MemoryBroker(f"memory://{app.name}", {})
    await broker.open(1)
    counts = await topics.ensure(app, broker)
    await changelogs.ensure(app.processors(), counts, broker)
    yield broker


async def fill(broker: Broker, topic: str, *partitions: int) -> None:
    """Write so many records to each partition of a topic."""
    producer = broker.producer()
    for partition, count in enumerate(partitions):
        for n in range(count):
            producer.send(topic, b"%d" % n, b"1", n, partition=partition)
    await producer.flush()
    await producer.close()


def worker_of(app: App) -> Worker:
    return Worker(app, broker=MemoryBroker(f"memory://{app.name}", {}), stores=MemoryStores())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what metrics say has no event
            await asyncio.sleep(0.001)


def test_a_restoration_is_told_partition_by_partition_until_the_table_is_complete(tap: Tap) -> None:
    app, *_ = counting()

    async def scenario() -> None:
        async with log(app) as broker:
            await fill(broker, f"{app.name}-counts-changelog", 6, 4)
            worker = worker_of(app)
            await worker.start()

            def left() -> dict[tuple[str, int], float | None]:
                return numbers(app.metrics, "restore_left")

            await until(lambda: left() == {("counts", 0): 6, ("counts", 1): 4})
            assert numbers(app.metrics, "restore_total") == left()
            tap.give(f"{app.name}-counts-changelog", 0, 5)
            await until(lambda: left() == {("counts", 0): 1, ("counts", 1): 4})
            tap.give(f"{app.name}-counts-changelog", 0, 1)
            await until(lambda: left() == {("counts", 0): 0, ("counts", 1): 4})
            assert numbers(app.metrics, "restore_total") == {("counts", 0): 6, ("counts", 1): 4}
            assert numbers(app.metrics, "restored") == {("counts", -1): 6}
            tap.give(f"{app.name}-counts-changelog", 1, 4)
            await until(lambda: left() == {})
            assert numbers(app.metrics, "restore_total") == {}
            assert numbers(app.metrics, "restored") == {("counts", -1): 10}
            await until(lambda: numbers(app.metrics, "table_rows") == {("counts", 0): 6, ("counts", 1): 4})
            await worker.stop()
            assert worker.failure is None
            assert numbers(app.metrics, "table_rows") == {}

    asyncio.run(scenario())


def test_a_worker_that_stops_in_the_middle_of_it_says_no_more_of_it(tap: Tap) -> None:
    app, *_ = counting()

    async def scenario() -> None:
        async with log(app) as broker:
            await fill(broker, f"{app.name}-counts-changelog", 6, 4)
            worker = worker_of(app)
            await worker.start()
            await until(lambda: numbers(app.metrics, "restore_left") != {})
            await worker.stop()
            assert worker.failure is None
            assert numbers(app.metrics, "restore_left") == numbers(app.metrics, "restore_total") == {}

    asyncio.run(scenario())


def test_the_loading_of_global_tables_is_told_to_reporters_that_run_by_then(tap: Tap) -> None:
    app, *_ = counting()
    rates = app.topic("rates", key=str, value=int)
    table = app.global_table("rates", rates)
    seen: list[dict[tuple[str, int], float | None]] = []

    async def look(app: App) -> None:
        while True:
            left = numbers(app.metrics, "restore_left")
            if left and (not seen or left != seen[-1]):
                seen.append(left)
            await asyncio.sleep(0.001)

    async def scenario() -> None:
        async with log(app) as broker:
            await fill(broker, "rates", 3, 0)
            worker = Worker(
                app, broker=MemoryBroker(f"memory://{app.name}", {}), stores=MemoryStores(), reporters=[look]
            )
            starting = asyncio.ensure_future(worker.start())
            await until(lambda: seen == [{("rates", 0): 3, ("rates", 1): 0}])
            assert numbers(app.metrics, "restore_total") == {("rates", 0): 3, ("rates", 1): 0}
            tap.give("rates", 0, 2)
            await until(lambda: seen[1:] == [{("rates", 0): 1, ("rates", 1): 0}])
            assert not starting.done()
            tap.give("rates", 0, 1)
            await starting
            assert len(table) == 3
            assert numbers(app.metrics, "restore_left") == numbers(app.metrics, "restore_total") == {}
            assert numbers(app.metrics, "restored") == {("rates", -1): 3}
            await fill(broker, "rates", 0, 5)
            tap.give("rates", 1, 5)
            await until(lambda: len(table) == 5)
            assert numbers(app.metrics, "restore_left") == {}
            assert numbers(app.metrics, "restored") == {("rates", -1): 3}
            await worker.stop()
            assert worker.failure is None

    asyncio.run(scenario())


def test_rows_are_counted_as_of_the_last_checkpoint() -> None:
    app, words, _ = counting()
    with TestDriver(app) as driver:
        assert numbers(app.metrics, "table_rows") == {("counts", 0): 0, ("counts", 1): 0}
        for key in "abcdefgh":
            driver.send(words, "x", key=key)
            driver.send(words, "y", key=key)
        rows = numbers(app.metrics, "table_rows")
        assert set(rows) == {("counts", 0), ("counts", 1)} and app.metrics.total("table_rows", table="counts") == 8
        driver.crash()
        assert numbers(app.metrics, "table_rows") == rows


def test_gauges_that_are_kept_replace_those_before_them() -> None:
    metrics = Metrics()
    other = metrics.gauge("rows")
    metrics.keep("left", ("table", "partition"), {("a", 0): 1, ("b", 0): 2})
    kept = metrics.gauge("left", table="a", partition=0)
    metrics.keep("left", ("table", "partition"), {("a", 0): 3, ("c", 1): 4})
    assert numbers(metrics, "left") == {("a", 0): 3, ("c", 1): 4}
    assert metrics.gauge("left", table="a", partition=0) is kept
    assert metrics.gauge("rows") is other
