"""Events and rows by another key: through a topic of the app's own, in the partition of that key."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.brokers.memory import MemoryBroker
from agentic.errors import ConfigurationError
from agentic.runtime import topics
from agentic.table import Table
from agentic.testing import TestDriver
from agentic.topic import Topic

Order = dict[str, Any]


def customer_of(order: Order) -> str | None:
    customer: str | None = order["customer"]
    return customer


def ordering(**options: Any) -> tuple[App, Topic[str, Order], Table[str, int], Topic[str, int]]:
    app = App("ordering", topic_partitions=3, **options)
    orders = app.topic("orders", key=str, value=dict)
    totals = app.table("totals", key=str, value=int, default=int)
    out = app.topic("out", key=str, value=int)

    @app.agent(orders.group_by(customer_of, key=str), to=out)
    async def add(stream: Stream[Order]) -> AsyncIterator[int]:
        async for order in stream:
            totals[stream.event.key] += order["amount"]
            yield totals[stream.event.key]

    return app, orders, totals, out


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_events_come_to_the_task_of_their_new_key(delivery: str) -> None:
    app, orders, totals, out = ordering(delivery=delivery)
    with TestDriver(app) as driver:
        for number, (customer, amount) in enumerate([("a", 1), ("b", 10), ("a", 2), ("c", 100), ("a", 4)]):
            driver.send(orders, {"customer": customer, "amount": amount}, key=str(number), timestamp=number)
            driver.crash()
        assert driver.table(totals) == {"a": 7, "b": 10, "c": 100}
        assert sorted((each.key, each.value, each.timestamp) for each in driver.outputs(out)) == [
            ("a", 1, 0),
            ("a", 3, 2),
            ("a", 7, 4),
            ("b", 10, 1),
            ("c", 100, 3),
        ]


def test_a_null_key_is_dropped_and_counted() -> None:
    app, orders, totals, _ = ordering()
    with TestDriver(app) as driver:
        driver.send(orders, {"customer": None, "amount": 1}, key="1")
        assert driver.table(totals) == {}
        assert driver.dropped == {"null_key": 1}


def test_headers_come_along() -> None:
    app = App("headers", topic_partitions=1)
    orders = app.topic("orders", key=str, value=dict)
    seen: list[Any] = []

    @app.agent(orders.group_by(customer_of, key=str))
    async def look(stream: Stream[Order]) -> None:
        async for _ in stream:
            seen.append((stream.event.key, stream.event.headers))

    with TestDriver(app) as driver:
        driver.send(orders, {"customer": "a"}, key="1", headers={"trace": "x"})
    assert seen == [("a", (("trace", b"x"),))]


async def partitions_of(app: App, **existing: int) -> dict[str, int]:
    from agentic.brokers.base import TopicSpec

    broker = MemoryBroker(f"memory://{app.name}", {})
    await broker.open(1)
    await broker.create_topics([TopicSpec(name, partitions) for name, partitions in existing.items()])
    try:
        return await topics.ensure(app, broker)
    finally:
        await broker.close()


def test_the_topic_has_as_many_partitions_as_what_it_is_used_with() -> None:
    import asyncio

    app = App("matching", topic_partitions=3)
    orders = app.topic("orders", key=str, value=dict)
    people = app.topic("people", key=str, value=str)
    names = app.table("names", source=people)
    alone = orders.group_by(customer_of, key=str, name="alone")

    @app.agent(alone)
    async def first(stream: Stream[Order]) -> None:
        async for _ in stream:
            ...

    @app.agent(orders.group_by(customer_of, key=str, name="joined"))
    async def second(stream: Stream[Order]) -> None:
        async for _ in stream:
            names.get("x")

    found = asyncio.run(partitions_of(app, orders=5, people=7))
    assert found["matching-alone-repartition"] == 5
    assert found["matching-joined-repartition"] == 7


def test_what_group_by_needs_is_asked_for() -> None:
    app = App("asking")
    orders = app.topic("orders", key=str, value=dict)
    with pytest.raises(ConfigurationError, match="a lambda has no name"):
        orders.group_by(lambda order: order["customer"], key=str)
    with pytest.raises(ConfigurationError, match=r"needs the type of the new keys: key=str"):
        orders.group_by(customer_of, key=None)
    orders.group_by(customer_of, key=str)
    with pytest.raises(ConfigurationError, match="'asking-orders-by-customer_of-repartition' is declared twice"):
        orders.group_by(customer_of, key=str)


# -- aggregating a table by another key -----------------------------------------------------------

Row = dict[str, Any]


def per_country(**options: Any) -> tuple[App, Topic[str, Row], Table[str, int], Table[str, int], Table[str, list[str]]]:
    app = App("countries", topic_partitions=2, **options)
    updates = app.topic("updates", key=str, value=dict)
    people = app.table("people", source=updates)
    by_country = people.group_by(lambda key, row: row["country"], key=str)
    counts = by_country.count("per-country")
    sums = by_country.sum("age-per-country", lambda row: row["age"])
    trails = by_country.aggregate(
        "trails",
        list,
        lambda trail, row: [*trail, f"+{row['age']}"],
        lambda trail, row: [*trail, f"-{row['age']}"],
        value=list,
    )
    return app, updates, counts, sums, trails


def test_a_row_leaves_its_old_group_for_the_new_one() -> None:
    app, updates, counts, sums, trails = per_country()
    with TestDriver(app) as driver:
        driver.send(updates, {"country": "at", "age": 30}, key="1")
        driver.send(updates, {"country": "at", "age": 5}, key="2")
        driver.send(updates, {"country": "de", "age": 31}, key="1")
        driver.send(updates, {"country": "de", "age": 32}, key="1")
        driver.send(updates, None, key="2")
        assert driver.table(counts) == {"at": 0, "de": 1}
        assert driver.table(sums) == {"at": 0, "de": 32}
        assert driver.table(trails) == {"at": ["+30", "+5", "-30", "-5"], "de": ["+31", "-31", "+32"]}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from("1234"), st.one_of(st.none(), st.tuples(st.sampled_from("abc"), st.integers(0, 9)))),
        max_size=12,
    )
)
def test_totals_are_those_of_the_rows_that_there_are(
    delivery: str, given: list[tuple[str, tuple[str, int] | None]]
) -> None:
    app, updates, counts, sums, _ = per_country(delivery=delivery)
    rows: dict[str, tuple[str, int] | None] = {}
    with TestDriver(app) as driver:
        for key, row in given:
            rows[key] = row
            driver.send(updates, None if row is None else {"country": row[0], "age": row[1]}, key=key)
            driver.crash()
        there = [row for row in rows.values() if row is not None]
        assert {k: n for k, n in driver.table(counts).items() if n} == Counter(country for country, _ in there)
        assert {k: n for k, n in driver.table(sums).items() if n} == {
            country: total
            for country in {country for country, _ in there}
            if (total := sum(age for other, age in there if other == country))
        }


def test_a_null_group_leaves_the_row_out() -> None:
    app, updates, counts, _, _ = per_country()
    with TestDriver(app) as driver:
        driver.send(updates, {"country": "at", "age": 1}, key="1")
        driver.send(updates, {"country": None, "age": 1}, key="1")
        driver.send(updates, {"country": None, "age": 1}, key="2")
        assert driver.table(counts) == {"at": 0}


def test_a_total_is_declared_once() -> None:
    app = App("totals")
    rows = app.table("rows", key=str, value=dict)
    grouped = rows.group_by(lambda key, row: row["x"], key=str)
    grouped.count("n")
    with pytest.raises(ConfigurationError, match="table 'n' is declared twice"):
        grouped.count("n")
