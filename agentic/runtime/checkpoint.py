"""The checkpoint: what was finished becomes what is committed.

The story, in order: hold the outbox and take each ledger's snapshot in one step, so that the
effects already sent are those of the offsets in the snapshot; make these outputs safe; commit
the positions; tell the ledgers. Under exactly-once, outputs and positions are one transaction.

A crash at any step is harmless: before the commit, the work is read again; after it, the
ledgers of the next owner begin where the snapshot says.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentic.brokers.base import Consumer, Position
from agentic.errors import AgenticError, BrokerError, BrokerUnavailable, NotOwner, TransactionAborted
from agentic.metrics import Metrics
from agentic.runtime.outbox import Outbox

if TYPE_CHECKING:
    from agentic.runtime.assignment import Assignment

log = logging.getLogger("agentic.worker")


class Checkpointer:
    """Commits for one worker, one checkpoint at a time."""

    def __init__(self, consumer: Consumer, outbox: Outbox, metrics: Metrics) -> None:
        self._consumer = consumer
        self._outbox = outbox
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()
        self._away = False
        self._broken: BaseException | None = None

    async def checkpoint(self, assignment: Assignment) -> bool:
        """Commit all that is finished.

        Returns:
            False when the transaction was undone, so that all uncommitted work must be read again.

        Raises:
            DeliveryFailed: an output was refused for good. Nothing is committed.
            Fenced: another process took over this worker's identity.
        """
        async with self._one_at_a_time:
            if self._broken is not None:
                # An output is missing, and the producer tells so once only: never commit past it.
                raise self._broken
            if self._outbox.spoiled:
                return False
            try:
                return await self._checkpoint(assignment)
            finally:
                assignment.checkpointed.set()

    async def _checkpoint(self, assignment: Assignment) -> bool:
        started = asyncio.get_running_loop().time()
        assignment.dirty.clear()
        self._outbox.hold()
        snapshots = {}
        for tp, source in assignment.sources.items():
            snapshot = source.ledger.snapshot()
            if snapshot is not None and not source.ledger.is_clean(snapshot):
                snapshots[tp] = (source.ledger, snapshot)
        positions = {tp: Position(*snapshot) for tp, (_, snapshot) in snapshots.items()}
        try:
            await self._outbox.publish(positions, self._consumer)
        except TransactionAborted as error:
            return self._undone(error)
        except NotOwner as error:
            # At least once: the outputs are out; whoever owns the partitions now does the events again.
            log.info("not committed, the partitions have moved on: %s", error)
            assignment.dirty.set()
            return True
        except BrokerUnavailable as error:
            if self._outbox.transactional:
                return self._undone(error)
            self._report_away(error)
            assignment.dirty.set()
            return True
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
        # What was finished while the commit was under way has nobody else to say so.
        if assignment.backlog or any(
            not source.ledger.is_clean(source.ledger.snapshot()) for source in assignment.sources.values()
        ):
            assignment.dirty.set()
        self._metrics.latency("commit_seconds").observe(asyncio.get_running_loop().time() - started)
        self._metrics.counter("commits").add()
        return True

    def _undone(self, error: BrokerError) -> bool:
        self._outbox.spoil()
        log.warning("transaction undone, its events are read again: %s", error)
        return False

    def _report_away(self, error: BrokerUnavailable) -> None:
        """One line an incident."""
        if not self._away:
            self._away = True
            log.warning("not committed, tried again until it succeeds: %s", error)
