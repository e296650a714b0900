"""The protocol that every driver meets: ``memory://``, ``local://DIR`` and ``kafka://HOST``.

What crosses it are batches and positions, bytes and integers: codecs, agents and ledgers
live above. A driver's objects belong to the event loop that opened the broker and are
called from it alone; how a driver uses threads is its own affair.

Words: a *position* is an offset with a metadata string, the next record to read. A group's
members own partitions; an owner is told by a `Listener` before a partition comes and
before it goes, and what a former owner commits is refused with `NotOwner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

#: Kafka's property for how far ahead of the broker's clock a record's time may be; by default an hour since
#: Kafka 4. What an app keeps for itself has the times of its events, whatever these are.
ANY_TIME = "message.timestamp.after.max.ms"
ANY_TIME_CONFIG = {ANY_TIME: str((1 << 63) - 1)}

#: Headers as they are on the wire: pairs, in order, names may repeat.
Headers = tuple[tuple[str, bytes], ...]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Position(NamedTuple):
    """A committed offset: the next one to read, with a string of at most 4,095 characters, what Kafka takes."""

    offset: int
    metadata: str = ""


class LazyHeaders(Protocol):
    """A record's headers, parsed when first asked for."""

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


class Batch:
    """Records of one partition, in offset order, as columns of equal length.

    May be empty: it then only says how far the reader has come.

    Attributes:
        tp: the partition.
        offsets: rising; gaps are records that a compaction, a retention or an aborted
            transaction took away.
        timestamps: milliseconds since the epoch.
        keys, values: bytes; None is a null key, a tombstone.
        headers: for each record its `Headers`, None, or an object that parses them late.
        position: the offset after the batch: where the reader goes on. Greater than the
            last offset + 1 where the driver knows that nothing visible lies between.
        end: the partition's end offset as far as the driver knows it when it hands the
            batch over, None where it does not. ``position >= end`` means caught up.
    """

    __slots__ = ("end", "headers", "keys", "offsets", "position", "timestamps", "tp", "values")

    def __init__(
        self,
        tp: TopicPartition,
        offsets: list[int],
        timestamps: list[int],
        keys: list[bytes | None],
        values: list[bytes | None],
        headers: Sequence[Headers | LazyHeaders | None],
        position: int,
        end: int | None = None,
    ) -> None:
        self.tp = tp
        self.offsets = offsets
        self.timestamps = timestamps
        self.keys = keys
        self.values = values
        self.headers = headers
        self.position = position
        self.end = end

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True)
class TopicSpec:
    """What a topic is to be like when it is made.

    Args:
        name: 1 to 249 characters of ``[A-Za-z0-9._-]``, as in Kafka; not ``.`` or ``..``.
        partitions: how many; at least 1.
        retention_ms: records older than this may be removed; None keeps the broker's default
            (for local and memory: for ever).
        retention_bytes: the oldest records of a partition may go when it is larger; None: no limit.
        compacted: keep only the last record of each key (tombstones go after a while).
        config: further properties for a Kafka topic, by their Kafka names; other drivers ignore them.
    """

    name: str
    partitions: int = 1
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compacted: bool = False
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicInfo:
    """A topic as it is: ``offsets[n]`` is partition n's (start, end).

    The `id` is another one when a topic is deleted and one of the same name made, and in another cluster or log.
    """

    name: str
    offsets: Mapping[int, tuple[int, int]]
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compacted: bool = False
    id: str = ""

    @property
    def expires(self) -> bool:
        """Whether records go after a time, or when there are many, the last of their key or not."""
        return self.retention_ms is not None or self.retention_bytes is not None

    @property
    def partitions(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True)
class GroupInfo:
    """A consumer group as it is: its members with what each owns, and what is committed.

    Of members that own nothing, the first named is the first to get something.
    """

    name: str
    members: Mapping[str, Sequence[TopicPartition]]
    positions: Mapping[TopicPartition, Position]


class Listener(Protocol):
    """Who is told when partitions come and go. Called on the event loop, never two calls at once."""

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        """These partitions are ours now; `positions` has what is committed, None where nothing is.

        Their first batch comes only after this has returned.
        """

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions go to another member once this returns; commits still succeed until then."""

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are gone already: what is not committed will be done by their next owner."""


