"""One running instance of an agent: the stream that it reads, the event it works on, its effects.

The rules that it keeps: an event's effects are only noted while the agent works, and are
applied in program order, in one step, when the event is complete; that step also retires the
offset. If the agent raises, the notes are dropped.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from agentic.agent import Agent
from agentic.core.times import seconds
from agentic.errors import AgenticError, CodecError, ConfigurationError
from agentic.metrics import Metrics
from agentic.runtime.answers import Answers, Asked
from agentic.runtime.gate import Inward
from agentic.runtime.letters import Policy
from agentic.runtime.outbox import Outbox
from agentic.runtime.tables import TableView
from agentic.stream import SAME, Event, Events, HeadersLike, Origin, Reply, Stream, current_outlet
from agentic.table import Table, current_views
from agentic.topic import Outgoing, Topic

T = TypeVar("T")
R = TypeVar("R")
#: Makes of a list of events what the agent gets.
Shown = Callable[[list[Event]], list[R]]
#: So often an agent may ask a closed stream for another event.
PATIENCE = 10

#: A child on its way: who reads it, what makes its origin of the parent's, its key, the key's bytes, its value.
Child = tuple["Children", Callable[[Origin], Origin], Any, bytes, Any]

#: Before any time, in ms.
NEVER = -(1 << 63)


class Children(Protocol):
    """Who reads what has a parent."""

    agent: Agent

    def put_child(self, event: Event) -> None:
        """Take over a child of an event of the task."""

    def put_children(self, events: Sequence[Event]) -> None:
        """Take over several, in order."""


class ApplyFailed(AgenticError):
    """An effect was refused when others of its event had left; the worker has to stop, whatever `on_error` says."""


class Outdated(AgenticError):
    """Another agent has written a row that the event read before it wrote: the event is to be done again."""


class Instance(Stream[T]):
    """The stream of one run of an agent's function in one task. How it comes to its events others say.

    Args:
        agent: whose function runs.
        outbox: takes the effects.
        metrics: counts what is dropped.
        ask_commit: asks for a checkpoint; returns a future that is done with it.
        policy: what becomes of events that are given up.

    Attributes:
        closing: once set, the stream ends at the next step of the agent.
        sent: effects applied so far.
        working_on: the current event; with `take` the last of them.
        views: the tables that the agent uses.
        shares_tables: does another agent of the task use one of the tables?
        touched: those views that the current event has written to.
        children: changes of tables that the current event has made and that agents of the task read.
        answers: what those are told who ask the agent; None where it answers nobody.
        clock: the time by which rows expire, in ms: the greatest timestamp of the events that the
            agent has begun, or the task's clock; kept only where a table needs it.
    """

    __slots__ = (
        "_also",
        "_asked",
        "_asked_in_vain",
        "_effects",
        "_letters",
        "_metrics",
        "_outbox",
        "_policy",
        "agent",
        "answers",
        "ask_commit",
        "children",
        "clock",
        "closing",
        "sent",
        "shares_tables",
        "touched",
        "views",
        "working_on",
    )

    def __init__(
        self,
        agent: Agent,
        outbox: Outbox,
        metrics: Metrics,
        ask_commit: Callable[[], asyncio.Future[None]],
        policy: Policy,
    ) -> None:
        self.agent = agent
        self.ask_commit = ask_commit
        self.closing = False
        self.sent = 0
        self._outbox = outbox
        self._metrics = metrics
        self._policy = policy
        self.working_on: Event | None = None
        self.views: dict[Table[Any, Any], TableView] = {}
        self.touched: list[TableView] = []
        self.shares_tables = False
        self.children: list[Child] = []
        self.clock = NEVER
        self.answers: Answers | None = None
        #: What the current events ask.
        self._asked: list[Asked] = []
        #: With `take`: the events that are complete together with the current one.
        self._also: list[Event] = []
        self._effects: list[Outgoing] = []
        self._asked_in_vain = 0
        #: The current events are given up: what goes out in place of their effects.
        self._letters: list[Outgoing] | None = None

    # -- what the agent sees ------------------------------------------------------------------

    @property
    def event(self) -> Event:
        if self.working_on is None:
            raise LookupError(f"agent {self.agent.name!r}: outside of its loop there is no event")
        return self.working_on

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    @abstractmethod
    async def __anext__(self) -> T: ...

    @abstractmethod
    async def another(self, deadline: float) -> Event | None:
        """Return one more event to be complete together with the current one.

        None when there is none by `deadline` of the loop's clock, or the stream is closed.
        """

    def taken(self) -> None:
        """A list that was gathered by `take` is handed over: it is worked on from now on."""

    @abstractmethod
    def put_back(self) -> None:
        """Take the current events as if they had not been begun; nobody has worked on them."""

    async def end(self) -> NoReturn:
        """End the iteration: the stream is closed.

        An agent that begins its loop anew, again and again, would keep all others from ending, so it is cancelled.
        """
        self._asked_in_vain += 1
        if self._asked_in_vain > PATIENCE:
            raise asyncio.CancelledError(f"the stream of agent {self.agent.name!r} is closed")
        await asyncio.sleep(0)
        raise StopAsyncIteration

    def gather(self, n: int) -> int:
        """Take up to `n` more events that are there, and complete together with the current one; return how many."""
        return 0

    def events(self) -> Events:
        return _Events(self)

    def take(self, n: int, *, within: timedelta | float) -> AsyncIterator[list[T]]:
        return self.lists(n, within, _values)

    def lists(self, n: int, within: timedelta | float, shown: Shown[R]) -> AsyncIterator[list[R]]:
        """See `Stream.take`."""
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"take({n!r}): take at least 1 event")
        return _Lists(self, n, seconds(within), shown)

    @property
    def attempt(self) -> int:
        return 1

    def reject(self, reason: str) -> None:
        event = self.event
        letters = [self._policy.letter(each, reason, self.attempt) for each in (*self._also, event)]
        self._letters = letters
        # So that completing the event is not the plain case, which looks at nothing.
        self._effects.append(letters[0])
        if self.answers is not None:
            letters += [reply for each in self.current() for reply in self.answers.failed(each, f"rejected: {reason}")]

    def defer(
        self,
        after: timedelta | float,
        *,
        reason: str = "",
        block_key: bool = True,
        hold: Literal["event"] | None = "event",
    ) -> None:
        raise ConfigurationError(
            f"agent {self.agent.name!r} puts an event off, and is not known to: declare @app.agent(…, deferral=True)"
        )

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
        if any(isinstance(event.origin, Inward) for event in self.current()):
            self.ask_commit()
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self.ask_commit()

    # -- what the task does -------------------------------------------------------------------

    def current(self) -> list[Event]:
        """The events that are being worked on, in order: none, one, or the list of a `take`."""
        return [*self._also, *([self.working_on] if self.working_on is not None else [])]

    def drop(self, reason: str) -> None:
        """Count the current event as given up by rule; it completes like any other."""
        self._metrics.counter("dropped", reason=reason).add()

    async def run(self) -> None:
        """Run the agent's function over this stream until it ends."""
        current_outlet.set(self)
        current_views.set(self.views)
        if not self.agent.yields:
            await self.agent.fn(self)
            return
        if self.answers is not None:
            async for value in self.agent.fn(self):
                self.reply(self.answers, value)
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

    def note(self, value: Any) -> None:
        """Note a yield, whatever it is."""
        if self.answers is not None:
            self.reply(self.answers, value)
            return
        assert self.agent.to is not None, "checked at start"
        self._effects.append(self._reply(self.agent.to, self.event, value))

    def reply(self, answers: Answers, value: Any) -> None:
        """Note a yield of an agent that answers who asks it."""
        event, to = self.event, self.agent.to
        if to is not None:
            self._effects.append(self._reply(to, event, value))
        answers.answer(self._asked, self._effects, value)

    def meet(self, answers: Answers, event: Event, *, passes: bool = True) -> None:
        """An event begins, of an agent that answers: while it asks something, there is an effect that answers.

        Args:
            passes: False: the agent does not see it.
        """
        asked = answers.meet(event, self._effects)
        if asked is not None and passes:
            self._asked.append(asked)

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

    def abandon(self) -> None:
        """Let go of the current events without completing them: their next owner does them again.

        An agent that goes on all the same finds no event any more, and can do nothing.
        """
        self._forget()
        self._also.clear()
        self.working_on = None

    def _forget(self) -> None:
        """Drop the notes of the current events."""
        self._letters = None
        self._asked.clear()
        self._effects.clear()
        self.children.clear()
        for view in self.touched:
            view.forget()
        self.touched.clear()
        if self.shares_tables:
            self.forget_reads()

    # -- completing ---------------------------------------------------------------------------

    def _complete(self, event: Event) -> None:
        """Apply the noted effects and retire the event, with those that were taken with it."""
        rejected = self._letters is not None and self._turn_to_letters()
        if self.touched and self.shares_tables:
            if any(view.outdated() for view in self.views.values()):
                raise Outdated(f"agent {self.agent.name!r}, {event!r}")
            self.forget_reads()
        effects = self._effects
        if effects:
            send = self._outbox.send
            gone = 0
            try:
                for effect in effects:
                    send(*effect)
                    gone += 1
            except AgenticError as error:
                if not gone and not rejected:
                    # Nothing of the event has left: it has failed like any other, and the policy applies.
                    raise
                raise ApplyFailed(f"agent {self.agent.name!r}, {event!r}: {error}") from error
            if rejected:
                self._count_rejected(1 + len(self._also))
            self.sent += gone
            if self.answers is not None:
                self._answered(self.answers)
            effects.clear()
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

    def _turn_to_letters(self) -> bool:
        """Where the current events were rejected, let their letters be their only effects; return whether they were."""
        letters = self._letters
        if letters is None:
            return False
        self._forget()
        self._effects += letters
        return True

    def _count_rejected(self, events: int) -> None:
        self._metrics.counter("dropped", reason="rejected").add(events)
        self._metrics.counter("dead_letters", agent=self.agent.name).add(events)

    def _answered(self, answers: Answers) -> None:
        """The effects of the current events are out, and so are the answers to them."""
        self._asked.clear()
        if answers.pressing(self._effects):
            self.ask_commit()

    def forget_reads(self) -> None:
        """The event is over; what it has read concerns nobody any more."""
        for view in self.views.values():
            view.read.clear()

    def _bear(self, event: Event) -> None:
        """Hand the event's children to the agents that read them; the offset waits for them."""
        event.origin.adopt(event.offset, len(self.children))
        for reader, descend, key, raw_key, value in self.children:
            origin = descend(event.origin)
            reader.put_child(Event(key, value, event.timestamp, event.offset, origin, raw_key, None))
        self.children.clear()


