"""Rows that are too large for a record of their changelog: the error names them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Stream, Topic
from agentic.brokers.base import TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import AgenticError, RecordTooLarge
from agentic.runtime.changelogs import row_too_large
from agentic.runtime.state import TaskState
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.state.memory import MemoryStore

LIMIT = 1_000


def refused(app: App, events: Topic[Any, Any], values: list[bytes]) -> AgenticError:
    """Let a worker fail on events of one key; return how."""

    async def scenario() -> BaseException | None:
        broker = MemoryBroker("memory://", {"record_limit": LIMIT})
        await broker.create_topics([TopicSpec(events.name, 1)])
        producer = broker.producer()
        for timestamp, value in enumerate(values):
            producer.send(events.name, b"tea", value, timestamp)
        await producer.flush()
        await producer.close()
        worker = Worker(app, broker=broker, stores=MemoryStores())
        await worker.start()
        await asyncio.wait_for(worker.stopping.wait(), 30)
        await worker.stop()
        return worker.failure

    failure = asyncio.run(scenario())
    assert isinstance(failure, RecordTooLarge)
    return failure


def app_with(delivery: Any = "at_least_once", **table: Any) -> tuple[App, Topic[Any, Any]]:
    app = App("shop", topic_partitions=1, commit_interval=timedelta(milliseconds=10), delivery=delivery)
    events = app.topic("events", key=str, value=str)
    small = app.table("small", key=str, value=str)
    rows = app.table("rows", key=str, value=str, **table)

    @app.agent(events)
    async def keep(stream: Stream[str]) -> None:
        async for value in stream:
            small[stream.event.key] = "small"
            rows[stream.event.key] = value * 200

    return app, events


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_row_that_no_record_takes_is_named_by_table_and_key(delivery: str) -> None:
    app, events = app_with(delivery)
    said = str(refused(app, events, [b"123456"]))
    assert said.startswith("table 'rows', key 'tea': its row of 1,200 bytes is too large for a record: ")
    assert "'shop-rows-changelog'" in said and str(LIMIT) in said


def test_of_versions_that_are_too_many_it_is_said_how_many_they_are_and_what_helps() -> None:
    app, events = app_with(versioned=timedelta(hours=1))
    said = str(refused(app, events, [b"12"] * 5))
    assert "table 'rows', key 'tea': its " in said
    assert " versions take " in said
    assert "shorten versioned=" in said


def test_an_output_that_is_too_large_is_no_tables_row() -> None:
    app, _ = app_with()
    state = TaskState("events-0", 0, 1, list(app.tables.values()), MemoryStore(), stores=MemoryStores())
    error = RecordTooLarge("topic 'out': a record of 1200 bytes")
    assert row_too_large([state], error) is error
