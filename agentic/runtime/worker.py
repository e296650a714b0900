"""A worker: the tree of services around one app's tasks."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from agentic import brokers
from agentic.app import App
from agentic.brokers.base import Broker, Consumer, TopicPartition
from agentic.errors import BrokerUnavailable
from agentic.runtime import changelogs, topics
from agentic.runtime.asking import Asker
from agentic.runtime.assignment import Assignment
from agentic.runtime.checkpoint import Checkpointer, Outcome
from agentic.runtime.globals import Globals
from agentic.runtime.holding import Holding
from agentic.runtime.identity import Slotfile
from agentic.runtime.others import Others
from agentic.runtime.outbox import AGAIN, AppOutlet, Outbox, wall_ms
from agentic.runtime.purge import Purge, purgeable
from agentic.runtime.recovery import Recovery
from agentic.runtime.restorers import Restorers, default_processes
from agentic.runtime.services import (
    BrokerService,
    CheckpointService,
    GlobalsService,
    IntakeService,
    LifespanService,
    OutboxService,
    Part,
    PurgeService,
    StandbyService,
    StateService,
    TasksService,
)
from agentic.runtime.standby import Standbys
from agentic.runtime.stores import Stores, stores_for
from agentic.settings import Settings

log = logging.getLogger("agentic.worker")

T = TypeVar("T")

#: A coroutine function that runs beside the worker: the command line's summary, for one.
Reporter = Callable[[App], Awaitable[None]]

#: Seconds that a user's task has to end once it is cancelled.
TASK_TIMEOUT = 5.0


class Worker(Part):
    """Runs an app's agents on the partitions that its group gives it.

    Args:
        app: checked before anything is opened.
        broker: by default the one that the app's settings name.
        now: the wall clock, in milliseconds.
        reporters: run beside the agents, and are cancelled at the end.
        transactional_id: for exactly once; by default one that a restart of this worker has again.
        holding: what a test lets the events of an agent wait for, by its name.
        stores: where tables are kept; by default in the state directory, for ``memory://`` in memory.

    Attributes:
        failure: why the worker has to stop, None while all is well.
        stopping: set when it has to, for a failure or on request.
    """

    def __init__(
        self,
        app: App,
        *,
        broker: Broker | None = None,
        now: Callable[[], int] = wall_ms,
        reporters: Sequence[Reporter] = (),
        transactional_id: str | None = None,
        stores: Stores | None = None,
        holding: Mapping[str, Holding] | None = None,
    ) -> None:
        super().__init__(self._note_failure)
        app.check()
        self.app = app
        #: Another process could not reach a broker that was made elsewhere.
        self._given_broker = broker is not None
        self.broker = broker or brokers.connect(app.settings.broker, app.settings.broker_options)
        self.failure: BaseException | None = None
        self.stopping = asyncio.Event()
        self.assignment: Assignment | None = None
        #: Copies of other workers' tasks, None where the settings want none.
        self.standbys: Standbys | None = None
        self._now = now
        self._reporters = list(reporters)
        self._consumer: Consumer | None = None
        self._checkpointer: Checkpointer | None = None
        self._globals: Globals | None = None
        self._recovery: Recovery | None = None
        self._given_id = transactional_id
        self._holding = holding if holding is not None else {}
        self._stores = stores or stores_for(app.settings)
        self._slotfile: Slotfile | None = None

    async def on_start(self) -> None:
        """Connect, look at the topics, surround, take in: each step needs the ones before it."""
        app, settings = self.app, self.app.settings
        await self.add_runtime_dependency(BrokerService(self.broker, settings.start_timeout.total_seconds(), self.fail))
        counts = await self._at_start(lambda: topics.ensure(app, self.broker))
        await self._at_start(lambda: changelogs.ensure(app.processors(), counts, self.broker))
        exactly_once = settings.delivery == "exactly_once"
        producer = self.broker.producer(transactional_id=self._transactional_id() if exactly_once else None)
        outbox = Outbox(producer, transactional=exactly_once)
        outlet = AppOutlet(self.broker.producer, app.metrics, self._now)
        asker = Asker(app.home, self.broker, outlet)
        await self.add_runtime_dependency(
            OutboxService(app, outbox, outlet, asker, self.fail, lambda: self._at_start(producer.ready))
        )
        app.metrics.collector = self._report
        # They show how tables are loaded and restored, too.
        reporters = [("reporter", _bound(reporter, app)) for reporter in self._reporters]
        await self.add_runtime_dependency(TasksService(reporters, outlet, self.fail, TASK_TIMEOUT))
        await self.add_runtime_dependency(LifespanService(app, outlet, self.fail))
        if app.global_tables:
            self._globals = Globals(app.global_tables, self.broker, self._stores, settings, app.metrics)
            await self.add_runtime_dependency(GlobalsService(self._globals, self.fail))
        if app.processors():
            await self._start_agents(outbox, counts)
        tasks = [(f"task {getattr(fn, '__name__', 'anonymous')!r}", fn) for fn in app.tasks]
        if self.assignment is not None:
            tasks.append(("watch", self.assignment.watch.run))
        await self.add_runtime_dependency(TasksService(tasks, outlet, self.fail, TASK_TIMEOUT))

    async def _at_start(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the broker until it answers, but not for ever: one that has only just come up has no leaders yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.app.settings.start_timeout.total_seconds()
        while True:
            try:
                return await ask()
            except BrokerUnavailable as error:
                if loop.time() + AGAIN > deadline:
                    raise
                log.info("asked again until it is answered: %s", error)
                await asyncio.sleep(AGAIN)

    async def _start_agents(self, outbox: Outbox, counts: Mapping[str, int]) -> None:
        app, settings = self.app, self.app.settings
        consumer = self._consumer = self.broker.consumer(
            app.name,
            [topic.name for topic in app.sources()],
            instance=settings.instance,
            offset_reset=settings.offset_reset,
            session_timeout=settings.session_timeout.total_seconds(),
        )
        purge = Purge(self.broker, purgeable(app))
        self._checkpointer = Checkpointer(self.broker, consumer, outbox, app.metrics, purge.committed)
        stores = self._stores
        if settings.standbys and app.tables:
            stores = self.standbys = Standbys(
                app.processors(), self.broker, stores, consumer, app.metrics, settings, partitions=counts
            )
        recovery = self._recovery = Recovery(
            self.broker, stores, consumer, app.metrics, self.fail, self._restorers(settings)
        )
        self.assignment = Assignment(
            app.processors(),
            consumer,
            recovery=recovery,
            partitions=counts,
            settings=settings,
            outbox=outbox,
            metrics=app.metrics,
            checkpoint=self._checkpoint_only,
            fail=self.fail,
            now=self._now,
            holding=self._holding,
        )
        interval, timeout = settings.commit_interval.total_seconds(), settings.stop_timeout.total_seconds()
        await self.add_runtime_dependency(StateService(recovery, self.assignment, self.fail))
        if purgeable(app):
            await self.add_runtime_dependency(PurgeService(purge, self.fail))
        await self.add_runtime_dependency(
            IntakeService(consumer, self.assignment, self._checkpointer, outbox, settings, self.fail)
        )
        # Stops before the intake does, whose own stop makes the last checkpoint.
        checkpointer = self._checkpointer
        await self.add_runtime_dependency(
            CheckpointService(
                self.checkpoint, self.assignment, interval, timeout, lambda: checkpointer.held_up, self.fail
            )
        )
        if self.standbys is not None:
            await self.add_runtime_dependency(StandbyService(self.standbys, recovery, self.fail))

    def _restorers(self, settings: Settings) -> Restorers | None:
        processes = settings.restore_processes
        if processes is None:
            processes = default_processes()
        # Of a frozen app the executable is the app itself.
        alone = self._given_broker or not sys.executable or hasattr(sys, "frozen")
        alone = alone or settings.broker.startswith("memory://")
        return None if alone or processes == 0 else Restorers(settings, processes)

    def _transactional_id(self) -> str:
        """A restart of the same worker takes over its id, and so ends what the former left open."""
        settings = self.app.settings
        name = self._given_id or settings.instance
        if name is None:
            self._slotfile = Slotfile(settings.state_dir, settings.name)
            name = self._slotfile.name
        return f"{settings.name}-{name}"

    async def on_shutdown(self) -> None:
        """All parts have stopped."""
        self._report()
        self.app.metrics.collector = None
        if self._slotfile is not None:
            self._slotfile.close()
            self._slotfile = None

    def _report(self) -> None:
        """Bring the metrics up to date."""
        metrics = self.app.metrics
        if self.assignment is not None:
            self.assignment.report()
        progress = self._globals.progress() if self._globals is not None else {}
        progress |= self._recovery.progress() if self._recovery is not None else {}
        labels = ("table", "partition")
        metrics.keep("restore_left", labels, {each: left for each, (left, _) in progress.items()})
        metrics.keep("restore_total", labels, {each: total for each, (_, total) in progress.items()})

    async def _checkpoint_only(self) -> Outcome:
        assert self._checkpointer is not None and self.assignment is not None, "an app with agents has both"
        return await self._checkpointer.checkpoint(self.assignment)

    @property
    def torn(self) -> bool:
        """Would a checkpoint have to wait for changes of tables that agents have not finished?"""
        return self.assignment is not None and self.assignment.torn

    async def checkpoint(self) -> None:
        """Commit all that is finished now; after an undone transaction, read its events again."""
        if self.assignment is not None and await self._checkpoint_only() is Outcome.UNDONE:
            await self.assignment.reset()

    def _note_failure(self, failure: BaseException) -> None:
        """Stop the worker for this; the first failure is the one that is told."""
        if self.failure is None:
            self.failure = failure
        self.stopping.set()

    def request_stop(self) -> None:
        """Stop in order: drain, commit, leave."""
        self.stopping.set()

    async def used_up(self) -> None:
        """Return when the input of all sources has been worked off and committed.

        That is: every partition of the group is owned, ours are read to their end, nothing is
        under way, and a fresh look at the ends says the same after the commit; and what stood in the
        partitions of others when we came so far is committed, be it by them or, when they have
        died, by us. Timers on the wall clock and tasks are not waited for.
        """
        assignment = self.assignment
        if assignment is None or self._consumer is None:
            return
        others = Others(self.broker, self._consumer)
        while True:
            assignment.progress.clear()
            if await self._all_done(assignment, others):
                # What comes out of the last windows is work again.
                closed = [task.close_idle() for task in assignment.tasks.values()]
                if not any(closed):
                    return
                continue
            try:
                await asyncio.wait_for(assignment.progress.wait(), 0.05)
            except TimeoutError:
                continue

    async def _all_done(self, assignment: Assignment, others: Others) -> bool:
        def worked_off() -> bool:
            return not assignment.backlog and all(source.caught_up for source in assignment.sources.values())

        def reached() -> dict[TopicPartition, int | None]:
            return {tp: source.reached for tp, source in assignment.sources.items()}

        if not assignment.ever_assigned.is_set() or not worked_off():
            return False
        before = reached()
        await self.checkpoint()
        if not worked_off() or not await self._none_is_left(assignment, others):
            return False
        # A commit of ours to a topic that we read ourselves may not be visible yet; it is input all the same.
        ends = await self.broker.end_offsets(list(assignment.sources), with_open=True)
        # What came after the checkpoint may have had effects that the ends do not show.
        return worked_off() and reached() == before and all((before[tp] or 0) >= end for tp, end in ends.items())

    async def _none_is_left(self, assignment: Assignment, others: Others) -> bool:
        """Is there no partition of our sources that nobody has taken yet, or whose owner has work to do?"""
        known = await self.broker.topics()
        every = {TopicPartition(topic.name, n) for topic in self.app.sources() for n in range(known.get(topic.name, 0))}
        theirs = every - set(assignment.sources)
        if not theirs:
            return True
        group = await self.broker.describe_group(self.app.name)
        if not theirs <= {tp for owned in group.members.values() for tp in owned}:
            return False
        return not await others.left(theirs)


def _bound(reporter: Reporter, app: App) -> Callable[[], Awaitable[None]]:
    return lambda: reporter(app)
