"""Rows out of a changelog whose keys were of another type."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from agentic import App, Stream
from agentic.brokers.base import TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.core.versioned import NOTHING_OBSERVED
from agentic.errors import StateMismatch
from agentic.runtime.replay import replay
from agentic.runtime.stores import MemoryStores
from agentic.runtime.tables import Layout
from agentic.runtime.worker import Worker
from agentic.state.envelope import unwrap
from agentic.state.memory import MemoryStore
from agentic.testing import TestDriver


class Seat(msgspec.Struct, frozen=True):
    row: int


def rows_of(declared: Any, keys: Sequence[bytes | None]) -> dict[bytes, bytes | None]:
    """What a table with keys of a type gets from a changelog with these."""
    table = App("shop").table("totals", key=declared, value=int)
    found = replay(table, Layout(table), MemoryStore(), NOTHING_OBSERVED)
    found.add(keys, [b"1"] * len(keys), [1] * len(keys))
    return {key: None if blob is None else unwrap(blob)[0] for key, blob in found.take().items()}


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        (int, b"ann"),
        (int, b'"ann"'),
        (str, b"\xff\xfe"),
        (tuple[str, int], b"ann"),
        (tuple[str, int], b'["ann"]'),
        (date, b'"ann"'),
        (uuid.UUID, b"7"),
        (bool, b"1"),
        (Seat, b'["ann",1]'),
    ],
)
def test_keys_of_another_type_are_not_taken_for_keys(declared: Any, key: bytes) -> None:
    with pytest.raises(StateMismatch) as caught:
        rows_of(declared, [None, key])
    for part in ("'shop-totals-changelog'", "table 'totals'", repr(key), "not ", "'agentic reset'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("declared", "key"), [(int, b"7"), (str, b"ann"), (bytes, b"\xff"), (Seat, b'{"row":1}')])
def test_keys_of_the_tables_type_are(declared: Any, key: bytes) -> None:
    assert list(rows_of(declared, [None, key]).values()) == [b"1"]


def test_a_worker_does_not_begin_with_a_changelog_of_other_keys() -> None:
    def app(declared: Any) -> App:
        app = App("shop", topic_partitions=1)
        clicks = app.topic("clicks", key=str, value=str)
        totals = app.table("totals", key=declared, value=int, check_keys=False)

        @app.agent(clicks)
        async def count(stream: Stream[str]) -> None:
            async for _ in stream:
                totals[stream.event.key] = 1

        return app

    async def scenario() -> BaseException | None:
        broker = MemoryBroker()
        await broker.create_topics([TopicSpec("clicks", 1)])
        producer = broker.producer()
        producer.send("clicks", b"ann", b"/tea", 1)
        await producer.flush()
        await producer.close()
        first = Worker(app(str), broker=broker, stores=MemoryStores())
        await first.start()
        await first.used_up()
        await first.stop()
        second = Worker(app(int), broker=broker, stores=MemoryStores())
        await second.start()
        await second.stopping.wait()
        await second.stop()
        return second.failure

    failure = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert isinstance(failure, StateMismatch) and "table 'totals'" in str(failure)


@pytest.mark.parametrize("hours", [5, -5])
def test_a_moment_before_the_year_1_or_after_9999_in_utc_is_a_key_as_any_other(hours: int) -> None:
    edge = datetime.min if hours > 0 else datetime.max
    moment = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    app = App("shop", topic_partitions=1)
    moments, others = app.topic("moments", key=datetime, value=int), app.topic("others", key=str)
    filled = app.table("filled", source=moments)
    written = app.table("written", key=datetime, value=int)

    @app.agent(others)
    async def look(stream: Stream[Any]) -> None:
        async for event in stream.events():
            filled.get(event.key)

    @app.agent(moments)
    async def write(stream: Stream[int]) -> None:
        async for n in stream:
            written[stream.event.key] = n

    with TestDriver(app) as driver:
        driver.send(moments, 1, key=moment)
        driver.crash()
        driver.send(moments, 2, key=moment)
        assert driver.table(filled) == driver.table(written) == {moment: 2}
