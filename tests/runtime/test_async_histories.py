"""Agents that work on many events at once: random histories against a model, and what such histories have found.

``AGENTIC_TEST_HISTORIES`` says how many are tried, ``AGENTIC_TEST_SEED`` which is the first; the
program ``async_histories.py`` beside this tries any number.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from datetime import timedelta

import async_histories
import pytest

from agentic import App, Stream
from agentic.testing import TestDriver
from agentic.topic import Topic

HISTORIES = int(os.environ.get("AGENTIC_TEST_HISTORIES", "1000"))
SEED = int(os.environ.get("AGENTIC_TEST_SEED", "1"))
#: Parts that run in parallel.
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_what_comes_out_of_a_random_history_is_what_the_model_says(part: int) -> None:
    state = random.getstate()
    try:
        for seed in range(SEED + part, SEED + HISTORIES, PARTS):
            async_histories.run(seed)
    finally:
        random.setstate(state)
    print(f"every {PARTS}th of {HISTORIES} histories from seed {SEED + part} on")


# -- what random histories have found -------------------------------------------------------------


def values(driver: TestDriver, topic: Topic[str, str]) -> list[str]:
    return [output.value for output in driver.outputs(topic)]


def test_events_taken_together_do_not_wait_for_one_that_stands_behind_one_of_them() -> None:
    app = App("together", topic_partitions=1)
    calls = app.topic("calls", key=str, value=str)
    done = app.topic("done", key=str, value=str)

    @app.agent(calls, to=done, concurrency=2, emit="offset")
    async def work(stream: Stream[str]) -> AsyncIterator[str]:
        async for names in stream.take(2, within=1):
            await asyncio.sleep(10 if "busy" in names else 0)
            yield "+".join(names)

    async def send_rest() -> None:
        for name in ("a1", "d2", "a2", "n"):
            await calls.send(name, key=name[0])

    with TestDriver(app) as driver:
        driver.send(calls, "busy", key="d")
        driver.send(calls, "too", key="t")
        # One instance is busy with these. The other takes "a1", and with it "n": "d2" and "a2" stand behind others.
        driver.run(send_rest())
        driver.advance(60)
        assert sorted("+".join(values(driver, done)).split("+")) == ["a1", "a2", "busy", "d2", "n", "too"]


def test_events_taken_together_are_lost_with_none_of_them() -> None:
    app = App("together", topic_partitions=1)
    calls = app.topic("calls", key=str, value=str)
    done = app.topic("done", key=str, value=str)

    @app.agent(calls, to=done, concurrency=2, emit="offset")
    async def work(stream: Stream[str]) -> AsyncIterator[str]:
        async for names in stream.take(2, within=1):
            await asyncio.sleep({"w1": 10, "1": 100}.get(names[0], 0))
            yield "+".join(names)

    with TestDriver(app) as driver:
        for name in ("w1", "w2"):
            driver.send(calls, name, key=name)
        driver.advance(9.5)
        driver.send(calls, "0", key="0")
        driver.advance(0.6)
        # "0" waits for one more at one instance; the other takes the next two, and is long about them.
        for name in ("1", "2", "3"):
            driver.send(calls, name, key=name)
        driver.advance(1)
        driver.crash()
        driver.advance(200)
        assert {"0", "1", "2", "3"} <= set("+".join(values(driver, done)).split("+"))


def test_what_waits_for_its_turn_behind_parked_events_comes_to_it() -> None:
    app = App("turns", topic_partitions=1)
    calls = app.topic("calls", key=str, value=str)
    done = app.topic("done", key=str, value=str)

    @app.agent(calls, to=done, concurrency=3, emit="offset", deferral=True)
    async def work(stream: Stream[str]) -> AsyncIterator[str]:
        async for name in stream:
            if name == "slow":
                await asyncio.sleep(5)
            if name == "put off" and name not in seen:
                seen.add(name)
                stream.defer(timedelta(seconds=20))
                continue
            yield name

    seen: set[str] = set()
    with TestDriver(app) as driver:
        # "behind" is parked when "put off" is, and that is when the turn of "last" has come.
        for name, key in (("slow", "s"), ("put off", "a"), ("behind", "a"), ("last", "l")):
            driver.send(calls, name, key=key)
        driver.advance(6)
        assert values(driver, done) == ["slow", "last"]
        driver.advance(20)
        assert values(driver, done) == ["put off", "behind"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_an_event_that_is_put_off_again_and_then_blocks_its_key_runs_once_and_so_do_those_after_it(
    delivery: str,
) -> None:
    app = App("again", topic_partitions=1, delivery=delivery)
    calls = app.topic("calls", key=str, value=str)
    done = app.topic("done", key=str, value=str)
    begun: list[str] = []

    @app.agent(calls, to=done, concurrency=3, deferral=True)
    async def work(stream: Stream[str]) -> AsyncIterator[str]:
        async for name in stream:
            begun.append(name)
            times = begun.count(name)
            if name == "first" and times <= 2:
                # At first the others may overtake it; then they may not any more.
                stream.defer(5, block_key=times == 2)
            elif name == "second" and times == 1:
                stream.defer(5)
            else:
                yield name

    with TestDriver(app) as driver:
        for name in ("first", "second", "third"):
            driver.send(calls, name, key="a")
        driver.advance(60)
        assert sorted(values(driver, done)) == ["first", "second", "third"]
        assert driver.dropped == {}
    assert {name: begun.count(name) for name in begun} == {"first": 3, "second": 2, "third": 1}


def test_a_hot_key_that_is_parked_keeps_its_order_though_one_of_it_is_put_off() -> None:
    app = App("hot", topic_partitions=1)
    calls = app.topic("calls", key=str, value=int)
    done = app.topic("done", key=str, value=int)
    begun: list[int] = []

    @app.agent(calls, to=done, concurrency=4, hot_key="park")
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            begun.append(n)
            await asyncio.sleep(0.01)
            if n == 5 and begun.count(n) == 1:
                stream.defer(60)
            else:
                yield n

    async def send_all() -> None:
        for n in range(150):
            await calls.send(n, key="a")

    with TestDriver(app) as driver:
        driver.run(send_all())
        driver.advance(50)
        driver.advance(50)
        assert [output.value for output in driver.outputs(done)] == list(range(150))


@pytest.mark.parametrize("started_at", [2.6, 8.1, 11.3, 22.0])
@pytest.mark.parametrize("option", ["timeout", "pin_limit"])
def test_a_limit_is_reached_at_its_time_whatever_sums_of_floats_say(option: str, started_at: float) -> None:
    app = App("late", topic_partitions=1)
    calls = app.topic("calls", key=str, value=str)
    failed = app.topic("failed", key=str, value=str)
    timeout = 1.5 if option == "timeout" else None
    pin_limit = 1.5 if option == "pin_limit" else 300.0

    @app.agent(calls, concurrency=2, dead_letter=failed, timeout=timeout, pin_limit=pin_limit)
    async def work(stream: Stream[str]) -> None:
        async for _ in stream:
            await asyncio.sleep(100)

    with TestDriver(app) as driver:
        driver.advance(started_at)
        driver.send(calls, "x", key="a")
        driver.advance(1.4)
        assert values(driver, failed) == []
        driver.advance(0.2)
        assert values(driver, failed) == ["x"]
