"""One running instance of an agent: the stream it reads, the event it works on, its effects.

The rules that it keeps: an event's effects are only noted while the agent works, and are
applied in program order, in one step, when the agent asks for the next event; that step also
retires the offset. If the agent raises, the notes are dropped.

This is the hot path. While the inbox holds events, `__anext__` neither awaits nor touches
the event loop; everything rare sits behind a test that is cheap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from agentic.agent import Agent
from agentic.core.times import seconds
from agentic.errors import AgenticError, CodecError
from agentic.metrics import Metrics
from agentic.runtime.gate import Descent, Gate
from agentic.runtime.outbox import Outbox
from agentic.runtime.tables import TableView
from agentic.stream import SAME, Event, HeadersLike, Origin, Reply, Stream, current_outlet
from agentic.table import Table, current_views
from agentic.topic import Outgoing, Topic

T = TypeVar("T")

#: A child on its way: who reads it, what makes its origin of the parent's, its key, the key's bytes, its value.
Child = tuple["Slot[Any]", Callable[[Origin], Origin], Any, bytes, Any]

#: Events after which an agent that may have children lets others have a turn of the loop.
TURN = 500
#: Before any time, in ms.
NEVER = -(1 << 63)


class ApplyFailed(AgenticError):
    """An effect was refused when others of its event had left; the worker has to stop, whatever `on_error` says."""


class Outdated(AgenticError):
    """Another agent has written a row that the event read before it wrote: the event is to be done again."""


class Slot(Stream[T]):
    """The stream of one agent in one task.

    Args:
        agent: whose function runs.
        drained: called when the inbox has run empty.
        outbox: takes the effects.
        metrics: counts what is dropped.

    Attributes:
        closing: once set, the stream ends at the next step of the agent.
        handed: events put into the inbox so far.
        sent: effects applied so far.
        working_on: the current event; with `take` the last of them.
        views: the tables that the agent uses.
        ask_commit: asks for a checkpoint; returns a future that is done with it.
        shares_tables: does another agent of the task use one of the tables?
        touched: those views that the current event has written to.
        children: changes of tables that the current event has made and that agents of the task read.
        clock: the greatest timestamp of the events that the agent has begun, in ms; kept only where
            a table needs it.
    """

    __slots__ = (
        "_also",
        "_drained",
        "_effects",
        "_inbox",
        "_metrics",
        "_outbox",
        "_waiter",
        "agent",
        "ask_commit",
        "children",
        "clock",
        "closing",
        "handed",
        "sent",
        "shares_tables",
        "touched",
        "views",
        "working_on",
    )

    def __init__(
        self,
        agent: Agent,
        drained: Callable[[Slot[Any]], None],
        outbox: Outbox,
        metrics: Metrics,
        ask_commit: Callable[[], asyncio.Future[None]],
    ) -> None:
        self.agent = agent
        self.ask_commit = ask_commit
        self.closing = False
        self.handed = 0
        self.sent = 0
        self._drained = drained
        self._outbox = outbox
        self._metrics = metrics
        self._inbox: deque[Event] = deque()
        self.working_on: Event | None = None
        self.views: dict[Table[Any, Any], TableView] = {}
        self.touched: list[TableView] = []
        self.shares_tables = False
        self.children: list[Child] = []
        self.clock = NEVER
        #: With `take`: the events that are complete together with the current one.
        self._also: list[Event] = []
        self._effects: list[Outgoing] = []
        self._waiter: asyncio.Future[None] | None = None

    # -- what the agent sees ------------------------------------------------------------------

    @property
    def event(self) -> Event:
        if self.working_on is None:
            raise LookupError(f"agent {self.agent.name!r}: outside of its loop there is no event")
        return self.working_on

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        event = self.working_on
        if event is not None:
            # `finish`, written out: this is where each event passes.
            if self._effects or self.touched or self._also:
                self._complete(event)
            else:
                event.origin.retire(event.offset)
            self.working_on = None
        try:
            event = self._inbox.popleft()
        except IndexError:
            event = await self._wait()
        self.working_on = event
        return event.value  # type: ignore[no-any-return]

    def events(self) -> AsyncIterator[Event]:
        return _Events(self)

    def take(self, n: int, *, within: timedelta | float) -> AsyncIterator[list[T]]:
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"take({n!r}): take at least 1 event")
        return _Take(self, n, seconds(within))

    async def send(
        self,
        topic: Topic[Any, Any],
        key: Any,
        value: Any,
        headers: HeadersLike | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> None:
        """Note a send as an effect of the current event."""
        event = self.event
        when = event.timestamp if timestamp is None else timestamp
        self._effects.append(topic.outgoing(topic.encode_key(key), value, headers, when, partition))

    def commit(self) -> Awaitable[None]:
        if any(isinstance(event.origin, Descent) for event in self.current()):
            self.ask_commit()
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self.ask_commit()

    # -- what the task does -------------------------------------------------------------------

    def put(self, events: Iterable[Event]) -> None:
        """Hand events over; they are worked on when the agent asks."""
        before = len(self._inbox)
        self._inbox.extend(events)
        self.handed += len(self._inbox) - before
        self.wake()

    def close(self) -> None:
        """End the stream: what waits in the inbox is left to the next owner, the current event may finish."""
        self.closing = True
        self._inbox.clear()
        self.wake()

    def wake(self) -> None:
        """Let the agent, if it waits, look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def pending(self) -> int:
        """Events handed over and not completed."""
        return len(self._inbox) + len(self._also) + (self.working_on is not None)

    def current(self) -> list[Event]:
        """The events that are being worked on, in order: none, one, or the list of a `take`."""
        return [*self._also, *([self.working_on] if self.working_on is not None else [])]

    def drop(self, reason: str) -> None:
        """Count the current event as given up by rule; it completes like any other."""
        self._metrics.counter("dropped", reason=reason).add()

    def give_up(self) -> None:
        """Drop the notes of the current events and retire them: they were skipped by rule."""
        self._forget()
        for event in self.current():
            event.origin.retire(event.offset)
        self.working_on = None
        self._also.clear()

    async def run(self) -> None:
        """Run the agent's function over this stream until it ends."""
        current_outlet.set(self)
        current_views.set(self.views)
        if not self.agent.yields:
            await self.agent.fn(self)
            return
        to = self.agent.to
        assert to is not None, "checked at start"
        name, encode = to.name, to.value.encode
        # A sink that declares no key type takes the bytes as they are; so does one with the source's codec.
        through = {topic.key for topic in self.agent.inputs} <= {to.key} or not to.key_declared
        effects = self._effects
        async for value in self.agent.fn(self):
            event = self.event if self.working_on is None else self.working_on
            if through and value is not None and value.__class__ is not Reply:
                try:
                    effects.append((name, event.raw_key, encode(value), event.timestamp, None, -1))
                    continue
                except (TypeError, ValueError, CodecError):
                    pass  # said again, in words, by the slow way below
            effects.append(self._reply(to, event, value))

    def _reply(self, to: Topic[Any, Any], event: Event, value: Any) -> Outgoing:
        """Return the effect of a yield that is not the plain case, or say what is wrong with it."""
        reply = value if isinstance(value, Reply) else Reply(value)
        try:
            if reply.key is not SAME:
                key = to.encode_key(reply.key)
            elif not to.key_declared or event.origin.topic.key is to.key:
                key = event.raw_key
            else:
                key = to.encode_key(event.key)
            when = event.timestamp if reply.timestamp is None else reply.timestamp
            return to.outgoing(key, reply.value, reply.headers, when)
        except (CodecError, TypeError, ValueError) as error:
            raise type(error)(f"agent {self.agent.name!r} yielded what {to!r} does not take: {error}") from error

    async def another(self, deadline: float) -> Event | None:
        """Return one more event to be complete together with the current one; None as in `_wait_until`."""
        event = self._inbox.popleft() if self._inbox else await self._wait_until(deadline)
        if event is not None:
            self._also.append(self.event)
            self.working_on = event
        return event

    def put_back(self) -> None:
        """Take the current events as if they had not been begun; nobody has worked on them."""
        self._inbox.extendleft(reversed(self.current()))
        self._also.clear()
        self.working_on = None

    def begin_again(self) -> None:
        """Take the current events as if they had not been begun, and drop their notes."""
        self._forget()
        self.put_back()

    def abandon(self) -> None:
        """Let go of the current events without completing them: their next owner does them again.

        An agent that goes on all the same finds no event any more, and can do nothing.
        """
        self._forget()
        self._also.clear()
        self.working_on = None

    def _forget(self) -> None:
        """Drop the notes of the current events."""
        self._effects.clear()
        self.children.clear()
        for view in self.touched:
            view.forget()
        self.touched.clear()
        if self.shares_tables:
            self.forget_reads()

    # -- completing and waiting ---------------------------------------------------------------

    def _complete(self, event: Event) -> None:
        """Apply the noted effects and retire the event, with those that were taken with it."""
        if self.touched and self.shares_tables:
            if any(view.outdated() for view in self.views.values()):
                raise Outdated(f"agent {self.agent.name!r}, {event!r}")
            self.forget_reads()
        send = self._outbox.send
        gone = 0
        try:
            for effect in self._effects:
                send(*effect)
                gone += 1
        except AgenticError as error:
            if not gone:
                # Nothing of the event has left: it has failed like any other, and the policy applies.
                raise
            raise ApplyFailed(f"agent {self.agent.name!r}, {event!r}: {error}") from error
        self.sent += len(self._effects)
        self._effects.clear()
        if self.touched:
            for view in self.touched:
                view.apply()
            self.touched.clear()
            if self.children:
                self._bear(event)
        event.origin.retire(event.offset)
        if self._also:
            for other in self._also:
                other.origin.retire(other.offset)
            self._also.clear()

    def finish(self) -> None:
        """Complete the current event, if there is one."""
        event = self.working_on
        if event is not None:
            if self._effects or self.touched or self._also:
                self._complete(event)
            else:
                event.origin.retire(event.offset)
            self.working_on = None

    def forget_reads(self) -> None:
        """The event is over; what it has read concerns nobody any more."""
        for view in self.views.values():
            view.read.clear()

    def _bear(self, event: Event) -> None:
        """Hand the event's children to the agents that read them; the offset waits for them."""
        event.origin.adopt(event.offset, len(self.children))
        for slot, descend, key, raw_key, value in self.children:
            origin = descend(event.origin)
            slot.put_child(Event(key, value, event.timestamp, event.offset, origin, raw_key, None))
        self.children.clear()

    def put_child(self, event: Event) -> None:
        """Hand over a child of an event of the task. Only slots that look at their events have any."""
        raise AssertionError(f"agent {self.agent.name!r} reads nothing that has a parent")

    async def _wait(self) -> Event:
        """Return the next event once there is one; ends the iteration when the stream is closed."""
        event = await self._wait_until(None)
        if event is None:
            raise StopAsyncIteration
        return event

    def _refill(self) -> bool:
        """Bring an event that waits elsewhere to the inbox's head, if there is one; return whether."""
        return False

    async def turn(self) -> None:
        """Return when someone wakes the agent."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _wait_until(self, deadline: float | None) -> Event | None:
        """Return the next event, or None when the loop's clock reaches `deadline` or the stream is closed."""
        loop = asyncio.get_running_loop()
        while not (self._inbox or self._refill()):
            if self.closing or (deadline is not None and loop.time() >= deadline):
                return None
            self._waiter = loop.create_future()
            alarm = None if deadline is None else loop.call_at(deadline, self.wake)
            self._drained(self)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if alarm is not None:
                    alarm.cancel()
        return self._inbox.popleft()


