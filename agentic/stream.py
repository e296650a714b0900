"""What an agent sees: events, and the stream that brings them.

The classes here say what a stream promises; the worker has the one that does it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from agentic.agent import Agent
    from agentic.topic import Topic

T = TypeVar("T")

#: Headers as users give them: a mapping, or pairs where a name may repeat.
HeadersLike = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]


#: Characters of an event's value that a message quotes.
LONGEST_SHOWN = 200

#: Seconds that an answer is waited for by who asks an agent.
WAIT = 30.0


class Origin(Protocol):
    """Where events come from: one partition of a topic, as the worker keeps it."""

    topic: Topic[Any, Any]
    partition: int
    #: See `Event.deferred`.
    deferred: int

    def retire(self, offset: int, /) -> bool:
        """One agent has finished the event at this offset; True when it was the last."""

    def adopt(self, offset: int, children: int, /) -> None:
        """The event at this offset has so many children, which must be finished as well."""

    def idempotency_key(self, event: Event, /) -> str:
        """See `Event.idempotency_key`."""


class Event(msgspec.Struct, eq=False):
    """A record as an agent sees it.

    Attributes:
        key: decoded, None for a null key.
        value: decoded, None for a tombstone.
        timestamp: milliseconds since the epoch.
        offset: its place in its partition.
        raw_key, raw_value: the record's own bytes; of a change of a table there is no value's.
    """

    key: Any
    value: Any
    timestamp: int
    offset: int
    origin: Any
    raw_key: bytes | None
    raw_headers: Any
    raw_value: bytes | None = None

    @property
    def topic(self) -> str:
        """The name of the topic that it was read from."""
        return str(self.origin.topic.name)

    @property
    def partition(self) -> int:
        """The number of the partition that it was read from."""
        return int(self.origin.partition)

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Its headers, pairs in their order; a name may repeat."""
        raw = self.raw_headers
        if raw is not None and not isinstance(raw, tuple):
            raw = self.raw_headers = tuple((name, value or b"") for name, value in raw.headers() or ())
        return raw or ()

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime in UTC."""

        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def idempotency_key(self) -> str:
        """The event's name, the same each time that it is done again: after a retry, a crash, a deferral.

        Give it to services outside, which no delivery guarantee covers, so that they can tell a repetition.
        Source: spec, B7.4.
        """
        return str(self.origin.idempotency_key(self))

    @property
    def deferred(self) -> int:
        """How often it has been put off: by `Stream.defer`, by a long wait for its next attempt, or by policy.

        0 the first time. It is kept with the event, so a crash or a new owner changes nothing of it.
        """
        return int(self.origin.deferred)

    def __repr__(self) -> str:
        value = repr(self.value)
        shown = value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "…"
        return f"<Event {self.topic}-{self.partition}@{self.offset} key={self.key!r} value={shown}>"


class _Same:
    """Stands for "as the event has it" where None has a meaning of its own."""

    def __repr__(self) -> str:
        return "SAME"


SAME: Final = _Same()


class Reply:
    """Something for an agent to yield where a bare value does not say it all.

    Args:
        value: what to send; None is a tombstone.
        key: the record's key; by default the event's, None for a null key.
        headers: a mapping or pairs; none by default.
        timestamp: milliseconds or an aware datetime; by default the event's.
    """

    __slots__ = ("headers", "key", "timestamp", "value")

    def __init__(
        self,
        value: Any,
        *,
        key: Any = SAME,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamp = timestamp

    def __repr__(self) -> str:
        return f"Reply({self.value!r}, key={self.key!r}, timestamp={self.timestamp!r})"


class Stream(ABC, Generic[T]):
    """The events of one task's partitions, one after the other; with ``concurrency=`` an instance's share of them.

    An event is complete when the agent asks for the next one. Only then do its effects
    (what was yielded or sent meanwhile) leave the worker, all together; if the agent
    raises instead, none does.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def event(self) -> Event:
        """The event that is being worked on; within `take`, the last one of the list.

        Raises:
            LookupError: there is none: the loop has not begun, or it has ended.
        """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[T]: ...

    @abstractmethod
    def events(self) -> Events:
        """Iterate over events in place of their values; ``events().take(…)`` over lists of them."""

    @abstractmethod
    def take(self, n: int, *, within: timedelta | float) -> AsyncIterator[list[T]]:
        """Iterate over lists of values: `n` each, or as many as came `within` that time of the first.

        All events of a list are complete together, when the next list is asked for. What is
        yielded for a list carries the key and timestamp of its last event.

        Args:
            n: at least 1.
            within: a timedelta, or seconds.
        """

    @property
    @abstractmethod
    def attempt(self) -> int:
        """How often the current event has been tried, this time included: 1, and more after attempts that failed.

        A restart begins anew to count, but for an event that was put off. To `defer` it is no failure.
        """

    @abstractmethod
    def reject(self, reason: str) -> None:
        """Give the current event up: it goes to the dead letter topic as it came, with the reason.

        That is its one effect, and it is complete; what was or is noted for it besides is dropped.

        Raises:
            ConfigurationError: there is no dead letter topic.
        """

    @abstractmethod
    def defer(
        self,
        after: timedelta | float,
        *,
        reason: str = "",
        block_key: bool = True,
        hold: Literal["event"] | None = "event",
    ) -> None:
        """Put the current event off: it comes again after some time on the wall clock.

        Durably: the event moves to a table of the task, in the same commit as its offset, and survives
        any crash; it keeps nothing back. What was or is noted for it besides is dropped.

        Args:
            after: a timedelta, or seconds.
            reason: kept with it, for whoever looks.
            block_key: later events of its key wait behind it; False: they overtake it.
            hold: "event": the task's stream time does not pass it, as if it were still to come; None: it does.

        Raises:
            ConfigurationError: the agent is not known to put events off; declare it by ``deferral=True``.
            ValueError, TypeError: a duration that can't be.

        Source: spec, B7.8.
        """

    @abstractmethod
    def commit(self) -> Awaitable[None]:
        """Ask for a commit without waiting for the interval.

        Returns:
            Something to await, or not: it is done when all events are committed that were complete when
            this was called, the current one not among them. In an agent that reads the changes of a
            table it is done at once, since the commit waits for these.
        """


