"""The producer on a real broker: order, room, refusals, transactions."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Partition
from kafka_support import PATIENCE, Cluster, Recorder, read, until

from agentic.brokers.base import Position, TopicPartition, TopicSpec
from agentic.brokers.kafka import member as member_module
from agentic.core.partitioning import partition_of
from agentic.errors import BrokerError, Fenced, RecordTooLarge, TransactionAborted, UnknownTopic

NOW = int(time.time() * 1_000)


def test_a_full_queue_is_no_error_and_keeps_the_order_of_each_partition(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open({"queue.buffering.max.messages": 10}, t=3) as broker:
            topic = f"{cluster.name}.t"
            producer = broker.producer()
            await producer.ready()
            for n in range(1_000):
                producer.send(topic, None, b"%d" % n, NOW, None, n % 3)
            assert producer.backlog > 10
            await producer.ready()
            producer.send(topic, None, b"1000", NOW, None, 1)
            await producer.flush()
            assert producer.backlog == 0
            reader = broker.reader({TopicPartition(topic, p): 0 for p in range(3)})
            came: dict[int, list[int]] = {0: [], 1: [], 2: []}
            for batch in await read(reader, 1_001):
                came[batch.tp.partition] += [int(value or b"") for value in batch.values]
            assert came == {p: [n for n in range(1_001) if n % 3 == p] for p in range(3)}
            await reader.close()
            await producer.close()

    asyncio.run(scenario())


def test_a_record_arrives_as_it_was_sent(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open(t=5) as broker:
            topic = f"{cluster.name}.t"
            producer = broker.producer()
            headers = (("a", b"1"), ("a", b"2"), ("empty", b""))
            producer.send(topic, b"key", None, NOW, headers)
            producer.send(topic, b"key", b"", NOW + 1)
            await producer.flush()
            home = TopicPartition(topic, partition_of(b"key", 5))
            reader = broker.reader({home: 0})
            batches = await read(reader, 2)
            columns: list[Any] = [], [], [], []
            for batch in batches:
                for column, part in zip(
                    columns, (batch.keys, batch.values, batch.timestamps, batch.headers), strict=True
                ):
                    column.extend(part)
            assert columns[:3] == ([b"key", b"key"], [None, b""], [NOW, NOW + 1])
            assert [tuple(late.headers() or ()) for late in columns[3]] == [headers, ()]
            await reader.close()
            await producer.close()

    asyncio.run(scenario())


def test_what_can_not_be_written_is_told_by_name(cluster: Cluster) -> None:
    async def scenario() -> None:
        options = {"message.max.bytes": 2_000_000, "topic.metadata.propagation.max.ms": 100}
        async with cluster.open(options, t=1) as broker:
            producer = broker.producer()
            await producer.ready()
            with pytest.raises(RecordTooLarge, match=f"{cluster.name}.t"):
                producer.send(f"{cluster.name}.t", b"k", b"x" * 3_000_000, NOW)
            producer.send(f"{cluster.name}.t", b"k", b"x" * 1_500_000, NOW)  # more than the topic takes
            with pytest.raises(RecordTooLarge, match=f"{cluster.name}.t"):
                await producer.flush()
            producer.send(f"{cluster.name}.t", b"k", b"fits", NOW)
            await producer.flush()
            with pytest.raises(UnknownTopic, match=f"{cluster.name}.none"):
                producer.send(f"{cluster.name}.none", b"k", b"v", NOW)
                await producer.flush()
            await producer.close()

    asyncio.run(scenario())


def test_a_producer_without_a_transactional_id_has_no_transactions(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open(t=1) as broker:
            producer = broker.producer()
            consumer = broker.consumer(cluster.name, [f"{cluster.name}.t"])
            with pytest.raises(BrokerError, match="exactly_once"):
                await producer.commit_transaction({}, consumer)
            await producer.close()

    asyncio.run(scenario())


def test_records_and_positions_with_metadata_are_committed_together_or_not_at_all(
    cluster: Cluster, protocol: str
) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, source=1, out=1) as broker:
            source, out = (TopicPartition(f"{cluster.name}.{name}", 0) for name in ("source", "out"))
            consumer, recorder = broker.consumer(cluster.name, [source.topic]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            producer = broker.producer(transactional_id=cluster.name)
            for round_, undone in ((1, True), (2, False), (3, True), (4, False)):
                producer.send(out.topic, b"k", b"%d" % round_, NOW)
                await producer.flush()
                if undone:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction({source: Position(round_, f"round {round_}")}, consumer)
            assert await consumer.committed([source]) == {source: Position(4, "round 4")}
            reader = broker.reader({out: 0})
            batches = await read(reader, 2)
            assert [value for batch in batches for value in batch.values] == [b"2", b"4"]
            # The end lies behind the marker of the last transaction, where no record is.
            while batches[-1].position != batches[-1].end:
                batches += await reader.poll(1.0)
            assert batches[-1].position == 8
            await reader.close()
            await producer.close()
            await consumer.close()

    asyncio.run(scenario())


def test_positions_of_a_partition_that_went_away_undo_the_transaction(cluster: Cluster, protocol: str) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, source=1, out=1) as broker:
            source, out = (TopicPartition(f"{cluster.name}.{name}", 0) for name in ("source", "out"))
            consumer, recorder = broker.consumer(cluster.name, [source.topic]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            producer = broker.producer(transactional_id=cluster.name)
            producer.send(out.topic, b"k", b"never", NOW)
            await producer.ready()
            await consumer.close()
            with pytest.raises(TransactionAborted):
                await producer.commit_transaction({source: Position(1)}, consumer)
            assert (await broker.describe_group(cluster.name)).positions == {}
            producer.send(out.topic, b"k", b"later", NOW)
            await producer.commit_transaction({}, consumer)
            reader = broker.reader({out: 0})
            assert [value for batch in await read(reader, 1) for value in batch.values] == [b"later"]
            await reader.close()
            await producer.close()

    asyncio.run(scenario())


def test_a_member_says_what_keeps_it_from_taking_over(
    cluster: Cluster, protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction that nobody ends withholds the positions which it covers."""
    monkeypatch.setattr(member_module, "REQUEST", 0.2)
    monkeypatch.setattr(member_module, "WITHHELD", 0.1)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "agentic.kafka"]

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, source=1) as broker:
            source = TopicPartition(f"{cluster.name}.source", 0)
            first, one = broker.consumer(cluster.name, [source.topic]), Recorder()
            await first.start(one)
            await until(lambda: one.owned, [first])
            stuck = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": cluster.name})
            await asyncio.to_thread(stuck.init_transactions, PATIENCE)
            stuck.begin_transaction()
            covered = [Partition(source.topic, source.partition, 1)]
            metadata = await first.group_metadata()
            await asyncio.to_thread(stuck.send_offsets_to_transaction, covered, metadata, PATIENCE)
            await first.close()
            second, two = broker.consumer(cluster.name, [source.topic]), Recorder()
            await second.start(two)
            await until(lines, [second])
            assert not two.owned
            await asyncio.to_thread(stuck.abort_transaction, PATIENCE)
            await until(lambda: two.owned, [second])
            await second.close()

    with caplog.at_level(logging.WARNING, "agentic.kafka"):
        asyncio.run(scenario())
    (line,) = lines()
    assert f"{cluster.name}.source-0 not taken over" in line and "kafka-transactions.sh" in line


