"""Looking up what the broker has, with a word for what it has not."""

from __future__ import annotations

from agentic.brokers.base import Broker
from agentic.errors import UnknownTopic
from agentic.topic import nearest


async def partitions_of(topic: str, broker: Broker) -> int:
    """Return a topic's number of partitions.

    Raises:
        UnknownTopic: it is missing; names the nearest and the command that makes it.
    """
    known = await broker.topics()
    if topic in known:
        return known[topic]
    raise UnknownTopic(
        f"{broker.url} has no topic {topic!r} ({nearest(topic, list(known))}); "
        f"make it with 'agentic topics create {topic} --partitions N'"
    )