class Events(AsyncIterator[Event]):
    """The events of a stream."""

    @abstractmethod
    def take(self, n: int, *, within: timedelta | float) -> AsyncIterator[list[Event]]:
        """Iterate over lists of events, as `Stream.take` does over lists of values."""


class BlockingEvents(Iterator[Event]):
    """The events of a stream, in a thread."""

    @abstractmethod
    def take(self, n: int, *, within: timedelta | float) -> Iterator[list[Event]]:
        """See `Events.take`."""


class BlockingStream(ABC, Generic[T]):
    """The events of an agent that is a plain function and runs in threads (``threads=True``).

    It promises what `Stream` does. Iterate over it with ``for``; each step waits for the next event.
    Tables are used as in any agent; `Topic.send` and `Agent.ask` can't be awaited here, `send`, `ask` and `ask_all`
    take their place.
    """

    @property
    @abstractmethod
    def event(self) -> Event:
        """See `Stream.event`."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """See `Stream.attempt`."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]: ...

    @abstractmethod
    def events(self) -> BlockingEvents:
        """See `Stream.events`."""

    @abstractmethod
    def take(self, n: int, *, within: timedelta | float) -> Iterator[list[T]]:
        """See `Stream.take`."""

    @abstractmethod
    def send(
        self,
        topic: Topic[Any, Any],
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Send a record, as an effect of the current event; arguments and errors as for `Topic.send`."""

    @abstractmethod
    def ask(
        self,
        agent: Agent,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> Any:
        """Ask an agent and return its answer, which the thread waits for; arguments and errors as for `Agent.ask`."""

    @abstractmethod
    def ask_all(
        self,
        agent: Agent,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> list[Any]:
        """Ask an agent and return all its answers: see `ask`, and `Agent.ask_all`."""

    @abstractmethod
    def reject(self, reason: str) -> None:
        """See `Stream.reject`."""

    @abstractmethod
    def defer(
        self,
        after: timedelta | float,
        *,
        reason: str = "",
        block_key: bool = True,
        hold: Literal["event"] | None = "event",
    ) -> None:
        """See `Stream.defer`."""

    @abstractmethod
    def commit(self) -> None:
        """Return when all events are committed that were complete when this was called."""


class Outlet(Protocol):
    """Takes what `Topic.send` is given: the current event's effects, or the worker's own producer."""

    def send(
        self,
        topic: Topic[Any, Any],
        key: Any,
        value: Any,
        headers: HeadersLike | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> Coroutine[Any, Any, None]: ...


#: The outlet of the code that runs: an agent's stream, or the app's own producer outside of agents.
current_outlet: ContextVar[Outlet] = ContextVar("agentic_outlet")
