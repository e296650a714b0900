"""Final results against plain sums over all records: under crashes, in any batches, with any concurrency.

The model knows nothing of how windows are kept. It takes the records in their order, decides which windows take
each, and adds up what they took; what comes out is then a matter of sorting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_support import ms

from agentic import App, Stream, Topic
from agentic.core.partitioning import partition_of
from agentic.testing import TestDriver
from agentic.windows import WindowedTable

PARTITIONS = 2
KEYS = ["a", "b", "c", "a\0"]
#: A timestamp behind all others, of records that close what is open.
END = 10_000


class Record(NamedTuple):
    key: str
    value: int
    timestamp: int


class Kind(NamedTuple):
    """A kind of windows, with what it is made of in ms."""

    name: str
    size: int
    every: int = 0
    grace: int = 0


KINDS = [
    Kind("tumbling", 10),
    Kind("tumbling", 10, grace=7),
    Kind("hopping", 10, every=4, grace=3),
    Kind("session", 5),
    Kind("session", 5, grace=8),
    Kind("sliding", 10, grace=6),
]
EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name}-grace-{kind.grace}")

#: Of one partition: keys and windows, by (end, start, key): (key, start, end, values, timestamp).
Result = tuple[str, int, int, list[int], int]


# -- the model ------------------------------------------------------------------------------------


def finals(kind: Kind, records: list[Record]) -> list[Result]:
    """Return what comes out of one partition's records when all is closed, by a computation over all of them."""
    accepted, time = [], -1
    for record in records:
        time = max(time, record.timestamp)
        accepted.append((record, time))
    match kind.name:
        case "session":
            found = sessions(kind, accepted)
        case "sliding":
            found = sliding(kind, accepted)
        case _:
            found = fixed(kind, accepted)
    return sorted(found, key=lambda each: (each[2], each[1], each[0].encode()))


def fixed(kind: Kind, records: list[tuple[Record, int]]) -> list[Result]:
    every = kind.every or kind.size
    windows: dict[tuple[str, int], list[Record]] = {}
    for record, time in records:
        for start in range(0, record.timestamp + 1, every):
            end = start + kind.size
            if start <= record.timestamp < end and time < end + kind.grace:
                windows.setdefault((record.key, start), []).append(record)
    return [result(key, start, start + kind.size, taken) for (key, start), taken in windows.items()]


def sessions(kind: Kind, records: list[tuple[Record, int]]) -> list[Result]:
    """Sessions as lists of records: one is open until stream time is more than gap and grace past its end."""
    done: list[list[Record]] = []
    open_ones: list[list[Record]] = []
    for record, time in records:
        close = time - kind.size - kind.grace
        done += [each for each in open_ones if last(each) < close]
        open_ones = [each for each in open_ones if last(each) >= close]
        near = [
            each
            for each in open_ones
            if each[0].key == record.key and first(each) - kind.size <= record.timestamp <= last(each) + kind.size
        ]
        if not near and record.timestamp < close:
            continue
        near.sort(key=last)
        open_ones = [each for each in open_ones if each not in near]
        open_ones.append([*[one for each in near for one in each], record])
    return [result(each[0].key, first(each), last(each), each) for each in done + open_ones]


def first(records: list[Record]) -> int:
    return min(record.timestamp for record in records)


def last(records: list[Record]) -> int:
    return max(record.timestamp for record in records)


def result(key: str, start: int, end: int, taken: list[Record]) -> Result:
    return key, start, end, [record.value for record in taken], last(taken)


def sliding(kind: Kind, records: list[tuple[Record, int]]) -> list[Result]:
    """Each record's own window, and the one right behind it if there is another in that: of records in order alone.

    Out of order, which windows there are depends on when they could still be made; histories of sliding windows
    are drawn in order therefore, and what happens out of order is left to the scenarios.
    """
    found: dict[tuple[str, int], list[Record]] = {}
    for record, _ in records:
        mine = [other for other, _ in records if other.key == record.key]
        starts = [max(0, record.timestamp - kind.size)]
        if any(record.timestamp < other.timestamp <= record.timestamp + 1 + kind.size for other in mine):
            starts.append(record.timestamp + 1)
        for start in starts:
            found[record.key, start] = [o for o in mine if start <= o.timestamp <= start + kind.size]
    return [result(key, start, start + kind.size, taken) for (key, start), taken in found.items()]


