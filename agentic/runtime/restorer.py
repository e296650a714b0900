"""A process that restores tables beside a worker: so that several cores do it, and the worker's loop stays free.

The worker starts it, writes a `Job` to its standard input, and lends it the stores of the job's tasks, with
their claims. From then on the process says on its standard output, a line of JSON each:

    {"table": [TASK, TABLE], "position": …, "restored": …}     how far a table is
    {"back": TASK}                                             a task's store is closed, and the worker's again
    {"log": [NAME, LEVEL, WORDS]}                              what is to be logged

and takes lines on its standard input: the number of a task whose store is wanted back. When the input ends,
the worker is dead, and the process ends at once: the store may be another worker's in a moment.
An error ends it too; the worker, which goes on where the stores stand, meets it itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.brokers import connect
from agentic.brokers.base import TopicPartition
from agentic.errors import AgenticError
from agentic.runtime.marks import restored
from agentic.runtime.replay import Replay, Replayed
from agentic.runtime.restoring import Restoration, restore

#: Seconds between two words on how far a table is.
WORD_EVERY = 0.2
#: The status of a process that ended by an error which its worker will meet as well.
FAILED = 3
#: Seconds that the broker is given to answer at first.
PATIENCE = 30.0


@dataclass(frozen=True)
class LentTable:
    """A table to restore: from `begun` to `target` of its changelog, whose id is `log`; has it versions?"""

    name: str
    tp: TopicPartition
    begun: int
    target: int
    log: str
    versioned: bool
    replay: Replay


@dataclass(frozen=True)
class LentTask:
    """The store of a task, and what is to be restored in it.

    Attributes:
        identity, tables: as for `LmdbStore.open`.
        upto: how far each table of the store is.
        claim: the descriptor that holds its claim.
    """

    directory: Path
    identity: Mapping[str, str]
    tables: Mapping[str, str]
    upto: Mapping[str, int]
    claim: int
    todo: Sequence[LentTable]


@dataclass(frozen=True)
class Job:
    """What a process is to do, and with which broker."""

    broker: str
    options: Mapping[str, object]
    tasks: Sequence[LentTask]


class _Task:
    """A lent task, while this process has it."""

    def __init__(self, number: int, lent: LentTask) -> None:
        # Not before it is needed: a worker that imports this has the store already, or none.
        from agentic.state.lmdb import LmdbStore

        self.number = number
        self.store = LmdbStore.borrow(lent.directory, identity=lent.identity, tables=lent.tables)
        self.upto = dict(lent.upto)
        self.closed = False
        self.restorations = [
            Restoration(each.name, each.tp, each.begun, each.target, each.begun, each.replay, _Sink(self, each))
            for each in lent.todo
        ]
        self._claim = lent.claim

    def give_back(self) -> None:
        """Close the store, and leave the claim to the worker; what was collected and not written is dropped."""
        if not self.closed:
            self.closed = True
            self.store.close()
            os.close(self._claim)
            _say(back=self.number)


class _Sink:
    """See `agentic.runtime.restoring.Sink`."""

    def __init__(self, task: _Task, table: LentTable) -> None:
        self._task = task
        self._table = table

    @property
    def closed(self) -> bool:
        return self._task.closed

    async def write(self, rows: Replayed, position: int, observed: int) -> None:
        task, table = self._task, self._table
        if task.closed:
            return
        task.upto[table.name] = position
        time_of = observed if table.versioned else None
        marks = restored(table.name, position, table.log, task.upto.values(), task.store, time_of=time_of)
        # Nobody else wants a turn, and the client fetches in a thread of its own.
        task.store.write({table.name: sorted(rows.items())}, marks)


def _say(**word: Any) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


class _Words(logging.Handler):
    """Lets the worker log what is to be logged."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(log=[record.name, record.levelno, record.getMessage()])


async def _work(job: Job) -> None:
    tasks = [_Task(number, lent) for number, lent in enumerate(job.tasks)]
    loop = asyncio.get_running_loop()
    threading.Thread(target=_listen, args=(loop, tasks), daemon=True).start()
    place = {each: (task, n) for task in tasks for n, each in enumerate(task.restorations)}
    said = dict.fromkeys(place, 0.0)

    def took(each: Restoration, _: int) -> None:
        task, n = place[each]
        now = time.monotonic()
        if each.done or now > said[each] + WORD_EVERY:
            said[each] = now
            _say(table=[task.number, n], position=each.position, restored=each.restored)

    def done(each: Restoration) -> None:
        task, _ = place[each]
        if all(other.done for other in task.restorations):
            task.give_back()

    broker = connect(job.broker, job.options)
    await broker.open(PATIENCE)
    try:
        await restore(broker, place, took, done)
    finally:
        for task in tasks:
            task.give_back()
        await broker.close()


def _listen(loop: asyncio.AbstractEventLoop, tasks: Sequence[_Task]) -> None:
    """Give back what is wanted back, between two writes; end when nobody is there any more."""
    for line in sys.stdin.buffer:
        loop.call_soon_threadsafe(tasks[int(line)].give_back)
    os._exit(FAILED)


def main() -> None:
    """Do the job that comes by standard input."""
    logging.basicConfig(handlers=[_Words()], level=logging.WARNING)
    # Rows by the hundred thousand come and go, and nothing of them is ever in a circle.
    gc.disable()
    status = 0
    try:
        asyncio.run(_work(pickle.load(sys.stdin.buffer)))
    except Exception as error:  # noqa: BLE001 - the worker goes on, and meets it itself if it is not of this process
        words = error if isinstance(error, AgenticError) else repr(error)
        logging.getLogger("agentic.worker").warning("restoring in a process of its own: %s", words)
        status = FAILED
    # The thread that listens is in the middle of a read: an orderly end would wait for it.
    os._exit(status)
