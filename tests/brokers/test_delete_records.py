"""Records that are removed from the head of a partition: gone for all who read, and nothing else changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from broker_support import Log, Member, read_all, until

from agentic.brokers.base import Broker, Position, TopicPartition
from agentic.errors import BrokerError, UnknownTopic

COUNT = 10


@asynccontextmanager
async def filled(log: Log, partitions: int = 1) -> AsyncIterator[tuple[Broker, TopicPartition]]:
    """A topic whose partition 0 has the values 0 to 9 at the offsets of these numbers."""
    async with log.open() as broker:
        tp = TopicPartition(await log.topic(broker, partitions), 0)
        await append(broker, tp, 0, COUNT)
        yield broker, tp


async def append(broker: Broker, tp: TopicPartition, first: int, stop: int) -> None:
    producer = broker.producer()
    for i in range(first, stop):
        producer.send(tp.topic, b"k%d" % i, b"%d" % i, i, headers=(("n", b"%d" % i),), partition=tp.partition)
    await producer.flush()
    await producer.close()


async def bounds(broker: Broker, tp: TopicPartition) -> tuple[int, int]:
    return (await broker.describe_topic(tp.topic)).offsets[tp.partition]


async def offsets(broker: Broker, tp: TopicPartition) -> list[int]:
    return [row[0] for row in (await read_all(broker, tp.topic))[tp.partition]]


async def test_what_is_below_the_offset_is_gone_and_the_rest_stays_as_it_is(log: Log) -> None:
    async with filled(log) as (broker, tp):
        before = (await read_all(broker, tp.topic))[0]
        await broker.delete_records({tp: 4})
        assert await bounds(broker, tp) == (4, COUNT)
        assert (await read_all(broker, tp.topic))[0] == before[4:]


async def test_records_that_come_afterwards_go_on_at_the_end(log: Log) -> None:
    async with filled(log) as (broker, tp):
        await broker.delete_records({tp: COUNT})
        assert await bounds(broker, tp) == (COUNT, COUNT)
        assert await offsets(broker, tp) == []
        await append(broker, tp, COUNT, COUNT + 3)
        assert await offsets(broker, tp) == [10, 11, 12]
        await broker.delete_records({tp: 11})
        assert await offsets(broker, tp) == [11, 12]


async def test_a_start_that_is_further_on_stays(log: Log) -> None:
    async with filled(log) as (broker, tp):
        await broker.delete_records({tp: 6})
        for offset in (0, 3, 6):
            await broker.delete_records({tp: offset})
            assert await bounds(broker, tp) == (6, COUNT)


async def test_other_partitions_are_left_alone(log: Log) -> None:
    async with filled(log, 2) as (broker, tp):
        other = tp._replace(partition=1)
        await append(broker, other, 0, 5)
        await broker.delete_records({tp: 7, other: 2})
        assert (await broker.describe_topic(tp.topic)).offsets == {0: (7, COUNT), 1: (2, 5)}
        await broker.delete_records({})
        assert (await broker.describe_topic(tp.topic)).offsets == {0: (7, COUNT), 1: (2, 5)}


async def test_a_group_begins_at_the_new_start(log: Log) -> None:
    async with filled(log) as (broker, tp):
        await broker.delete_records({tp: 7})
        member = await Member(broker, log.name("g"), [tp.topic]).start()
        await until(lambda: member.count == 3, member)
        assert member.values[tp] == [b"7", b"8", b"9"]
        await member.consumer.close()


async def test_a_position_below_is_kept_and_reading_goes_on_at_the_start(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(log) as (broker, tp):
        group = log.name("g")
        await broker.set_positions(group, {tp: Position(2, "kept")})
        await broker.delete_records({tp: 6})
        assert (await broker.describe_group(group)).positions == {tp: Position(2, "kept")}
        member = await Member(broker, group, [tp.topic]).start()
        await until(lambda: member.count == 4, member)
        assert member.positions == {tp: Position(2, "kept")}
        assert member.values[tp] == [b"6", b"7", b"8", b"9"]
        assert [line for line in caplog.messages if str(tp) in line and "offset 2 " in line and "at 6" in line]
        await member.consumer.close()


async def test_a_member_that_is_further_on_notices_nothing(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    async with filled(log) as (broker, tp):
        member = await Member(broker, log.name("g"), [tp.topic]).start()
        await until(lambda: member.count == COUNT, member)
        await member.consumer.commit({tp: Position(8)})
        await broker.delete_records({tp: 8})
        await append(broker, tp, COUNT, COUNT + 2)
        await until(lambda: member.count == COUNT + 2, member)
        assert member.values[tp] == [b"%d" % i for i in range(COUNT + 2)]
        await member.consumer.seek({tp: 8})
        await until(lambda: member.count == COUNT + 6, member)
        assert member.values[tp][-4:] == [b"8", b"9", b"10", b"11"]
        assert not [line for line in caplog.messages if str(tp) in line]
        await member.consumer.close()


async def test_a_member_that_is_behind_goes_on_at_the_start(log: Log) -> None:
    async with filled(log) as (broker, tp):
        member = await Member(broker, log.name("g"), [tp.topic]).start()
        await until(lambda: member.count == COUNT, member)
        await broker.delete_records({tp: 5})
        await member.consumer.seek({tp: 1})
        await until(lambda: member.count == COUNT + 5, member)
        assert member.values[tp][COUNT:] == [b"5", b"6", b"7", b"8", b"9"]
        await member.consumer.close()


async def test_a_reader_goes_on_at_the_start(log: Log) -> None:
    async with filled(log) as (broker, tp):
        await broker.delete_records({tp: 8})
        reader = broker.reader({tp: 3})
        found: list[int] = []

        async def read() -> None:
            for batch in await reader.poll(0.05):
                found.extend(batch.offsets)

        while len(found) < 2:
            await read()
        assert found == [8, 9]
        await reader.close()


async def test_a_transaction_that_is_open_is_committed_whole(log: Log) -> None:
    async with filled(log) as (broker, tp):
        group = log.name("g")
        member = await Member(broker, group, [tp.topic]).start()
        await until(lambda: member.count == COUNT, member)
        producer = broker.producer(transactional_id=log.name("id"))
        await producer.ready()
        for i in range(3):
            producer.send(tp.topic, None, b"in %d" % i, i, partition=0)
        await producer.flush()
        await broker.delete_records({tp: COUNT})
        await producer.commit_transaction({tp: Position(COUNT)}, member.consumer)
        await until(lambda: member.count == COUNT + 3, member)
        assert member.values[tp][COUNT:] == [b"in 0", b"in 1", b"in 2"]
        assert (await broker.describe_group(group)).positions == {tp: Position(COUNT)}
        await producer.close()
        await member.consumer.close()


async def test_an_offset_beyond_the_end_is_refused(log: Log) -> None:
    async with filled(log) as (broker, tp):
        with pytest.raises(BrokerError, match=str(tp)):
            await broker.delete_records({tp: COUNT + 1})
        with pytest.raises(BrokerError, match=f"{tp}.*-1"):
            await broker.delete_records({tp: -1})
        assert await bounds(broker, tp) == (0, COUNT)


async def test_records_of_a_compacted_topic_are_not_removed(log: Log) -> None:
    async with log.open() as broker:
        tp = TopicPartition(await log.topic(broker, compacted=True, config={}), 0)
        await append(broker, tp, 0, 3)
        with pytest.raises(BrokerError, match=f"{tp.topic}.*compacted.*tombstones"):
            await broker.delete_records({tp: 2})
        assert await bounds(broker, tp) == (0, 3)


async def test_of_a_topic_that_is_compacted_and_expires_they_are(log: Log) -> None:
    async with log.open() as broker:
        tp = TopicPartition(await log.topic(broker, compacted=True, retention_ms=1 << 50), 0)
        await append(broker, tp, 0, 3)
        await broker.delete_records({tp: 2})
        assert await bounds(broker, tp) == (2, 3)


async def test_an_unknown_topic_is_named(log: Log) -> None:
    async with log.open() as broker:
        unknown = log.name("unknown")
        with pytest.raises(UnknownTopic, match=unknown):
            await broker.delete_records({TopicPartition(unknown, 0): 1})


async def test_where_one_is_refused_nothing_is_removed(embedded_log: Log) -> None:
    async with filled(embedded_log, 2) as (broker, tp):
        with pytest.raises(BrokerError):
            await broker.delete_records({tp: 5, tp._replace(partition=1): 1})
        assert await bounds(broker, tp) == (0, COUNT)


async def test_another_broker_of_the_log_sees_the_new_start(log: Log) -> None:
    async with filled(log) as (broker, tp), log.open() as other:
        await broker.delete_records({tp: 9})
        assert await offsets(other, tp) == [9]
