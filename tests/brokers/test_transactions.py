"""Transactions: records and positions together or not at all, and nobody sees them earlier."""

from __future__ import annotations

import pytest
from broker_support import Log, Member, read_all, until

from agentic.brokers.base import Position, TopicPartition
from agentic.errors import Fenced, TransactionAborted


async def owner(log: Log, broker: object, topic: str, group: str | None = None) -> Member:
    member = await Member(broker, group or log.name("g"), [topic]).start()  # type: ignore[arg-type]
    await until(lambda: member.owned, member)
    return member


async def values(broker: object, topic: str, n: int = 0) -> list[bytes]:
    """What is committed, when there are `n` records at least: Kafka shows a commit a moment later."""
    return [row[3] for row in (await read_all(broker, topic, least=n))[0]]  # type: ignore[arg-type]


async def test_records_and_positions_are_committed_together(log: Log) -> None:
    async with log.open() as broker:
        source, sink = await log.topic(broker), await log.topic(broker)
        member = await owner(log, broker, source)
        tp = TopicPartition(source, 0)
        producer = broker.producer(transactional_id=log.name("id"))
        for n in range(3):
            producer.send(sink, b"k", b"%d" % n, 1)
            await producer.commit_transaction({tp: Position(n + 1, "with")}, member.consumer)
            assert await member.consumer.committed([tp]) == {tp: Position(n + 1, "with")}
        assert await values(broker, sink, 3) == [b"0", b"1", b"2"]
        assert producer.backlog == 0
        await producer.close()
        await member.consumer.close()


async def test_an_open_transaction_is_not_seen(log: Log) -> None:
    async with log.open() as broker:
        source, sink = await log.topic(broker), await log.topic(broker)
        member = await owner(log, broker, source)
        producer = broker.producer(transactional_id=log.name("id"))
        reader = broker.reader({TopicPartition(sink, 0): 0})
        for i in range(2_500):
            producer.send(sink, b"k", b"%d" % i, 1)
            await producer.ready()
        await producer.flush()
        seen = [value for batch in await reader.poll(0.3) for value in batch.values]
        assert seen == []
        assert await values(broker, sink) == []
        await producer.commit_transaction({TopicPartition(source, 0): Position(1)}, member.consumer)
        while len(seen) < 2_500:
            seen += [value for batch in await reader.poll(5) for value in batch.values]
        assert seen == [b"%d" % i for i in range(2_500)]
        await reader.close()
        await producer.close()
        await member.consumer.close()


async def test_an_aborted_transaction_is_never_seen(log: Log) -> None:
    async with log.open() as broker:
        source, sink = await log.topic(broker), await log.topic(broker)
        member = await owner(log, broker, source)
        tp = TopicPartition(source, 0)
        producer = broker.producer(transactional_id=log.name("id"))
        producer.send(sink, b"k", b"aborted", 1)
        await producer.flush()
        await producer.abort_transaction()
        producer.send(sink, b"k", b"committed", 1)
        await producer.commit_transaction({tp: Position(1)}, member.consumer)
        producer.send(sink, b"k", b"aborted too", 1)
        await producer.abort_transaction()
        assert await values(broker, sink, 1) == [b"committed"]
        assert await member.consumer.committed([tp]) == {tp: Position(1)}
        await producer.close()
        await member.consumer.close()


async def test_an_abort_without_a_transaction_is_nothing(log: Log) -> None:
    async with log.open() as broker:
        producer = broker.producer(transactional_id=log.name("id"))
        await producer.abort_transaction()
        await producer.abort_transaction()
        await producer.close()


async def test_positions_alone_are_a_transaction(log: Log) -> None:
    async with log.open() as broker:
        source = await log.topic(broker)
        member = await owner(log, broker, source)
        tp = TopicPartition(source, 0)
        producer = broker.producer(transactional_id=log.name("id"))
        await producer.commit_transaction({tp: Position(5, "x" * 4_095)}, member.consumer)
        assert await member.consumer.committed([tp]) == {tp: Position(5, "x" * 4_095)}
        await producer.close()
        await member.consumer.close()


async def test_closing_undoes_an_open_transaction(log: Log) -> None:
    async with log.open() as broker:
        sink = await log.topic(broker)
        producer = broker.producer(transactional_id=log.name("id"))
        producer.send(sink, b"k", b"v", 1)
        await producer.flush()
        await producer.close()
        assert await values(broker, sink) == []