class WatchingSlot(Slot[T]):
    """A slot that looks at each event before its agent does.

    It keeps the clock, for tables whose rows expire; completes at once what the predicates of
    a part of a topic refuse; and lets children of events go first, other events through the gate.
    """

    __slots__ = ("_children_in_turn", "_dropped", "_gate", "_predicates", "_waiting_children")

    def __init__(
        self,
        agent: Agent,
        drained: Callable[[Slot[Any]], None],
        outbox: Outbox,
        metrics: Metrics,
        ask_commit: Callable[[], asyncio.Future[None]],
        gate: Gate,
    ) -> None:
        super().__init__(agent, drained, outbox, metrics, ask_commit)
        self._dropped = metrics.counter("dropped", reason="filtered").add
        self._gate = gate
        self._waiting_children: deque[Event] = deque()
        self._children_in_turn = 0
        self._predicates = {source.topic.name: source.predicates for source in agent.sources}

    @staticmethod
    def needed(agent: Agent) -> bool:
        """Is there anything to look at, the children of events aside?"""
        return any(source.predicates for source in agent.sources) or any(table.ttl for table in agent.tables)

    async def __anext__(self) -> T:
        while True:
            # First, since its own children may come to this very agent.
            self.finish()
            self._children_in_turn += 1
            if self._children_in_turn >= TURN:
                # Children may beget children without end: the rest of the worker must go on.
                self._children_in_turn = 0
                await asyncio.sleep(0)
            if self._waiting_children or not self._gate.passable:
                await self._next_child()
            value = await super().__anext__()
            # The event is current while its predicates run: if one raises, it is the one that failed.
            if self._passes(self.event):
                return value
            self._dropped()

    async def another(self, deadline: float) -> Event | None:
        while True:
            self._refill()
            event = await super().another(deadline)
            if event is None:
                return None
            if self._passes(event):
                return event
            self._dropped()
            self.working_on = self._also.pop()
            event.origin.retire(event.offset)

    def _passes(self, event: Event) -> bool:
        if self.shares_tables and not self._also:
            # The event before may have read and written nothing.
            self.forget_reads()
        if event.timestamp > self.clock:
            self.clock = event.timestamp
        return all(predicate(event.value) for predicate in self._predicates[event.origin.topic.name])

    async def _next_child(self) -> None:
        """Return when there is a child at the inbox's head, or the gate is open."""
        while not (self._waiting_children or self._gate.passable or self.closing):
            self._drained(self)
            await self.turn()
        self._refill()

    def put_back(self) -> None:
        for event in reversed(self.current()):
            (self._waiting_children if isinstance(event.origin, Descent) else self._inbox).appendleft(event)
        self._also.clear()
        self.working_on = None

    def put_child(self, event: Event) -> None:
        self.handed += 1
        self._waiting_children.append(event)
        self.wake()

    def _refill(self) -> bool:
        if self._waiting_children:
            self._inbox.appendleft(self._waiting_children.popleft())
            return True
        return False

    def drop_roots(self) -> None:
        """Leave to the next owner what waits and has no parent."""
        self._inbox = deque(event for event in self._inbox if isinstance(event.origin, Descent))

    def close(self) -> None:
        self._waiting_children.clear()
        super().close()

    @property
    def pending(self) -> int:
        return super().pending + len(self._waiting_children)


class _Events(AsyncIterator[Event]):
    """The stream's events in place of their values."""

    def __init__(self, slot: Slot[Any]) -> None:
        self._slot = slot

    async def __anext__(self) -> Event:
        await self._slot.__anext__()
        return self._slot.event


class _Take(AsyncIterator[list[T]]):
    """Lists of values whose events are complete together."""

    def __init__(self, slot: Slot[T], n: int, within: float) -> None:
        self._slot = slot
        self._n = n
        self._within = within

    async def __anext__(self) -> list[T]:
        slot = self._slot
        values = [await slot.__anext__()]
        deadline = asyncio.get_running_loop().time() + self._within
        try:
            while len(values) < self._n:
                more = await slot.another(deadline)
                if more is None:
                    break
                values.append(more.value)
        except asyncio.CancelledError:
            # Whoever gave up waiting has not seen the list: it begins again with the same events.
            slot.put_back()
            raise
        if slot.closing:
            slot.abandon()
            raise StopAsyncIteration
        return values
