"""Which topics and agents belong together, and so share their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentic.agent import Agent
from agentic.topic import Topic


def groups(agents: Iterable[Agent]) -> list[tuple[list[Agent], list[Topic[Any, Any]]]]:
    """Return the groups of topics that agents connect, each with its agents, in order of declaration.

    Agents are connected by a topic that both read, and by a table that both use.
    """
    found: list[tuple[list[Agent], list[Topic[Any, Any]]]] = []
    for agent in agents:
        touched = [
            group
            for group in found
            if any(topic in group[1] for topic in agent.topics)
            or any(table in other.tables for other in group[0] for table in agent.tables)
        ]
        members = [each for group in touched for each in group[0]] + [agent]
        topics = list(dict.fromkeys([topic for group in touched for topic in group[1]] + list(agent.topics)))
        found = [group for group in found if group not in touched] + [(members, topics)]
    return found


def name_of(topics: Iterable[Topic[Any, Any]], partition: int) -> str:
    """Return what log lines and errors call a task, and what its local state is named for.

    That is the group's first topic by name, which no other group has, and the task's number.
    """
    return f"{min(topic.name for topic in topics)}-{partition}"
