"""Bringing tasks up: their stores are opened, and what these lack is read from the changelogs.

Only then does a task begin. It happens in the background: tasks that have all they need run,
while others wait for theirs. All tasks that came together share one reader, so that each gets
its part of the machine.

A store that is behind needs the tail of the changelog. It is restored whole where the tail
would not do: it has nothing yet, the changelog does not reach back to where it stands, ends
before it, or has had time to forget deletions that it has not seen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic.agent import feeder
from agentic.brokers.base import Batch, Broker, Consumer, TopicPartition
from agentic.core.ledger import OffsetLedger
from agentic.errors import BrokerUnavailable
from agentic.metrics import Metrics
from agentic.runtime.outbox import AGAIN
from agentic.runtime.replay import Replay
from agentic.runtime.state import WRITTEN, TaskState, number
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
#: Milliseconds after which a log may have forgotten a tombstone: Kafka's default ``delete.retention.ms``.
TOMBSTONES_KEPT = 24 * 3600 * 1000


@dataclass
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
        #: What is being restored, for whoever shows it.
        self.restorations: dict[TopicPartition, Restoration] = {}

    def begin(self, tasks: Iterable[Task], ready: Callable[[Task], None]) -> None:
        """Bring tasks up in the background; `ready` is called for each when it can begin."""
        run = asyncio.create_task(self._bring_up(list(tasks), ready), name="recovery")
        self._running.add(run)
        run.add_done_callback(self._running.discard)

    async def _bring_up(self, tasks: list[Task], ready: Callable[[Task], None]) -> None:
        try:
            todo: list[Restoration] = []
            for task in tasks:
                restorations = await self._open(task)
                if restorations:
                    todo += restorations
                elif task.state is not None:
                    ready(task)
            if todo:
                await self._restore(todo, ready)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a task that can't be brought up stops the worker
            self._fail(error)

    # -- opening ------------------------------------------------------------------------------

    async def _open(self, task: Task) -> list[Restoration]:
        """Open a task's store; return what has to be restored."""
        await task.open(self._stores)
        state = task.state
        if state is None:
            return []  # it has gone meanwhile
        targets = await self._patiently(lambda: self._targets(task))
        found = []
        for table, tp, start, target in targets:
            if state.closed:
                return []  # it has gone meanwhile, and its store with it
            at = state.upto.get(table)
            if at is not None and (why := self._why_whole(state, table, at, start, target)):
                log.info("table %s of task %s is restored whole: %s", table.name, task.name, why)
                at = None
            if at is None:
                await state.clear(table)
                at = start
            if at < target:
                now = time.monotonic()
                found.append(Restoration(task, state, table, tp, at, target, at, now, state.replay(table)))
            else:
                state.upto[table] = max(at, state.upto.get(table, 0))
        return found

    async def _targets(self, task: Task) -> list[tuple[Table[Any, Any], TopicPartition, int, int]]:
        """For each table with a changelog: its partition, where that starts, and where the table is complete."""
        found = []
        own = [table for table in task.tables if table.source is None and table.changelog_topic is not None]
        tps = {table: TopicPartition(table.changelog_topic or "", task.partition) for table in own}
        ends = await self._broker.end_offsets(tps.values(), with_open=True) if tps else {}
        for table, tp in tps.items():
            start, _ = (await self._broker.describe_topic(tp.topic)).offsets[tp.partition]
            found.append((table, tp, start, ends[tp]))
        for table in task.tables:
            if table.source is not None:
                # Records beyond what was committed of the table's own reading are yet to come to the task, which
                # puts them into the table itself. That may be more than the partition's committed offset says.
                tp = TopicPartition(table.source.name, task.partition)
                committed = (await self._consumer.committed([tp])).get(tp)
                if committed is not None:
                    start, _ = (await self._broker.describe_topic(tp.topic)).offsets[tp.partition]
                    ledger = OffsetLedger(*committed, reader=feeder(table).name)
                    found.append((table, tp, start, ledger.base or 0))
        return found

    @staticmethod
    def _why_whole(state: TaskState, table: Table[Any, Any], at: int, start: int, target: int) -> str | None:
        if at < start:
            return f"its changelog begins at {start} by now, and the local store stands at {at}"
        # A source goes on beyond what was committed of it, and at least once a store may be ahead of that.
        if at > target and table.source is None:
            return f"its changelog ends at {target}, and the local store stands at {at}: it was of another one"
        written = number(state.store.mark(WRITTEN))
        if at < target and written is not None and time.time_ns() // 1_000_000 - written > TOMBSTONES_KEPT:
            return "the local store is so old that deletions may be missing from the changelog"
        return None

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
        open_by_task: dict[Task, int] = {}
        by_tp: dict[TopicPartition, Restoration] = {}
        for each in todo:
            open_by_task[each.task] = open_by_task.get(each.task, 0) + 1
            by_tp[each.tp] = self.restorations[each.tp] = each
        log.info(
            "restoring %s: %d records",
            ", ".join(f"{each.table.name}[{each.tp.partition}]" for each in todo),
            sum(each.target - each.begun for each in todo),
        )
        reader = self._broker.reader({each.tp: each.begun for each in todo})
        try:
            while by_tp:
                for batch in await reader.poll(LOOK_ROUND):
                    if batch.tp not in by_tp or by_tp[batch.tp].state.closed:
                        continue
                    each = by_tp[batch.tp]
                    self._collect(each, batch)
                    if each.done or each.replay.size >= BATCH_BYTES or len(each.replay) >= BATCH_ROWS:
                        await self._write(each)
                    if each.done:
                        await self._finish(each)
                        del by_tp[each.tp]
                        open_by_task[each.task] -= 1
                        if not open_by_task[each.task] and not each.state.closed:
                            ready(each.task)
                for tp in [tp for tp, each in by_tp.items() if each.state.closed]:
                    self.restorations.pop(tp, None)
                    del by_tp[tp]
        finally:
            await reader.close()
            for each in todo:
                if self.restorations.get(each.tp) is each:
                    del self.restorations[each.tp]

    @staticmethod
    def _collect(each: Restoration, batch: Batch) -> None:
        """Take the records below the target."""
        offsets, keys, values, timestamps = batch.offsets, batch.keys, batch.values, batch.timestamps
        if offsets and offsets[-1] >= each.target:
            within = sum(1 for offset in offsets if offset < each.target)
            keys, values, timestamps = keys[:within], values[:within], timestamps[:within]
        each.position = min(batch.position, each.target)
        each.restored += len(keys)
        each.replay.add(keys, values, timestamps)

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
        self.restorations.pop(each.tp, None)
        self._metrics.counter("restored", table=each.table.name).add(each.restored)

    async def close(self) -> None:
        """Stop restoring; what was written stays, with how far it goes."""
        for run in self._running:
            run.cancel()
        if self._running:
            await asyncio.wait(self._running)
