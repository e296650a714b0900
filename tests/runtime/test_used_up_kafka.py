"""A worker that ends when its input is used up, on a real Kafka."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Stream
from agentic.brokers.base import TopicPartition
from agentic.brokers.kafka import KafkaBroker
from agentic.runtime.worker import Worker

COUNT = 500
KEEP = {"retention.ms": "-1"}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_one_agent_sends_to_another_is_input_although_its_commit_shows_late(
    kafka_bootstrap: str, delivery: Any
) -> None:
    """Kafka makes a transaction visible a moment after it has answered its commit."""
    name = f"chain-{uuid.uuid4().hex[:12]}"
    app = App(name, delivery=delivery, commit_interval=timedelta(milliseconds=50), create_topics=True)
    source, between, sink = (app.topic(f"{name}-{end}", value=int, config=KEEP) for end in ("in", "mid", "out"))

    @app.agent(source, to=between)
    async def first(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    @app.agent(between, to=sink)
    async def second(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    async def once(broker: KafkaBroker, round_: int) -> None:
        worker = Worker(app, broker=broker, transactional_id=f"round-{round_}")
        await worker.start()
        producer = broker.producer()
        for n in range(COUNT):
            producer.send(source.name, None, b"%d" % n, 1_700_000_000_000, None, n % 4)
        await producer.flush()
        await producer.close()
        await worker.used_up()
        await worker.stop()
        assert worker.failure is None

    async def scenario() -> int:
        for round_ in range(4):
            broker = KafkaBroker(f"kafka://{kafka_bootstrap}", {})
            await once(broker, round_)
        broker = KafkaBroker(f"kafka://{kafka_bootstrap}", {})
        await broker.open(30)
        seen = 0
        reader = broker.reader({TopicPartition(sink.name, n): 0 for n in range(4)})
        while batches := await reader.poll(2.0):
            seen += sum(map(len, batches))
        await reader.close()
        await broker.delete_topics([source.name, between.name, sink.name])
        await broker.close()
        return seen

    assert asyncio.run(scenario()) == 4 * COUNT
