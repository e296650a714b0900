"""Dead letters that would go round: from agent to agent, and back to the first.

What an agent yields is its own doing, and may well go back to where it came from. A dead letter is the event
itself: where it comes back to an agent that has given it up, by topics whose agents do nothing with it but give
it up in turn, it goes round for ever. So these are the edges of the graph: from a topic that an agent reads to
its dead letter topic, and from a topic to what `group_by` makes of it, which all its events go to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agentic.agent import Agent
from agentic.errors import ConfigurationError
from agentic.topic import Regrouping


class Edge(NamedTuple):
    """What brings an event from one topic to another, as it is."""

    source: str
    way: str
    target: str

    def __str__(self) -> str:
        return f"{self.way} brings it from {self.source!r} to {self.target!r}"


def check_dead_letters(agents: Iterable[Agent], regroupings: Iterable[Regrouping], dead_letter: str | None) -> None:
    """Refuse dead letters that would come again for ever.

    Args:
        dead_letter: the name of the app's dead letter topic, which is that of agents that declare none.

    Raises:
        ConfigurationError: names the circle.
    """
    edges: dict[str, list[Edge]] = {}
    for agent in agents:
        declared = agent.execution.dead_letter
        target = dead_letter if declared is None else declared.name
        if target is not None:
            for topic in agent.topics:
                edges.setdefault(topic.name, []).append(Edge(topic.name, f"agent {agent.name!r}", target))
    for regrouping in regroupings:
        source, target = regrouping.source.topic.name, regrouping.topic.name
        edges.setdefault(source, []).append(Edge(source, "group_by", target))
    circle = _circle(edges)
    if circle is not None:
        raise ConfigurationError(
            f"dead letters go round: {', '.join(map(str, circle))}: an event that each of them gives up would come "
            "again for ever; give one of the agents a dead letter topic that leads to none of the others"
        )


def _circle(edges: Mapping[str, list[Edge]]) -> list[Edge] | None:
    """Return the first circle, from its first topic on; None where there is none."""
    over: set[str] = set()
    for start in edges:
        path: list[Edge] = []
        # For each topic on the way, what still leads on from it.
        left: list[Any] = [iter(edges[start])]
        while left:
            edge = next(left[-1], None)
            on_the_way = [start, *(each.target for each in path)]
            if edge is None:
                over.add(on_the_way[-1])
                left.pop()
                if path:
                    path.pop()
            elif edge.target in on_the_way:
                return [*path, edge][on_the_way.index(edge.target) :]
            elif edge.target not in over and edge.target in edges:
                path.append(edge)
                left.append(iter(edges[edge.target]))
    return None
