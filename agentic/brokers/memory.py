"""The log in memory, for tests: ``memory://`` or, shared within the process, ``memory://NAME``.

No threads, no clock but the loop's, no timers: the same calls give the same result, but for
the ids of topics, which no other log has. Nothing is removed but by `delete_records`:
retention and compaction are the embedded log's affair. Members have no leases, as they live
and die with the process; `MemoryBroker.crash` plays the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakValueDictionary

from agentic.brokers.base import Batch, Headers, Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.embedded.broker import RECORD_LIMIT, EmbeddedBroker, byte_option
from agentic.brokers.embedded.consumer import EmbeddedConsumer
from agentic.brokers.embedded.membership import Membership, Process
from agentic.brokers.embedded.store import Rows, Signal, Store
from agentic.errors import ConfigurationError, TopicExists, UnknownTopic


class Log:
    """One partition, as columns; an offset less the start is an index."""

    __slots__ = ("headers", "keys", "start", "timestamps", "values")

    def __init__(self) -> None:
        self.start = 0
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers | None] = []

    def extend(self, rows: Rows) -> None:
        self.timestamps += rows.timestamps
        self.keys += rows.keys
        self.values += rows.values
        self.headers += rows.headers

    @property
    def end(self) -> int:
        return self.start + len(self.timestamps)

    def cut(self, start: int) -> None:
        gone = start - self.start
        for column in (self.timestamps, self.keys, self.values, self.headers):
            del column[:gone]
        self.start = start


class MemoryStore:
    """See `agentic.brokers.embedded.store.Store`."""

    linger = 0.0
    look_every: float | None = None

    def __init__(self, name: str, record_limit: int) -> None:
        self.name = name
        self.record_limit = record_limit
        self.records = Signal()
        self.members = Signal()
        self.specs: dict[str, TopicSpec] = {}
        self.id = secrets.token_hex(8)
        self.ids: dict[str, int] = {}
        self.last_id = 0
        self.logs: dict[TopicPartition, Log] = {}
        self.memberships: dict[str, Membership] = {}
        self.committed: dict[str, dict[TopicPartition, Position]] = {}
        self.epochs: dict[str, int] = {}
        self.last_epoch = 0

    @contextmanager
    def view(self) -> Iterator[MemoryView]:
        yield MemoryView(self)

    @contextmanager
    def change(self, size: int = 0) -> Iterator[MemoryChange]:
        change = MemoryChange(self)
        yield change
        change.apply()

    def clock(self) -> float:
        return 0.0

    def process(self) -> Process | None:
        return None

    def dead(self, process: Process) -> bool:
        return False

    async def wait_records(self, timeout: float) -> None:
        await self.records.wait(timeout)


class MemoryView:
    """See `agentic.brokers.embedded.store.View`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def topics(self) -> dict[str, int]:
        return {name: spec.partitions for name, spec in self._store.specs.items()}

    def describe(self, topic: str) -> TopicInfo:
        spec = self._store.specs.get(topic)
        if spec is None:
            raise UnknownTopic(f"{self._store.name}: no topic {topic!r}; see 'agentic topics list'")
        offsets = {n: self.bounds(TopicPartition(topic, n)) for n in range(spec.partitions)}
        topic_id = f"{self._store.id}/{self._store.ids[topic]}"
        return TopicInfo(topic, offsets, spec.retention_ms, spec.retention_bytes, spec.compacted, topic_id)

    def _log(self, tp: TopicPartition) -> Log:
        log = self._store.logs.get(tp)
        if log is None:
            raise UnknownTopic(f"{self._store.name}: no partition {tp}; see 'agentic topics describe {tp.topic}'")
        return log

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        log = self._log(tp)
        return log.start, log.end

    def read(self, tp: TopicPartition, offset: int, limit: int) -> Batch:
        log = self._log(tp)
        stop = min(log.end, offset + limit)
        columns = slice(offset - log.start, stop - log.start)
        return Batch(
            tp,
            list(range(offset, stop)),
            log.timestamps[columns],
            log.keys[columns],
            log.values[columns],
            log.headers[columns],
            stop,
            log.end,
        )

    def membership(self, group: str) -> Membership:
        known = self._store.memberships.get(group)
        return Membership() if known is None else known.copy()

    def position(self, group: str, tp: TopicPartition) -> Position | None:
        return self._store.committed.get(group, {}).get(tp)

    def positions(self, group: str) -> dict[TopicPartition, Position]:
        return dict(self._store.committed.get(group, {}))

    def groups(self) -> list[str]:
        store = self._store
        joined = {name for name, membership in store.memberships.items() if membership.joined}
        return list({name for name, kept in store.committed.items() if kept} | joined)

    def epoch(self, transactional_id: str) -> int:
        return self._store.epochs.get(transactional_id, 0)


