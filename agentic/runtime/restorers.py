"""Has tables restored by processes beside the worker: see `agentic.runtime.restorer`.

One interpreter computes one thing at a time, and restoring is computing, row by row. So where
there is much to restore and there are cores to do it, the worker lends the stores of some tasks to
processes of their own. Each task comes back when it is restored, or earlier when it is to be
handed over. Whatever a process does not bring to its end, because it was killed or met an
error, is restored by the worker from where the store then stands.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pickle
import sys
import sysconfig
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentic.errors import AgenticError, many
from agentic.runtime.marks import number, upto
from agentic.runtime.restorer import FAILED, Job, LentTable, LentTask
from agentic.runtime.restoring import Restoration
from agentic.runtime.state import TaskState
from agentic.settings import Settings

if TYPE_CHECKING:
    from agentic.state.lmdb import ClaimedStore

log = logging.getLogger("agentic.worker")

#: Records that a process of its own is worth: it takes half a second to start, more where the machine is busy.
WORTH = 500_000
#: The most processes, where the settings leave it open: the broker and other workers want some of the machine.
MOST = 4
#: Seconds that a process is given to finish its write when its stores are wanted back; then it is killed.
PATIENCE = 10.0
#: Bytes of the longest line that a process says: one to be logged may name a key.
LONGEST_LINE = 1 << 20
#: What the codecs of a table may be made of, to be sent to a process that has not imported the app.
_KNOWN = {"agentic", "builtins", "datetime", "uuid", "typing", "types", "collections", "decimal", "pathlib"}
#: What a process does. A Ctrl-C at the terminal is for the worker, which then wants its stores back: so it is
#: nothing to the process from the start, which takes some tenths of a second.
_BEGIN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from agentic.runtime.restorer import main; main()"
)


@dataclass(eq=False)
class Lent:
    """A task that is restored elsewhere.

    Attributes:
        told: was it said which of its tables are done?
    """

    state: TaskState
    store: ClaimedStore
    restorations: Sequence[Restoration]
    task: LentTask
    told: bool = False
    _back: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted: bool = False
    _process: Process | None = None
    _number: int = 0

    @property
    def records(self) -> int:
        return sum(each.target - each.position for each in self.restorations)

    def lend(self) -> None:
        """From here on, who wants the store has to have it back first."""
        self.store.lend()
        self.state.lent = self._have_back

    def goes_to(self, process: Process, number_of: int) -> None:
        """This process has it, under this number."""
        self._process, self._number = process, number_of
        if self._wanted:
            self.ask()

    def ask(self) -> None:
        """Have the process give it back."""
        if self._process is not None and self._process.returncode is None and not self._back.is_set():
            assert self._process.stdin is not None
            self._process.stdin.write(b"%d\n" % self._number)

    async def _have_back(self) -> None:
        self._wanted = True
        self.ask()
        while not self._back.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._back.wait(), PATIENCE)
                return
            # It hangs, and may not hold up a rebalance; what it leaves is whole.
            if self._process is not None:
                _kill(self._process)

    def come_back(self) -> None:
        """The process has closed the store, or is no more: see how far it is."""
        if self._back.is_set():
            return
        try:
            self.store.take_back()
            self.state.come_back()
            for each in self.restorations:
                known = number(self.store.mark(upto(each.table)))
                each.position = each.begun if known is None else max(known, each.begun)
        finally:
            self.state.lent = None
            self._back.set()

    def tell(self, done: Callable[[Restoration], None]) -> None:
        """Say which of its tables are done, now that it is back."""
        if not self.told:
            self.told = True
            for each in self.restorations:
                if each.done and not each.sink.closed:
                    done(each)


class Restorers:
    """Starts the processes, and sees to what they say.

    Attributes:
        processes: how many there may be at once; none where the broker's driver has functions of the app's to call.
    """

    def __init__(self, settings: Settings, processes: int) -> None:
        self._broker = settings.broker
        self._options = settings.broker_options
        self.processes = processes if _portable(self._options) else 0

    def shares(self, by_state: dict[TaskState, list[Restoration]]) -> list[list[Lent]]:
        """Return what each of several processes is to restore; what is in none of them stays with the worker."""
        lent = [one for state, each in by_state.items() if (one := _lent(state, each)) is not None]
        wanted = sum(one.records for one in lent) // WORTH
        shares: list[list[Lent]] = [[] for _ in range(min(self.processes, len(lent), wanted))]
        for one in sorted(lent, key=lambda one: one.records, reverse=True) if shares else ():
            min(shares, key=lambda share: sum(other.records for other in share)).append(one)
        return shares

    async def restore(
        self,
        share: Sequence[Lent],
        took: Callable[[Restoration, int], None],
        done: Callable[[Restoration], None],
    ) -> list[Restoration]:
        """Have a process restore its share.

        Args:
            took, done: as for `agentic.runtime.restoring.restore`.

        Returns:
            What is left to do, from where the stores stand.
        """
        share = [one for one in share if not one.state.closed]
        for one in share:
            one.lend()
        process = None
        try:
            process = await _start([one.task.claim for one in share])
        except OSError as error:
            log.warning("can't start a process to restore %s: %s; restored here", many(len(share), "task"), error)
            return [each for one in share for each in one.restorations]
        finally:
            if process is None:
                for one in share:
                    one.come_back()
        talk = asyncio.create_task(_listen(process, share, took, done))
        try:
            assert process.stdin is not None
            with suppress(ConnectionError):  # how it ended is seen below
                process.stdin.write(pickle.dumps(Job(self._broker, self._options, [one.task for one in share])))
                for number_of, one in enumerate(share):
                    one.goes_to(process, number_of)
                await process.stdin.drain()
            await asyncio.shield(talk)
        finally:
            await _whole(_end(process, talk, share))
        for one in share:
            one.tell(done)
        left = [each for one in share for each in one.restorations if not each.over]
        if left:
            why = "met an error" if process.returncode == FAILED else f"ended with status {process.returncode}"
            log.warning("the process that restored %s %s; going on here", ", ".join(_names(left)), why)
        return left


def default_processes() -> int:
    """Return how many processes may restore, where the settings leave it open."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if cores == 1 else min(cores, MOST)


