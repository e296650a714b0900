"""Taking over from a worker that is killed, with a standby and without: real processes, with disks of their own."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import pytest
from support import Process

from agentic import brokers
from agentic.brokers.base import Broker, TopicPartition, TopicSpec
from agentic.core.partitioning import partition_of

T = TypeVar("T")

#: Rows of the table, over its two partitions.
ROWS = 200_000
KEEP = {"retention.ms": "-1"}

MODULE = """
    import logging, time
    from agentic import App

    log = logging.getLogger("agentic.worker")
    app = App("{name}")
    events = app.topic("{name}-events", key=str, value=int)
    counts = app.topic("{name}-counts", key=str, value=int)
    rows = app.table("rows", key=str, value=int, default=int)
    assigned = 0.0

    class Watch(logging.Handler):
        def emit(self, record):
            global assigned
            if record.getMessage().startswith("assigned"):
                assigned = time.monotonic()

    log.addHandler(Watch())

    @app.agent(events, to=counts)
    async def count(stream):
        async for n in stream:
            rows[stream.event.key] += n
            log.info("an event after %.3f s", time.monotonic() - assigned)
            yield rows[stream.event.key]
"""


class Takeover(NamedTuple):
    """What it took: records read to complete the table, and seconds from the assignment to the first event."""

    restored: int
    seconds: float


async def prepare(broker: Broker, name: str) -> None:
    """Make the topics, and a changelog with `ROWS` rows, each with its number."""
    await broker.create_topics(
        [
            *(TopicSpec(f"{name}-{suffix}", 2, config=KEEP) for suffix in ("events", "counts")),
            TopicSpec(f"{name}-rows-changelog", 2, compacted=True),
        ]
    )
    producer = broker.producer()
    for n in range(ROWS):
        key = b"%d" % n
        producer.send(f"{name}-rows-changelog", key, key, 1_700_000_000_000, partition=partition_of(key, 2))
        if n % 5_000 == 0:
            await producer.ready()
    await producer.flush()
    await producer.close()


async def first_output(broker: Broker, name: str, partition: int) -> bytes | None:
    reader = broker.reader({TopicPartition(f"{name}-counts", partition): 0})
    try:
        async with asyncio.timeout(60):
            while True:
                for batch in await reader.poll(1):
                    if batch.values:
                        return batch.values[0]
    finally:
        await reader.close()


async def with_broker(url: str, work: Callable[[Broker], Awaitable[T]]) -> T:
    broker = brokers.connect(url)
    await broker.open(30)
    try:
        return await work(broker)
    finally:
        await broker.close()


async def send(broker: Broker, name: str, key: bytes) -> None:
    producer = broker.producer()
    producer.send(f"{name}-events", key, b"1000000", 1_700_000_000_000)
    await producer.flush()
    await producer.close()


async def clean_up(broker: Broker, name: str) -> None:
    await broker.delete_topics([topic for topic in await broker.topics() if topic.startswith(name)])
    if name in await broker.groups() and not (await broker.describe_group(name)).members:
        await broker.delete_group(name)


def worker(directory: pathlib.Path, name: str, **options: str) -> Process:
    """A worker with a disk of its own."""
    directory.mkdir()
    return Process(directory, MODULE.format(name=name), state_dir=str(directory / "state"), **options)


def take_over(url: str, directory: pathlib.Path, name: str, standbys: int, delivery: str) -> Takeover:
    """Kill a worker whose task has half of the rows, and have the other one do an event of it."""
    options = {"broker": url, "standbys": str(standbys), "delivery": delivery, "session_timeout": "6s"}
    restored = f"restored table rows of task {name}-events-"
    first = worker(directory / "a", name, **options)
    second = None
    try:
        for partition in range(2):
            first.wait_for(f"{restored}{partition}")
        second = worker(directory / "b", name, **options)
        partition = 1 - int(second.wait_for(restored).partition(restored)[2][0])
        if standbys:
            second.wait_for(f"the standby of task {name}-events-{partition} is up to date")
        before = len(second.lines)
        first.kill()
        key = next(b"%d" % n for n in range(ROWS) if partition_of(b"%d" % n, 2) == partition)
        asyncio.run(with_broker(url, partial(send, name=name, key=key)))
        seconds = float(second.wait_for("an event after").rpartition("after ")[2].split()[0])
        output = asyncio.run(with_broker(url, partial(first_output, name=name, partition=partition)))
        assert output == b"%d" % (int(key) + 1_000_000)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
        return Takeover(records(line for line in second.lines[before:] if restored in line), seconds)
    finally:
        first.kill()
        if second is not None:
            second.kill()


def records(lines: Iterable[str]) -> int:
    return sum(int(line.rpartition(": ")[2].split()[0]) for line in lines)


@pytest.mark.parametrize(
    ("kind", "delivery"),
    [("local", "at_least_once"), pytest.param("kafka", "exactly_once", marks=pytest.mark.kafka)],
)
def test_a_standby_shortens_the_takeover(
    kind: str, delivery: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    found = {}
    for standbys in (0, 1):
        directory = tmp_path / str(standbys)
        directory.mkdir()
        bootstrap = request.getfixturevalue("kafka_bootstrap") if kind == "kafka" else None
        url = f"kafka://{bootstrap}" if bootstrap else f"local://{directory / 'log'}"
        name = f"takeover-{uuid.uuid4().hex[:12]}"
        asyncio.run(with_broker(url, partial(prepare, name=name)))
        try:
            found[standbys] = take_over(url, directory, name, standbys, delivery)
        finally:
            asyncio.run(with_broker(url, partial(clean_up, name=name)))
        print(f"{kind}, {delivery}, standbys={standbys}: {found[standbys]}")
    # A quarter at least: keys are spread by their hash.
    assert found[0].restored > ROWS // 4
    assert found[1].restored <= 10
