"""Rows without the positions that go with them: refused where that is sure, told where it is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kept import Kept

from agentic import App, Stream
from agentic.brokers.base import Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import AgenticError, StateMismatch
from agentic.runtime.positions import Positions
from agentic.runtime.state import TaskState
from agentic.runtime.worker import Worker
from agentic.state.lmdb import LmdbStore

GROUP = "totalling"
NUMBERS = TopicPartition("numbers", 0)
CHANGELOG = TopicPartition("totalling-totals-changelog", 0)


class Scene:
    """A log, and what one machine keeps from worker to worker."""

    def __init__(self, **settings: Any) -> None:
        self.log = MemoryBroker()
        self.stores = Kept()
        self.settings = settings

    def app(self, *more: str) -> App:
        """An app with one task that sums the numbers of its topics by key."""
        app = App(GROUP, topic_partitions=1, **self.settings)
        totals = app.table("totals", key=str, value=int, default=int)

        @app.agent(*(app.topic(name, key=str, value=int) for name in ("numbers", *more)))
        async def add(stream: Stream[int]) -> None:
            async for n in stream:
                totals[stream.event.key] += n

        return app

    async def send(self, *numbers: int, topic: str = "numbers") -> None:
        producer = self.log.producer()
        for n in numbers:
            producer.send(topic, b"k", b"%d" % n, 1)
        await producer.flush()
        await producer.close()

    async def run(self, app: App | None = None) -> int | None:
        """Let a worker do all there is to do; return the total."""
        worker = Worker(app or self.app(), broker=self.log, stores=self.stores)
        await worker.start()
        ends = [asyncio.ensure_future(worker.used_up()), asyncio.ensure_future(worker.stopping.wait())]
        await asyncio.wait(ends, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        assert worker.assignment is not None
        rows = [row for state in worker.assignment.states() for table in state.buffers for row in state.rows(table)]
        await worker.stop()
        if worker.failure is not None:
            raise worker.failure
        return next((value for _, _, value in rows), None)

    async def forget(self, *tps: TopicPartition) -> None:
        """The group's positions are lost."""
        lost: Mapping[TopicPartition, None] = dict.fromkeys(tps or [NUMBERS])
        await self.log.set_positions(GROUP, lost)


def scene(story: Callable[[Scene], Awaitable[None]], **settings: Any) -> None:
    asyncio.run(asyncio.wait_for(_tell(story, settings), 60))


async def _tell(story: Callable[[Scene], Awaitable[None]], settings: dict[str, Any]) -> None:
    await story(Scene(**settings))


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], bool]]:
    """Was it told that rows may be counted twice?"""
    with caplog.at_level(logging.WARNING, "agentic.worker"):
        yield lambda: "has committed nothing" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"delivery": "exactly_once"}, {"offset_reset": "latest"}])
def test_a_worker_whose_group_has_lost_its_positions_counts_nothing_twice(settings: dict[str, Any]) -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec("numbers", 1)])
        # With "latest" nothing is read that came before the first commit.
        await it.run()
        await it.log.set_positions(GROUP, {NUMBERS: Position(0)})
        await it.send(1, 2)
        assert await it.run() == 3
        await it.forget()
        for _ in range(2):
            with pytest.raises(StateMismatch, match=r"no position in partition 'numbers-0' any more") as caught:
                await it.run()
        assert "'agentic groups set numbers-0=2'" in str(caught.value)
        assert "'agentic reset'" in str(caught.value)
        await it.log.set_positions(GROUP, {NUMBERS: Position(2)})
        await it.send(4)
        assert await it.run() == 7

    scene(story, **settings)


def test_all_lost_positions_are_named_at_once() -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec(name, 1) for name in ("numbers", "more")])
        await it.send(1, 2)
        await it.send(4, topic="more")
        assert await it.run(it.app("more")) == 7
        await it.forget(NUMBERS, TopicPartition("more", 0))
        with pytest.raises(StateMismatch, match=r"partitions 'more-0' and 'numbers-0'.*set more-0=1 numbers-0=2'"):
            await it.run(it.app("more"))

    scene(story)


def test_one_lost_position_is_enough() -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec(name, 1) for name in ("numbers", "more")])
        await it.send(1, 2)
        await it.send(4, topic="more")
        await it.run(it.app("more"))
        await it.forget()
        with pytest.raises(StateMismatch, match="partition 'numbers-0' any more"):
            await it.run(it.app("more"))

    scene(story)


