"""Where a table's rows belong, and where they are: in which tasks, in which copies, in which part of the changelog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentic.app import App
from agentic.brokers.base import Broker, TopicPartition
from agentic.errors import AgenticError, ConfigurationError, UnknownTopic, named
from agentic.runtime.groups import groups
from agentic.settings import Settings
from agentic.state.lmdb import Copy, LmdbStore, copies, in_use
from agentic.table import GlobalTable, Table
from agentic.topic import nearest


@dataclass(frozen=True)
class Place:
    """Where a table's rows belong.

    Attributes:
        topics: the names of its group's.
        partitions: how many each has.
    """

    topics: tuple[str, ...]
    partitions: int

    @property
    def topic(self) -> str:
        """The first topic by name: the tasks are named after it."""
        return min(self.topics)

    def task(self, partition: int) -> str:
        """Return the name of the task that has a partition."""
        return f"{self.topic}-{partition}"


class Bounds(NamedTuple):
    """The part of a changelog partition that the table consists of: from an offset on, up to before another."""

    start: int
    end: int


def table_of(app: App, name: str) -> Table[Any, Any]:
    """Return a table of an app. Raises `ConfigurationError` with the nearest name."""
    if name not in app.tables:
        raise ConfigurationError(f"app {app.name!r} has no table {name!r}; {nearest(name, list(app.tables))}")
    return app.tables[name]


def filled_by(table: Table[Any, Any]) -> str | None:
    """Return the name of the topic that fills a table, None for a table that agents write."""
    if isinstance(table, GlobalTable):
        return table.source_topic.name
    return None if table.source is None else table.source.name


def global_task(table: GlobalTable[Any, Any]) -> str:
    """Return the name under which a worker keeps its copy of a global table."""
    return f"global {table.name}"


def place_of(app: App, table: Table[Any, Any], known: Mapping[str, int]) -> Place:
    """Return where a table's rows belong.

    Args:
        known: all topics with their number of partitions.

    Raises:
        ConfigurationError: no agent uses it.
        UnknownTopic: the app has never been started.
    """
    names = _topics(app, table)
    if missing := [name for name in names if name not in known]:
        raise UnknownTopic(
            f"table {table.name!r} has the partitions of {named('topic', missing)}, which the broker has not; "
            "start the app, or 'agentic topics create'"
        )
    return Place(names, known[names[0]])


def _topics(app: App, table: Table[Any, Any]) -> tuple[str, ...]:
    if isinstance(table, GlobalTable):
        return (table.source_topic.name,)
    for agents, topics in groups(app.processors()):
        if any(table in agent.tables for agent in agents):
            return tuple(topic.name for topic in topics)
    raise ConfigurationError(f"table {table.name!r}: no agent uses it, so it has no partitions and no rows")


def state_home(settings: Settings) -> Path:
    """Return the directory with this machine's copies of an app's tables."""
    return Path(settings.state_dir) / settings.name / "state"


def copies_by_task(settings: Settings) -> dict[str, list[Copy]]:
    """Return this machine's copies by the name of their task.

    Raises:
        ConfigurationError: they can't be looked for.
    """
    found: dict[str, list[Copy]] = {}
    try:
        for copy in copies(settings.state_dir, settings.name):
            found.setdefault(copy.task, []).append(copy)
    except OSError as error:
        raise ConfigurationError(
            f"local state {str(error.filename or state_home(settings))!r} can't be read ({error.strerror}); "
            "check its owner and mode, or run as the worker's user"
        ) from None
    return found


def is_in_use(copy: Copy) -> bool:
    """Does a process have a copy now? Raises `ConfigurationError` where that can't be told."""
    try:
        return in_use(copy)
    except OSError as error:
        raise ConfigurationError(
            f"{copy.directory}: whether a worker has it can't be told ({error.strerror}); run as the worker's user"
        ) from None


async def bounds_of(
    app: App, table: Table[Any, Any], place: Place, known: Mapping[str, int], broker: Broker
) -> list[Bounds] | None:
    """Return for each partition which part of the changelog the table consists of; None without a changelog.

    A changelog that was not made yet has nothing. Of a topic that fills a table, what the table's own
    reading has not committed is yet to come to it.
    """
    topic = table.changelog_topic
    if topic is None:
        return None
    if topic not in known:
        return [Bounds(0, 0)] * place.partitions
    if known[topic] != place.partitions:
        raise ConfigurationError(
            f"changelog {topic!r} has {known[topic]} partitions, and topic {place.topic!r} {place.partitions}; "
            "'agentic reset' deletes it with the app's state"
        )
    from agentic.runtime.tails import end_of_source

    offsets = (await broker.describe_topic(topic)).offsets
    if table.source is None:
        return [Bounds(*offsets[n]) for n in range(place.partitions)]
    positions = (await broker.describe_group(app.name)).positions
    taken = [positions.get(TopicPartition(topic, n)) for n in range(place.partitions)]
    return [Bounds(offsets[n][0], end_of_source(table, at) or 0) for n, at in enumerate(taken)]


@contextmanager
def opened(found: Sequence[Copy], say: Callable[[str], None]) -> Iterator[list[tuple[Copy, LmdbStore]]]:
    """Open copies to look at them; say of those that can't be read why."""
    with ExitStack() as stack:
        readable = []
        for copy in found:
            try:
                readable.append((copy, stack.enter_context(closing(LmdbStore.open_readonly(copy.directory)))))
            except AgenticError as error:
                say(str(error))
        yield readable
