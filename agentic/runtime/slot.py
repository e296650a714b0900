"""The events of an agent that works on one after the other.

This is the hot path. While the inbox holds events, `__anext__` neither awaits nor touches
the event loop; everything rare sits behind a test that is cheap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from agentic.agent import Agent
from agentic.core.clock import Hold
from agentic.errors import AgenticError
from agentic.metrics import Metrics
from agentic.runtime.gate import Gate, Inward
from agentic.runtime.instance import ApplyFailed, Instance
from agentic.runtime.letters import Policy
from agentic.runtime.operators import Operator
from agentic.runtime.outbox import Outbox
from agentic.stream import Event
from agentic.topic import Outgoing

T = TypeVar("T")

#: Events after which an agent that may have children lets others have a turn of the loop.
TURN = 500


class Slot(Instance[T]):
    """The stream of an agent that works on one event after the other.

    Args:
        drained: called when the inbox has run empty.
    """

    __slots__ = ("_drained", "_inbox", "_waiter")

    def __init__(
        self,
        agent: Agent,
        drained: Callable[[], None],
        outbox: Outbox,
        metrics: Metrics,
        ask_commit: Callable[[], asyncio.Future[None]],
        policy: Policy,
    ) -> None:
        super().__init__(agent, outbox, metrics, ask_commit, policy)
        self._drained = drained
        self._inbox: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

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

    # -- what the task does -------------------------------------------------------------------

    def put(self, events: Iterable[Event]) -> int:
        """Hand events over; they are worked on when the agent asks. Return how many they are."""
        before = len(self._inbox)
        self._inbox.extend(events)
        self.wake()
        return len(self._inbox) - before

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

    def give_up(self, letters: Sequence[Outgoing]) -> None:
        """Complete the current events with these effects in place of their own: they are given up by rule.

        Raises:
            ApplyFailed: one of the effects was refused.
        """
        self._forget()
        self._effects += letters
        event = self.event
        try:
            self._complete(event)
        except ApplyFailed:
            raise
        except AgenticError as error:
            raise ApplyFailed(f"agent {self.agent.name!r}, {event!r} is given up, and can't be: {error}") from error
        self.working_on = None

    async def another(self, deadline: float) -> Event | None:
        """Return one more event to be complete together with the current one; None as in `_wait_until`."""
        event = self._inbox.popleft() if self._inbox else await self._wait_until(deadline)
        if event is not None:
            self._also.append(self.event)
            self.working_on = event
        return event

    def gather(self, n: int) -> int:
        inbox = self._inbox
        more = [inbox.popleft() for _ in range(min(n, len(inbox)))]
        if more:
            self._also += [self.event, *more[:-1]]
            self.working_on = more[-1]
        return len(more)

    def put_back(self) -> None:
        """Take the current events as if they had not been begun; nobody has worked on them."""
        self._inbox.extendleft(reversed(self.current()))
        self._also.clear()
        self.working_on = None

    def begin_again(self) -> None:
        """Take the current events as if they had not been begun, and drop their notes."""
        self._forget()
        self.put_back()

    # -- completing and waiting ---------------------------------------------------------------

    def finish(self) -> None:
        """Complete the current event, if there is one."""
        event = self.working_on
        if event is not None:
            if self._effects or self.touched or self._also:
                self._complete(event)
            else:
                event.origin.retire(event.offset)
            self.working_on = None

    def put_child(self, event: Event) -> None:
        """Hand over a child of an event of the task. Only slots that look at their events have any."""
        raise AssertionError(f"agent {self.agent.name!r} reads nothing that has a parent")

    async def _wait(self) -> Event:
        """Return the next event once there is one; ends the iteration when the stream is closed."""
        event = await self._wait_until(None)
        if event is None:
            await self.end()
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
            self._drained()
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
    a part of a topic refuse; sees whether an event asks something; and lets children of events
    go first, other events through the gate.
    """

    __slots__ = (
        "_children_in_turn",
        "_dropped",
        "_gate",
        "_holds",
        "_predicates",
        "_waiting_children",
        "looks",
        "timed",
    )

    def __init__(
        self,
        agent: Agent,
        drained: Callable[[], None],
        outbox: Outbox,
        metrics: Metrics,
        ask_commit: Callable[[], asyncio.Future[None]],
        policy: Policy,
        gate: Gate,
    ) -> None:
        super().__init__(agent, drained, outbox, metrics, ask_commit, policy)
        self._dropped = metrics.counter("dropped", reason="filtered").add
        self._gate = gate
        self._waiting_children: deque[Event] = deque()
        self._children_in_turn = 0
        #: Windowed tables that other agents write as well: an event at work holds their time.
        self.timed: list[Operator] = []
        self._holds: list[Hold] = []
        self._predicates = {source.topic.name: source.predicates for source in agent.sources}
        #: Is there more to look at than the event's time? Said by whoever starts it.
        self.looks = True

    def begin(self) -> None:
        """All that it is to know of its task has been told."""
        self.looks = any(self._predicates.values()) or self.shares_tables or self.answers is not None

    @staticmethod
    def needed(agent: Agent) -> bool:
        """Is there anything to look at, the children of events aside?"""
        watched = any(source.predicates for source in agent.sources) or any(table.ttl for table in agent.tables)
        return watched or agent.execution.replies

    async def __anext__(self) -> T:
        while True:
            event = self.working_on
            if event is not None:
                # `finish`, written out; first, since its own children may come to this very agent.
                if self._effects or self.touched or self._also:
                    self._complete(event)
                else:
                    event.origin.retire(event.offset)
                self.working_on = None
                if self._holds:
                    self._let_time_go()
            self._children_in_turn += 1
            if self._children_in_turn >= TURN:
                # Children may beget children without end: the rest of the worker must go on.
                self._children_in_turn = 0
                await asyncio.sleep(0)
            if self._waiting_children:
                event = self._waiting_children.popleft()
            else:
                if not self._gate.passable:
                    await self._next_child()
                event = self._inbox.popleft() if self._inbox else await self._wait()
            self.working_on = event
            if self.timed and not self._holds:
                # An event that is begun again has them still.
                self._holds = [operator.hold(event) for operator in self.timed]
            if self.looks:
                # The event is current while its predicates run: if one raises, it is the one that failed.
                if not self._passes(event):
                    self._dropped()
                    continue
            elif event.timestamp > self.clock:
                self.clock = event.timestamp
            return event.value  # type: ignore[no-any-return]

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

    def gather(self, n: int) -> int:
        if self.looks or self._waiting_children:
            return 0  # each is to be looked at, and children go first
        gathered = super().gather(n)
        if gathered:
            self.clock = max(self.clock, *(event.timestamp for event in self.current()))
        return gathered

    def _passes(self, event: Event) -> bool:
        if self.shares_tables and not self._also:
            # The event before may have read and written nothing.
            self.forget_reads()
        if event.timestamp > self.clock:
            self.clock = event.timestamp
        passes = all(predicate(event.value) for predicate in self._predicates[event.origin.topic.name])
        if self.answers is not None:
            self.meet(self.answers, event, passes=passes)
        return passes

    def _let_time_go(self) -> None:
        """The event is over, and may be what kept windows open."""
        for hold in self._holds:
            hold.release()
        self._holds = []
        for operator in self.timed:
            operator.emit()

    def give_up(self, letters: Sequence[Outgoing]) -> None:
        super().give_up(letters)
        self._let_time_go()

    def abandon(self) -> None:
        super().abandon()
        for hold in self._holds:
            hold.release()
        self._holds = []

    async def _next_child(self) -> None:
        """Return when there is a child at the inbox's head, or the gate is open."""
        while not (self._waiting_children or self._gate.passable or self.closing):
            self._drained()
            await self.turn()
        self._refill()

    def put_back(self) -> None:
        self._forget()  # that they are not answered yet is noted when they begin
        for event in reversed(self.current()):
            (self._waiting_children if isinstance(event.origin, Inward) else self._inbox).appendleft(event)
        self._also.clear()
        self.working_on = None

    def put_child(self, event: Event) -> None:
        self._waiting_children.append(event)
        self.wake()

    def put_children(self, events: Iterable[Event]) -> None:
        """Hand over children of events of the task."""
        self._waiting_children.extend(events)
        self.wake()

    def _refill(self) -> bool:
        if self._waiting_children:
            self._inbox.appendleft(self._waiting_children.popleft())
            return True
        return False

    def drop_roots(self) -> None:
        """Leave to the next owner what waits and has no parent."""
        self._inbox = deque(event for event in self._inbox if isinstance(event.origin, Inward))

    def close(self) -> None:
        self._waiting_children.clear()
        super().close()

    @property
    def pending(self) -> int:
        return super().pending + len(self._waiting_children)
