"""A member of a group: looks at the group's state, moves towards its target, reads what it owns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from agentic.brokers.base import Batch, Listener, Position, TopicPartition
from agentic.brokers.embedded.feed import Feed
from agentic.brokers.embedded.membership import target
from agentic.brokers.embedded.store import Change, Store
from agentic.errors import BrokerError, NotOwner, UnknownTopic, named

#: Characters of a commit's metadata, as Kafka has it by default.
METADATA_LIMIT = 4_095
#: A lease is renewed when this part of it is over: two beats may be missed.
RENEW_AFTER = 1 / 3


class EmbeddedConsumer:
    """See `agentic.brokers.base.Consumer`."""

    def __init__(
        self,
        store: Store,
        group: str,
        topics: Sequence[str],
        *,
        instance: str | None,
        offset_reset: str,
        session_timeout: float,
    ) -> None:
        self.group = group
        self.member = instance or f"member-{uuid.uuid4().hex}"
        self._static = instance is not None
        self._topics = list(topics)
        self._timeout = session_timeout
        self._store = store
        self._feed = Feed(store, latest=offset_reset == "latest")
        self._listener: Listener | None = None
        self._epoch = 0
        self._owned: set[TopicPartition] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        self._join()
        self._task = asyncio.create_task(self._live(), name=f"member {self.member} of {self.group}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._feed.failure = task.exception()
            self._store.records.notify()

    def _join(self) -> None:
        store = self._store
        with store.change() as change:
            known = change.topics()
            if missing := [topic for topic in self._topics if topic not in known]:
                raise UnknownTopic(
                    f"{store.name}: no {named('topic', missing)}, which group {self.group!r} reads; "
                    f"create {'each' if len(missing) > 1 else 'it'} first: 'agentic topics create {missing[0]}'"
                )
            membership = change.membership(self.group)
            now = store.clock()
            membership.evict(now, store.dead)
            self._epoch = membership.join(
                self.group,
                self.member,
                self._topics,
                now,
                self._timeout,
                process=store.process(),
                static=self._static,
                dead=store.dead,
            )
            change.save(self.group, membership)

    async def _live(self) -> None:
        while not self._closing:
            if not await self._step():
                await self._store.members.wait(self._store.look_every)

    async def _step(self) -> bool:
        """Look at the group and move one step towards the target; False when there is nothing to do."""
        assert self._listener is not None
        store = self._store
        now = store.clock()
        with store.view() as view:
            membership = view.membership(self.group)
            row = membership.members.get(self.member)
            lost = row is None or row.epoch != self._epoch
            partitions = {topic: n for topic, n in view.topics().items() if topic in membership.topics}
        if row is None or lost:
            await self._rejoin()
            return True
        due = row.deadline - now < row.timeout * (1 - RENEW_AFTER)
        membership.renew(self.member, now)
        if membership.evict(now, store.dead) or due:
            self._beat()
        mine = set(target(membership, partitions)[self.member])
        if surplus := sorted(self._owned - mine):
            await self._give_up(surplus)
            return True
        free = [tp for tp in sorted(mine - self._owned) if membership.owner(tp) is None]
        return bool(free) and await self._take(free)

    def _beat(self) -> None:
        """Renew our lease, and evict who is dead."""
        with self._store.change() as change:
            membership = change.membership(self.group)
            row = membership.members.get(self.member)
            if row is not None and row.epoch == self._epoch:
                now = self._store.clock()
                membership.renew(self.member, now)
                membership.evict(now, self._store.dead)
                change.save(self.group, membership)

    async def _rejoin(self) -> None:
        lost = sorted(self._owned)
        self._owned.clear()
        self._feed.drop(lost)
        if lost and self._listener is not None:
            await self._listener.on_lost(lost)
        self._join()

    async def _take(self, free: list[TopicPartition]) -> bool:
        """Own what is still free, and tell the listener; its first batch comes after that."""
        assert self._listener is not None
        with self._store.change() as change:
            membership = change.membership(self.group)
            row = membership.members.get(self.member)
            if row is None or row.epoch != self._epoch:
                return True
            taken = [tp for tp in free if membership.owner(tp) is None]
            membership.take(self.member, taken)
            change.save(self.group, membership)
            positions = {tp: change.position(self.group, tp) for tp in taken}
        if not taken:
            return False
        self._owned.update(taken)
        self._feed.hold(taken)
        self._feed.place({tp: None if at is None else at.offset for tp, at in positions.items()})
        await self._alive_during(self._listener.on_assigned(positions))
        self._feed.release(taken)
        self._store.records.notify()
        return True

    async def _give_up(self, tps: list[TopicPartition]) -> None:
        assert self._listener is not None
        self._feed.hold(tps)
        await self._alive_during(self._listener.on_revoked(tps))
        self._owned.difference_update(tps)
        self._feed.drop(tps)
        with self._store.change() as change:
            membership = change.membership(self.group)
            row = membership.members.get(self.member)
            if row is not None and row.epoch == self._epoch:
                membership.release(self.member, tps)
                change.save(self.group, membership)

    async def _alive_during(self, call: Coroutine[Any, Any, None]) -> None:
        """Await the listener, which may drain for long, and keep our lease meanwhile."""
        if self._store.look_every is None:
            await call
            return
        task = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait([task], timeout=self._timeout * RENEW_AFTER))[0]:
                self._beat()
        finally:
            task.cancel()
        await task

    async def poll(self, timeout: float) -> list[Batch]:
        return await self._feed.poll(timeout)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._feed.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._feed.resume(partitions)
        self._store.records.notify()

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._check_owned(offsets, "seek")
        self._feed.place(offsets)
        self._store.records.notify()

    async def member_id(self) -> str | None:
        return self.member

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position | None]:
        with self._store.view() as view:
            return {tp: view.position(self.group, tp) for tp in partitions}

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        if positions:
            with self._store.change() as change:
                self.record(change, positions)

    def record(self, change: Change, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit within a change, a producer's transaction for one.

        Raises:
            NotOwner: and the change must be undone.
        """
        self._check_owned(positions, "commit")
        check_positions(self.group, positions)
        membership = change.membership(self.group)
        membership.check(self.group, self.member, self._epoch, positions)
        for tp, position in positions.items():
            change.set_position(self.group, tp, position)

    def _check_owned(self, tps: Iterable[TopicPartition], what: str) -> None:
        if foreign := [tp for tp in tps if tp not in self._owned]:
            raise NotOwner(
                f"group {self.group!r}: {what} of {', '.join(map(str, foreign))}: not ours (any more); nothing was done"
            )

    async def close(self) -> None:
        task = self._task
        if task is None or self._closing:
            return
        self._closing = True
        self._store.members.notify()
        await asyncio.wait([task])
        try:
            if self._owned:
                await self._give_up(sorted(self._owned))
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._store.change() as change:
            membership = change.membership(self.group)
            row = membership.members.get(self.member)
            if row is not None and row.epoch == self._epoch:
                membership.leave(self.member, self._store.clock())
                change.save(self.group, membership)

    def abandon(self) -> None:
        """Stop without a goodbye, as a process does that is killed."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()


def check_positions(group: str, positions: Mapping[TopicPartition, Position | None]) -> None:
    """Raises `BrokerError` for a negative offset or metadata that is too long."""
    for tp, position in positions.items():
        if position is None:
            continue
        if position.offset < 0:
            raise BrokerError(f"group {group!r}: {tp}: offset {position.offset}: an offset is at least 0")
        if len(position.metadata) > METADATA_LIMIT:
            raise BrokerError(
                f"group {group!r}: {tp}: commit metadata of {len(position.metadata)} characters;"
                f" at most {METADATA_LIMIT} are kept"
            )
