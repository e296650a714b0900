"""Asking agents from another process, through the embedded log and through Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import runpy
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from support import Process

from agentic import App, AskFailed, AskTimeout, Stream
from agentic.brokers.kafka import KafkaBroker
from agentic.errors import ConfigurationError
from agentic.runtime.worker import Worker

DOUBLING = """
    import asyncio, os, sys
    from agentic import App

    app = App("doubling")
    numbers = app.topic("numbers", key=str, value=int, partitions=2)

    @app.agent(numbers, replies=True)
    async def double(stream):
        async for n in stream:
            if n == 0 and not os.path.exists("go"):
                print("asleep", file=sys.stderr, flush=True)
                await asyncio.sleep(1000)
            yield 2 * n
"""

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    processes: list[Process] = []

    def start(**options: str) -> Process:
        processes.append(Process(tmp_path, DOUBLING, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def declared(directory: pathlib.Path) -> tuple[App, Any]:
    """The app as another process that imports the module has it."""
    names = runpy.run_path(str(directory / "module.py"))
    app: App = names["app"]
    app.configure(broker=f"local://{directory / 'log'}")
    return app, names["double"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_clients_ask_the_worker_of_another_process(tmp_path: pathlib.Path, start: Start, delivery: str) -> None:
    worker = start(delivery=delivery, commit_interval="1h")
    worker.wait_for("ready")
    app, double = declared(tmp_path)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as later:
            async with app.client() as first:
                second = await later.enter_async_context(app.client())
                assert await first.ask(double, 1, key="a") == 2
                # As many as there are: each gets its own.
                asked = [(first, second)[n % 2].ask(double, n, key=str(n)) for n in range(1, 51)]
                assert await asyncio.gather(*asked) == [2 * n for n in range(1, 51)]
                await first.cast(double, 3, key="a")
            # One client's end is not another's.
            assert await second.ask_all(double, 4, key="a") == [8]
            assert await double.ask(5, key="a") == 10
        with pytest.raises(RuntimeError, match="needs a running worker of app 'doubling', or a client"):
            await double.ask(6, key="a")

    asyncio.run(scenario())


def test_a_request_outlives_the_worker_that_was_to_answer_it(tmp_path: pathlib.Path, start: Start) -> None:
    worker = start()
    worker.wait_for("ready")
    app, double = declared(tmp_path)

    async def scenario() -> None:
        async with app.client() as client:
            asking = asyncio.create_task(client.ask(double, 0, key="a", timeout=60))
            await asyncio.to_thread(worker.wait_for, "asleep")
            worker.signal(signal.SIGKILL)
            assert await asyncio.to_thread(worker.wait) == -signal.SIGKILL
            (tmp_path / "go").touch()
            start()
            assert await asking == 0

    asyncio.run(scenario())


def test_who_asks_where_nobody_answers_is_told_so(tmp_path: pathlib.Path) -> None:
    app = App("silent", broker=f"local://{tmp_path}")

    @app.agent(app.topic("numbers", value=int), replies=True)
    async def same(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    other = App("other")

    @other.agent(other.topic("numbers", value=int), replies=True)
    async def foreign(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    async def scenario() -> None:
        async with app.client() as client:
            with pytest.raises(AskTimeout, match=r"agent 'same' has not answered within 0\.05 s"):
                await client.ask(same, 1, timeout=timedelta(milliseconds=50))
            with pytest.raises(ConfigurationError, match="<Agent foreign> is no agent of app 'silent'"):
                await client.ask(foreign, 1)
            waiting = asyncio.create_task(client.ask(same, 1))
            # Long enough for it to be on its way: the client's end is to come while it waits.
            await client.cast(same, 2)
        with pytest.raises(AskFailed, match="app 'silent' has stopped here"):
            await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_agents_are_asked_over_kafka(kafka_bootstrap: str, tmp_path: pathlib.Path, delivery: Any) -> None:
    name = f"asking-{uuid.uuid4().hex[:12]}"
    app = App(name, broker=f"kafka://{kafka_bootstrap}", delivery=delivery, create_topics=True, state_dir=str(tmp_path))
    numbers = app.topic(f"{name}-numbers", key=str, value=int)

    @app.agent(numbers, replies=True)
    async def double(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield 2 * n

    async def scenario() -> None:
        worker = Worker(app, transactional_id="one")
        await worker.start()
        async with app.client() as client:
            assert await client.ask(double, 1, key="a") == 2
            asked = [client.ask(double, n, key=str(n)) for n in range(100)]
            assert await asyncio.gather(*asked) == [2 * n for n in range(100)]
        # Within the worker, too: there nothing is left of the client.
        assert await double.ask(3, key="a") == 6
        await worker.stop()
        assert worker.failure is None
        broker = KafkaBroker(f"kafka://{kafka_bootstrap}", {})
        await broker.open(30)
        assert (await broker.describe_topic(f"{name}-replies")).retention_ms == 3_600_000
        await broker.delete_topics([numbers.name, f"{name}-replies"])
        await broker.delete_group(name)
        await broker.close()

    asyncio.run(scenario())
