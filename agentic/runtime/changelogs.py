"""The changelogs of an app's tables: made with what they need, and looked at before anything is written."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from agentic.agent import Agent
from agentic.brokers.base import Broker, TopicSpec
from agentic.core import versioned
from agentic.errors import CoPartitionError, RecordTooLarge, StateMismatch, TopicExists, many, named
from agentic.runtime.groups import groups
from agentic.runtime.state import TaskState
from agentic.table import Table
from agentic.topic import Topic

log = logging.getLogger("agentic.worker")


def partitions_of(agents: Sequence[Agent], counts: Mapping[str, int]) -> dict[Table[Any, Any], int]:
    """Return how many partitions each table has: as many as the topics of its group.

    Args:
        counts: of each topic.

    Raises:
        CoPartitionError: topics whose agents share a table have different numbers; names two of them.
    """
    found: dict[Table[Any, Any], int] = {}
    for members, topics in groups(agents):
        tables = list(dict.fromkeys(table for agent in members for table in agent.tables))
        if not tables:
            continue
        first = topics[0]
        for topic in topics[1:]:
            if counts[topic.name] != counts[first.name]:
                raise CoPartitionError(
                    f"topics {first.name!r} ({counts[first.name]} partitions) and {topic.name!r} "
                    f"({counts[topic.name]}) meet in table {tables[0].name!r} and must have the same number: "
                    + _way_out(first, topic)
                )
        found.update(dict.fromkeys(tables, counts[first.name]))
    return found


def _way_out(*topics: Topic[Any, Any]) -> str:
    # One whose number the worker chose when it made it, by what it was used with then.
    chosen = next((topic for topic in topics if topic.internal and topic.partitions is None), None)
    if chosen is None:
        return "bring one over by topic.group_by(…), or make it again"
    return (
        f"{chosen.name!r} was made by the app for other numbers; 'agentic reset' deletes it with the app's state, and "
        "the next start makes it with the right one"
    )


def names(agents: Sequence[Agent]) -> list[str]:
    """Return the names of the changelogs that the tables of these agents have."""
    tables = dict.fromkeys(table for agent in agents for table in agent.tables)
    return [spec.name for table in tables if (spec := table.spec(1)) is not None]


def wanted(agents: Sequence[Agent], counts: Mapping[str, int]) -> dict[str, tuple[Table[Any, Any], TopicSpec]]:
    """Return what each changelog should be like, with the table that it is of, by name.

    Args:
        counts: the partitions of each topic.

    Raises:
        CoPartitionError: see `partitions_of`.
    """
    tables = partitions_of(agents, counts).items()
    return {spec.name: (table, spec) for table, number in tables if (spec := table.spec(number)) is not None}


async def mismatches(
    wanted: Mapping[str, tuple[Table[Any, Any], TopicSpec]], existing: Mapping[str, int], broker: Broker
) -> AsyncIterator[str]:
    """Yield, for each changelog that is there and not what its table needs, a message that says why."""
    for name, (table, spec) in wanted.items():
        if name not in existing:
            continue
        if existing[name] != spec.partitions:
            yield (
                f"changelog {name!r} has {existing[name]} partitions and the topics of table {table.name!r} have "
                f"{spec.partitions}: rows would be looked for in the wrong place; 'agentic reset' deletes it with the "
                "app's state, and the events are counted anew"
            )
            continue
        info = await broker.describe_topic(name)
        if not info.compacted or info.expires:
            yield (
                f"changelog {name!r} is {'compacted and has a retention' if info.compacted else 'not compacted'}, and "
                f"would lose rows of table {table.name!r} to retention; set its cleanup.policy to compact alone, or "
                "let 'agentic reset' delete it"
            )


async def warn_of_retention(tables: Iterable[Table[Any, Any]], broker: Broker) -> None:
    """Say of which tables that a topic fills rows will be lost, since the topic keeps its records for a time only."""
    for table in tables:
        name = table.changelog_topic
        if name is not None and (await broker.describe_topic(name)).expires:
            log.warning(
                "topic %s fills table %s and has a retention: rows that have not been updated for longer are lost with "
                "the local store; set its cleanup.policy to compact, or its retention.ms to -1",
                name,
                table.name,
            )


def row_too_large(states: Iterable[TaskState], error: RecordTooLarge) -> RecordTooLarge:
    """Return the error of a checkpoint with the table and the key it is about; the same where it is about none.

    What the broker refuses it names by the topic; of all rows that went there the largest is too large.
    """
    for state in states:
        for table in state.buffers:
            topic = table.changelog_topic
            if topic is None or repr(topic) not in str(error) or (row := state.largest(topic)) is None:
                continue
            _, key, value = row
            shown = f"table {table.name!r}, key {state.layout(table).keys.decode(key)!r:.200}: "
            if table.versioned is None:
                return RecordTooLarge(f"{shown}its row of {len(value):,} bytes is too large for a record: {error}")
            return RecordTooLarge(
                f"{shown}its {many(len(versioned.decode(value).timestamps), 'version')} take {len(value):,} bytes, and "
                f"are one record of the changelog: shorten versioned=, or write this key less often: {error}"
            )
    return error


async def ensure(agents: Sequence[Agent], counts: Mapping[str, int], broker: Broker) -> None:
    """See that the changelogs are what their tables need, and make those that are missing.

    Raises:
        CoPartitionError: see `partitions_of`.
        StateMismatch: a changelog has another number of partitions, or may lose rows. None was made.
    """
    specs = wanted(agents, counts)
    existing = await broker.topics()
    async for message in mismatches(specs, existing, broker):
        raise StateMismatch(message)
    missing = [spec for name, (_, spec) in specs.items() if name not in existing]
    if missing:
        try:
            await broker.create_topics(missing)
        except TopicExists:
            log.info("another worker was first to make %s", named("changelog", [spec.name for spec in missing]))
        else:
            log.info("made %s", named("changelog", [spec.name for spec in missing]))
    filled = dict.fromkeys(table for agent in agents for table in agent.tables if table.source is not None)
    await warn_of_retention(filled, broker)
