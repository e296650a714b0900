"""An event loop whose time stands still until a test moves it.

It tells when nothing more can happen by itself: no callback is ready, no thread of its
executor is at work, no socket is waited for. What is left then are timers, and those wait
for `VirtualLoop.advance`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Real seconds between two looks while something outside of the loop is at work.
OUTSIDE = 0.05


class _Selector(selectors.DefaultSelector):
    """Waits for what is outside of the loop only; asked to wait for a timer, it tells the loop instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.outside:
            return list(super().select(OUTSIDE))
        self.loop.settled(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, driven by `settle` and `advance`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._left = 0.0
        self._jobs = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        #: The loop's own descriptors, by which threads wake it.
        self._own = len(selector.get_map())

    def time(self) -> float:
        return self._now

    @property
    def outside(self) -> bool:
        """Is a thread of the executor at work, or a socket waited for?"""
        return self._jobs > 0 or len(self._selector.get_map()) > self._own  # type: ignore[attr-defined]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self._jobs -= 1

    def settled(self, next_timer: float | None) -> None:
        """Nothing is ready; `next_timer` is how far the next timer is off, None without any."""
        if next_timer is not None and next_timer <= self._left:
            self._left -= next_timer
            self._now += next_timer
        else:
            self._now += self._left
            self._left = 0.0
            self.stop()

    def settle(self) -> None:
        """Run until nothing more can happen while time stands still."""
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Move the time on, firing timers in their order, each at its own time, and settle after each."""
        self._left = seconds
        self.run_forever()

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
            raise RuntimeError(f"{coroutine!r} waits for something that does not come while time stands still")
        return task.result()
