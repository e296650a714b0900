"""The services of a worker's tree, each a part that starts and stops as a whole.

They start in the order in which the worker adds them and stop in the reverse one. The tree is
for control only: events never pass through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from mode import Service

from agentic.app import App
from agentic.brokers.base import Broker, Consumer, TopicPartition
from agentic.errors import BrokerUnavailable, TaskFailed, words
from agentic.runtime.asking import Asker
from agentic.runtime.assignment import Assignment
from agentic.runtime.checkpoint import Checkpointer
from agentic.runtime.globals import Globals
from agentic.runtime.outbox import AppOutlet, Outbox
from agentic.runtime.purge import Purge
from agentic.runtime.recovery import Recovery
from agentic.runtime.standby import Standbys
from agentic.settings import Settings
from agentic.stream import current_outlet

log = logging.getLogger("agentic.worker")

Fail = Callable[[BaseException], None]

#: Seconds after which a pump that is full looks for partitions that hold it up.
FULL_FOR = 0.1
#: Seconds that an idle pump waits at most before it looks round: for paused partitions to resume.
LOOK_ROUND = 0.1
#: The same where agents have many events under way, and use up a partition's share the quicker.
LOOK_ROUND_SOON = 0.05
#: Seconds that the last commit, and the end of the lifespan, have at least, however short the stop's time-out.
LAST_COMMIT = 5.0
#: An idle pump wakes by itself when records come; this only bounds one wait.
IDLE = 60.0


class Part(Service):
    """A part of the worker. What goes wrong while it stops is told, and the others stop all the same.

    Args:
        fail: takes the failure.
    """

    #: Its life cycle concerns nobody but those who debug it.
    mundane_level = "debug"

    def __init__(self, fail: Fail) -> None:
        super().__init__()
        self.fail = fail

    async def on_stop(self) -> None:
        try:
            await self.end()
        except Exception as error:  # noqa: BLE001 - a part that can't stop in order must not keep the rest from it
            self.fail(error)

    async def end(self) -> None:
        """Stop what this part runs."""


class BrokerService(Part):
    """The connection: first to come, last to go."""

    def __init__(self, broker: Broker, timeout: float, fail: Fail) -> None:
        super().__init__(fail)
        self._broker = broker
        self._timeout = timeout

    async def on_start(self) -> None:
        await self._broker.open(self._timeout)

    async def end(self) -> None:
        await self._broker.close()


class OutboxService(Part):
    """The producers, and who asks agents. They outlive the agents, whose last effects go through them.

    Args:
        ready: returns when the outbox's producer can send, however often the broker has to be asked.
    """

    def __init__(
        self,
        app: App,
        outbox: Outbox,
        outlet: AppOutlet,
        asker: Asker,
        fail: Fail,
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(fail)
        self._app = app
        self._outbox = outbox
        self._ready = ready
        self._outlet = outlet
        self._asker = asker

    async def on_start(self) -> None:
        # Before we join: our former self's open transaction keeps the committed positions of its
        # partitions unreadable until this settles it.
        await self._ready()
        self._app.home.open(self._outlet, self._asker)

    async def end(self) -> None:
        self._app.home.shut(self._outlet)
        await self._asker.close()
        await self._outlet.close()
        await self._outbox.producer.close()


class LifespanService(Part):
    """The user's surroundings of the work: entered before the first event, left after the last."""

    def __init__(self, app: App, outlet: AppOutlet, fail: Fail) -> None:
        super().__init__(fail)
        self._app = app
        self._outlet = outlet
        self._context: AbstractAsyncContextManager[None] | None = None

    async def on_start(self) -> None:
        current_outlet.set(self._outlet)
        context = self._app.surrounded()
        try:
            await context.__aenter__()
        except (Exception, SystemExit) as error:
            raise TaskFailed(f"the app's lifespan failed on entry: {words(error)}") from error
        self._context = context

    async def end(self) -> None:
        if self._context is None:
            return
        leaving = asyncio.create_task(self._leave(self._context), name="lifespan")
        timeout = max(LAST_COMMIT, self._app.settings.stop_timeout.total_seconds())
        await asyncio.wait([leaving], timeout=timeout)
        if not leaving.done():
            leaving.cancel()
            raise TaskFailed(f"the app's lifespan did not end within {timeout:g} s; what stands after its yield hangs")
        await leaving

    async def _leave(self, context: AbstractAsyncContextManager[None]) -> None:
        current_outlet.set(self._outlet)
        try:
            await context.__aexit__(None, None, None)
        except (Exception, SystemExit) as error:
            raise TaskFailed(f"the app's lifespan failed on exit: {words(error)}") from error


