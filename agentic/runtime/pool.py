"""A crew of several: an agent that works on many events at once, and tries again what fails.

The pool keeps the stations; its lanes, each an instance of the agent's function, come to it for
the next event when they are done with one. Nothing here waits: a lane that finds no event
rests until it is called, and one that never waits itself works off all there is in one turn of
the loop. So an agent whose calls return at once pays for no switches; nor, where nothing forbids, for
stations: an event gets one only when its lane waits with it, for until then nobody else can look.

All of it is touched by one loop. A lane whose attempt was ended from outside (a time-out, a
partition that moved on) is *void*: its events have left its hands, and it can do nothing any more.

Source: spec, B7; rules 8 to 24.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from agentic.agent import Agent
from agentic.brokers.base import TopicPartition
from agentic.core.ledger import MAX_SPAN
from agentic.core.stations import State, Station
from agentic.errors import AgentFailed, AgenticError, AttemptTimeout, words
from agentic.execution import INLINE, MOST_IN_FLIGHT
from agentic.runtime.crew import Place, at
from agentic.runtime.deferrals import Deferrals, Parked
from agentic.runtime.gate import Inward
from agentic.runtime.instance import ApplyFailed, Outdated
from agentic.runtime.lane import JOINED, Lane, watched
from agentic.runtime.stationed import Stationed
from agentic.runtime.tables import OwnRows
from agentic.runtime.threads import ThreadLane
from agentic.runtime.watch import Hindrance
from agentic.stream import Event
from agentic.table import Table

log = logging.getLogger("agentic.worker")

#: Stations of one pool, at least: events that may wait behind their keys while others overtake them.
LEAST_STATIONS = 256
#: Events of one key that may wait in stations; the next one stays in the partition, with all that follow.
PER_KEY = 64
#: Completed events after which others are told that there is room.
TELL = 64
#: Events after which the span of what is unfinished is looked at.
LOOK_AT_SPAN = 256
#: An event of a span that is at most this much below the limit may still begin.
NEAR_MAX_SPAN = MAX_SPAN - (1 << 12)


class Pool(Stationed):
    """See `agentic.runtime.crew.Crew`, and `Stationed` for what becomes of events."""

    def __init__(self, agent: Agent, place: Place, most: int = MOST_IN_FLIGHT) -> None:
        """Make a pool.

        Args:
            most: events that may be unfinished beyond a commit position; what a commit has room for.
        """
        execution = agent.execution
        self._most = min(most, max(LEAST_STATIONS, 2 * execution.in_flight))
        super().__init__(agent, place, self._most)
        self._timeout = execution.timeout
        self._patience = min(execution.pin_limit, inf if execution.timeout is None else execution.timeout)
        self._predicates = {source.topic.name: source.predicates for source in agent.sources if source.predicates}
        #: Does anything in the task go by its clock?
        self._keeps_time = place.timed
        #: One event's way has nothing on it that most agents do without: see `_begin_swiftly`.
        self._swift = (
            not self._in_order
            and self._by_key
            and self._adaptive is None
            and self._brakes is None
            and execution.max_in_flight_bytes is None
            and agent.deferred is None
            and not self._predicates
            and not self._keeps_time
            and place.gate is None
        )
        #: Has the lane that runs just now an event in hand that has no station?
        self._bare = False
        self._time = self._loop.time
        #: See `Place`.
        self.holding = place.holding
        self._inbox: deque[Event] = deque()
        self._children: deque[Event] = deque()
        self._lanes: dict[Lane[Any], asyncio.Task[None]] = {}
        self._idle: list[Lane[Any]] = []
        #: Void lanes that have not ended yet.
        self._void: dict[Lane[Any], asyncio.Task[None]] = {}
        self._sent_by_ended = 0
        self._issued = 0
        self._completed = 0
        self._started = False
        #: Is a lane on its way to look for an event?
        self._calling = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._filtered = place.metrics.counter("dropped", reason="filtered")

    # -- what the task does -------------------------------------------------------------------

    def start(self, time: int) -> None:
        place = self.place
        self._equip(self._applier, own=False)
        if self.agent.deferred is not None:
            view = self._applier.views[self.agent.deferred]
            clocks = [place.clock, *(operator.clock for operator in self.timed if operator.clock is not None)]
            self.deferrals = Deferrals(view, self.agent, place.task, clocks, place.base_of)
        self._started = True
        self._look()

    def put(self, events: Iterable[Event]) -> None:
        before = len(self._inbox)
        self._inbox.extend(events)
        self.handed += len(self._inbox) - before
        self._call()

    def put_child(self, event: Event) -> None:
        self.handed += 1
        self._children.append(event)
        self._call()

    def put_children(self, events: Sequence[Event]) -> None:
        self.handed += len(events)
        self._children.extend(events)
        self._call()

    def wake(self) -> None:
        self._look()

    def drop_roots(self) -> None:
        self.leave(self._drop_roots)

    def _drop_roots(self) -> None:
        self._inbox.clear()
        self._abandon(lambda station: station.state is not State.EXECUTING and not _is_child(station.event))

    def close(self) -> None:
        self.closing = True
        self.leave(self._drop_waiting)
        for lane in list(self._lanes):
            lane.closing = True
            if lane.waiter is not None and not lane.waiter.done():
                lane.waiter.set_result(None)
        # The alarm stands: what is under way may finish, and has no more time for it than ever.

    def _drop_waiting(self) -> None:
        self._inbox.clear()
        self._children.clear()
        self._abandon(lambda station: station.state is not State.EXECUTING)

    def abandon(self) -> None:
        self.leave(lambda: self._abandon(lambda station: True))
        self._disarm()
        for lane in (*self._lanes, *self._void):
            lane.closing = True
            lane.abandon()

    @property
    def runs(self) -> list[asyncio.Task[None]]:
        return [*self._lanes.values(), *self._void.values()]

    @property
    def lasting(self) -> list[asyncio.Task[None]]:
        return list(self._lanes.values())

    @property
    def pending(self) -> int:
        return len(self._inbox) + len(self._children) + len(self.stations) + self._bare

    @property
    def parked(self) -> int:
        return 0 if self.deferrals is None else self.deferrals.parked

    @property
    def sent(self) -> int:
        return self._sent_by_ended + self._applier.sent + sum(lane.sent for lane in self._lanes)

    @property
    def clock(self) -> int:
        return self.place.clock.now

    @property
    def views(self) -> Iterable[Table[Any, Any]]:
        return self.agent.tables

    def hindrance(self, tp: TopicPartition, offset: int) -> Hindrance | None:
        for station in self.stations:
            event = station.event
            plain = not isinstance(event.origin, Parked | Inward)
            if plain and (event.topic, event.partition, event.offset) == (*tp, offset):
                failure = "" if station.failure is None else words(station.failure)
                return Hindrance(self.agent.name, event.key, station.state.value, max(1, station.attempt), failure)
        return None

    # -- lanes --------------------------------------------------------------------------------

    def _make_lane(self) -> Lane[Any]:
        place = self.place
        kind: type[Lane[Any]] = ThreadLane if self._execution.threads else Lane
        lane = kind(self.agent, place.outbox, place.metrics, place.ask_commit, self._policy, self)
        lane.answers = self.answers
        return lane

    def _equip(self, lane: Lane[Any], *, own: bool) -> None:
        """Give a lane its views of the tables."""
        tables = self.agent.tables
        if not tables:
            return
        lane.views = self.place.views(lane)
        # Two events of one key may be at work where what a table gives comes beside topics; and by partition,
        # where there are several of these.
        inputs, topics = len(self.agent.inputs), len(self.agent.topics)
        mixed = 0 < topics < inputs or (inputs > 1 and self._execution.order == "partition")
        lane.shares_tables = mixed or bool(self.place.shared.intersection(self.agent.used))
        for view in lane.views.values():
            view.shared = view.shared or mixed
            if own and self._execution.concurrent and self._execution.order != "partition":
                view.overlay = OwnRows(view, lane, self._execution.order)

    def _call(self) -> None:
        """Let a lane come and look for an event, unless one is on its way."""
        if self._calling or self._failed or self.closing:
            return
        while self._idle:
            lane = self._idle.pop()
            assert lane.waiter is not None, "it rests"
            # One that was cancelled in its rest has only not left yet.
            if not lane.waiter.done():
                self._calling = True
                lane.waiter.set_result(None)
                return
        if len(self._lanes) < self.limit and self._started:
            self._calling = True
            self._spawn()

    def _spawn(self) -> None:
        lane = self._make_lane()
        self._equip(lane, own=True)
        name = f"agent {self.agent.name} of task {self.place.task}"
        self._lanes[lane] = run = asyncio.create_task(self._run(lane), name=name)
        run.add_done_callback(lambda run: self._ended(lane, run))

    def _ended(self, lane: Lane[Any], run: asyncio.Task[None]) -> None:
        failure = self.broken(run, lane.current())
        if self._lanes.pop(lane, None) is not None:
            self._sent_by_ended += lane.sent
            if failure is not None:
                self._stop(failure)
        self._void.pop(lane, None)
        self.place.drained(self)

    async def rest(self, lane: Lane[Any], until: float | None = None) -> None:
        """Return when the lane is called, when it is to end, or at `until` by the loop's clock."""
        lane.waiter = waiter = self._loop.create_future()
        alarm = None if until is None else self._loop.call_at(until, self._rouse, lane)
        self._idle.append(lane)
        if not self._inbox:
            self.place.drained(self)
        comes = False
        try:
            await waiter
            comes = True
        finally:
            lane.waiter = None
            if alarm is not None:
                alarm.cancel()
            if lane in self._idle:
                self._idle.remove(lane)
            elif not waiter.cancelled():
                self._calling = False
                if not comes:
                    # It was called, and was cancelled on its way: another one has to come.
                    self._call()

    def _rouse(self, lane: Lane[Any]) -> None:
        if lane.waiter is not None and not lane.waiter.done():
            self._idle.remove(lane)
            self._calling = True
            lane.waiter.set_result(None)

    async def _run(self, lane: Lane[Any]) -> None:
        """Run one instance, anew after each event of it that failed."""
        self._calling = False
        place, name = self.place, self.agent.name
        while True:
            try:
                await (watched(lane, self.settle) if self._swift else lane.run())
                if not lane.closing:
                    self._stop(self.ended_early(at(lane.current())))
                return
            except asyncio.CancelledError:
                run = asyncio.current_task()
                if lane.closing or self.closing:
                    raise
                if run is not None and run.cancelling():
                    # The whole loop is being ended.
                    self._failed = True
                    self._disarm()
                    raise
                # Its own failure, as any that it raises; not the worker's end.
                self._meet(lane, AgenticError("what it awaited was cancelled"))
            except Outdated as error:
                log.debug("done again, what it had read was written meanwhile: %s", error)
                self._again(lane.let_go())
                place.metrics.counter("redone", agent=name).add()
            except ApplyFailed as error:
                self._stop(error)
                return
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything; the policy says what then
                if lane in self._void or (lane.closing and not lane.stations):
                    log.info("agent %r: came back after its event was taken from it: %s", name, words(error))
                    return
                self._meet(lane, error)
            if self._failed:
                return
            self._call()

    def _stop(self, failure: AgenticError) -> None:
        self._failed = True
        self._disarm()
        self.place.fail(failure)

    # -- an event begins ----------------------------------------------------------------------

    def begin(self, lane: Lane[Any]) -> bool:
        """Give a lane the next event that may begin; return whether there was one."""
        stations = self.stations
        if self._failed or lane.closing:
            return False
        now = self._time()
        # What is ready goes first: those that wait behind it may have no place until it is done.
        if self._swift and self._inbox and not lane.stations and not stations.ready:
            return self._begin_swiftly(lane, now)
        gate = self.place.gate
        passable = gate is None or gate.passable
        if not (stations.ready if passable else self._ready_children()) and not self._issue(now, passable):
            return False
        if not self._may_execute(now):
            return False
        station = stations.begin(now, None if passable else _is_child)
        assert station is not None, "one is ready"
        self._hand(lane, station, now)
        if not self._calling and (stations.ready or self._inbox or self._children):
            self._call()
        return True

    def _begin_swiftly(self, lane: Lane[Any], now: float) -> bool:
        """The same for the plain agent, of which no station is ready, from the inbox in few steps."""
        stations, inbox = self.stations, self._inbox
        while inbox and len(stations.live) < self._most:
            event = inbox[0]
            free = stations.free(event.raw_key)
            self._issued += 1
            if self._issued % LOOK_AT_SPAN == 0 and self._span_full(event):
                self._issued -= 1
                return False
            del inbox[0]
            if not free:
                stations.issue(event, event.raw_key, event.origin, now)
                continue
            # It is the lane's only event, and has no station.
            lane.begun_at = now
            lane.working_on = event
            if lane.answers is not None:
                lane.meet(lane.answers, event)
            if lane.waited or not lane.running:
                # As likely as not it waits with this one, too; or it has had a task of its own come for it.
                lane.waited = False
                self.settle(lane)
            else:
                self._bare = True
            return True
        return False

    def settle(self, lane: Lane[Any]) -> None:
        """Give a station to the event that a lane has in hand without one, since the lane waits, or has raised.

        Until then nobody else has had a turn since the event began.
        """
        event = lane.working_on
        assert event is not None, "asked only then"
        now = lane.begun_at
        station = self.stations.enter(event, event.raw_key, event.origin, now)
        assert station.state is State.EXECUTING, "its key was free, and nobody else has begun one since"
        self._bare = False
        station.holder = lane
        lane.stations.append(station)
        if now + self._patience < self._alarm_at:
            self._arm(now + self._patience)
        if self._inbox and not self._calling and (self._idle or len(self._lanes) < self.limit):
            self._call()

    def _may_execute(self, now: float) -> bool:
        """May one more event begin, as far as numbers go? It has to, then: the brakes have counted it."""
        if self._adaptive is not None and len(self.stations.executing) >= self.limit:
            # Otherwise there are no more lanes than events may be worked on at once.
            self._adaptive.saturated()
            return False
        most = self._execution.max_in_flight_bytes
        if most is not None and self._bytes >= most:
            return False
        return self._brakes is None or self._released(now)

    def begin_another(self, lane: Lane[Any]) -> bool:
        """Give a lane one more event, to be complete with those it has; return whether there was one."""
        now = self._loop.time()
        for station in reversed(lane.stations):
            while station.successor is None and self._inbox and self._by_key and self._next_is_of(station):
                self._issue_next(self._inbox.popleft(), now)
            successor = station.successor
            if successor is not None and successor.state is State.QUEUED:
                if self.deferrals is not None and self._belongs_behind(successor.event):
                    continue
                if not self._may_execute(now):
                    return False
                successor = self.stations.follow(station, now)
                assert successor is not None, "it is queued"
                self._hand(lane, successor, now)
                return True
        return self.begin(lane)

    def begin_list(self, stations: Iterable[Station[Event]]) -> None:
        """The time of the attempts on a list begins when that is handed over."""
        now = self._loop.time()
        for station in stations:
            station.started_at = now
        if now + self._patience < self._alarm_at:
            self._arm(now + self._patience)

    def _next_is_of(self, station: Station[Event]) -> bool:
        return len(self.stations) < self._most and self._lane_of(self._inbox[0]) == station.lane

    def _hand(self, lane: Lane[Any], station: Station[Event], now: float) -> None:
        if self._execution.max_in_flight_bytes is not None:
            self._bytes += len(station.event.raw_value or b"")
        station.holder = lane
        lane.hold(station)
        if self._keeps_time:
            lane.clock = self.place.clock.now
        if now + self._patience < self._alarm_at:
            self._arm(now + self._patience)

    def _ready_children(self) -> bool:
        return any(_is_child(each.event) for each in self.stations.live if each.state is State.READY)

    def _released(self, now: float) -> bool:
        """Do the brakes let an event begin?"""
        assert self._brakes is not None, "asked only then"
        circuit, rate = self._brakes.circuit, self._brakes.rate
        if rate is not None and (next_at := rate.next_at(now)) > now:
            self._arm(next_at)
            return False
        if circuit is not None and not circuit.may_start(now):
            starts_at = circuit.starts_at()
            self._arm(now + 1.0 if starts_at is None else max(now, starts_at))
            return False
        if rate is not None:
            rate.take(now)
        return True

    def _issue(self, now: float, passable: bool) -> bool:
        """Give stations to events that wait, in order, until one of them is ready; return whether one is."""
        while self._children:
            # A parent waits for them: they have a station whatever the others have.
            if self._issue_next(self._children.popleft(), now):
                return True
        if not passable:
            return False
        stations, inbox = self.stations, self._inbox
        if self.deferrals is not None and self._issue_due(now):
            return True
        while inbox and len(stations.live) < self._most:
            if (self._issued + 1) % LOOK_AT_SPAN == 0 and self._span_full(inbox[0]):
                return False
            if self.deferrals is not None and not self._has_place(inbox[0]):
                return False
            if self._issue_next(inbox.popleft(), now):
                return True
        return False

    def _issue_due(self, now: float) -> bool:
        """Give stations to events that were put off and are due, until one of them is ready; return whether one is."""
        assert self.deferrals is not None, "asked only then"
        if self.deferrals.awaits:
            self.deferrals.look_at_bases()
        while len(self.stations.live) < self._most:
            try:
                event = self.deferrals.pop(self.place.now())
            except AgenticError as error:
                self._stop(error)
                return False
            if event is None:
                self._arm_for_due(now)
                return False
            self.handed += 1
            if self._issue_next(event, now):
                return True
        return False

    def _arm_for_due(self, now: float) -> None:
        """Look round when the next event that was put off is due."""
        if self.deferrals is not None and (due_at := self.deferrals.due_at) is not None:
            # The wall clock tells milliseconds: a part of one is waited for as a whole.
            self._arm(now + max(0.001, (due_at - self.place.now()) / 1000))

    def _span_full(self, event: Event) -> bool:
        """Would an event, once done, be too far from the commit position for a commit to tell of it?"""
        base = event.origin.ledger_base
        return base is not None and event.offset - base > NEAR_MAX_SPAN

    def _has_place(self, event: Event) -> bool:
        """If it has to wait in the table, is there room for one more of its key?"""
        assert self.deferrals is not None, "asked only then"
        return event.raw_key is None or self.deferrals.has_room(event.raw_key)

    def _lane_of(self, event: Event) -> Any:
        if self._by_key:
            # Children have an order of their own: a parent may stand behind another event of their key.
            return event.raw_key if not _is_child(event) else ("child", event.raw_key)
        return (event.topic, event.partition) if self._execution.order == "partition" else None

    def _issue_next(self, event: Event, now: float) -> bool:
        """Give an event a station; return whether it is ready."""
        self._issued += 1
        if self._predicates and not self._passes(event, now):
            return False
        key = event.raw_key
        if self.deferrals is not None and key is not None:
            plain = not isinstance(event.origin, Parked | Inward)
            if plain and self.deferrals.has(event):
                # At least once: its row was committed, and its offset was not.
                event.origin.retire(event.offset)
                return False
            if plain and self._waits_in_table(event, key):
                self._park(event)
                return False
            if plain and self._depth is not None:
                if self._depth[key] >= PER_KEY:
                    self._park(event)
                    return False
                self._depth[key] += 1
        lane = self._lane_of(event)
        station = self.stations.issue(event, lane, event.origin, now)
        if event.origin.__class__ is not Parked:
            if self._keeps_time:
                station.hold = [self.place.clock.issue(event.timestamp, station)]
                station.hold += [operator.hold(station) for operator in self.timed]
        else:
            station.failures = event.origin.failures
            station.first_started_at = self._first_started(event.origin, now)
        return station.state is State.READY

    def _first_started(self, origin: Parked, now: float) -> float | None:
        """Return when the first attempt on an event that was put off began, by the loop's clock."""
        since = origin.row.since
        return None if not since else now - max(0, self.place.now() - since) / 1000

    def _passes(self, event: Event, now: float) -> bool:
        """Do the predicates of its source let an event through? One that does not pass is complete."""
        predicates = self._predicates.get(event.origin.topic.name, ())
        try:
            if all(predicate(event.value) for predicate in predicates):
                return True
        except Exception as error:  # noqa: BLE001 - a user's predicate may raise anything; the event failed by it
            self._refused(event, error, now)
            return False
        if self.answers is not None:
            replies = self.answers.unanswered(event)
            for reply in replies:
                self.place.outbox.send(*reply)
            if self.answers.pressing(replies):
                self.place.ask_commit()
        event.origin.retire(event.offset)
        self._filtered.add()
        return False

    # -- an event is done ---------------------------------------------------------------------

    async def held(self, lane: Lane[Any]) -> None:
        """Return when a test lets what the lane has done be complete; at once where none holds it."""
        holding = self.holding.get(self.agent.name)
        if holding is not None and lane.working_on is not None:
            await holding.wait(lane.current())

    def complete(self, lane: Lane[Any]) -> None:
        """The agent asks for its next event: the ones it has are done.

        Raises:
            Outdated, AgenticError: an effect was refused, or is to be made anew; the events are still the lane's.
        """
        self._completed += 1
        if self._completed % TELL == 0:
            self.place.drained(self)
        stations = lane.stations
        if not stations:
            lane.complete()
            self._bare = False
            return
        if self._swift and len(stations) == 1:
            lane.complete()
            self.stations.over(stations[0], stations[0].attempt)
            stations.clear()
            return
        if lane.putting is not None:
            putting = lane.putting
            lane.let_go()
            self._undecided(stations)
            for station in stations:
                self._free(station)
            self._put_off(stations, putting)
            return
        if self._in_order:
            notes = lane.detach()
            lane.let_go()
            for station in stations:
                station.work = JOINED
            # What comes before the first of them can't stand behind any of them.
            first = min(stations, key=lambda station: station.number)
            first.work = notes._replace(joined=stations)
            self._finished(stations)
            if any(station.state is State.ABANDONED for station in stations):
                self._abandon(lambda station: station in stations)
            else:
                self._apply_in_turn(first)
            return
        lane.complete()
        lane.stations = []
        self._finished(stations)
        for station in stations:
            self._retire(station)

    # -- an event failed ----------------------------------------------------------------------

    def _meet(self, lane: Lane[Any], error: BaseException) -> None:
        """An instance raised."""
        failure = AgentFailed(f"agent {self.agent.name!r} failed{at(lane.current())}: {words(error)}")
        failure.__cause__ = error
        if not lane.stations:
            # Outside of its loop there is no event that could be blamed.
            self._stop(failure)
            return
        self._judge(lane.let_go(), error, failure)

    def put_back(self, lane: Lane[Any]) -> None:
        """A lane has events in hand that nobody has worked on: they wait again."""
        self._again(lane.let_go())
        self._call()

    def _expire(self, station: Station[Event], error: AgenticError) -> None:
        """End an attempt from outside: its token is void, whatever its instance still does."""
        lane: Lane[Any] = station.holder
        run = self._lanes.pop(lane)
        self._sent_by_ended += lane.sent
        lane.closing = True
        stations = lane.let_go()
        self._void[lane] = run
        run.cancel()
        if len(self._void) > 2 * self.limit + 8:
            self._stop(
                AgentFailed(
                    f"agent {self.agent.name!r}: {len(self._void)} of its instances do not end although they were "
                    "cancelled after their time-out; let asyncio.CancelledError pass, and give blocking calls a "
                    "time-out of their own"
                )
            )
            return
        failure = AgentFailed(f"agent {self.agent.name!r} failed{at([station.event])}: {error}")
        self._judge(stations, error, failure)

    # -- time ---------------------------------------------------------------------------------

    def _arm(self, when: float) -> None:
        """Look round at `when` by the loop's clock, or earlier."""
        if when >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = self._loop.call_at(when, self._look)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        self._alarm_at = inf

    def _look(self) -> None:
        """See what has become due: time-outs, events that back off, are put off, or keep the commit back."""
        self._disarm()
        if self._failed or not self._started:
            return
        if self.closing and any(run.cancelling() for run in self._lanes.values()):
            return  # all are being ended, and nothing of theirs counts
        now = self._loop.time()
        self._end_late(now)
        self._unpin(now)
        if self._failed or self.closing:
            return
        self.stations.wake(now)
        if (due_at := self.stations.due_at) is not None:
            self._arm(due_at)
        if self.deferrals is not None and not self.deferrals.is_due(self.place.now()):
            self._arm_for_due(now)
        self._call()

    def _end_late(self, now: float) -> None:
        """End attempts that take too long."""
        if self._timeout is None:
            return
        late = [
            station
            for station in self.stations.executing
            if now >= station.started_at + self._timeout and not _is_gathered(station)
        ]
        for station in late:
            if station.state is State.EXECUTING and station.holder is not None:
                self._expire(station, AttemptTimeout(f"not done within {self._timeout:g} s"))
                if self._failed:
                    return
        begun = [station.started_at for station in self.stations.executing if not _is_gathered(station)]
        if begun:
            self._arm(min(begun) + self._timeout)

    def _unpin(self, now: float) -> None:
        """Let nothing that has begun keep the commit position back for longer than the pin limit."""
        limit = self._execution.pin_limit
        if self._brakes is not None and self._brakes.circuit is not None and self._brakes.circuit.state != "closed":
            # What nobody can be done with is not given up for that: it waits, and the watch says so.
            self._arm(now + INLINE)
            return
        for station in self.stations:
            parked = station.event.origin.__class__ is Parked
            since = station.started_at if parked and station.attempt else station.first_started_at
            if since is None:
                continue
            if now < since + limit:
                self._arm(since + limit)
                continue
            if station.state is State.EXECUTING and station.holder is not None:
                self._expire(station, AttemptTimeout(f"it has kept the commit position back for {limit:g} s"))
            if station.state is State.BACKOFF:
                self._pinned(station)
            if self._failed:
                return


def _is_gathered(station: Station[Event]) -> bool:
    """Is it in a list that waits for more events, so that nobody works on it?"""
    return station.holder is not None and station.holder.gathering


def _is_child(event: Event) -> bool:
    return isinstance(event.origin, Inward)
