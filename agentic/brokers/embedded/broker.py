"""What a broker over a store in reach does, whatever the store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakSet

from agentic.brokers.base import GroupInfo, Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.embedded.consumer import EmbeddedConsumer, check_positions
from agentic.brokers.embedded.feed import EmbeddedReader
from agentic.brokers.embedded.producer import EmbeddedProducer, TransactionalProducer
from agentic.brokers.embedded.store import Store
from agentic.errors import BrokerError, ConfigurationError, TopicExists, UnknownTopic, named

#: Kafka's rule for topic names.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: Partitions that a topic may have: each is a row of its own, made and looked at with the others.
PARTITION_LIMIT = 10_000

#: What an option may say: half of what a process can address on common machines.
BYTES_LIMIT = 1 << 46

#: Bytes that a record may have unless the option ``record_limit`` says otherwise.
RECORD_LIMIT = 64 << 20


def byte_option(url: str, options: dict[str, object], name: str) -> int | None:
    """Take an option out of `options`, None where it is not given. Raises `ConfigurationError`."""
    value = options.pop(name, None)
    if value is not None and (not isinstance(value, int) or not 1 <= value <= BYTES_LIMIT):
        raise ConfigurationError(
            f"broker {url!r}: {name} {value!r}: must be a number of bytes, at least 1 and at most {BYTES_LIMIT}"
        )
    return value


def check_spec(spec: TopicSpec) -> None:
    """Raises `BrokerError` for a topic that can't be, by Kafka's rules."""
    if not _NAME.fullmatch(spec.name) or spec.name in (".", ".."):
        raise BrokerError(f"topic {spec.name!r}: a name has 1 to 249 of the characters A-Z a-z 0-9 . _ -")
    if spec.partitions < 1:
        raise BrokerError(f"topic {spec.name!r}: {spec.partitions} partitions; a topic has at least one")
    if spec.partitions > PARTITION_LIMIT:
        raise BrokerError(f"topic {spec.name!r}: {spec.partitions} partitions; give at most {PARTITION_LIMIT:,}")
    for what, limit in (("retention_ms", spec.retention_ms), ("retention_bytes", spec.retention_bytes)):
        if limit is not None and limit < 0:
            raise BrokerError(f"topic {spec.name!r}: {what} {limit}: must be at least 0, or None for no limit")


class EmbeddedBroker:
    """All of `agentic.brokers.base.Broker` but `open` and `close`."""

    creates_topics = True
    url: str

    def __init__(self) -> None:
        self._clients: WeakSet[EmbeddedConsumer | EmbeddedProducer] = WeakSet()

    @property
    def _store(self) -> Store:
        raise NotImplementedError

    def consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        instance: str | None = None,
        offset_reset: str = "earliest",
        session_timeout: float = 45.0,
    ) -> EmbeddedConsumer:
        consumer = EmbeddedConsumer(
            self._store, group, topics, instance=instance, offset_reset=offset_reset, session_timeout=session_timeout
        )
        self._clients.add(consumer)
        return consumer

    def reader(self, offsets: Mapping[TopicPartition, int], *, bulk: bool = False) -> EmbeddedReader:
        return EmbeddedReader(self._store, offsets)

    def producer(self, *, transactional_id: str | None = None) -> EmbeddedProducer:
        if transactional_id is None:
            producer = EmbeddedProducer(self._store)
        else:
            producer = TransactionalProducer(self._store, transactional_id)
        self._clients.add(producer)
        return producer

    async def topics(self) -> dict[str, int]:
        with self._store.view() as view:
            return dict(view.topics())

    async def describe_topic(self, name: str) -> TopicInfo:
        with self._store.view() as view:
            return view.describe(name)

    async def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        specs = list(specs)
        for spec in specs:
            check_spec(spec)
        with self._store.change() as change:
            known = change.topics()
            for spec in specs:
                if spec.name in known:
                    raise TopicExists(
                        f"{self._store.name}: topic {spec.name!r} exists already, with {known[spec.name]} partitions"
                    )
                change.create(spec)

    async def delete_topics(self, names: Iterable[str]) -> None:
        names = list(dict.fromkeys(names))
        with self._store.change() as change:
            known = change.topics()
            if missing := [name for name in names if name not in known]:
                raise UnknownTopic(
                    f"{self._store.name}: no {named('topic', missing)}; nothing was deleted, see 'agentic topics list'"
                )
            for name in names:
                change.delete(name)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, with_open: bool = False
    ) -> dict[TopicPartition, int]:
        with self._store.view() as view:
            ends = {tp: view.bounds(tp)[1] for tp in partitions}
        if with_open:
            for client in self._clients:
                if isinstance(client, TransactionalProducer):
                    for tp, records in client.open_records().items():
                        if tp in ends:
                            ends[tp] += records
        return ends

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._store.change() as change:
            for topic in {tp.topic for tp in offsets}:
                info = change.describe(topic)
                if info.compacted and info.retention_ms is None and info.retention_bytes is None:
                    raise BrokerError(
                        f"{self.url}: topic {topic!r} is compacted and has no retention: its records are the last"
                        " of their keys; send tombstones in place of removing them"
                    )
            for tp, offset in offsets.items():
                start, end = change.bounds(tp)
                if not 0 <= offset <= end:
                    raise BrokerError(
                        f"{self.url}: {tp}: records below offset {offset} can't be removed:"
                        f" the log has {start} to {end}; give one of these"
                    )
                if offset > start:
                    change.move_start(tp, offset)

    async def groups(self) -> list[str]:
        with self._store.view() as view:
            return sorted(view.groups())

    async def describe_group(self, name: str) -> GroupInfo:
        with self._store.view() as view:
            membership = view.membership(name).copy()
            positions = view.positions(name)
        now = self._store.clock()
        # Whoever was killed is no member any more, though nobody has come by since to write that down.
        membership.evict(now, self._store.dead)
        live = membership.live(now)
        return GroupInfo(name, {member: sorted(membership.owned(member)) for member in live}, positions)

    async def delete_group(self, name: str) -> None:
        with self._store.change() as change:
            if name not in change.groups():
                raise BrokerError(f"{self.url}: no group {name!r}; see 'agentic groups list'")
            membership = change.membership(name)
            now = self._store.clock()
            membership.evict(now, self._store.dead)
            if live := membership.live(now):
                raise BrokerError(f"group {name!r} has {len(live)} live members; stop its workers before it is deleted")
            for tp in change.positions(name):
                change.set_position(name, tp, None)
            membership.clear()
            change.save(name, membership)

    async def set_positions(self, group: str, positions: Mapping[TopicPartition, Position | None]) -> None:
        check_positions(group, positions)
        with self._store.change() as change:
            membership = change.membership(group)
            now = self._store.clock()
            membership.evict(now, self._store.dead)
            if live := membership.live(now):
                raise BrokerError(
                    f"group {group!r} has {len(live)} live members; stop its workers before its positions are set"
                )
            for tp, position in positions.items():
                change.bounds(tp)
                change.set_position(group, tp, position)
