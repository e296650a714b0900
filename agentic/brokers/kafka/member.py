"""A group member's thread: joining, rebalances, commits.

librdkafka calls back inside a poll, on our thread. There the loop's listener is called and
waited for, and the commands it gives meanwhile (commit, seek, pause) are served. A callback
lets no exception out: on Python 3.11 one raised by C code would leave poll() as an object that
no `except` catches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from agentic.brokers.base import Position, TopicPartition
from agentic.brokers.kafka import config
from agentic.brokers.kafka.config import CLASSIC_ONLY, Config, log
from agentic.brokers.kafka.errors import cause, translate
from agentic.brokers.kafka.offloop import post
from agentic.brokers.kafka.poller import REQUEST, Lot, Poller, partitions_of
from agentic.errors import BrokerError, BrokerUnavailable, Fenced, NotOwner

#: Seconds a listener gets to give partitions back; less where max.poll.interval.ms is small.
REVOKE = 10.0
#: Seconds without the committed positions after which a log line says so. Longer than a broker's restart.
WITHHELD = 15.0
#: A stale epoch may only mean that our own heartbeat's answer is still on its way: ask again so often…
STALE_RETRIES = 10
#: …after so many seconds.
STALE_PAUSE = 0.1
#: Seconds between two tries to join under a static id that a former self may still hold.
FENCED_PAUSE = 0.5


class Owner(Protocol):
    """The loop's side of a member: each is called on the loop, in this order for a partition."""

    def joined(self) -> None: ...

    async def assigned(self, positions: Mapping[TopicPartition, Position | None], lots: int) -> None: ...

    async def revoked(self, tps: Sequence[TopicPartition]) -> None: ...

    async def lost(self, tps: Sequence[TopicPartition]) -> None: ...

    def gone(self, tps: Sequence[TopicPartition]) -> None: ...


class Protocols:
    """Which group protocol the broker speaks: asked once a broker, by trying."""

    def __init__(self, options: Mapping[str, object]) -> None:
        forced = options.get("group.protocol")
        if forced is None and any(name in options for name in CLASSIC_ONLY):
            forced = "classic"
        #: Nobody asks for the other one while this is set.
        self.forced = forced
        self.classic = forced == "classic"


