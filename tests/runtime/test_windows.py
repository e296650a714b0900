"""Windowed tables in agents: what is made of the values, what an event sees, what comes out, and what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from window_support import ms, scene, shown

from agentic import App, Reply, Stream
from agentic.core import bursts
from agentic.errors import AgentFailed, CodecError, WrongPartition
from agentic.stream import Event
from agentic.testing import TestDriver
from agentic.windows import Window, WindowedTable


def tumbling(**options: Any) -> Callable[[Any], WindowedTable[Any, Any]]:
    return lambda table: table.tumbling(ms(10), **options).count()


# -- aggregates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "value", "wanted"),
    [
        (lambda windows: windows.count(), None, 4),
        (lambda windows: windows.sum(), None, 13),
        (lambda windows: windows.sum(lambda n: n / 4), float, 3.25),
        (lambda windows: windows.min(), None, 1),
        (lambda windows: windows.min(lambda n: -n), None, -7),
        (lambda windows: windows.max(), None, 7),
        (lambda windows: windows.mean(), None, 3.25),
        (lambda windows: windows.mean(lambda n: n * 2), None, 6.5),
        (lambda windows: windows.collect(), None, [3, 1, 7, 2]),
        (lambda windows: windows.collect(3, lambda n: -n), None, [-3, -1, -7]),
        (lambda windows: windows.top(2), None, [7, 3]),
        (lambda windows: windows.top(9, key=lambda n: -n), None, [1, 2, 3, 7]),
        (lambda windows: windows.distinct(lambda n: n % 2), None, 2),
        (lambda windows: windows.reduce(lambda total, n: total * 10 + n), None, 3172),
        (lambda windows: windows.aggregate(str, lambda text, n: f"{text}{n}"), str, "3172"),
    ],
    ids=[
        "count",
        "sum",
        "sum-of",
        "min",
        "min-of",
        "max",
        "mean",
        "mean-of",
        "collect",
        "collect-3",
        "top",
        "top-by",
        "distinct",
        "reduce",
        "aggregate",
    ],
)
def test_an_aggregate_makes_one_value_of_a_windows(declare: Callable[[Any], Any], value: Any, wanted: Any) -> None:
    here = scene(lambda table: declare(table.tumbling(ms(10))), value=value)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 3@1", "a 1@2", "a 7@9", "b 5@3", "a 2@0")
        driver.crash()  # so that what has come through the store is what comes out
        here.send(driver, "a 0@10")
        assert here.came(driver, here.finals)[0] == ["a", 0, 10, wanted, 9]


@pytest.mark.parametrize(
    ("declare", "wanted"),
    [
        (lambda windows: windows.count(), 3),
        (lambda windows: windows.sum(), 6),
        (lambda windows: windows.min(), 1),
        (lambda windows: windows.max(), 3),
        (lambda windows: windows.mean(), 2.0),
        (lambda windows: windows.collect(), [1, 3, 2]),
        (lambda windows: windows.collect(2), [1, 3]),
        (lambda windows: windows.top(2), [3, 2]),
        (lambda windows: windows.distinct(), 3),
        (lambda windows: windows.reduce(lambda total, n: total * 10 + n), 132),
        (lambda windows: windows.aggregate(list, lambda all, n: [*all, n], lambda a, b: [*a, *b]), [1, 3, 2]),
    ],
    ids=["count", "sum", "min", "max", "mean", "collect", "collect-2", "top", "distinct", "reduce", "aggregate"],
)
def test_two_sessions_that_an_event_joins_have_one_value(declare: Callable[[Any], Any], wanted: Any) -> None:
    here = scene(lambda table: declare(table.session(ms(10), grace=ms(20))))
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@0", "a 3@20")
        driver.crash()
        here.send(driver, "a 2@10", "b 0@100")
        assert here.came(driver, here.finals) == [["a", 0, 20, wanted, 20]]


def test_distinct_values_are_counted_within_three_per_cent() -> None:
    here = scene(
        lambda table: table.tumbling(timedelta(days=1)).distinct(),
        lambda views, event: [views.add(event.key, n % event.value) for n in range(2 * event.value)],
        updates=False,
    )
    with TestDriver(here.app) as driver:
        for key, number in [("few", 10), ("some", 700), ("many", 20_000)]:
            driver.send(here.source, number, key=key, timestamp=5)
        driver.send(here.source, 1, key="z", timestamp=timedelta(days=1) // ms(1))
        found = {window[0]: window[3] for window in here.came(driver, here.finals)}
    assert found["few"] == 10
    assert found["some"] == pytest.approx(700, rel=0.03)
    assert found["many"] == pytest.approx(20_000, rel=0.03)


def test_none_erases_a_window_and_the_next_value_begins_anew() -> None:
    here = scene(lambda table: table.tumbling(ms(10)).aggregate(int, lambda total, n: total + n if n else None))
    with TestDriver(here.app) as driver:
        here.send(driver, "a 5@1", "a 0@2", "b 5@1", "b 0@2", "b 7@3", "z 1@20")
        assert here.came(driver, here.finals) == [["b", 0, 10, 7, 3]]
        assert here.came(driver, here.updates)[:2] == [["a", 0, 10, 5, 1, None], ["a", 0, 10, None, 2, 5]]


def test_an_update_shows_the_value_before_it() -> None:
    here = scene(lambda table: table.tumbling(ms(10)).mean())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@1", "a 3@5")
        assert here.came(driver, here.updates) == [["a", 0, 10, 1.0, 1, None], ["a", 0, 10, 2.0, 5, 1.0]]


# -- adding ---------------------------------------------------------------------------------------


def test_a_value_goes_where_its_timestamp_says() -> None:
    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add(event.key, event.value, timestamp=event.value)
        views.add(event.key, 0, timestamp=datetime.fromtimestamp(event.value / 1000, UTC))

    here = scene(tumbling(), add)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 25@0", "a 31@0", "a 40@9999")
        assert here.came(driver, here.finals) == [["a", 20, 30, 2, 25], ["a", 30, 40, 2, 31]]
        # The event's own time moves nothing where another is given.
        assert here.came(driver, here.late) == []


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "sliding", "session", "calendar"])
def test_add_many_does_what_add_does_for_each(kind: str) -> None:
    records = [f"{'abc'[n % 3]} {n}@{(n * 7) % 60 + n // 2}" for n in range(60)] + ["a @50", "b 1@500"]

    def windows(table: Any) -> Any:
        options: dict[str, Any] = {"grace": ms(15)}
        match kind:
            case "tumbling":
                made = table.tumbling(ms(10), **options)
            case "hopping":
                made = table.hopping(ms(10), every=ms(4), **options)
            case "sliding":
                made = table.sliding(ms(10), **options)
            case "session":
                made = table.session(ms(3), **options)
            case _:
                made = table.calendar("day", **options)
        return made.collect()

    def outcome(add: Callable[[Any, Event], object]) -> list[Any]:
        here = scene(windows, add)
        with TestDriver(here.app) as driver:
            here.send(driver, *records)
            driver.send(here.source, 1, key=None, timestamp=500)
            came = [here.came(driver, topic) for topic in (here.finals, here.updates, here.late)]
            return [*came, driver.dropped]

    def one(views: Any, event: Event) -> None:
        views.add(event.key, event.value)

    assert outcome(one) == outcome(lambda views, event: views.add_many([event]))


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_add_many_refuses_a_key_that_is_too_long_as_add_does(kind: str) -> None:
    def add(views: Any, event: Event) -> None:
        views.add_many([event])

    here = scene(lambda table: getattr(table, kind)(ms(10)).count(), add, on_error="skip")
    with TestDriver(here.app) as driver:
        here.send(driver, "k" * 70_000 + " 1@1", "a 1@2", "a 1@50")
        assert driver.dropped == {"agent_error": 1}
        assert [row[0] for row in here.came(driver, here.finals)] == ["a"]


def test_add_many_takes_a_batch_at_once() -> None:
    app = App("batches", topic_partitions=1)
    source, out = app.topic("in", key=str), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()

    @app.agent(source)
    async def add(stream: Stream[Any]) -> None:
        events: list[Event] = []
        async for event in stream.events():
            events.append(event)
            if event.value == "last":
                views.add_many(events)
                events.clear()

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        for key, timestamp, word in [("a", 1, ""), ("b", 12, ""), ("a", 3, ""), ("a", 30, "last")]:
            driver.send(source, word, key=key, timestamp=timestamp)
        # The second of a's comes too late: batches keep the order.
        assert [o.value for o in driver.outputs(out)] == [["a", 0, 10, 1, 1], ["b", 10, 20, 1, 12]]
        assert driver.dropped == {"late": 1}


def test_null_keys_and_values_are_counted_or_counted_in() -> None:
    here = scene(tumbling())
    with TestDriver(here.app) as driver:
        driver.send(here.source, 1, key=None, timestamp=500)
        here.send(driver, "a @1", "a 1@10")
        # The null key has not moved the time, and a null value counts.
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 1]]
        assert driver.dropped == {"null_key": 1}


def test_a_sliding_window_takes_no_null_value() -> None:
    here = scene(lambda table: table.sliding(ms(10)).count())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@20", "a @500", "a 1@31")
        assert here.came(driver, here.finals) == [["a", 10, 20, 1, 20]]
        assert driver.dropped == {"null_value": 1}


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        (int, [-5, 0, 1, 1 << 40]),
        (tuple[int, str], [(-1, "b"), (0, ""), (0, "a"), (1, "")]),
        (bytes, [b"", b"\0", b"a", b"a\0", b"a\0\0\0\0\0\0\0\0\0"]),
    ],
    ids=["int", "tuple", "bytes"],
)
@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_keys_of_any_type_come_in_their_order(key: Any, keys: list[Any], kind: str) -> None:
    def windows(table: Any) -> Any:
        return (table.tumbling(ms(10)) if kind == "tumbling" else table.session(ms(3))).count()

    here = scene(windows, key=key)
    with TestDriver(here.app) as driver:
        for each in reversed(keys):
            driver.send(here.source, 1, key=each, timestamp=5)
        driver.crash()
        driver.send(here.source, 1, key=keys[0], timestamp=50)
        came = driver.outputs(here.finals)
        assert [output.key for output in came] == keys
        assert [output.value[3] for output in came] == [1] * len(keys)


def test_a_key_of_another_task_is_refused() -> None:
    here = scene(tumbling(), lambda views, event: views.add("elsewhere", 1), partitions=7)
    with TestDriver(here.app) as driver, pytest.raises(AgentFailed, match="group_by") as failure:
        for n in range(20):
            here.send(driver, f"k{n} 1@0")
    assert isinstance(failure.value.__cause__, WrongPartition)


# -- failures -------------------------------------------------------------------------------------


def raising(views: WindowedTable[Any, Any], event: Event) -> None:
    views.add(event.key, event.value)
    if event.value == 13:
        raise ValueError("as asked")


@pytest.mark.parametrize("agent", [{}, {"concurrency": 4}], ids=["serial", "concurrent"])
def test_an_event_that_fails_leaves_no_trace_of_what_it_added(agent: dict[str, Any]) -> None:
    here = scene(tumbling(), raising, agent=agent, on_error="skip")
    with TestDriver(here.app) as driver:
        # Had the failed one moved the time, or been noted as late, it would show.
        here.send(driver, "a 1@5", "a 13@500", "a 1@6")
        assert here.came(driver, here.finals) == []
        here.send(driver, "a 1@20", "a 13@2", "a 1@40")
        assert here.came(driver, here.finals) == [["a", 0, 10, 2, 6], ["a", 20, 30, 1, 20]]
        assert here.came(driver, here.late) == []
        assert driver.dropped == {"agent_error": 2}


def test_an_aggregate_that_raises_fails_its_event_alone() -> None:
    here = scene(lambda table: table.hopping(ms(10), every=ms(5)).sum(lambda n: 12 // n), on_error="skip")
    with TestDriver(here.app) as driver:
        here.send(driver, "a 3@7", "a 0@8", "a 2@8", "z 1@50")
        assert here.came(driver, here.finals) == [["a", 0, 10, 10, 8], ["a", 5, 15, 10, 8]]
        assert driver.dropped == {"agent_error": 1}


def test_an_aggregate_of_another_type_stops_the_worker_and_names_the_table() -> None:
    here = scene(lambda table: table.tumbling(ms(10)).reduce(lambda total, n: "eleven"), value=int)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@1")
        with pytest.raises(AgentFailed, match="views") as failure:
            here.send(driver, "a 1@2")
        assert isinstance(failure.value.__cause__, CodecError)


# -- what comes out, and what it causes ------------------------------------------------------------


def test_what_an_emission_causes_has_the_windows_key_and_timestamp() -> None:
    here = scene(tumbling())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@1", "a 1@7", "b 1@3", "z 1@30")
        driver_outputs = driver.outputs(here.finals)
        assert [(o.key, o.timestamp, o.partition) for o in driver_outputs] == [("a", 7, 0), ("b", 3, 0)]


def test_two_windowed_tables_in_one_agent_have_times_of_their_own() -> None:
    app = App("two", topic_partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    short = app.table("short", key=str, value=int).tumbling(ms(10)).count()
    long = app.table("long", key=str, value=int).tumbling(ms(100)).sum()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            short.add(event.key, event.value)
            if event.value:
                long.add(event.key, event.value)

    @app.agent(short.emit_final(), long.emit_final(), to=out)
    async def closed(stream: Stream[Window[str, int]]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        for value, timestamp in [(5, 1), (6, 12), (0, 500), (7, 99), (8, 200)]:
            driver.send(source, value, key="a", timestamp=timestamp)
        assert [o.value for o in driver.outputs(out)] == [
            ["a", 0, 10, 1, 1],
            ["a", 10, 20, 1, 12],
            ["a", 0, 100, 18, 99],
        ]
        assert driver.dropped == {"late": 2}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_final_results_of_one_table_are_added_to_another(delivery: str) -> None:
    app = App("chain", topic_partitions=1, delivery=delivery)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    minutes = app.table("minutes", key=str, value=int).tumbling(ms(10)).sum()
    hours = app.table("hours", key=str, value=int).tumbling(ms(50)).max()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            minutes.add(event.key, event.value)
            if event.value < 0:
                hours.add(event.key, 0)

    @app.agent(minutes.emit_final())
    async def further(stream: Stream[Window[str, int]]) -> None:
        async for window in stream:
            hours.add(window.key, window.value, timestamp=window.start)

    @app.agent(hours.emit_final(), to=out)
    async def closed(stream: Stream[Window[str, int]]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        for number, timestamp in enumerate(range(0, 200, 4), 1):
            driver.send(source, number, key="a", timestamp=timestamp)
            driver.crash()
        came = [o.value for o in driver.outputs(out)]
        sums = [sum(n + 1 for n in range(50) if n * 4 // 10 == minute) for minute in range(20)]
        assert came == [
            ["a", start, start + 50, max(sums[start // 10 : start // 10 + 5]), start + 40] for start in (0, 50, 100)
        ]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_crash_after_each_event_neither_loses_nor_repeats_a_result(delivery: str) -> None:
    here = scene(tumbling(grace=ms(5)), delivery=delivery)
    with TestDriver(here.app) as driver:
        for step in ["a 1@1", "b 1@8", "a 1@14", "a 1@15", "b 1@2", "a 1@16", "a 1@40"]:
            here.send(driver, step)
            driver.crash()
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 1], ["b", 0, 10, 1, 8], ["a", 10, 20, 3, 16]]
        assert here.came(driver, here.late) == [["b", 1, 2, 0, 10, 0]]
        assert driver.dropped["late"] == 1


def test_a_crash_amid_an_emission_repeats_it_whole_or_not_at_all() -> None:
    app = App("amid", topic_partitions=1, delivery="exactly_once")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()

    @app.agent(source, to=out)
    async def add(stream: Stream[int]) -> AsyncIterator[Reply[list[str]]]:
        async for event in stream.events():
            views.add(event.key, event.value)
            yield Reply(["took", event.key])

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)
            await asyncio.sleep(1)

    with TestDriver(app) as driver:
        for key in "abc":
            driver.send(source, 1, key=key, timestamp=5)
        driver.outputs(out)
        driver.send(source, 1, key="z", timestamp=50)
        driver.advance(1)
        driver.crash()
        assert driver.outputs(out) == []
        driver.advance(10)
        came = [o.value for o in driver.outputs(out)]
    assert came == [["took", "z"], ["a", 0, 10, 1, 5], ["b", 0, 10, 1, 5], ["c", 0, 10, 1, 5]]


def test_more_windows_than_a_burst_come_out_in_order_and_once() -> None:
    here = scene(
        tumbling(),
        lambda views, event: [views.add(f"{n:05}", 1) for n in range(event.value)],
        check_keys=False,
        updates=False,
        delivery="exactly_once",
    )
    with TestDriver(here.app) as driver:
        driver.send(here.source, 1700, key="a", timestamp=5)
        driver.send(here.source, 1300, key="a", timestamp=15)
        driver.send(here.source, 1, key="a", timestamp=100)
        driver.crash()
        came = [(window[1], window[0]) for window in here.came(driver, here.finals)]
    assert came == [(0, f"{n:05}") for n in range(1700)] + [(10, f"{n:05}") for n in range(1300)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_windows_are_put_in_order_piece_by_piece_and_come_out_all_the_same(
    delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bursts, "PIECE", 50)
    monkeypatch.setattr(bursts, "CUTS", 7)
    monkeypatch.setattr(bursts, "BURST", 20)
    here = scene(
        tumbling(),
        lambda views, event: [views.add(f"{n * 7 % event.value:04}", 1) for n in range(event.value)],
        check_keys=False,
        updates=False,
        delivery=delivery,
    )
    with TestDriver(here.app) as driver:
        for value, timestamp in [(307, 5), (120, 15), (60, 25), (1, 100)]:
            driver.send(here.source, value, key="a", timestamp=timestamp)
        came = [(window[1], window[0]) for window in here.came(driver, here.finals)]
    assert came == [(start, f"{n:04}") for start, many in ((0, 307), (10, 120), (20, 60)) for n in range(many)]


def test_windows_that_were_erased_do_not_hold_up_those_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "BURST", 20)

    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        for n in range(100):
            views.add(f"{n:04}", event.value)

    here = scene(
        lambda table: table.tumbling(ms(10)).aggregate(int, lambda total, n: total + n if n else None),
        add,
        check_keys=False,
        updates=False,
    )
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "a 0@6", "a 2@15", "a 1@50")
        assert [(w[0], w[1], w[3]) for w in here.came(driver, here.finals)] == [(f"{n:04}", 10, 2) for n in range(100)]


# -- concurrency ----------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_no_event_is_late_because_another_was_done_first(delivery: str) -> None:
    # The later an event, the sooner it is done: all in flight at once are done in reverse.
    here = scene(
        tumbling(),
        agent={"concurrency": 8},
        pause=lambda event: 1.0 - (event.timestamp % 80) / 100,
        partitions=2,
        delivery=delivery,
    )
    count = 200

    async def send_all() -> None:
        for n in range(count):
            await here.source.send(n, key=f"k{n % 7}", timestamp=n)
        for n in range(7):
            await here.source.send(n, key=f"k{n}", timestamp=10 * count)

    with TestDriver(here.app) as driver:
        driver.run(send_all())
        driver.advance(200)
        came = here.came(driver, here.finals)
        assert driver.dropped == {}
    found = {(key, start): value for key, start, _, value, _ in came}
    wanted: dict[tuple[str, int], int] = {}
    for n in range(count):
        place = f"k{n % 7}", n // 10 * 10
        wanted[place] = wanted.get(place, 0) + 1
    assert found == wanted
    assert len(came) == len(wanted)
