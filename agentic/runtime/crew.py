"""Those who work on one agent's events in one task, and what they share with the rest of the task."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentic.agent import Agent
from agentic.brokers.base import TopicPartition
from agentic.core.breaker import Circuit
from agentic.core.clock import Clock
from agentic.core.rate import TokenBucket
from agentic.errors import AgentFailed, AgenticError, words
from agentic.metrics import Metrics
from agentic.runtime.answers import Answers
from agentic.runtime.gate import Gate
from agentic.runtime.holding import Holding
from agentic.runtime.instance import Instance
from agentic.runtime.operators import Operator
from agentic.runtime.outbox import Outbox
from agentic.runtime.tables import TableView
from agentic.runtime.watch import Hindrance
from agentic.settings import Settings
from agentic.stream import Event
from agentic.table import Table

Views = dict[Table[Any, Any], TableView]


@dataclass
class Brakes:
    """What holds an agent's events back in all tasks of a worker together.

    Attributes:
        rate: how many may begin in a second.
        circuit: stops beginning events while too many fail.
    """

    rate: TokenBucket | None = None
    circuit: Circuit | None = None

    @classmethod
    def of(cls, agent: Agent) -> Brakes | None:
        """Return an agent's brakes; None for one that has none."""
        execution = agent.execution
        if execution.rate is None and execution.breaker is None:
            return None
        return cls(
            None if execution.rate is None else TokenBucket(execution.rate),
            None if execution.breaker is None else Circuit(execution.breaker),
        )


@dataclass
class Place:
    """What the crews of one task share.

    Attributes:
        task: the task's name.
        partition: its number.
        outbox: takes the effects.
        ask_commit: asks for a checkpoint; returns a future that is done with it.
        gate: holds events back while children of others are under way; None where no event can have any.
        views: makes the tables that an agent uses as one instance sees them.
        fail: stops the worker.
        drained: told when a crew has run out of events, or has room for more.
        now: the wall clock, in ms.
        dirty: told when there is something to commit that no record has brought.
        brakes: by the name of the agent.
        shared: the tables that more than one of the agents uses.
        base_of: gives the lowest unfinished offset of a topic's partition, None while nothing is known of it.
        holding: by the name of the agent, what a test lets its events wait for when they are done.
        timed: does anything in the task go by its clock?
        clock: the task's stream time, held back by what is in flight.
    """

    task: str
    partition: int
    settings: Settings
    outbox: Outbox
    metrics: Metrics
    ask_commit: Callable[[], asyncio.Future[None]]
    gate: Gate | None
    views: Callable[[Instance[Any]], Views]
    fail: Callable[[BaseException], None]
    drained: Callable[[Crew], None]
    now: Callable[[], int]
    dirty: Callable[[], None]
    base_of: Callable[[str, int], int | None]
    brakes: Mapping[str, Brakes] = field(default_factory=dict)
    shared: frozenset[Table[Any, Any]] = frozenset()
    holding: Mapping[str, Holding] = field(default_factory=dict)
    timed: bool = False
    clock: Clock = field(default_factory=Clock)


class Crew(ABC):
    """Works on one agent's events in one task.

    Attributes:
        agent: whose function runs.
        handed: events handed over so far, without those that were put off or left to their next owner.
        answers: what those are told who ask the agent; None where it answers nobody.
        runs: what runs the agent's function, in tasks of the loop.
    """

    def __init__(self, agent: Agent, place: Place) -> None:
        self.agent = agent
        self.place = place
        self.handed = 0
        self.closing = False
        #: Windowed tables that it writes while other events may be written at the same time: an event at work keeps
        #: what was not late when it began from being late.
        self.timed: list[Operator] = []
        exactly_once = place.settings.delivery == "exactly_once"
        self.answers = Answers(agent, place.now, hurry=exactly_once) if agent.execution.replies else None

    @property
    @abstractmethod
    def runs(self) -> list[asyncio.Task[None]]: ...

    @abstractmethod
    def start(self, time: int) -> None:
        """Begin; the tables are there.

        Args:
            time: how far the events had come before a restart, by their timestamps, in ms.
        """

    @abstractmethod
    def put(self, events: Iterable[Event]) -> None:
        """Hand events over, in order."""

    @abstractmethod
    def put_child(self, event: Event) -> None:
        """Hand over a child of an event of the task."""

    @abstractmethod
    def put_children(self, events: Sequence[Event]) -> None:
        """Hand over several, in order."""

    @abstractmethod
    def wake(self) -> None:
        """Look again whether there is something that may begin."""

    @abstractmethod
    def drop_roots(self) -> None:
        """Leave to the next owner what waits and has no parent."""

    @abstractmethod
    def close(self) -> None:
        """Begin nothing more: what waits is left to the next owner, what is under way may finish."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of what is under way: its next owner does it again."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Events handed over and not completed."""

    @property
    def parked(self) -> int:
        """Events that were put off."""
        return 0

    @property
    @abstractmethod
    def sent(self) -> int:
        """Effects applied so far."""

    @property
    @abstractmethod
    def clock(self) -> int:
        """The time by which rows of tables expire, in ms."""

    @property
    @abstractmethod
    def views(self) -> Iterable[Table[Any, Any]]:
        """The tables that have been looked at, or can be."""

    @abstractmethod
    def hindrance(self, tp: TopicPartition, offset: int) -> Hindrance | None:
        """Return where the event at an offset is; None where it is not at work."""

    @property
    def lasting(self) -> list[asyncio.Task[None]]:
        """Those runs whose end is worth waiting for."""
        return self.runs

    def done(self) -> int:
        """Events completed so far."""
        return self.handed - self.pending

    def leave(self, drop: Callable[[], None]) -> None:
        """Leave what is dropped to its next owner: it is not done here."""
        before = self.pending
        drop()
        self.handed -= before - self.pending

    def broken(self, run: asyncio.Task[None], events: list[Event]) -> AgenticError | None:
        """Return what to say of a run that was ended by what no policy is for, as no `Exception` is; else None.

        Args:
            events: what it had in hand.
        """
        error = None if run.cancelled() else run.exception()
        if error is None:
            return None
        failure = AgentFailed(f"agent {self.agent.name!r} failed{at(events)}: {words(error)}")
        failure.__cause__ = error
        return failure

    def ended_early(self, where: str) -> AgenticError:
        """Return what to say of an agent whose function returned."""
        return AgentFailed(
            f"agent {self.agent.name!r} ended before its stream did{where}; it must loop over the stream"
        )


def at(events: list[Event]) -> str:
    """Say where an agent is: topic, partition, offset and key of the last of some events."""
    if not events:
        return ""
    event = events[-1]
    several = f" (the last of {len(events)} taken together)" if len(events) > 1 else ""
    return f" on {event.topic}-{event.partition} offset {event.offset} key {event.key!r}{several}"
