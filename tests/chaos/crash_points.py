"""The points of a worker's life at which it can be ended or stopped, for the test that wants to know what is left then.

The product has no hooks for it. `arm` wraps the step that a point is about, and strikes at its n-th pass.
"""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from agentic.brokers.embedded.broker import EmbeddedBroker
from agentic.brokers.embedded.consumer import EmbeddedConsumer
from agentic.brokers.embedded.producer import EmbeddedProducer
from agentic.brokers.embedded.producer import TransactionalProducer as EmbeddedTransactions
from agentic.brokers.kafka.broker import KafkaBroker
from agentic.brokers.kafka.consumer import KafkaConsumer
from agentic.brokers.kafka.producer import KafkaProducer
from agentic.brokers.kafka.transactions import TransactionalProducer as KafkaTransactions
from agentic.core.ledger import Committed
from agentic.runtime import restoring
from agentic.runtime.assignment import Assignment
from agentic.runtime.checkpoint import Checkpointer
from agentic.runtime.outbox import Outbox
from agentic.runtime.state import TaskState
from agentic.runtime.tables import TableView
from agentic.state.lmdb import meta
from agentic.state.lmdb.store import LmdbStore

Strike = Callable[[], None]

#: Does the code run within a checkpoint?
checkpointing: ContextVar[bool] = ContextVar("checkpointing", default=False)


def before(strike: Strike, owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Strike before each call of a method or function."""
    step = getattr(owner, name)

    @functools.wraps(step)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if when(*arguments, **named):
            strike()
        return step(*arguments, **named)

    setattr(owner, name, wrapped)


def after(strike: Strike, owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Strike after each call of a method or function, once it has done its work."""
    step = getattr(owner, name)

    if asyncio.iscoroutinefunction(step):

        @functools.wraps(step)
        async def wrapped(*arguments: Any, **named: Any) -> Any:
            result = await step(*arguments, **named)
            if when(*arguments, **named):
                strike()
            return result

    else:

        @functools.wraps(step)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            result = step(*arguments, **named)
            if when(*arguments, **named):
                strike()
            return result

    setattr(owner, name, wrapped)


def _checkpointing(*_: Any, **__: Any) -> bool:
    return checkpointing.get()


def _to_changelog(_: Any, topic: str, *__: Any, **___: Any) -> bool:
    return topic.endswith("-changelog")


def _rows(_: Any, rows: Any, marks: Any) -> bool:
    """Is a write one of a checkpoint's, and not one that takes back a mark?"""
    return bool(rows)


def _producers(name: str, how: Callable[..., None], strike: Strike, *when: Any) -> None:
    for producer in (EmbeddedTransactions, KafkaTransactions):
        how(strike, producer, name, *when)


def _sends(strike: Strike) -> None:
    for producer in (EmbeddedProducer, KafkaProducer):
        after(strike, producer, "send", _to_changelog)


def _within_commit(strike: Strike) -> None:
    """The positions are with the broker, and the commit is not: on the embedded log, within its transaction."""
    after(strike, EmbeddedConsumer, "record")
    before(strike, KafkaTransactions, "_insist", lambda _, __, name, *___: name == "commit")


def _ends(how: Callable[..., None], strike: Strike) -> None:
    for broker in (EmbeddedBroker, KafkaBroker):
        how(strike, broker, "end_offsets", _checkpointing)


def _commits(how: Callable[..., None], strike: Strike) -> None:
    for consumer in (EmbeddedConsumer, KafkaConsumer):
        how(strike, consumer, "commit")


def _flushes(how: Callable[..., None], strike: Strike) -> None:
    for producer in (EmbeddedProducer, EmbeddedTransactions, KafkaProducer, KafkaTransactions):
        how(strike, producer, "flush", _checkpointing)


def _restored(strike: Strike) -> None:
    # A table is restored in several writes, however few its rows.
    restoring.BATCH_ROWS = 1
    after(strike, TaskState, "restore")


#: By name, what arms a point with a strike.
POINTS: dict[str, Callable[[Strike], None]] = {
    # An event is completed: its outputs are on their way, and its rows are not in the table.
    "effects-sent": lambda strike: before(strike, TableView, "apply"),
    "rows-applied": lambda strike: after(strike, TableView, "apply"),
    # The checkpoint.
    "held": lambda strike: after(strike, Outbox, "hold"),
    "snapshot-taken": lambda strike: before(strike, TaskState, "take"),
    "rows-taken": lambda strike: after(strike, TaskState, "take"),
    "changelog-begun": _sends,
    "changelog-sent": lambda strike: _flushes(before, strike),
    "flushed": lambda strike: _flushes(after, strike),
    "before-commit": lambda strike: _producers("commit_transaction", before, strike),
    "within-commit": _within_commit,
    "committed": lambda strike: _producers("commit_transaction", after, strike),
    "before-ends": lambda strike: _ends(before, strike),
    "ends-known": lambda strike: _ends(after, strike),
    "before-store": lambda strike: before(strike, LmdbStore, "write", _rows),
    "rows-put": lambda strike: before(strike, LmdbStore, "_look"),
    "before-store-commit": lambda strike: before(strike, meta, "note_long"),
    "stored": lambda strike: after(strike, LmdbStore, "write", _rows),
    "before-offsets": lambda strike: _commits(before, strike),
    "offsets-committed": lambda strike: _commits(after, strike),
    "acknowledged": lambda strike: after(strike, Committed, "acknowledged"),
    # Recovery.
    "before-clear": lambda strike: before(strike, LmdbStore, "clear"),
    "cleared": lambda strike: after(strike, TaskState, "clear"),
    "restored-in-part": _restored,
    "before-begin": lambda strike: before(strike, Assignment, "_begin"),
    # The end of a task that moves on: all is committed, and the store is still open.
    "before-release": lambda strike: before(strike, TaskState, "close"),
}


def arm(point: str, passes: int, action: Strike) -> None:
    """Do something at the n-th pass of a point."""
    left = passes

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            print(f"at {point}", file=sys.stderr, flush=True)
            action()

    checkpoint = Checkpointer._checkpoint

    async def within(self: Any, *arguments: Any) -> bool:
        token = checkpointing.set(True)
        try:
            return await checkpoint(self, *arguments)
        finally:
            checkpointing.reset(token)

    Checkpointer._checkpoint = within  # type: ignore[method-assign]
    POINTS[point](strike)


def arm_by_environment() -> None:
    """Do at a point what the environment says: send this process a signal, or have no file grow any more."""
    point, passes, action = os.environ["CHAOS_POINT"], int(os.environ["CHAOS_PASSES"]), os.environ["CHAOS_ACTION"]
    if action == "full":
        # Beyond these bytes nothing can be written, nor written over: as on a disk that has no room for another page.
        arm(point, passes, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, resource.RLIM_INFINITY)))
    else:
        arm(point, passes, lambda: os.kill(os.getpid(), signal.Signals[action]))
