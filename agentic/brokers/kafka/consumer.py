"""A member of a consumer group, as the event loop sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentic.brokers.base import Batch, Listener, Position, TopicPartition
from agentic.brokers.kafka import columns
from agentic.brokers.kafka.member import Member, names_of
from agentic.brokers.kafka.offloop import post, settle
from agentic.brokers.kafka.poller import Lot, Poller
from agentic.errors import BrokerError, BrokerUnavailable, NotOwner

#: Seconds until a commit or a question counts as unanswered.
ANSWER = 30.0
#: Seconds `start` waits for the group's first word before it leaves the rest to the listener.
JOIN = 10.0
#: Seconds a close may take before the thread is left to end by itself.
CLOSE = 15.0
#: Records of paused partitions that are kept on the loop before their fetching is stopped:
#: stopping throws away what is fetched, and starting again costs a round trip.
KEEP = 3_000
#: Characters of a commit's metadata that a broker takes by default. Kafka 4.3 refuses 4,096 itself,
#: the value of offset.metadata.max.bytes.
METADATA_LIMIT = 4_095


class Intake:
    """What has come from a thread and waits on the loop: lots, cut into batches when they are asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.poller: Poller | None = None
        #: partition -> number of the last lot that is not to be handed over; absent: none of it is.
        self.live: dict[TopicPartition, float] = {}
        self.paused: set[TopicPartition] = set()
        self._kept: dict[TopicPartition, list[Batch]] = {}
        self._ready: list[Batch] = []
        self._stopped: set[TopicPartition] = set()
        self._lots: deque[Lot] = deque()
        self._loop = loop
        #: More than one where a listener polls, or where a cancelled poll has not ended yet.
        self._waiters: set[asyncio.Future[None]] = set()
        self.failure: BaseException | None = None

    def deliver(self, lot: Lot) -> None:
        self._lots.append(lot)
        self._wake()

    def fail(self, error: BaseException) -> None:
        self.failure = error
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            settle(waiter, None, None)

    async def poll(self, timeout: float) -> list[Batch]:
        deadline = self._loop.time() + timeout
        while True:
            if self._ready:
                batches, self._ready = self._ready, []
                return batches
            if self._lots:
                if batches := self._cut(self._lots.popleft()):
                    return batches
                continue
            if self.failure is not None:
                raise self.failure
            left = deadline - self._loop.time()
            if left <= 0:
                return []
            await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        timer = self._loop.call_later(seconds, settle, waiter, None, None)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def _cut(self, lot: Lot) -> list[Batch]:
        poller = self.poller
        assert poller is not None
        poller.took()
        live, ends = self.live, poller.ends
        batches = []
        last: dict[TopicPartition, Batch] = {}
        if lot.messages:
            for tp, messages in columns.runs(lot.messages):
                if lot.number > live.get(tp, lot.number):
                    batch = columns.batch(tp, messages)
                    batch.end = ends.get(tp)
                    last[tp] = batch
                    batches.append(batch)
        for tp, end in lot.ends.items():
            if lot.number > live.get(tp, lot.number):
                batch = last.get(tp) or Batch(tp, [], [], [], [], (), end)
                batch.position = end
                batch.end = max(end, ends.get(tp, end))
                if tp not in last:
                    batches.append(batch)
        if self.paused:
            return self._keep(batches)
        return batches

    def _keep(self, batches: list[Batch]) -> list[Batch]:
        through = []
        for batch in batches:
            if batch.tp in self.paused:
                self._kept.setdefault(batch.tp, []).append(batch)
            else:
                through.append(batch)
        if len(through) < len(batches) and sum(len(b) for kept in self._kept.values() for b in kept) > KEEP:
            more = self.paused - self._stopped
            self._stopped |= more
            if more and self.poller is not None:
                self.poller.send(self.poller.pause, more)
        return through

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        tps = set(tps) & self.paused
        self.paused -= tps
        for tp in tps:
            self._ready.extend(self._kept.pop(tp, ()))
        if back := tps & self._stopped:
            self._stopped -= back
            if self.poller is not None:
                self.poller.send(self.poller.resume, back)
        if self._ready:
            self._wake()

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        tps = set(tps)
        self.paused |= tps
        waiting = [batch for batch in self._ready if batch.tp in tps]
        if waiting:
            self._ready = [batch for batch in self._ready if batch.tp not in tps]
            for batch in waiting:
                self._kept.setdefault(batch.tp, []).append(batch)

    def discard(self, tps: Iterable[TopicPartition]) -> None:
        """Throw away what waits of these partitions, and hand over nothing more until they are live again."""
        for tp in tps:
            self.live.pop(tp, None)
            self._kept.pop(tp, None)
        self._ready = [batch for batch in self._ready if batch.tp in self.live]

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """The partitions are another's: a pause of ours means nothing any more."""
        self.discard(tps)
        self.paused.difference_update(tps)
        self._stopped.difference_update(tps)


