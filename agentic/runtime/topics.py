"""The topics an app needs: there at start, made where that is wanted, or named with the way out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentic.agent import Agent
from agentic.app import App
from agentic.brokers.base import Broker, TopicSpec
from agentic.errors import TopicExists, UnknownTopic, named
from agentic.runtime.groups import groups
from agentic.topic import Topic

log = logging.getLogger("agentic.worker")

#: Of a topic whose records must not go.
_FOR_EVER = {"retention.ms": "-1"}


def needed(app: App, existing: Mapping[str, int]) -> dict[str, TopicSpec]:
    """Return what each topic of the app should be like, by name; an undeclared dead letter topic too.

    Args:
        existing: the topics that are there, with their number of partitions.
    """
    specs = {topic.name: topic.spec(app.settings) for topic in app.topics.values()}
    for name, partitions in _regrouped(app, existing, specs).items():
        specs[name] = replace(specs[name], partitions=partitions)
    dead_letter = app.settings.dead_letter
    if dead_letter is not None and dead_letter not in specs:
        specs[dead_letter] = TopicSpec(dead_letter, app.settings.topic_partitions)
    letters = (agent.execution.dead_letter for agent in app.agents.values())
    for name in sorted({dead_letter or "", *(topic.name for topic in letters if topic is not None)} & set(specs)):
        # A letter has the time of its event, which may be long ago: it must not be gone before anyone has seen it.
        specs[name] = replace(specs[name], config={**_FOR_EVER, **specs[name].config})
    for name in sorted(_filling(app) & set(specs)):
        # The table is restored from it: each row is there as long as its last record.
        specs[name] = replace(specs[name], config={**_FOR_EVER, **specs[name].config})
    return specs


def _filling(app: App) -> set[str]:
    """Return the names of topics that fill tables."""
    tables = app.tables.values()
    return {name for table in tables if table.spec(1) is None and (name := table.changelog_topic) is not None}


def _regrouped(app: App, existing: Mapping[str, int], specs: Mapping[str, TopicSpec]) -> dict[str, int]:
    """Return the partitions of topics that bring events to other keys, where their declaration leaves it open.

    As many as the topics that they are used with; where there is none, as many as what they are made of.
    """
    sources = {each.topic: each.source.topic for each in app.home.regroupings}
    sources |= {each.topic: each.table.changes().topic for each in app.home.aggregations}
    open_ = {topic for topic in sources if topic.partitions is None}
    found: dict[str, int] = {}

    def count(topic: Topic[Any, Any]) -> int:
        return found.get(topic.name) or existing.get(topic.name) or specs[topic.name].partitions

    parts = groups(app.processors())
    # What one is made of may be made of another: from the sources downwards.
    for topic in [topic for topic in sources if topic in open_]:
        together = next((topics for _, topics in parts if topic in topics), [])
        source = sources[topic]
        origin = [source] if source.name in specs else _group_of_table(parts, source)
        fixed = [each for each in together if each not in open_] or origin
        found[topic.name] = count(fixed[0])
    return found


def _group_of_table(
    parts: Sequence[tuple[list[Agent], list[Topic[Any, Any]]]], changes: Topic[Any, Any]
) -> list[Topic[Any, Any]]:
    """Return the topics of the group in which a table changes."""
    return next(topics for agents, topics in parts if any(changes in agent.inputs for agent in agents))


def _lacking(
    app: App, broker: Broker, specs: Mapping[str, TopicSpec], existing: Mapping[str, int]
) -> tuple[list[TopicSpec], list[str]]:
    """Return the missing topics that may be made, and the names of those that may not."""
    internal = {topic.name for topic in app.topics.values() if topic.internal}
    wanted = app.settings.create_topics
    may_create = broker.creates_topics if wanted is None else wanted
    missing = [spec for name, spec in specs.items() if name not in existing]
    made = [spec for spec in missing if may_create or spec.name in internal]
    return made, [spec.name for spec in missing if spec not in made]


async def _create(broker: Broker, missing: Sequence[TopicSpec], existing: Mapping[str, int]) -> dict[str, int]:
    """Make topics; return these and those that are there, with their number of partitions."""
    if not missing:
        return dict(existing)
    try:
        await broker.create_topics(missing)
    except TopicExists:
        # Another worker that starts at this moment was first, and makes the same: look again.
        now = await broker.topics()
        if any(spec.name not in now for spec in missing):
            raise
        return {**existing, **now}
    log.info("made %s", named("topic", [spec.name for spec in missing]))
    return {**existing, **{spec.name: spec.partitions for spec in missing}}


async def make(app: App, broker: Broker) -> dict[str, int]:
    """Make those missing topics of the app that may be made; return all topics with their number of partitions.

    Where one is missing that may not be made, those that take their number of partitions from others wait for it.
    """
    existing = await broker.topics()
    specs = needed(app, existing)
    missing, refused = _lacking(app, broker, specs, existing)
    if refused:
        waiting = _regrouped(app, existing, specs)
        missing = [spec for spec in missing if spec.name not in waiting]
    return await _create(broker, missing, existing)


async def ensure(app: App, broker: Broker) -> dict[str, int]:
    """Make the missing topics that may be made; return all of the app's with their number of partitions.

    Raises:
        UnknownTopic: others are missing; names them and the command that makes them. Nothing was made.
    """
    existing: Mapping[str, int] = await broker.topics()
    specs = needed(app, existing)
    missing, refused = _lacking(app, broker, specs, existing)
    if refused:
        # Before anything is made: one that takes its number of partitions from a missing one would get a wrong one.
        raise UnknownTopic(
            f"{broker.url} has no {named('topic', refused)}; make {'them' if len(refused) > 1 else 'it'} with "
            "'agentic topics create', or set create_topics=True"
        )
    existing = await _create(broker, missing, existing)
    for name, spec in specs.items():
        declared = app.topics[name].partitions if name in app.topics else None
        if declared is not None and existing[name] != spec.partitions:
            log.warning("topic %s has %d partitions, not %d as declared", name, existing[name], spec.partitions)
    return {name: existing[name] for name in specs}
