"""Workers of one group in one process: partitions move between them, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Stream
from agentic.agent import Agent
from agentic.brokers.base import TopicPartition
from agentic.brokers.embedded.consumer import EmbeddedConsumer
from agentic.brokers.memory import MemoryBroker
from agentic.runtime.assignment import groups
from agentic.runtime.others import Others
from agentic.runtime.task import Task
from agentic.runtime.worker import Worker

PATIENCE = 30.0


def passing(slow: bool = False, **settings: Any) -> App:
    """An app that passes numbers on; with `slow`, each takes a turn of the loop."""
    app = App("passing", commit_interval=timedelta(hours=1), topic_partitions=4, **settings)
    source, sink = app.topic("in", value=int), app.topic("out", value=int)

    @app.agent(source, to=sink)
    async def through(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if slow:
                await asyncio.sleep(0)
            yield n

    return app


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not done():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


def owned(worker: Worker) -> set[TopicPartition]:
    return set(worker.assignment.sources) if worker.assignment else set()


async def append(broker: MemoryBroker, numbers: range) -> None:
    producer = broker.producer()
    for n in numbers:
        producer.send("in", None, b"%d" % n, 1, None, n % 4)
    await producer.flush()


async def outputs(broker: MemoryBroker) -> Counter[int]:
    tps = [TopicPartition("out", n) for n in range(4)]
    ends = await broker.end_offsets(tps)
    reader = broker.reader(dict.fromkeys(tps, 0))
    seen: Counter[int] = Counter()
    while seen.total() < sum(ends.values()):
        for batch in await reader.poll(1):
            seen.update(int(value or b"") for value in batch.values)
    await reader.close()
    return seen


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_partition_that_moves_is_drained_and_committed_so_that_nothing_is_done_twice(delivery: Any) -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        first = Worker(passing(slow=True, delivery=delivery), broker=broker, transactional_id="first")
        await first.start()
        await until(lambda: len(owned(first)) == 4)
        await append(broker, range(400))
        second = Worker(passing(slow=True, delivery=delivery), broker=broker, transactional_id="second")
        await second.start()
        await until(lambda: len(owned(first)) == 2 and len(owned(second)) == 2)
        await append(broker, range(400, 800))
        await second.stop()
        await until(lambda: len(owned(first)) == 4)
        await first.used_up()
        await first.stop()
        assert await outputs(broker) == Counter(range(800))

    asyncio.run(scenario())


def outputs_after_a_loss(amid: bool = False, **settings: Any) -> Counter[int]:
    """Do eight events, lose their partitions before they are committed, and work off what comes then.

    Args:
        amid: a checkpoint is due as soon as the partitions are gone.
    """

    async def scenario() -> Counter[int]:
        broker = MemoryBroker()
        worker = Worker(passing(**settings), broker=broker, transactional_id="only")
        await worker.start()
        await until(lambda: len(owned(worker)) == 4)
        await append(broker, range(8))
        assert worker.assignment is not None
        await until(lambda: worker.app.metrics.total("events_in") == 8 and not worker.assignment.backlog)
        (member,) = (await broker.describe_group("passing")).members
        broker.expel("passing", member)
        if amid:
            await until(lambda: not owned(worker))
            await worker.checkpoint()
        # Assigned, lost, assigned again.
        await until(lambda: worker.app.metrics.total("rebalances") == 3)
        await worker.used_up()
        await worker.stop()
        return await outputs(broker)

    return asyncio.run(scenario())


def test_a_lost_partition_is_not_committed_and_its_next_owner_does_it_again() -> None:
    assert outputs_after_a_loss(delivery="at_least_once") == Counter([*range(8), *range(8)])


def test_under_exactly_once_what_was_lost_leaves_no_trace() -> None:
    assert outputs_after_a_loss(delivery="exactly_once") == Counter(range(8))


def test_under_exactly_once_a_checkpoint_amid_a_loss_commits_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Task.release

    async def slow_release(self: Task) -> None:
        await asyncio.sleep(0)  # as where a store has to be closed
        await asyncio.sleep(0)
        await release(self)

    monkeypatch.setattr(Task, "release", slow_release)
    assert outputs_after_a_loss(amid=True, delivery="exactly_once") == Counter(range(8))


@pytest.mark.parametrize("committed", [0, 8])
def test_what_comes_while_partitions_are_taken_up_again_waits_for_its_task(
    monkeypatch: pytest.MonkeyPatch, committed: int
) -> None:
    seek, positions = EmbeddedConsumer.seek, EmbeddedConsumer.committed

    async def slow_seek(self: EmbeddedConsumer, offsets: Any) -> None:
        await seek(self, offsets)
        for _ in range(100):
            await asyncio.sleep(0)  # as where another thread is asked; meanwhile there is much to be read

    async def slow_committed(self: EmbeddedConsumer, partitions: Any) -> Any:
        # The first that some of them ever had.
        await append(broker, range(committed, 16))
        for _ in range(100):
            await asyncio.sleep(0)
        return await positions(self, partitions)

    async def scenario() -> Counter[int]:
        worker = Worker(passing(delivery="exactly_once"), broker=broker, transactional_id="only")
        await worker.start()
        await until(lambda: len(owned(worker)) == 4)
        await append(broker, range(committed))
        assert worker.assignment is not None
        await until(lambda: worker.app.metrics.total("events_in") == committed and not worker.assignment.backlog)
        monkeypatch.setattr(EmbeddedConsumer, "seek", slow_seek)
        monkeypatch.setattr(EmbeddedConsumer, "committed", slow_committed)
        await worker.assignment.reset()
        async with asyncio.timeout(PATIENCE):
            await worker.used_up()
        await worker.stop()
        return await outputs(broker)

    broker = MemoryBroker()
    assert asyncio.run(scenario()) == Counter(range(16))


def test_a_large_transaction_is_committed_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic.runtime.outbox.TRANSACTION_LIMIT", 10)

    async def scenario() -> None:
        broker = MemoryBroker()
        worker = Worker(passing(delivery="exactly_once"), broker=broker, transactional_id="only")
        await worker.start()
        await append(broker, range(100))
        # Without anyone asking: the interval is an hour.
        await until(lambda: worker.app.metrics.total("commits") > 0)
        await worker.used_up()
        await worker.stop()
        assert await outputs(broker) == Counter(range(100))

    asyncio.run(scenario())


def test_used_up_means_internal_topics_too() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        app = App("chain", commit_interval=timedelta(hours=1))
        source, between, sink = app.topic("in", value=int), app.topic("mid", internal=True), app.topic("out", value=int)

        @app.agent(source, to=between)
        async def first(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                yield n

        @app.agent(between, to=sink)
        async def second(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                yield n

        worker = Worker(app, broker=broker)
        await worker.start()
        await append(broker, range(100))
        await worker.used_up()
        await worker.stop()
        assert await outputs(broker) == Counter(range(100))

    asyncio.run(scenario())


def test_used_up_means_what_another_member_has_not_committed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    left = Others.left

    async def looked(self: Others, theirs: Any) -> bool:
        looks.append(await left(self, theirs))
        return looks[-1]

    monkeypatch.setattr(Others, "left", looked)

    async def scenario() -> None:
        broker = MemoryBroker()
        first, second = Worker(passing(), broker=broker), Worker(passing(), broker=broker)
        await first.start()
        await second.start()
        await until(lambda: len(owned(first)) == 2 and len(owned(second)) == 2)
        await append(broker, range(40))
        await until(lambda: second.app.metrics.total("events_in") == 20)
        used_up = asyncio.create_task(first.used_up())
        await until(lambda: len(looks) == 3)
        assert looks == [True] * 3
        assert not used_up.done()
        # What comes from now on is not waited for: the other may work on a stream without end.
        await second.checkpoint()
        await append(broker, range(40, 80))
        await until(lambda: first.app.metrics.total("events_in") == 40)
        await used_up
        assert looks[-1] is False
        await second.stop()
        await first.stop()

    asyncio.run(scenario())


def test_agents_that_share_a_topic_are_one_group() -> None:
    app = App("groups")
    a, b, c, d = (app.topic(name) for name in "abcd")

    def agent(name: str, *sources: Any) -> Agent:
        async def fn(stream: Stream[Any]) -> None:
            async for _ in stream:
                pass

        return app.agent(*sources, name=name)(fn)

    agents = [agent("1", a), agent("2", b), agent("3", a, c), agent("4", d)]
    found = [({each.name for each in members}, {topic.name for topic in topics}) for members, topics in groups(agents)]
    assert sorted(found, key=str) == sorted([({"1", "3"}, {"a", "c"}), ({"2"}, {"b"}), ({"4"}, {"d"})], key=str)


def test_a_task_that_loses_one_of_its_topics_goes_on_with_the_other() -> None:
    """Topics of different width: what moves of one must not disturb what stays of the other."""

    async def scenario() -> None:
        broker = MemoryBroker()

        def app() -> App:
            app = App("wide", commit_interval=timedelta(hours=1), max_idle=None)
            wide = app.topic("in", value=int, partitions=4)
            narrow = app.topic("narrow", value=int, partitions=1)
            sink = app.topic("out", value=int, partitions=4)

            @app.agent(narrow, wide, to=sink)
            async def both(stream: Stream[int]) -> AsyncIterator[int]:
                async for n in stream:
                    await asyncio.sleep(0)
                    yield n

            return app

        first = Worker(app(), broker=broker)
        await first.start()
        await until(lambda: len(owned(first)) == 5)
        await append(broker, range(200))
        second = Worker(app(), broker=broker)
        await second.start()
        await until(lambda: len(owned(first)) == 3 and len(owned(second)) == 2)
        await second.stop()
        await until(lambda: len(owned(first)) == 5)
        await append(broker, range(200, 300))
        await first.used_up()
        await first.stop()
        assert await outputs(broker) == Counter(range(300))

    asyncio.run(scenario())
