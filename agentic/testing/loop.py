"""An event loop whose time stands still until a test moves it.

It tells when nothing more can happen by itself: no callback is ready, no thread of its
executor is at work, no socket is waited for. What is left then are timers, and those wait
for `VirtualLoop.advance`. What is outside of it works in real time, which is bounded.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import os
import selectors
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Real seconds between two looks while something outside of the loop is at work.
OUTSIDE = 0.05
#: Turns of the loop, without any wait, after which it is taken to go on for ever: some seconds of nothing else.
TURNS = 500_000


class Stuck(RuntimeError):
    """The app can't come to rest; what keeps it from that is named."""


class _Selector(selectors.DefaultSelector):
    """Waits for what is outside of the loop only; asked to wait for a timer, it tells the loop instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self.loop.turned()
            self.loop.reach()
            return ready
        if self.loop.outside:
            began = time.monotonic()
            ready = list(super().select(OUTSIDE))
            self.loop.waited(time.monotonic() - began)
            return ready
        self.loop.settled(timeout)
        self.loop.reach()
        return []


class _Timer(asyncio.TimerHandle):
    """A timer that stands behind those of its time that were set before it."""

    __slots__ = ("_number",)

    def __init__(
        self,
        when: float,
        number: int,
        callback: Callable[..., object],
        args: Any,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._number = number

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        if isinstance(other, _Timer):
            return (self.when(), self._number) < (other.when(), other._number)
        return super().__lt__(other)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, driven by `settle` and `advance`.

    Args:
        patience: real seconds that one `advance` waits, in all, for what is outside of the loop.
    """

    def __init__(self, patience: float) -> None:
        self._now = 0.0
        self._left = 0.0
        self._patience = patience
        self._outside_for = 0.0
        self._turns = 0
        self._set = 0
        #: What threads of the executor do.
        self._jobs: dict[asyncio.Future[Any], Callable[..., Any]] = {}
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        #: The loop's own descriptors, by which threads wake it.
        self._own = set(selector.get_map())

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Fire timers of one time in the order in which they were set, as nobody would expect otherwise."""
        self._set += 1
        timer = _Timer(when, self._set, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    @property
    def outside(self) -> bool:
        """Is a thread of the executor at work, or a socket waited for?"""
        return bool(self._jobs or self._open())

    def _open(self) -> list[selectors.SelectorKey]:
        keys: list[selectors.SelectorKey] = list(self._selector.get_map().values())  # type: ignore[attr-defined]
        return [key for key in keys if key.fd not in self._own]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jobs[future] = func
        future.add_done_callback(self._jobs.pop)
        return future

    def turned(self) -> None:
        """The loop has made a turn without a wait."""
        self._turns += 1
        if self._turns > TURNS:
            names = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))
            raise Stuck(
                f"the app does not come to rest: of {names}, one goes on and on, as with asyncio.sleep(0) in a loop; "
                "have it wait for something"
            )

    def waited(self, real: float) -> None:
        """The loop has waited for something outside of it."""
        self._turns = 0
        self._outside_for += real
        if self._outside_for > self._patience:
            raise Stuck(
                f"the app does not come to rest: for {self._patience:g} real seconds it waited for "
                f"{', '.join(self._what_is_outside())}; put something in its place that needs no real I/O, "
                "or give TestDriver(patience=…) seconds"
            )

    def _what_is_outside(self) -> list[str]:
        jobs = [f"a thread that runs {_name(func)}" for func in self._jobs.values()]
        return jobs + [_described(key.fd) for key in self._open()]

    def settled(self, next_timer: float | None) -> None:
        """Nothing is ready; `next_timer` is how far the next timer is off, None without any."""
        self._turns = 0
        if next_timer is not None and next_timer <= self._left:
            self._left -= next_timer
            self._now += next_timer
        else:
            self._now += self._left
            self._left = 0.0
            self.stop()

    def reach(self) -> None:
        """Come to the time of each timer that is fired now.

        The loop fires what is due within its clock's resolution, and a sum of floats may be a hair less than a
        timer's time. Where time stands still, whoever then waits for the hair would wait for ever.
        """
        near = self._now + self._clock_resolution  # type: ignore[attr-defined]
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if timers and timers[0].when() < near:
            self._now = max(self._now, *(timer.when() for timer in timers if timer.when() < near))

    def settle(self) -> None:
        """Run until nothing more can happen while time stands still."""
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Move the time on, firing timers in their order, each at its own time, and settle after each.

        Raises:
            Stuck: it does not settle.
        """
        self._left = seconds
        self._outside_for = 0.0
        self._turns = 0
        self.run_forever()

    def hurry(self) -> None:
        """From now on wait for nothing outside of the loop: it has been waited for in vain."""
        for key in self._open():
            self._own.add(key.fd)
        self._jobs.clear()
        self._patience = 0.0

    def complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; time stands still.

        Raises:
            RuntimeError: it waits for a timer, or for something that never comes.
        """
        task = self.create_task(coroutine)
        self.settle()
        if not task.done():
            task.cancel()
            self.settle()
            name = getattr(coroutine, "__qualname__", repr(coroutine))
            raise RuntimeError(f"{name} waits for something that does not come while time stands still")
        return task.result()


def _described(descriptor: int) -> str:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            try:
                return f"a socket connected to {copy.getpeername()}"
            except OSError:
                return f"a socket open at {copy.getsockname()}"
    except OSError:
        return f"an open file or pipe, descriptor {descriptor}"


def _name(func: Callable[..., Any]) -> str:
    # What asyncio.to_thread hands over is a partial of a context's run, with the function as its argument.
    arguments = getattr(func, "args", ())
    return str(getattr(arguments[0] if arguments else func, "__qualname__", repr(func)))