class _Events(Events):
    """The stream's events in place of their values."""

    def __init__(self, instance: Instance[Any]) -> None:
        self._instance = instance

    async def __anext__(self) -> Event:
        await self._instance.__anext__()
        return self._instance.event

    def take(self, n: int, *, within: timedelta | float) -> AsyncIterator[list[Event]]:
        return self._instance.lists(n, within, list)


class _Lists(AsyncIterator[list[R]]):
    """Lists of events that are complete together, or of what is shown of each."""

    def __init__(self, instance: Instance[Any], n: int, within: float, shown: Shown[R]) -> None:
        self._instance = instance
        self._n = n
        self._within = within
        self._shown = shown

    async def __anext__(self) -> list[R]:
        instance = self._instance
        await instance.__anext__()
        deadline = asyncio.get_running_loop().time() + self._within
        gathered = 1
        try:
            while gathered < self._n:
                gathered += instance.gather(self._n - gathered)
                if gathered == self._n or await instance.another(deadline) is None:
                    break
                gathered += 1
        except asyncio.CancelledError:
            # Whoever gave up waiting has not seen the list: it begins again with the same events.
            instance.put_back()
            raise
        if instance.closing:
            instance.abandon()
            raise StopAsyncIteration
        instance.taken()
        return self._shown(instance.current())


def _values(events: list[Event]) -> list[Any]:
    return [event.value for event in events]
