"""What only the log in memory has: names, and a crash that can be called."""

from __future__ import annotations

import pytest
from broker_support import Log, Member, read_all, until

from agentic.brokers.base import Position, TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import ConfigurationError


async def test_brokers_of_one_name_share_a_log_and_others_do_not() -> None:
    name = Log.name("log")
    one, other, alone = (MemoryBroker(url) for url in (f"memory://{name}", f"memory://{name}", "memory://"))
    await one.create_topics([TopicSpec("t")])
    assert await other.topics() == {"t": 1}
    assert await alone.topics() == {}
    assert await MemoryBroker("memory://").topics() == {}


async def test_topics_of_two_logs_have_different_ids() -> None:
    url = f"memory://{Log.name('log')}"
    one, same, other = MemoryBroker(url), MemoryBroker(url), MemoryBroker("memory://")
    for broker in (one, other):
        await broker.create_topics([TopicSpec("t")])
    ids = [(await broker.describe_topic("t")).id for broker in (one, same, other)]
    assert ids[0] == ids[1] != ids[2]


async def test_a_log_ends_with_its_last_broker() -> None:
    url = f"memory://{Log.name('log')}"
    broker = MemoryBroker(url)
    await broker.create_topics([TopicSpec("t")])
    del broker
    assert await MemoryBroker(url).topics() == {}


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        MemoryBroker("memory://", {"colour": "red"})


async def test_a_crash_leaves_the_log_and_takes_the_rest() -> None:
    name = f"memory://{Log.name('log')}"
    broker, survivor = MemoryBroker(name), MemoryBroker(name)
    await broker.create_topics([TopicSpec("source", 2), TopicSpec("sink")])
    member = await Member(broker, "group", ["source"]).start()
    await until(lambda: len(member.owned) == 2, member)
    await member.consumer.commit({TopicPartition("source", 0): Position(7, "kept")})
    producer, transactional = broker.producer(), broker.producer(transactional_id="id")
    producer.send("sink", None, b"flushed", 1)
    await producer.flush()
    producer.send("sink", None, b"not flushed", 1)
    transactional.send("sink", None, b"not committed", 1)
    broker.crash()
    heir = await Member(survivor, "group", ["source"]).start()
    await until(lambda: len(heir.owned) == 2, heir)
    assert [kind for kind, _ in member.told] == ["assigned"]
    assert heir.positions[TopicPartition("source", 0)] == Position(7, "kept")
    assert [row[3] for row in (await read_all(survivor, "sink"))[0]] == [b"flushed"]
    await heir.consumer.close()


async def test_the_same_calls_give_the_same_batches() -> None:
    async def history() -> list[tuple[TopicPartition, list[int], int]]:
        broker = MemoryBroker()
        await broker.create_topics([TopicSpec("t", 3)])
        members = [await Member(broker, "group", ["t"]).start() for _ in range(2)]
        producer = broker.producer()
        for i in range(100):
            producer.send("t", b"%d" % i if i % 3 else None, b"v", i)
        await producer.flush()
        await until(lambda: sum(member.count for member in members) == 100, *members)
        seen = [(b.tp, b.offsets, b.position) for member in members for b in member.batches]
        for member in members:
            await member.consumer.close()
        return seen

    assert await history() == await history()
