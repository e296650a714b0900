"""The life of a worker process: loop, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from agentic import brokers
from agentic.app import App
from agentic.asking import Client
from agentic.errors import AgenticError, BrokerError, many
from agentic.runtime import topics
from agentic.runtime.asking import Asker
from agentic.runtime.logging import setup
from agentic.runtime.outbox import AppOutlet, wall_ms
from agentic.runtime.worker import Reporter, Worker

T = TypeVar("T")

log = logging.getLogger("agentic.worker")

#: Objects between two collections of the youngest generation. Events live and die by the
#: thousand and seldom in cycles: the default of 700 would look at them all in vain.
GC_THRESHOLD = 50_000

#: Seconds that what a stopped worker or a command has left behind (tasks, threads of the executor) has to end.
LAST_WAIT = 3.0


def run_worker(
    app: App, *, ends: bool = False, reporters: Sequence[Reporter] = (), worded: Callable[[str], str] = str
) -> int:
    """Run a worker until a signal stops it; return the exit code of its process.

    SIGTERM and SIGINT drain, commit, leave the group and end with 0; a second one ends the process
    at once. Must be called from the main thread.

    A task or a thread of the loop's that does not end when the worker has stopped is named, and the
    process ended without it, with exit code 1: this function does not return then.

    Args:
        app: whose agents to run.
        ends: stop when the input is used up.
        reporters: coroutine functions that run beside the worker and are cancelled at its end.
        worded: how the message of a failure is put in the log.

    Returns:
        0, or 1 after a failure, which has been logged.

    Raises:
        AgenticError: the worker could not start.
    """
    setup(app.settings)
    return run_bounded(_run(app, ends, reporters, worded))


def run_bounded(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, as `asyncio.run` does, but do not wait for ever for what it leaves behind.

    A task or a thread of the loop's that does not end within `LAST_WAIT` seconds is named, and the process
    ended with exit code 1.
    """
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        return runner.run(main)
    finally:
        with _bounded(runner.get_loop()):
            runner.close()


@contextmanager
def _bounded(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Give what is within `LAST_WAIT` seconds: closing a loop waits for all that runs on it, however long."""
    ended = threading.Event()
    tasks = asyncio.all_tasks(loop)
    threads = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]

    def watch() -> None:
        if ended.wait(LAST_WAIT):
            return
        left = sorted(task.get_name() for task in tasks if not task.done())
        left += sorted(f"thread {each.name}" for each in threads if each.is_alive())
        log.error("does not end although all else has: %s; ending the process", ", ".join(left))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # whoever read it has gone, and we go too
                stream.flush()
        os._exit(1)

    threading.Thread(target=watch, name="last watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where the extra ``fast`` has brought it."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run(app: App, ends: bool, reporters: Sequence[Reporter], worded: Callable[[str], str]) -> int:
    worker = Worker(app, reporters=reporters)
    _handle_signals(worker)
    try:
        await _start(worker)
        if worker.stopping.is_set():
            return await _end(worker, worded)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        log.info("worker of %s ready on %s", app.name, worker.broker.url)
        await _until_stopped(worker, ends)
    except BaseException:
        await worker.stop()
        raise
    return await _end(worker, worded)


async def _start(worker: Worker) -> None:
    """Start the tree, or give up as soon as a signal asks to."""
    starting = asyncio.create_task(worker.start())
    stopping = asyncio.create_task(worker.stopping.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    await starting


async def _until_stopped(worker: Worker, ends: bool) -> None:
    waits: set[asyncio.Task[object]] = {asyncio.create_task(worker.stopping.wait())}
    if ends:
        waits.add(asyncio.create_task(worker.used_up()))
    done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in rest:
        wait.cancel()
    for wait in done:
        if (error := wait.exception()) is not None:
            worker.fail(error)
    if ends and (parked := round(worker.app.metrics.total("parked"))):
        log.info("%s put off or behind one, and not waited for: see 'agentic deferred ls'", many(parked, "event"))


async def _end(worker: Worker, worded: Callable[[str], str]) -> int:
    log.info("stopping")
    await worker.stop()
    failure = worker.failure
    if failure is None:
        log.info("stopped")
        return 0
    cause = failure.__cause__ if isinstance(failure, AgenticError) else failure
    if isinstance(failure, BrokerError):
        cause = None  # what a broker or a disk refuses is said in words; a trace is for what went wrong in code
    log.error("stopped: %s", worded(str(failure)), exc_info=cause)
    return 1


def _handle_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if worker.stopping.is_set():
            log.warning("%s again: ending at once", signal.Signals(number).name)
            os._exit(128 + number)
        worker.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)


@asynccontextmanager
async def session(app: App) -> AsyncIterator[None]:
    """Let `Topic.send` and `Agent.ask` work without a worker: for commands and scripts.

    Missing topics are made as at a worker's start; one that may not be made is told when it is sent to.

    Raises:
        BrokerUnavailable: not reached within the app's ``start_timeout``.
    """
    async with client(app):
        yield


@asynccontextmanager
async def client(app: App) -> AsyncIterator[Client]:
    """See `App.client`."""
    broker = brokers.connect(app.settings.broker, app.settings.broker_options)
    await broker.open(app.settings.start_timeout.total_seconds())
    outlet = AppOutlet(broker.producer, app.metrics, wall_ms)
    asker = Asker(app.home, broker, outlet)
    try:
        await topics.make(app, broker)
        app.home.open(outlet, asker)
        yield Client(app.home, outlet, asker)
    finally:
        app.home.shut(outlet)
        await asker.close()
        await outlet.close()
        await broker.close()
