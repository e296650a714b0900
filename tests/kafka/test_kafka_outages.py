"""A broker that goes away and comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from kafka_support import PATIENCE, Cluster, Recorder, read, until

from agentic.brokers.base import Position

NOW = int(time.time() * 1_000)
#: A broker that was killed is let in again after two seconds, and not after nine.
QUICK = ["broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500"]


def test_everything_goes_on_after_an_outage_and_the_log_has_two_lines_for_it(
    kafka_node: Any, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(kafka_node.bootstrap)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "agentic.kafka"]

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, t=1) as broker:
            topic = f"{cluster.name}.t"
            producer = broker.producer()
            consumer, recorder = broker.consumer(cluster.name, [topic]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            for n in range(5):
                producer.send(topic, b"k", b"%d" % n, NOW)
            await producer.flush()
            (tp,) = recorder.owned
            values = [value for batch in await read(consumer, 5) for value in batch.values]
            await consumer.commit({tp: Position(5)})
            kafka_node.kill()
            await until(lambda: len(lines()) == 1, [consumer])
            producer.send(topic, b"k", b"5", NOW)
            await asyncio.to_thread(kafka_node.start)
            await producer.flush()
            while b"5" not in values:
                values += [value for batch in await consumer.poll(1.0) for value in batch.values]
            assert values == [b"0", b"1", b"2", b"3", b"4", b"5"]
            await until(lambda: len(lines()) == 2, [consumer])
            async with asyncio.timeout(PATIENCE):
                while tp not in recorder.owned:
                    await consumer.poll(0.1)
            await consumer.commit({tp: Position(6)})
            await consumer.close()
            await producer.close()

    with caplog.at_level(logging.WARNING, "agentic.kafka"):
        asyncio.run(scenario())
    gone, back = lines()
    assert gone.startswith(f"kafka://{kafka_node.bootstrap}: no broker answers")
    assert back.startswith(f"kafka://{kafka_node.bootstrap}: answers again after")


@pytest.mark.parametrize("kafka_node", [QUICK], indirect=True, ids=["quick"])
def test_a_question_is_answered_by_the_broker_that_comes_back(kafka_node: Any) -> None:
    """The connection breaks while the question is under way; a worker may just be starting."""
    cluster = Cluster(kafka_node.bootstrap)

    async def scenario() -> None:
        async with cluster.open(t=3) as broker:
            kafka_node.freeze()
            question = asyncio.ensure_future(broker.topics())
            await asyncio.to_thread(kafka_node.kill)
            await asyncio.to_thread(kafka_node.start)
            assert (await question)[f"{cluster.name}.t"] == 3

    asyncio.run(scenario())


def test_a_broker_that_is_gone_holds_up_no_close(kafka_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentic.brokers.kafka import consumer as consumer_module
    from agentic.brokers.kafka import producer as producer_module

    monkeypatch.setattr(consumer_module, "CLOSE", 0.5)
    monkeypatch.setattr(producer_module, "CLOSE", 0.5)
    cluster = Cluster(kafka_node.bootstrap)

    async def scenario() -> None:
        async with cluster.open(t=1) as broker:
            topic = f"{cluster.name}.t"
            producer = broker.producer()
            consumer, recorder = broker.consumer(cluster.name, [topic]), Recorder()
            await consumer.start(recorder)
            await until(lambda: recorder.owned, [consumer])
            await producer.ready()
            kafka_node.freeze()
            try:
                producer.send(topic, b"k", b"v", NOW)
                async with asyncio.timeout(PATIENCE / 2):
                    await consumer.close()
                    await producer.close()
            finally:
                kafka_node.thaw()

    asyncio.run(scenario())
