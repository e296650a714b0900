"""Agents as an app declares them. A declaration only records; the worker runs it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from agentic import asking
from agentic.core.times import seconds
from agentic.errors import ConfigurationError
from agentic.execution import INLINE, SERIAL, Execution
from agentic.stream import WAIT, HeadersLike, Reply, Stream
from agentic.table import Aggregation, Change, Changes, GlobalTable, Inner, Table
from agentic.topic import Regrouping, Source, Topic, is_async, name_of, unfiltered
from agentic.uses import mentions, tables_used
from agentic.windows import Emissions


class Agent:
    """An async function over a stream of events, and what it reads and feeds.

    Attributes:
        name: unique in the app; names it in logs, errors and metrics.
        fn: the function; it takes the stream.
        sources: what it reads.
        to: the topic that its yields go to, None without.
        yields: whether the function is a generator.
        execution: how its events are worked on, and what becomes of one that fails.
        deferred: the table of events that it has put off, None where it puts none off.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        sources: Sequence[Source[Any, Any]],
        *,
        to: Topic[Any, Any] | None,
        name: str,
        tables: Sequence[Table[Any, Any]] = (),
        execution: Execution = SERIAL,
    ) -> None:
        self.name = name
        self.fn = fn
        self.sources = tuple(sources)
        self.to = to
        self.yields = inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn)
        self.execution = execution
        self.deferred: Table[Any, Any] | None = None
        self._tables = tuple(tables)
        self.__doc__ = fn.__doc__

    @classmethod
    def declare(
        cls,
        fn: Callable[..., Any],
        sources: Sequence[Source[Any, Any]],
        *,
        to: Topic[Any, Any] | None,
        name: str | None,
        tables: Sequence[Table[Any, Any]] = (),
        **options: Any,
    ) -> Agent:
        """Check the shape of a declaration and record it.

        Args:
            options: see `Execution.declare`.

        Raises:
            ConfigurationError: `fn` is no async function of one argument, there is no source,
                a source, `to` or a table is none, one topic is given twice, or an option can't be.
        """
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"agent {name_of(fn)!r}: name={name!r}: a name is a string, and not an empty one")
        name = name or name_of(fn)
        execution = Execution.declare(name, **options)
        if execution.threads:
            if is_async(fn):
                raise ConfigurationError(
                    f"agent {name!r}: threads=True runs a plain function in threads, and this one is async: "
                    f"write def {name}(stream), or leave out threads="
                )
        elif not (inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)):
            raise ConfigurationError(
                f"agent {name!r}: write it as async def {name}(stream); a plain function that blocks takes threads=True"
            )
        try:
            inspect.signature(fn).bind(object())
        except TypeError:
            raise ConfigurationError(f"agent {name!r}: it must take one argument, the stream") from None
        if not sources:
            raise ConfigurationError(f"agent {name!r}: it reads nothing; write @app.agent(topic)")
        for source in sources:
            if not isinstance(source, Source):
                raise ConfigurationError(
                    f"agent {name!r}: it can't read {source!r}; give a topic made by app.topic(…), topic.filter(…), "
                    "topic.group_by(…), table.changes(), or of a table with windows emit_final(), emit_update() or late"
                )
        if to is not None and not isinstance(to, Topic):
            raise ConfigurationError(f"agent {name!r}: to={to!r} is no topic; make one by app.topic(…)")
        topics = [source.topic.name for source in sources]
        if twice := next((topic for topic in topics if topics.count(topic) > 1), None):
            raise ConfigurationError(f"agent {name!r}: topic {twice!r} is given twice; make one filter() of the two")
        for table in tables:
            if not isinstance(table, Table):
                raise ConfigurationError(f"agent {name!r}: {table!r} is no table; make one by app.table(…)")
        if execution.dead_letter is not None and execution.dead_letter.name in topics:
            raise ConfigurationError(
                f"agent {name!r}: its dead letter topic {execution.dead_letter.name!r} is what it reads: "
                "what it gives up would come again for ever; give another topic"
            )
        return cls(fn, sources, to=to, name=name, tables=tables, execution=execution)

    @property
    def serial(self) -> bool:
        """Is one event after the other worked on, and a failed one done with at once?"""
        return self.execution.plain and self.deferred is None

    @property
    def puts_off(self) -> bool:
        """May it put events off: as declared, or as its code and its retries say?"""
        execution = self.execution
        if execution.deferral is not None:
            return execution.deferral
        if execution.retry is not None and seconds(execution.retry.max) > INLINE:
            return True
        return mentions(self.fn, ("defer", "RetryLater"))

    @property
    def inputs(self) -> tuple[Topic[Any, Any], ...]:
        """What it reads, topics and what stays inside of its task."""
        return tuple(source.topic for source in self.sources)

    @property
    def topics(self) -> tuple[Topic[Any, Any], ...]:
        """The broker's topics that it reads."""
        return tuple(topic for topic in self.inputs if not isinstance(topic, Inner))

    @property
    def watched(self) -> tuple[Table[Any, Any], ...]:
        """The tables whose changes it reads."""
        return tuple(source.table for source in map(unfiltered, self.sources) if isinstance(source, Changes))

    @property
    def emissions(self) -> tuple[Emissions[Any], ...]:
        """What it reads of windowed tables."""
        return tuple(source for source in map(unfiltered, self.sources) if isinstance(source, Emissions))

    @cached_property
    def used(self) -> tuple[Table[Any, Any], ...]:
        """The tables that its code looks into or writes, those that it only reads the changes of left out."""
        found = dict.fromkeys((*self._tables, *tables_used(self.fn)))
        return tuple(table for table in found if not isinstance(table, GlobalTable))

    @cached_property
    def tables(self) -> tuple[Table[Any, Any], ...]:
        """The tables that it uses: those declared for it, and those found in its code when this is first asked."""
        deferred = () if self.deferred is None else (self.deferred,)
        used = dict.fromkeys((*self._tables, *self.watched, *tables_used(self.fn), *deferred))
        # A global table is nobody's in particular: it brings no tasks together.
        return tuple(table for table in used if not isinstance(table, GlobalTable))

    def check(self) -> None:
        """Raise `ConfigurationError` where the agent yields and has nowhere to."""
        if self.yields and self.to is None and not self.execution.replies:
            raise ConfigurationError(
                f"agent {self.name!r} yields, and has no topic to yield to: write @app.agent(…, to=topic); "
                "one that only answers who asks it, replies=True"
            )
        if self.execution.replies and not self.yields:
            raise ConfigurationError(
                f"agent {self.name!r}: replies=True says that it answers who asks it, and it never yields: "
                "yield the answer, or leave out replies="
            )

    # -- being asked --------------------------------------------------------------------------

    async def ask(
        self,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> Any:
        """Ask the agent, which is declared with ``replies=True``, and return what it yields first for that event.

        The request is a record of the agent's first topic: it is worked on like any other, by whichever
        worker has its partition, and again after a crash. The answer is one of the event's effects. For use
        in agents, tasks, lifespans and commands; elsewhere within ``async with app.client()``. It goes out
        at once, inside an agent too: there it is no effect of the event, and is repeated with it.

        Args:
            value, key: of the topic's types.
            timeout: how long the answer is waited for, a timedelta or seconds.
            headers: a mapping or pairs, for the agent to see.

        Raises:
            NoAnswer: the agent was done with the event and has yielded nothing.
            AskFailed: the event was given up; says why.
            AskTimeout: no answer came in time, a `TimeoutError`; the request may still be worked on.
            ConfigurationError: the agent answers nobody, or asks itself and would wait for itself.
            CodecError: key or value are not of the declared type.
            RuntimeError: no worker, session or client of this app is there.
        """
        return (await asking.ask(self._asker, self, value, key, timeout, headers, every=False))[0]

    async def ask_all(
        self,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> list[Any]:
        """Ask the agent and return all that it yields for that event, in order; nothing, if it yields nothing.

        They are there when the event is complete, all together. Otherwise as `ask`.
        """
        return await asking.ask(self._asker, self, value, key, timeout, headers, every=True)

    async def cast(self, value: Any = None, *, key: Any = None, headers: HeadersLike | None = None) -> None:
        """Tell the agent something and wait for no answer: a send to its first topic, see `Topic.send`."""
        await asking.inlet(self).send(value, key=key, headers=headers)

    @property
    def _asker(self) -> asking.Asker | None:
        return self.inputs[0].home.asker

    def __repr__(self) -> str:
        return f"<Agent {self.name}>"


def feeder(table: Table[Any, Any]) -> Agent:
    """Return the agent that fills a table from its source."""
    assert table.source is not None, "only such tables are fed"

    async def feed(stream: Stream[Any]) -> None:
        async for event in stream.events():
            table.feed(event)

    return Agent(feed, [table.source], to=None, name=f"table {table.name}", tables=[table])


def regrouper(regrouping: Regrouping) -> Agent:
    """Return the agent that brings events to the partitions of their new keys."""
    fn = regrouping.fn

    async def regroup(stream: Any) -> AsyncIterator[Reply]:
        async for event in stream.events():
            key = fn(event.value)
            if key is None:
                stream.drop("null_key")
            else:
                yield Reply(event.value, key=key, headers=event.headers)

    return Agent(regroup, [regrouping.source], to=regrouping.topic, name=f"group_by {regrouping.topic.name}")


def aggregators(aggregation: Aggregation) -> list[Agent]:
    """Return the agents of a table aggregation: one takes rows to their groups, the other keeps the totals.

    Source: spec, D.9: a row that changes its group leaves the old one before it comes to the new one;
    one that stays in its group is taken out and put in at once.
    """
    table, fn, topic, total, initial, add, subtract = aggregation

    async def regroup(changes: Stream[Change]) -> AsyncIterator[Reply]:
        async for key, old, new in changes:
            source = None if old is None else fn(key, old)
            target = None if new is None else fn(key, new)
            if source is not None and source == target:
                yield Reply((old, new), key=target)
                continue
            if source is not None:
                yield Reply((old, None), key=source)
            if target is not None:
                yield Reply((None, new), key=target)

    async def aggregate(stream: Stream[tuple[Any, Any]]) -> None:
        async for old, new in stream:
            key = stream.event.key
            current = total.get(key)
            if old is not None and current is not None:
                current = subtract(current, old)
            if new is not None:
                current = add(initial() if current is None else current, new)
            if current is None:
                total.pop(key, None)
            else:
                total[key] = current

    return [
        Agent(regroup, [table.changes()], to=topic, name=f"group_by {topic.name}"),
        Agent(aggregate, [topic], to=None, name=f"table {total.name}", tables=[total]),
    ]
