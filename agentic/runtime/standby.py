"""Standbys: copies of tasks that other workers have, kept up to date so that taking over takes no restoring.

No worker tells another what to keep. Each looks at the group every few seconds, and works out
from who owns what where each task would go if its owner died; the first `standbys` of these
heirs keep a copy. It is a store like a task's own, and the changelogs are read into it all the
time. When the task comes, its store is there, and only the last records are missing.

What a standby does comes after the worker's own tasks: in small lots, at most half of the time,
and not while tables of its own are restored. Whatever goes wrong with it is its own end, never
the worker's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

from agentic.agent import Agent
from agentic.brokers.base import Batch, Broker, Consumer, GroupInfo, Position, Reader, TopicPartition
from agentic.core.placement import heirs, ranked
from agentic.errors import AgenticError, BrokerError
from agentic.metrics import Metrics
from agentic.runtime import tails
from agentic.runtime.groups import groups, name_of
from agentic.runtime.outbox import AGAIN
from agentic.runtime.replay import Replay
from agentic.runtime.state import TaskState
from agentic.runtime.stores import Stores
from agentic.settings import Settings
from agentic.state.base import Store
from agentic.table import Table
from agentic.topic import Topic

log = logging.getLogger("agentic.worker")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds between two looks at the group.
LOOK = 3.0
#: Seconds for which rows are collected before they are written together.
COLLECT = 0.5
#: Bytes, and number, of collected rows that are written at once: some ten milliseconds' work.
LOT_BYTES = 2 << 20
LOT_ROWS = 10_000


@dataclass(frozen=True)
class Kept:
    """A task of which a standby may be kept.

    Attributes:
        topics: of its group.
        partition, partitions: its number, and how many there are.
    """

    name: str
    topics: tuple[Topic[Any, Any], ...]
    tables: tuple[Table[Any, Any], ...]
    partition: int
    partitions: int


@dataclass(eq=False)
class Following:
    """One table of a standby, and how far its changelog has been followed.

    Attributes:
        position: the offset up to which records have been taken.
        written: the offset up to which they are in the store.
        end: the changelog's end when it was last looked at; of a topic that fills the table, what the
            group has committed. Nothing beyond that is taken: it may yet be read again by another rule.
        waiting: batches that go beyond it.
    """

    table: Table[Any, Any]
    tp: TopicPartition
    position: int
    written: int
    end: int
    replay: Replay
    waiting: list[Batch] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        """Take what is committed of a batch; the rest waits."""
        stop = batch.position
        if self.table.source is None:
            self.end = max(self.end, stop, batch.end or 0)
        elif stop > self.end:
            stop = self.end
            self.waiting.append(batch)
        if stop > self.position:
            self.replay.add(*tails.part(batch, self.position, stop))
            self.position = stop

    def goes_to(self, end: int) -> None:
        """The changelog has become longer."""
        self.end = max(self.end, end)
        waiting, self.waiting = self.waiting, []
        for batch in waiting:
            self.take(batch)


class Standby:
    """The copy of one task.

    Args:
        state: over the copy's store.
    """

    def __init__(self, task: Kept, state: TaskState) -> None:
        self.task = task
        self.state = state
        #: By table; of a table that a topic fills once something of that is committed.
        self.followed: dict[Table[Any, Any], Following] = {}
        #: Has it ever been up to date?
        self.ready = False

    @property
    def lag(self) -> int:
        """How many offsets the store is behind, as far as is known."""
        return sum(max(0, each.end - each.written) for each in self.followed.values())

    async def write(self) -> None:
        """Bring to the store what was collected."""
        # While one is written, another may begin to be followed.
        for each in list(self.followed.values()):
            if each.position > each.written:
                rows, position = each.replay.take(), each.position
                complete = position >= each.end and self._complete(each)
                await self.state.restore(each.table, rows, position, each.replay.observed, complete=complete)
                each.written = position

    def _complete(self, but: Following) -> bool:
        """Does the store have all that the changelogs have, but for one of them?"""
        logged = {table for table in self.task.tables if table.changelog_topic is not None}
        others = (each for each in self.followed.values() if each is not but)
        return logged == self.followed.keys() and all(each.written >= each.end for each in others)


class Standbys:
    """The standbys of one worker. The stores of its own tasks are opened and closed through it.

    Args:
        stores: where the stores are.
        consumer: the worker's, for its name in the group.
        partitions: how many each topic has.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        broker: Broker,
        stores: Stores,
        consumer: Consumer,
        metrics: Metrics,
        settings: Settings,
        *,
        partitions: Mapping[str, int],
    ) -> None:
        self._tasks = _tasks(agents, partitions)
        self._broker = broker
        self._stores = stores
        self._consumer = consumer
        self._metrics = metrics
        self._group = settings.name
        self._number = settings.standbys
        self._yields: Callable[[], bool] = lambda: False
        self.standbys: dict[str, Standby] = {}
        #: Stores of the worker's own tasks, and what these are named for.
        self._own: dict[Store, str] = {}
        #: Tasks whose standby has failed, until they are none of ours to keep.
        self._given_up: set[str] = set()
        #: Held while a store is opened: a task of ours must find a standby that is on its way.
        self._opening = asyncio.Lock()
        self._reader: Reader | None = None
        self._reading: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._begun = asyncio.Event()
        self._written_at = 0.0
        self._running: list[asyncio.Task[None]] = []

    # -- the stores of the worker's own tasks -------------------------------------------------

    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        async with self._opening:
            standby = self.standbys.get(task)
            if standby is None:
                store = await self._stores.open(task, tables)
            else:
                store = await standby.state.hand_over()
                del self.standbys[task]
                log.info("the standby of task %s takes over, %d records behind", standby.task.name, standby.lag)
                self._forget(standby)
            self._own[store] = task
            return store

    async def close(self, store: Store) -> None:
        try:
            await self._stores.close(store)
        finally:
            self._own.pop(store, None)

    async def set_aside(self, store: Store) -> bool:
        if aside := await self._stores.set_aside(store):
            self._own.pop(store, None)
        return aside

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await self._stores.run(work, *arguments)

    # -- life ---------------------------------------------------------------------------------

    def start(self, yields: Callable[[], bool]) -> None:
        """Begin to look at the group, which the worker has joined.

        Args:
            yields: is there work now that goes before any standby's?
        """
        self._yields = yields
        self._running = [
            asyncio.create_task(self._again_and_again(self._look, LOOK), name="standbys: look"),
            asyncio.create_task(self._again_and_again(self._follow, 0), name="standbys: follow"),
        ]

    async def stop(self) -> None:
        """Stop, and let go of all standbys; what they have stays for the next start."""
        for run in self._running:
            run.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._read_nothing()
        async with self._opening:
            for standby in list(self.standbys.values()):
                await self._end(standby)

    async def _again_and_again(self, step: Callable[[], Awaitable[None]], pause: float) -> None:
        """Do a step over and over; what goes wrong is told once until it goes well again."""
        away = False
        while True:
            try:
                await step()
                if away:
                    log.info("standbys are kept up to date again")
                away = False
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # Whatever it is, the worker's own tasks have nothing to do with it.
                if not away:
                    details = None if isinstance(error, AgenticError) else error
                    log.warning("standbys are not kept up to date, tried again: %s", error, exc_info=details)
                away = True
                await asyncio.sleep(AGAIN)

    # -- which --------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look at the group: begin and end standbys, and see how far the changelogs go."""
        group = await self._broker.describe_group(self._group)
        wanted = self._wanted(group, await self._consumer.member_id())
        self._given_up &= wanted.keys()
        for name in [name for name in self.standbys if name not in wanted]:
            async with self._opening:
                if (unwanted := self.standbys.get(name)) is not None:
                    await self._end(unwanted)
                    log.info("keeps no standby of task %s any more", unwanted.task.name)
        for name, task in wanted.items():
            async with self._opening:
                if name in self.standbys or name in self._given_up or name in self._own.values():
                    continue
                await self._begin(task)
        for standby in list(self.standbys.values()):
            await self._examine(standby, group.positions)
        await self._see_ends(group.positions)
        self._report()

    def _wanted(self, group: GroupInfo, me: str | None) -> dict[str, Kept]:
        """Return the tasks of which we keep a standby, by name.

        While partitions are on their way from one member to another, what is kept is kept.
        """
        owners = {tp: member for member, owned in group.members.items() for tp in owned}
        wanted: dict[str, Kept] = {}
        for tasks in self._tasks:
            first = tasks[0]
            by_task = [{owners.get(TopicPartition(topic.name, n)) for topic in first.topics} for n in range(len(tasks))]
            if me not in group.members or any(len(owner) != 1 or None in owner for owner in by_task):
                wanted |= {task.name: task for task in tasks if task.name in self.standbys}
                continue
            topic = first.topics[0].name
            ranks = ranked(
                {member: [tp.partition for tp in owned if tp.topic == topic] for member, owned in group.members.items()}
            )
            for task, owner in zip(tasks, by_task):
                if owner == {me}:
                    heir = task.name in self.standbys  # it is ours by now, and about to be opened
                else:
                    heir = me in heirs(task.partition, task.partitions, ranks, self._number)
                if heir:
                    wanted[task.name] = task
        return wanted

    async def _begin(self, task: Kept) -> None:
        """Open a copy."""
        try:
            store = await self._stores.open(task.name, {table.name: table.shape for table in task.tables})
        except AgenticError as error:
            self._given_up.add(task.name)
            log.warning("no standby of task %s is kept: %s", task.name, error)
            return
        state = TaskState(task.name, task.partition, task.partitions, task.tables, store, stores=self._stores)
        await state.is_standby(True)
        self.standbys[task.name] = Standby(task, state)

    async def _examine(self, standby: Standby, positions: Mapping[TopicPartition, Position]) -> None:
        """Begin to follow those changelogs that are not followed yet."""
        task, state = standby.task, standby.state
        missing = [table for table in task.tables if table not in standby.followed]

        async def committed(tps: Iterable[TopicPartition]) -> dict[TopicPartition, Position | None]:
            return {tp: positions.get(tp) for tp in tps}

        fresh = not standby.followed
        for changelog in await tails.changelogs(self._broker, missing, task.partition, committed):
            try:
                at = await tails.begin(state, changelog)
            except AgenticError as error:
                await self._give_up(standby, error)
            if state.closed:
                return
            table = changelog.table
            standby.followed[table] = Following(table, changelog.tp, at, at, changelog.end, state.replay(table))
            self._begun.set()
        if fresh and standby.followed:
            log.info("keeps a standby of task %s, %d records behind", task.name, standby.lag)

    async def _see_ends(self, positions: Mapping[TopicPartition, Position]) -> None:
        followed = [each for standby in self.standbys.values() for each in standby.followed.values()]
        ends = await self._broker.end_offsets({each.tp for each in followed if each.table.source is None})
        for each in followed:
            if each.table.source is None:
                each.goes_to(ends[each.tp])
            elif (end := tails.end_of_source(each.table, positions.get(each.tp))) is not None:
                each.goes_to(end)

    # -- following ----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take what has come, and write what was collected."""
        self._begun.clear()
        by_tp: dict[TopicPartition, list[tuple[Standby, Following]]] = {}
        for standby in self.standbys.values():
            for each in standby.followed.values():
                by_tp.setdefault(each.tp, []).append((standby, each))
        if not by_tp:
            await self._read_nothing()
            await self._begun.wait()
            return
        while self._yields():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(COLLECT)
        try:
            for batch in await self._poll(by_tp):
                for standby, each in by_tp.get(batch.tp, ()):
                    if not standby.state.closed:
                        await self._safely(standby, self._take(each, batch))
        except BrokerError:
            # Who knows what the log is like when it is back: all is looked at again, and read from where it is written.
            for standby in self.standbys.values():
                standby.followed.clear()
            await self._read_nothing()
            raise
        collected = [each.replay for those in by_tp.values() for _, each in those]
        now = asyncio.get_running_loop().time()
        if (
            now - self._written_at >= COLLECT
            or sum(map(len, collected)) >= LOT_ROWS
            or sum(replay.size for replay in collected) >= LOT_BYTES
        ):
            for standby in list(self.standbys.values()):
                await self._safely(standby, standby.write())
            self._written_at = asyncio.get_running_loop().time()
            self._report()
            # As long as it took: the other half of the time belongs to the worker's own tasks.
            await asyncio.sleep(self._written_at - now)

    @staticmethod
    async def _take(each: Following, batch: Batch) -> None:
        each.take(batch)

    async def _poll(self, by_tp: Mapping[TopicPartition, Sequence[tuple[Standby, Following]]]) -> list[Batch]:
        """Return the next batches of what is followed by now."""
        if self._reader is None or self._reading != by_tp.keys():
            await self._read_nothing()
            for those in by_tp.values():
                for _, each in those:
                    each.waiting.clear()
            self._reader = self._broker.reader(
                {tp: min(each.position for _, each in those) for tp, those in by_tp.items()}
            )
            self._reading = set(by_tp)
        full = {tp for tp, those in by_tp.items() if any(each.waiting for _, each in those)}
        self._reader.pause(full - self._paused)
        self._reader.resume(self._paused - full)
        self._paused = full
        return await self._reader.poll(COLLECT)

    async def _read_nothing(self) -> None:
        reader, self._reader = self._reader, None
        self._reading, self._paused = set(), set()
        if reader is not None:
            await reader.close()

    # -- ends ---------------------------------------------------------------------------------

    async def _safely(self, standby: Standby, work: Awaitable[None]) -> None:
        """Do some work on a standby; if it fails, give the standby up."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a standby that fails must not take others along
            await self._give_up(standby, error)

    async def _give_up(self, standby: Standby, error: Exception) -> None:
        details = None if isinstance(error, AgenticError) else error
        log.warning("the standby of task %s is given up: %s", standby.task.name, error, exc_info=details)
        self._given_up.add(standby.task.name)
        async with self._opening:
            await self._end(standby)

    async def _end(self, standby: Standby) -> None:
        """Close a copy; its files stay."""
        if self.standbys.get(standby.task.name) is not standby:
            return
        del self.standbys[standby.task.name]
        self._forget(standby)
        try:
            await standby.state.close()
        except AgenticError as error:
            log.warning("the standby of task %s can't be closed in order: %s", standby.task.name, error)

    # -- telling ------------------------------------------------------------------------------

    def _report(self) -> None:
        for standby in self.standbys.values():
            for each in standby.followed.values():
                lag = max(0, each.end - each.written)
                self._metrics.gauge("standby_lag", topic=each.tp.topic, partition=each.tp.partition).set(lag)
            if standby.followed and not standby.lag and not standby.ready:
                standby.ready = True
                log.info("the standby of task %s is up to date", standby.task.name)

    def _forget(self, standby: Standby) -> None:
        for each in standby.followed.values():
            self._metrics.remove("standby_lag", topic=each.tp.topic, partition=each.tp.partition)


def _tasks(agents: Iterable[Agent], partitions: Mapping[str, int]) -> list[list[Kept]]:
    """Return the tasks that have a changelog, by group, in the order of their numbers."""
    found = []
    for members, topics in groups(agents):
        tables = tuple(dict.fromkeys(table for agent in members for table in agent.tables))
        count = partitions[topics[0].name]
        if any(table.changelog_topic is not None for table in tables):
            found.append([Kept(name_of(topics, n), tuple(topics), tables, n, count) for n in range(count)])
    return found