# -- the app --------------------------------------------------------------------------------------


def declare(kind: Kind, table: Any) -> WindowedTable[str, list[int]]:
    grace = ms(kind.grace)
    match kind.name:
        case "tumbling":
            windows = table.tumbling(ms(kind.size), grace=grace)
        case "hopping":
            windows = table.hopping(ms(kind.size), every=ms(kind.every), grace=grace)
        case "session":
            windows = table.session(ms(kind.size), grace=grace)
        case _:
            windows = table.sliding(ms(kind.size), grace=grace)
    collected: WindowedTable[str, list[int]] = windows.collect()
    return collected


def build(
    kind: Kind, concurrency: int, *, partitions: int = PARTITIONS, **options: Any
) -> tuple[App, Topic[Any, Any], Topic[Any, Any]]:
    app = App("histories", topic_partitions=partitions, delivery="exactly_once", **options)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = declare(kind, app.table("views", key=str, value=list[int]))

    @app.agent(source, concurrency=concurrency)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            if concurrency > 1:
                # Done in an order of their own, and not in that in which they came.
                await asyncio.sleep((event.value * 7 % 5) / 10)
            views.add(event.key, event.value)

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for w in stream:
            yield [w.key, w.start, w.end, w.value, w.timestamp]

    return app, source, out


# -- histories ------------------------------------------------------------------------------------


@st.composite
def records(draw: st.DrawFn, *, backward: int) -> list[Record]:
    """Draw records whose stream time moves on, at times far, with some that come behind it."""
    time, drawn = 0, []
    steps = st.tuples(
        st.sampled_from(KEYS),
        st.one_of(st.integers(-backward, 6), st.sampled_from([0, 1, 11, 40])),
    )
    for number, (key, step) in enumerate(draw(st.lists(steps, min_size=1, max_size=25))):
        timestamp = max(0, time + step)
        time = max(time, timestamp)
        drawn.append(Record(key, number, timestamp))
    return drawn


def partition(key: str) -> int:
    return partition_of(key.encode(), PARTITIONS)


def ends() -> list[tuple[int, Record]]:
    """A record for each partition that closes what was open there."""
    return [(n, Record(next(k for k in map(str, range(99)) if partition(k) == n), 0, END)) for n in range(PARTITIONS)]


async def send(source: Topic[Any, Any], batch: list[Record]) -> None:
    for record in batch:
        await source.send(record.value, key=record.key, timestamp=record.timestamp)


def check_finals(kind: Kind, given: list[Record], outputs: list[Any], *, exact: bool) -> None:
    """Compare what came out with the model, partition by partition.

    Args:
        exact: the records were taken in their order; else none may be missing from its window, and a late one
            may have been in time for it.
    """
    for n in range(PARTITIONS):
        came = [tuple(output.value) for output in outputs if output.partition == n]
        came = [each for each in came if each[1] < END - 100]
        order = [(end, start, key.encode()) for key, start, end, _, _ in came]
        assert order == sorted(order), "out of order"
        assert len(set(order)) == len(order), "a window came twice"
        wanted = finals(kind, [record for record in given if partition(record.key) == n])
        if exact:
            assert came == wanted
        else:
            took = {each[:3]: Counter(each[3]) for each in came}
            assert all(took[each[:3]] >= Counter(each[3]) for each in wanted)


def in_order(given: list[Record]) -> list[Record]:
    return sorted(given, key=lambda record: record.timestamp)