class KafkaConsumer:
    """See `agentic.brokers.base.Consumer`. Headers are the messages themselves."""

    def __init__(self, group: str, make_member: Callable[..., Member]) -> None:
        self._about = f"group {group!r}"
        self._make_member = make_member
        self._loop = asyncio.get_running_loop()
        self._intake = Intake(self._loop)
        self._member: Member | None = None
        self._listener: Listener | None = None
        self._owned: set[TopicPartition] = set()
        self._calls = asyncio.Lock()
        self._joined: asyncio.Future[None] | None = None
        self._closed = False

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        self._joined = self._loop.create_future()
        member = self._make_member(self._loop, self, self._intake.deliver, self._fail)
        self._member = self._intake.poller = member
        member.start()
        await asyncio.wait([self._joined], timeout=JOIN)
        if member.contends:
            # Either the id becomes free or we are fenced; the member knows when it has waited enough.
            await asyncio.wait([self._joined])
        if self._joined.done():
            await self._joined

    async def poll(self, timeout: float) -> list[Batch]:
        return await self._intake.poll(timeout)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._intake.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._intake.resume(partitions)

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        if foreign := self.foreign(offsets):
            raise NotOwner(f"{self._about}: seek of {names_of(foreign)}: not ours; seek what on_assigned gave")
        member = self._running()
        live = [tp for tp in offsets if tp in self._intake.live]
        self._intake.discard(live)

        def seek() -> None:
            # Before the thread posts a lot from the new place, which may come sooner than the answer wakes us.
            post(self._loop, self._live_after, live, member.seek(dict(offsets)))

        await self._answered(member.call(seek), "seek")

    def _live_after(self, tps: Iterable[TopicPartition], lot: int) -> None:
        """Hand over what comes of these partitions after a lot."""
        for tp in tps:
            if tp in self._owned:
                self._intake.live[tp] = lot

    async def member_id(self) -> str | None:
        member = self._running()
        name: str | None = await self._answered(member.call(member.member_id), "member id")
        return name

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position | None]:
        member = self._running()
        asked = member.call(member.committed, list(partitions))
        positions: dict[TopicPartition, Position | None] = await self._answered(asked, "committed positions")
        return positions

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        if not positions:
            return
        if foreign := self.foreign(positions):
            raise NotOwner(f"{self._about}: commit of {names_of(foreign)}: not ours any more; nothing was committed")
        check_metadata(positions)
        member = self._running()
        await self._answered(member.call(member.commit, dict(positions)), "commit")

    def foreign(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of the partitions that are not ours."""
        return [tp for tp in tps if tp not in self._owned]

    async def group_metadata(self) -> Any:
        """Return what a transaction needs to know of this membership."""
        member = self._running()
        return await self._answered(member.call(member.group_metadata), "group metadata")

    async def close(self) -> None:
        member = self._member
        if member is None or self._closed:
            return
        self._closed = True
        await member.stop(CLOSE)
        self._intake.forget(list(self._owned))
        self._owned.clear()

    def _running(self) -> Member:
        if self._member is None:
            raise BrokerError(f"{self._about}: not started; await start() first")
        if not self._member.is_alive():
            raise BrokerUnavailable(f"{self._about}: closed")
        return self._member

    async def _answered(self, answer: Any, what: str) -> Any:
        try:
            return await asyncio.wait_for(answer, ANSWER)
        except TimeoutError:
            raise BrokerUnavailable(
                f"{self._about}: {what}: no answer within {ANSWER:.0f} s; check that the broker runs"
            ) from None

    # -- what the member's thread asks of the loop

    def joined(self) -> None:
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._intake.fail(error)
        if self._joined is not None and not self._joined.done():
            self._joined.set_exception(error)

    async def assigned(self, positions: Mapping[TopicPartition, Position | None], lots: int) -> None:
        self._owned.update(positions)
        async with self._calls:
            assert self._listener is not None
            await self._listener.on_assigned(positions)
        for tp in positions:
            if tp in self._owned:
                self._intake.live[tp] = lots

    async def revoked(self, tps: Sequence[TopicPartition]) -> None:
        self._intake.forget(tps)
        async with self._calls:
            assert self._listener is not None
            await self._listener.on_revoked(tps)

    async def lost(self, tps: Sequence[TopicPartition]) -> None:
        self._intake.forget(tps)
        self._owned.difference_update(tps)
        async with self._calls:
            assert self._listener is not None
            await self._listener.on_lost(tps)

    def gone(self, tps: Sequence[TopicPartition]) -> None:
        self._owned.difference_update(tps)
        self._intake.forget(tps)


def check_metadata(positions: Mapping[TopicPartition, Position]) -> None:
    """Refuse what the broker would refuse, before anything is sent.

    Raises:
        BrokerError: names the partition and the length.
    """
    for tp, position in positions.items():
        size = len(position.metadata)
        if size > METADATA_LIMIT:
            raise BrokerError(f"commit of {tp}: metadata of {size} characters; a broker takes {METADATA_LIMIT}")
