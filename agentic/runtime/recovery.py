"""Bringing tasks up: their stores are opened, and what these lack is read from the changelogs.

Only then does a task begin. It happens in the background: tasks that have all they need run,
while others wait for theirs. All tasks that came together share one reader, so that each gets
its part of the machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentic.brokers.base import Broker, Consumer, TopicPartition
from agentic.errors import BrokerUnavailable, StateMismatch, named
from agentic.metrics import Metrics
from agentic.runtime import tails
from agentic.runtime.outbox import AGAIN
from agentic.runtime.positions import Positions
from agentic.runtime.replay import Replayed
from agentic.runtime.restorers import Lent, Restorers
from agentic.runtime.restoring import Restoration, restore
from agentic.runtime.state import TaskState
from agentic.runtime.stores import Stores
from agentic.table import Table

if TYPE_CHECKING:
    from agentic.runtime.task import Task

log = logging.getLogger("agentic.worker")

#: By table and partition: how many offsets are still to be read, and how many in all.
Progress = dict[tuple[str, int], tuple[int, int]]


class _TableSink:
    """See `agentic.runtime.restoring.Sink`."""

    def __init__(self, state: TaskState, table: Table[Any, Any]) -> None:
        self.state = state
        self._table = table

    @property
    def closed(self) -> bool:
        return self.state.closed

    async def write(self, rows: Replayed, position: int, observed: int) -> None:
        await self.state.restore(self._table, rows, position, observed)


class Recovery:
    """Brings up the tasks of one worker.

    Args:
        fail: takes what stops the worker.
        restorers: have processes of their own restore what is large; None where nobody may.
    """

    def __init__(
        self,
        broker: Broker,
        stores: Stores,
        consumer: Consumer,
        metrics: Metrics,
        fail: Callable[[BaseException], None],
        restorers: Restorers | None = None,
    ) -> None:
        self._broker = broker
        self._stores = stores
        self._consumer = consumer
        self._metrics = metrics
        self._fail = fail
        self._restorers = restorers
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
            todo: dict[Task, list[Restoration]] = {}
            for task in tasks:
                restorations = await self._open(task, positions)
                if restorations:
                    todo[task] = restorations
                elif task.state is not None and not positions.lost:
                    ready(task)
            # All are looked at before: who sets positions right wants to know of every one.
            positions.check()
            coming = {each.tp for those in todo.values() for each in those}
            self._tell_unsure([tp for tp in positions.unsure if tp not in coming])
            if todo:
                await self._restore(todo, ready, positions.unsure)
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
                sink = _TableSink(state, table)
                found.append(Restoration(table.name, tp, at, end, at, state.replay(table), sink))
            else:
                state.upto[table] = max(at, state.upto.get(table, 0))
        await self._patiently(lambda: positions.look_at(state, sources))
        positions.look_at_changelogs(sources, changelogs)
        return found

    def _tell_unsure(self, unsure: Sequence[TopicPartition]) -> None:
        if unsure and not self._told_unsure:
            self._told_unsure = True
            log.warning(
                "the group has committed nothing of what fills %s, and there are rows: as they should be if they were "
                "loaded, or a worker died before its first commit; if the group was deleted, its events count twice, "
                "and 'agentic reset' begins anew",
                named("changelog partition", map(str, unsure)),
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

    async def _restore(
        self,
        todo: Mapping[Task, list[Restoration]],
        ready: Callable[[Task], None],
        unsure: Sequence[TopicPartition],
    ) -> None:
        every = [each for those in todo.values() for each in those]
        task_of = {each: task for task, those in todo.items() for each in those}
        unfinished = {task: len(those) for task, those in todo.items()}
        self.restorations += every
        by_state = {task.state: those for task, those in todo.items() if task.state is not None}
        shares = self._restorers.shares(by_state) if self._restorers is not None else []
        log.info(
            "restoring %s: %d records%s",
            ", ".join(f"{each.table}[{each.tp.partition}]" for each in every),
            sum(each.target - each.begun for each in every),
            f", by processes beside this one: {len(shares)}" if shares else "",
        )

        def took(each: Restoration, count: int) -> None:
            self._metrics.counter("restored", table=each.table).add(count)

        def done(each: Restoration) -> None:
            task = task_of[each]
            if each.restored:
                self._tell(each, task)
                # Else there were markers of transactions and nothing else: a worker died before its first commit.
                self._tell_unsure([each.tp] if each.tp in unsure else [])
            unfinished[task] -= 1
            if not unfinished[task]:
                ready(task)

        try:
            elsewhere = {each for share in shares for one in share for each in one.restorations}
            await self._together(shares, [each for each in every if each not in elsewhere], took, done)
        finally:
            self.restorations = [each for each in self.restorations if each not in task_of]

    async def _together(
        self,
        shares: Sequence[Sequence[Lent]],
        here: Sequence[Restoration],
        took: Callable[[Restoration, int], None],
        done: Callable[[Restoration], None],
    ) -> None:
        """Restore what is to be restored here and elsewhere; what ends early elsewhere is brought to its end here."""

        async def elsewhere(share: Sequence[Lent]) -> None:
            assert self._restorers is not None, "they made the shares"
            await restore(self._broker, await self._restorers.restore(share, took, done), took, done)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(restore(self._broker, here, took, done))
                for share in shares:
                    group.create_task(elsewhere(share))
        except ExceptionGroup as errors:
            # One is enough to stop the worker.
            raise errors.exceptions[0] from None

    def _tell(self, each: Restoration, task: Task) -> None:
        log.info(
            "restored table %s of task %s: %d records in %.1f s",
            each.table,
            task.name,
            each.restored,
            time.monotonic() - each.started,
        )

    def progress(self) -> Progress:
        """How far the tables are that are being restored; a partition that is done counts until its table is."""
        running = [each for each in self.restorations if not each.sink.closed]
        incomplete = {each.table for each in running if not each.done}
        return {
            (each.table, each.tp.partition): (each.target - each.position, each.target - each.begun)
            for each in running
            if each.table in incomplete
        }

    async def close(self) -> None:
        """Stop restoring; what was written stays, with how far it goes."""
        for run in self._running:
            run.cancel()
        if self._running:
            await asyncio.wait(self._running)
