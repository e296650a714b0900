"""Group members on a real broker, under both group protocols."""

from __future__ import annotations

import asyncio
import json
import logging
import pathlib
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence

import pytest
from kafka_support import PATIENCE, Cluster, Recorder, read, until

from agentic.brokers.base import Position, TopicPartition
from agentic.brokers.kafka import KafkaBroker
from agentic.brokers.kafka import poller as poller_module
from agentic.errors import BrokerError, Fenced, NotOwner

PEER = pathlib.Path(__file__).with_name("kafka_peer.py")


async def fill(broker: KafkaBroker, topic: str, partition: int, count: int) -> None:
    producer, now = broker.producer(), int(time.time() * 1_000)
    for n in range(count):
        producer.send(topic, b"%d" % n, b"value", now + n, None, partition)
    await producer.flush()
    await producer.close()


def test_a_second_member_takes_over_where_the_first_committed_while_it_gave_back(
    cluster: Cluster, protocol: str
) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, a=2, b=2) as broker:
            topics = [f"{cluster.name}.a", f"{cluster.name}.b"]
            for topic in topics:
                for partition in (0, 1):
                    await fill(broker, topic, partition, 5)
            first, second = (broker.consumer(cluster.name, topics) for _ in range(2))
            one, two = Recorder(), Recorder()

            async def commit_three(tps: Sequence[TopicPartition]) -> None:
                await first.commit({tp: Position(3, f"from {tp}") for tp in tps})

            one.revoked = commit_three
            await first.start(one)
            await until(lambda: len(one.owned) == 4, [first])
            await second.start(two)
            await until(lambda: len(one.owned) == 2 and len(two.owned) == 2, [first, second])
            # Both topics are split alike: that is what range is for.
            assert {tp.partition for tp in one.owned} | {tp.partition for tp in two.owned} == {0, 1}
            assert len({tp.partition for tp in one.owned}) == len({tp.partition for tp in two.owned}) == 1
            assert {two.positions[tp] for tp in two.owned} == {Position(3, f"from {tp}") for tp in two.owned}
            moved = next(iter(two.owned))
            with pytest.raises(NotOwner, match="nothing was committed"):
                await first.commit({moved: Position(5)})
            assert await second.committed([moved]) == {moved: Position(3, f"from {moved}")}
            await second.close()
            await first.close()
            assert not one.owned and not two.owned
            assert not one.overlapped and not two.overlapped

    asyncio.run(scenario())


def test_records_come_after_the_listener_from_where_it_sought(cluster: Cluster, protocol: str) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            topic = f"{cluster.name}.t"
            await fill(broker, topic, 0, 10)
            consumer, recorder = broker.consumer(cluster.name, [topic]), Recorder()

            async def seek_and_commit(positions: Mapping[TopicPartition, Position | None]) -> None:
                await consumer.seek(dict.fromkeys(positions, 7))
                await consumer.commit({tp: Position(7, "early") for tp in positions})

            recorder.assigned = seek_and_commit
            await consumer.start(recorder)
            batches = await read(consumer, 3)
            assert recorder.calls == ["assigned"]
            assert [offset for batch in batches for offset in batch.offsets] == [7, 8, 9]
            assert (batches[-1].position, batches[-1].end) == (10, 10)
            tp = batches[0].tp
            assert await consumer.committed([tp]) == {tp: Position(7, "early")}
            await consumer.close()

    asyncio.run(scenario())


def test_a_broker_without_the_new_protocol_gets_the_classic_one(kafka_classic: Cluster) -> None:
    async def scenario() -> None:
        async with kafka_classic.open(t=2) as broker:
            topic = f"{kafka_classic.name}.t"
            await fill(broker, topic, 0, 3)
            consumer, recorder = broker.consumer(kafka_classic.name, [topic]), Recorder()
            await consumer.start(recorder)
            assert sum(map(len, await read(consumer, 3))) == 3
            assert len(recorder.owned) == 2
            await consumer.close()

    asyncio.run(scenario())


