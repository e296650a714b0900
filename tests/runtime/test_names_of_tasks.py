"""What a task is called: the same wherever it is named."""

from __future__ import annotations

import asyncio
from typing import Any

from agentic import App, Stream
from agentic.brokers.base import TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.cli.places import place_of
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.state.base import Store


class Opened(MemoryStores):
    """Stores that note for which task they were opened."""

    def __init__(self) -> None:
        self.tasks: set[str] = set()

    async def open(self, task: str, tables: Any) -> Store:
        self.tasks.add(task)
        return await super().open(task, tables)


def test_a_task_has_one_name_in_lines_on_the_disk_and_on_the_command_line() -> None:
    app = App("shop", topic_partitions=1)
    orders, clicks = app.topic("orders", key=str, value=str), app.topic("clicks", key=str, value=str)
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(orders, clicks)
    async def count(stream: Stream[str]) -> None:
        async for _ in stream:
            totals[stream.event.key] += 1

    async def scenario() -> tuple[set[str], set[str]]:
        broker, stores = MemoryBroker(), Opened()
        await broker.create_topics([TopicSpec(name, 1) for name in ("orders", "clicks")])
        worker = Worker(app, broker=broker, stores=stores)
        await worker.start()
        await worker.used_up()
        assert worker.assignment is not None
        names = {task.name for task in worker.assignment.tasks.values()}
        await worker.stop()
        return names, stores.tasks

    named, opened = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert named == opened == {"clicks-0"}
    assert place_of(app, totals, {"orders": 1, "clicks": 1}).task(0) == "clicks-0"
