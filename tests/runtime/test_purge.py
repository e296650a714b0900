"""Repartition topics: what is committed is removed, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.brokers.base import Broker, TopicPartition
from agentic.brokers.kafka import KafkaBroker
from agentic.brokers.memory import MemoryBroker
from agentic.errors import BrokerError
from agentic.runtime.purge import EVERY, purgeable
from agentic.runtime.worker import Worker
from agentic.table import Table
from agentic.testing import TestDriver
from agentic.topic import Topic

Order = dict[str, Any]


def customer_of(order: Order) -> str:
    customer: str = order["customer"]
    return customer


def ordering(
    name: str = "ordering", **options: Any
) -> tuple[App, Topic[str, Order], Topic[str, Order], Table[str, int]]:
    app = App(name, topic_partitions=1, create_topics=True, **options)
    orders = app.topic(f"{name}-orders", key=str, value=dict, config={"retention.ms": "-1"})
    by_customer = orders.group_by(customer_of, key=str, name="by-customer")
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(by_customer)
    async def add(stream: Stream[Order]) -> None:
        async for order in stream:
            totals[stream.event.key] += order["amount"]

    return app, orders, by_customer, totals


def bounds(driver: TestDriver, topic: Topic[Any, Any], partition: int = 0) -> tuple[int, int]:
    return driver.run(driver._keeper.describe_topic(topic.name)).offsets[partition]


def order(driver: TestDriver, orders: Topic[str, Order], count: int = 1) -> None:
    for _ in range(count):
        driver.send(orders, {"customer": "a", "amount": 1}, key="1")


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_is_committed_is_removed_now_and_then(delivery: str) -> None:
    app, orders, by_customer, totals = ordering(delivery=delivery)
    with TestDriver(app) as driver:
        order(driver, orders, 3)
        assert bounds(driver, by_customer) == (0, 3)
        driver.advance(EVERY - 1)
        order(driver, orders)
        assert bounds(driver, by_customer) == (0, 4)
        driver.advance(1)
        assert bounds(driver, by_customer) == (4, 4)
        order(driver, orders, 2)
        driver.crash()
        assert driver.table(totals) == {"a": 6}
        order(driver, orders)
        driver.advance(EVERY)
        assert bounds(driver, by_customer) == (7, 7)
        assert bounds(driver, orders) == (0, 7)
        assert driver.table(totals) == {"a": 7}


def test_a_worker_that_stops_removes_what_it_has_committed() -> None:
    app, orders, by_customer, _ = ordering()
    keeper = MemoryBroker(f"memory://{uuid.uuid4().hex}", {})
    app.configure(broker=keeper.url)

    async def scenario() -> Mapping[int, tuple[int, int]]:
        worker = Worker(app, broker=MemoryBroker(keeper.url, {}))
        await worker.start()
        await send(keeper, orders, 5)
        await worker.used_up()
        await worker.stop()
        assert worker.failure is None
        return (await keeper.describe_topic(by_customer.name)).offsets

    assert asyncio.run(scenario()) == {0: (5, 5)}


async def send(broker: Broker, orders: Topic[str, Order], count: int) -> None:
    producer = broker.producer()
    for n in range(count):
        producer.send(orders.name, b"%d" % n, b'{"customer": "a", "amount": 1}', 1_700_000_000_000)
    await producer.flush()
    await producer.close()


def test_an_event_under_way_keeps_its_record() -> None:
    app = App("waiting", topic_partitions=1)
    orders = app.topic("orders", key=str, value=dict)
    by_customer = orders.group_by(customer_of, key=str, name="by-customer")

    @app.agent(by_customer)
    async def work(stream: Stream[Order]) -> None:
        async for order in stream:
            await asyncio.sleep(order["amount"])

    with TestDriver(app) as driver:
        for amount in (0, 0, 100, 0):
            driver.send(orders, {"customer": "a", "amount": amount}, key="1")
        driver.advance(EVERY)
        assert bounds(driver, by_customer) == (2, 4)
        driver.advance(100)
        driver.advance(EVERY)
        assert bounds(driver, by_customer) == (4, 4)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(["order", "order", "crash", "wait"]), max_size=25))
def test_totals_are_right_whatever_was_removed_and_lost(moves: list[str]) -> None:
    app, orders, by_customer, totals = ordering(delivery="exactly_once")
    count = 0
    with TestDriver(app) as driver:
        for move in moves:
            if move == "order":
                order(driver, orders)
                count += 1
            elif move == "crash":
                driver.crash()
            else:
                driver.advance(EVERY)
            start, end = bounds(driver, by_customer)
            assert start <= end == count
        assert driver.table(totals).get("a", 0) == count


def test_a_topic_that_a_table_is_restored_from_is_kept() -> None:
    app = App("filled", topic_partitions=1)
    orders = app.topic("orders", key=str, value=dict)
    latest = app.table("latest", source=orders.group_by(customer_of, key=str, name="latest"))
    everywhere = app.global_table("everywhere", source=orders.group_by(customer_of, key=str, name="everywhere"))
    counted = orders.group_by(customer_of, key=str, name="counted")
    totals = latest.group_by(lambda key, order: order["amount"], key=int).count("totals")

    @app.agent(counted)
    async def look(stream: Stream[Order]) -> None:
        async for _ in stream:
            latest.get(stream.event.key)
            everywhere.get(stream.event.key)

    assert purgeable(app) == {counted.name, "filled-totals-repartition"}
    with TestDriver(app) as driver:
        driver.send(orders, {"customer": "a", "amount": 1}, key="1")
        driver.advance(EVERY)
        assert bounds(driver, counted) == (1, 1)
        assert bounds(driver, app.topics["filled-latest-repartition"]) == (0, 1)
        assert bounds(driver, app.topics["filled-everywhere-repartition"]) == (0, 1)
        assert bounds(driver, app.topics["filled-totals-repartition"]) == (1, 1)
        driver.crash()
        assert driver.table(latest) == {"a": {"customer": "a", "amount": 1}}
        assert driver.table(totals) == {1: 1}


def test_a_topic_of_the_users_own_is_left_alone() -> None:
    app = App("own", topic_partitions=1)
    internal = app.topic("work", key=str, value=str, internal=True)

    @app.agent(internal)
    async def look(stream: Stream[str]) -> None:
        async for _ in stream:
            ...

    with TestDriver(app) as driver:
        driver.send(internal, "x", key="1")
        driver.advance(EVERY)
        assert bounds(driver, internal) == (0, 1)


def test_a_broker_that_refuses_is_told_once_an_incident(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, orders, by_customer, totals = ordering()
    real = MemoryBroker.delete_records

    async def refuse(self: MemoryBroker, offsets: Mapping[TopicPartition, int]) -> None:
        raise BrokerError("no DELETE for this user")

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if "purged" in record.getMessage()]
        caplog.clear()
        return lines

    with TestDriver(app) as driver, caplog.at_level(logging.INFO, "agentic"):
        monkeypatch.setattr(MemoryBroker, "delete_records", refuse)
        order(driver, orders, 2)
        driver.advance(10 * EVERY)
        assert bounds(driver, by_customer) == (0, 2)
        assert told() == [
            "repartition topics are not purged and grow, tried again every 30 s: no DELETE for this user",
        ]
        monkeypatch.setattr(MemoryBroker, "delete_records", real)
        driver.advance(10 * EVERY)
        assert bounds(driver, by_customer) == (2, 2)
        assert told() == ["repartition topics are purged again"]
        order(driver, orders)
        assert driver.table(totals) == {"a": 3}


def test_a_broker_that_does_not_answer_holds_no_stop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    app, orders, _, totals = ordering()

    async def hang(self: MemoryBroker, offsets: Iterable[TopicPartition]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MemoryBroker, "delete_records", hang)
    with TestDriver(app) as driver:
        order(driver, orders)
        driver.advance(2 * EVERY)
        order(driver, orders)
        assert driver.table(totals) == {"a": 2}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_on_kafka_a_restarted_worker_goes_on_where_records_were_removed(
    kafka_bootstrap: str, delivery: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("agentic.runtime.purge.EVERY", 0.2)
    name = f"purge-{uuid.uuid4().hex[:12]}"
    app, orders, by_customer, totals = ordering(
        name, delivery=delivery, state_dir=str(tmp_path), commit_interval=timedelta(milliseconds=50)
    )

    async def removed(broker: Broker) -> None:
        """Return when nothing is left of the first hundred."""
        async with asyncio.timeout(60):
            while (await broker.describe_topic(by_customer.name)).offsets[0][0] < 100:  # noqa: ASYNC110 - a broker has no event
                await asyncio.sleep(0.1)

    async def round_(number: int) -> dict[str, int]:
        broker = KafkaBroker(f"kafka://{kafka_bootstrap}", {})
        worker = Worker(app, broker=broker, transactional_id=f"{name}-{number}")
        await worker.start()
        await send(broker, orders, 100)
        await worker.used_up()
        if number == 0:
            await removed(broker)
            await send(broker, orders, 100)
            await worker.used_up()
        assert worker.assignment is not None
        rows = {key: value for state in worker.assignment.states() for _, key, value in state.rows(totals)}
        await worker.stop()
        assert worker.failure is None
        return rows

    async def scenario() -> tuple[dict[str, int], tuple[int, int]]:
        await round_(0)
        rows = await round_(1)
        broker = KafkaBroker(f"kafka://{kafka_bootstrap}", {})
        await broker.open(30)
        bounds = (await broker.describe_topic(by_customer.name)).offsets[0]
        await broker.delete_topics([topic for topic in await broker.topics() if topic.startswith(name)])
        await broker.delete_group(name)
        await broker.close()
        return rows, bounds

    rows, (start, end) = asyncio.run(scenario())
    assert rows == {"a": 300}
    assert 300 <= start <= end