def test_metadata_of_4095_characters_is_kept_and_more_is_refused(cluster: Cluster, protocol: str) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            consumer, recorder = broker.consumer(cluster.name, [f"{cluster.name}.t"]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            (tp,) = recorder.owned
            longest = Position(0, "é" * 4_095)
            await consumer.commit({tp: longest})
            with pytest.raises(BrokerError, match="metadata of 4096 characters"):
                await consumer.commit({tp: Position(0, "x" * 4_096)})
            assert await consumer.committed([tp]) == {tp: longest}
            await consumer.close()

    asyncio.run(scenario())


def test_a_second_worker_with_the_same_static_id_is_told_so(cluster: Cluster, protocol: str) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            topics = [f"{cluster.name}.t"]
            first, second = (
                broker.consumer(cluster.name, topics, instance="one", session_timeout=1.0) for _ in range(2)
            )
            one = Recorder()
            await first.start(one)
            await until(lambda: one.owned, [first])
            with pytest.raises(Fenced, match="'instance'"):
                if protocol == "consumer":
                    await second.start(Recorder())
                else:  # the classic protocol throws out the older one
                    await second.start(Recorder())
                    await until(lambda: False, [first])
            await second.close()
            await first.close()

    asyncio.run(scenario())


def test_what_a_member_lost_is_read_again_by_the_next_owner_from_where_it_was_committed(
    cluster: Cluster, protocol: str
) -> None:
    """Its process stands still for longer than its session, in the midst of its events."""
    options: dict[str, object] = {"group.protocol": protocol}
    if protocol == "classic":
        options["session.timeout.ms"] = 1_500  # under the other one the broker decides

    async def scenario() -> None:
        async with cluster.open(options, t=1) as broker:
            topic = f"{cluster.name}.t"
            await fill(broker, topic, 0, 5)
            command = [sys.executable, str(PEER), broker.url, json.dumps(options), cluster.name, topic]
            peer = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
            assert peer.stdin is not None and peer.stdout is not None
            second, two = broker.consumer(cluster.name, [topic]), Recorder()
            try:
                async with asyncio.timeout(PATIENCE):
                    assert [await peer.stdout.readline() for _ in range(2)] == [b"assigned\n", b"committed\n"]
                peer.send_signal(signal.SIGSTOP)
                await second.start(two)
                batches = await read(second, 2)
                assert [offset for batch in batches for offset in batch.offsets] == [3, 4]
                assert two.positions == {TopicPartition(topic, 0): Position(3, "half way")}
                peer.send_signal(signal.SIGCONT)
                async with asyncio.timeout(PATIENCE):
                    assert await peer.stdout.readline() == b"lost\n"
                    peer.stdin.close()
                    assert await peer.wait() == 0
            finally:
                if peer.returncode is None:
                    peer.kill()
                    await peer.wait()
            await second.close()

    asyncio.run(scenario())


def test_a_loop_that_stood_still_finds_its_place_and_can_commit(
    cluster: Cluster, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_module, "LIST", 10)
    monkeypatch.setattr(poller_module, "STALLED", 0.2)

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            topic = f"{cluster.name}.t"
            await fill(broker, topic, 0, 500)
            consumer, recorder = broker.consumer(cluster.name, [topic]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            (tp,) = recorder.owned
            member = consumer._member
            assert member is not None
            # Nobody takes anything: the hand-over is full, and the partitions come to be paused.
            await until(lambda: member._stalled)
            await consumer.commit({tp: Position(1, "in a jam")})
            assert await consumer.committed([tp]) == {tp: Position(1, "in a jam")}
            await consumer.seek({tp: 0})
            batches = await read(consumer, 500)
            assert [offset for batch in batches for offset in batch.offsets] == list(range(500))
            await consumer.close()

    asyncio.run(scenario())


def test_what_waits_is_kept_through_a_pause_and_dropped_by_a_seek(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.open(t=2) as broker:
            topic = f"{cluster.name}.t"
            for partition in (0, 1):
                await fill(broker, topic, partition, 100)
            consumer, recorder = broker.consumer(cluster.name, [topic]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            held, free = TopicPartition(topic, 0), TopicPartition(topic, 1)
            consumer.pause([held])
            await consumer.seek({held: 0, free: 0})
            batches = await read(consumer, 100)
            assert {batch.tp for batch in batches} == {free}
            consumer.resume([held])
            batches = await read(consumer, 100)
            assert [offset for batch in batches for offset in batch.offsets if batch.tp == held] == list(range(100))
            consumer.pause([held])
            await consumer.seek({held: 90})
            consumer.resume([held])
            batches = await read(consumer, 10)
            assert [offset for batch in batches for offset in batch.offsets] == list(range(90, 100))
            await consumer.close()

    asyncio.run(scenario())


def test_an_offset_that_retention_passed_is_reset_aloud(
    cluster: Cluster, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import TopicPartition as Partition
    from confluent_kafka.admin import AdminClient

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            topic = f"{cluster.name}.t"
            tp = TopicPartition(topic, 0)
            await fill(broker, topic, 0, 10)
            await broker.set_positions(cluster.name, {tp: Position(3)})
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            for future in admin.delete_records([Partition(topic, 0, 6)]).values():
                await asyncio.wrap_future(future)
            consumer = broker.consumer(cluster.name, [topic])
            await consumer.start(Recorder())
            batches = await read(consumer, 4)
            assert [offset for batch in batches for offset in batch.offsets] == [6, 7, 8, 9]
            await consumer.close()

    with caplog.at_level(logging.WARNING, "agentic.kafka"):
        asyncio.run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "agentic.kafka"]
    assert f"{cluster.name}.t-0: offset 3 is out of range" in line and "goes on at 6" in line


def test_an_error_in_the_listener_comes_out_of_poll(cluster: Cluster, protocol: str) -> None:
    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            consumer, recorder = broker.consumer(cluster.name, [f"{cluster.name}.t"]), Recorder()

            async def fail(_: object) -> None:
                raise ZeroDivisionError("in the listener")

            recorder.assigned = fail
            await consumer.start(recorder)
            with pytest.raises(ZeroDivisionError, match="in the listener"):
                await until(lambda: False, [consumer])
            await consumer.close()

    asyncio.run(scenario())


def test_a_partition_that_went_while_it_was_paused_flows_when_it_comes_back(cluster: Cluster, protocol: str) -> None:
    """The client pauses by itself what nobody takes, and librdkafka keeps that over a change of owner."""

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, a=2) as broker:
            topic = f"{cluster.name}.a"
            for partition in (0, 1):
                await fill(broker, topic, partition, 5)
            first, second = (broker.consumer(cluster.name, [topic]) for _ in range(2))
            one, two = Recorder(), Recorder()
            await first.start(one)
            await until(lambda: len(one.owned) == 2, [first])
            member = first._member
            assert member is not None
            await member.call(member.pause, list(one.owned))
            await second.start(two)
            await until(lambda: len(one.owned) == len(two.owned) == 1, [first, second])
            (moved,) = two.owned
            await second.close()
            await until(lambda: moved in one.owned, [first])
            await fill(broker, topic, moved.partition, 1)
            got: list[TopicPartition] = []
            while moved not in got:
                got += [batch.tp for batch in await asyncio.wait_for(first.poll(PATIENCE), PATIENCE) if batch.offsets]
            await first.close()

    asyncio.run(scenario())