def test_a_second_producer_with_the_same_id_fences_the_first(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open(out=1) as broker:
            out = f"{cluster.name}.out"
            consumer = broker.consumer(cluster.name, [out])
            first, second = (broker.producer(transactional_id=cluster.name) for _ in range(2))
            first.send(out, b"k", b"first", NOW)
            await first.ready()
            second.send(out, b"k", b"second", NOW)
            await second.ready()
            with pytest.raises(Fenced, match=cluster.name):
                await first.commit_transaction({}, consumer)
            with pytest.raises(Fenced, match=cluster.name):
                await first.ready()
            await second.commit_transaction({}, consumer)
            await first.close()
            await second.close()
            reader = broker.reader({TopicPartition(out, 0): 0})
            assert [value for batch in await read(reader, 1) for value in batch.values] == [b"second"]
            await reader.close()

    asyncio.run(scenario())


def test_a_record_that_is_too_large_undoes_its_transaction_and_is_named(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open({"message.max.bytes": 2_000_000}, out=1) as broker:
            out = f"{cluster.name}.out"
            consumer = broker.consumer(cluster.name, [out])
            producer = broker.producer(transactional_id=cluster.name)
            producer.send(out, b"k", b"x" * 1_500_000, NOW)
            with pytest.raises(RecordTooLarge, match=out):
                await producer.commit_transaction({}, consumer)
            producer.send(out, b"k", b"fits", NOW)
            await producer.commit_transaction({}, consumer)
            await producer.close()

    asyncio.run(scenario())


def test_a_topic_is_described_as_it_was_made(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open() as broker:
            spec = TopicSpec(cluster.name, 2, 3_600_000, 1_000_000, True, {"segment.ms": "60000"})
            await broker.create_topics([spec])
            info = await broker.describe_topic(spec.name)
            assert (info.partitions, info.retention_ms, info.retention_bytes, info.compacted) == (
                2,
                3_600_000,
                1_000_000,
                True,
            )
            await broker.delete_topics([spec.name])
            with pytest.raises(UnknownTopic, match=spec.name):
                await broker.describe_topic(spec.name)
            # Kafka tells of a retention of seven days here as well.
            compacted = TopicSpec(f"{cluster.name}-compacted", compacted=True)
            await broker.create_topics([compacted])
            info = await broker.describe_topic(compacted.name)
            assert (info.retention_ms, info.retention_bytes, info.compacted) == (None, None, True)
            await broker.delete_topics([compacted.name])

    asyncio.run(scenario())
