"""Standbys of whole workers: who keeps which, and what it is good for when a task moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from standby_support import CHANGELOG, SharedStores, fold, hurry, until

from agentic import App, Stream
from agentic.brokers.base import TopicPartition
from agentic.brokers.memory import MemoryBroker
from agentic.runtime.worker import Worker

PARTITIONS = 4
KEYS = [f"key-{n}" for n in range(200)]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def counting(**options: Any) -> App:
    """An app that counts by key and tells each count."""
    app = App("app", topic_partitions=PARTITIONS, commit_interval=timedelta(milliseconds=20), **options)
    events, counts = app.topic("events", key=str, value=int), app.topic("counts", key=str, value=int)
    rows = app.table("rows", key=str, value=int, default=int)

    @app.agent(events, to=counts)
    async def count(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            rows[stream.event.key] += n
            yield rows[stream.event.key]

    return app


async def start(broker: MemoryBroker, name: str, **options: Any) -> Worker:
    worker = Worker(counting(**options), broker=broker, transactional_id=name, stores=SharedStores())
    await worker.start()
    return worker


async def all_at_work(workers: Sequence[Worker]) -> None:
    await until(lambda: all(map(owned, workers)))


async def send(broker: MemoryBroker, keys: Iterable[str]) -> None:
    producer = broker.producer()
    for key in keys:
        producer.send("events", key.encode(), b"1", 1)
    await producer.flush()
    await producer.close()


def owned(worker: Worker) -> set[int]:
    """The tasks that a worker has and that have begun."""
    assert worker.assignment is not None
    return {task.partition for task in worker.assignment.tasks.values() if task.started}


def kept(worker: Worker) -> set[int]:
    """The tasks of which a worker has a standby that follows their changelog."""
    standbys = worker.standbys.standbys.values() if worker.standbys is not None else ()
    return {standby.task.partition for standby in standbys if standby.followed}


async def up_to_date(worker: Worker, broker: MemoryBroker) -> None:
    """Return when a worker's standbys have all that is committed now."""
    assert worker.standbys is not None
    ends = await broker.end_offsets([TopicPartition(CHANGELOG.topic, n) for n in range(PARTITIONS)])
    following = [each for standby in worker.standbys.standbys.values() for each in standby.followed.values()]
    await until(lambda: all(each.written >= ends[each.tp] for each in following))


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("standbys", [0, 1])
def test_who_takes_over_reads_only_what_its_standby_lacks(delivery: str, standbys: int) -> None:
    async def scenario() -> float:
        broker = MemoryBroker()
        first, second = [await start(broker, name, delivery=delivery, standbys=standbys) for name in "ab"]
        await until(lambda: len(owned(first)) == len(owned(second)) == 2)
        await send(broker, KEYS)
        await until(lambda: sum(w.app.metrics.total("events_done") for w in (first, second)) == len(KEYS))
        await first.checkpoint()
        if standbys:
            await until(lambda: kept(second) == owned(first))
            await up_to_date(second, broker)
        before = second.app.metrics.total("restored")
        await first.stop()
        await until(lambda: len(owned(second)) == PARTITIONS)
        assert not kept(second)
        await send(broker, KEYS)
        await second.used_up()
        assert set((await fold(broker, "counts")).values()) == {b"2"}
        restored = second.app.metrics.total("restored") - before
        await second.stop()
        return restored

    restored = asyncio.run(scenario())
    if standbys:
        # A marker of the last transaction may be missing in each.
        assert restored <= PARTITIONS
    else:
        assert restored >= len(KEYS) / PARTITIONS


def test_a_task_that_goes_away_is_kept_as_a_standby_and_comes_back_with_what_it_had() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        first = await start(broker, "a", standbys=1)
        await until(lambda: len(owned(first)) == PARTITIONS)
        await send(broker, KEYS)
        await first.used_up()
        second = await start(broker, "b", standbys=1)
        await until(lambda: len(owned(first)) == len(owned(second)) == 2)
        await until(lambda: kept(first) == owned(second))
        await up_to_date(first, broker)
        before = first.app.metrics.total("restored")
        await second.stop()
        await until(lambda: len(owned(first)) == PARTITIONS)
        assert first.app.metrics.total("restored") == before
        await first.stop()

    asyncio.run(scenario())


def test_each_task_has_as_many_standbys_as_wanted_and_never_one_where_it_is() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        workers = [await start(broker, name, standbys=2) for name in "abcde"]
        await until(lambda: set().union(*map(owned, workers)) == set(range(PARTITIONS)))
        await until(lambda: Counter(n for w in workers for n in kept(w)) == dict.fromkeys(range(PARTITIONS), 2))
        assert all(not owned(worker) & kept(worker) for worker in workers)
        # Who owns nothing is as good a place as any.
        assert any(kept(worker) for worker in workers if not owned(worker))
        for worker in workers:
            await worker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_counts_are_right_while_workers_come_and_go_all_the_time(delivery: str) -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        steady = await start(broker, "steady", delivery=delivery, standbys=1)
        rounds = 8
        for n in range(rounds):
            guests = [await start(broker, f"{n}-{i}", delivery=delivery, standbys=n % 2) for i in range(2)]
            await send(broker, KEYS)
            await all_at_work(guests)
            for guest in guests:
                await guest.stop()
                assert guest.failure is None
        await until(lambda: len(owned(steady)) == PARTITIONS)
        await steady.used_up()
        # The partitions have moved in order each time: nothing was done twice.
        assert set((await fold(broker)).values()) == {b"%d" % rounds}
        assert steady.failure is None
        await steady.stop()

    asyncio.run(scenario())


def test_without_the_setting_no_group_is_looked_at() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        worker = await start(broker, "a")
        await until(lambda: len(owned(worker)) == PARTITIONS)
        assert not any("standbys" in task.get_name() for task in asyncio.all_tasks())
        await worker.stop()

    asyncio.run(scenario())