class Member(Poller):
    """Owns a group member's consumer.

    Args:
        make_config: gives the properties for the classic (True) or the KIP-848 protocol (False).
        session: seconds for which a static id may still be held by a former self.
    """

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        deliver: Callable[[Lot], None],
        fail: Callable[[BaseException], None],
        *,
        instance: str | None,
        offset_reset: str,
        session: float,
        protocols: Protocols,
        make_config: Callable[[bool], Config],
        error_cb: Callable[[Any], None],
    ) -> None:
        super().__init__(f"group {group!r}", loop, offset_reset, deliver, fail)
        self._instance = instance
        self._topics = list(topics)
        self._owner = owner
        self._session = session
        self._protocols = protocols
        self._make_config = make_config
        self._error_cb = error_cb
        #: Start offsets of partitions that are being assigned: a seek in the listener changes them.
        self._starts: dict[TopicPartition, int] | None = None
        self._max_poll = 300.0
        self._joined = False
        #: Whether we wait for a static id that another member holds; written here, read by the loop.
        self.contends = False
        self._give_up_joining = 0.0

    # -- joining

    def _open(self) -> None:
        self._give_up_joining = time.monotonic() + 1.25 * self._session
        self._subscribe()
        for topic in self._topics:
            self._check_topic(topic)

    def _subscribe(self) -> None:
        settings = self._make_config(self._protocols.classic)
        self._max_poll = int(settings.get("max.poll.interval.ms", 300_000)) / 1_000
        try:
            self._consumer = ck.Consumer({**settings, "error_cb": self._error_cb})
            self._consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        except (KafkaException, ValueError, TypeError) as problem:
            raise config.refused(problem, self.about) from problem

    def _fatal(self, error: Any) -> None:
        text = error.str()
        if not self._protocols.classic and self._protocols.forced is None and "version not supported" in text:
            log.debug("%s: the broker has no KIP-848, goes on with the classic protocol", self.about)
            self._protocols.classic = True
            self._again()
            return
        # librdkafka tells the reason of a fatal error in its text alone.
        if self._instance is None or ("fenced" not in text.lower() and "instance id" not in text.lower()):
            super()._fatal(error)
        else:
            if self._joined or time.monotonic() > self._give_up_joining:
                raise Fenced(
                    f"{self.about}: static id {self._instance!r} belongs to another worker ({_reason(text)});"
                    " give each worker its own setting 'instance'"
                )
            # Under KIP-848 a killed member's id is free only when its session has ended.
            if not self.contends:
                self.contends = True
                log.warning(
                    "%s: static id %r is held by another member; waiting up to %.0f s for that one's session to end",
                    self.about,
                    self._instance,
                    1.25 * self._session,
                )
            self._sleep(FENCED_PAUSE)
            self._again()

    def _again(self) -> None:
        self._consumer.close()
        self._consumer = None
        if not self._stopping:
            self._subscribe()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._serve_for(left)

    def _turn(self) -> None:
        if self._consumer is None:
            self._stopping = True
            return
        super()._turn()
        if not self._joined and self._member_id_is_ours():
            self._join()

    def _member_id_is_ours(self) -> bool:
        # Under KIP-848 the client makes the id itself, so there it says nothing.
        return self._protocols.classic and self._consumer is not None and bool(self._consumer.memberid())

    def _join(self) -> None:
        self._joined = True
        post(self._loop, self._owner.joined)

    def _restart(self, tp: TopicPartition, offset: int) -> None:
        if self._protocols.classic:
            super()._restart(tp, offset)
            return
        self._consumer.incremental_unassign(partitions_of([tp]))
        self._owned[tp] = ck.TopicPartition(tp.topic, tp.partition, offset)
        self._consumer.incremental_assign([self._owned[tp]])
        if tp in self._paused or tp in self._stalled:
            self._consumer.pause(partitions_of([tp]))

    # -- rebalances, inside a poll

    def _on_assign(self, _: object, partitions: list[Any]) -> None:
        self._guarded(self._assigned, partitions)

    def _on_revoke(self, _: object, partitions: list[Any]) -> None:
        self._guarded(self._revoked, partitions)

    def _on_lost(self, _: object, partitions: list[Any]) -> None:
        self._guarded(self._lost, partitions)

    def _guarded(self, fn: Callable[[list[Any]], None], partitions: list[Any]) -> None:
        try:
            fn(partitions)
        except BaseException as error:  # noqa: BLE001 - see the module's docstring; raised after the poll
            self._stash = self._stash or error

    def _assigned(self, partitions: list[Any]) -> None:
        self._join()
        tps = [TopicPartition(p.topic, p.partition) for p in partitions]
        if tps and not self._stopping:
            positions = self._fetch_committed(tps)
            reset = ck.OFFSET_BEGINNING if self._offset_reset == "earliest" else ck.OFFSET_END
            self._starts = {tp: reset if (at := positions[tp]) is None else at.offset for tp in tps}
            try:
                done = self._wait(self._owner.assigned(positions, self._lots), self._max_poll / 2)
                starts = self._starts
            finally:
                self._starts = None
            if not done:
                raise BrokerError(
                    f"{self.about}: taking over {names_of(tps)} took longer than {self._max_poll / 2:.0f} s;"
                    " raise the Kafka property max.poll.interval.ms"
                )
        else:
            starts = dict.fromkeys(tps, ck.OFFSET_END)
        assigned = {tp: ck.TopicPartition(tp.topic, tp.partition, starts[tp]) for tp in tps}
        self._owned.update(assigned)
        for tp in tps:
            if starts[tp] >= 0:
                self._begin_at(tp, starts[tp])
        if self._protocols.classic:
            self._consumer.assign(list(assigned.values()))
        else:
            self._consumer.incremental_assign(list(assigned.values()))
        # librdkafka keeps a partition paused that went while it was, and comes back to the same client.
        if fresh := [tp for tp in tps if tp not in self._paused]:
            self._consumer.resume(partitions_of(fresh))
        if early := [tp for tp in tps if tp in self._paused]:
            self._consumer.pause(partitions_of(early))

    def _fetch_committed(self, tps: list[TopicPartition]) -> dict[TopicPartition, Position | None]:
        since, told = time.monotonic(), False
        while True:
            try:
                return self.committed(tps)
            except BrokerUnavailable as problem:
                # Without the positions nothing can begin; whoever waits for us is served meanwhile.
                if self._stopping:
                    return dict.fromkeys(tps)
                if not told and (waited := time.monotonic() - since) > WITHHELD:
                    told = True
                    log.warning(
                        "%s: %s not taken over, for %.0f s now: the committed positions are withheld (%s);"
                        " a transaction is open that covers them, or the group's coordinator is away; asking on."
                        " A transaction that outlives its transaction.timeout.ms hangs:"
                        " find and abort it with kafka-transactions.sh",
                        self.about,
                        names_of(tps),
                        waited,
                        problem,
                    )
                self._serve_for(0.5)

    def _revoked(self, partitions: list[Any]) -> None:
        tps = [TopicPartition(p.topic, p.partition) for p in partitions]
        try:
            if tps:
                bound = min(REVOKE, self._max_poll / 4)
                if not self._wait(self._owner.revoked(tps), bound):
                    log.warning(
                        "%s: %s not drained within %.0f s; the next owner does again what is not committed",
                        self.about,
                        names_of(tps),
                        bound,
                    )
        finally:
            self._drop(tps)
            self._unassign(partitions)

    def _lost(self, partitions: list[Any]) -> None:
        tps = [TopicPartition(p.topic, p.partition) for p in partitions]
        self._drop(tps)
        try:
            if tps:
                self._wait(self._owner.lost(tps), min(REVOKE, self._max_poll / 4))
        finally:
            self._unassign(partitions)

    def _drop(self, tps: Sequence[TopicPartition]) -> None:
        for tp in tps:
            self._owned.pop(tp, None)
            self._begun(tp)
            self.ends.pop(tp, None)
        self._paused.difference_update(tps)
        self._stalled.difference_update(tps)
        post(self._loop, self._owner.gone, tps)

    def _unassign(self, partitions: list[Any]) -> None:
        # A session that ended meanwhile has taken the assignment already.
        with suppress(KafkaException):
            if self._protocols.classic:
                self._consumer.unassign()
            else:
                self._consumer.incremental_unassign(partitions)

    def _wait(self, coroutine: Coroutine[Any, Any, None], bound: float) -> bool:
        """Run a coroutine on the loop and serve commands until it is done; False when `bound` is over first."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()  # the loop is closed: nobody is left to be asked
            return True
        future.add_done_callback(lambda _: self._commands.put(None))
        until = time.monotonic() + bound
        while not future.done():
            left = until - time.monotonic()
            if left <= 0 or self._loop.is_closed():
                return False
            self._serve_for(min(left, 1.0))
        future.result()
        return True

    # -- commands

    def committed(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Ask what the group has committed."""
        about = f"committed positions of {self.about}"
        try:
            answers = self._consumer.committed(partitions_of(tps), timeout=REQUEST)
        except KafkaException as problem:
            raise translate(problem, about) from problem
        positions: dict[TopicPartition, Position | None] = {}
        for answer in answers:
            if answer.error is not None:
                raise translate(answer.error, f"{about}, {answer.topic}-{answer.partition}")
            tp = TopicPartition(answer.topic, answer.partition)
            positions[tp] = Position(answer.offset, answer.metadata or "") if answer.offset >= 0 else None
        return positions

    def seek(self, offsets: Mapping[TopicPartition, int]) -> int:
        """Go on at these offsets; return the number of the last lot from before."""
        for tp, offset in offsets.items():
            if self._starts is not None and tp in self._starts:
                self._starts[tp] = offset
                continue
            if tp not in self._owned:
                raise NotOwner(f"{self.about}: seek of {tp} to {offset}: not ours; seek what on_assigned gave")
            try:
                self._consumer.seek(ck.TopicPartition(tp.topic, tp.partition, offset))
            except KafkaException as problem:
                raise translate(problem, f"{self.about}: seek of {tp} to {offset}") from problem
            self._owned[tp] = ck.TopicPartition(tp.topic, tp.partition, offset)
            self._begin_at(tp, offset)
            self._crossed.add(tp)
        return self._lots

    def member_id(self) -> str | None:
        """Return what the group calls us, None before we have joined."""
        return self._consumer.memberid() or None

    def group_metadata(self) -> Any:
        """Return what a transaction needs to know of our membership."""
        return self._consumer.consumer_group_metadata()

    def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit and wait for the answer.

        An asynchronous commit would be answered by a poll, behind the records that librdkafka has
        fetched ahead; and those nobody takes while the loop waits for the commit. While the
        coordinator is away this waits for it, which holds up only what needs the broker too.
        """
        if foreign := [tp for tp in positions if tp not in self._owned and not (self._starts and tp in self._starts)]:
            raise NotOwner(f"{self.about}: commit of {names_of(foreign)}: not ours any more; nothing was committed")
        offsets = [ck.TopicPartition(tp.topic, tp.partition, at.offset, at.metadata) for tp, at in positions.items()]
        about = f"{self.about}: commit of {names_of(list(positions))}"
        for left in reversed(range(STALE_RETRIES)):
            try:
                for answer in self._consumer.commit(offsets=offsets, asynchronous=False):
                    if answer.error is not None:
                        raise translate(answer.error, about)
                return
            except KafkaException as problem:
                if not left or cause(problem).code() != KafkaError.STALE_MEMBER_EPOCH:
                    raise translate(problem, about) from problem
                time.sleep(STALE_PAUSE)


def _reason(text: str) -> str:
    return text.removeprefix("Fatal error: ").partition(": ConsumerGroupHeartbeat")[0]


def names_of(tps: Sequence[TopicPartition]) -> str:
    """Name some partitions in a message."""
    return ", ".join(map(str, tps[:5])) + (f" and {len(tps) - 5} more" if len(tps) > 5 else "")
