"""What one windowed table comes to in one task, in numbers: what it gives out, how fast, and what came too late.

The names are those of KIP-825, with underscores; `agentic.metrics.Metrics` lists them.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable

from agentic.metrics import RECENT, Metrics
from agentic.settings import Settings

#: Seconds over which a rate is taken, as long as what Kafka's metrics keep of the past at least.
SPAN = 30


class Rate:
    """How many a second there were lately: in the last `SPAN` seconds, or since the beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        #: Each second that had any, with how many these were.
        self._lately: deque[list[int]] = deque()

    def add(self, n: int) -> None:
        second = int(self._clock())
        if self._lately and self._lately[-1][0] == second:
            self._lately[-1][1] += n
        else:
            self._lately.append([second, n])
            self._drop_old(second)

    def value(self) -> float:
        """Return the number a second."""
        now = self._clock()
        self._drop_old(int(now))
        return sum(n for _, n in self._lately) / min(SPAN, max(1.0, now - self._since))

    def _drop_old(self, second: int) -> None:
        while self._lately and self._lately[0][0] <= second - SPAN:
            self._lately.popleft()


class WindowNumbers:
    """One table's numbers in one task.

    Attributes:
        labels: by which its final results are told apart: the worker, the task, the table.
    """

    def __init__(self, metrics: Metrics, settings: Settings, task: str, table: str) -> None:
        self.labels = (worker_name(settings), task, table)
        self.rate = Rate()
        self._durations: deque[float] = deque(maxlen=RECENT)
        names = dict(zip(LABELS, self.labels))
        self._total = metrics.counter("emit_final_records_total", **names)
        self._late = metrics.counter("windows_late", table=table)
        self._metrics = metrics

    def emitted(self, windows: int, seconds: float | None = None) -> None:
        """So many windows were given out at once, and that took so long; None: they were closed early, by an event."""
        self._total.add(windows)
        self.rate.add(windows)
        if seconds is not None:
            self._durations.append(seconds)

    def dropped(self, reason: str, n: int) -> None:
        """Values were refused."""
        self._metrics.counter("dropped", reason=reason).add(n)
        if reason == "late":
            self._late.add(n)

    def latency(self) -> tuple[float, float] | None:
        """Return the greatest and the mean duration of the last `RECENT`, in seconds; None without any."""
        if not self._durations:
            return None
        return max(self._durations), sum(self._durations) / len(self._durations)


#: The names of the labels of final results.
LABELS = ("worker", "task", "table")


def worker_name(settings: Settings) -> str:
    """Return what a worker is called among others: its instance, else its machine and process."""
    return settings.instance or f"{socket.gethostname()}-{os.getpid()}"
