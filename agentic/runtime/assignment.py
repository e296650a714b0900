"""Which tasks this worker has, and what happens when partitions come and go.

A partition that goes stops, drains and is committed; the others go on. One that is lost stops
at once and is not committed. What a reset does is the same for all: the worker's memory of
uncommitted work is thrown away and read again from the last commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from agentic.agent import Agent
from agentic.brokers.base import Batch, Consumer, Position, TopicPartition
from agentic.core.readers import MAX_READERS, most_in_flight
from agentic.errors import BrokerUnavailable, ConfigurationError, NotOwner
from agentic.metrics import Metrics
from agentic.runtime.checkpoint import Outcome
from agentic.runtime.crew import Brakes
from agentic.runtime.groups import groups, name_of
from agentic.runtime.holding import Holding
from agentic.runtime.numbers import report_pools, report_windows
from agentic.runtime.outbox import AGAIN, Outbox
from agentic.runtime.partition import SourcePartition
from agentic.runtime.recovery import Recovery
from agentic.runtime.state import TaskState
from agentic.runtime.task import Task
from agentic.runtime.watch import Watch
from agentic.settings import Settings
from agentic.topic import Topic
from agentic.windows import WindowedTable

log = logging.getLogger("agentic.worker")

#: Seconds that events under way have to finish when their partition moves on: well under the
#: time after which a broker takes a silent member for dead.
REVOKE_TIMEOUT = 8.0

#: Seconds after which a checkpoint that waits for children of events says so.
QUIET_WARNING = 10.0

TaskId = tuple[int, int]


class Assignment:
    """The tasks of one worker. A `Listener` for its consumer.

    Args:
        recovery: brings up tasks that have tables.
        partitions: how many each topic has.
        checkpoint: commits all that is finished.
        now: the wall clock, in ms.
        holding: what a test lets events wait for, by the name of the agent.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        consumer: Consumer,
        *,
        settings: Settings,
        outbox: Outbox,
        metrics: Metrics,
        recovery: Recovery,
        partitions: Mapping[str, int],
        checkpoint: Callable[[], Awaitable[Outcome]],
        fail: Callable[[BaseException], None],
        now: Callable[[], int],
        holding: Mapping[str, Holding],
    ) -> None:
        self._now = now
        self._holding = holding
        self._brakes = {agent.name: brakes for agent in agents if (brakes := Brakes.of(agent)) is not None}
        self._groups = groups(agents)
        self._topics = {topic.name: (i, topic) for i, (_, topics) in enumerate(self._groups) for topic in topics}
        self._readers = {name: _readers(topic, agents) for name, (_, topic) in self._topics.items()}
        self._consumer = consumer
        self._settings = settings
        self._outbox = outbox
        self._metrics = metrics
        self._recovery = recovery
        self._partitions = partitions
        self._checkpoint = checkpoint
        self._fail = fail
        self._changing = asyncio.Lock()
        self._asked: list[asyncio.Future[None]] = []
        self.tasks: dict[TaskId, Task] = {}
        self.sources: dict[TopicPartition, SourcePartition] = {}
        #: Set when partitions came, or events were completed: whoever waits for either looks again.
        self.progress = asyncio.Event()
        #: Set when there may be something to commit.
        self.dirty = asyncio.Event()
        #: Set when the next checkpoint should not wait for its interval.
        self.hurry = asyncio.Event()
        #: Set by each checkpoint when it is over.
        self.checkpointed = asyncio.Event()
        self.ever_assigned = asyncio.Event()
        #: Does any agent work on many events at once?
        self.concurrent = any(agent.execution.concurrent for agent in agents)
        #: Looks after what keeps commits back.
        self.watch = Watch(self._with_tasks, metrics, asyncio.get_running_loop().time)

    # -- events -------------------------------------------------------------------------------

    def add(self, batches: Iterable[Batch]) -> None:
        """Hand batches to their tasks."""
        touched: dict[Task, None] = {}
        for batch in batches:
            source = self.sources.get(batch.tp)
            if source is None:
                continue  # a partition that went while its batch was on its way
            source.add(batch)
            task = self.tasks[self._task_id(batch.tp)]
            touched[task] = None
            if batch.offsets:
                task.heard()
        for task in touched:
            task.feed()
        if touched:
            self.dirty.set()

    async def look_again(self) -> None:
        """Read once more from the commit where a word of the end came too soon to be believed."""
        for tp in [tp for tp, source in self.sources.items() if source.doubtful]:
            source = self.sources.get(tp)
            if source is None or source.ledger.position is None:
                continue
            source.doubtful = False
            try:
                await self._consumer.seek({tp: source.ledger.position})
            except NotOwner as error:
                log.info("not read again: %s", error)

    def report(self) -> None:
        """Bring the metrics up to date."""
        for tp, source in self.sources.items():
            base = source.reached if source.ledger.base is None else source.ledger.base
            lag = None if source.heard_end is None or base is None else max(0, source.heard_end - base)
            self._metrics.gauge("lag", topic=tp.topic, partition=tp.partition).set(lag)
        self._metrics.gauge("in_flight").set(self.backlog)
        rows: dict[tuple[object, ...], float] = {}
        for task in self.tasks.values():
            task.count()
            if task.state is not None and not task.state.closed:
                for table in task.tables:
                    # One with windows has its times in a row of their own.
                    count = task.state.store.count(table.name) - isinstance(table, WindowedTable)
                    rows[table.name, task.partition] = max(0, count)
        self._metrics.keep("table_rows", ("table", "partition"), rows)
        self.watch.report()
        report_pools(self._metrics, self.tasks.values(), self._brakes)
        report_windows(self._metrics, self.tasks.values(), self._settings)
        self._metrics.keep(
            "skipped_again",
            ("topic", "partition"),
            {tp: source.ledger.skipped for tp, source in self.sources.items() if source.ledger.skipped},
        )

    @property
    def backlog(self) -> int:
        """Events taken from the broker and not completed."""
        return sum(source.ledger.unfinished for source in self.sources.values())

    def _with_tasks(self) -> dict[TopicPartition, tuple[SourcePartition, Task]]:
        found = ((tp, source, self.tasks.get(self._task_id(tp))) for tp, source in self.sources.items())
        return {tp: (source, task) for tp, source, task in found if task is not None}

    def _task_id(self, tp: TopicPartition) -> TaskId:
        return self._topics[tp.topic][0], tp.partition

    # -- partitions come ----------------------------------------------------------------------

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        async with self._changing:
            self._take(positions)
        if positions:
            log.info("assigned %s", _listed(positions))
            self._metrics.counter("rebalances").add()
        self.ever_assigned.set()
        self.progress.set()

    def _take(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        made: list[Task] = []
        for tp, position in positions.items():
            task_id = self._task_id(tp)
            task = self.tasks.get(task_id)
            if task is None:
                agents, topics = self._groups[task_id[0]]
                task = self.tasks[task_id] = Task(
                    name_of(topics, tp.partition),
                    agents,
                    partition=tp.partition,
                    partitions=self._partitions[tp.topic],
                    home=name_of(topics, tp.partition),
                    settings=self._settings,
                    outbox=self._outbox,
                    metrics=self._metrics,
                    fail=self._fail,
                    progress=self.progress.set,
                    ask_commit=self.ask_commit,
                    now=self._now,
                    dirty=self.dirty.set,
                    brakes=self._brakes,
                    holding=self._holding,
                )
                made.append(task)
            source = SourcePartition(
                self._topics[tp.topic][1],
                tp,
                position,
                readers=self._readers[tp.topic],
                settings=self._settings,
                outbox=self._outbox,
                metrics=self._metrics,
            )
            self.sources[tp] = source
            task.add_source(source)
        for task in made:
            if not task.tables:
                task.start()
        # What comes for a task that waits for its tables would only take the others' room.
        self._consumer.pause([tp for tp in positions if not self.tasks[self._task_id(tp)].started])
        if with_tables := [task for task in made if task.tables]:
            self._recovery.begin(with_tables, self._begin)

    def _begin(self, task: Task) -> None:
        """A task's tables are complete: it begins."""
        if task not in self.tasks.values():
            return
        states = self.states()
        for state in states:
            state.cache(self._settings.cache_bytes // len(states))
        task.start()
        self._consumer.resume(list(task.sources))
        task.feed()

    @property
    def state_full(self) -> bool:
        """Have so many rows been written that they should be committed now?"""
        return sum(state.dirty_bytes for state in self.states()) >= self._settings.checkpoint_bytes

    def ask_commit(self) -> asyncio.Future[None]:
        """Ask for a checkpoint now; the future is done with the next one that begins."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(done)
        self.dirty.set()
        self.hurry.set()
        return done

    def take_asked(self) -> list[asyncio.Future[None]]:
        """A checkpoint begins: who asked for it?"""
        asked, self._asked = self._asked, []
        return asked

    def ask_again(self, asked: Iterable[asyncio.Future[None]]) -> None:
        """A checkpoint was not made: there is still something to commit, and who asked for it waits for the next."""
        self._asked += asked
        self.dirty.set()

    def sweep(self) -> None:
        """Let each task delete some of what has expired."""
        for task in self.tasks.values():
            task.sweep()

    @property
    def torn(self) -> bool:
        """Is there an event whose own effects are out and whose children are not done?"""
        return any(task.torn for task in self.tasks.values())

    async def quiet(self) -> None:
        """Return when no task has an event whose effects are out and whose children are not done; `go_on` ends that."""
        warned = False
        for task in self.tasks.values():
            task.flush()
            task.shut()
        # What had begun before may be done, and have children, while those of another task are waited for.
        while torn := [task for task in self.tasks.values() if task.torn and not task.ended]:
            waits = [asyncio.ensure_future(task.quiet()) for task in torn]
            _, pending = await asyncio.wait(waits, timeout=QUIET_WARNING)
            for wait in pending:
                wait.cancel()
            if pending and not warned:
                warned = True
                stuck = [task.name for task in self.tasks.values() if task.torn]
                log.warning(
                    "the checkpoint waits for changes of tables that agents have not finished: %s", ", ".join(stuck)
                )

    def go_on(self) -> None:
        """Events may begin again."""
        for task in self.tasks.values():
            task.go_on()

    def states(self, *, torn: bool = True) -> list[TaskState]:
        """The states of the tasks that have one; without `torn`, of those alone that have no children undone."""
        return [task.state for task in self.tasks.values() if task.state is not None and (torn or not task.torn)]

    # -- partitions go ------------------------------------------------------------------------

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        async with self._changing:
            going = [tp for tp in partitions if tp in self.sources]
            await self._close(self._tasks_of(going), REVOKE_TIMEOUT)
            await self._commit_and_leave(going)
        if going:
            log.info("gave back %s", _listed(going))
            self._metrics.counter("rebalances").add()

    async def _commit_and_leave(self, going: Sequence[TopicPartition]) -> None:
        """Their tasks have ended: commit them, drop what goes, and take up again what stays of those tasks."""
        outcome = await self._checkpoint()
        ended = self._tasks_of(going)
        stays = {
            tp: source
            for tp, source in self.sources.items()
            if tp not in going and self.tasks[self._task_id(tp)] in ended
        }
        await self._forget(going)
        if outcome is Outcome.UNDONE or (stays and outcome is Outcome.LATER):
            await self._read_again()
            return
        positions: dict[TopicPartition, Position | None] = {}
        for tp, source in stays.items():
            snapshot = source.ledger.snapshot()
            positions[tp] = None if snapshot is None else Position(*snapshot)
        begun = {tp: source.first for tp, source in stays.items()}
        self._consumer.pause(list(stays))
        for task in ended:
            await self._drop(task)
        await self._begin_at(positions, begun)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        async with self._changing:
            gone = [tp for tp in partitions if tp in self.sources]
            if gone and self._outbox.transactional:
                # At once: a checkpoint that came between would commit effects of what is lost without their offsets.
                self._outbox.spoil()
            ended = self._tasks_of(gone)
            for task in ended:
                await task.cancel()
            stays = [tp for tp in self.sources if tp not in gone and self.tasks[self._task_id(tp)] in ended]
            await self._forget(gone)
            # Under exactly-once the open transaction holds effects of what was lost: it can't be committed.
            if gone and (self._outbox.transactional or stays):
                await self._read_again()
            else:
                for task in ended:
                    await self._drop(task)
        if gone:
            log.warning("lost %s; what was not committed is done again by the next owner", _listed(gone))
            self._metrics.counter("rebalances").add()

    async def reset(self) -> None:
        """Throw away all uncommitted work and read again from the last commit."""
        async with self._changing:
            await self._read_again()

    async def _read_again(self) -> None:
        # What comes now would find no source, and not come again.
        self._consumer.pause(list(self.sources))
        for task in self.tasks.values():
            await task.cancel()
        for task in self.tasks.values():
            await task.release()
        begun = {tp: source.first for tp, source in self.sources.items()}
        self.tasks.clear()
        self.sources.clear()
        while True:
            try:
                if self._outbox.transactional:
                    await self._outbox.producer.abort_transaction()
                # A consumer that closes has nothing left to read again, and nobody to ask.
                committed = await self._consumer.committed(begun) if begun else {}
                break
            except BrokerUnavailable as error:
                log.warning("can't read again yet, tried again until it succeeds: %s", error)
                await asyncio.sleep(AGAIN)
        # What was finished but not committed is forgotten by now, and its effects with it.
        self._outbox.restart()
        await self._begin_at({tp: committed.get(tp) for tp in begun}, begun)
        self.progress.set()

    async def _begin_at(
        self, positions: Mapping[TopicPartition, Position | None], begun: Mapping[TopicPartition, int | None]
    ) -> None:
        """Take up owned partitions at these positions; without one, where reading had begun.

        The consumer has been told to pause them, and keeps what comes after the seek until they have their sources.
        """
        ours: dict[TopicPartition, Position | None] = {}
        for tp, position in positions.items():
            start = begun[tp] if position is None else position.offset
            try:
                if start is not None:
                    await self._consumer.seek({tp: start})
                ours[tp] = position
            except NotOwner as error:
                # Lost meanwhile: the listener's call for it waits until we are done here.
                log.info("not taken up again: %s", error)
        self._take(ours)
        for tp in ours:
            # Should it have to begin again before the first record, it begins at the same place.
            self.sources[tp].first = begun[tp]
        self._consumer.resume([tp for tp in ours if self.tasks[self._task_id(tp)].started])

    async def close(self, timeout: float) -> None:
        """End all agents, letting what is under way finish within `timeout` seconds; nothing is committed here."""
        async with self._changing:
            await self._close(list(self.tasks.values()), timeout)

    async def release(self) -> None:
        """Let go of all tasks' state, after the last checkpoint."""
        async with self._changing:
            for task in self.tasks.values():
                await task.release()

    async def cancel(self) -> None:
        """End all agents at once."""
        async with self._changing:
            for task in self.tasks.values():
                await task.cancel()

    def _tasks_of(self, partitions: Iterable[TopicPartition]) -> list[Task]:
        ids = dict.fromkeys(self._task_id(tp) for tp in partitions)
        return [self.tasks[task_id] for task_id in ids if task_id in self.tasks]

    async def _close(self, tasks: Sequence[Task], timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        for task, in_time in zip(tasks, await asyncio.gather(*(task.close(deadline) for task in tasks))):
            if task.torn and self._outbox.transactional:
                # Its effects are in the transaction and its offset can't be: undo the one with the other.
                self._outbox.spoil()
            if not in_time:
                log.warning("task %s: an event was still under way after %g s; it is left undone", task.name, timeout)

    async def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions, and the tasks that have none left."""
        for tp in partitions:
            task = self.tasks.get(self._task_id(tp))
            if task is not None:
                task.sources.pop(tp, None)
            self.sources.pop(tp, None)
            self._metrics.remove("lag", topic=tp.topic, partition=tp.partition)
        for task_id in [task_id for task_id, task in self.tasks.items() if not task.sources]:
            await self.tasks.pop(task_id).release()

    async def _drop(self, task: Task) -> None:
        """Remove a task that has ended, and its remaining partitions."""
        for tp in task.sources:
            self.sources.pop(tp, None)
        self.tasks = {task_id: each for task_id, each in self.tasks.items() if each is not task}
        await task.release()


def _readers(topic: Topic[Any, Any], agents: Iterable[Agent]) -> list[str]:
    """Return the names of the agents that read a topic."""
    names = [agent.name for agent in agents if topic in agent.topics]
    concurrent = sum(not agent.serial for agent in agents if topic in agent.topics)
    if len(names) > MAX_READERS or not most_in_flight(len(names), concurrent):
        raise ConfigurationError(
            f"topic {topic.name!r} is read by {len(names)} agents, {concurrent} of them concurrent, and a commit has "
            f"no room for the progress of so many; of serial ones for {MAX_READERS}: let one agent send its events on "
            "to a topic that some of the others read"
        )
    return names


def _listed(partitions: Iterable[TopicPartition]) -> str:
    """Name partitions shortly: ``orders[0,1], clicks[2]``."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return ", ".join(f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in by_topic.items())
