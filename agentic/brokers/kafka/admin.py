"""Topics, offsets and groups, through librdkafka's admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import confluent_kafka as ck
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from agentic.brokers.base import ANY_TIME, GroupInfo, Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.kafka.config import Config
from agentic.brokers.kafka.errors import cause, translate
from agentic.brokers.kafka.offloop import off_loop
from agentic.errors import BrokerError, BrokerUnavailable, TopicExists, UnknownTopic

T = TypeVar("T")

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: Seconds the broker has to answer a question: longer than it takes to restart.
REQUEST = 30.0
#: Seconds between two looks at something that the broker is still spreading.
LOOK = 0.02
#: Seconds between two tries of a question that a broken connection has cut off.
AGAIN = 0.1

_GROUP_IN_USE = frozenset(
    {KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.GROUP_SUBSCRIBED_TO_TOPIC}
)


class Admin:
    """Questions and orders to the broker; the blocking ones are made off the loop.

    Keeps its client as long as it lives: a client that goes takes its open questions along.
    """

    def __init__(self, settings: Config, url: str) -> None:
        self._client = AdminClient(settings)
        self._url = url

    async def metadata(self, topic: str | None = None, timeout: float = REQUEST) -> Any:
        """Return the cluster's metadata; a connection that breaks meanwhile is no answer yet."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            left = max(LOOK, until - loop.time())
            try:
                return await off_loop(lambda left=left: self._client.list_topics(topic, timeout=left))
            except KafkaException as problem:
                error = translate(problem, f"{self._url}: metadata")
                if not isinstance(error, BrokerUnavailable) or loop.time() + AGAIN > until:
                    raise error from problem
            await asyncio.sleep(AGAIN)

    async def topics(self) -> dict[str, int]:
        topics = (await self.metadata()).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    async def describe_topic(self, name: str) -> TopicInfo:
        tps = await self._partitions(name)
        starts, ends = await asyncio.gather(self.offsets(tps, EARLIEST), self.offsets(tps, LATEST))
        resource = ConfigResource(ResourceType.TOPIC, name)
        values = await self._one(self._client.describe_configs([resource], request_timeout=REQUEST), f"topic {name!r}")
        asked = self._client.describe_topics(TopicCollection([name]), request_timeout=REQUEST)
        description = await self._one(asked, f"topic {name!r}")
        policy = values["cleanup.policy"].value
        # A topic that is compacted alone has limits among its properties, and they hold for nothing.
        expires = "delete" in policy
        return TopicInfo(
            name,
            {tp.partition: (starts[tp], ends[tp]) for tp in tps},
            _limit(values["retention.ms"].value) if expires else None,
            _limit(values["retention.bytes"].value) if expires else None,
            "compact" in policy,
            str(description.topic_id),
        )

    async def _partitions(self, name: str) -> list[TopicPartition]:
        topic = (await self.metadata(name)).topics.get(name)
        if topic is None or topic.error is not None:
            raise unknown_topic(name)
        return [TopicPartition(name, partition) for partition in sorted(topic.partitions)]

    async def offsets(
        self,
        tps: Iterable[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """Return offsets, by default as a reader of committed records sees them."""
        wanted = {ck.TopicPartition(tp.topic, tp.partition): spec for tp in tps}
        if not wanted:
            return {}
        futures = self._client.list_offsets(wanted, isolation_level=level, request_timeout=REQUEST)
        answers = {}
        for partition, future in futures.items():
            tp = TopicPartition(partition.topic, partition.partition)
            try:
                answers[tp] = (await self._answer(future, f"offsets of {tp}")).offset
            except UnknownTopic as problem:
                # librdkafka says the same where no partition has a leader for now: its broker is about to come back.
                if tp in await self._partitions(tp.topic):
                    raise BrokerUnavailable(f"{self._url}: {tp} has no leader for now; is its broker up?") from problem
                raise
        return answers

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, with_open: bool = False
    ) -> dict[TopicPartition, int]:
        level = IsolationLevel.READ_UNCOMMITTED if with_open else IsolationLevel.READ_COMMITTED
        return await self.offsets(partitions, LATEST, level)

    async def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create all, or all those that can be, and return when each has its leaders."""
        specs = list(specs)
        if not specs:
            return
        for spec in specs:
            if spec.partitions < 1:
                raise BrokerError(f"topic {spec.name!r}: {spec.partitions} partitions can't be; at least 1")
        futures = self._create(specs)
        problem: BrokerError | None = None
        made = []
        for spec in specs:
            about = f"creating topic {spec.name!r}"
            try:
                try:
                    await self._answer(futures[spec.name], about)
                except BrokerError as error:
                    if ANY_TIME not in spec.config or not _unknown_property(error):
                        raise
                    # A broker from before Kafka 3.6 does not know it, and takes any time.
                    older = replace(spec, config={k: v for k, v in spec.config.items() if k != ANY_TIME})
                    await self._answer(self._create([older])[spec.name], about)
                made.append(spec)
            except BrokerError as error:
                problem = problem or error
        for spec in made:
            await self._wait_for_leaders(spec)
        if problem is not None:
            raise problem

    def _create(self, specs: Iterable[TopicSpec]) -> dict[str, Future[None]]:
        new = [
            NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=-1, config=topic_config(spec))
            for spec in specs
        ]
        futures: dict[str, Future[None]] = self._client.create_topics(new, request_timeout=REQUEST)
        return futures

    async def _wait_for_leaders(self, spec: TopicSpec) -> None:
        """A new topic has no leaders for a moment, and a client that learns so remembers it."""

        async def there() -> bool:
            topic = (await self.metadata(spec.name)).topics.get(spec.name)
            if topic is None or topic.error is not None or len(topic.partitions) < spec.partitions:
                return False
            if any(partition.leader < 0 for partition in topic.partitions.values()):
                return False
            try:
                await self.end_offsets([TopicPartition(spec.name, number) for number in topic.partitions])
            except (UnknownTopic, BrokerUnavailable):
                return False
            return True

        await self._until(there, f"topic {spec.name!r} has no leaders")

    async def delete_topics(self, names: Iterable[str]) -> None:
        names = list(names)
        if not names:
            return
        known = await self.topics()
        if unknown := [name for name in names if name not in known]:
            raise unknown_topic(unknown[0])
        for name, future in self._client.delete_topics(names, request_timeout=REQUEST).items():
            await self._answer(future, f"deleting topic {name!r}")

        async def gone() -> bool:
            return not set(names) & set(await self.topics())

        await self._until(gone, f"topics {', '.join(names)} are still there")

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            if offset < 0:
                raise BrokerError(f"{tp}: records below offset {offset} can't be removed: an offset is at least 0")
        wanted = [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        if not wanted:
            return
        futures = self._client.delete_records(wanted, request_timeout=REQUEST, operation_timeout=REQUEST)
        for partition, future in futures.items():
            about = f"removing records of {partition.topic}-{partition.partition} below offset {partition.offset}"
            await self._answer(future, about)

    async def groups(self) -> list[str]:
        listing = await self._answer(self._client.list_consumer_groups(request_timeout=REQUEST), "list of groups")
        return sorted(group.group_id for group in listing.valid)

    async def describe_group(self, name: str) -> GroupInfo:
        members: dict[str, list[TopicPartition]] = {}
        try:
            futures = self._client.describe_consumer_groups([name], request_timeout=REQUEST)
            group = await asyncio.wait_for(asyncio.wrap_future(futures[name]), 2 * REQUEST)
            for member in sorted(group.members, key=_rank):
                owned = member.assignment.topic_partitions if member.assignment else []
                members[member.member_id] = sorted(TopicPartition(p.topic, p.partition) for p in owned)
        except KafkaException as problem:
            if cause(problem).code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise translate(problem, f"group {name!r}") from problem
        return GroupInfo(name, members, await self._positions(name))

    async def _positions(self, group: str) -> dict[TopicPartition, Position]:
        request = [ck.ConsumerGroupTopicPartitions(group)]
        try:
            futures = self._client.list_consumer_group_offsets(request, require_stable=True, request_timeout=REQUEST)
            answer = await asyncio.wait_for(asyncio.wrap_future(futures[group]), 2 * REQUEST)
        except KafkaException as problem:
            if cause(problem).code() == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise translate(problem, f"group {group!r}") from problem
        return {
            TopicPartition(p.topic, p.partition): Position(p.offset, metadata_of(p))
            for p in answer.topic_partitions
            if p.offset >= 0
        }

    async def delete_group(self, name: str) -> None:
        await self._one(self._client.delete_consumer_groups([name], request_timeout=REQUEST), f"group {name!r}")

    async def set_positions(self, group: str, positions: Mapping[TopicPartition, Position | None]) -> None:
        wanted = {tp: at for tp, at in positions.items() if at is not None}
        removed = [tp for tp, at in positions.items() if at is None]
        if (await self.describe_group(group)).members:
            raise BrokerError(f"group {group!r} has live members; stop its workers first")
        if removed:
            await self._remove(group, removed, wanted)
        elif wanted:
            await self._alter(group, wanted)

    async def _remove(
        self, group: str, removed: Iterable[TopicPartition], wanted: Mapping[TopicPartition, Position]
    ) -> None:
        """Remove positions. The client can only delete a whole group, so what stays is written anew."""
        before = await self._positions(group)
        stays = {tp: at for tp, at in before.items() if tp not in set(removed)}
        if before:
            await self._one(self._client.delete_consumer_groups([group], request_timeout=REQUEST), f"group {group!r}")
        if stays or wanted:
            await self._alter(group, {**stays, **wanted})

    async def _alter(self, group: str, positions: Mapping[TopicPartition, Position]) -> None:
        offsets = [ck.TopicPartition(tp.topic, tp.partition, at.offset, at.metadata) for tp, at in positions.items()]
        request = [ck.ConsumerGroupTopicPartitions(group, offsets)]
        answer = await self._one(
            self._client.alter_consumer_group_offsets(request, request_timeout=REQUEST), f"group {group!r}"
        )
        for partition in answer.topic_partitions:
            if partition.error is not None:
                raise self._refusal(partition.error, f"group {group!r}, {partition.topic}-{partition.partition}")

    # -- answers

    async def _one(self, futures: Mapping[Any, Future[Any]], about: str) -> Any:
        (future,) = futures.values()
        return await self._answer(future, about)

    async def _answer(self, future: Future[T], about: str) -> T:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), 2 * REQUEST)
        except TimeoutError:
            raise BrokerUnavailable(f"{about}: no answer from {self._url}; check that the broker runs") from None
        except KafkaException as problem:
            raise self._refusal(cause(problem), about) from problem

    def _refusal(self, error: KafkaError, about: str) -> BrokerError:
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExists(f"{about}: it exists already; delete it first, or choose another name")
        if error.code() in _GROUP_IN_USE:
            return BrokerError(f"{about}: the group has live members; stop its workers first")
        if error.code() == KafkaError.OFFSET_OUT_OF_RANGE:
            return BrokerError(f"{about}: the partition ends before it; give an offset that is there")
        if error.code() == KafkaError.POLICY_VIOLATION:
            return BrokerError(
                f"{about}: {error.str()}; the broker's rules forbid it: from a compacted topic, for one,"
                " only tombstones remove"
            )
        if error.code() == KafkaError.TOPIC_EXCEPTION:
            return BrokerError(f"{about}: {error.str()}; use 1 to 249 of the characters A-Z a-z 0-9 . _ -")
        return translate(error, about)

    async def _until(self, done: Callable[[], Any], what: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * REQUEST
        while not await done():
            if loop.time() > deadline:
                raise BrokerUnavailable(f"{what} after {2 * REQUEST:.0f} s; check the brokers' logs")
            await asyncio.sleep(LOOK)


def unknown_topic(name: str) -> UnknownTopic:
    """Return the error for a topic that is not there."""
    return UnknownTopic(f"topic {name!r} does not exist; create it with `agentic topics create`, or check its name")


def _unknown_property(error: BrokerError) -> bool:
    problem = error.__cause__
    return isinstance(problem, KafkaException) and cause(problem).code() == KafkaError.INVALID_CONFIG


def topic_config(spec: TopicSpec) -> dict[str, str]:
    """Return a topic's properties by their Kafka names; what `spec.config` says wins."""
    config = {}
    if spec.retention_ms is not None:
        config["retention.ms"] = str(spec.retention_ms)
    if spec.retention_bytes is not None:
        config["retention.bytes"] = str(spec.retention_bytes)
    if spec.compacted:
        both = spec.retention_ms is not None or spec.retention_bytes is not None
        config["cleanup.policy"] = "compact,delete" if both else "compact"
    return {**config, **spec.config}


def _rank(member: Any) -> tuple[bool, str]:
    """Order a group's members as `range` does, while the broker names them in no order: static ones first, by id."""
    static = member.group_instance_id
    return not static, static or member.member_id


def metadata_of(partition: ck.TopicPartition) -> str:
    """Return what was committed beside an offset; nothing where it is no text, as of Kafka Streams."""
    try:
        return partition.metadata or ""
    except UnicodeDecodeError:
        return ""


def _limit(text: str) -> int | None:
    """Kafka writes "no limit" as -1."""
    return None if int(text) < 0 else int(text)
