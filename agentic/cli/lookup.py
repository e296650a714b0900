"""Looking up what the broker has, with a word for what it has not."""

from __future__ import annotations

from agentic.brokers.base import Broker
from agentic.errors import UnknownTopic
from agentic.topic import nearest

#: How the names of the topics begin that Kafka and its tools keep for themselves.
INTERNAL = "__"


async def partitions_of(topic: str, broker: Broker) -> int:
    """Return a topic's number of partitions.

    Raises:
        UnknownTopic: it is missing; names the nearest and the command that makes it.
    """
    known = await broker.topics()
    if topic in known:
        return known[topic]
    # Whoever names one that begins with __ knows what it is; to others those say nothing.
    shown = [name for name in known if not name.startswith(INTERNAL)]
    raise UnknownTopic(
        f"{broker.url} has no topic {topic!r} ({nearest(topic, shown)}); make it with 'agentic topics create {topic}'"
    )
