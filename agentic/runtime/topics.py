"""The topics an app needs: there at start, made where that is wanted, or named with the way out."""

from __future__ import annotations

import logging

from agentic.app import App
from agentic.brokers.base import Broker, TopicSpec
from agentic.errors import TopicExists, UnknownTopic, named

log = logging.getLogger("agentic.worker")


def needed(app: App) -> dict[str, TopicSpec]:
    """Return what each topic of the app should be like, by name; an undeclared dead letter topic too."""
    specs = {topic.name: topic.spec(app.settings) for topic in app.topics.values()}
    dead_letter = app.settings.dead_letter
    if dead_letter is not None and dead_letter not in specs:
        specs[dead_letter] = TopicSpec(dead_letter, app.settings.topic_partitions)
    return specs


async def make(app: App, broker: Broker) -> dict[str, int]:
    """Make those missing topics of the app that may be made; return all topics with their number of partitions."""
    specs = needed(app)
    internal = {topic.name for topic in app.topics.values() if topic.internal}
    wanted = app.settings.create_topics
    may_create = broker.creates_topics if wanted is None else wanted
    existing = await broker.topics()
    missing = [spec for name, spec in specs.items() if name not in existing and (may_create or name in internal)]
    if not missing:
        return existing
    try:
        await broker.create_topics(missing)
    except TopicExists:
        # Another worker that starts at this moment was first, and makes the same: look again.
        existing = await broker.topics()
        if any(spec.name not in existing for spec in missing):
            raise
        return existing
    log.info("made %s", named("topic", [spec.name for spec in missing]))
    return {**existing, **{spec.name: spec.partitions for spec in missing}}


async def ensure(app: App, broker: Broker) -> dict[str, int]:
    """Make the missing topics that may be made; return all of the app's with their number of partitions.

    Raises:
        UnknownTopic: others are missing; names them and the command that makes them.
    """
    existing = await make(app, broker)
    specs = needed(app)
    if missing := [name for name in specs if name not in existing]:
        raise UnknownTopic(
            f"{broker.url} has no {named('topic', missing)}; make {'them' if len(missing) > 1 else 'it'} with "
            "'agentic topics create', or set create_topics=True"
        )
    for name, spec in specs.items():
        declared = app.topics[name].partitions if name in app.topics else None
        if declared is not None and existing[name] != spec.partitions:
            log.warning("topic %s has %d partitions, not %d as declared", name, existing[name], spec.partitions)
    return {name: existing[name] for name in specs}
