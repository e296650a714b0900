"""Records: what is sent is what is read, where it goes, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_support import RECORD_LIMIT, Log, read_all
from hypothesis import given
from hypothesis import strategies as st

from agentic.brokers.base import TopicPartition
from agentic.core.partitioning import partition_of
from agentic.errors import BrokerError, DeliveryFailed, RecordTooLarge, UnknownTopic


async def test_a_record_comes_back_as_it_was_sent(log: Log) -> None:
    records = [
        (b"key", b"value", 1_700_000_000_000, (("a", b"1"), ("b", b""), ("a", b"2"))),
        (None, b"value without key", 2, None),
        (b"tombstone", None, 2**40, None),
        (b"", b"", 1, (("ä", b"\x00\xff"),)),
        (None, None, 5, None),
    ]
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        for key, value, timestamp, headers in records:
            producer.send(topic, key, value, timestamp, headers, partition=0)
        await producer.flush()
        assert producer.backlog == 0
        found = (await read_all(broker, topic))[0]
        assert found == [(i, ts, key, value, headers or ()) for i, (key, value, ts, headers) in enumerate(records)]
        await producer.close()


async def test_a_timestamp_has_63_bits(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        topic = await embedded_log.topic(broker)
        producer = broker.producer()
        for timestamp in (0, 2**63 - 1):
            producer.send(topic, None, b"v", timestamp)
        for timestamp in (-1, 2**63):
            with pytest.raises(BrokerError, match=str(timestamp)):
                producer.send(topic, None, b"v", timestamp)
        await producer.flush()
        assert [row[1] for row in (await read_all(broker, topic))[0]] == [0, 2**63 - 1]
        await producer.close()


@pytest.mark.parametrize(
    "record",
    [{"key": "text"}, {"value": "text"}, {"value": 1}, {"headers": (("a", "text"),)}, {"headers": (("\ud800", b""),)}],
    ids=["text key", "text value", "number", "text header", "header's name"],
)
async def test_what_is_not_bytes_is_refused_and_hinders_no_other(embedded_log: Log, record: dict[str, Any]) -> None:
    async with embedded_log.open() as broker:
        topic = await embedded_log.topic(broker)
        producer = broker.producer()
        producer.send(topic, None, b"before", 1)
        with pytest.raises((TypeError, UnicodeEncodeError)):
            producer.send(topic, **{"key": None, "value": b"v", "timestamp": 1, **record})
        producer.send(topic, None, b"after", 1)
        await producer.flush()
        assert [row[3] for row in (await read_all(broker, topic))[0]] == [b"before", b"after"]
        await producer.close()


async def test_keys_go_where_kafkas_clients_put_them(log: Log) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"\x00\xff" * 9] + [b"key-%d" % i for i in range(100)]
    async with log.open() as broker:
        topic = await log.topic(broker, 7)
        producer = broker.producer()
        for key in keys:
            producer.send(topic, key, key, 1)
        await producer.flush()
        found = await read_all(broker, topic, 7)
        where = {row[2]: partition for partition, rows in found.items() for row in rows}
        assert where == {key: partition_of(key, 7) for key in keys}
        await producer.close()


async def test_null_keys_reach_all_partitions(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 3)
        tps = [TopicPartition(topic, n) for n in range(3)]
        producer = broker.producer()
        ends: dict[TopicPartition, int] = {}
        for _ in range(200):
            for i in range(10):
                producer.send(topic, None, b"%d" % i, 1)
            await producer.flush()
            ends = await broker.end_offsets(tps)
            if all(ends.values()):
                break
        assert all(ends.values())
        await producer.close()


async def test_null_keys_are_spread_evenly(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        topic = await embedded_log.topic(broker, 3)
        producer = broker.producer()
        for i in range(300):
            producer.send(topic, None, b"%d" % i, 1)
        await producer.flush()
        assert set((await broker.end_offsets(TopicPartition(topic, n) for n in range(3))).values()) == {100}
        await producer.close()


async def test_a_partition_that_is_given_is_taken(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 4)
        producer = broker.producer()
        for n in range(4):
            producer.send(topic, b"same", b"%d" % n, 1, partition=n)
        await producer.flush()
        found = await read_all(broker, topic, 4)
        assert {n: [row[3] for row in rows] for n, rows in found.items()} == {n: [b"%d" % n] for n in range(4)}
        await producer.close()


async def test_order_within_a_partition_is_the_order_of_sending(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        producer = broker.producer()
        for i in range(5_000):
            producer.send(topic, b"a" if i % 3 else b"b", b"%d" % i, i)
            if i % 700 == 0:
                await producer.ready()
                await asyncio.sleep(0)
        await producer.flush()
        found = await read_all(broker, topic, 2)
        for rows in found.values():
            for key in (b"a", b"b"):
                of_key = [int(row[3]) for row in rows if row[2] == key]
                assert of_key == sorted(of_key)
            assert [row[0] for row in rows] == list(range(len(rows)))
        assert sum(map(len, found.values())) == 5_000
        await producer.close()


async def test_records_are_written_without_a_flush(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        reader = broker.reader({TopicPartition(topic, 0): 0})
        producer.send(topic, b"k", b"v", 1)
        values: list[bytes | None] = []
        while not values:
            values += [value for batch in await reader.poll(5) for value in batch.values]
        assert values == [b"v"]
        await reader.close()
        await producer.close()


async def test_a_sender_that_waits_for_ready_has_a_bounded_backlog(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        for _ in range(20):
            for _ in range(500):
                producer.send(topic, b"k", b"v" * 100, 1)
            await producer.ready()
        await producer.flush()
        assert producer.backlog == 0
        assert await broker.end_offsets([TopicPartition(topic, 0)]) == {(topic, 0): 10_000}
        await producer.close()


async def test_a_record_that_is_too_large_is_refused_by_name(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        with pytest.raises((RecordTooLarge, DeliveryFailed), match=topic):
            producer.send(topic, b"k", b"x" * (RECORD_LIMIT + 1), 1)
            await producer.flush()
        producer.send(topic, b"k", b"x" * (RECORD_LIMIT // 2), 1)
        await producer.flush()
        assert [len(row[3]) for row in (await read_all(broker, topic))[0]] == [RECORD_LIMIT // 2]
        await producer.close()


async def test_a_record_of_sixty_megabytes_is_taken_by_default(local_log: Log) -> None:
    local_log.options = {}
    async with local_log.open() as broker:
        topic = await local_log.topic(broker)
        producer = broker.producer()
        producer.send(topic, b"k", b"x" * (60 << 20), 1)
        producer.send(topic, b"k", b"small", 1)
        await producer.flush()
        assert [len(row[3]) for row in (await read_all(broker, topic))[0]] == [60 << 20, 5]
        await producer.close()


async def test_a_topic_that_does_not_exist_is_refused_by_name(log: Log) -> None:
    async with log.open() as broker:
        unknown = log.name("unknown")
        producer = broker.producer()
        with pytest.raises((UnknownTopic, DeliveryFailed), match=unknown):
            producer.send(unknown, b"k", b"v", 1)
            await producer.flush()
        await producer.close()


async def test_a_partition_that_does_not_exist_is_refused(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        producer = broker.producer()
        with pytest.raises((UnknownTopic, DeliveryFailed), match=topic):
            producer.send(topic, b"k", b"v", 1, partition=2)
            await producer.flush()
        await producer.close()


async def test_records_for_a_topic_that_goes_fail_the_flush_once_and_others_are_written(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        going, staying = await embedded_log.topic(broker), await embedded_log.topic(broker)
        producer = broker.producer()
        producer.send(going, b"k", b"v", 1)
        producer.send(staying, b"k", b"v", 1)
        await broker.delete_topics([going])
        with pytest.raises(DeliveryFailed, match=going):
            await producer.flush()
        await producer.flush()
        assert await broker.end_offsets([TopicPartition(staying, 0)]) == {(staying, 0): 1}
        await producer.close()


async def test_a_reader_begins_where_it_is_told(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        for i in range(3_000):
            producer.send(topic, None, b"%d" % i, i)
        await producer.flush()
        tp = TopicPartition(topic, 0)
        for start in (0, 1, 999, 1_000, 2_345, 2_999):
            reader = broker.reader({tp: start})
            offsets: list[int] = []
            while len(offsets) < 3_000 - start:
                for batch in await reader.poll(5):
                    assert batch.tp == tp
                    assert [b"%d" % offset for offset in batch.offsets] == batch.values
                    offsets += batch.offsets
            assert offsets == list(range(start, 3_000))
            await reader.close()
        await producer.close()


async def test_a_reader_is_told_of_each_end_that_it_reaches(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        tp = TopicPartition(topic, 0)
        producer = broker.producer()
        reader = broker.reader({tp: 0})
        for end in (0, 1, 2):
            reached = False
            while not reached:
                reached = any(batch.position == batch.end == end for batch in await reader.poll(5))
            producer.send(topic, None, b"v", 1)
            await producer.flush()
        await reader.close()
        await producer.close()


async def test_a_reader_that_pauses_a_partition_goes_on_with_the_others_and_loses_nothing(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
        producer = broker.producer()

        async def send(value: bytes) -> None:
            for tp in (paused, other):
                producer.send(tp.topic, None, value, 1, partition=tp.partition)
            await producer.flush()

        await send(b"a")
        reader = broker.reader({paused: 0, other: 0})
        seen: dict[TopicPartition, list[bytes | None]] = {paused: [], other: []}

        async def until_seen(tp: TopicPartition, values: list[bytes]) -> None:
            while seen[tp] != values:
                for batch in await reader.poll(1):
                    seen[batch.tp] += batch.values

        await until_seen(paused, [b"a"])
        reader.pause([paused])
        await send(b"b")
        await until_seen(other, [b"a", b"b"])
        assert seen[paused] == [b"a"]
        reader.resume([paused])
        await until_seen(paused, [b"a", b"b"])
        await reader.close()
        await producer.close()


async def test_a_poll_without_news_is_empty(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        reader = broker.reader({TopicPartition(topic, 0): 0})
        while await reader.poll(0.5):
            pass
        assert await reader.poll(0.01) == []
        await reader.close()


async def test_a_reader_that_always_finds_something_leaves_the_loop_its_turn(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        for i in range(10_000):
            producer.send(topic, None, b"%d" % i, 1)
            if i % 1_000 == 0:
                await producer.ready()
        await producer.flush()
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(take_turns())
        reader = broker.reader({TopicPartition(topic, 0): 0})
        polls = seen = 0
        while seen < 10_000:
            polls += 1
            seen += sum(map(len, await reader.poll(5)))
        other.cancel()
        assert turns >= polls
        await reader.close()
        await producer.close()


async def test_a_cancelled_poll_loses_nothing(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        reader = broker.reader({TopicPartition(topic, 0): 0})
        values: list[bytes | None] = []
        for i in range(50):
            poll = asyncio.ensure_future(reader.poll(5))
            producer.send(topic, None, b"%d" % i, 1)
            await (producer.flush() if i % 2 else asyncio.sleep(0))
            poll.cancel()
            (result,) = await asyncio.gather(poll, return_exceptions=True)
            if isinstance(result, list):
                values += [value for batch in result for value in batch.values]
        await producer.flush()
        while len(values) < 50:
            values += [value for batch in await reader.poll(5) for value in batch.values]
        assert values == [b"%d" % i for i in range(50)]
        await reader.close()
        await producer.close()


@given(st.binary(max_size=40), st.integers(1, 50))
def test_the_fast_hash_is_the_model(key: bytes, partitions: int) -> None:
    from confluent_kafka import murmur2

    assert murmur2(key, partitions) == partition_of(key, partitions)