class TasksService(Part):
    """Coroutines that run while the worker does: the user's tasks, and the reporters of whoever runs us."""

    def __init__(
        self,
        tasks: Iterable[tuple[str, Callable[[], Awaitable[None]]]],
        outlet: AppOutlet,
        fail: Fail,
        timeout: float,
    ) -> None:
        super().__init__(fail)
        self._functions = list(tasks)
        self._outlet = outlet
        self._timeout = timeout
        self._running: list[asyncio.Task[None]] = []
        self._ending = False

    async def on_start(self) -> None:
        self._running = [asyncio.create_task(self._run(name, fn), name=name) for name, fn in self._functions]

    async def _run(self, name: str, fn: Callable[[], Awaitable[None]]) -> None:
        current_outlet.set(self._outlet)
        try:
            await fn()
        except asyncio.CancelledError:
            if self._ending:
                raise
            self.fail(TaskFailed(f"{name} was cancelled from within"))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a user's task may raise anything; we stop for it
            failure = TaskFailed(f"{name} failed: {words(error)}")
            failure.__cause__ = error
            self.fail(failure)

    async def end(self) -> None:
        self._ending = True
        running = [task for task in self._running if not task.done()]
        for task in running:
            task.cancel()
        if running:
            _, late = await asyncio.wait(running, timeout=self._timeout)
            if late:
                names = " and ".join(sorted(task.get_name() for task in late))
                raise TaskFailed(
                    f"{names} did not end within {self._timeout:g} s after being cancelled; "
                    "let asyncio.CancelledError pass, and clean up in finally"
                )


class GlobalsService(Part):
    """The global tables: there before the first event."""

    def __init__(self, tables: Globals, fail: Fail) -> None:
        super().__init__(fail)
        self._tables = tables
        self._loaded = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        await self._tables.open()
        self._running = asyncio.create_task(self._run(), name="global tables")
        await self._loaded.wait()

    async def _run(self) -> None:
        try:
            await self._tables.run(self._loaded)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever keeps a table from its topic stops the worker
            self.fail(error)
            # Whoever waits for it learns of the failure from the worker.
            self._loaded.set()

    async def end(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._tables.close()


class StateService(Part):
    """The tables' stores. They outlive the intake, whose last checkpoint they take."""

    def __init__(self, recovery: Recovery, assignment: Assignment, fail: Fail) -> None:
        super().__init__(fail)
        self._recovery = recovery
        self._assignment = assignment

    async def end(self) -> None:
        await self._recovery.close()
        await self._assignment.release()


class PurgeService(Part):
    """The removal of what is committed. It outlives the intake, whose last checkpoint it follows."""

    def __init__(self, purge: Purge, fail: Fail) -> None:
        super().__init__(fail)
        self._purge = purge
        self._running: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="purge")

    async def _run(self) -> None:
        try:
            await self._purge.run()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a broker's refusal is told there; anything else is a fault of ours
            self.fail(error)

    async def end(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            await self._purge.last()


class StandbyService(Part):
    """Standbys of other workers' tasks. The first to stop: they are nothing that the rest waits for."""

    def __init__(self, standbys: Standbys, recovery: Recovery, fail: Fail) -> None:
        super().__init__(fail)
        self._standbys = standbys
        self._recovery = recovery

    async def on_start(self) -> None:
        self._standbys.start(lambda: bool(self._recovery.restorations))

    async def end(self) -> None:
        await self._standbys.stop()


class CheckpointService(Part):
    """Commits at the interval, while there is something to commit; a last time after the agents have ended."""

    def __init__(
        self,
        checkpoint: Callable[[], Awaitable[None]],
        assignment: Assignment,
        interval: float,
        timeout: float,
        held_up: Callable[[], bool],
        fail: Fail,
    ) -> None:
        super().__init__(fail)
        self._checkpoint = checkpoint
        self._held_up = held_up
        self._assignment = assignment
        self._interval = interval
        self._timeout = timeout
        self._busy = False
        self._ending = False
        self._running: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="checkpoints")

    async def _run(self) -> None:
        try:
            while not self._ending:
                self._busy = False
                await self._assignment.dirty.wait()
                await self._pause()
                self._busy = True
                await self._checkpoint()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a checkpoint that can't be made stops the worker
            self.fail(error)

    async def _pause(self) -> None:
        """Wait for the interval, or until somebody is in a hurry."""
        try:
            await asyncio.wait_for(self._assignment.hurry.wait(), self._interval)
        except TimeoutError:
            return
        self._assignment.hurry.clear()

    async def end(self) -> None:
        """A checkpoint that is under way is not cut off, since its commit may be on the wire; one that waits is."""
        if self._running is None:
            return
        self._ending = True
        if self._busy and not self._held_up():
            await asyncio.wait([self._running], timeout=self._timeout)
        self._running.cancel()
        await asyncio.wait([self._running])


