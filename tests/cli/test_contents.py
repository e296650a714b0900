"""What a table holds, put together from a local copy and the changelog, against what the changelog comes to."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.brokers.base import TopicInfo, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.cli import contents
from agentic.cli.contents import Reading
from agentic.runtime.marks import as_mark, upto
from agentic.state.envelope import wrap
from agentic.state.lmdb import LmdbStore
from agentic.table import Table

#: A change of a key: its value, None for a deletion.
Change = tuple[str, int | None]

CHANGELOG = "outside-rows-changelog"

changes = st.lists(st.tuples(st.sampled_from(["a", "ab", "b", "", "ä"]), st.none() | st.integers(0, 9)), max_size=30)


def app_with_table(state_dir: str) -> tuple[App, Table[str, int]]:
    app = App("outside", broker="memory://", state_dir=state_dir, topic_partitions=1)
    events = app.topic("events", key=str, value=int)
    rows = app.table("rows", key=str, value=int)

    @app.agent(events)
    async def use(stream: Stream[Any]) -> None:
        async for value in stream:
            rows["a"] = value

    return app, rows


def fold(done: Iterable[Change]) -> dict[bytes, int]:
    rows: dict[bytes, int] = {}
    for key, value in done:
        rows.pop(key.encode(), None)
        if value is not None:
            rows[key.encode()] = value
    return rows


def copy_of(state_dir: str, table: Table[str, int], rows: dict[bytes, int], claims: int) -> None:
    """Make a local copy that says it has the changelog up to `claims`."""
    directory = f"{state_dir}/outside/state/events-0/0"
    with closing(LmdbStore.open(directory, identity={}, tables={"rows": table.shape})) as store:
        blobs = [(key, wrap(b"%d" % value, 5)) for key, value in sorted(rows.items())]
        store.write({"rows": blobs}, {upto(table.name): as_mark(claims)})


async def read(
    app: App,
    table: Table[str, int],
    logged: list[Change],
    low: bytes = b"",
    high: bytes | None = None,
    broker: MemoryBroker | None = None,
) -> tuple[list[tuple[bytes, int]], list[str]]:
    """Return the rows that are read where `logged` is the changelog, and what was said of them."""
    broker = broker or MemoryBroker()
    await broker.open(1)
    await broker.create_topics([TopicSpec("events"), TopicSpec(CHANGELOG, compacted=True)])
    await log(broker, logged)
    said: list[str] = []
    reading = Reading(app, table, await broker.topics(), broker, said.append)
    with closing(reading):
        rows = [(row.stored_key, int(row.value)) for row in await reading.rows(low, high, [0])]
    await broker.close()
    return rows, said


async def log(broker: MemoryBroker, changes: list[Change]) -> None:
    producer = broker.producer()
    for key, value in changes:
        producer.send(CHANGELOG, key.encode(), None if value is None else b"%d" % value, 5)
    await producer.flush()
    await producer.close()


def expected(rows: dict[bytes, int], low: bytes, high: bytes | None) -> list[tuple[bytes, int]]:
    return [(key, value) for key, value in sorted(rows.items()) if low <= key and (high is None or key < high)]


@settings(max_examples=40, deadline=None)
@given(changes, st.none() | st.integers(0, 30), st.sampled_from([(b"", None), (b"a", b"b"), (b"ab", b"ab\0")]))
def test_a_copy_and_what_follows_it_come_to_the_same_as_the_whole_changelog(
    logged: list[Change], copied: int | None, bounds: tuple[bytes, bytes | None]
) -> None:
    with tempfile.TemporaryDirectory() as state_dir:
        app, table = app_with_table(state_dir)
        if copied is not None:
            done = min(copied, len(logged))
            copy_of(state_dir, table, fold(logged[:done]), done)
        rows, _ = asyncio.run(read(app, table, logged, *bounds))
        assert rows == expected(fold(logged), *bounds)


def test_a_copy_of_a_changelog_that_is_gone_is_not_used() -> None:
    with tempfile.TemporaryDirectory() as state_dir:
        app, table = app_with_table(state_dir)
        copy_of(state_dir, table, {b"old": 1}, 100)
        rows, said = asyncio.run(read(app, table, [("a", 1)]))
        assert rows == [(b"a", 1)]
        assert said == [
            "rows: partition 0 here is of another topic outside-rows-changelog than there is now; "
            "'agentic tables dump rows --local' shows it",
            "rows: partition 0 from topic outside-rows-changelog",
        ]


def test_a_copy_that_is_far_behind_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LONGEST_TAIL", 3)
    monkeypatch.setattr(contents, "LOT", 2)
    logged: list[Change] = [("a", 1), ("b", 1), ("c", 1), ("a", None), ("b", 2)]
    with tempfile.TemporaryDirectory() as state_dir:
        app, table = app_with_table(state_dir)
        for claims, source in [(1, "topic outside-rows-changelog"), (2, f"{state_dir}/outside/state")]:
            copy_of(state_dir, table, fold(logged[:claims]), claims)
            rows, said = asyncio.run(read(app, table, logged))
            assert rows == [(b"b", 2), (b"c", 1)]
            assert said == [f"rows: partition 0 from {source}"]


WRITING = """
import sys
from agentic.state.envelope import wrap
from agentic.state.lmdb import LmdbStore

store = LmdbStore.open(sys.argv[1], identity={}, tables={"rows": sys.argv[2]})
store.write({"rows": [(b"a", wrap(b"3", 5)), (b"b", wrap(b"3", 5))]}, {"upto/rows": (6).to_bytes(8, "big")})
store.close()
"""


def test_what_a_worker_writes_meanwhile_is_not_mixed_in() -> None:
    class Busy(MemoryBroker):
        """Once the changelog's end was told, the worker goes on: it writes to the changelog and to the store."""

        async def describe_topic(self, name: str) -> TopicInfo:
            told = await super().describe_topic(name)
            await log(self, [("a", 3), ("b", 3)])
            # By another process, as a worker does: an environment is opened once in a process.
            done = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITING, directory, table.shape)
            assert await done.wait() == 0
            return told

    with tempfile.TemporaryDirectory() as state_dir:
        app, table = app_with_table(state_dir)
        logged: list[Change] = [("a", 1), ("b", 1), ("a", 2), ("c", 2)]
        copy_of(state_dir, table, fold(logged[:2]), 2)
        directory = f"{state_dir}/outside/state/events-0/0"
        rows, _ = asyncio.run(read(app, table, logged, broker=Busy()))
        assert rows == [(b"a", 2), (b"b", 1), (b"c", 2)]


def test_of_several_copies_the_furthest_is_used() -> None:
    with tempfile.TemporaryDirectory() as state_dir:
        app, table = app_with_table(state_dir)
        copy_of(state_dir, table, {b"a": 1}, 1)
        with closing(
            LmdbStore.open(f"{state_dir}/outside/state/events-0/1", identity={}, tables={"rows": table.shape})
        ) as store:
            store.write({"rows": [(b"a", wrap(b"7", 5))]}, {upto(table.name): as_mark(2)})
        rows, _ = asyncio.run(read(app, table, [("a", 1), ("a", 2)]))
        assert rows == [(b"a", 7)], "the row that only the second copy has"


@pytest.mark.parametrize(
    ("partitions", "said"), [([0], "partition 0"), ([0, 1, 2, 5], "partitions 0-2, 5"), ([3, 7], "partitions 3, 7")]
)
def test_partitions_are_said_in_runs(partitions: list[int], said: str) -> None:
    assert contents._numbered(partitions) == said
