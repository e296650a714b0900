"""What a store lacks of its changelogs, and how it gets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from agentic import App, Stream
from agentic.brokers.base import Batch, TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import StateMismatch
from agentic.runtime import tails
from agentic.runtime.marks import WRITTEN, as_mark, number
from agentic.runtime.state import TaskState
from agentic.runtime.stores import MemoryStores
from agentic.state.memory import MemoryStore
from agentic.table import Table
from agentic.testing import TestDriver

TP = TopicPartition("log", 0)


def test_two_tables_that_one_topic_fills_are_both_restored() -> None:
    app = App("two", topic_partitions=1)
    source, other = app.topic("source", key=str, value=int), app.topic("other", key=str)
    first, second = app.table("first", source=source), app.table("second", source=source)

    @app.agent(other)
    async def look(stream: Stream[Any]) -> None:
        async for _ in stream:
            assert first.get("x") == second.get("x")

    with TestDriver(app) as driver:
        driver.send(source, 1, key="x")
        driver.crash()
        driver.send(source, 2, key="y")
        assert driver.table(first) == driver.table(second) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("start", "stop", "offsets"),
    [(0, 99, [2, 3, 7]), (3, 99, [3, 7]), (4, 7, []), (0, 3, [2]), (0, 1, []), (8, 99, [])],
)
def test_the_part_of_a_batch_between_two_offsets(start: int, stop: int, offsets: Sequence[int]) -> None:
    keys: list[bytes | None] = [b"2", b"3", b"7"]
    batch = Batch(TP, [2, 3, 7], [2, 3, 7], keys, list(keys), [None] * 3, 8)
    expected = [b"%d" % offset for offset in offsets]
    assert tails.part(batch, start, stop) == (expected, expected, offsets)


def lacking(start: int, end: int, *, at: int, age: int = 0, log: str = "this") -> tuple[int, int]:
    """Return from where a store that stands at `at` needs its changelog, and how many rows it has then."""

    async def scenario() -> tuple[int, int]:
        table: Table[str, int] = App("app").table("table", key=str, value=int)
        store = MemoryStore()
        state = TaskState("log-0", 0, 1, [table], store, stores=MemoryStores())
        state.logs[table] = log
        await state.restore(table, {b"k": (b"1", 1)}, at)
        store.write({}, {WRITTEN: as_mark(time.time_ns() // 1_000_000 - age)})
        found = await tails.begin(state, tails.Changelog(table, TP, start, end, "this"))
        return found, store.count("table")

    return asyncio.run(scenario())


def test_a_task_without_a_partition_of_its_changelog_says_what_has_happened() -> None:
    """The topic it reads was given more partitions while the app ran."""

    async def scenario() -> None:
        table: Table[str, int] = App("app").table("table", key=str, value=int)
        broker = MemoryBroker()
        await broker.create_topics([TopicSpec("app-table-changelog", 3, compacted=True)])

        async def committed(tps: Any) -> dict[TopicPartition, None]:
            return dict.fromkeys(tps)

        assert len(await tails.changelogs(broker, [table], 2, committed)) == 1
        with pytest.raises(StateMismatch, match="has 3 partitions, and table 'table' is used in task 3: the topics"):
            await tails.changelogs(broker, [table], 3, committed)

    asyncio.run(scenario())


def test_a_store_that_is_behind_needs_the_tail() -> None:
    assert lacking(0, 10, at=4) == (4, 1)
    assert lacking(4, 10, at=10) == (10, 1)


def test_a_store_that_may_have_missed_deletions_needs_all() -> None:
    assert lacking(2, 10, at=4, age=tails.TOMBSTONES_KEPT + 1000) == (2, 0)
    # Nothing was written since: nothing was deleted.
    assert lacking(2, 4, at=4, age=tails.TOMBSTONES_KEPT + 1000) == (4, 1)


def test_a_store_that_its_changelog_does_not_go_with_needs_all() -> None:
    assert lacking(5, 10, at=4) == (5, 0)
    assert lacking(0, 3, at=4) == (0, 0)
    with pytest.raises(StateMismatch, match=r"is of another changelog than 'log' is now.*give it another state_dir"):
        lacking(0, 10, at=4, log="former")


def test_a_store_that_is_being_restored_keeps_the_age_of_what_it_had() -> None:
    """What was deleted while it was away may be forgotten by the log before a second try has come so far."""

    async def scenario() -> list[int | None]:
        table: Table[str, int] = App("app").table("table", key=str, value=int)
        store = MemoryStore()
        state = TaskState("log-0", 0, 1, [table], store, stores=MemoryStores())
        ages = []
        for complete in (False, False, True):
            await state.restore(table, {}, 5, complete=complete)
            ages.append(number(store.mark(WRITTEN)))
            store.write({}, {WRITTEN: as_mark(1)})
        return ages

    first, second, third = asyncio.run(scenario())
    assert first is not None and first > 1
    assert second == 1
    assert third is not None and third > 1
