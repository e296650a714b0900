"""The TestDriver: an app's own worker on a log in memory, with both clocks in the test's hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

from agentic.app import App
from agentic.brokers.base import Headers, TopicPartition
from agentic.brokers.memory import MemoryBroker
from agentic.core.times import seconds, timestamp_ms
from agentic.errors import AgenticError, ConfigurationError
from agentic.metrics import Counter
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.stream import HeadersLike, current_outlet
from agentic.table import Table
from agentic.testing.loop import VirtualLoop
from agentic.topic import Topic

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_names = itertools.count()


@dataclass(frozen=True)
class Output:
    """A record that the app has sent, decoded by its topic."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers
    partition: int


class TestDriver:
    """Runs an app step by step: the same worker, tasks and agents, a broker in memory, virtual clocks.

    Synchronous; use it as a context manager. Each call runs the app until nothing more can
    happen, then commits. An agent that sleeps waits for `advance`.

    Args:
        app: the settings ``broker`` and ``state_dir`` are not looked at, the others hold.
        now: where the wall clock starts: milliseconds since the epoch, or an aware datetime.

    Raises:
        AgenticError: on entry and in each call: what would have stopped the worker.
    """

    __test__ = False  # it is no test, whatever its name says to pytest

    def __init__(self, app: App, *, now: int | datetime = 0) -> None:
        self.app = app
        self._start = timestamp_ms(now)
        self._loop = VirtualLoop()
        self._name = f"memory://test-driver-{next(_names)}"
        self._worker: Worker | None = None
        self._broker: MemoryBroker | None = None
        self._keeper = MemoryBroker(self._name, {})
        self._read: dict[TopicPartition, int] = {}
        self._dropped: dict[str, int] = {}

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> TestDriver:
        self._complete(self._keeper.open(1))
        self._dropped = self._drops()
        try:
            self._begin()
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._stop()
        finally:
            self._complete(self._keeper.close())
            self._end_stragglers()
            self._loop.close()

    def _begin(self) -> None:
        self._broker = MemoryBroker(self._name, {})
        self._worker = self._complete(self._make_worker(self._broker))
        self._run_or_raise(self._worker.start())
        self._settle()

    async def _make_worker(self, broker: MemoryBroker) -> Worker:
        return Worker(self.app, broker=broker, now=self._now, transactional_id="driver", stores=MemoryStores())

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            task = self._loop.create_task(worker.stop())
            # An agent that sleeps holds the stop up for as long as the app allows: let that time pass.
            while not task.done():
                self._loop.advance(1.0)
            task.result()

    def _end_stragglers(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.settle()

    # -- steps --------------------------------------------------------------------------------

    def send(
        self,
        topic: Topic[Any, Any],
        value: Any = None,
        *,
        key: Any = None,
        timestamp: int | datetime | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
    ) -> None:
        """Send a record to a topic and run.

        Args:
            topic: one of the app's.
            value, key: of the topic's types; None is a null.
            timestamp: milliseconds or an aware datetime; by default the wall clock.
            headers: a mapping or pairs.
            partition: by default chosen by the key, as a producer does.

        Raises:
            CodecError: key or value do not fit the topic.
            AgenticError: what stopped the worker.
        """
        when = self._now() if timestamp is None else timestamp
        record = topic.outgoing(topic.encode_key(key), value, headers, when, partition)
        self._complete(self._append(record))
        self._settle()

    def send_raw(
        self,
        topic: Topic[Any, Any],
        value: bytes | None,
        *,
        key: bytes | None = None,
        timestamp: int | datetime | None = None,
        partition: int = -1,
    ) -> None:
        """Send bytes as they are, past the topic's codecs: to see what the app does with bad ones."""
        when = self._now() if timestamp is None else timestamp_ms(timestamp)
        self._complete(self._append((topic.name, key, value, when, None, partition)))
        self._settle()

    async def _append(self, record: tuple[Any, ...]) -> None:
        producer = self._keeper.producer()
        producer.send(*record)
        await producer.flush()
        await producer.close()

    def advance(self, duration: timedelta | float) -> None:
        """Move the wall clock on (a timedelta, or seconds), firing on the way what is due, and run."""
        self._loop.advance(seconds(duration))
        self._settle()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the test's own beside the app, such as ``driver.run(topic.send(…))``."""

        async def outside() -> T:
            if self.app.home.outlet is not None:
                current_outlet.set(self.app.home.outlet)
            return await coroutine

        result = self._complete(outside())
        self._settle()
        return result

    def crash(self) -> None:
        """Lose all that was not committed, as a killed process does, and start again."""
        assert self._broker is not None, "the driver is not entered"
        self._worker = None
        self._broker.crash()
        self._end_stragglers()
        self._begin()

    def _settle(self) -> None:
        self._loop.settle()
        while self._worker is not None and self._worker.failure is None:
            before = self._handed_out()
            self._run_or_raise(self._worker.checkpoint())
            self._loop.settle()
            # Under exactly_once it is the commit that shows one agent's outputs to the next.
            if self._handed_out() == before:
                break
        self._raise_failure()

    def _handed_out(self) -> float:
        return self.app.metrics.total("events_in")

    def _run_or_raise(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            self._complete(coroutine)
        except AgenticError:
            self._worker = None
            raise

    def _raise_failure(self) -> None:
        worker = self._worker
        if worker is not None and worker.failure is not None:
            failure = worker.failure
            self._stop()
            raise failure

    def _complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.complete(coroutine)

    def _now(self) -> int:
        return self._start + round(self._loop.time() * 1000)

    # -- what came out ------------------------------------------------------------------------

    def outputs(self, topic: Topic[Any, Any]) -> list[Output]:
        """Return the records sent to a topic since the last call, by partition and offset.

        The test's own `send` counts as well. Under ``exactly_once``, committed records only.
        """
        return self._complete(self._outputs(topic))

    async def _outputs(self, topic: Topic[Any, Any]) -> list[Output]:
        partitions = (await self._keeper.topics()).get(topic.name)
        if partitions is None:
            raise ConfigurationError(f"topic {topic.name!r} is not one of app {self.app.name!r}")
        tps = [TopicPartition(topic.name, n) for n in range(partitions)]
        ends = await self._keeper.end_offsets(tps)
        reader = self._keeper.reader({tp: self._read.get(tp, 0) for tp in tps})
        found: dict[TopicPartition, list[Output]] = {tp: [] for tp in tps}
        while any(self._read.get(tp, 0) < ends[tp] for tp in tps):
            for batch in await reader.poll(0):
                columns = zip(batch.keys, batch.values, batch.timestamps, batch.headers)
                found[batch.tp] += [
                    Output(
                        _decoded(topic.key.decode, key),
                        _decoded(topic.value.decode, value),
                        timestamp,
                        headers if isinstance(headers, tuple) else (),
                        batch.tp.partition,
                    )
                    for key, value, timestamp, headers in columns
                ]
                self._read[batch.tp] = batch.position
        await reader.close()
        return [output for outputs in found.values() for output in outputs]

    def stream_time(self, topic: Topic[Any, Any], partition: int = 0) -> int | None:
        """Return the greatest timestamp processed of a topic's partition, in ms; None before the first event."""
        assert self._worker is not None and self._worker.assignment is not None, "no agent runs"
        source = self._worker.assignment.sources.get(TopicPartition(topic.name, partition))
        return None if source is None else source.ledger.stream_time

    def table(self, table: Table[K, V]) -> Mapping[K, V]:
        """Return a table's rows as they are now, of all partitions together, as a dict in the order of the keys.

        Raises:
            ConfigurationError: no agent uses the table.
        """
        rows: list[tuple[bytes, K, V]] = []
        found = False
        assert self._worker is not None and self._worker.assignment is not None, "no agent runs"
        for state in self._worker.assignment.states():
            if table in state.buffers:
                found = True
                rows += state.rows(table)
        if not found:
            raise ConfigurationError(f"table {table.name!r}: no agent of app {self.app.name!r} uses it")
        return {key: value for _, key, value in sorted(rows, key=lambda row: row[0])}

    @property
    def dropped(self) -> dict[str, int]:
        """Events given up by rule since the driver was entered, by reason; reasons without any are absent."""
        return {
            reason: count - self._dropped.get(reason, 0)
            for reason, count in self._drops().items()
            if count != self._dropped.get(reason, 0)
        }

    def _drops(self) -> dict[str, int]:
        return {
            dict(metric.labels)["reason"]: metric.value
            for metric in self.app.metrics
            if isinstance(metric, Counter) and metric.name == "dropped"
        }


def _decoded(decode: Callable[[bytes], Any], data: bytes | None) -> Any:
    return None if data is None else decode(data)