async def test_a_second_producer_with_the_same_id_fences_the_first(log: Log) -> None:
    async with log.open() as broker:
        source, sink = await log.topic(broker), await log.topic(broker)
        member = await owner(log, broker, source)
        tp = TopicPartition(source, 0)
        name = log.name("id")
        first = broker.producer(transactional_id=name)
        first.send(sink, b"k", b"first", 1)
        await first.commit_transaction({tp: Position(1)}, member.consumer)
        first.send(sink, b"k", b"too late", 1)
        await first.flush()
        second = broker.producer(transactional_id=name)
        second.send(sink, b"k", b"second", 1)
        await second.commit_transaction({tp: Position(2)}, member.consumer)
        with pytest.raises(Fenced, match=name):
            await first.commit_transaction({tp: Position(9)}, member.consumer)
        assert await values(broker, sink, 2) == [b"first", b"second"]
        assert await member.consumer.committed([tp]) == {tp: Position(2)}
        await second.close()
        await first.close()
        await member.consumer.close()


async def test_a_transaction_over_many_partitions_is_one(log: Log) -> None:
    async with log.open() as broker:
        source, sink = await log.topic(broker), await log.topic(broker, 5)
        member = await owner(log, broker, source)
        producer = broker.producer(transactional_id=log.name("id"))
        for i in range(1_000):
            producer.send(sink, b"%d" % i, b"%d" % i, i)
        await producer.commit_transaction({TopicPartition(source, 0): Position(1)}, member.consumer)
        found = await read_all(broker, sink, 5, least=1_000)
        assert sorted(int(row[3]) for rows in found.values() for row in rows) == list(range(1_000))
        await producer.close()
        await member.consumer.close()


async def test_a_former_owner_s_transaction_is_undone(log: Log) -> None:
    async with log.open() as broker:
        source, sink = await log.topic(broker, 2), await log.topic(broker)
        group = log.name("g")
        a = await owner(log, broker, source, group)
        producer = broker.producer(transactional_id=log.name("id"))
        b = await Member(broker, group, [source]).start()
        await until(lambda: len(a.owned) == len(b.owned) == 1, a, b)
        (kept,), (gone,) = a.owned, b.owned
        producer.send(sink, b"k", b"by a former owner", 1)
        with pytest.raises(TransactionAborted):
            await producer.commit_transaction({kept: Position(1), gone: Position(1)}, a.consumer)
        assert await values(broker, sink) == []
        assert await a.consumer.committed([kept, gone]) == {kept: None, gone: None}
        producer.send(sink, b"k", b"by its owner", 1)
        await producer.commit_transaction({kept: Position(1)}, a.consumer)
        assert await values(broker, sink, 1) == [b"by its owner"]
        await producer.close()
        await a.consumer.close()
        await b.consumer.close()


async def test_a_zombie_s_transaction_is_undone(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        source, sink = await embedded_log.topic(broker), await embedded_log.topic(broker)
        group = embedded_log.name("g")
        member = await owner(embedded_log, broker, source, group)
        tp = TopicPartition(source, 0)
        producer = broker.producer(transactional_id=embedded_log.name("id"))
        producer.send(sink, b"k", b"by a zombie", 1)
        await embedded_log.expel(broker, group, member.consumer.member)  # type: ignore[attr-defined]
        with pytest.raises(TransactionAborted):
            await producer.commit_transaction({tp: Position(1)}, member.consumer)
        assert await values(broker, sink) == []
        assert (await broker.describe_group(group)).positions == {}
        await producer.close()
        await member.consumer.close()


async def test_a_transaction_with_a_topic_that_went_is_undone(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        source, going, sink = [await embedded_log.topic(broker) for _ in range(3)]
        member = await owner(embedded_log, broker, source)
        producer = broker.producer(transactional_id=embedded_log.name("id"))
        producer.send(sink, b"k", b"v", 1)
        producer.send(going, b"k", b"v", 1)
        await broker.delete_topics([going])
        with pytest.raises(TransactionAborted, match=going):
            await producer.commit_transaction({TopicPartition(source, 0): Position(1)}, member.consumer)
        assert await values(broker, sink) == []
        assert await member.consumer.committed([TopicPartition(source, 0)]) == {(source, 0): None}
        await producer.close()
        await member.consumer.close()
