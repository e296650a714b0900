"""What a store must give: short consistent looks, atomic changes, and a call when something changed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

from agentic.brokers.base import Batch, Headers, Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.embedded.membership import Membership, Process


class Rows:
    """Records on their way to one partition, as columns."""

    __slots__ = ("headers", "keys", "size", "timestamps", "values")

    def __init__(self) -> None:
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        #: Bytes of keys, values and headers.
        self.size = 0

    def __len__(self) -> int:
        return len(self.timestamps)


class View(Protocol):
    """The store at one moment. Held for microseconds, never across an await."""

    def topics(self) -> dict[str, int]: ...

    def describe(self, topic: str) -> TopicInfo:
        """Raises `UnknownTopic`."""

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Start and end offset. Raises `UnknownTopic`."""

    def read(self, tp: TopicPartition, offset: int, limit: int) -> Batch:
        """About `limit` records from `offset` on, with position and end. Raises `UnknownTopic`."""

    def membership(self, group: str) -> Membership:
        """A group's members; the caller may change the object, which changes nothing until saved."""

    def position(self, group: str, tp: TopicPartition) -> Position | None: ...

    def positions(self, group: str) -> dict[TopicPartition, Position]: ...

    def groups(self) -> list[str]: ...

    def epoch(self, transactional_id: str) -> int:
        """The epoch of the latest producer with this id; 0 without any, or when it was forgotten."""


class Change(View, Protocol):
    """All of it or nothing: an exception inside leaves the store as it was."""

    def create(self, spec: TopicSpec) -> None:
        """Raises `TopicExists`."""

    def delete(self, topic: str) -> None:
        """Raises `UnknownTopic`."""

    def append(self, tp: TopicPartition, rows: Rows) -> None:
        """Raises `UnknownTopic`."""

    def move_start(self, tp: TopicPartition, offset: int) -> None:
        """Let nothing below `offset` be read any more; it is not beyond the end. Raises `UnknownTopic`."""

    def save(self, group: str, membership: Membership) -> None: ...

    def set_position(self, group: str, tp: TopicPartition, position: Position | None) -> None: ...

    def next_epoch(self) -> int:
        """A number greater than any that this gave before, of all processes."""

    def set_epoch(self, transactional_id: str, epoch: int) -> None: ...


class Signal:
    """Wakes all who wait. One loop, no memory: who waits looks first."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            # A waiter may belong to a loop that ended without it.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    @property
    def waited_for(self) -> bool:
        return bool(self._waiters)

    async def wait(self, timeout: float | None) -> None:
        """Return at the next `notify`, or after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = None if timeout is None else loop.call_later(timeout, _done, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Store(Protocol):
    """A log that this process can reach into."""

    #: What error messages call it.
    name: str
    #: Bytes of key, value and headers that one record may have.
    record_limit: int
    #: Seconds that a producer gathers records for before it writes them.
    linger: float
    #: Seconds between two looks at the group's state; None where every change is signalled.
    look_every: float | None
    #: Notified after each change to the records of a topic, and to the members of a group.
    records: Signal
    members: Signal

    def view(self) -> AbstractContextManager[View]: ...

    def change(self, size: int = 0) -> AbstractContextManager[Change]:
        """A change that adds about so many bytes of records.

        Raises:
            StorageFull: there is no room for them. Nothing was changed.
        """

    def clock(self) -> float:
        """Seconds, for leases."""

    def process(self) -> Process | None:
        """This process; None where members can't outlive or survive one."""

    def dead(self, process: Process) -> bool:
        """Is that process dead for certain?"""

    async def wait_records(self, timeout: float) -> None:
        """Return when there may be new records, or after `timeout` seconds."""
