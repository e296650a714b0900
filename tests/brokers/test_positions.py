"""Positions: what a group commits, finds again, and may be set to."""

from __future__ import annotations

import pytest
from broker_support import Log, Member, until

from agentic.brokers.base import Broker, Position, TopicPartition
from agentic.errors import BrokerError


async def filled(log: Log, broker: Broker, n: int = 10) -> TopicPartition:
    topic = await log.topic(broker)
    producer = broker.producer()
    for i in range(n):
        producer.send(topic, None, b"%d" % i, i, partition=0)
    await producer.flush()
    await producer.close()
    return TopicPartition(topic, 0)


async def test_a_group_without_positions_begins_at_the_start(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        member = await Member(broker, log.name("g"), [tp.topic]).start()
        await until(lambda: member.count == 10, member)
        assert member.positions == {tp: None}
        assert member.values[tp] == [b"%d" % i for i in range(10)]
        await member.consumer.close()


async def test_or_at_the_end_if_told_so(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        member = await Member(broker, log.name("g"), [tp.topic], offset_reset="latest").start()
        await until(lambda: member.ended == {tp: 10}, member)
        producer = broker.producer()
        producer.send(tp.topic, None, b"new", 1, partition=0)
        await producer.flush()
        await until(lambda: member.count, member)
        assert member.values[tp] == [b"new"]
        await member.consumer.close()
        await producer.close()


# Kafka 4.3 refuses the 4,096th character of its own limit.
@pytest.mark.parametrize("metadata", ["", "plain", "x" * 4_095], ids=["empty", "short", "longest"])
async def test_what_was_committed_is_found_by_the_next_owner(log: Log, metadata: str) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        group = log.name("g")
        first = await Member(broker, group, [tp.topic]).start()
        await until(lambda: first.count == 10, first)
        await first.consumer.commit({tp: Position(4, metadata)})
        assert await first.consumer.committed([tp]) == {tp: Position(4, metadata)}
        await first.consumer.close()
        second = await Member(broker, group, [tp.topic]).start()
        await until(lambda: second.count == 6, second)
        assert second.positions == {tp: Position(4, metadata)}
        assert second.values[tp] == [b"%d" % i for i in range(4, 10)]
        await second.consumer.close()
        assert (await broker.describe_group(group)).positions == {tp: Position(4, metadata)}


async def test_a_position_may_go_back(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        member = await Member(broker, log.name("g"), [tp.topic]).start()
        await until(lambda: member.owned, member)
        for offset in (7, 3):
            await member.consumer.commit({tp: Position(offset)})
            assert await member.consumer.committed([tp]) == {tp: Position(offset)}
        await member.consumer.close()


async def test_metadata_that_is_too_long_is_refused_and_nothing_committed(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        member = await Member(broker, log.name("g"), [tp.topic]).start()
        await until(lambda: member.owned, member)
        with pytest.raises(BrokerError):
            await member.consumer.commit({tp: Position(1, "x" * 4_096)})
        assert await member.consumer.committed([tp]) == {tp: None}
        await member.consumer.close()


async def test_positions_are_set_and_removed_from_outside(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        group = log.name("g")
        await broker.set_positions(group, {tp: Position(8, "set")})
        assert group in await broker.groups()
        assert (await broker.describe_group(group)).positions == {tp: Position(8, "set")}
        member = await Member(broker, group, [tp.topic]).start()
        await until(lambda: member.count == 2, member)
        assert member.positions == {tp: Position(8, "set")}
        await member.consumer.close()
        await broker.set_positions(group, {tp: None})
        assert (await broker.describe_group(group)).positions == {}


async def test_a_deleted_group_is_forgotten_and_begins_anew(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        group = log.name("g")
        first = await Member(broker, group, [tp.topic]).start()
        await until(lambda: first.owned, first)
        await first.consumer.commit({tp: Position(8)})
        with pytest.raises(BrokerError, match=group):
            await broker.delete_group(group)
        await first.consumer.close()
        await broker.delete_group(group)
        assert group not in await broker.groups()
        assert (await broker.describe_group(group)).positions == {}
        again = await Member(broker, group, [tp.topic]).start()
        await until(lambda: again.owned, again)
        assert again.positions == {tp: None}
        await again.consumer.close()


async def test_an_unknown_group_is_not_deleted(log: Log) -> None:
    async with log.open() as broker:
        group = log.name("g")
        with pytest.raises(BrokerError, match=group):
            await broker.delete_group(group)


async def test_positions_of_a_group_with_members_are_not_set(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        group = log.name("g")
        member = await Member(broker, group, [tp.topic]).start()
        await until(lambda: member.owned, member)
        with pytest.raises(BrokerError, match=group):
            await broker.set_positions(group, {tp: Position(8)})
        assert await member.consumer.committed([tp]) == {tp: None}
        await member.consumer.close()


async def test_a_group_is_described_with_its_members(log: Log) -> None:
    async with log.open() as broker:
        tp = await filled(log, broker)
        group = log.name("g")
        member = await Member(broker, group, [tp.topic]).start()
        await until(lambda: member.owned, member)
        info = await broker.describe_group(group)
        assert info.name == group
        assert [list(owned) for owned in info.members.values()] == [[tp]]
        await member.consumer.close()


async def test_an_unknown_group_is_empty(log: Log) -> None:
    async with log.open() as broker:
        group = log.name("unknown")
        info = await broker.describe_group(group)
        assert (info.name, dict(info.members), dict(info.positions)) == (group, {}, {})
        assert group not in await broker.groups()


async def test_a_negative_position_is_refused(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        tp = await filled(embedded_log, broker)
        group = embedded_log.name("g")
        with pytest.raises(BrokerError, match="-1"):
            await broker.set_positions(group, {tp: Position(-1)})
        assert (await broker.describe_group(group)).positions == {}


async def test_a_position_beyond_the_end_is_replaced_by_the_reset(
    embedded_log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded_log.open() as broker:
        tp = await filled(embedded_log, broker)
        group = embedded_log.name("g")
        await broker.set_positions(group, {tp: Position(11)})
        member = await Member(broker, group, [tp.topic]).start()
        await until(lambda: member.count == 10, member)
        assert f"{tp}: there is no offset 11 any more" in caplog.text
        await member.consumer.close()
