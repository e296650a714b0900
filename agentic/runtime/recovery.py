"""Bringing tasks up: their stores are opened, and what these lack is read from the changelogs.

Only then does a task begin. It happens in the background: tasks that have all they need run,
while others wait for theirs. All tasks that came together share one reader, so that each gets
its part of the machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic.brokers.base import Batch, Broker, Consumer, TopicPartition
from agentic.errors import BrokerUnavailable, StateMismatch, named
from agentic.metrics import Metrics
from agentic.runtime import tails
from agentic.runtime.outbox import AGAIN
from agentic.runtime.positions import Positions
from agentic.runtime.replay import Replay
from agentic.runtime.state import TaskState
from agentic.runtime.stores import Stores
from agentic.table import Table

if TYPE_CHECKING:
    from agentic.runtime.task import Task

log = logging.getLogger("agentic.worker")

#: Bytes of rows that a table's restoration collects before it writes them: the larger, the fewer pages
#: of the tree are written twice.
BATCH_BYTES = 24 << 20
BATCH_ROWS = 200_000
#: Seconds that a reader waits at most before it looks round.
LOOK_ROUND = 1.0


#: By table and partition: how many offsets are still to be read, and how many in all.
Progress = dict[tuple[str, int], tuple[int, int]]


@dataclass(eq=False)
class Restoration:
    """One table of one task on its way up.

    Attributes:
        position: the changelog offset up to which its rows have been read.
        target: the offset at which it is complete.
        begun: the offset at which it began.
        replay: those that were read, to be written together.
    """

    task: Task
    state: TaskState
    table: Table[Any, Any]
    tp: TopicPartition
    begun: int
    target: int
    position: int
    started: float
    replay: Replay
    restored: int = 0
    writing: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self.position >= self.target


class Recovery:
    """Brings up the tasks of one worker.

    Args:
        fail: takes what stops the worker.
    """

    def __init__(
        self,
        broker: Broker,
        stores: Stores,
        consumer: Consumer,
        metrics: Metrics,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._broker = broker
        self._stores = stores
        self._consumer = consumer
        self._metrics = metrics
        self._fail = fail
        self._running: set[asyncio.Task[None]] = set()
        #: The ids of the source topics.
        self._sources: dict[str, str] = {}
        self._told_unsure = False
        self.restorations: list[Restoration] = []

    def begin(self, tasks: Iterable[Task], ready: Callable[[Task], None]) -> None:
        """Bring tasks up in the background; `ready` is called for each when it can begin."""
        every = list(tasks)
        without = [tp for task in every for tp, source in task.sources.items() if source.ledger.base is None]
        positions = Positions(self._broker, self._sources, without)
        run = asyncio.create_task(self._bring_up(every, positions, ready), name="recovery")
        self._running.add(run)
        run.add_done_callback(self._running.discard)

    async def _bring_up(self, tasks: list[Task], positions: Positions, ready: Callable[[Task], None]) -> None:
        try:
            todo: list[Restoration] = []
            for task in tasks:
                restorations = await self._open(task, positions)
                if restorations:
                    todo += restorations
                elif task.state is not None and not positions.lost:
                    ready(task)
            # All are looked at before: who sets positions right wants to know of every one.
            positions.check()
            self._tell_unsure(positions)
            if todo:
                await self._restore(todo, ready)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a task that can't be brought up stops the worker
            self._fail(error)

    # -- opening ------------------------------------------------------------------------------

    async def _open(self, task: Task, positions: Positions) -> list[Restoration]:
        """Open a task's store; return what has to be restored."""
        await task.open(self._stores)
        state = task.state
        if state is None:
            return []  # it has gone meanwhile
        await state.is_standby(False)
        sources = list(task.sources)
        changelogs = await self._patiently(
            lambda: tails.changelogs(self._broker, task.tables, task.partition, self._consumer.committed)
        )
        found = []
        for changelog in changelogs:
            if state.closed:
                return []  # it has gone meanwhile, and its store with it
            table, tp, end = changelog.table, changelog.tp, changelog.end
            try:
                at = await tails.begin(state, changelog)
            except StateMismatch:
                if not await state.set_aside():
                    raise
                return await self._open(task, positions)
            if at < end:
                now = time.monotonic()
                found.append(Restoration(task, state, table, tp, at, end, at, now, state.replay(table)))
            else:
                state.upto[table] = max(at, state.upto.get(table, 0))
        await self._patiently(lambda: positions.look_at(state, sources))
        positions.look_at_changelogs(sources, changelogs)
        return found

    def _tell_unsure(self, positions: Positions) -> None:
        if positions.unsure and not self._told_unsure:
            self._told_unsure = True
            log.warning(
                "the group has committed nothing of what fills %s, and there are rows: as they should be if they were "
                "loaded, or a worker died before its first commit; if the group was deleted, its events count twice, "
                "and 'agentic reset' begins anew",
                named("changelog partition", map(str, positions.unsure)),
            )

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Ask the broker until it answers."""
        while True:
            try:
                return await ask()
            except BrokerUnavailable as error:
                log.warning("can't restore yet, tried again until it succeeds: %s", error)
                await asyncio.sleep(AGAIN)

    # -- restoring ----------------------------------------------------------------------------

    async def _restore(self, todo: list[Restoration], ready: Callable[[Task], None]) -> None:
        open_by_task = Counter(each.task for each in todo)
        # One topic may fill several tables of a task.
        by_tp: dict[TopicPartition, list[Restoration]] = {}
        for each in todo:
            by_tp.setdefault(each.tp, []).append(each)
        self.restorations += todo
        log.info(
            "restoring %s: %d records",
            ", ".join(f"{each.table.name}[{each.tp.partition}]" for each in todo),
            sum(each.target - each.begun for each in todo),
        )
        reader = self._broker.reader({tp: min(each.begun for each in those) for tp, those in by_tp.items()})
        try:
            while by_tp:
                for batch in await reader.poll(LOOK_ROUND):
                    for each in by_tp.get(batch.tp, ()):
                        if each.done or each.state.closed:
                            continue
                        await self._take(each, batch)
                        if each.done and not each.state.closed:
                            open_by_task[each.task] -= 1
                            if not open_by_task[each.task]:
                                ready(each.task)
                by_tp = {
                    tp: those
                    for tp, every in by_tp.items()
                    if (those := [each for each in every if not each.done and not each.state.closed])
                }
        finally:
            await reader.close()
            self.restorations = [each for each in self.restorations if each not in todo]

    async def _take(self, each: Restoration, batch: Batch) -> None:
        """Take the records that are still missing, and write them when they are many, or the last."""
        columns = tails.part(batch, each.position, each.target)
        each.position = max(each.position, min(batch.position, each.target))
        each.restored += len(columns[0])
        self._metrics.counter("restored", table=each.table.name).add(len(columns[0]))
        each.replay.add(*columns)
        if each.done or each.replay.size >= BATCH_BYTES or len(each.replay) >= BATCH_ROWS:
            await self._write(each)
        if each.done:
            await self._finish(each)

    async def _write(self, each: Restoration) -> None:
        """Write what was collected, beside the next reading; one write of a table at a time."""
        if each.writing is not None:
            await each.writing
        replay = each.replay
        each.writing = asyncio.ensure_future(
            each.state.restore(each.table, replay.take(), each.position, replay.observed)
        )
        if not replay.overlaps:
            await each.writing

    async def _finish(self, each: Restoration) -> None:
        if each.writing is not None:
            await each.writing
        took = time.monotonic() - each.started
        log.info(
            "restored table %s of task %s: %d records in %.1f s",
            each.table.name,
            each.task.name,
            each.restored,
            took,
        )

    def progress(self) -> Progress:
        """How far the tables are that are being restored; a partition that is done counts until its table is."""
        running = [each for each in self.restorations if not each.state.closed]
        incomplete = {each.table for each in running if not each.done}
        return {
            (each.table.name, each.tp.partition): (each.target - each.position, each.target - each.begun)
            for each in running
            if each.table in incomplete
        }

    async def close(self) -> None:
        """Stop restoring; what was written stays, with how far it goes."""
        for run in self._running:
            run.cancel()
        if self._running:
            await asyncio.wait(self._running)
