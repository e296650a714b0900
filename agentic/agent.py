"""Agents as an app declares them. A declaration only records; the worker runs it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cached_property
from typing import Any

from agentic.errors import ConfigurationError
from agentic.stream import Reply, Stream
from agentic.table import Aggregation, Change, Changes, GlobalTable, Inner, Table
from agentic.topic import Regrouping, Source, Topic, name_of, unfiltered
from agentic.uses import tables_used


class Agent:
    """An async function over a stream of events, and what it reads and feeds.

    Attributes:
        name: unique in the app; names it in logs, errors and metrics.
        fn: the function; it takes the stream.
        sources: what it reads.
        to: the topic that its yields go to, None without.
        yields: whether the function is an async generator.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        sources: Sequence[Source[Any, Any]],
        *,
        to: Topic[Any, Any] | None,
        name: str,
        tables: Sequence[Table[Any, Any]] = (),
    ) -> None:
        self.name = name
        self.fn = fn
        self.sources = tuple(sources)
        self.to = to
        self.yields = inspect.isasyncgenfunction(fn)
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
    ) -> Agent:
        """Check the shape of a declaration and record it.

        Raises:
            ConfigurationError: `fn` is no async function of one argument, there is no source,
                a source, `to` or a table is none, or one topic is given twice.
        """
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"agent {name_of(fn)!r}: name={name!r}: a name is a string, and not an empty one")
        name = name or name_of(fn)
        if not (inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)):
            raise ConfigurationError(f"agent {name!r}: write it as async def {name}(stream)")
        try:
            inspect.signature(fn).bind(object())
        except TypeError:
            raise ConfigurationError(f"agent {name!r}: it must take one argument, the stream") from None
        if not sources:
            raise ConfigurationError(f"agent {name!r}: it reads nothing; write @app.agent(topic)")
        for source in sources:
            if not isinstance(source, Source):
                raise ConfigurationError(
                    f"agent {name!r}: it can't read {source!r}; give a topic made by app.topic(…), or topic.filter(…)"
                )
        if to is not None and not isinstance(to, Topic):
            raise ConfigurationError(f"agent {name!r}: to={to!r} is no topic; make one by app.topic(…)")
        topics = [source.topic.name for source in sources]
        if twice := next((topic for topic in topics if topics.count(topic) > 1), None):
            raise ConfigurationError(f"agent {name!r}: topic {twice!r} is given twice; make one filter() of the two")
        for table in tables:
            if not isinstance(table, Table):
                raise ConfigurationError(f"agent {name!r}: {table!r} is no table; make one by app.table(…)")
        return cls(fn, sources, to=to, name=name, tables=tables)

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

    @cached_property
    def tables(self) -> tuple[Table[Any, Any], ...]:
        """The tables that it uses: those declared for it, and those found in its code when this is first asked."""
        used = dict.fromkeys((*self._tables, *self.watched, *tables_used(self.fn)))
        # A global table is nobody's in particular: it brings no tasks together.
        return tuple(table for table in used if not isinstance(table, GlobalTable))

    def check(self) -> None:
        """Raise `ConfigurationError` where the agent yields and has nowhere to."""
        if self.yields and self.to is None:
            raise ConfigurationError(
                f"agent {self.name!r} yields, and has no topic to yield to: write @app.agent(…, to=topic)"
            )

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
