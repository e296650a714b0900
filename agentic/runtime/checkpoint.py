"""The checkpoint: what was finished becomes what is committed.

The story, in order:

0. Let children of events that are under way be finished, and no other event begin: rows of an event
   must not be committed without its offset.
1. Hold the outbox, take each ledger's snapshot and fix each task's changed rows, in one step,
   so that effects, rows and offsets are those of the same events.
2. Send the changed rows to the changelogs, behind the effects that are sent already, and make
   all of it safe.
3. Ask how far the changelogs go. Before the commit: whoever takes a partition over from us
   makes our commit fail, so after one that succeeds no row below that end is another's.
4. Commit the offsets; under exactly once they, the effects and the rows are one transaction.
5. Write the rows to the local stores, with the ends. A store never holds what is not committed,
   so it needs no undoing.
6. Tell the ledgers.

A crash at any step is harmless. Before the commit, the work is read again; before the stores
are written, they get what they lack from the tail of the changelogs; after the commit, the
ledgers of the next owner begin where the snapshot says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from agentic.brokers.base import Broker, Consumer, Position, TopicPartition
from agentic.errors import (
    AgenticError,
    BrokerError,
    BrokerUnavailable,
    NotOwner,
    RecordTooLarge,
    TransactionAborted,
)
from agentic.metrics import Metrics
from agentic.runtime.changelogs import row_too_large
from agentic.runtime.outbox import Outbox
from agentic.runtime.state import TaskState

if TYPE_CHECKING:
    from agentic.runtime.assignment import Assignment

log = logging.getLogger("agentic.worker")


#: Changed rows that are sent in one turn of the loop: some milliseconds' worth.
TURN = 2_000


class Outcome(Enum):
    """What became of a checkpoint."""

    #: All that was finished is committed.
    COMMITTED = "committed"
    #: Nothing is; the effects may be out, and the next checkpoint commits them with its own.
    LATER = "later"
    #: Nothing is, and the effects are undone: all uncommitted work must be read again.
    UNDONE = "undone"


class Checkpointer:
    """Commits for one worker, one checkpoint at a time.

    Args:
        committed: told what each commit has committed.
    """

    def __init__(
        self,
        broker: Broker,
        consumer: Consumer,
        outbox: Outbox,
        metrics: Metrics,
        committed: Callable[[Mapping[TopicPartition, Position]], None],
    ) -> None:
        self._broker = broker
        self._consumer = consumer
        self._outbox = outbox
        self._metrics = metrics
        self._committed = committed
        self._one_at_a_time = asyncio.Lock()
        self._away = False
        self._broken: BaseException | None = None
        #: Does a checkpoint wait for changes of tables, with nothing of it begun?
        self.held_up = False

    async def checkpoint(self, assignment: Assignment) -> Outcome:
        """Commit all that is finished.

        Raises:
            DeliveryFailed: an output was refused for good. Nothing is committed.
            Fenced: another process took over this worker's identity.
        """
        async with self._one_at_a_time:
            if self._broken is not None:
                # An output is missing, and the producer tells so once only: never commit past it.
                raise self._broken
            if self._outbox.spoiled:
                return Outcome.UNDONE
            try:
                self.held_up = True
                await assignment.quiet()
                self.held_up = False
                return await self._checkpoint(assignment)
            finally:
                self.held_up = False
                assignment.go_on()
                assignment.checkpointed.set()

    async def _checkpoint(self, assignment: Assignment) -> Outcome:
        started = asyncio.get_running_loop().time()
        assignment.dirty.clear()
        self._outbox.hold()
        snapshots = {}
        # A task that was ended with children undone is left as it was at the last checkpoint.
        torn = {tp for task in assignment.tasks.values() if task.torn for tp in task.sources}
        for tp, source in assignment.sources.items():
            if tp in torn:
                continue
            snapshot = source.ledger.snapshot()
            if snapshot is not None and not source.ledger.is_clean(snapshot):
                snapshots[tp] = (source.ledger, snapshot)
        positions = {tp: Position(*snapshot) for tp, (_, snapshot) in snapshots.items()}
        asked = assignment.take_asked()
        assignment.sweep()
        states = [state for state in assignment.states(torn=False) if state.take()]
        assignment.go_on()
        try:
            await self._log_changes(states)
            await self._outbox.flush()
            ends = await self._ends(states)
            await self._outbox.commit(positions, self._consumer)
            ends = {**{tp: position.offset for tp, position in positions.items()}, **ends}
            for state in states:
                await state.write(ends)
        except TransactionAborted as error:
            return self._undone(error)
        except NotOwner as error:
            # At least once: the outputs are out; whoever owns the partitions now does the events again.
            log.info("not committed, the partitions have moved on: %s", error)
            assignment.ask_again(asked)
            return Outcome.LATER
        except BrokerUnavailable as error:
            if self._outbox.transactional:
                return self._undone(error)
            self._report_away(error)
            assignment.ask_again(asked)
            return Outcome.LATER
        except RecordTooLarge as error:
            self._broken = row_too_large(states, error)
            raise self._broken from error
        except AgenticError as error:
            self._broken = error
            raise
        finally:
            self._outbox.release()
        if self._away:
            self._away = False
            log.info("commits go through again")
        for ledger, snapshot in snapshots.values():
            ledger.acknowledged(snapshot)
        self._committed(positions)
        for done in asked:
            if not done.done():
                done.set_result(None)
        # What was finished while the commit was under way has nobody else to say so.
        if (
            assignment.backlog
            or any(not source.ledger.is_clean(source.ledger.snapshot()) for source in assignment.sources.values())
            or any(state.dirty_bytes for state in assignment.states())
        ):
            assignment.dirty.set()
        self._metrics.latency("commit_seconds").observe(asyncio.get_running_loop().time() - started)
        self._metrics.counter("commits").add()
        return Outcome.COMMITTED

    async def _log_changes(self, states: Sequence[TaskState]) -> None:
        """Send the changed rows to the changelogs; others get a turn of the loop between."""
        send = self._outbox.producer.send
        for state in states:
            for topic, rows in state.changes():
                for begin in range(0, len(rows), TURN):
                    for key, value, timestamp in rows[begin : begin + TURN]:
                        send(topic, key, value, timestamp, None, state.partition)
                    await asyncio.sleep(0)

    async def _ends(self, states: Sequence[TaskState]) -> dict[TopicPartition, int]:
        """How far the changelogs go that the checkpoint has written to."""
        logs = [tp for state in states for tp in state.logged()]
        # What is open there is ours.
        return await self._broker.end_offsets(logs, with_open=True) if logs else {}

    def _undone(self, error: BrokerError) -> Outcome:
        self._outbox.spoil()
        log.warning("transaction undone, its events are read again: %s", error)
        return Outcome.UNDONE

    def _report_away(self, error: BrokerUnavailable) -> None:
        """One line an incident."""
        if not self._away:
            self._away = True
            log.warning("not committed, tried again until it succeeds: %s", error)
