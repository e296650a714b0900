"""The app: what a user's module declares, and all that a worker needs to know of it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from agentic import settings as _settings
from agentic.agent import Agent, aggregators, feeder, regrouper
from agentic.asking import Client, declare_replies
from agentic.circles import check_dead_letters
from agentic.codecs import Codec
from agentic.core.breaker import Breaker
from agentic.core.retry import Retry
from agentic.errors import ConfigurationError
from agentic.execution import Emit, HotKey, OnExhausted, Order
from agentic.metrics import Metrics
from agentic.settings import Settings
from agentic.table import GlobalTable, Table
from agentic.topic import Filtered, Home, Source, Topic, nearest
from agentic.windows import Windowable

F = TypeVar("F", bound=Callable[..., Any])


class Command:
    """A command of the user's own: ``agentic -A app NAME``.

    Attributes:
        name: on the command line.
        fn: plain or async.
        params: click parameters, for the command line to attach.
        help: its first words in ``--help``.
    """

    def __init__(self, name: str, fn: Callable[..., Any], params: Sequence[Any]) -> None:
        self.name = name
        self.fn = fn
        self.params = tuple(params)
        self.help = inspect.getdoc(fn) or ""


class App:
    """A stream processing application.

    Args:
        name: names the consumer group and the app's own topics.
        dead_letter: a topic, or its name, for records that are given up.
        settings: see `agentic.settings.Settings`; each is also ``AGENTIC_<NAME>`` in the
            environment, which wins over what stands here.

    Raises:
        ConfigurationError: an unknown setting, or a value that can't be.

    Declaring does no I/O and needs no event loop: a module with an app may be imported anywhere.
    """

    def __init__(self, name: str, *, dead_letter: Topic[Any, Any] | str | None = None, **settings: Any) -> None:
        self._given: dict[str, object] = {"name": name, **settings}
        if dead_letter is not None:
            self._given["dead_letter"] = dead_letter.name if isinstance(dead_letter, Topic) else dead_letter
        self.settings: Settings = _settings.resolve(self._given)
        self.metrics = Metrics()
        self.home = Home(self.settings.name)
        self.topics: dict[str, Topic[Any, Any]] = self.home.topics
        self.tables: dict[str, Table[Any, Any]] = self.home.tables
        self.agents: dict[str, Agent] = {}
        self.commands: dict[str, Command] = {}
        self.tasks: list[Callable[[], Awaitable[None]]] = []
        self._lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None

    @property
    def name(self) -> str:
        """The app's name, and its consumer group's."""
        return self.settings.name

    def configure(self, **override: Any) -> None:
        """Override settings, as the command line does; strings are read as in the environment.

        Raises:
            ConfigurationError: an unknown setting, or a value that can't be.
        """
        self.settings = _settings.resolve(self._given, override=override)

    def topic(
        self,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        partitions: int | None = None,
        timestamp: Callable[[Any], int | datetime] | None = None,
        codec: Codec[Any] | None = None,
        internal: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> Topic[Any, Any]:
        """Declare a topic.

        Args:
            name: the broker's name for it; an internal topic gets the app's name in front.
            key: type of the keys; by default the bytes as they are.
            value: type of the values; by default whatever the JSON says. bytes and str are taken
                as they are; dict, list, numbers, dataclasses, TypedDicts, attrs classes, msgspec
                Structs and pydantic models as JSON.
            partitions: how many, where it has to be made.
            timestamp: gives an event's time from its value, in place of the record's own.
            codec: an object with ``decode(bytes)`` and ``encode(value)``, in place of `value`.
            internal: the app's own topic, made for it on any broker.
            config: further properties where it has to be made on Kafka, by their Kafka names.

        Raises:
            ConfigurationError: a name or number that can't be, a type that no codec takes, or a
                topic that is declared already.
        """
        if not isinstance(name, str):
            raise ConfigurationError(f"topic name {name!r} is a {type(name).__name__}, and must be a str")
        full = f"{self.name}-{name}" if internal else name
        if full in self.topics:
            raise ConfigurationError(f"topic {full!r} is declared twice; keep the first in a variable and use that")
        topic: Topic[Any, Any] = Topic(
            self.home,
            full,
            key=key,
            value=value,
            partitions=partitions,
            timestamp=timestamp,
            codec=codec,
            internal=internal,
            config=config,
        )
        self.topics[full] = topic
        return topic

    def table(
        self,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        default: Callable[[], Any] | None = None,
        ttl: timedelta | None = None,
        source: Topic[Any, Any] | None = None,
        changelog: bool = True,
        versioned: timedelta | None = None,
        check_keys: bool = True,
    ) -> Windowable[Any, Any]:
        """Declare a table: a dict that is partitioned, durable, and right after any crash.

        Args:
            name: unique in the app; its changelog is the topic ``<app>-<name>-changelog``.
            key, value: types, as for topics; with `source`, by default that topic's.
            default: gives the value of a key without a row, as ``default=int`` does for a count.
            ttl: how long a row lives after its last update, by the time of the events.
            source: a topic whose records fill the table, the last of each key; a tombstone deletes.
                It is its own changelog, and agents only read such a table.
            changelog: False for scratch state that need not survive the worker's disk.
            versioned: how far back `Table.at` knows the rows: the table keeps the versions of each key, by the
                events' timestamps. An update that is older than that is dropped, and counted as ``expired``.
            check_keys: False lets an agent write keys of other partitions, each task its own rows of them.

        Raises:
            ConfigurationError: a name, type or duration that can't be, or a table of this name is
                declared already.
        """
        if name in self.tables:
            raise ConfigurationError(f"table {name!r} is declared twice; keep the first in a variable and use that")
        if source is not None:
            _check_whole(name, source)
        table: Windowable[Any, Any] = Windowable(
            self.home,
            name,
            key=key,
            value=value,
            default=default,
            ttl=ttl,
            source=source,
            changelog=changelog,
            versioned=versioned,
            check_keys=check_keys,
        )
        self.tables[name] = table
        return table

    def global_table(
        self,
        name: str,
        source: Topic[Any, Any],
        *,
        key: Any = None,
        value: Any = None,
        default: Callable[[], Any] | None = None,
    ) -> GlobalTable[Any, Any]:
        """Declare a table of which each worker has the whole, loaded before the first event: for what all keys need.

        Args:
            name: unique in the app.
            source: the topic whose records fill it, the last of each key; a tombstone deletes.
            key, value: types; by default those of the topic.
            default: gives the value of a key without a row.

        Raises:
            ConfigurationError: a name that can't be or is taken, `source` is no topic, or its keys have no type.
        """
        if name in self.tables:
            raise ConfigurationError(f"table {name!r} is declared twice; keep the first in a variable and use that")
        _check_whole(name, source)
        if not isinstance(source, Topic):
            raise ConfigurationError(f"table {name!r}: source={source!r} is no topic; make one by app.topic(…)")
        table: GlobalTable[Any, Any] = GlobalTable(self.home, name, source, key=key, value=value, default=default)
        self.tables[name] = table
        return table

    def agent(
        self,
        *sources: Source[Any, Any],
        to: Topic[Any, Any] | None = None,
        name: str | None = None,
        tables: Sequence[Table[Any, Any]] = (),
        concurrency: int | Literal["auto"] = 1,
        order: Order = "key",
        emit: Emit = "completion",
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        dead_letter: Topic[Any, Any] | None = None,
        on_exhausted: OnExhausted | None = None,
        threads: bool = False,
        rate_limit: str | float | None = None,
        max_in_flight_bytes: int | None = None,
        breaker: Breaker | None = None,
        deferral: bool | None = None,
        pin_limit: timedelta | float | None = None,
        hot_key: HotKey = "wait",
        replies: bool = False,
    ) -> Callable[[Callable[..., Any]], Agent]:
        """Declare an agent: ``async def fn(stream)`` over the events of `sources`.

        By default it works on one event after the other, in the order of each partition, and an event that
        fails meets the app's ``on_error``. With `concurrency` it runs so many instances of the function for
        each partition; commits go in order all the same.

        Args:
            sources: topics, or parts of topics (`Topic.filter`). Events of several sources come
                by their timestamps, the smallest first, as far as they are there.
            to: where the agent's yields go. Without it, it may not yield.
            name: by default the function's.
            tables: tables that it uses, beside those that its code refers to by name: those are found.
            concurrency: events of one partition that are worked on at once, 1 to 500; "auto" finds out how
                many pay.
            order: "key": events of a key come one after the other, those with a null key in no order;
                "partition": all of a partition do; "none": no order, and no writes to tables.
            emit: "completion": an event's effects leave when it is complete; "offset": in the order in which
                the events came.
            retry: when a failed event is tried again; without it, never. Meanwhile its key waits, and
                others overtake it, whatever the concurrency; with order="partition" all wait.
            timeout: how long one attempt may take, a timedelta or seconds; one that takes longer has failed.
            dead_letter: where events go that are given up; by default the app's.
            on_exhausted: what becomes of an event that has failed for good: "dead_letter", "stop" (the worker),
                "skip" or "defer"; by default "dead_letter" where one is declared here, else as ``on_error`` says.
            threads: `fn` is a plain ``def fn(stream)`` that may block; each instance has a thread.
            rate_limit: events that a worker begins, further attempts included, as "100/s", "6000/m", or a
                number for each second.
            max_in_flight_bytes: no event begins in a partition while those at work have so many bytes of values.
            breaker: stops beginning events while too many fail.
            deferral: may the agent put events off? That takes a table, ``<name>-deferred``. By default yes
                where its code uses `Stream.defer` or `RetryLater`, where `retry` may wait for more than
                30 s, and where `on_exhausted` or `hot_key` asks for it.
            pin_limit: how long an event may keep the commit position back, five minutes by default; then it is
                put off, dead-lettered, or stops the worker, whichever the agent can.
            hot_key: "park" puts events of a key that has 64 waiting into the table of deferred events, so that
                other keys go on; "wait" leaves them where they are. For order="key" alone.
            replies: the agent answers who asks it (`Agent.ask`), and may yield without `to`.

        Raises:
            ConfigurationError: not an async function of one argument, no source, a name that
                another agent has, or an option that can't be.
        """
        options = {
            "concurrency": concurrency,
            "order": order,
            "emit": emit,
            "retry": retry,
            "timeout": timeout,
            "dead_letter": dead_letter,
            "on_exhausted": on_exhausted,
            "threads": threads,
            "rate_limit": rate_limit,
            "max_in_flight_bytes": max_in_flight_bytes,
            "breaker": breaker,
            "deferral": deferral,
            "pin_limit": pin_limit,
            "hot_key": hot_key,
            "replies": replies,
        }

        def declare(fn: Callable[..., Any]) -> Agent:
            agent = Agent.declare(fn, sources, to=to, name=name, tables=tables, **options)
            if agent.name in self.agents:
                raise ConfigurationError(f"agent {agent.name!r} is declared twice; give one of them a name=")
            if agent.puts_off:
                agent.deferred = self.table(f"{agent.name}-deferred", key=bytes, value=bytes)
            if agent.execution.replies:
                declare_replies(self.home)
            self.agents[agent.name] = agent
            return agent

        if len(sources) == 1 and inspect.isfunction(sources[0]):
            raise ConfigurationError(f"agent {sources[0].__name__!r}: say what it reads: @app.agent(topic)")
        return declare

    def task(self, fn: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Declare a coroutine function that runs while the worker does; when it raises, the worker stops.

        Raises:
            ConfigurationError: it is no async function.
        """
        if not inspect.iscoroutinefunction(fn):
            raise ConfigurationError(f"task {getattr(fn, '__name__', fn)!r}: write it as async def")
        self.tasks.append(fn)
        return fn

    def lifespan(self, fn: Callable[[], AsyncIterator[None]]) -> Callable[[], AsyncIterator[None]]:
        """Declare what surrounds a worker's work: an async generator function with one ``yield``.

        What stands before the yield runs before the first event; what follows, after the last.

        Raises:
            ConfigurationError: it is no async generator function, or there is one already.
        """
        if not inspect.isasyncgenfunction(fn):
            raise ConfigurationError("lifespan: write it as async def with one yield")
        if self._lifespan is not None:
            raise ConfigurationError("lifespan: there is one already; put both into one function")
        self._lifespan = asynccontextmanager(fn)
        return fn

    @asynccontextmanager
    async def surrounded(self) -> AsyncIterator[None]:
        """Enter and leave the app's lifespan, if it has one."""
        if self._lifespan is None:
            yield
        else:
            async with self._lifespan():
                yield

    def command(self, *params: Any, name: str | None = None) -> Callable[[F], F]:
        """Declare a command: a plain or async function, called by ``agentic -A app NAME``.

        Inside an async one, `Topic.send` works.

        Args:
            params: click options and arguments, as ``click.Option(["--day"])``; or decorate the
                function with ``@click.option(…)`` below this.
            name: by default the function's, with dashes.

        Raises:
            ConfigurationError: the name is taken.
        """

        def declare(fn: F) -> F:
            called = name or fn.__name__.replace("_", "-")
            if called in self.commands:
                raise ConfigurationError(f"command {called!r} is declared twice; give one of them a name=")
            self.commands[called] = Command(called, fn, params)
            return fn

        if len(params) == 1 and inspect.isfunction(params[0]) and name is None:
            # Written as @app.command, without parentheses: the only parameter is the function.
            function, params = params[0], ()
            return declare(function)
        return declare

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Return an async context manager in which agents can be asked and topics sent to, without a worker.

        For scripts, web handlers, notebooks: ``async with app.client() as client``. It connects on entry,
        which takes a while: open one and keep it, rather than one for each request. It belongs to the loop that
        it was opened on. Within it, `Agent.ask`, `Agent.cast` and `Topic.send` work as well.

        Raises:
            BrokerUnavailable: not reached within the app's ``start_timeout``.
        """
        from importlib import import_module

        client: Callable[[App], AbstractAsyncContextManager[Client]] = import_module("agentic.runtime").client
        return client(self)

    @property
    def global_tables(self) -> list[GlobalTable[Any, Any]]:
        """The tables of which each worker has the whole, in the order of declaration."""
        return [table for table in self.tables.values() if isinstance(table, GlobalTable)]

    def processors(self) -> list[Agent]:
        """The agents, and before them those that fill tables and bring events to other keys."""
        own = [feeder(table) for table in self.tables.values() if table.source is not None]
        own += [regrouper(regrouping) for regrouping in self.home.regroupings]
        own += [agent for aggregation in self.home.aggregations for agent in aggregators(aggregation)]
        return [*own, *self.agents.values()]

    def sources(self) -> list[Topic[Any, Any]]:
        """The topics that are read, in the order of declaration."""
        read = {topic.name for agent in self.processors() for topic in agent.topics}
        return [topic for topic in self.topics.values() if topic.name in read]

    def sinks(self) -> list[Topic[Any, Any]]:
        """The topics that agents yield to, and declared dead letter topics, in the order of declaration."""
        fed = {agent.to.name for agent in self.agents.values() if agent.to is not None}
        letters = (agent.execution.dead_letter for agent in self.agents.values())
        fed |= {topic.name for topic in letters if topic is not None}
        fed.add(self.settings.dead_letter or "")
        return [topic for topic in self.topics.values() if topic.name in fed]

    def find_topic(self, name: str) -> Topic[Any, Any]:
        """Return the declared topic of this name; `ConfigurationError` names the nearest for another."""
        try:
            return self.topics[name]
        except KeyError:
            raise ConfigurationError(
                f"app {self.name!r} declares no topic {name!r}; {nearest(name, list(self.topics))}"
            ) from None

    def check(self) -> None:
        """Raise `ConfigurationError` for what can be seen to be wrong before any I/O."""
        dead_letter = self.settings.dead_letter
        for agent in self.agents.values():
            agent.check()
            if dead_letter in {topic.name for topic in agent.topics}:
                raise ConfigurationError(
                    f"dead_letter={dead_letter!r} is read by agent {agent.name!r}: what can't be decoded would come "
                    "back to it for ever; give dead letters a topic that this app does not read"
                )
            for table in agent.watched:
                others = [other for other in self.processors() if other is not agent]
                if not any(table in other.tables and table not in other.watched for other in others):
                    raise ConfigurationError(
                        f"agent {agent.name!r} reads the changes of table {table.name!r}, and nothing changes it: "
                        "no topic fills it, and no other agent uses it"
                    )
            for topic in (*agent.topics, *([agent.to] if agent.to else [])):
                if self.topics.get(topic.name) is not topic:
                    raise ConfigurationError(f"agent {agent.name!r}: {topic!r} belongs to another app")
        check_dead_letters(self.agents.values(), self.home.regroupings, dead_letter)

    def run(self) -> int:
        """Run a worker in this process until a signal stops it; return its exit code.

        For scripts; ``agentic worker`` does the same and more.
        """
        from importlib import import_module

        run_worker: Callable[[App], int] = import_module("agentic.runtime").run_worker
        return run_worker(self)

    def __repr__(self) -> str:
        return f"<App {self.name}>"


def _check_whole(table: str, source: object) -> None:
    """A table is restored from the topic that fills it, where the records that a filter refuses stand too."""
    if isinstance(source, Filtered):
        raise ConfigurationError(
            f"table {table!r}: source= is a part of {source.topic.name!r}, and only a whole topic can be a changelog; "
            "give the topic, and leave out rows where they are read"
        )
