"""The TestDriver: an app's own worker on a log in memory, with both clocks in the test's hand."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

from agentic.agent import Agent
from agentic.app import App
from agentic.brokers.base import Headers, TopicPartition
from agentic.brokers.memory import MemoryBroker
from agentic.core.times import seconds, timestamp_ms
from agentic.errors import AgenticError, ConfigurationError
from agentic.metrics import Counter
from agentic.runtime.assignment import Assignment
from agentic.runtime.holding import Holding
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.stream import Event, HeadersLike, current_outlet
from agentic.table import GlobalTable, Table
from agentic.testing.loop import Stuck, VirtualLoop
from agentic.topic import Topic

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

#: Stands for "whatever it is", where None is a key and a value.
ANY: Any = object()
#: Virtual seconds beyond the app's ``stop_timeout`` that its stop may take: each part has some of its own.
STOP_GRACE = 120.0

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
        patience: real time (a timedelta, or seconds) that one call waits for what virtual clocks
            do not move: a thread, a socket.

    Raises:
        AgenticError: on entry, in each call, and on exit: what would have stopped the worker. After
            a failure each call that would run the app raises it again; `crash` starts anew.
        RuntimeError: it is used outside of its ``with``, or from async code; or the app does not
            come to rest, since it waits for real I/O or goes on without end.
    """

    __test__ = False  # it is no test, whatever its name says to pytest

    def __init__(self, app: App, *, now: int | datetime = 0, patience: timedelta | float = 10.0) -> None:
        self.app = app
        self._start = timestamp_ms(now)
        self._patience = seconds(patience)
        self._virtual: VirtualLoop | None = None
        self._ended = False
        self._failure: BaseException | None = None
        self._name = f"memory://test-driver-{next(_names)}"
        self._worker: Worker | None = None
        self._broker: MemoryBroker | None = None
        self._keeper = MemoryBroker(self._name, {})
        self._read: dict[TopicPartition, int] = {}
        self._dropped: dict[str, int] = {}
        self._holding: dict[str, Holding] = {}

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> TestDriver:
        _refuse_async()
        if self._ended or self._virtual is not None:
            raise RuntimeError("a TestDriver serves once; make another: with TestDriver(app) as driver")
        self._virtual = VirtualLoop(self._patience)
        self._complete(self._keeper.open(1))
        self._dropped = self._drops()
        try:
            with self._running():
                self._begin()
        except BaseException:
            # What the lifespan has opened is closed by it alone.
            with suppress(Stuck):
                self._stop()
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        told = self._failure
        try:
            failure = self._stop()
        except Stuck as stuck:
            failure = stuck
        finally:
            self._close()
        # What the test has met already it may have asked for; what its own body raised comes first.
        if failure is not None and failure is not told and kind is None:
            raise failure

    def _close(self) -> None:
        self._ended = True
        try:
            self._end_stragglers()
            self._complete(self._keeper.close())
        finally:
            self._loop.close()

    @property
    def _loop(self) -> VirtualLoop:
        if self._virtual is None or self._virtual.is_closed():
            when = "has ended: what it shows is to be asked for within its with" if self._ended else "has not begun"
            raise RuntimeError(f"this TestDriver {when}; write: with TestDriver(app) as driver")
        _refuse_async()
        return self._virtual

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Around each call that runs the app: the first failure is raised now, and by all calls after it."""
        loop = self._loop
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except Stuck as error:
            self._failure = error
            loop.hurry()
            raise

    def _begin(self) -> None:
        self._broker = MemoryBroker(self._name, {})
        self._worker = self._complete(self._make_worker(self._broker))
        self._run_or_raise(self._worker.start())
        self._settle()

    async def _make_worker(self, broker: MemoryBroker) -> Worker:
        return Worker(
            self.app,
            broker=broker,
            now=self._now,
            transactional_id="driver",
            stores=MemoryStores(),
            holding=self._holding,
        )

    def _stop(self) -> BaseException | None:
        """Stop the worker; return why it failed, the stop included."""
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        task = self._loop.create_task(worker.stop())
        # An agent that sleeps holds the stop up for as long as the app allows: let that time pass.
        end = self._loop.time() + self.app.settings.stop_timeout.total_seconds() + STOP_GRACE
        while not task.done():
            if self._loop.time() > end:
                raise Stuck("the app does not stop, however long it is given; what it waits for never comes")
            self._loop.advance(1.0)
        task.result()
        return worker.failure

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
        with self._running():
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
        with self._running():
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
        with self._running():
            self._loop.advance(seconds(duration))
            self._settle()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the test's own beside the app, such as ``driver.run(topic.send(…))``."""
        if not isinstance(coroutine, Coroutine):
            raise TypeError(f"driver.run({coroutine!r}): give a coroutine, such as topic.send(…)")

        async def outside() -> T:
            if self.app.home.outlet is not None:
                current_outlet.set(self.app.home.outlet)
            return await coroutine

        outside.__qualname__ = getattr(coroutine, "__qualname__", repr(coroutine))
        try:
            with self._running():
                result = self._complete(outside())
                self._settle()
                return result
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def hold(self, agent: Agent) -> None:
        """From now on, let events that a concurrent agent is done with wait until `complete` or `release`.

        So a test says in which order events are done, whatever they await.

        Raises:
            ConfigurationError: the agent works on one event after the other.
        """
        if agent.serial:
            raise ConfigurationError(
                f"agent {agent.name!r} works on one event after the other, and they are done in that order: "
                "there is nothing to hold; declare concurrency="
            )
        self._holding.setdefault(agent.name, Holding())

    def held(self, agent: Agent) -> list[Event]:
        """Return the events that wait since `hold`, in the order in which the agent was done with them."""
        return self._held(agent).events

    def complete(self, agent: Agent, *, key: Any = ANY, value: Any = ANY) -> None:
        """Let events that wait since `hold` be complete, and run.

        Args:
            key, value: those of this key or value alone; by default all.

        Raises:
            LookupError: there is none.
            AgenticError: what stopped the worker.
        """
        holding = self._held(agent)
        with self._running():
            found = holding.let_go(
                lambda event: (key is ANY or event.key == key) and (value is ANY or event.value == value)
            )
            if not found:
                waiting = ", ".join(map(repr, holding.events)) or "none"
                raise LookupError(f"agent {agent.name!r}: no such event is held; there are: {waiting}")
            self._settle()

    def release(self, agent: Agent) -> None:
        """Hold no events of an agent any more; let those that wait be complete, and run."""
        holding = self._held(agent)
        with self._running():
            del self._holding[agent.name]
            holding.let_go(lambda event: True)
            self._settle()

    def _held(self, agent: Agent) -> Holding:
        try:
            return self._holding[agent.name]
        except KeyError:
            raise LookupError(f"agent {agent.name!r}: nothing is held; call driver.hold({agent.name}) first") from None

    def crash(self) -> None:
        """Lose all that was not committed, as a killed process does, and start again."""
        self._failure = None
        with self._running():
            assert self._broker is not None, "there is one since the driver was entered"
            self._worker = None
            self._broker.crash()
            self._end_stragglers()
            self._begin()

    def _settle(self) -> None:
        self._loop.settle()
        # While an agent awaits something with a change of a table in hand, a commit would have to wait for it.
        while self._worker is not None and self._worker.failure is None and not self._worker.torn:
            before = self._handed_out()
            self._run_or_raise(self._worker.checkpoint())
            self._loop.settle()
            # Under exactly_once it is the commit that shows one agent's outputs to the next.
            if self._handed_out() == before:
                break
        self._raise_failure()

    def _handed_out(self) -> float:
        return self.app.metrics.total("events_in", fresh=False)

    def _run_or_raise(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            self._complete(coroutine)
        except AgenticError as error:
            self._failure = error
            self._stop()
            raise

    def _raise_failure(self) -> None:
        worker = self._worker
        if worker is not None and worker.failure is not None:
            self._failure = worker.failure
            self._stop()
            raise self._failure

    def _complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._loop
        except RuntimeError:
            coroutine.close()
            raise
        return loop.complete(coroutine)

    def _now(self) -> int:
        # Asked from within the loop too.
        assert self._virtual is not None, "the worker runs on it"
        return self._start + round(self._virtual.time() * 1000)

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
        source = self._assignment().sources.get(TopicPartition(topic.name, partition))
        return None if source is None else source.ledger.stream_time

    def table(self, table: Table[K, V]) -> Mapping[K, V]:
        """Return a table's rows as they are now, of all partitions together, as a dict in the order of the keys.

        Raises:
            ConfigurationError: no agent uses the table.
        """
        if isinstance(table, GlobalTable):
            with self._running():
                return dict(table.items())
        rows: list[tuple[bytes, K, V]] = []
        found = False
        for state in self._assignment().states():
            if table in state.buffers:
                found = True
                rows += state.rows(table)
        if not found:
            raise ConfigurationError(f"table {table.name!r}: no agent of app {self.app.name!r} uses it")
        return {key: value for _, key, value in sorted(rows, key=lambda row: row[0])}

    def _assignment(self) -> Assignment:
        with self._running():
            if self._worker is None or self._worker.assignment is None:
                raise RuntimeError(f"app {self.app.name!r} has no agents: nothing is read, and no table used")
            return self._worker.assignment

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


def _refuse_async() -> None:
    """Two loops can't run in one thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "a TestDriver has a loop of its own, and can't be used where one runs already: call it from a plain function "
        "(def test_…, not async def), and await things by driver.run(coroutine)"
    )


def _decoded(decode: Callable[[bytes], Any], data: bytes | None) -> Any:
    return None if data is None else decode(data)