class IntakeService(Part):
    """Membership and intake: joins the group, pumps batches to the tasks, leaves the group.

    Back-pressure comes in two steps. While the worker is as full as `max_buffered` allows, nothing
    is polled; the events drain, and that is all in the common case. When it stays full, some
    partitions hold it up (a slow call): those are paused, and the others go on.
    """

    def __init__(
        self,
        consumer: Consumer,
        assignment: Assignment,
        checkpointer: Checkpointer,
        outbox: Outbox,
        settings: Settings,
        fail: Fail,
    ) -> None:
        super().__init__(fail)
        self._consumer = consumer
        self._assignment = assignment
        self._checkpointer = checkpointer
        self._outbox = outbox
        self._settings = settings
        self._paused: dict[Any, None] = {}
        self._running: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        await self._consumer.start(self._assignment)
        self._running = asyncio.create_task(self._run(), name="intake")

    async def _run(self) -> None:
        try:
            await self._pump()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever breaks the intake stops the worker
            self.fail(error)

    async def _pump(self) -> None:
        consumer, assignment, outbox = self._consumer, self._assignment, self._outbox
        limit = self._settings.max_buffered
        while True:
            batches = await consumer.poll(self._patience)
            if batches:
                assignment.add(batches)
                await assignment.look_again()
                await outbox.ready()
            # One turn of the loop: the agents work off what they were given.
            await asyncio.sleep(0)
            while outbox.full or assignment.state_full:
                assignment.hurry.set()
                assignment.checkpointed.clear()
                await assignment.checkpointed.wait()
            if self._paused:
                await self._resume()
            backlog = assignment.backlog
            if assignment.concurrent and 2 * backlog >= limit:
                self._even_out(limit)
            if backlog >= limit:
                await self._drain(limit)

    @property
    def _patience(self) -> float:
        """How long an idle pump may wait."""
        if not self._paused:
            return IDLE
        return LOOK_ROUND_SOON if self._assignment.concurrent else LOOK_ROUND

    def _even_out(self, limit: int) -> None:
        """Pause partitions that have their share already: a broker gives one after the other, and where events wait
        for calls and not for the processor, those of all partitions are to be under way at once.
        """
        sources = self._assignment.sources
        share = max(1, limit // max(1, len(sources)))
        full = [tp for tp, source in sources.items() if tp not in self._paused and source.ledger.unfinished >= share]
        if full and len(full) + len(self._paused) < len(sources):
            self._pause(full)

    def _pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(dict.fromkeys(partitions))
        for tp in partitions:
            self._assignment.sources[tp].end = None  # while it is paused nobody tells how far it goes
        self._consumer.pause(partitions)

    async def _drain(self, limit: int) -> None:
        """Wait until there is room again, or until it is clear which partitions hold it up, and pause those."""
        assignment = self._assignment
        while self._unpaused_backlog() >= limit:
            assignment.progress.clear()
            try:
                await asyncio.wait_for(assignment.progress.wait(), FULL_FOR)
            except TimeoutError:
                share = max(1, limit // (2 * max(1, len(assignment.sources))))
                slow = [
                    tp
                    for tp, source in assignment.sources.items()
                    if tp not in self._paused and source.ledger.unfinished >= share
                ]
                self._pause(slow)
                return

    def _unpaused_backlog(self) -> int:
        return sum(
            source.ledger.unfinished for tp, source in self._assignment.sources.items() if tp not in self._paused
        )

    async def _resume(self) -> None:
        sources = self._assignment.sources
        part = 2 if self._assignment.concurrent else 8
        enough = max(1, self._settings.max_buffered // (part * max(1, len(sources))))
        again = [tp for tp in self._paused if tp in sources and sources[tp].ledger.unfinished <= enough]
        for tp in again:
            # Of a partition that had been read to its end the driver has told the end, and tells it once.
            sources[tp].doubtful |= sources[tp].told_end
        if again:
            await self._assignment.look_again()
        self._consumer.resume([tp for tp in again if tp in sources])
        self._paused = {tp: None for tp in self._paused if tp in sources and tp not in again}

    async def end(self) -> None:
        """Stop taking in, let the agents finish, commit, leave: in this order, so that nothing is done twice."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        timeout = self._settings.stop_timeout.total_seconds()
        await self._assignment.close(timeout)
        try:
            async with asyncio.timeout(max(LAST_COMMIT, timeout)):
                await self._checkpointer.checkpoint(self._assignment)
        except TimeoutError:
            raise BrokerUnavailable(
                f"the last commit was not done within {max(LAST_COMMIT, timeout):g} s; "
                "the next start does the uncommitted events again"
            ) from None
        finally:
            await self._consumer.close()
