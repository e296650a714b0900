"""Attempts that end as few expect: without a verdict, in what is no `Exception`, or before the agent began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import AgenticError, App, BlockingStream, Breaker, Poison, Retry, Stream
from agentic.errors import AgentFailed
from agentic.metrics import Counter
from agentic.testing import TestDriver

#: Opens at the second failure, and probes each five seconds; each event is tried again each second.
PATIENT: dict[str, Any] = {
    "breaker": Breaker(share=0.5, least=2, window=60, pause=5),
    "retry": Retry(attempts=100, first=1, max=1, jitter="none", within=None),
}
WAYS = [{}, {"concurrency": 4}, {"concurrency": 4, "emit": "offset"}]


def started(app: App) -> tuple[Any, Any]:
    """Return topics of an app, from and to which its agent works."""
    return app.topic("source", key=str, value=int), app.topic("sink", key=str, value=int)


def number(app: App, name: str) -> float:
    return app.metrics.total(name)


# -- a breaker's probe ----------------------------------------------------------------------------


@pytest.mark.parametrize("emit", ["completion", "offset"])
def test_a_probe_that_puts_its_event_off_says_nothing_and_another_one_follows(emit: Any) -> None:
    app = App("probing", topic_partitions=1)
    source, sink = started(app)
    down, put_off = True, set()

    @app.agent(source, to=sink, concurrency=4, emit=emit, **PATIENT)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if down:
                raise ConnectionError("down")
            if n not in put_off:
                put_off.add(n)
                stream.defer(10)
                continue
            yield n

    with TestDriver(app) as driver:
        for n in range(4):
            driver.send(source, n, key=str(n))
        down = False
        driver.advance(60)
        assert put_off == {0, 1, 2, 3}
        assert {output.value for output in driver.outputs(sink)} == {0, 1, 2, 3}
        assert number(app, "breaker") == 0


def test_a_probe_that_is_done_again_since_its_row_was_written_meanwhile_is_followed_by_another_one() -> None:
    app = App("probing", topic_partitions=1)
    source, sink = started(app)
    gifts = app.topic("gifts", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)
    down = True

    @app.agent(source, to=sink, concurrency=4, **PATIENT)
    async def add(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            total = totals[stream.event.key]
            if down:
                raise ConnectionError("down")
            await asyncio.sleep(2)
            totals[stream.event.key] = total + n
            yield n

    @app.agent(gifts)
    async def give(stream: Stream[int]) -> None:
        async for n in stream:
            totals[stream.event.key] += n

    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann")
        driver.send(source, 2, key="bob")
        down = False
        driver.advance(6)  # the probe has read its row
        driver.send(gifts, 100, key="ann")
        driver.send(gifts, 100, key="bob")
        driver.advance(60)
        assert number(app, "redone") == 1
        assert driver.table(totals) == {"ann": 101, "bob": 102}


def test_a_probe_in_a_list_that_nobody_waited_for_is_followed_by_another_one() -> None:
    app = App("probing", topic_partitions=1)
    source, sink = started(app)
    down = True

    @app.agent(source, to=sink, concurrency=2, **PATIENT)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        lists = stream.take(2, within=timedelta(seconds=20))
        while True:
            try:
                values = await asyncio.wait_for(anext(lists), 1)
            except TimeoutError:
                lists = stream.take(2, within=0)
                continue
            except StopAsyncIteration:
                return
            if down:
                raise ConnectionError("down")
            yield sum(values)

    with TestDriver(app) as driver:
        for n in (1, 2, 3, 4):
            driver.send(source, n, key=str(n))
        down = False
        driver.advance(120)
        assert sum(output.value for output in driver.outputs(sink)) == 10
        assert number(app, "breaker") == 0


# -- what is no exception, and what can't be told ---------------------------------------------------


class Outcome(BaseException):
    """What test frameworks raise to end a test: no `Exception`."""


class Mute(Exception):
    """One that can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


