"""Several agents read one topic: each has its own progress, and no crash makes one of them pay for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.brokers.base import TopicPartition
from agentic.errors import ConfigurationError, DecodeFailed
from agentic.table import Change, Table
from agentic.testing import TestDriver
from agentic.topic import Topic

#: Seconds that the slow agent takes for an event.
SLOW = 10.0


class Pair:
    """An app with a topic that a fast agent reads, which counts, and a slow one.

    Args:
        slow: the slow agent's name, None for none.
        third: whether there is another fast one.
        part: whether the agents read the odd numbers only.
    """

    def __init__(
        self, *, fast: bool = True, slow: str | None = "slow", third: bool = False, part: bool = False, **settings: Any
    ) -> None:
        chosen: dict[str, Any] = {"delivery": "exactly_once", "topic_partitions": 1, "dead_letter": "letters"}
        self.app = App("pair", **(chosen | settings))
        self.numbers: Topic[str, int] = self.app.topic("numbers", key=str, value=int)
        self.quick: Topic[str, int] = self.app.topic("quick", key=str, value=int)
        self.late: Topic[str, int] = self.app.topic("late", key=str, value=int)
        self.extra: Topic[str, int] = self.app.topic("extra", key=str, value=int)
        self.letters: Topic[Any, bytes] = self.app.topic("letters", value=bytes)
        self.totals: Table[str, int] = self.app.table("totals", key=str, value=int, default=int)
        self.source: Any = self.numbers.filter(lambda n: n % 2 == 1) if part else self.numbers
        if fast:
            self._fast()
        if slow is not None:
            self._slow(slow)
        if third:
            self._third()

    def _fast(self) -> None:
        totals = self.totals

        @self.app.agent(self.source, to=self.quick)
        async def fast(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                totals[stream.event.key] += n
                if n == 13:
                    raise ValueError("thirteen")
                yield n

    def _slow(self, name: str) -> None:
        @self.app.agent(self.source, to=self.late, name=name)
        async def slow(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                await asyncio.sleep(SLOW)
                if n == 7:
                    raise ValueError("seven")
                yield n

    def _third(self) -> None:
        @self.app.agent(self.source, to=self.extra)
        async def third(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                yield n


def values(driver: TestDriver, topic: Topic[Any, Any]) -> list[Any]:
    return [out.value for out in driver.outputs(topic)]


def send(driver: TestDriver, pair: Pair, *numbers: int) -> None:
    for n in numbers:
        driver.send(pair.numbers, n, key="a")


def restart_as(driver: TestDriver, pair: Pair) -> None:
    """Kill the app and start another version of it on the same log."""
    driver.app = pair.app
    driver.crash()


def test_each_agent_has_values_of_its_own() -> None:
    app = App("own", topic_partitions=1)
    orders = app.topic("orders", key=str, value=dict)
    seen: list[dict[str, int]] = []

    @app.agent(orders)
    async def spoil(stream: Stream[dict[str, int]]) -> None:
        async for order in stream:
            del order["amount"]

    @app.agent(orders)
    async def look(stream: Stream[dict[str, int]]) -> None:
        async for order in stream:
            seen.append(order)

    with TestDriver(app) as driver:
        driver.send(orders, {"amount": 1}, key="a")
        assert seen == [{"amount": 1}]


# -- exactly once ---------------------------------------------------------------------------------


def test_a_crash_repeats_nothing_of_the_agent_that_was_done() -> None:
    pair = Pair()
    with TestDriver(pair.app) as driver:
        send(driver, pair, 5)
        driver.crash()
        driver.advance(SLOW)
        assert values(driver, pair.quick) == [5]
        assert driver.table(pair.totals) == {"a": 5}
        assert values(driver, pair.late) == [5]


def test_however_often_it_crashes_each_event_counts_once_for_each_agent() -> None:
    pair = Pair()
    with TestDriver(pair.app) as driver:
        for n in range(1, 6):
            send(driver, pair, n)
            driver.crash()
        driver.advance(2.5 * SLOW)
        driver.crash()
        driver.advance(10 * SLOW)
        driver.crash()
        assert values(driver, pair.quick) == [1, 2, 3, 4, 5]
        assert driver.table(pair.totals) == {"a": 15}
        assert values(driver, pair.late) == [1, 2, 3, 4, 5]


def test_the_agents_outputs_of_an_event_need_not_be_in_one_commit() -> None:
    pair = Pair()
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 2)
        assert values(driver, pair.quick) == [1, 2]
        assert values(driver, pair.late) == []
        driver.advance(SLOW)
        assert values(driver, pair.late) == [1]


def test_at_least_once_what_was_committed_is_not_done_again_either() -> None:
    pair = Pair(delivery="at_least_once")
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 2)
        driver.crash()
        driver.advance(2 * SLOW)
        assert values(driver, pair.quick) == [1, 2]
        assert driver.table(pair.totals) == {"a": 3}
        assert values(driver, pair.late) == [1, 2]


def test_events_that_a_filter_refuses_are_finished_too() -> None:
    pair = Pair(part=True)
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 2, 3, 4)
        driver.crash()
        driver.advance(4 * SLOW)
        driver.crash()
        assert values(driver, pair.quick) == [1, 3]
        assert values(driver, pair.late) == [1, 3]


def test_an_event_that_one_agent_fails_on_is_skipped_for_that_agent_once() -> None:
    pair = Pair(on_error="skip")
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 13, 7, 2)
        driver.crash()
        driver.advance(4 * SLOW)
        driver.crash()
        assert values(driver, pair.quick) == [1, 7, 2]
        assert driver.table(pair.totals) == {"a": 10}
        assert values(driver, pair.late) == [1, 13, 2]
        assert driver.dropped == {"agent_error": 2}


def test_a_list_of_events_is_finished_by_the_agent_that_takes_it() -> None:
    pair = Pair(fast=False)
    taken: list[list[int]] = []

    @pair.app.agent(pair.numbers, to=pair.quick)
    async def take(stream: Stream[int]) -> AsyncIterator[int]:
        async for numbers in stream.take(2, within=1):
            taken.append(numbers)
            yield sum(numbers)

    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 2, 3)
        driver.crash()
        driver.advance(1)
        driver.crash()
        driver.advance(4 * SLOW)
        assert values(driver, pair.quick) == [3, 3]
        assert taken == [[1, 2], [3]]
        assert values(driver, pair.late) == [1, 2, 3]


# -- records that can't be decoded ----------------------------------------------------------------


def send_bad(driver: TestDriver, pair: Pair) -> None:
    driver.send_raw(pair.numbers, b"many", partition=0)


def test_a_record_that_cannot_be_decoded_is_dead_lettered_once_for_all_agents() -> None:
    pair = Pair(on_decode_error="dead_letter")
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1)
        send_bad(driver, pair)
        send(driver, pair, 2)
        driver.crash()
        restart_as(driver, more := Pair(third=True, on_decode_error="dead_letter"))
        driver.advance(3 * SLOW)
        assert values(driver, more.letters) == [b"many"]
        assert values(driver, more.quick) == [1, 2]
        assert values(driver, more.late) == [1, 2]
        assert values(driver, more.extra) == [1, 2]


def test_a_record_that_is_skipped_is_finished_for_all_agents() -> None:
    pair = Pair(on_decode_error="skip")
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1)
        send_bad(driver, pair)
        driver.crash()
        driver.advance(SLOW)
        assert driver.dropped == {"undecodable": 1}
        assert values(driver, pair.late) == [1]


def test_a_record_that_stops_the_worker_stops_it_when_all_agents_have_come_to_it() -> None:
    pair = Pair()
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1)
        send_bad(driver, pair)
        assert values(driver, pair.quick) == [1]
        with pytest.raises(DecodeFailed, match="numbers-0 offset 1"):
            driver.advance(SLOW)
        with pytest.raises(DecodeFailed):
            driver.crash()
        assert values(driver, pair.late) == [1]


# -- agents that come and go ----------------------------------------------------------------------


def test_a_new_agent_begins_at_the_committed_position() -> None:
    first = Pair()
    with TestDriver(first.app) as driver:
        send(driver, first, 1, 2, 3)
        driver.advance(SLOW)
        restart_as(driver, second := Pair(third=True))
        driver.advance(2 * SLOW)
        assert values(driver, second.quick) == [1, 2, 3]
        assert values(driver, second.late) == [1, 2, 3]
        assert values(driver, second.extra) == [2, 3]


def test_an_agent_that_is_gone_holds_nobody_back() -> None:
    first = Pair()
    with TestDriver(first.app) as driver:
        send(driver, first, 1, 2)
        restart_as(driver, second := Pair(slow=None))
        send(driver, second, 3)
        assert values(driver, second.quick) == [1, 2, 3]
        assert driver.table(second.totals) == {"a": 6}


def test_an_agent_with_a_new_name_begins_at_the_committed_position() -> None:
    first = Pair()
    with TestDriver(first.app) as driver:
        send(driver, first, 1, 2)
        driver.advance(SLOW)
        restart_as(driver, second := Pair(slow="renamed"))
        driver.advance(SLOW)
        assert values(driver, second.quick) == [1, 2]
        assert values(driver, second.late) == [1, 2]


def test_a_second_agent_begins_where_the_single_one_was() -> None:
    first = Pair(slow=None)
    with TestDriver(first.app) as driver:
        send(driver, first, 1, 2)
        restart_as(driver, second := Pair())
        send(driver, second, 3)
        driver.advance(SLOW)
        assert values(driver, second.quick) == [1, 2, 3]
        assert values(driver, second.late) == [3]


def test_more_agents_than_a_commit_has_room_for_are_refused_at_start() -> None:
    app = App("crowd", topic_partitions=1)
    numbers = app.topic("numbers", value=int)

    async def read(stream: Stream[int]) -> None:
        async for _ in stream:
            pass

    for n in range(65):
        app.agent(numbers, name=f"agent {n}")(read)
    with pytest.raises(ConfigurationError, match="'numbers' is read by 65 agents"), TestDriver(app):
        pass


# -- what else goes by progress -------------------------------------------------------------------


def test_an_agent_that_is_ahead_keeps_its_clock() -> None:
    """A row's life goes by the clock of the agent that looks: see `agentic.runtime.tables.ExpiringView`."""
    pair = Pair(fast=False)
    rows = pair.app.table("rows", key=str, value=int, ttl=timedelta(seconds=10))
    seen: list[int | None] = []

    @pair.app.agent(pair.numbers)
    async def expire(stream: Stream[int]) -> None:
        async for n in stream:
            seen.append(rows.get("a"))
            if n == 1:
                rows["a"] = n

    with TestDriver(pair.app) as driver:
        driver.send(pair.numbers, 1, key="a", timestamp=0)
        driver.send(pair.numbers, 2, key="a", timestamp=20_000)
        driver.crash()
        driver.send(pair.numbers, 3, key="a", timestamp=5_000)  # out of order: by the agent's clock it is 20 s
        assert seen == [None, None, None]


