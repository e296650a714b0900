"""One of the instances of an agent that works on several events at once."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from agentic.core.stations import Station
from agentic.core.times import seconds
from agentic.errors import ConfigurationError
from agentic.metrics import Metrics
from agentic.runtime.instance import Instance, Shown
from agentic.runtime.letters import Policy
from agentic.runtime.outbox import Outbox
from agentic.runtime.partition import fresh_value
from agentic.runtime.tables import TableView
from agentic.state.buffer import Row
from agentic.stream import Event
from agentic.topic import Outgoing

if TYPE_CHECKING:
    from agentic.agent import Agent
    from agentic.runtime.pool import Pool

T = TypeVar("T")
R = TypeVar("R")

#: Events after which an instance that never waits lets others have a turn of the loop.
TURN = 500


class Putting(NamedTuple):
    """How an event is put off: see `Stream.defer`."""

    after: float
    reason: str
    block_key: bool
    hold: Literal["event"] | None


class Notes(NamedTuple):
    """What an event that is done and waits for its turn will have done.

    Attributes:
        effects: what it sends.
        rows: what it does to tables, as their views say it.
        read: the rows that it has read, where other agents may write them.
        putting: it is put off instead.
        joined: events that were taken with it, and are complete when it is.
        given_up: its effects are a dead letter, or nothing.
    """

    effects: Sequence[Outgoing]
    rows: Sequence[tuple[TableView, Any]]
    read: Sequence[tuple[TableView, dict[bytes, Row]]]
    putting: Putting | None = None
    joined: Sequence[Station[Event]] = ()
    given_up: bool = False


NOTHING: Final = Notes((), (), ())
#: Of an event that is complete with another one.
JOINED: Final = Notes((), (), (), given_up=True)


class Lane(Instance[T]):
    """The stream of one instance; its pool gives it the events.

    Attributes:
        stations: those of the current events; several with `take`. None where the pool gave it an event
            without one: see `Pool.settle`.
        begun_at: when that event began, by the loop's clock.
        running: does the loop run the agent's function itself just now, and not a task that this has made?
        waited: has it waited with the event before, or with this one?
        putting: set when the current events are put off.
        gathering: does a `take` wait for more events, so that nobody works on those that are there?
    """

    __slots__ = ("_in_turn", "_pool", "begun_at", "gathering", "putting", "running", "stations", "waited", "waiter")

    def __init__(
        self,
        agent: Agent,
        outbox: Outbox,
        metrics: Metrics,
        ask_commit: Callable[[], asyncio.Future[None]],
        policy: Policy,
        pool: Pool,
    ) -> None:
        super().__init__(agent, outbox, metrics, ask_commit, policy)
        self._pool = pool
        self._in_turn = 0
        self.stations: list[Station[Event]] = []
        self.begun_at = 0.0
        self.running = False
        self.waited = False
        self.putting: Putting | None = None
        self.gathering = False
        self.waiter: asyncio.Future[None] | None = None

    async def __anext__(self) -> T:
        pool = self._pool
        if self.working_on is not None:
            if pool.holding:
                await pool.held(self)
            pool.complete(self)
            self._in_turn += 1
            if self._in_turn >= TURN:
                self._in_turn = 0
                await asyncio.sleep(0)
        while not pool.begin(self):
            if self.closing:
                await self.end()
            await pool.rest(self)
        return self.event.value  # type: ignore[no-any-return]

    def lists(self, n: int, within: timedelta | float, shown: Shown[R]) -> AsyncIterator[list[R]]:
        lists = super().lists(n, within, shown)
        limit = self.agent.execution.pin_limit
        if seconds(within) >= limit:
            raise ConfigurationError(
                f"agent {self.agent.name!r}: take(within={within!r}) waits for longer than an event may keep the "
                f"commit position back, pin_limit={limit:g} s: give less, or a greater pin_limit="
            )
        return lists

    async def another(self, deadline: float) -> Event | None:
        if not self.stations:
            self._pool.settle(self)
        self.gathering = True
        loop = asyncio.get_running_loop()
        while not self._pool.begin_another(self):
            if self.closing or loop.time() >= deadline:
                return None
            await self._pool.rest(self, deadline)
        return self.event

    def taken(self) -> None:
        self.gathering = False
        if not self.stations:
            self._pool.settle(self)
        self._pool.begin_list(self.stations)

    def hold(self, station: Station[Event]) -> None:
        """Have one event more in hand."""
        if station.attempt > 1:
            # The attempt before may have changed it in place, and may still do so in a thread that can't be stopped.
            station.event.value = fresh_value(station.event)
        if self.working_on is not None:
            self._also.append(self.working_on)
        self.stations.append(station)
        self.working_on = station.event
        if self.answers is not None:
            self.meet(self.answers, station.event)

    def let_go(self) -> list[Station[Event]]:
        """Have nothing in hand any more, and no notes; return what it was."""
        stations, self.stations = self.stations, []
        self.abandon()
        return stations

    def put_back(self) -> None:
        self._pool.put_back(self)

    @property
    def attempt(self) -> int:
        return self.stations[-1].failures + 1 if self.stations else 1

    def defer(
        self,
        after: timedelta | float,
        *,
        reason: str = "",
        block_key: bool = True,
        hold: Literal["event"] | None = "event",
    ) -> None:
        events = self.current() or [self.event]
        if self._pool.deferrals is None:
            super().defer(after)
        if hold not in ("event", None):
            raise ValueError(f'defer(hold={hold!r}): it is "event" or None')
        for event in events:
            self._pool.check_deferrable(event)
        self.putting = Putting(seconds(after), reason, block_key, hold)

    def reject(self, reason: str) -> None:
        super().reject(reason)
        self.putting = None

    def abandon(self) -> None:
        super().abandon()
        self.stations = []
        self.putting = None
        self.gathering = False

    # -- notes of an event that waits for its turn --------------------------------------------

    def detach(self) -> Notes:
        """Hand the notes of the current events over; they are applied by another instance."""
        rejected = self._turn_to_letters()
        if rejected:
            self._count_rejected(len(self.stations))
        rows = [(view, view.detach()) for view in self.touched]
        read = [(view, dict(view.read)) for view in self.views.values() if view.read] if self.touched else []
        notes = Notes(list(self._effects), rows, read, given_up=rejected)
        self._forget()
        return notes

    def apply(self, events: Sequence[Event], notes: Notes) -> None:
        """Complete events, in order, with the notes that another instance has taken.

        Raises:
            Outdated, AgenticError: as completing an event does.
        """
        *self._also, event = events
        self.working_on = event
        self._effects += notes.effects
        for view, rows in notes.rows:
            mine = self.views[view.table]
            mine.lay_over(rows)
            self.touched.append(mine)
        for view, read in notes.read:
            self.views[view.table].read.update(read)
        try:
            self._complete(event)
        finally:
            self._forget()
            self._also.clear()
            self.working_on = None

    def complete(self) -> None:
        """Apply the notes of the current events and retire these, in one step.

        Raises:
            Outdated, AgenticError: an effect was refused, or is to be made anew; the events are still current.
        """
        event = self.working_on
        assert event is not None, "it has one"
        if self._effects or self.touched or self._also:
            self._complete(event)
        else:
            event.origin.retire(event.offset)
        self.working_on = None


@types.coroutine
def watched(lane: Lane[Any], settle: Callable[[Lane[Any]], None]) -> Generator[Any, Any, None]:
    """Run a lane's function; have it settled when control leaves it with an event that has no station.

    That is when it waits, and when it ends. To the loop it is the function itself.
    """
    run = lane.run()
    send = run.send
    try:
        lane.running = True
        waits_for = send(None)
        while True:
            lane.running = False
            if lane.working_on is not None:
                lane.waited = True
                if not lane.stations:
                    settle(lane)
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is the function's to see, whatever it is
                lane.running = True
                waits_for = run.throw(error)
            else:
                lane.running = True
                waits_for = send(None)
    except StopIteration:
        return
    finally:
        lane.running = False
        if lane.working_on is not None and not lane.stations:
            settle(lane)
