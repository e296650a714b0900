"""A seek holds, whatever happens before its first record comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from kafka_support import PATIENCE, Cluster, Recorder, read, until

from agentic.brokers.base import Position, TopicPartition
from agentic.brokers.kafka.member import Member, Protocols
from agentic.runtime.outbox import wall_ms

TP = TopicPartition("t", 0)


def test_a_pause_right_after_a_seek_does_not_undo_it(cluster: Cluster, protocol: str) -> None:
    """Nothing is read between the two, so that the last record consumed is one from before the seek."""

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, numbers=1) as broker:
            topic = f"{cluster.name}.numbers"
            tp = TopicPartition(topic, 0)
            producer = broker.producer()
            for n in range(100):
                producer.send(topic, None, b"%d" % n, wall_ms(), None, 0)
            await producer.flush()
            await producer.close()
            consumer = broker.consumer(cluster.name, [topic])
            listener = Recorder()
            await consumer.start(listener)
            await until(lambda: listener.owned, [])
            await read(consumer, 100)
            member: Any = consumer._member
            # In one go, as when the hand-over is full: no record can come in between.
            done = asyncio.gather(
                consumer.seek({tp: 40}), member.call(member.pause, [tp]), member.call(member.resume, [tp])
            )
            await done
            again = await read(consumer, 60)
            assert [offset for batch in again for offset in batch.offsets] == list(range(40, 100))
            await consumer.close()

    asyncio.run(scenario())


def record(offset: int) -> Message:
    return Message(topic=TP.topic, partition=TP.partition, offset=offset)


def end(offset: int) -> Message:
    """The word that a partition's end is reached."""
    return Message(topic=TP.topic, partition=TP.partition, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


class Scripted:
    """A consumer that hands over what a test says, and notes where it was sent."""

    def __init__(self) -> None:
        self.script: list[Message] = []
        self.sought: list[int] = []

    def poll(self, timeout: float) -> Message | None:
        return self.script.pop(0) if self.script else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        words, self.script = self.script, []
        return words

    def seek(self, partition: Any) -> None:
        self.sought.append(partition.offset)

    def get_watermark_offsets(self, partition: Any, cached: bool) -> tuple[int, int]:
        return 0, -1


@pytest.fixture
def ends() -> Iterator[Any]:
    """Play messages to a member that has just sought offset 40; return the ends it passed on, and its seeks since."""
    loop = asyncio.new_event_loop()
    nobody: Any = None
    lots: list[Any] = []
    member: Any = Member(
        "g",
        ["t"],
        loop,
        nobody,
        lots.append,
        lambda error: None,
        instance=None,
        offset_reset="earliest",
        session=1.0,
        protocols=Protocols({}),
        make_config=lambda classic: {},
        error_cb=lambda error: None,
    )
    member._joined = True
    member._consumer = consumer = Scripted()
    member._owned[TP] = object()
    member.seek({TP: 40})
    consumer.sought.clear()

    def play(*turns: list[Message]) -> tuple[list[int], list[int]]:
        for turn in turns:
            consumer.script = turn
            member._turn()
            loop.run_until_complete(asyncio.sleep(0))
            member.taken = member._lots
        return [at for lot in lots for at in lot.ends.values()], consumer.sought

    yield play
    loop.close()


def test_the_end_from_before_a_seek_is_not_taken_for_the_end_after_it(ends: Any) -> None:
    """It comes late, the records behind it: it is neither passed on nor are the records passed over."""
    passed, sought = ends([end(100)], [record(n) for n in range(40, 100)], [end(100)])
    assert (passed, sought) == ([100], [40])


def test_an_end_from_behind_the_place_is_a_former_one(ends: Any) -> None:
    assert ends([end(30)], [end(40)]) == ([40], [])


def test_an_end_beyond_what_was_sought_is_believed_when_it_comes_again(ends: Any) -> None:
    """Nothing but transaction markers lies between."""
    assert ends([end(41)], [end(41)], [end(43)]) == ([41, 43], [40])


def test_an_end_after_the_first_record_is_believed_at_once(ends: Any) -> None:
    assert ends([record(40), end(42)], [end(50)]) == ([42, 50], [])


def test_the_end_is_heard_of_where_only_a_marker_is_left(cluster: Cluster, protocol: str) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            tp = TopicPartition(f"{cluster.name}.t", 0)
            consumer = broker.consumer(cluster.name, [tp.topic])
            producer = broker.producer(transactional_id=cluster.name)
            producer.send(tp.topic, b"k", b"v", wall_ms())
            await producer.commit_transaction({}, consumer)
            await producer.close()
            await broker.set_positions(cluster.name, {tp: Position(1)})
            await consumer.start(Recorder())
            for _ in range(2):
                batches = await until_batch(consumer)
                assert [(len(batch), batch.position, batch.end) for batch in batches] == [(0, 2, 2)]
                await consumer.seek({tp: 1})
            await consumer.close()

    asyncio.run(scenario())


async def until_batch(consumer: Any) -> list[Any]:
    """Poll until something comes."""
    batches: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while not batches:
            batches = await consumer.poll(1.0)
    return batches