def test_an_agents_clock_goes_by_its_own_topics() -> None:
    app = App("clocks", topic_partitions=1)
    numbers, others = (app.topic(name, key=str, value=int) for name in ("numbers", "others"))
    rows = app.table("rows", key=str, value=int, ttl=timedelta(seconds=10))
    seen: list[int | None] = []

    @app.agent(numbers)
    async def use(stream: Stream[int]) -> None:
        async for n in stream:
            seen.append(rows.get("a"))
            rows["a"] = n

    @app.agent(others)
    async def peek(stream: Stream[int]) -> None:
        async for _ in stream:
            rows.get("a")

    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a", timestamp=0)
        driver.send(others, 1, key="a", timestamp=60_000)
        driver.crash()
        driver.send(numbers, 2, key="a", timestamp=1_000)
        assert seen == [None, 1]


def test_the_clock_of_an_agent_that_reads_changes_goes_by_those_who_make_them() -> None:
    pair = Pair(slow=None)
    rows = pair.app.table("rows", key=str, value=int, ttl=timedelta(seconds=10))
    seen: list[int | None] = []

    @pair.app.agent(pair.totals.changes())
    async def expire(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(rows.get("a"))
            if change.new == 1:
                rows["a"] = 1

    with TestDriver(pair.app) as driver:
        driver.send(pair.numbers, 1, key="a", timestamp=0)
        driver.send(pair.numbers, 2, key="a", timestamp=20_000)
        driver.crash()
        driver.send(pair.numbers, 3, key="a", timestamp=5_000)
        assert seen == [None, None, None]


def test_stream_time_is_what_all_agents_have_come_to() -> None:
    pair = Pair()
    with TestDriver(pair.app) as driver:
        driver.send(pair.numbers, 1, key="a", timestamp=1_000)
        driver.send(pair.numbers, 2, key="a", timestamp=2_000)
        assert driver.stream_time(pair.numbers) is None
        driver.advance(SLOW)
        driver.crash()
        assert driver.stream_time(pair.numbers) == 1_000


def test_a_table_that_a_topic_fills_comes_back_as_far_as_it_was() -> None:
    app = App("fed", topic_partitions=1, delivery="exactly_once")
    names, greetings, late, out = (app.topic(name, key=str, value=str) for name in ("names", "hi", "late", "out"))
    people = app.table("people", source=names)

    @app.agent(names, to=late)
    async def slow(stream: Stream[str]) -> AsyncIterator[str]:
        async for name in stream:
            await asyncio.sleep(SLOW)
            yield name

    @app.agent(greetings, to=out)
    async def greet(stream: Stream[str]) -> AsyncIterator[str]:
        async for greeting in stream:
            yield f"{greeting}, {people.get(stream.event.key)}"

    with TestDriver(app) as driver:
        driver.send(names, "Ada", key="1")
        driver.send(names, "Bob", key="2")
        driver.crash()
        assert driver.table(people) == {"1": "Ada", "2": "Bob"}
        driver.send(greetings, "hi", key="2")
        driver.advance(2 * SLOW)
        assert values(driver, out) == ["hi, Bob"]
        assert values(driver, late) == ["Ada", "Bob"]


def test_changes_belong_to_the_progress_of_the_agent_that_made_them() -> None:
    pair = Pair()
    log: Topic[str, int] = pair.app.topic("log", key=str, value=int)

    @pair.app.agent(pair.totals.changes(), to=log)
    async def report(changes: Stream[Change]) -> AsyncIterator[int]:
        async for change in changes:
            yield change.new

    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 2)
        driver.crash()
        driver.advance(2 * SLOW)
        driver.crash()
        assert values(driver, log) == [1, 3]
        assert values(driver, pair.quick) == [1, 2]
        assert values(driver, pair.late) == [1, 2]


