"""What keeps a partition's commit position where it is: said in numbers, and aloud when it lasts.

The worst state is a silent one. A position that has not moved for half a minute, while events
wait to be finished, gets one warning, which names the event that it waits for; the next one
comes only after it has moved. Source: spec, B7.11; DESIGN, 6.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agentic.brokers.base import TopicPartition
from agentic.metrics import Metrics

if TYPE_CHECKING:
    from agentic.runtime.partition import SourcePartition
    from agentic.runtime.task import Task

log = logging.getLogger("agentic.worker")

#: Seconds after which a position that does not move is worth a warning.
STILL_FOR = 30.0
#: Seconds between two looks.
EVERY = 5.0


class Hindrance(NamedTuple):
    """The event that a commit position waits for.

    Attributes:
        agent: who has not finished it.
        key: the event's.
        state: where it is: "waiting" (behind others), or the name of a state of `agentic.core.stations`.
        attempt: how often it was begun.
        failure: what the last attempt failed with; empty without any.
    """

    agent: str
    key: Any
    state: str
    attempt: int = 0
    failure: str = ""

    def told(self, tp: TopicPartition, offset: int) -> str:
        """Return it in words."""
        tries = f", attempt {self.attempt}" if self.attempt > 1 else ""
        failure = f", last failed with {self.failure}" if self.failure else ""
        where = f"{tp.topic}-{tp.partition} offset {offset} key {self.key!r}"
        return f"{where}, agent {self.agent!r}, {self.state}{tries}{failure}"


class _Stand(NamedTuple):
    """Where a position was first seen as it is."""

    base: int
    since: float
    warned: bool


class Watch:
    """Looks after the commit positions of one worker.

    Args:
        sources: the partitions by now, each with its task.
        clock: seconds.
    """

    def __init__(
        self,
        sources: Callable[[], dict[TopicPartition, tuple[SourcePartition, Task]]],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._sources = sources
        self._metrics = metrics
        self._clock = clock
        self._stands: dict[TopicPartition, _Stand] = {}

    async def run(self) -> None:
        """Look every few seconds."""
        while True:
            await asyncio.sleep(EVERY)
            self.look()

    def look(self) -> dict[TopicPartition, float]:
        """Warn where it is time; return for how long each position has waited for an event, in seconds."""
        now = self._clock()
        waits: dict[TopicPartition, float] = {}
        sources = self._sources()
        self._stands = {tp: stand for tp, stand in self._stands.items() if tp in sources}
        for tp, (source, task) in sources.items():
            base = source.ledger.base
            if base is None or not source.ledger.unfinished or not task.started:
                self._stands.pop(tp, None)
                continue
            stand = self._stands.get(tp)
            if stand is None or stand.base != base:
                stand = self._stands[tp] = _Stand(base, now, False)
            waits[tp] = now - stand.since
            if waits[tp] >= STILL_FOR and not stand.warned:
                self._stands[tp] = stand._replace(warned=True)
                hindrance = task.hindrance(tp)
                log.warning(
                    "nothing of %s-%d has been committed for %.0f s, it waits for %s",
                    tp.topic,
                    tp.partition,
                    waits[tp],
                    "an event that no agent has" if hindrance is None else hindrance.told(tp, base),
                )
        return waits

    def report(self) -> None:
        """Bring the metrics up to date."""
        waits = self.look()
        oldest: dict[tuple[object, ...], float] = {}
        for tp, (source, task) in self._sources().items():
            metrics = self._metrics
            base, position, committed = source.ledger.base, source.ledger.position, source.ledger.committed
            labels = {"topic": tp.topic, "partition": tp.partition}
            metrics.gauge("commit_base", **labels).set(base)
            span = None if base is None or position is None else max(0, position - base)
            metrics.gauge("commit_span", **labels).set(span)
            metrics.gauge("commit_bytes", **labels).set(None if committed is None else len(committed.metadata))
            if tp in waits and (hindrance := task.hindrance(tp)) is not None:
                place = (tp.topic, tp.partition, base, repr(hindrance.key), hindrance.agent, hindrance.state)
                oldest[place] = waits[tp]
        self._metrics.keep("oldest_unfinished", ("topic", "partition", "offset", "key", "agent", "state"), oldest)
