"""What becomes of the events of a crew with stations: complete, tried again, put off, or given up.

Source: spec, B7.5 to B7.8; rules 13 to 22.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentic.agent import Agent
from agentic.core.adaptive import Adaptive
from agentic.core.retry import Retry, Verdict, judge
from agentic.core.stations import State, Station, Stations
from agentic.core.times import seconds
from agentic.errors import AgentFailed, AgenticError, AttemptTimeout, words
from agentic.execution import INLINE
from agentic.runtime.crew import Crew, Place, at
from agentic.runtime.deferrals import Deferrals, Parked
from agentic.runtime.gate import Inward
from agentic.runtime.instance import ApplyFailed, Outdated
from agentic.runtime.lane import JOINED, NOTHING, Lane, Notes, Putting
from agentic.runtime.letters import Policy
from agentic.stream import Event

log = logging.getLogger("agentic.worker")

#: What fails by this fails for good.
ONCE = Retry(attempts=1)


class Stationed(Crew):
    """A crew whose events have stations. How they come to be worked on others say.

    Attributes:
        stations: the events that are in flight.
        limit: how many may execute at once, by now.
        deferrals: the events that were put off; None where the agent puts none off.
    """

    def __init__(self, agent: Agent, place: Place, most: int) -> None:
        super().__init__(agent, place)
        execution = agent.execution
        self._execution = execution
        self._policy = Policy(agent, place.settings)
        self._in_order = execution.emit == "offset"
        self.stations: Stations[Event] = Stations(in_order=self._in_order)
        self._adaptive = Adaptive(most=most) if execution.concurrency == "auto" else None
        self.limit = min(execution.in_flight, most) if self._adaptive is None else self._adaptive.limit
        self.deferrals: Deferrals | None = None
        self._by_key = execution.order == "key"
        #: Where a key with many events has some of them parked: how many it has in stations.
        self._depth: Counter[bytes] | None = Counter() if execution.hot_key == "park" and self._by_key else None
        self._brakes = place.brakes.get(agent.name)
        #: Bytes of values of the events that are worked on.
        self._bytes = 0
        self._failed = False
        self._loop = asyncio.get_running_loop()
        self._applier = self._make_lane()
        self._retries = place.metrics.counter("retries", agent=agent.name)

    # -- what others do -----------------------------------------------------------------------

    @abstractmethod
    def _make_lane(self) -> Lane[Any]:
        """Return an instance; one of them applies what others have noted."""

    @abstractmethod
    def _call(self) -> None:
        """Let somebody come and look for an event, unless one is on the way."""

    @abstractmethod
    def _arm(self, when: float) -> None:
        """Look round at `when` by the loop's clock, or earlier."""

    @abstractmethod
    def _look(self) -> None:
        """See what has become due."""

    @abstractmethod
    def _lane_of(self, event: Event) -> Any:
        """Return in whose order an event stands."""

    @abstractmethod
    def _stop(self, failure: AgenticError) -> None:
        """Begin nothing more, and stop the worker."""

    # -- an event is done ---------------------------------------------------------------------

    def _finished(self, stations: Sequence[Station[Event]]) -> None:
        """The attempts have succeeded."""
        now = self._loop.time() if self._adaptive is not None or self._brakes is not None else 0.0
        for station in stations:
            if not self.stations.finish(station, station.attempt):
                continue
            self._free(station)
            if self._adaptive is not None:
                self._adaptive.completed(now - station.started_at, now)
                self.limit = self._adaptive.limit
            if self._brakes is not None and self._brakes.circuit is not None:
                self._brakes.circuit.succeeded(now, station.started_at)

    def _free(self, station: Station[Event]) -> None:
        station.holder = None
        if self._execution.max_in_flight_bytes is not None:
            self._bytes -= len(station.event.raw_value or b"")

    def _undecided(self, stations: Sequence[Station[Event]]) -> None:
        """Attempts have ended, and nobody knows whether they would have succeeded."""
        circuit = None if self._brakes is None else self._brakes.circuit
        if circuit is not None:
            for station in stations:
                circuit.abandoned(station.started_at)

    def _apply_in_turn(self, station: Station[Event]) -> None:
        """Apply what is done and has nothing unfinished before it."""
        # While one is applied, and parks what stands behind it, others may come to their turn.
        while found := self.stations.applicable(station):
            for each in found:
                notes: Notes = each.work
                if each.state is not State.DONE:
                    continue  # it was taken with another, which has brought it along
                if notes is JOINED:
                    return  # the first of those that it was taken with is another source's
                if notes.putting is not None:
                    self._move(each, notes.putting)
                together = notes.joined or [each]
                try:
                    self._applier.apply([other.event for other in together], notes)
                except Outdated as error:
                    log.debug("done again, what it had read was written meanwhile: %s", error)
                    for other in reversed(together):
                        self.stations.again(other, other.attempt)
                    self.place.metrics.counter("redone", agent=self.agent.name).add()
                    self._call()
                    return
                except ApplyFailed as error:
                    self._stop(error)
                    return
                except AgenticError as error:
                    if notes.given_up:
                        self._stop(self._undeliverable(each, error))
                        return
                    for other in together:
                        other.work = NOTHING
                        other.failures += 1
                    for other in together:
                        self._exhausted(other, error, Verdict.EXHAUSTED, None)
                    return
                for other in together:
                    self._retire(other)
                for other in together:
                    if other.source is not each.source:
                        self._apply_in_turn(other)

    def _undeliverable(self, station: Station[Event], error: AgenticError) -> AgenticError:
        """A dead letter that can't be written: the event is not complete (rule 20)."""
        return ApplyFailed(f"agent {self.agent.name!r}{at([station.event])}: its dead letter: {error}")

    def _retire(self, station: Station[Event]) -> None:
        """Its effects are applied and its offset is finished."""
        self._let_time_go(station)
        successor = self.stations.retire(station)
        if self.deferrals is not None:
            self._retired(station, successor, self.deferrals)
        for operator in self.timed:
            operator.emit()

    def _let_time_go(self, station: Station[Event]) -> None:
        """An event holds no clock back any more."""
        for hold in station.hold or ():
            hold.release()
        station.hold = None

    def _retired(self, station: Station[Event], successor: Station[Event] | None, deferrals: Deferrals) -> None:
        """An event is over, of an agent that puts events off: see what of its key goes to the table, or leaves."""
        if station.event.origin.__class__ is Parked:
            self.place.dirty()
        key = station.event.raw_key
        if key is None:
            return
        if self._depth is not None and _is_plain(station.event):
            self._shallower(key)
        parked: list[Station[Event]] = []
        while successor is not None and self._belongs_behind(successor.event):
            # What stood behind an event that was put off waits behind it in the table, too.
            self._park(successor.event, from_station=True)
            self._let_time_go(successor)
            if self._depth is not None:
                self._shallower(key)
            parked.append(successor)
            successor = self.stations.withdraw(successor)
        if not self.stations.busy(key) and deferrals.wake(key):
            self._call()
        if self._in_order:
            for each in parked:
                self._apply_in_turn(each)  # others of its source may have waited for it only

    def _shallower(self, key: bytes) -> None:
        """An event less of a key is in flight."""
        assert self._depth is not None, "asked only then"
        self._depth[key] -= 1
        if not self._depth[key]:
            del self._depth[key]

    def _belongs_behind(self, event: Event) -> bool:
        """Does an event of its key that was put off hold an event back?"""
        assert self.deferrals is not None, "asked only then"
        return _is_plain(event) and event.raw_key is not None and self.deferrals.holds_back(event.raw_key)

    # -- an event failed ----------------------------------------------------------------------

    def _judge(
        self, stations: Sequence[Station[Event]], error: BaseException, failure: AgentFailed | None = None
    ) -> None:
        """An attempt on these events failed: say what becomes of each."""
        now = self._loop.time()
        adaptive = self._adaptive
        circuit = None if self._brakes is None else self._brakes.circuit
        for station in reversed(stations):
            # The ones behind go back first, so that they are there when the one before them is over.
            self._free(station)
            if station.follows:
                self._undecided([station])
                self.stations.again(station, station.attempt)
        for station in stations:
            if station.state is not State.EXECUTING:
                continue
            station.failure = error
            station.failures += 1
            # The time for which a circuit keeps an event from being tried is not the event's.
            held_up = station.first_started_at is None or (circuit is not None and circuit.state != "closed")
            elapsed = 0.0 if held_up else now - (station.first_started_at or now)
            verdict, delay = judge(
                error,
                attempt=station.failures,
                elapsed=elapsed,
                retry=self._execution.retry,
                uniform=random.random,
            )
            if adaptive is not None and verdict is not Verdict.POISON:
                adaptive.failed(now)
                self.limit = adaptive.limit
            if circuit is not None:
                if verdict is Verdict.POISON:
                    circuit.abandoned(station.started_at)
                else:
                    circuit.failed(now, station.started_at)
            if verdict is Verdict.RETRY:
                self._retries.add()
                if delay > INLINE and self._may_defer(station.event):
                    self._put_off([station], Putting(delay, words(error), True, "event"))
                    continue
                log.debug("tried again in %.3f s: %r: %s", delay, station.event, words(error))
                self.stations.back_off(station, station.attempt, now + delay)
                self._arm(now + delay)
                continue
            self._exhausted(station, error, verdict, failure)
            if self._failed:
                return

    def _refused(self, event: Event, error: BaseException, now: float) -> None:
        """A predicate raised: the event has failed, and for good, since the agent does not see what none has passed."""
        station = self.stations.issue(event, None, event.origin, now)
        begun = self.stations.begin(now, lambda each: each is event)
        assert begun is station, "nobody waits in its lane"
        self.stations.finish(station, station.attempt)
        if self._depth is not None and event.raw_key is not None and _is_plain(event):
            self._depth[event.raw_key] += 1
        station.failure = error
        station.failures += 1
        verdict, _ = judge(error, attempt=1, elapsed=0.0, retry=ONCE, uniform=random.random)
        self._exhausted(station, error, verdict, None)

    def _exhausted(
        self, station: Station[Event], error: BaseException, verdict: Verdict, failure: AgentFailed | None
    ) -> None:
        """An event has failed for good."""
        fate = self._policy.on_exhausted
        if verdict is Verdict.FATAL:
            fate = "stop"
        elif verdict is Verdict.POISON and self._policy.topic is not None:
            fate = "dead_letter"
        if fate == "defer" and not self._may_defer(station.event):
            fate = "stop" if self._policy.topic is None else "dead_letter"
        if failure is None:
            failure = AgentFailed(f"agent {self.agent.name!r} failed{at([station.event])}: {words(error)}")
            failure.__cause__ = error
        tries = "" if station.failures == 1 else f" (attempt {station.failures})"
        if fate == "stop":
            self._stop(failure)
        elif fate == "defer":
            log.error("%s%s; put off", failure, tries)
            self._put_off([station], Putting(self._put_off_for(), words(error), True, "event"))
        else:
            done = "dead-lettered" if fate == "dead_letter" else "skipped"
            # Poison is the agent's own word, and says all there is to say; what ended from outside has no frames.
            plain = verdict is Verdict.POISON or error.__traceback__ is None
            log.error("%s%s; %s", failure, tries, done, exc_info=None if plain else error)
            self._give_up(station, error, words(error), letter=fate == "dead_letter")

    def _put_off_for(self) -> float:
        """How long an event that has failed for good is put off by ``on_exhausted="defer"``."""
        retry = self._execution.retry
        return INLINE if retry is None else max(INLINE, seconds(retry.max))

    def _give_up(self, station: Station[Event], error: BaseException, reason: str, *, letter: bool = True) -> None:
        """Be done with an event without its effects; with a dead letter, if there is a topic for it."""
        effects = []
        if letter:
            if self._policy.topic is None:
                self._stop(AgentFailed(f"agent {self.agent.name!r} failed{at([station.event])}: {words(error)}"))
                return
            effects.append(self._policy.letter(station.event, reason, station.failures))
            self.place.metrics.counter("dead_letters", agent=self.agent.name).add()
        if self.answers is not None:
            effects += self.answers.failed(station.event, reason)
        self.place.metrics.counter("dropped", reason="agent_error").add()
        station.work = NOTHING._replace(effects=effects, given_up=True)
        if station.state is not State.DONE:
            self.stations.finish(station, station.attempt)
        if self._in_order:
            self._apply_in_turn(station)
            return
        try:
            self._applier.apply([station.event], station.work)
        except AgenticError as refused:
            self._stop(self._undeliverable(station, refused))
            return
        self._retire(station)

    def _pinned(self, station: Station[Event]) -> None:
        """An event backs off for too long to be kept in memory."""
        error = station.failure or AttemptTimeout("it was never done")
        left = max(0.0, station.due_at - self._loop.time())
        if not self.stations.give_up(station):
            return
        if self._may_defer(station.event):
            self._put_off([station], Putting(left, words(error), True, "event"))
        elif self._policy.topic is not None:
            log.error("%r: has kept the commit position back for too long; dead-lettered", station.event)
            self._give_up(station, error, f"pinned: {words(error)}")
        else:
            self._stop(
                AgentFailed(
                    f"agent {self.agent.name!r}{at([station.event])}: it is tried again for longer than its pin limit, "
                    f"and last failed with {words(error)}: declare dead_letter=topic, or deferral=True to put it off"
                )
            )

    def _again(self, stations: Sequence[Station[Event]]) -> None:
        """Do events again as if they had not been begun."""
        self._undecided(stations)
        for station in reversed(stations):
            self._free(station)
            self.stations.again(station, station.attempt)

    # -- events that are put off --------------------------------------------------------------

    def check_deferrable(self, event: Event) -> None:
        """Raise where an event can't be put off."""
        if not self._may_defer(event):
            raise AgenticError(
                f"agent {self.agent.name!r}: {event!r} is a change of a table, which no topic has: it can't wait; "
                "send it to a topic of the app's own, and put it off there"
            )

    def _may_defer(self, event: Event) -> bool:
        return self.deferrals is not None and not isinstance(event.origin, Inward)

    def _put_off(self, stations: Sequence[Station[Event]], putting: Putting) -> None:
        """Move events to the table of deferred ones."""
        for station in stations:
            if station.state is State.EXECUTING:
                self.stations.finish(station, station.attempt)
            station.work = NOTHING._replace(putting=putting)
            if self._in_order:
                self._apply_in_turn(station)
            else:
                self._move(station, putting)
                station.event.origin.retire(station.event.offset)
                self._retire(station)
        self._look()

    def _move(self, station: Station[Event], putting: Putting) -> None:
        """Write the row of an event that is put off; its offset is retired in the same step."""
        assert self.deferrals is not None, "asked before"
        log.info("put off for %g s: %r%s", putting.after, station.event, putting.reason and f": {putting.reason}")
        now, started = self.place.now(), station.first_started_at
        since = now if started is None else now - round((self._loop.time() - started) * 1000)
        self.deferrals.put(station.event, putting, station.failures, now, since)
        self.handed -= 1
        self.place.dirty()
        self.place.metrics.counter("deferred", agent=self.agent.name).add()

    def _waits_in_table(self, event: Event, key: bytes) -> bool:
        """Does an event that comes have to wait in the table?"""
        assert self.deferrals is not None, "asked before"
        if not self.deferrals.blocks(key):
            return False
        if not self.deferrals.holds_back(key):
            return not self.deferrals.comes_before(event, key)
        # One of its key may be on its way to the table, and has to come there first.
        last = self.stations.tail(self._lane_of(event))
        return last is None or last.event.origin.__class__ is Parked

    def _park(self, event: Event, *, from_station: bool = False) -> None:
        """Let an event wait behind those of its key, in the table."""
        assert self.deferrals is not None, "asked before"
        self.deferrals.follow(event, from_station=from_station)
        self.handed -= 1
        event.origin.retire(event.offset)

    # -- leaving ------------------------------------------------------------------------------

    def _abandon(self, only: Callable[[Station[Event]], bool]) -> None:
        """Leave stations to the next owner, with all that stand behind them."""
        left = self.stations.abandon(only)
        self._undecided([station for station in left if station.holder is not None])
        for station in left:
            self._let_time_go(station)


def _is_plain(event: Event) -> bool:
    """Has a record of a partition brought it, just now?"""
    return not isinstance(event.origin, Parked | Inward)
