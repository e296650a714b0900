"""Agents that run in threads and ask others: what they are told, and what ends their wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agentic import AgenticError, App, AskFailed, AskTimeout, BlockingStream, NoAnswer, Stream
from agentic.errors import AgentFailed
from agentic.testing import TestDriver


def pricing(**options: Any) -> tuple[App, Any, Any]:
    """Return an app whose agent answers with a name's length, one price for each letter, a topic, and the agent."""
    app = App("shop", topic_partitions=1, **options)
    names = app.topic("names", key=str, value=str)

    @app.agent(names, replies=True, concurrency=4)
    async def price(stream: Stream[str]) -> AsyncIterator[int]:
        async for name in stream:
            if name == "slow":
                await asyncio.sleep(60)
            if name == "bad":
                stream.reject("no such thing")
            for _ in name:
                yield len(name)

    return app, app.topic("orders", key=str, value=str), price


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_thread_asks_and_goes_on_with_the_answer(delivery: Any) -> None:
    app, orders, price = pricing(delivery=delivery)
    bills = app.topic("bills", key=str, value=list)
    times: list[Any] = []

    @app.agent(orders, to=bills, threads=True, concurrency=2)
    def bill(stream: BlockingStream[str]) -> Iterator[list[Any]]:
        for name in stream:
            yield [name, stream.ask(price, name, key=name), stream.ask_all(price, name, key=name)]

    @app.agent(app.topics["names"])
    async def look(stream: Stream[str]) -> None:
        async for event in stream.events():
            times.append(event.timestamp)

    with TestDriver(app, now=1_000_000) as driver:
        driver.send(orders, "fig", key="ann", timestamp=5)
        driver.send(orders, "plum", key="ben", timestamp=6)
        found = sorted(output.value for output in driver.outputs(bills))
        assert found == [["fig", 3, [3, 3, 3]], ["plum", 4, [4, 4, 4, 4]]]
        # A request has the time of the event that asks.
        assert sorted(times) == [5, 5, 6, 6]


def test_a_thread_is_told_why_there_is_no_answer() -> None:
    app, orders, price = pricing(dead_letter="dead")
    told: list[str] = []

    @app.agent(orders, threads=True)
    def bill(stream: BlockingStream[str]) -> None:
        for name in stream:
            try:
                stream.ask(price, name, key=name, timeout=5)
            except (NoAnswer, AskFailed, AskTimeout) as error:
                told.append(type(error).__name__)

    with TestDriver(app) as driver:
        for name in ("", "bad", "slow", "fig"):
            driver.send(orders, name, key="ann")
        driver.advance(120)
    assert told == ["NoAnswer", "AskFailed", "AskTimeout"]


def test_the_events_own_time_out_ends_the_wait_of_a_thread() -> None:
    app, orders, price = pricing()
    ended: list[str] = []

    @app.agent(orders, threads=True, concurrency=2, timeout=3, on_exhausted="skip")
    def bill(stream: BlockingStream[str]) -> None:
        for name in stream:
            try:
                stream.ask(price, name, key=name, timeout=40)
            except AgenticError as error:
                ended.append(str(error))
                raise

    with TestDriver(app) as driver:
        driver.send(orders, "slow", key="ann")
        driver.advance(10)
        assert driver.dropped == {"agent_error": 1}
        driver.send(orders, "fig", key="ann")
    assert ended == ["the event was taken from the agent: its time was over, or its partition moved on"]


def test_an_agent_in_one_thread_that_asks_itself_is_refused() -> None:
    app = App("shop", topic_partitions=1)
    names = app.topic("names", key=str, value=str)

    @app.agent(names, replies=True, threads=True)
    def price(stream: BlockingStream[str]) -> Iterator[int]:
        for name in stream:
            yield stream.ask(price, name, key="b")

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match="asks itself"):
        driver.send(names, "fig", key="a")


def test_an_agent_that_is_asked_in_a_loop_of_the_threads_own_says_what_to_write() -> None:
    app, orders, price = pricing()

    @app.agent(orders, threads=True)
    def bill(stream: BlockingStream[str]) -> None:
        for name in stream:
            asyncio.run(price.ask(name, key=name))

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match=r"threads=True write stream\.ask\(agent, …\)"):
        driver.send(orders, "fig", key="ann")
