"""Agents that share a table, and what an event has read of it when another agent writes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentic import App, Stream
from agentic.testing import TestDriver

LOOKS: dict[str, Callable[[Any], Any]] = {
    "by its key": lambda prices: prices["pear"],
    "whether it is there": lambda prices: prices.get("pear", 0) if "pear" in prices else 0,
    "in a scan": lambda prices: dict(prices.items()).get("pear", 0),
    "in a range": lambda prices: dict(prices.range("pear", "pears")).get("pear", 0),
}
CHECKED = ("by its key", "whether it is there")


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=str)
@pytest.mark.parametrize("look", LOOKS)
def test_a_row_read_by_its_key_is_as_it_was_when_its_event_is_complete_and_one_of_a_scan_may_not_be(
    look: str, options: Any
) -> None:
    app = App("shop", topic_partitions=1)
    orders, changes = app.topic("orders", key=str, value=int), app.topic("changes", key=str, value=int)
    prices = app.table("prices", key=str, value=int, default=int)
    sums = app.table("sums", key=str, value=int)
    begun: list[int] = []

    @app.agent(changes)
    async def change(stream: Stream[int]) -> None:
        async for price in stream:
            prices[stream.event.key] = price

    @app.agent(orders, tables=[prices, sums], **options)
    async def bill(stream: Stream[int]) -> None:
        async for count in stream:
            price = LOOKS[look](prices)
            begun.append(price)
            await asyncio.sleep(5)
            sums[stream.event.key] = count * price

    with TestDriver(app) as driver:
        driver.send(changes, 2, key="pear")
        driver.send(orders, 10, key="ann")
        driver.send(changes, 3, key="pear")
        driver.advance(20)
        assert begun == ([2, 3] if look in CHECKED else [2])
        assert driver.table(sums) == {"ann": 30 if look in CHECKED else 20}
        assert app.metrics.total("redone") == (1 if look in CHECKED else 0)
