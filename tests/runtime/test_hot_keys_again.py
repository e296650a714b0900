"""A hot key over a crash: what was read before the events that are parked comes again, and before these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentic import App, Stream
from agentic.testing import TestDriver

#: More than there is room for in stations, so that the last ones are parked.
EVENTS = 100


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("emit", ["completion", "offset"])
@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("put_off", [None, 30, 64], ids=["none", "before", "first"])
def test_a_hot_key_keeps_the_order_of_each_topic_over_a_crash(
    delivery: Any, emit: Any, topics: int, put_off: int | None
) -> None:
    app = App("hot", topic_partitions=1, delivery=delivery)
    sources = [app.topic(name, key=str, value=int) for name in ("even", "odd")][:topics]
    sink = app.topic("sink", key=str, value=int)
    attempts: dict[int, int] = {}

    @app.agent(*sources, to=sink, concurrency=4, emit=emit, hot_key="park")
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            await asyncio.sleep(1)
            attempts[n] = attempts.get(n, 0) + 1
            if n == put_off and attempts[n] == 1:
                stream.defer(5)
                continue
            yield n

    with TestDriver(app) as driver:
        for n in range(EVENTS):
            driver.send(sources[n % topics], n, key="ann")
        driver.advance(10)
        driver.crash()
        driver.advance(300)
        done = [output.value for output in driver.outputs(sink)]
    for number in range(topics):
        assert [n for n in done if n % topics == number] == list(range(number, EVENTS, topics))


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("emit", ["completion", "offset"])
def test_a_list_that_is_put_off_comes_before_what_was_parked_meanwhile(emit: Any, crash: bool) -> None:
    app = App("hot", topic_partitions=1)
    source, sink = app.topic("source", key=str, value=int), app.topic("sink", key=str, value=list)
    put_off = set()

    @app.agent(source, to=sink, concurrency=4, emit=emit, hot_key="park")
    async def work(stream: Stream[int]) -> AsyncIterator[list[int]]:
        async for numbers in stream.take(3, within=0):
            await asyncio.sleep(1)
            if 30 in numbers and 30 not in put_off:
                put_off.update(numbers)
                stream.defer(50)
                continue
            yield numbers

    with TestDriver(app) as driver:
        for n in range(EVENTS):
            driver.send(source, n, key="ann")
        driver.advance(30)
        if crash:
            driver.crash()
        driver.advance(300)
        assert len(put_off) == 3
        assert [n for output in driver.outputs(sink) for n in output.value] == list(range(EVENTS))


@pytest.mark.parametrize("read", [3, 8])
def test_what_comes_again_after_two_crashes_has_its_place_among_what_is_put_off(read: int) -> None:
    app = App("hot", topic_partitions=1)
    source, sink = app.topic("source", key=str, value=int), app.topic("sink", key=str, value=int)
    put_off = set()

    @app.agent(source, to=sink, concurrency=4, hot_key="park")
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            await asyncio.sleep(1)
            if n == 2 and n not in put_off:
                put_off.add(n)
                stream.defer(20)
                continue
            yield n

    with TestDriver(app) as driver:
        for n in range(EVENTS):
            driver.send(source, n, key="ann")
        driver.crash()
        driver.advance(read)
        driver.crash()
        driver.advance(300)
        assert [output.value for output in driver.outputs(sink)] == list(range(EVENTS))


def test_what_comes_between_the_events_of_a_list_that_are_put_off_one_by_one_goes_behind_all_of_them() -> None:
    app = App("parts", topic_partitions=1)
    source, sink = app.topic("source", key=str, value=str), app.topic("sink", key=str, value=str)

    @app.agent(source, to=sink, concurrency=4, emit="offset", deferral=True)
    async def work(stream: Stream[str]) -> AsyncIterator[str]:
        async for events in stream.events().take(2, within=1):
            names = [event.value for event in events]
            if any(name.startswith("slow") for name in names):
                await asyncio.sleep(10)
            if not any(event.deferred for event in events) and "k1" in names:
                stream.defer(1)
                continue
            yield "+".join(names)

    with TestDriver(app) as driver:
        # The list of k1 and k2 is put off: k1 when what is slow is done, k2 when what is slow again is, too.
        for name, key in [("slow", "s"), ("other", "o"), ("k1", "k"), ("slow again", "s"), ("k2", "k")]:
            driver.send(source, name, key=key)
        driver.advance(12.5)
        driver.send(source, "k3", key="k")
        driver.advance(60)
        done = "+".join(output.value for output in driver.outputs(sink)).split("+")
        assert [name for name in done if name.startswith("k")] == ["k1", "k2", "k3"]