def test_a_topic_that_is_new_to_a_group_is_read_from_its_start(warned: Callable[[], bool]) -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec(name, 1) for name in ("numbers", "more")])
        await it.send(1, 2)
        await it.send(4, topic="more")
        assert await it.run() == 3
        assert await it.run(it.app("more")) == 7
        assert not warned()

    scene(story)


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec("numbers", 1)])
        await it.send(1, 2)
        await it.run()
        await it.log.delete_topics(["numbers"])
        await it.log.create_topics([TopicSpec("numbers", 1)])
        await it.send(4, 5, 6)
        assert await it.run() == 18

    scene(story)


def test_where_nothing_is_left_of_what_was_counted_nothing_counts_twice() -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec("numbers", 1)])
        await it.send(1, 2)
        await it.run()
        await it.log.delete_records({NUMBERS: 2})
        await it.forget()
        await it.send(4)
        assert await it.run() == 7

    scene(story)


def test_a_table_that_a_topic_fills_may_be_filled_again() -> None:
    async def story(it: Scene) -> None:
        def filled() -> App:
            app = App(GROUP, topic_partitions=1)
            numbers = app.table("numbers-by-key", source=app.topic("numbers", key=str, value=int))

            @app.agent(app.topic("others", key=str))
            async def look(stream: Stream[Any]) -> None:
                async for event in stream.events():
                    numbers.get(event.key)

            return app

        await it.log.create_topics([TopicSpec(name, 1) for name in ("numbers", "others")])
        await it.send(1, 2)
        assert await it.run(filled()) == 2
        await it.forget()
        assert await it.run(filled()) == 2

    scene(story)


@pytest.mark.parametrize("local", [True, False])
def test_rows_without_any_position_are_told_of_where_they_prove_nothing(
    warned: Callable[[], bool], local: bool
) -> None:
    """They may have been loaded, or be left of a worker that died in its first checkpoint; or the group is gone."""

    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec("numbers", 1), TopicSpec(CHANGELOG.topic, 1, compacted=True)])
        await it.send(4, topic=CHANGELOG.topic)
        # A first worker restores the row, and ends without an event: it has committed nothing.
        assert await it.run() == 4
        assert warned()
        if not local:
            it.stores = Kept()
        await it.send(1)
        assert await it.run() == 5

    scene(story)


def test_a_group_that_has_committed_nothing_yet_is_no_cause_to_say_anything(warned: Callable[[], bool]) -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec("numbers", 1)])
        for _ in range(2):
            assert await it.run() is None
        await it.send(1)
        assert await it.run() == 1
        assert not warned()

    scene(story)


def test_a_task_that_goes_while_its_positions_are_looked_at_is_let_go(tmp_path: Path) -> None:
    async def story(it: Scene) -> None:
        tables = it.app().processors()[0].tables
        store = LmdbStore.open(tmp_path, identity={}, tables={table.name: table.shape for table in tables})
        state = TaskState("numbers-0", 0, 1, tables, store, stores=it.stores)

        class Slow(MemoryBroker):
            async def describe_topic(self, name: str) -> TopicInfo:
                await state.close()
                return TopicInfo(name, {0: (0, 1)}, id="this")

        positions = Positions(Slow(), {}, [NUMBERS])
        await positions.look_at(state, [NUMBERS])
        positions.check()

    scene(story)


# -- a changelog that is gone ---------------------------------------------------------------------


async def with_another_changelog(it: Scene) -> None:
    """Rows are counted, and then their changelog is deleted; the next worker makes a new one."""
    await it.log.create_topics([TopicSpec("numbers", 1)])
    await it.send(1, 2)
    await it.run()
    await it.log.delete_topics([CHANGELOG.topic])


def test_the_last_copy_of_rows_whose_changelog_is_gone_stays_until_somebody_agrees() -> None:
    async def story(it: Scene) -> None:
        await with_another_changelog(it)
        for _ in range(2):
            with pytest.raises(AgenticError, match=r"table 'totals' of task 'numbers-0'.*another changelog"):
                await it.run()
        (store,) = it.stores.stores.values()
        assert store.count("totals") == 1
        it.stores.agreed = True
        await it.send(4)
        assert await it.run() == 4
        (aside,) = it.stores.aside
        assert aside is store and aside.count("totals") == 1

    scene(story)


def test_a_store_without_rows_has_nothing_to_lose_with_its_changelog() -> None:
    async def story(it: Scene) -> None:
        await it.log.create_topics([TopicSpec("numbers", 1)])
        await it.run()
        await it.log.delete_topics([CHANGELOG.topic])
        await it.send(4)
        assert await it.run() == 4

    scene(story)