class MemoryChange(MemoryView):
    """See `agentic.brokers.embedded.store.Change`: notes what is to be done, and does it at the end."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._created: dict[str, TopicSpec] = {}
        self._deleted: list[str] = []
        self._appended: list[tuple[Log, Rows]] = []
        self._starts: list[tuple[Log, int]] = []
        self._saved: dict[str, Membership] = {}
        self._positions: list[tuple[str, TopicPartition, Position | None]] = []
        self._epochs: dict[str, int] = {}

    def create(self, spec: TopicSpec) -> None:
        if spec.name in self._created or spec.name in self._store.specs:
            raise TopicExists(f"{self._store.name}: topic {spec.name!r} exists already")
        self._created[spec.name] = spec

    def delete(self, topic: str) -> None:
        self.describe(topic)
        self._deleted.append(topic)

    def append(self, tp: TopicPartition, rows: Rows) -> None:
        self._appended.append((self._log(tp), rows))

    def move_start(self, tp: TopicPartition, offset: int) -> None:
        self._starts.append((self._log(tp), offset))

    def save(self, group: str, membership: Membership) -> None:
        self._saved[group] = membership

    def set_position(self, group: str, tp: TopicPartition, position: Position | None) -> None:
        self._positions.append((group, tp, position))

    def next_epoch(self) -> int:
        self._store.last_epoch += 1
        return self._store.last_epoch

    def set_epoch(self, transactional_id: str, epoch: int) -> None:
        self._epochs[transactional_id] = epoch

    def apply(self) -> None:
        store = self._store
        for name, spec in self._created.items():
            store.specs[name] = spec
            store.last_id += 1
            store.ids[name] = store.last_id
            store.logs.update({TopicPartition(name, n): Log() for n in range(spec.partitions)})
        for name in self._deleted:
            for n in range(store.specs.pop(name).partitions):
                del store.logs[TopicPartition(name, n)]
            for group, kept in store.committed.items():
                store.committed[group] = {tp: position for tp, position in kept.items() if tp.topic != name}
        for log, start in self._starts:
            log.cut(start)
        for log, rows in self._appended:
            log.extend(rows)
        for group, tp, position in self._positions:
            kept = store.committed.setdefault(group, {})
            if position is None:
                kept.pop(tp, None)
            else:
                kept[tp] = position
        store.memberships.update(self._saved)
        store.epochs.update(self._epochs)
        if self._appended or self._deleted:
            store.records.notify()
        if self._saved or self._deleted:
            store.members.notify()


#: The stores that have a name, as long as a broker uses them.
_named: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()


class MemoryBroker(EmbeddedBroker):
    """See `agentic.brokers.base.Broker`.

    Args:
        url: ``memory://`` is private to this object; brokers of ``memory://NAME`` share their log
            as long as one of them lives.
        options: ``record_limit``, bytes of key, value and headers of one record.

    Raises:
        ConfigurationError: an unknown option.
    """

    def __init__(self, url: str = "memory://", options: Mapping[str, object] | None = None) -> None:
        super().__init__()
        limits = dict(options or {})
        record_limit = byte_option(url, limits, "record_limit") or RECORD_LIMIT
        if limits:
            raise ConfigurationError(f"broker {url!r}: no option {next(iter(limits))!r}; there is record_limit")
        self.url = url
        name = url.removeprefix("memory://")
        store = _named.get(name) if name else None
        if store is None:
            store = MemoryStore(url, record_limit)
            if name:
                _named[name] = store
        self._memory = store

    @property
    def _store(self) -> Store:
        return self._memory

    async def open(self, timeout: float) -> None:
        """Always succeeds."""

    async def close(self) -> None:
        """Keeps the log as long as this object lives: a test may look at it later, or open it again."""

    def crash(self) -> None:
        """Let all that this broker made die at once: no goodbye, no last write. The log stays as it is.

        Members lose their partitions without being told, as their process would be gone.
        """
        for client in list(self._clients):
            client.abandon()
            if isinstance(client, EmbeddedConsumer):
                self.expel(client.group, client.member)
        self._clients.clear()

    def expel(self, group: str, member: str) -> None:
        """Take a member for dead, as a broker does after its session timeout; one that lives is told `on_lost`."""
        with self._memory.change() as change:
            membership = change.membership(group)
            if member in membership.members:
                membership.expel(member)
                change.save(group, membership)