def failing(app: App, error: Callable[[], BaseException], **options: Any) -> tuple[Any, Any]:
    """Return the topics of an agent that fails at 1."""
    source, sink = started(app)
    if options.get("threads"):

        @app.agent(source, to=sink, name="work", **options)
        def block(stream: BlockingStream[int]) -> Iterator[int]:
            for n in stream:
                if n == 1:
                    raise error()
                yield n

    else:

        @app.agent(source, to=sink, name="work", **options)
        async def work(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                if n == 1:
                    raise error()
                yield n

    return source, sink


@pytest.mark.parametrize("way", [*WAYS, {"concurrency": 4, "threads": True}], ids=str)
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_what_is_no_exception_stops_the_worker_whatever_the_policy(way: dict[str, Any], policy: Any) -> None:
    app = App("odd", topic_partitions=1)
    source, _ = failing(app, lambda: Outcome("enough"), on_exhausted=policy, **way)
    with TestDriver(app) as driver:
        driver.send(source, 0, key="ann")
        with pytest.raises(AgentFailed, match=r"agent 'work' failed on source-0 offset 1 key 'bob': Outcome: enough"):
            driver.send(source, 1, key="bob")


def test_a_task_that_ends_by_what_is_no_exception_stops_the_worker() -> None:
    app = App("odd", topic_partitions=1)

    @app.task
    async def once() -> None:
        raise Outcome("enough")

    with pytest.raises(AgenticError, match=r"once.* failed: Outcome: enough"), TestDriver(app) as driver:
        driver.advance(1)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_error_that_can_not_say_what_it_is_meets_the_policy(way: dict[str, Any]) -> None:
    app = App("odd", topic_partitions=1)
    failed = app.topic("failed", key=str, value=int)
    source, sink = failing(app, Mute, dead_letter=failed, **way)
    with TestDriver(app) as driver:
        for n in range(3):
            driver.send(source, n, key="ann")
        assert [output.value for output in driver.outputs(sink)] == [0, 2]
        (letter,) = driver.outputs(failed)
        assert dict(letter.headers)["agentic-error"] == b"Mute (its __str__ raised RuntimeError)"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_group_of_errors_is_told_with_what_is_in_it(way: dict[str, Any]) -> None:
    app = App("odd", topic_partitions=1)
    failed = app.topic("failed", key=str, value=int)
    source, _ = failing(
        app, lambda: ExceptionGroup("two", [Poison("bad"), ValueError("worse")]), dead_letter=failed, **way
    )
    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann")
        (letter,) = driver.outputs(failed)
        said = b"ExceptionGroup: two (2 sub-exceptions): Poison: bad; ValueError: worse"
        assert dict(letter.headers)["agentic-error"] == said


@pytest.mark.parametrize("emit", ["completion", "offset"])
def test_of_rejecting_and_putting_off_the_last_holds(emit: Any) -> None:
    app = App("both", topic_partitions=1)
    failed = app.topic("failed", key=str, value=int)
    source, sink = started(app)

    @app.agent(source, to=sink, concurrency=2, emit=emit, dead_letter=failed)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n == 1:
                stream.defer(5)
                stream.reject("for good")
            elif n == 2:
                stream.reject("for good")
                stream.defer(5)
            yield n

    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann")
        driver.send(source, 2, key="bob")
        assert [letter.value for letter in driver.outputs(failed)] == [1]
        driver.advance(1)
        assert number(app, "parked") == 1
        assert driver.outputs(sink) == []


# -- before the agent began -------------------------------------------------------------------------


def told(n: int) -> bool:
    if n == 1:
        raise ValueError("neither")
    return True


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("retry", [None, Retry(attempts=3, first=1)], ids=["once", "retry"])
def test_what_a_predicate_fails_on_the_agent_does_not_see(way: dict[str, Any], retry: Retry | None) -> None:
    app = App("filtering", topic_partitions=1)
    source, sink = started(app)
    failed = app.topic("failed", key=str, value=int)
    seen: list[int] = []

    @app.agent(source.filter(told), to=sink, retry=retry, dead_letter=failed, max_in_flight_bytes=2, **way)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            seen.append(n)
            await asyncio.sleep(1)
            yield n

    with TestDriver(app) as driver:
        for n in (0, 1, 1, 1, 2, 3, 4):
            driver.send(source, n, key=str(n))
        assert len(seen) <= 2  # so many have room; those that failed take none, and leave none behind
        driver.advance(30)
        assert seen == [output.value for output in driver.outputs(sink)] == [0, 2, 3, 4]
        letters = [(letter.value, dict(letter.headers)["agentic-attempts"]) for letter in driver.outputs(failed)]
        assert letters == [(1, b"1")] * 3


def test_a_list_with_a_change_of_a_table_can_not_be_put_off() -> None:
    app = App("mixed", topic_partitions=1, on_error="skip")
    source, sink = started(app)
    prices = app.topic("prices", key=str, value=int)
    table = app.table("table", key=str, value=int)
    refusals: list[str] = []

    @app.agent(prices)
    async def keep(stream: Stream[int]) -> None:
        async for price in stream:
            table[stream.event.key] = price

    @app.agent(source, table.changes(), to=sink, deferral=True)
    async def work(stream: Stream[Any]) -> AsyncIterator[int]:
        async for values in stream.take(2, within=timedelta(seconds=5)):
            try:
                stream.defer(10)
            except AgenticError as error:
                refusals.append(str(error))
            yield len(values)

    with TestDriver(app) as driver:
        driver.send(prices, 3, key="ann")
        driver.send(source, 1, key="ann")
        driver.advance(60)
        assert [output.value for output in driver.outputs(sink)] == [2]
        (refusal,) = refusals
        assert "is a change of a table" in refusal


# -- what is told ---------------------------------------------------------------------------------


def test_an_output_that_is_refused_in_its_turn_counts_as_an_attempt() -> None:
    app = App("turns", topic_partitions=1)
    source, failed = app.topic("source", key=str, value=int), app.topic("failed", key=str, value=int)
    sink = app.topic("sink", key=str, value=bytes)

    @app.agent(source, to=sink, concurrency=4, emit="offset", dead_letter=failed)
    async def work(stream: Stream[int]) -> AsyncIterator[bytes]:
        async for n in stream:
            yield bytes(n << 20)

    with TestDriver(app) as driver:
        driver.send(source, 65, key="ann")
        (letter,) = driver.outputs(failed)
        assert dict(letter.headers)["agentic-attempts"] == b"1"


def test_an_event_that_is_put_off_is_done_when_it_is_done() -> None:
    app = App("counting", topic_partitions=1)
    source, sink = started(app)
    seen: set[int] = set()

    @app.agent(source, to=sink, concurrency=2, deferral=True)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n not in seen:
                seen.add(n)
                stream.defer(10)
                continue
            await asyncio.sleep(5)
            yield n

    with TestDriver(app) as driver:
        done = []
        driver.send(source, 1, key="ann")
        driver.send(source, 2, key="ann")  # waits behind it
        for _ in range(8):
            done.append(number(app, "events_done"))
            driver.advance(5)
        assert done == sorted(done)
        assert (done[0], number(app, "events_done")) == (0, 2)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_left_to_the_next_owner_is_not_counted_as_done(way: dict[str, Any]) -> None:
    app = App("counting", topic_partitions=1, stop_timeout=timedelta(seconds=1))
    source, _ = started(app)

    @app.agent(source, **way)
    async def work(stream: Stream[int]) -> None:
        async for n in stream:
            await asyncio.sleep(n)

    with TestDriver(app) as driver:
        for n in (0, 3_600, 3_600, 3_600):
            driver.send(source, n, key="ann")
    (done,) = (each for each in app.metrics if isinstance(each, Counter) and each.name == "events_done")
    assert done.value == 1


# -- two events of one key at a time ----------------------------------------------------------------


@pytest.mark.parametrize("emit", ["completion", "offset"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_events_of_two_topics_that_are_each_in_order_by_partition_lose_no_update_of_a_row(
    emit: Any, delivery: Any
) -> None:
    app = App("two", topic_partitions=1, delivery=delivery)
    ups, downs = app.topic("ups", key=str, value=int), app.topic("downs", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(ups, downs, concurrency=4, order="partition", emit=emit)
    async def add(stream: Stream[int]) -> None:
        async for n in stream:
            total = totals["all"]
            await asyncio.sleep(1)
            totals["all"] = total + n

    with TestDriver(app) as driver:
        for n in range(5):
            driver.send(ups, 10, key=str(n))
            driver.send(downs, -1, key=str(n))
        driver.advance(60)
        assert driver.table(totals) == {"all": 45}


@pytest.mark.parametrize("emit", ["completion", "offset"])
def test_a_windows_result_beside_a_topics_event_of_its_key_loses_no_update_of_a_row(emit: Any) -> None:
    app = App("beside", topic_partitions=1)
    source = app.topic("source", key=str, value=int)
    others = app.topic("others", key=str, value=int)
    windows = app.table("windows", key=str, value=int).tumbling(timedelta(seconds=10)).sum()
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(source)
    async def gather(stream: Stream[int]) -> None:
        async for n in stream:
            windows.add(stream.event.key, n)

    @app.agent(others, windows.emit_final(), concurrency=4, emit=emit)
    async def add(stream: Stream[Any]) -> None:
        async for value in stream:
            total = totals[stream.event.key]
            await asyncio.sleep(1)
            totals[stream.event.key] = total + (value if isinstance(value, int) else value.value)

    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann", timestamp=0)
        driver.send(others, 20, key="ann", timestamp=20_000)
        driver.send(source, 1, key="bob", timestamp=20_000)  # ends the window of ann's, while the one before is at work
        driver.advance(60)
        assert driver.table(totals) == {"ann": 21}
