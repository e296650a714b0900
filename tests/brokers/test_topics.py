"""Topics: made, described, deleted, and refused."""

from __future__ import annotations

import pytest
from broker_support import Log, read_all, until

from agentic.brokers.base import Position, TopicPartition, TopicSpec
from agentic.errors import BrokerError, TopicExists, UnknownTopic


async def test_a_made_topic_is_listed_and_described(log: Log) -> None:
    async with log.open() as broker:
        name = await log.topic(broker, 3, retention_ms=86_400_000, retention_bytes=1 << 30)
        assert (await broker.topics())[name] == 3
        info = await broker.describe_topic(name)
        assert info.name == name
        assert info.partitions == 3
        assert info.offsets == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
        assert (info.retention_ms, info.retention_bytes, info.compacted) == (86_400_000, 1 << 30, False)


async def test_a_compacted_topic_says_so(log: Log) -> None:
    async with log.open() as broker:
        name = await log.topic(broker, 1, compacted=True)
        assert (await broker.describe_topic(name)).compacted


async def test_a_description_has_the_end_of_each_partition(log: Log) -> None:
    async with log.open() as broker:
        name = await log.topic(broker, 2)
        producer = broker.producer()
        for i in range(5):
            producer.send(name, None, b"v", i, partition=1)
        await producer.flush()
        assert (await broker.describe_topic(name)).offsets == {0: (0, 0), 1: (0, 5)}
        assert await broker.end_offsets([TopicPartition(name, 0), TopicPartition(name, 1)]) == {
            (name, 0): 0,
            (name, 1): 5,
        }
        await producer.close()


async def test_a_topic_that_exists_is_not_made_again(log: Log) -> None:
    async with log.open() as broker:
        name = await log.topic(broker, 2)
        with pytest.raises(TopicExists, match=name):
            await broker.create_topics([TopicSpec(name, 3)])
        assert (await broker.topics())[name] == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
async def test_a_name_that_kafka_refuses_is_refused(log: Log, name: str) -> None:
    async with log.open() as broker:
        with pytest.raises(BrokerError):
            await broker.create_topics([TopicSpec(name, 1)])
        assert name not in await broker.topics()


async def test_a_topic_has_at_least_one_partition(log: Log) -> None:
    async with log.open() as broker:
        name = log.name()
        with pytest.raises(BrokerError):
            await broker.create_topics([TopicSpec(name, 0)])
        assert name not in await broker.topics()


@pytest.mark.parametrize("second", ["bad name", None])
async def test_topics_are_made_all_or_none(embedded_log: Log, second: str | None) -> None:
    async with embedded_log.open() as broker:
        exists = await embedded_log.topic(broker)
        name = embedded_log.name()
        with pytest.raises(BrokerError):
            await broker.create_topics([TopicSpec(name, 1), TopicSpec(second or exists, 1)])
        assert name not in await broker.topics()


async def test_a_deleted_topic_is_gone(log: Log) -> None:
    async with log.open() as broker:
        name = log.name()
        await broker.create_topics([TopicSpec(name)])
        await broker.delete_topics([name])
        with pytest.raises(UnknownTopic, match=name):
            await broker.describe_topic(name)
        assert name not in await broker.topics()


async def test_a_topic_made_anew_begins_at_zero_without_the_old_positions(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        name, group = embedded_log.name(), embedded_log.name("g")
        tp = TopicPartition(name, 0)
        producer = broker.producer()
        await broker.create_topics([TopicSpec(name)])
        producer.send(name, b"k", b"old", 1)
        await producer.flush()
        await broker.set_positions(group, {tp: Position(1)})
        await broker.delete_topics([name])
        await broker.create_topics([TopicSpec(name)])
        producer.send(name, b"k", b"new", 1)
        await producer.flush()
        assert [row[:4] for row in (await read_all(broker, name))[0]] == [(0, 1, b"k", b"new")]
        assert (await broker.describe_group(group)).positions == {}
        await producer.close()


async def test_of_several_topics_none_is_deleted_when_one_is_unknown(log: Log) -> None:
    async with log.open() as broker:
        name, unknown = await log.topic(broker), log.name("unknown")
        with pytest.raises(UnknownTopic, match=unknown):
            await broker.delete_topics([name, unknown])
        assert name in await broker.topics()


async def test_what_is_unknown_is_named(log: Log) -> None:
    async with log.open() as broker:
        unknown = log.name("unknown")
        with pytest.raises(UnknownTopic, match=unknown):
            await broker.describe_topic(unknown)
        with pytest.raises(UnknownTopic, match=unknown):
            await broker.end_offsets([TopicPartition(unknown, 0)])


async def test_two_brokers_of_one_log_see_each_others_topics(log: Log) -> None:
    async with log.open() as one, log.open() as other:
        name = await log.topic(one, 2)
        seen: dict[str, int] = {}

        async def look() -> None:
            seen.update(await other.topics())

        await look()
        await until(lambda: name in seen)
        assert seen[name] == 2