class Reader(Protocol):
    """Reads given partitions from given offsets, outside any group."""

    async def poll(self, timeout: float) -> list[Batch]:
        """The next batches; an empty list after `timeout` seconds without any."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand over nothing more of these until `resume`; batches that wait already are kept for later."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def close(self) -> None: ...


class Consumer(Protocol):
    """A member of a consumer group. Made by `Broker.consumer`; does nothing before `start`."""

    async def start(self, listener: Listener) -> None:
        """Join the group. Partitions come later, through the listener.

        Raises:
            Fenced: a live member has the same static id.
        """

    async def poll(self, timeout: float) -> list[Batch]:
        """The next batches of owned, unpaused partitions; an empty list after `timeout` seconds without any.

        Never hands over a batch of a partition that was revoked or lost, or from before a seek.
        A partition whose end is reached is reported once by a batch with ``position == end``,
        which may be empty, and again whenever that has changed. The call may be cancelled at any
        time; no batch is lost by it.

        Raises:
            BrokerError: what can't be mended by trying again. A broker that is away is no error
                here: the driver keeps trying, logs one line an incident, and goes on by itself.
        """

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand over nothing more of these until `resume`; batches that wait already are kept for later."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on reading owned partitions at these offsets."""

    async def member_id(self) -> str | None:
        """How `Broker.describe_group` calls this member; None while it is none. Each joining may bring another."""

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """What the group has committed."""

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit, all or nothing, and return when the broker has acknowledged.

        Raises:
            NotOwner: a partition is no longer ours. Nothing of this call was committed.
            BrokerUnavailable: not acknowledged in time; it may or may not have been done.
        """

    async def close(self) -> None:
        """Give back all partitions (`Listener.on_revoked`), leave the group, stop."""


class Producer(Protocol):
    """Appends records. With a transactional id, in transactions that begin by themselves."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None:
        """Take a record over; never blocks, and never refuses for want of room: see `ready`.

        `partition` -1 chooses by murmur2 of the key as Kafka's clients do, evenly for a null key.

        Raises:
            UnknownTopic: at once where the driver knows it; otherwise `flush` tells.
            RecordTooLarge: likewise.
        """

    @property
    def backlog(self) -> int:
        """Records taken over and not yet acknowledged."""

    async def ready(self) -> None:
        """Return when the backlog is below the driver's limit: what a sender waits for between batches."""

    async def flush(self) -> None:
        """Return when all that was sent is acknowledged, written and readable.

        Under a transaction: so far that `Broker.end_offsets` with the open ones counts it in.

        Raises:
            DeliveryFailed: a record sent since the last flush was refused for good; names it. Told once,
                under a transaction by its commit.
            BrokerUnavailable: not done within the driver's time. Nothing is lost: the records go on
                waiting, and another flush waits for them again.
        """

    async def commit_transaction(self, positions: Mapping[TopicPartition, Position], consumer: Consumer) -> None:
        """Publish all that was sent since the last commit together with the positions, or neither.

        Raises:
            TransactionAborted: neither, and the next transaction may begin. Where the broker fell
                silent at the last step it may be both after all: whoever reads again from the
                committed positions is right in either case.
            BrokerUnavailable: not within the driver's time; to be taken like an undone one.
            Fenced: another producer has our transactional id; this one is dead.
        """

    async def abort_transaction(self) -> None:
        """Undo all that was sent since the last commit; what an earlier commit left unsettled is settled then.

        Raises:
            BrokerUnavailable: try again.
        """

    async def close(self) -> None:
        """Stop; what was not flushed may be lost, an open transaction is aborted."""


class Broker(Protocol):
    """A log somewhere. Made by `connect`, which does no I/O."""

    #: Does the driver make missing source and sink topics unless told otherwise?
    creates_topics: bool

    @property
    def url(self) -> str: ...

    async def open(self, timeout: float) -> None:
        """Reach the broker.

        Raises:
            BrokerUnavailable: not within `timeout` seconds; names the address and what to check.
            StorageCorrupt: the log's files are damaged, foreign, or of a newer format.
            BrokerError: a directory that can't be written, an option that the driver refuses.
        """

    async def close(self) -> None: ...

    def consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        instance: str | None = None,
        offset_reset: str = "earliest",
        session_timeout: float = 45.0,
    ) -> Consumer:
        """A new member of `group`; every member of a group must give the same topics.

        Args:
            instance: a static member id: a restart within the session timeout gets its partitions back.
            offset_reset: ``earliest`` or ``latest``: where to begin without a commit.
            session_timeout: seconds of silence after which a member is taken for dead.
        """

    def reader(self, offsets: Mapping[TopicPartition, int], *, bulk: bool = False) -> Reader:
        """Read these partitions from these offsets, committed records only.

        Args:
            bulk: very many records are to be read, and memory for fetching ahead is well spent.
        """

    def producer(self, *, transactional_id: str | None = None) -> Producer: ...

    async def topics(self) -> dict[str, int]:
        """All topics with their number of partitions."""

    async def describe_topic(self, name: str) -> TopicInfo:
        """Raises `UnknownTopic`."""

    async def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Raises `TopicExists`, `BrokerError` for a name or number that can't be."""

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Raises `UnknownTopic`; deletes none then."""

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, with_open: bool = False
    ) -> dict[TopicPartition, int]:
        """Where each partition ends for a reader of committed records.

        Args:
            with_open: where it ends when each transaction that is open, or whose commit is not
                visible everywhere yet, is counted in: what will be known to have been there.
        """

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Remove all records below these offsets: no more can be read, and each partition starts there.

        A start that is further on already stays. Committed positions and the partitions' ends stay as
        they are; whoever stands below the start goes on at it, as after a retention.

        Raises:
            UnknownTopic: of the others some may have been done.
            BrokerError: an offset that is negative or beyond the end, or the topic is compacted only,
                whose records are the last of their keys; of the others some may have been done.
            BrokerUnavailable: not acknowledged in time; it may or may not have been done.
        """

    async def groups(self) -> list[str]: ...

    async def describe_group(self, name: str) -> GroupInfo:
        """An unknown group has no members and no positions."""

    async def delete_group(self, name: str) -> None:
        """Forget a group with all that it has committed.

        Raises:
            BrokerError: the group has live members, or is unknown.
        """

    async def set_positions(self, group: str, positions: Mapping[TopicPartition, Position | None]) -> None:
        """Set, or with None remove, what a group has committed.

        Raises:
            BrokerError: the group has live members.
        """