def test_an_event_is_in_flight_until_the_last_agent_has_finished_it() -> None:
    pair = Pair()
    with TestDriver(pair.app) as driver:
        send(driver, pair, 1, 2)
        metrics = pair.app.metrics
        assert metrics.total("in_flight") == 2
        assert metrics.total("lag") == 2
        driver.crash()
        driver.advance(SLOW)
        assert metrics.total("in_flight") == 1
        assert metrics.total("lag") == 1


STEPS = st.lists(
    st.sampled_from(["send", "send", "bad", "crash", "advance", "third", "pair", "alone"]), min_size=1, max_size=25
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_whatever_happens_an_agent_that_stays_does_each_event_once(steps: list[str]) -> None:
    versions = {
        "pair": Pair(on_decode_error="dead_letter"),
        "third": Pair(third=True, on_decode_error="dead_letter"),
        "alone": Pair(slow=None, on_decode_error="dead_letter"),
    }
    pair = versions["pair"]
    sent: list[int] = []
    bad = 0
    with TestDriver(pair.app) as driver:
        for step in steps:
            if step == "send":
                sent.append(len(sent) + 100)
                send(driver, pair, sent[-1])
            elif step == "bad":
                bad += 1
                send_bad(driver, pair)
            elif step == "advance":
                driver.advance(1.5 * SLOW)
            elif step == "crash":
                driver.crash()
            else:
                restart_as(driver, pair := versions[step])
        driver.crash()
        assert values(driver, pair.quick) == sent
        assert driver.table(pair.totals) == ({"a": sum(sent)} if sent else {})
        assert values(driver, pair.letters) == [b"many"] * bad
        if {"third", "alone"}.isdisjoint(steps):
            driver.advance(100 * SLOW)
            assert values(driver, pair.late) == sent
            worker = driver._worker
            assert worker is not None and worker.assignment is not None
            assert worker.assignment.sources[TopicPartition("numbers", 0)].ledger.base == (len(sent) + bad or None)
