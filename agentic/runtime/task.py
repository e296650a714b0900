"""A task: one partition number of one group of topics, with its agents' instances.

It is the unit of ownership and of order. Its sources' events are merged by timestamp and
handed to the crews of the agents that read them; everything in it is touched by one loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from agentic.agent import Agent
from agentic.brokers.base import TopicPartition
from agentic.core.choice import Head, Wait, choose
from agentic.core.clock import NEVER, Clock
from agentic.core.ledger import MAX_UNFINISHED
from agentic.core.readers import most_in_flight
from agentic.metrics import Metrics
from agentic.runtime.crew import Brakes, Crew, Place, Views
from agentic.runtime.gate import Descent, Emitted, Gate
from agentic.runtime.holding import Holding
from agentic.runtime.instance import Children, Instance
from agentic.runtime.operators import Operator, Reader
from agentic.runtime.outbox import Outbox
from agentic.runtime.paned import PanedView
from agentic.runtime.partition import SourcePartition
from agentic.runtime.pool import Pool
from agentic.runtime.quiet import Quiet
from agentic.runtime.solo import Solo
from agentic.runtime.state import TaskState
from agentic.runtime.stores import Stores
from agentic.runtime.striped import StripedView
from agentic.runtime.tables import TableView
from agentic.runtime.watch import Hindrance
from agentic.runtime.window_numbers import WindowNumbers
from agentic.runtime.windowing import WindowedView
from agentic.settings import Settings
from agentic.state.panes import PanedBuffer
from agentic.state.strips import StripedBuffer
from agentic.stream import Event, Origin
from agentic.table import Table
from agentic.windows import WindowedTable

log = logging.getLogger("agentic.worker")


class Task:
    """The work on one partition number of one group of topics.

    Args:
        agents: those that read the group's topics.
        partition: the task's number.
        partitions: how many tasks the group has; only where it has tables.
        home: names the task's local state: the group's first topic by name, and the number.
        fail: called once when an agent or a record stops the worker.
        progress: called whenever events have been completed.
        ask_commit: asks for a checkpoint; returns a future that is done with it.
        now: the wall clock, in ms.
        dirty: called when there is something to commit that no record has brought.
        brakes: what holds agents back in all tasks of the worker together, by their names.
        holding: what a test lets events wait for, likewise.
    """

    def __init__(
        self,
        name: str,
        agents: Sequence[Agent],
        *,
        partition: int,
        partitions: int,
        home: str,
        settings: Settings,
        outbox: Outbox,
        metrics: Metrics,
        fail: Callable[[BaseException], None],
        progress: Callable[[], None],
        ask_commit: Callable[[], asyncio.Future[None]],
        now: Callable[[], int],
        dirty: Callable[[], None],
        brakes: Mapping[str, Brakes],
        holding: Mapping[str, Holding],
    ) -> None:
        self.name = name
        self.partition = partition
        #: The tables that its agents use.
        self.tables = tuple(dict.fromkeys(table for agent in agents for table in agent.tables))
        #: Their rows, once the store is open; None before, and for a task without tables.
        self.state: TaskState | None = None
        self._partitions = partitions
        self._home = home
        self.sources: dict[TopicPartition, SourcePartition] = {}
        self._settings = settings
        self._max_idle = None if settings.max_idle is None else settings.max_idle.total_seconds()
        self._metrics = metrics
        self._fail = fail
        self._progress = progress
        self._idle_since: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._closing = False
        watched = any(agent.watched for agent in agents)
        uses = Counter(table for agent in agents for table in agent.used)
        #: The tables that more than one of the agents uses.
        self._shared = frozenset(table for table, users in uses.items() if users > 1)
        #: Holds events back while children of others are under way; None where no event can have any.
        windowed = any(isinstance(table, WindowedTable) for table in self.tables)
        self.gate = Gate(self._look_again) if watched or windowed else None
        self._quiet: Quiet | None = None
        #: What keeps the time of windowed tables, once the agents run.
        self.operators: dict[Table[Any, Any], Operator] = {}
        place = self._place = Place(
            task=name,
            partition=partition,
            settings=settings,
            outbox=outbox,
            metrics=metrics,
            ask_commit=ask_commit,
            gate=self.gate,
            views=self._views,
            fail=fail,
            drained=self.drained,
            now=now,
            dirty=dirty,
            brakes=brakes,
            holding=holding,
            base_of=self._base_of,
            shared=self._shared,
            timed=windowed
            or any(agent.deferred is not None for agent in agents)
            or any(table.ttl for table in self.tables),
        )
        self.crews: list[Crew] = [
            Solo(agent, place) if agent.serial else Pool(agent, place, _most(agent, agents)) for agent in agents
        ]
        self._readers: dict[str, list[Crew]] = {}
        for crew in self.crews:
            for topic in crew.agent.inputs:
                self._readers.setdefault(topic.name, []).append(crew)
        self._counted = dict.fromkeys(self.crews, (0, 0))
        #: Do its agents run? One with tables begins when these are complete.
        self.started = False
        #: Set when an agent has run out of events, or has ended.
        self._moved = asyncio.Event()
        self._opening = asyncio.Lock()

    async def open(self, stores: Stores) -> None:
        """Open the store of the task's tables; leaves `state` at None when the task has been closed meanwhile."""
        async with self._opening:
            if self._closing:
                return
            store = await stores.open(self._home, {table.name: table.shape for table in self.tables})
            self.state = TaskState(self.name, self.partition, self._partitions, self.tables, store, stores=stores)

    def start(self) -> None:
        """Start the agents; they wait for events."""
        self.started = True
        times = [time for source in self.sources.values() if (time := source.ledger.stream_time) is not None]
        # As Kafka Streams does; what was unfinished comes again, and is judged in the order of its offsets.
        self._place.clock = Clock(max(times, default=None))
        if self.state is not None:
            self.operators = {table: self._operator(table) for table in self.tables if isinstance(table, WindowedTable)}
        if self.operators and self.state is not None:
            self.state.operators = list(self.operators.values())
            idle = self._settings.idle_after
            self._quiet = Quiet(
                self.name,
                self.operators.values(),
                None if idle is None else idle // timedelta(milliseconds=1),
                self._is_quiet,
                self._place.now,
                self._moved_on,
            )
            self._quiet.heard()
        for crew in self.crews:
            crew.start(max(self._times(crew), default=NEVER))

    def _views(self, instance: Instance[Any]) -> Views:
        """Return the tables of an instance's agent as it sees them."""
        if self.state is None:
            return {}
        views = {table: self._view(table, instance) for table in instance.agent.tables}
        for table, view in views.items():
            if not isinstance(table, WindowedTable):
                view.watchers = self._watchers(table)
            view.shared = table in self._shared
        return views

    def _view(self, table: Table[Any, Any], instance: Instance[Any]) -> TableView:
        assert self.state is not None, "asked only then"
        operator = self.operators.get(table)
        if operator is None:
            return self.state.view(table, instance)
        assert isinstance(table, WindowedTable), "others have no operator"
        layout, buffer = self.state.layout(table), self.state.windows(table)
        place = (instance, self.partition, self._partitions, operator)
        if operator.by_name:
            return WindowedView(table, layout, buffer, *place)
        if isinstance(buffer, PanedBuffer):
            return PanedView(table, layout, buffer, *place)
        assert isinstance(buffer, StripedBuffer), "there are no others"
        return StripedView(table, layout, buffer, *place)

    def _operator(self, table: WindowedTable[Any, Any]) -> Operator:
        """Return what keeps a windowed table's time, and hands out what comes out of it."""
        assert self.state is not None and self.gate is not None, "a task with tables has both by now"
        writers = [crew for crew in self.crews if table in crew.agent.used]
        contended = len(writers) > 1 or any(isinstance(crew, Pool) for crew in writers)
        readers = [
            Reader(crew, Emitted(source.topic, self.partition, self.gate), source)
            for crew in self.crews
            for source in crew.agent.emissions
            if source.table is table
        ]
        operator = Operator(
            table,
            self.state.layout(table),
            self.state.windows(table),
            readers,
            self.gate,
            contended,
            WindowNumbers(self._metrics, self._settings, self.name, table.name),
            None if self._settings.max_ahead is None else self._latest,
            self._all_again(writers),
        )
        if contended:
            for crew in writers:
                crew.timed.append(operator)
        return operator

    def _all_again(self, writers: Sequence[Crew]) -> Callable[[], bool]:
        """Return what says whether some crews have done all that they had begun before a restart."""
        ledgers = [source.ledger_of(crew.agent.name) for source in self.sources.values() for crew in writers]
        begun = [(ledger, ledger.high_done + 1) for ledger in ledgers if ledger is not None]
        return lambda: all((ledger.base or 0) >= known_to for ledger, known_to in begun)

    def _latest(self) -> int:
        """Return the latest time, in ms, that is taken for one."""
        ahead = self._settings.max_ahead
        assert ahead is not None, "asked only then"
        return self._place.now() + ahead // timedelta(milliseconds=1)

    def _times(self, crew: Crew) -> list[int]:
        """How far the events had come, by their timestamps, that an agent has begun before a restart."""
        # Those whose children it reads are other agents' events.
        readers = self.crews if crew.agent.watched else [crew]
        ledgers = [source.ledger_of(reader.agent.name) for source in self.sources.values() for reader in readers]
        return [time for ledger in ledgers if ledger is not None and (time := ledger.stream_time) is not None]

    def _watchers(self, table: Table[Any, Any]) -> list[tuple[Children, Callable[[Origin], Origin]]]:
        """Who reads a table's changes, and what makes the origin of a change of its event's."""
        if self.gate is None:
            return []
        gate, topic = self.gate, table.changes().topic

        def origin(parent: Origin) -> Origin:
            gate.born(1)
            return Descent(topic, parent, gate)

        return [(crew, origin) for crew in self.crews if table in crew.agent.watched]

    def _is_quiet(self) -> bool:
        """Is every source known to be read to its end, and nothing under way, put off or held back?"""
        return (
            all(source.caught_up and not source.buffer and source.poison is None for source in self.sources.values())
            and not any(source.ledger.unfinished for source in self.sources.values())
            and not any(crew.pending or crew.parked for crew in self.crews)
            and not self._closing
        )

    def _moved_on(self, time: int) -> None:
        """A quiet table's time has moved."""
        self.clock.skip(time)
        self._place.dirty()
        self._progress()

    def close_idle(self) -> bool:
        """The input is used up: let what quiet would close be closed now; return whether there was anything."""
        return self._quiet is not None and self._quiet.close_now()

    def _look_again(self) -> None:
        for crew in self.crews:
            crew.wake()

    def _base_of(self, topic: str, partition: int) -> int | None:
        source = self.sources.get(TopicPartition(topic, partition))
        return None if source is None else source.ledger.base

    def hindrance(self, tp: TopicPartition) -> Hindrance | None:
        """Return the event that a source's commit position waits for; None where there is none."""
        source = self.sources.get(tp)
        offset = None if source is None else source.ledger.base
        if source is None or offset is None:
            return None
        crews = [
            crew
            for crew in self._readers[tp.topic]
            if (ledger := source.ledger_of(crew.agent.name)) is not None and ledger.awaits(offset)
        ]
        for crew in (*crews, *(other for other in self.crews if other.agent.watched)):
            hindrance = crew.hindrance(tp, offset)
            if hindrance is not None:
                return hindrance
        return Hindrance(crews[0].agent.name, None, "waiting") if crews else None

    @property
    def clock(self) -> Clock:
        """The task's stream time, held back by what is in flight."""
        return self._place.clock

    @property
    def _runs(self) -> list[asyncio.Task[None]]:
        return [run for crew in self.crews for run in crew.runs]

    # -- events -------------------------------------------------------------------------------

    def add_source(self, source: SourcePartition) -> None:
        """A partition has come to this task."""
        self.sources[source.tp] = source
        # Ties between equal timestamps go by topic and partition, whatever the order of arrival.
        self.sources = dict(sorted(self.sources.items()))

    def heard(self) -> None:
        """Records have come."""
        if self._quiet is not None:
            self._quiet.heard()

    def feed(self) -> None:
        """Hand over all events that may be chosen now."""
        if self._closing or not self.started or (self.gate is not None and self.gate.closed):
            return
        if len(self.sources) == 1:
            (source,) = self.sources.values()
            if source.buffer:
                self._hand_over(source.tp.topic, source.buffer)
                source.buffer.clear()
        else:
            self._merge()
        self._meet_poison()

    def _merge(self) -> None:
        sources = list(self.sources.values())
        heads = [self._head(source) for source in sources]
        runs: list[tuple[str, list[Event]]] = []
        while not isinstance(chosen := choose(heads, self._waited(), self._max_idle), Wait):
            source = sources[chosen]
            event = source.buffer.popleft()
            if runs and runs[-1][0] == source.tp.topic:
                runs[-1][1].append(event)
            else:
                runs.append((source.tp.topic, [event]))
            heads[chosen] = self._head(source)
            if all(head.timestamp is not None for head in heads):
                self._idle_since = None
        self._await_idle(chosen)
        for topic, events in runs:
            self._hand_over(topic, events)

    @staticmethod
    def _head(source: SourcePartition) -> Head:
        return Head(source.buffer[0].timestamp if source.buffer else None, source.caught_up)

    def _waited(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since

    def _await_idle(self, wait: Wait) -> None:
        """Look again when `max_idle` has passed, if that is all that holds events back."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not any(source.buffer for source in self.sources.values()):
            self._idle_since = None
        elif wait.idle and self._max_idle is not None and self._idle_since is not None:
            self._alarm = asyncio.get_running_loop().call_at(self._idle_since + self._max_idle, self.feed)

    def _hand_over(self, topic: str, events: Sequence[Event]) -> None:
        source: SourcePartition = events[0].origin
        shares = source.share_out(events)
        for crew in self._readers[topic]:
            crew.put(shares[crew.agent.name])

    def _meet_poison(self) -> None:
        """Stop for a record that can't be decoded, once all before it is done."""
        for source in self.sources.values():
            if source.poison is not None and not source.buffer and not any(crew.pending for crew in self.crews):
                self._fail(source.poison)

    def drained(self, crew: Crew) -> None:
        """A crew has run out of events."""
        self._moved.set()
        self._count(crew)
        if any(source.poison for source in self.sources.values()):
            self._meet_poison()
        self._progress()

    def _count(self, crew: Crew) -> None:
        done, sent = crew.done(), crew.sent
        before_done, before_sent = self._counted[crew]
        self._counted[crew] = done, sent
        self._metrics.counter("events_done", agent=crew.agent.name).add(done - before_done)
        self._metrics.counter("events_out", agent=crew.agent.name).add(sent - before_sent)

    def count(self) -> None:
        """Bring the metrics up to date."""
        for crew in self.crews:
            self._count(crew)

    def sweep(self) -> None:
        """Delete rows that have expired for all agents that can see them; some at a time."""
        if self.state is None or not self.started:
            return
        for table in self.tables:
            if table.ttl is not None:
                clocks = [crew.clock for crew in self.crews if table in crew.views and crew.clock != NEVER]
                if clocks:
                    self.state.sweep(table, min(clocks))

    # -- agents -------------------------------------------------------------------------------

    def flush(self) -> None:
        """A commit is near: let what waits to be merged come out."""
        for operator in self.operators.values():
            operator.flush()

    def shut(self) -> None:
        """Let no further event of a source begin, where one may have children."""
        if self.gate is not None:
            self.gate.close()

    async def quiet(self) -> None:
        """Return when no child of an event is under way, or nobody is there to finish one."""
        if self.gate is not None:
            await self.gate.quiet()

    @property
    def ended(self) -> bool:
        """Is nobody there to finish children of events?"""
        return self.gate is not None and self.gate.ended

    def go_on(self) -> None:
        """Events of sources may begin again."""
        if self.gate is not None and self.gate.closed:
            self.gate.open()
            self.feed()

    @property
    def torn(self) -> bool:
        """Are there children of events that are not done, while the events' own effects are out?"""
        return self.gate is not None and self.gate.children > 0

    async def close(self, deadline: float) -> bool:
        """End the agents; what they work on may finish until `deadline` by the loop's clock.

        Returns:
            Whether all ended by themselves. Of one that did not, nothing is applied.
        """
        if self._closing:
            return True  # what did not end the first time will not, and has been told of
        if self.gate is not None and self.started:
            await self._drain(deadline)
        self._closing = True
        if self._quiet is not None:
            self._quiet.end()
        if self._alarm is not None:
            self._alarm.cancel()
        for crew in self.crews:
            crew.close()
        runs = [run for crew in self.crews for run in crew.lasting if not run.done()]
        if runs:
            await asyncio.wait(runs, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        late = [run for run in runs if not run.done()]
        await self.cancel()
        self.count()
        return not late

    async def _drain(self, deadline: float) -> None:
        """Let events under way be finished, and their children, before the agents that read these end."""
        assert self.gate is not None, "only where there may be children"
        self.gate.close()
        for crew in self.crews:
            crew.drop_roots()
        loop = asyncio.get_running_loop()
        while any(crew.pending for crew in self.crews) and any(not run.done() for run in self._runs):
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), deadline - loop.time())
            except TimeoutError:
                return

    async def cancel(self) -> None:
        """End the agents at once; what they work on is left to the next owner."""
        self._closing = True
        if self._quiet is not None:
            self._quiet.end()
        if self._alarm is not None:
            self._alarm.cancel()
        runs = [run for run in self._runs if not run.done()]
        for crew in self.crews:
            crew.close()
        for run in runs:
            run.cancel()
        if runs:
            await asyncio.wait(runs, timeout=CANCEL_TIMEOUT)
        stuck = Counter(run.get_name() for run in runs if not run.done())
        for name, number in stuck.items():
            instances = "" if number == 1 else f" ({number} instances)"
            log.warning("does not end although it was cancelled: %s%s", name, instances)
        for crew in self.crews:
            crew.abandon()
        if self.gate is not None:
            self.gate.over()

    async def release(self) -> None:
        """Let go of the task's state; its agents have ended, and what is committed is written."""
        self._closing = True
        async with self._opening:
            if self.state is not None:
                await self.state.close()


#: Seconds that a cancelled agent has to end; one that swallows its cancellation must not hold up a rebalance.
CANCEL_TIMEOUT = 2.0


def _most(agent: Agent, agents: Sequence[Agent]) -> int:
    """Return how many events a concurrent agent may have unfinished, of each partition that it reads."""
    most = []
    for topic in agent.topics:
        readers = [other for other in agents if topic in other.topics]
        most.append(most_in_flight(len(readers), sum(not other.serial for other in readers)))
    return max(1, min(most, default=MAX_UNFINISHED))