def _lent(state: TaskState, restorations: Sequence[Restoration]) -> Lent | None:
    """Return a task as it can be lent; None for one that can't, or has gone."""
    from agentic.state.lmdb import ClaimedStore

    store = state.store
    if state.closed or not isinstance(store, ClaimedStore) or not all(_portable(each.replay) for each in restorations):
        return None
    tables = {table.name: table for table in state.buffers}
    todo = []
    for each in restorations:
        table = tables[each.table]
        log_id, versioned = state.logs.get(table, ""), table.versioned is not None
        todo.append(LentTable(each.table, each.tp, each.position, each.target, log_id, versioned, each.replay))
    so_far = {table.name: at for table, at in state.upto.items()}
    task = LentTask(store.directory, store.identity, store.tables, so_far, store.claim, todo)
    return Lent(state, store, restorations, task)


class _Known(pickle.Unpickler):
    """Refuses what another process would have to import the app for."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _KNOWN:
            raise pickle.UnpicklingError(module)
        return super().find_class(module, name)


def _portable(replay: Any) -> bool:
    try:
        _Known(io.BytesIO(pickle.dumps(replay))).load()
    except (pickle.PickleError, TypeError, AttributeError):
        return False
    return True


async def _start(claims: Sequence[int]) -> Process:
    # The same modules as here, wherever these came from; but a file of the app's that is called like one of
    # Python's own is met here after the start, and must not be met there before it.
    paths = os.pathsep.join([sysconfig.get_path("stdlib"), *(path or os.getcwd() for path in sys.path)])
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        _BEGIN,
        stdin=PIPE,
        stdout=PIPE,
        limit=LONGEST_LINE,
        pass_fds=claims,
        env={**os.environ, "PYTHONPATH": paths},
    )


async def _listen(
    process: Process,
    share: Sequence[Lent],
    took: Callable[[Restoration, int], None],
    done: Callable[[Restoration], None],
) -> None:
    """Take in what a process says, until it has ended."""
    assert process.stdout is not None
    async for line in process.stdout:
        try:
            word = json.loads(line)
        except ValueError:
            # Not of ours: what is imported at the start of any interpreter may have something to say.
            log.warning("a process that restores printed %r", line)
            continue
        if "log" in word:
            name, level, words = word["log"]
            logging.getLogger(name).log(level, "%s", words)
        elif "back" in word:
            one = share[word["back"]]
            one.come_back()
            one.tell(done)
        else:
            task, n = word["table"]
            each = share[task].restorations[n]
            count = word["restored"] - each.restored
            each.restored = word["restored"]
            each.position = word["position"]
            took(each, count)
    await process.wait()


async def _end(process: Process, talk: asyncio.Task[None], share: Sequence[Lent]) -> None:
    """See that the process has ended, and that all stores are the worker's again."""
    for one in share:
        one.ask()
    await asyncio.wait([talk], timeout=PATIENCE)
    _kill(process)
    await process.wait()
    await asyncio.wait([talk])
    failure = talk.exception()
    for one in share:
        try:
            one.come_back()
        except AgenticError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Do what has to be done to its end, even if the caller is cancelled meanwhile."""
    running = asyncio.ensure_future(work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        # Who would be told of an error has gone.
        running.exception()
        raise


def _kill(process: Process) -> None:
    """End a process, if it has not ended."""
    if process.returncode is None:
        process.kill()


def _names(restorations: Sequence[Restoration]) -> list[str]:
    return [f"{each.table}[{each.tp.partition}]" for each in restorations]
