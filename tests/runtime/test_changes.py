"""The changes of a table as a source: children of the events that made them, finished and committed with these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Stream
from agentic.errors import AgentFailed, ConfigurationError
from agentic.table import Change, Table
from agentic.testing import TestDriver
from agentic.topic import Topic


def watching(
    slow: float = 0, **settings: Any
) -> tuple[App, Topic[str, int], Topic[str, int], Topic[str, list[int | None]], Table[str, int]]:
    app = App("watching", topic_partitions=1, **settings)
    numbers = app.topic("numbers", key=str, value=int)
    seen = app.topic("seen", key=str, value=int)
    log = app.topic("log", key=str, value=list)
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(numbers, to=seen)
    async def add(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n == 0:
                totals.pop(stream.event.key, None)
            else:
                totals[stream.event.key] += n
                totals[stream.event.key] += n
            yield n

    @app.agent(totals.changes(), to=log)
    async def report(changes: Stream[Change]) -> AsyncIterator[list[int | None]]:
        async for key, old, new in changes:
            assert key == changes.event.key
            if slow:
                await asyncio.sleep(slow)
            if new == 26:
                raise ValueError("26")
            yield [old, new]

    return app, numbers, seen, log, totals


def test_a_change_has_the_row_before_and_after_the_event() -> None:
    app, numbers, _, log, _ = watching()
    with TestDriver(app) as driver:
        for n in (1, 2, 0, 0):
            driver.send(numbers, n, key="a", timestamp=1_000 + n)
        assert [(out.key, out.value, out.timestamp) for out in driver.outputs(log)] == [
            ("a", [None, 2], 1_001),
            ("a", [2, 6], 1_002),
            ("a", [6, None], 1_000),
        ]


def test_each_reader_of_changes_has_values_of_its_own() -> None:
    app = App("watching", topic_partitions=1)
    calls = app.topic("calls", key=str, value=list)
    table = app.table("rows", key=str, value=list)
    seen: list[Change] = []

    @app.agent(calls)
    async def write(stream: Stream[list[int]]) -> None:
        async for value in stream:
            table[stream.event.key] = value

    @app.agent(table.changes())
    async def spoil(changes: Stream[Change]) -> None:
        async for _, old, new in changes:
            new.append(99)
            if old is not None:
                old.append(99)

    @app.agent(table.changes())
    async def look(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(change)

    with TestDriver(app) as driver:
        driver.send(calls, [1], key="a")
        driver.send(calls, [2], key="a")
        assert seen == [Change("a", None, [1]), Change("a", [1], [2])]
        assert driver.table(table)["a"] == [2]


def test_an_event_is_finished_with_its_changes() -> None:
    app, numbers, _, log, _ = watching(slow=10)
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        source = driver._worker.assignment.sources  # type: ignore[union-attr]
        assert [each.ledger.base for each in source.values()] == [0]
        driver.advance(10)
        assert [each.ledger.base for each in source.values()] == [1]
        assert [out.value for out in driver.outputs(log)] == [[None, 2]]


def test_exactly_once_a_crash_between_an_event_and_its_change_doubles_neither() -> None:
    app, numbers, seen, log, totals = watching(slow=10, delivery="exactly_once")
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        assert [out.value for out in driver.outputs(seen)] == []
        driver.crash()
        driver.advance(100)
        assert [out.value for out in driver.outputs(seen)] == [1]
        assert [out.value for out in driver.outputs(log)] == [[None, 2]]
        assert driver.table(totals) == {"a": 2}


def test_a_change_that_fails_stops_the_worker_and_its_event_is_done_again() -> None:
    app, numbers, seen, log, _ = watching(delivery="exactly_once")
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        with pytest.raises(AgentFailed, match=r"agent 'report' failed on changes of totals-0 offset 1 key 'a'"):
            driver.send(numbers, 12, key="a")
        assert [out.value for out in driver.outputs(seen)] == [1]
        assert [out.value for out in driver.outputs(log)] == [[None, 2]]


def test_changes_are_skipped_by_the_policy_like_any_event() -> None:
    app, numbers, seen, _, totals = watching(on_error="skip")
    with TestDriver(app) as driver:
        driver.send(numbers, 13, key="a")
        driver.send(numbers, 1, key="a")
        assert driver.table(totals) == {"a": 28}
        assert [out.value for out in driver.outputs(seen)] == [13, 1]
        assert driver.dropped == {"agent_error": 1}


def test_an_agent_may_write_what_it_watches() -> None:
    app = App("recursive", topic_partitions=1, delivery="exactly_once")
    numbers = app.topic("numbers", key=str, value=int)
    rows = app.table("rows", key=str, value=int)
    seen: list[int] = []

    @app.agent(numbers)
    async def begin(stream: Stream[int]) -> None:
        async for n in stream:
            rows["n"] = n

    @app.agent(rows.changes())
    async def count_down(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(change.new)
            if change.new:
                rows["n"] = change.new - 1

    with TestDriver(app) as driver:
        driver.send(numbers, 1_000, key="n")
        assert seen == list(range(1_000, -1, -1))
        assert driver.table(rows) == {"n": 0}


def test_a_topic_that_fills_a_table_makes_changes() -> None:
    app = App("filled", topic_partitions=1)
    names = app.topic("names", key=str, value=str)
    out = app.topic("out", key=str, value=list)
    people = app.table("people", source=names)

    @app.agent(people.changes().filter(lambda change: change.new is not None), to=out)
    async def report(changes: Stream[Change]) -> AsyncIterator[list[str]]:
        async for change in changes:
            yield [change.old, change.new]

    with TestDriver(app) as driver:
        for name in ("Ada", "Eve", None, "Bob"):
            driver.send(names, name, key="1")
        assert [each.value for each in driver.outputs(out)] == [[None, "Ada"], ["Ada", "Eve"], [None, "Bob"]]


def test_changes_that_nobody_makes_are_an_error_at_start() -> None:
    app = App("idle")
    rows = app.table("rows")

    @app.agent(rows.changes())
    async def report(changes: Stream[Change]) -> None:
        async for _ in changes:
            ...

    with pytest.raises(ConfigurationError, match="reads the changes of table 'rows', and nothing changes it"):
        app.check()


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_checkpoints_come_between_many_changes_that_take_their_time(delivery: str) -> None:
    app, numbers, seen, log, totals = watching(slow=0.01, delivery=delivery)
    with TestDriver(app) as driver:

        async def send() -> None:
            for n in range(600):
                await numbers.send(50, key=f"k{n % 7}")

        driver.run(send())
        driver.advance(30)
        changes = driver.outputs(log)
        assert len(changes) == 600
        for key in {each.key for each in changes}:
            steps = [each.value for each in changes if each.key == key]
            assert [old for old, _ in steps] == [None, *(new for _, new in steps[:-1])], "in their order"
        assert len(driver.outputs(seen)) == 600
        assert sum(driver.table(totals).values()) == 60_000


def test_a_slow_reader_of_changes_holds_up_no_stop_for_longer_than_the_setting() -> None:
    app, numbers, _, log, _ = watching(slow=3_600, delivery="exactly_once", stop_timeout=timedelta(seconds=5))
    driver = TestDriver(app)
    with driver:
        driver.send(numbers, 1, key="a")
        # A checkpoint waits for the change by now.
        driver.advance(2)
        before = driver._now()
    assert driver._now() - before <= 8_000
    with TestDriver(app) as driver:
        assert driver.outputs(log) == []


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_row_is_not_committed_before_its_changes_are_done(delivery: str) -> None:
    app, numbers, _, log, totals = watching(slow=10, delivery=delivery)
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        for _ in range(3):
            # The interval's own checkpoints come by, and must not take the row along.
            driver.advance(3)
            driver.crash()
        driver.advance(20)
        assert driver.table(totals) == {"a": 2}
        assert driver.outputs(log)[-1].value == [None, 2]


def test_an_event_of_many_rows_makes_as_many_changes() -> None:
    app = App("many", topic_partitions=1, delivery="exactly_once")
    numbers = app.topic("numbers", key=str, value=int)
    rows = app.table("rows", key=str, value=int, check_keys=False)
    others = app.table("others", key=str, value=int, check_keys=False)
    seen: list[str] = []

    @app.agent(numbers)
    async def write(stream: Stream[int]) -> None:
        async for n in stream:
            for i in range(300):
                rows[f"{n}-{i}"] = others[f"{n}-{i}"] = i

    @app.agent(rows.changes())
    async def report(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(change.key)

    @app.agent(others.changes())
    async def report_too(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(change.key)

    with TestDriver(app) as driver:
        for n in range(5):
            driver.send(numbers, n, key="n")
        assert len(seen) == 3_000


def test_a_row_that_had_expired_is_no_old_value() -> None:
    app = App("expired", topic_partitions=1)
    numbers = app.topic("numbers", key=str, value=int)
    rows = app.table("rows", key=str, value=int, ttl=timedelta(seconds=10))
    seen: list[Change] = []

    @app.agent(numbers)
    async def write(stream: Stream[int]) -> None:
        async for n in stream:
            rows["k"] = n

    @app.agent(rows.changes())
    async def report(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(change)

    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="k", timestamp=0)
        driver.send(numbers, 2, key="k", timestamp=50_000)
        assert seen == [("k", None, 1), ("k", None, 2)]
    with pytest.raises(ConfigurationError, match="when they expire"):
        rows.group_by(lambda key, row: key, key=str)
