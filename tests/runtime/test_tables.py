"""Tables in agents: what an event sees, what is left of it, and what survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from kept import Kept

from agentic import App, Stream
from agentic.brokers.base import TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import (
    AgentFailed,
    CodecError,
    ConfigurationError,
    CoPartitionError,
    TableUnavailable,
    WrongPartition,
)
from agentic.runtime.tables import TableView
from agentic.runtime.worker import Worker
from agentic.table import Table
from agentic.testing import TestDriver
from agentic.topic import Topic


def counting(**settings: Any) -> tuple[App, Topic[str, int], Topic[str, int], Table[str, int]]:
    app = App("counting", topic_partitions=3, **settings)
    numbers = app.topic("numbers", key=str, value=int)
    sums = app.topic("sums", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(numbers, to=sums)
    async def add(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            totals[stream.event.key] += n
            if n == 13:
                raise ValueError("thirteen")
            yield totals[stream.event.key]

    return app, numbers, sums, totals


def doing(fn: Any, *, key: Any = str, value: Any = dict, **options: Any) -> TestDriver:
    """A driver of an app whose agent calls ``fn(table, event)`` for each event."""
    app = App("doing", topic_partitions=3)
    calls = app.topic("calls", key=key)
    table = app.table("rows", key=key, value=value, **options)

    @app.agent(calls)
    async def call(stream: Stream[Any]) -> None:
        async for event in stream.events():
            fn(table, event)

    return TestDriver(app)


def call(driver: TestDriver, key: Any, value: Any = None, **options: Any) -> None:
    driver.send(driver.app.topics["calls"], value, key=key, **options)


# -- counting -------------------------------------------------------------------------------------


def test_an_agent_counts_in_a_dict() -> None:
    app, numbers, sums, totals = counting()
    with TestDriver(app) as driver:
        for key, n in [("a", 1), ("b", 10), ("a", 2)]:
            driver.send(numbers, n, key=key)
        assert driver.table(totals) == {"a": 3, "b": 10}
        assert sorted((out.key, out.value) for out in driver.outputs(sums)) == [("a", 1), ("a", 3), ("b", 10)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_crash_loses_no_count(delivery: str) -> None:
    app, numbers, _, totals = counting(delivery=delivery)
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        driver.crash()
        driver.send(numbers, 2, key="a")
        driver.crash()
        assert driver.table(totals) == {"a": 3}


def test_nothing_is_left_of_an_event_that_failed() -> None:
    app, numbers, _, totals = counting(on_error="skip")
    with TestDriver(app) as driver:
        for n in (1, 13, 2):
            driver.send(numbers, n, key="a")
        assert driver.table(totals) == {"a": 3}
        assert driver.dropped == {"agent_error": 1}


def test_what_a_suspended_event_wrote_is_not_seen_outside() -> None:
    app = App("suspended", topic_partitions=1)
    writes, reads = app.topic("writes", key=str), app.topic("reads", key=str)
    rows = app.table("rows", key=str, value=int)
    seen: list[int | None] = []

    @app.agent(writes)
    async def write(stream: Stream[Any]) -> None:
        async for _ in stream:
            rows["a"] = 1
            assert rows["a"] == 1
            await asyncio.sleep(10)

    @app.agent(reads)
    async def read(stream: Stream[Any]) -> None:
        async for _ in stream:
            seen.append(rows.get("a"))

    with TestDriver(app) as driver:
        driver.send(writes, 1, key="a")
        driver.send(reads, 1, key="a")
        assert driver.table(rows) == {}
        driver.advance(10)
        driver.send(reads, 1, key="a")
        assert seen == [None, 1]


def test_an_event_that_was_under_way_at_a_crash_counts_once() -> None:
    app = App("crashing", topic_partitions=1, delivery="exactly_once")
    numbers = app.topic("numbers", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(numbers)
    async def add(stream: Stream[int]) -> None:
        async for n in stream:
            totals["a"] += n
            await asyncio.sleep(1)

    with TestDriver(app) as driver:
        driver.send(numbers, 5, key="a")
        driver.crash()
        driver.advance(1)
        assert driver.table(totals) == {"a": 5}


# -- the mapping ----------------------------------------------------------------------------------


def test_the_mapping_does_what_a_dict_does() -> None:
    def use(table: Table[str, dict[str, int]], event: Any) -> None:
        assert "k" not in table
        assert table.get("k") is None
        assert table.get("k", 5) == 5
        with pytest.raises(KeyError):
            table["k"]
        with pytest.raises(KeyError):
            del table["k"]
        with pytest.raises(KeyError):
            table.pop("k")
        assert table.pop("k", 7) == 7
        assert table.setdefault("k", {"n": 1}) == {"n": 1}
        assert table.setdefault("k", {"n": 2}) == {"n": 1}
        table["k"] = {"n": 3}
        assert len(table) == 1
        assert list(table) == ["k"]
        assert list(table.items()) == [("k", {"n": 3})]
        assert list(table.values()) == [{"n": 3}]
        assert ("k", {"n": 3}) in table.items()
        assert table.pop("k") == {"n": 3}
        assert len(table) == 0
        table.update({"k": {"n": 4}})

    with doing(use) as driver:
        call(driver, "k")
        assert driver.table(driver.app.tables["rows"]) == {"k": {"n": 4}}


def test_a_key_without_a_row_is_in_no_view_whatever_its_default() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        table["a"] = 1
        assert ("a", 1) in table.items()
        assert ("a", 0) not in table.items()
        assert ("b", 0) not in table.items()
        assert "b" not in table.keys()  # noqa: SIM118 - the view is what is asked
        assert 0 not in table.values()

    with doing(use, value=int, default=int, check_keys=False) as driver:
        call(driver, "a")


def test_all_views_go_both_ways() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        table.update(a=1, b=2)
        views: list[Any] = [table, table.keys(), table.values(), table.items()]
        assert [list(reversed(view)) for view in views] == [list(view)[::-1] for view in views]

    with doing(use, value=int, check_keys=False) as driver:
        call(driver, "a")


def test_clearing_a_table_is_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[Any] = []
    scan = TableView.scan

    def counted(self: TableView, *bounds: Any) -> Any:
        scans.append(bounds)
        return scan(self, *bounds)

    monkeypatch.setattr(TableView, "scan", counted)

    def use(table: Table[str, int], event: Any) -> None:
        table.update({f"{n}": n for n in range(100)})
        scans.clear()
        table.clear()
        assert len(scans) == 1
        assert dict(table) == {}

    with doing(use, value=int, check_keys=False) as driver:
        call(driver, "a")
        driver.crash()
        assert dict(driver.table(driver.app.tables["rows"])) == {}


def test_a_value_got_is_the_callers() -> None:
    def use(table: Table[str, Any], event: Any) -> None:
        table["k"] = mine = {"n": 1}
        mine["n"] = 2
        got = table["k"]
        got["n"] = 3
        assert table["k"] == {"n": 1}

    with doing(use) as driver:
        call(driver, "k")
        assert driver.table(driver.app.tables["rows"]) == {"k": {"n": 1}}


def test_rows_come_in_the_order_of_their_keys_own_writes_among_them() -> None:
    def use(table: Table[int, int], event: Any) -> None:
        if event.value == "write":
            table[event.key] = 2 * event.key
            return
        table[5] = 50
        del table[-300]
        assert list(table) == [-7, 5, 10, 255, 256, 2**70]
        assert list(reversed(table)) == [2**70, 256, 255, 10, 5, -7]
        assert list(table.range(5, 256)) == [(5, 50), (10, 20), (255, 510)]
        assert list(table.range(stop=10, reverse=True)) == [(5, 50), (-7, -14)]
        assert len(table) == 6

    with doing(use, key=int, value=int, check_keys=False) as driver:
        for n in (10, 5, -300, 256, 255, -7, 2**70):
            driver.send(driver.app.topics["calls"], "write", key=n, partition=0)
        driver.send(driver.app.topics["calls"], "read", key=5, partition=0)


def test_a_prefix_finds_the_keys_that_begin_with_it() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        for word in ("ape", "apple", "apply", "b", "ap"):
            table[word] = len(word)
        assert list(table.prefix("app")) == [("apple", 5), ("apply", 5)]
        assert [key for key, _ in table.prefix("ap", reverse=True)] == ["apply", "apple", "ape", "ap"]

    with doing(use, value=int, check_keys=False) as driver:
        call(driver, "k")


def test_a_scan_does_not_see_what_is_written_meanwhile() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        table["a"], table["b"] = 1, 2
        for key, value in table.items():
            table[key + "!"] = value
        assert sorted(table) == ["a", "a!", "b", "b!"]

    with doing(use, value=int, check_keys=False) as driver:
        call(driver, "k")


# -- what is refused ------------------------------------------------------------------------------


def refusal(fn: Any, error: type[Exception], words: str, **options: Any) -> None:
    def use(table: Table[Any, Any], event: Any) -> None:
        with pytest.raises(error, match=words):
            fn(table)

    with doing(use, **options) as driver:
        call(driver, "k")
        assert driver.table(driver.app.tables["rows"]) == {}


def test_a_value_of_another_type_is_refused_where_it_is_assigned() -> None:
    def write(table: Any) -> None:
        table["k"] = "many"

    refusal(write, CodecError, "value of table 'rows': 'many' is a str, wanted int", value=int)


def test_a_bool_is_no_int() -> None:
    def write(table: Any) -> None:
        table["k"] = True

    refusal(write, CodecError, "value of table 'rows': True is a bool, wanted int", value=int)


def test_a_key_of_another_type_is_refused() -> None:
    def write(table: Any) -> None:
        table[5] = {}

    refusal(write, CodecError, "key of table 'rows': 5 is a int, wanted str")


def test_none_is_no_key_and_no_value() -> None:
    def key(table: Any) -> None:
        table[None] = {}

    def value(table: Any) -> None:
        table["k"] = None

    refusal(key, CodecError, "table 'rows': None is no key")
    refusal(value, CodecError, r"table 'rows': None is no value: del table\[key\] removes a row")


def test_a_key_of_another_partition_is_refused_with_the_way_out() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        found = 0
        for key in map(str, range(30)):
            try:
                table[key] = 1
            except WrongPartition as error:
                assert "belongs to partition" in str(error)
                assert "group_by" in str(error)
                with pytest.raises(WrongPartition):
                    table.get(key)
                found += 1
        assert 0 < found < 30

    with doing(use, value=int) as driver:
        call(driver, "k")


def test_the_events_own_key_is_ours_whatever_partitioner_its_producer_had() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        table["k"] = 1

    with doing(use, value=int) as driver:
        for partition in range(3):
            call(driver, "k", partition=partition)


def test_what_its_producer_had_is_right_for_no_other_event() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        table["k"] = 1

    with doing(use, value=int) as driver:
        call(driver, "k", partition=0)
        with pytest.raises(AgentFailed, match="belongs to partition"):
            call(driver, "another", partition=0)


@pytest.mark.parametrize("hour", range(6))
def test_the_events_own_key_is_ours_however_it_is_written(hour: int) -> None:
    def use(table: Table[datetime, int], event: Any) -> None:
        table[event.key] = hour
        assert list(table) == [event.key]

    with doing(use, key=datetime, value=int) as driver:
        call(driver, datetime(2024, 5, 1, hour, tzinfo=timezone(timedelta(hours=2))))


def test_keys_at_work_at_the_same_time_have_to_be_written_in_one_way() -> None:
    app = App("doing", topic_partitions=1)
    calls = app.topic("calls", key=datetime, value=int)
    table = app.table("rows", key=datetime, value=int)

    @app.agent(calls, concurrency=4)
    async def call(stream: Stream[int]) -> None:
        async for n in stream:
            table[stream.event.key] = n

    with TestDriver(app) as driver:
        driver.send(calls, 1, key=datetime(2024, 5, 1, tzinfo=UTC))
        with pytest.raises(AgentFailed, match="write each key in one way"):
            driver.send(calls, 1, key=datetime(2024, 5, 1, 2, tzinfo=timezone(timedelta(hours=2))))


def test_a_table_outside_of_an_agent_says_where_to_look() -> None:
    *_, totals = counting()
    with pytest.raises(TableUnavailable, match="outside of an agent"):
        totals["a"]
    assert bool(totals)


def test_a_table_that_the_code_does_not_show_has_to_be_declared() -> None:
    app = App("hidden", topic_partitions=1)
    calls = app.topic("calls", key=str)
    tables = {"rows": app.table("rows", key=str, value=int)}

    async def write(stream: Stream[Any]) -> None:
        async for _ in stream:
            tables["rows"]["k"] = 1

    app.agent(calls)(write)
    with TestDriver(app) as driver, pytest.raises(AgentFailed, match=r"tables=\[…\]"):
        driver.send(calls, 1, key="k")

    app = App("shown", topic_partitions=1)
    calls = app.topic("calls", key=str)
    tables = {"rows": app.table("rows", key=str, value=int)}
    app.agent(calls, tables=[tables["rows"]])(write)
    with TestDriver(app) as driver:
        driver.send(calls, 1, key="k")
        assert driver.table(tables["rows"]) == {"k": 1}


def test_who_asks_an_agent_does_not_use_its_tables() -> None:
    app = App("asking", topic_partitions=1)
    lookups, orders = app.topic("lookups", key=str, value=str), app.topic("orders", key=str, value=str)
    asked = app.table("asked", key=str, value=int, default=int)

    @app.agent(lookups, replies=True)
    async def price(stream: Stream[str]) -> AsyncIterator[int]:
        async for item in stream:
            asked[item] += 1
            if stream.attempt > 1:
                stream.defer(1)
            yield 1

    @app.agent(orders, concurrency=4)
    async def bill(stream: Stream[str]) -> None:
        async for item in stream:
            await price.ask(item, key=item)

    assert asked in app.agents["price"].tables
    assert app.agents["price"].deferred is not None
    assert app.agents["bill"].tables == ()
    assert app.agents["bill"].deferred is None


def test_an_agent_before_its_loop_has_no_partition_to_look_into() -> None:
    app = App("early", topic_partitions=1)
    calls = app.topic("calls", key=str)
    rows = app.table("rows", key=str, value=int)

    @app.agent(calls)
    async def early(stream: Stream[Any]) -> None:
        with pytest.raises(TableUnavailable, match="works on no event outside of its loop"):
            rows["k"] = 1
        async for _ in stream:
            rows["k"] = 2

    with TestDriver(app) as driver:
        driver.send(calls, 1, key="k")
        assert driver.table(rows) == {"k": 2}


def test_topics_that_meet_in_a_table_need_the_same_number_of_partitions() -> None:
    app = App("meeting")
    few, many = app.topic("few", key=str, partitions=2), app.topic("many", key=str, partitions=3)
    rows = app.table("rows", key=str, value=int)

    async def write(stream: Stream[Any]) -> None:
        async for _ in stream:
            rows["k"] = 1

    app.agent(few, name="one")(write)
    app.agent(many, name="two")(write)
    with pytest.raises(
        CoPartitionError, match=r"'few' \(2 partitions\) and 'many' \(3\) meet in table 'rows'.*group_by"
    ):
        TestDriver(app).__enter__()


def test_a_table_is_declared_once() -> None:
    app = App("twice")
    app.table("rows")
    with pytest.raises(ConfigurationError, match="table 'rows' is declared twice"):
        app.table("rows")


# -- tables that a topic fills --------------------------------------------------------------------


def fed() -> tuple[App, Topic[str, str], Topic[str, str], Topic[str, str], Table[str, str]]:
    app = App("fed", topic_partitions=2)
    names = app.topic("names", key=str, value=str)
    greetings = app.topic("greetings", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    people = app.table("people", source=names)

    @app.agent(greetings, to=out)
    async def greet(stream: Stream[str]) -> AsyncIterator[str]:
        async for greeting in stream:
            yield f"{greeting}, {people.get(stream.event.key, 'you')}"

    return app, names, greetings, out, people


def test_a_topic_fills_a_table_and_a_tombstone_deletes() -> None:
    app, names, greetings, out, _ = fed()
    with TestDriver(app) as driver:
        driver.send(greetings, "hi", key="1")
        driver.send(names, "Ada", key="1")
        driver.send(greetings, "hi", key="1")
        driver.send(names, None, key="1")
        driver.send(greetings, "hi", key="1")
        assert [each.value for each in driver.outputs(out)] == ["hi, you", "hi, Ada", "hi, you"]


def test_a_table_that_a_topic_fills_comes_back_from_it() -> None:
    app, names, greetings, out, people = fed()
    with TestDriver(app) as driver:
        driver.send(names, "Ada", key="1")
        driver.send(names, "Bob", key="2")
        driver.crash()
        assert driver.table(people) == {"1": "Ada", "2": "Bob"}
        driver.send(greetings, "hi", key="2")
        assert [each.value for each in driver.outputs(out)] == ["hi, Bob"]


def test_a_null_key_fills_nothing_and_is_counted() -> None:
    app, names, *_, people = fed()
    with TestDriver(app) as driver:
        driver.send(names, "Nobody", key=None)
        assert driver.table(people) == {}
        assert driver.dropped == {"null_key": 1}


def test_agents_only_read_a_table_that_a_topic_fills() -> None:
    app = App("readonly", topic_partitions=1)
    names = app.topic("names", key=str, value=str)
    people = app.table("people", source=names)

    @app.agent(names)
    async def write(stream: Stream[str]) -> None:
        async for name in stream:
            people["1"] = name

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match="'people' is filled by topic 'names'"):
        driver.send(names, "Ada", key="1")


# -- rows that expire -----------------------------------------------------------------------------


def test_a_row_expires_by_the_time_of_the_events() -> None:
    seen: list[Any] = []

    def use(table: Table[str, int], event: Any) -> None:
        seen.append((table.get("k"), len(table), list(table)))
        if event.value is not None:
            table["k"] = event.value

    with doing(use, value=int, ttl=timedelta(seconds=10)) as driver:
        call(driver, "k", 1, timestamp=0)
        call(driver, "k", timestamp=9_999)
        call(driver, "k", 2, timestamp=10_000)
        # Out of order: it neither moves the clock back nor gives a row less than its time.
        call(driver, "k", 3, timestamp=5_000)
        call(driver, "k", timestamp=19_999)
        call(driver, "k", timestamp=20_000)
        assert [value for value, *_ in seen] == [None, 1, None, 2, 3, None]
        assert seen[-1] == (None, 0, [])


def test_what_had_expired_before_a_crash_has_expired_after_it() -> None:
    seen: list[Any] = []

    def use(table: Table[str, int], event: Any) -> None:
        seen.append(table.get("k"))
        if event.value is not None:
            table["k"] = event.value

    with doing(use, value=int, ttl=timedelta(seconds=10)) as driver:
        call(driver, "k", 1, timestamp=0)
        call(driver, "k", timestamp=50_000)
        driver.crash()
        call(driver, "k", timestamp=1)
        assert seen == [None, None, None]


def test_what_has_expired_is_deleted_in_the_changelog_too() -> None:
    def use(table: Table[str, int], event: Any) -> None:
        if event.value is not None:
            table[event.key] = event.value

    with doing(use, value=int, ttl=timedelta(seconds=10)) as driver:
        call(driver, "a", 1, timestamp=0, partition=0)
        call(driver, "b", 1, timestamp=5_000, partition=0)
        call(driver, "c", timestamp=12_000, partition=0)
        table = driver.app.tables["rows"]
        assert driver.table(table) == {"b": 1}
        driver.crash()
        assert driver.table(table) == {"b": 1}


# -- a commit that an agent asks for --------------------------------------------------------------


def test_an_agent_can_have_its_work_committed_before_it_goes_on() -> None:
    app = App("asking", topic_partitions=1, commit_interval=timedelta(hours=1))
    numbers = app.topic("numbers", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)
    committed: list[Any] = []

    @app.agent(numbers)
    async def add(stream: Stream[int]) -> None:
        async for n in stream:
            await stream.commit()
            assert driver._worker is not None and driver._worker.assignment is not None
            (source,) = driver._worker.assignment.sources.values()
            committed.append(source.ledger.base)
            totals["a"] += n

    with TestDriver(app) as driver:
        for n in range(3):
            driver.send(numbers, n, key="a")
        assert committed == [0, 1, 2]
        assert driver.table(totals) == {"a": 3}


def test_rows_of_a_changelog_that_was_deleted_are_not_taken_for_those_of_the_next() -> None:
    app, numbers, _, totals = counting()
    log = "counting-totals-changelog"

    async def scenario() -> dict[str, int]:
        url, kept = "memory://another-changelog", Kept(agreed=True)
        broker = MemoryBroker(url, {})
        await broker.open(1)

        async def run(*records: int) -> dict[str, int]:
            worker = Worker(app, broker=MemoryBroker(url, {}), stores=kept)
            await worker.start()
            producer = broker.producer()
            for n in records:
                producer.send(numbers.name, b"a", b"%d" % n, 0, None, 0)
            await producer.flush()
            await producer.close()
            await worker.used_up()
            assert worker.assignment is not None
            rows = {key: value for state in worker.assignment.states() for _, key, value in state.rows(totals)}
            await worker.stop()
            assert worker.failure is None
            return rows

        assert await run(1, 2) == {"a": 3}
        # The new one is as long as the old one was: only its id tells.
        (end,) = (await broker.end_offsets([TopicPartition(log, 0)])).values()
        await broker.delete_topics([log])
        await broker.create_topics([TopicSpec(log, 3, compacted=True)])
        producer = broker.producer()
        for _ in range(end):
            producer.send(log, b"a", b"40", 0, None, 0)
        await producer.flush()
        await producer.close()
        rows = await run(2)
        await broker.close()
        return rows

    assert asyncio.run(scenario()) == {"a": 42}


# -- two agents on one table ----------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [None, timedelta(hours=1)])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_no_update_is_lost_when_another_agent_writes_the_row_meanwhile(delivery: str, versioned: Any) -> None:
    app = App("sharing", topic_partitions=1, delivery=delivery)
    slow, fast = app.topic("slow", key=str, value=int), app.topic("fast", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int, versioned=versioned)

    @app.agent(slow)
    async def add_slowly(stream: Stream[int]) -> None:
        async for n in stream:
            totals["k"] += n
            await asyncio.sleep(1)

    @app.agent(fast)
    async def add(stream: Stream[int]) -> None:
        async for n in stream:
            totals["k"] += n

    with TestDriver(app) as driver:
        driver.send(slow, 100, key="k", timestamp=20)
        for n in range(5):
            driver.send(fast, 1, key="k", timestamp=10 + n)
        driver.advance(10)
        assert driver.table(totals) == {"k": 105}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_event_that_is_done_again_for_what_another_agent_wrote_comes_as_it_came(concurrency: int) -> None:
    app = App("again", topic_partitions=1)
    orders = app.topic("orders", key=str, value=dict)
    totals = app.table("totals", key=str, value=int, default=int)

    @app.agent(orders, concurrency=concurrency)
    async def slow(stream: Stream[dict[str, int]]) -> None:
        async for order in stream:
            before = totals["a"]
            await asyncio.sleep(1)
            totals["a"] = before + order.pop("amount")

    @app.agent(orders)
    async def quick(stream: Stream[dict[str, int]]) -> None:
        async for order in stream:
            totals["a"] += order.pop("amount")

    with TestDriver(app) as driver:
        driver.send(orders, {"amount": 1}, key="a")
        driver.advance(timedelta(seconds=5))
        assert driver.table(totals) == {"a": 2}


def test_an_event_that_only_read_what_another_agent_writes_is_done_once() -> None:
    app = App("reading", topic_partitions=1)
    asks, writes = app.topic("asks", key=str, value=int), app.topic("writes", key=str, value=int)
    rows = app.table("rows", key=str, value=int)
    seen: list[Any] = []

    @app.agent(asks)
    async def ask(stream: Stream[int]) -> None:
        async for _ in stream:
            seen.append(rows.get("k"))
            await asyncio.sleep(1)

    @app.agent(writes)
    async def write(stream: Stream[int]) -> None:
        async for n in stream:
            rows["k"] = n

    with TestDriver(app) as driver:
        driver.send(asks, 1, key="k")
        driver.send(writes, 7, key="k")
        driver.advance(1)
        driver.send(asks, 1, key="k")
        driver.advance(1)
        assert seen == [None, 7]


# -- values that would fail later -----------------------------------------------------------------


def test_what_cannot_be_written_is_refused_where_it_is_assigned() -> None:
    def huge(table: Any) -> None:
        table["k"] = 10**5_000

    def nothing(table: Any) -> None:
        table["k"] = float("nan")

    def long(table: Any) -> None:
        table["k" * 70_000] = 1

    refusal(huge, CodecError, "value of table 'rows'", value=int)
    refusal(nothing, CodecError, "value of table 'rows': nan has no JSON", value=float)
    refusal(long, CodecError, "key of table 'rows': 70,000 bytes long; at most 65,536", value=int)


def keeping(type_: Any, look: Callable[[Table[str, Any]], Any], **options: Any) -> tuple[App, Topic[str, int]]:
    app = App("typed", topic_partitions=1)
    calls = app.topic("calls", key=str, value=int)
    table = app.table("rows", key=str, value=type_, **options)

    @app.agent(calls, tables=[table])
    async def use(stream: Stream[int]) -> None:
        async for _ in stream:
            look(table)

    return app, calls


@pytest.mark.parametrize(
    ("type_", "options"),
    [
        (int, {}),
        (float, {}),
        (list, {}),
        (float, {"versioned": timedelta(hours=1)}),
        (int, {"ttl": timedelta(hours=1)}),
    ],
)
@pytest.mark.parametrize("look", [lambda rows: rows["k"], lambda rows: list(rows.items())])
def test_a_row_of_another_type_is_named_with_the_way_out(
    type_: Any, options: dict[str, Any], look: Callable[[Table[str, Any]], Any]
) -> None:
    before, calls = keeping(dict, lambda rows: rows.update(k={"a": 1}))
    after, again = keeping(type_, look, **options)
    with TestDriver(before) as driver:
        driver.send(calls, 1, key="k")
        driver.app = after
        driver.crash()
        with pytest.raises(AgentFailed, match=r"table 'rows': the (row of key 'k'|first row).*another type: declare"):
            driver.send(again, 1, key="k")


def test_tables_of_other_types_have_other_shapes() -> None:
    app = App("shapes")
    one = app.table("one", key=tuple[str, int], value=list[int])
    two = app.table("two", key=tuple[int, str], value=list[str])
    assert one.shape != two.shape