@EACH_KIND
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_finals_are_a_batch_computation_over_what_was_taken(kind: Kind, data: st.DataObject) -> None:
    given = data.draw(records(backward=30))
    given = in_order(given) if kind.name == "sliding" else given
    splits = data.draw(st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=6))
    app, source, out = build(kind, 1)
    with TestDriver(app) as driver:
        outputs, sent, turn = [], 0, 0
        while sent < len(given):
            size, crash = splits[turn % len(splits)]
            driver.run(send(source, given[sent : sent + size]))
            sent, turn = sent + size, turn + 1
            if crash:
                driver.crash()
            outputs += driver.outputs(out)
        for n, record in ends():
            driver.send(source, record.value, key=record.key, timestamp=record.timestamp, partition=n)
        driver.crash()
        outputs += driver.outputs(out)
        check_finals(kind, given, outputs, exact=True)


@EACH_KIND
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_with_eight_at_once_finals_are_the_same_for_records_in_order(kind: Kind, data: st.DataObject) -> None:
    given = in_order(data.draw(records(backward=0)))
    splits = data.draw(
        st.lists(
            st.tuples(st.integers(1, 8), st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.booleans()), min_size=1, max_size=5
        )
    )
    app, source, out = build(kind, 8)
    with TestDriver(app) as driver:
        sent, turn = 0, 0
        while sent < len(given):
            size, pause, crash = splits[turn % len(splits)]
            driver.run(send(source, given[sent : sent + size]))
            sent, turn = sent + size, turn + 1
            driver.advance(pause)
            if crash:
                driver.crash()
        driver.advance(30)
        for n, record in ends():
            driver.send(source, record.value, key=record.key, timestamp=record.timestamp, partition=n)
        driver.advance(30)
        outputs = driver.outputs(out)
        # What was added in which order is not the same: each window's values are.
        for output in outputs:
            output.value[3].sort()
        check_finals(kind, given, outputs, exact=True)
        assert driver.dropped == {}


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: f"{kind.name}-grace-{kind.grace}")
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_with_eight_at_once_nothing_is_late_that_was_in_time(kind: Kind, data: st.DataObject) -> None:
    # Of windows that are where they are whatever the order in which events are done.
    given = data.draw(records(backward=12))
    app, source, out = build(kind, 8)
    with TestDriver(app) as driver:
        driver.run(send(source, given))
        driver.advance(30)
        for n, record in ends():
            driver.send(source, record.value, key=record.key, timestamp=record.timestamp, partition=n)
        driver.advance(30)
        check_finals(kind, given, driver.outputs(out), exact=False)


# -- idle moves and crashes -----------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(KEYS), st.integers(-40, 20)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 60)),
    ),
    min_size=1,
    max_size=20,
)


#: Ends of windows and timestamps are multiples of it, in ms; records arrive between, since a timer is not that exact.
SCALE = 10


def play(kind: Kind, given: list[tuple[str, str, int]], crashes: set[int]) -> tuple[list[Any], dict[str, int]]:
    """Take steps, with a crash after some; return all that came out, and the drops.

    There is one task: a crash begins the quiet of all of them anew, and a record that of its own alone.
    """
    scaled = kind._replace(size=kind.size * SCALE, every=kind.every * SCALE, grace=kind.grace * SCALE)
    app, source, out = build(scaled, 1, partitions=1, idle_after=ms(20 * SCALE))
    with TestDriver(app) as driver:
        wall = 0
        driver.advance(ms(SCALE // 2))
        for number, (what, key, n) in enumerate(given):
            if what == "wait":
                wall += n
                driver.advance(ms(n * SCALE))
            else:
                driver.send(source, number, key=key, timestamp=max(0, wall + n) * SCALE)
            if number in crashes:
                driver.crash()
        driver.advance(ms(500 * SCALE))
        raw = [(o.partition, o.key, o.value, o.timestamp) for o in driver.outputs(out)]
        return raw, driver.dropped


@EACH_KIND
@settings(deadline=None, max_examples=10)
@given(given=steps, data=st.data())
def test_idle_moves_and_crashes_change_no_byte(
    kind: Kind, given: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    # Where a crash does not lengthen the quiet: after a record, which begins it anew in any case.
    places = [number for number, step in enumerate(given) if step[0] == "send"]
    crashes = set(data.draw(st.lists(st.sampled_from(places)))) if places else set()
    assert play(kind, given, crashes) == play(kind, given, set())
