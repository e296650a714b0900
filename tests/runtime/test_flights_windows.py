"""A month of flights by hour and airport: the windows are what SQLite says of the same file, and so is who is late."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentic import App, Stream, Topic
from agentic.testing import TestDriver

DATA = Path(__file__).parents[1] / "data" / "january.jsonl.gz"
#: More than any flight comes behind a later one: the lines are in the order of landing, and the times are of departure.
AMPLE = timedelta(hours=11)

Record = tuple[str, int]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    with gzip.open(DATA) as lines:
        return [(record["key"], record["timestamp"]) for record in map(json.loads, lines)]


@pytest.fixture(scope="module")
def database(records: list[Record]) -> Iterator[sqlite3.Connection]:
    """Each departure, with the greatest time of it and those before it."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE flights (number INTEGER PRIMARY KEY, airport TEXT, at INTEGER)")
    connection.executemany("INSERT INTO flights (airport, at) VALUES (?, ?)", records)
    connection.execute(
        "CREATE TABLE heard AS SELECT number, airport, at, at / 3600000 * 3600000 AS start, "
        "MAX(at) OVER (ORDER BY number) AS time FROM flights"
    )
    yield connection
    connection.close()


def hourly(database: sqlite3.Connection, grace: timedelta | None = None) -> list[tuple[int, str, int]]:
    """Departures by hour and airport: all of them, or those that came before their hour and a grace were over."""
    limit = -1 if grace is None else grace // timedelta(milliseconds=1)
    return database.execute(
        "SELECT start, airport, COUNT(*) FROM heard WHERE ? < 0 OR time < start + 3600000 + ? "
        "GROUP BY start, airport ORDER BY start, airport",
        (limit, limit),
    ).fetchall()


class Scene(NamedTuple):
    app: App
    departures: Topic[Any, Any]
    counted: Topic[Any, Any]
    late: Topic[Any, Any]


def scene(grace: timedelta, **options: Any) -> Scene:
    app = App("january", topic_partitions=1)
    departures = app.topic("departures", key=str, value=int)
    counted, late = app.topic("counted", key=str, value=list), app.topic("late", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(timedelta(hours=1), grace=grace, **options).count()

    @app.agent(departures)
    async def depart(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)

    @app.agent(views.emit_final(), to=counted)
    async def count(windows: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for w in windows:
            yield [w.start, w.key, w.value]

    @app.agent(views.late, to=late)
    async def refuse(values: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for each in values:
            yield [each.value, each.key, each.start]

    return Scene(app, departures, counted, late)


async def send(here: Scene, records: list[Record], first: int = 1) -> None:
    for number, (airport, timestamp) in enumerate(records, first):
        await here.departures.send(number, key=airport, timestamp=timestamp)


def came(driver: TestDriver, topic: Topic[Any, Any]) -> list[tuple[Any, ...]]:
    return [tuple(output.value) for output in driver.outputs(topic)]


def test_with_ample_grace_each_hour_of_each_airport_is_what_sqlite_says(
    records: list[Record], database: sqlite3.Connection
) -> None:
    here = scene(AMPLE, idle_after=timedelta(hours=1))
    half = len(records) // 2
    with TestDriver(here.app, now=max(at for _, at in records)) as driver:
        driver.run(send(here, records[:half]))
        driver.crash()
        driver.run(send(here, records[half:], half + 1))
        found = came(driver, here.counted)
        every = hourly(database)
        # Stream time closes all but the last hours; those come out when it is quiet.
        assert found == every[: len(found)]
        assert 0 < len(every) - len(found) < 3 * 24
        driver.advance(AMPLE + timedelta(hours=3))
        assert found + came(driver, here.counted) == every
        assert came(driver, here.late) == []
        assert driver.dropped == {}


def test_with_little_grace_what_is_counted_and_what_is_late_are_all(
    records: list[Record], database: sqlite3.Connection
) -> None:
    grace = timedelta(hours=3)
    here = scene(grace, idle_after=timedelta(hours=1))
    with TestDriver(here.app, now=max(at for _, at in records)) as driver:
        driver.run(send(here, records))
        driver.advance(grace + timedelta(hours=3))
        counted, late = came(driver, here.counted), came(driver, here.late)
        assert driver.dropped == {"late": len(late)}
    assert counted == hourly(database, grace)
    wanted = database.execute(
        "SELECT number, airport, start FROM heard WHERE time >= start + 3600000 + ? ORDER BY number",
        (grace // timedelta(milliseconds=1),),
    ).fetchall()
    assert late == wanted
    assert late
    together = Counter({(start, airport): count for start, airport, count in counted})
    together.update((start, airport) for _, airport, start in late)
    assert together == {(start, airport): count for start, airport, count in hourly(database)}
