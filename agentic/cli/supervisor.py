"""Several worker processes under one parent.

A process that a signal killed is started again: what it had in hand is not committed, and its
successor takes it up. One that ends by itself with an error is not: its agent, its input or its
broker would only fail again, and a loop of restarts would hide it; then all are stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

log = logging.getLogger("agentic.worker")

#: Seconds before the first restart; each further one waits twice as long, up to the last.
FIRST_WAIT, LAST_WAIT = 0.5, 30.0
#: A process that lived for so many seconds was well: its next restart waits little again.
WELL_AFTER = 60.0
#: Seconds beyond its own stop timeout that an orphaned process has before it ends itself.
ORPHAN_GRACE = 5.0


class Supervisor:
    """Keeps `len(commands)` processes alive until a signal, or until one of them fails.

    Args:
        commands: the argument list of each process. It is handed a file descriptor by
            ``--parent FD``, which closes when the parent dies, and its number by ``--number N``.
    """

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._failed = False
        self._signals = 0

    async def run(self) -> int:
        """Supervise; return the exit code: 0 when all ended well, else 1."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        # Only this process holds the writing end: the reading ends see its death, however it dies.
        read_end, write_end = os.pipe()
        try:
            await asyncio.gather(*(self._keep(n, command, read_end) for n, command in enumerate(self._commands)))
        finally:
            for process in self._running.values():
                process.kill()
            os.close(read_end)
            os.close(write_end)
        return 1 if self._failed else 0

    async def _keep(self, number: int, command: Sequence[str], parent: int) -> None:
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            started = time.monotonic()
            # In a group of its own: a terminal's Ctrl-C comes to us alone, and each child gets it once, from us.
            process = self._running[number] = await asyncio.create_subprocess_exec(
                *command,
                "--parent",
                str(parent),
                "--number",
                str(number),
                stdin=subprocess.DEVNULL,
                pass_fds=[parent],
                process_group=0,
            )
            log.info("worker %d runs as process %d", number, process.pid)
            if self._stopping.is_set():
                process.terminate()
            code = await process.wait()
            del self._running[number]
            if self._stopping.is_set():
                self._failed = self._failed or code not in (0, -signal.SIGTERM)
                return
            if code == 0:
                log.info("worker %d has ended", number)
                return
            if code > 0:
                log.error("worker %d failed with exit code %d; stopping the others", number, code)
                self._failed = True
                self._stop()
                return
            if time.monotonic() - started >= WELL_AFTER:
                wait = FIRST_WAIT
            log.warning("worker %d was killed by %s; again in %g s", number, signal.Signals(-code).name, wait)
            await self._pause(wait)
            wait = min(2 * wait, LAST_WAIT)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("stopping the workers")
            self._stop()
        else:
            log.warning("signal again: killing the workers")
            for process in self._running.values():
                process.kill()

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._running.values():
            process.terminate()


def end_with_parent(parent: int, stop_timeout: float) -> None:
    """Stop this process in order once the other end of a pipe closes; kill it if that takes too long."""

    def watch() -> None:
        os.read(parent, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stop_timeout + ORPHAN_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def commands(arguments: Sequence[str], count: int, instance: str | None) -> list[list[str]]:
    """Return the command of each of `count` workers; a static instance gets the worker's number behind it."""
    own = [[] if instance is None else ["--set", f"instance={instance}-{n}"] for n in range(count)]
    return [[sys.executable, "-m", "agentic", "worker", *arguments, *extra] for extra in own]
