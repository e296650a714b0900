"""Topics that an app makes for itself on Kafka."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from agentic import App, brokers
from agentic.brokers.base import ANY_TIME_CONFIG, Broker, TopicSpec


def run(url: str, scenario: Any) -> None:
    async def opened() -> None:
        broker = brokers.connect(url)
        await broker.open(20)
        try:
            await scenario(broker)
        finally:
            await broker.close()

    asyncio.run(opened())


def test_a_changelog_takes_the_time_of_any_event(kafka_bootstrap: str) -> None:
    """Since Kafka 4 a topic refuses by default what is more than an hour ahead of its clock."""
    app = App(f"future-{uuid.uuid4().hex[:8]}")
    spec = app.table("rows", key=str, value=int).spec(1)
    assert spec is not None

    async def scenario(broker: Broker) -> None:
        await broker.create_topics([spec])
        producer = broker.producer()
        producer.send(spec.name, b"k", b"1", 4_102_444_800_000)
        await producer.flush()
        await producer.close()
        await broker.delete_topics([spec.name])

    run(f"kafka://{kafka_bootstrap}", scenario)


def test_an_older_broker_that_does_not_know_the_property_gets_the_topic_without(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentic.brokers.kafka import admin

    unknown = "message.timestamp.of.no.version"
    monkeypatch.setattr(admin, "ANY_TIME", unknown)
    name = f"older-{uuid.uuid4().hex[:8]}"

    async def scenario(broker: Broker) -> None:
        await broker.create_topics([TopicSpec(name, 1, config={unknown: "1", **ANY_TIME_CONFIG})])
        assert (await broker.topics())[name] == 1
        await broker.delete_topics([name])

    run(f"kafka://{kafka_bootstrap}", scenario)
