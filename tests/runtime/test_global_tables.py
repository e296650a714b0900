"""Global tables: a whole copy in each worker, there before the first event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentic import App, Stream
from agentic.errors import AgentFailed, ConfigurationError, DecodeFailed, TableUnavailable
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.table import GlobalTable
from agentic.testing import TestDriver
from agentic.topic import Topic


def pricing(
    **settings: Any,
) -> tuple[App, Topic[str, float], Topic[str, Any], Topic[str, float], GlobalTable[str, float]]:
    app = App("pricing", topic_partitions=3, **settings)
    rates = app.topic("rates", key=str, value=float)
    orders = app.topic("orders", key=str, value=dict)
    out = app.topic("out", key=str, value=float)
    table = app.global_table("rates", rates, default=lambda: 1.0)

    @app.agent(orders, to=out)
    async def price(stream: Stream[dict[str, Any]]) -> AsyncIterator[float]:
        async for order in stream:
            yield order["amount"] * table[order["currency"]]

    return app, rates, orders, out, table


def test_an_agent_looks_up_any_key_in_any_task() -> None:
    app, rates, orders, out, table = pricing()
    with TestDriver(app) as driver:
        for currency, rate in [("eur", 2.0), ("chf", 3.0), ("sek", 0.5)]:
            driver.send(rates, rate, key=currency)
        for partition, currency in enumerate(["eur", "chf", "sek"]):
            driver.send(orders, {"amount": 10, "currency": currency}, key="x", partition=partition)
        driver.send(orders, {"amount": 10, "currency": "usd"}, key="x")
        assert sorted(each.value for each in driver.outputs(out)) == [5.0, 10.0, 20.0, 30.0]
        assert driver.table(table) == {"chf": 3.0, "eur": 2.0, "sek": 0.5}


def test_it_follows_its_topic_and_survives_a_crash() -> None:
    app, rates, _, _, table = pricing()
    with TestDriver(app) as driver:
        driver.send(rates, 2.0, key="eur")
        driver.send(rates, 3.0, key="chf")
        driver.send(rates, 2.5, key="eur")
        driver.send(rates, None, key="chf")
        driver.crash()
        assert driver.table(table) == {"eur": 2.5}
        assert len(table) == 1


def test_the_first_event_finds_all_that_was_there() -> None:
    app, *_ = pricing()

    async def scenario() -> list[Any]:
        from agentic.brokers.memory import MemoryBroker
        from agentic.runtime import topics

        broker = MemoryBroker("memory://first-event", {})
        await broker.open(1)
        await topics.ensure(app, broker)
        producer = broker.producer()
        for n in range(500):
            producer.send("rates", f"c{n}".encode(), b"%d.0" % n, 0)
        producer.send("orders", b"x", b'{"amount":2,"currency":"c499"}', 0)
        await producer.flush()
        worker = Worker(app, broker=MemoryBroker("memory://first-event", {}), stores=MemoryStores())
        await worker.start()
        await worker.used_up()
        await worker.stop()
        assert worker.failure is None
        info = await broker.describe_topic("out")
        reader = broker.reader(dict.fromkeys(_partitions("out", info.partitions), 0))
        values = [value for batch in await reader.poll(1) for value in batch.values]
        await reader.close()
        await producer.close()
        await broker.close()
        return values

    assert asyncio.run(scenario()) == [b"998.0"]


def _partitions(topic: str, n: int) -> list[Any]:
    from agentic.brokers.base import TopicPartition

    return [TopicPartition(topic, number) for number in range(n)]


def test_nobody_writes_it_and_nobody_watches_it() -> None:
    app = App("readonly", topic_partitions=1)
    rates = app.topic("rates", key=str, value=float)
    table = app.global_table("rates", rates)

    @app.agent(rates)
    async def write(stream: Stream[float]) -> None:
        async for rate in stream:
            table["eur"] = rate

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match="'rates' is filled by topic 'rates'"):
        driver.send(rates, 2.0, key="eur")
    with pytest.raises(ConfigurationError, match="each worker has all of a global table"):
        table.changes()
    with pytest.raises(ConfigurationError, match="a global table is not aggregated"):
        table.group_by(lambda key, row: key, key=str)
    with pytest.raises(TableUnavailable, match="no worker of its app runs here"):
        table["eur"]


def test_it_brings_no_topics_together() -> None:
    app = App("apart")
    rates = app.topic("rates", key=str, value=float, partitions=1)
    few, many = app.topic("few", key=str, partitions=2), app.topic("many", key=str, partitions=3)
    table = app.global_table("rates", rates)
    seen = []

    async def look(stream: Stream[Any]) -> None:
        async for _ in stream:
            seen.append(table.get("eur"))

    app.agent(few, name="one")(look)
    app.agent(many, name="two")(look)
    with TestDriver(app) as driver:
        driver.send(rates, 2.0, key="eur")
        driver.send(few, 1, key="a")
        driver.send(many, 1, key="b")
    assert seen == [2.0, 2.0]


def test_a_record_that_cannot_be_decoded_meets_the_policy() -> None:
    app, rates, _, _, table = pricing(on_decode_error="skip")
    with TestDriver(app) as driver:
        driver.send_raw(rates, b"two", key=b"eur")
        driver.send(rates, 3.0, key="chf")
        assert driver.table(table) == {"chf": 3.0}
        assert driver.dropped == {"undecodable": 1}
    app, rates, *_ = pricing()
    with (
        pytest.raises(DecodeFailed, match=r"rates-\d offset 0 \(key b'eur'\), global table 'rates': value: not float"),
        TestDriver(app) as driver,
    ):
        driver.send_raw(rates, b"two", key=b"eur")
