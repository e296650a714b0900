"""The thread that owns a confluent consumer, and the hand-over of what it reads to the event loop.

Since confluent-kafka 2.16 a consumer belongs to the thread that calls it: any other call waits
until a running poll has ended, and nothing can wake a poll. So one thread makes all calls. It
polls always; what the loop wants done (commit, seek, pause…) is queued and done between polls.

The hand-over holds few lists. While it is full the thread waits for a place *and* serves
commands: the loop may make no place because it waits for a commit. When it stays full the
partitions are paused and polling goes on, for rebalances come through polls, and the group
throws out a member that does not poll within ``max.poll.interval.ms``.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException, Message

from agentic.brokers.base import TopicPartition
from agentic.brokers.kafka.config import log
from agentic.brokers.kafka.errors import FENCED, FORBIDDEN, UNKNOWN_TOPIC, cause, translate
from agentic.brokers.kafka.offloop import post, settle
from agentic.errors import BrokerError, BrokerUnavailable, UnknownTopic

T = TypeVar("T")

#: How long a poll waits for a first message, in seconds: so long a command may have to wait. Each waking costs
#: some tens of microseconds, so while nothing comes and nothing is wanted each poll waits twice as long as the
#: one before it: a command waits no longer than it has been quiet before, and at most `POLL_MOST`.
POLL = 0.02
POLL_MOST = 0.1
#: Messages in one list. More of them save switches between the threads, fewer save memory and delay.
LIST = 1_000
#: Lists that may wait on the loop: one in work there, one ready, one on its way.
AHEAD = 3
#: Seconds of a full hand-over after which the partitions are paused, so that polling can go on.
#: A pause throws away what librdkafka has fetched ahead, so it must not come with every batch.
STALLED = 1.0
#: Seconds a blocking question to the broker may take before it is asked again or given up.
REQUEST = 10.0

_error = Message.error


class Lot(NamedTuple):
    """What one turn of polling brought: records, and partitions whose end came after them."""

    number: int
    messages: list[Any]
    ends: dict[TopicPartition, int]


def partitions_of(tps: Iterable[TopicPartition]) -> list[Any]:
    """Return confluent's form of partitions."""
    return [ck.TopicPartition(tp.topic, tp.partition) for tp in tps]


class Poller(threading.Thread):
    """Owns a consumer from its making to its end. Methods with an underscore run in the thread.

    Args:
        name: what log lines and errors call it: "group 'shop'".
        deliver: called on the loop with each `Lot`.
        fail: called on the loop, once, with the error that ended the reading.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        offset_reset: str,
        deliver: Callable[[Lot], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=f"agentic-kafka {name}", daemon=True)
        self.about = name
        #: Last end offset heard of, by partition; written here, read by the loop.
        self.ends: dict[TopicPartition, int] = {}
        #: Lots the loop has taken; written by the loop alone.
        self.taken = 0
        self._loop = loop
        self._offset_reset = offset_reset
        self._deliver = deliver
        self._fail = fail
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._consumer: Any = None
        self._owned: dict[TopicPartition, Any] = {}
        self._paused: set[TopicPartition] = set()
        self._stalled: set[TopicPartition] = set()
        #: Where reading was told to begin, until the first record from there has come.
        self._sought: dict[TopicPartition, int] = {}
        #: Those of them whose end was heard of before any record, and not believed.
        self._doubted: set[TopicPartition] = set()
        #: What was sought while a fetch was under way (in a rebalance): it may hold records from before.
        self._crossed: set[TopicPartition] = set()
        self._lots = 0
        self._full = False
        self._behind = False
        #: How long the next poll waits.
        self._poll_for = POLL
        self._stopping = False
        self._resets: list[TopicPartition] = []
        self._stash: BaseException | None = None
        self._ended = asyncio.Event()

    # -- called on the loop

    async def call(self, fn: Callable[..., T], *args: object) -> T:
        """Return ``fn(*args)``, run by the thread between two polls."""
        done: asyncio.Future[T] = self._loop.create_future()
        self.send(self._answer, done, fn, args)
        if not self.is_alive():
            raise BrokerUnavailable(f"{self.about}: closed")
        return await done

    def send(self, fn: Callable[..., object], *args: object) -> None:
        """Have the thread call ``fn(*args)`` soon."""
        self._commands.put(lambda: fn(*args))

    def took(self) -> None:
        """Say that the loop has taken a lot out of the hand-over."""
        self.taken += 1
        if self._full:
            self._commands.put(None)

    async def stop(self, timeout: float) -> None:
        """Have the thread close its consumer and end; after `timeout` seconds it is left to do so by itself."""

        def stopping() -> None:
            self._stopping = True

        self._commands.put(stopping)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)

    # -- the thread

    def run(self) -> None:
        try:
            self._open()
            while not self._stopping:
                self._turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, poll() raises it on the loop
            self._give_up(error)
        finally:
            self._shut()
            post(self._loop, self._ended.set)

    def _turn(self) -> None:
        self._serve()
        if self._resets:
            again, self._resets = self._resets, []
            for tp in again:
                self._reset(tp)
        if self._lots - self.taken >= AHEAD:
            self._wait_for_room()
            return
        if self._stalled:
            self._unstall()
        self._crossed.clear()
        messages = self._fetch()
        self._raise_stashed()
        if self._crossed:
            messages = self._without_crossed(messages)
        if self._sought and messages:
            self._arrived(messages)
        if messages:
            self._hand_over(messages)

    def _without_crossed(self, messages: list[Any]) -> list[Any]:
        """Drop what was fetched of partitions that were sought meanwhile, and seek them again."""
        again = {tp: self._sought[tp] for tp in self._crossed if tp in self._sought and tp in self._owned}
        self._go_to(again)
        return [m for m in messages if TopicPartition(m.topic(), m.partition()) not in self._crossed]

    def _begin_at(self, tp: TopicPartition, offset: int) -> None:
        """Note where reading was told to begin."""
        self._doubted.discard(tp)
        self._sought[tp] = offset

    def _begun(self, tp: TopicPartition) -> None:
        self._doubted.discard(tp)
        self._sought.pop(tp, None)

    def _arrived(self, messages: list[Any]) -> None:
        for message in messages:
            if message.error() is None:
                self._begun(TopicPartition(message.topic(), message.partition()))

    def _go_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._consumer.seek(ck.TopicPartition(tp.topic, tp.partition, offset))

    def _fetch(self) -> list[Any]:
        consumer = self._consumer
        if self._behind:
            # More waits than a list takes: one call, one wait for the interpreter lock.
            messages: list[Any] = consumer.consume(LIST, 0)
            if messages:
                self._behind = len(messages) == LIST
                return messages
        first = consumer.poll(self._poll_for)
        if first is None:
            self._behind = False
            self._poll_for = min(2 * self._poll_for, POLL_MOST)
            return []
        self._poll_for = POLL
        messages = consumer.consume(LIST - 1, 0)
        self._behind = len(messages) == LIST - 1
        messages.insert(0, first)
        return messages

    def _hand_over(self, messages: list[Any]) -> None:
        ends: dict[TopicPartition, int] = {}
        if any(map(_error, messages)):
            messages, ends = self._sort_out(messages)
        if not messages and not ends:
            return
        self._learn_ends(messages)
        self._lots += 1
        post(self._loop, self._deliver, Lot(self._lots, messages, ends))

    def _learn_ends(self, messages: list[Any]) -> None:
        # Asking costs a microsecond a partition; it is asked for those that can have changed.
        owned = self._owned
        if len(messages) < 20 * len(owned):
            tps = {TopicPartition(m.topic(), m.partition()) for m in messages}
        else:
            tps = set(owned)
        for tp in tps:
            if (partition := owned.get(tp)) is not None:
                with suppress(KafkaException):
                    _, end = self._consumer.get_watermark_offsets(partition, cached=True)
                    if end >= 0:
                        self.ends[tp] = end

    def _sort_out(self, messages: list[Any]) -> tuple[list[Any], dict[TopicPartition, int]]:
        records = []
        ends: dict[TopicPartition, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                if ends:
                    ends.pop(TopicPartition(message.topic(), message.partition()), None)
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[TopicPartition(message.topic(), message.partition())] = message.offset()
            else:
                self._event(message, error)
        ends = self._believed(ends)
        self.ends.update(ends)
        return records, ends

    def _believed(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Leave out an end that may be a former one.

        A word of the end that was on its way when we sought can come after the seek. Before any
        record has come, one from behind our place is such a word; one from ahead of it may be, or
        only transaction markers lie between: it is believed when it comes again after another seek.
        """
        believed = {}
        for tp, end in ends.items():
            place = self._sought.get(tp, end)
            if end == place or (end > place and tp in self._doubted):
                believed[tp] = end
            elif end > place and tp in self._owned:
                self._doubted.add(tp)
                self._go_to({tp: place})
        return believed

    def _event(self, message: Any, error: Any) -> None:
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET:
            self._reset(TopicPartition(message.topic(), message.partition()))
        elif code in UNKNOWN_TOPIC:
            self._check_topic(message.topic())
        elif code == KafkaError._MAX_POLL_EXCEEDED:
            log.warning("%s: not polled within max.poll.interval.ms; its partitions went to other members", self.about)
        elif error.fatal() or code == KafkaError._FATAL:
            self._fatal(error)
        elif code in FENCED or code in FORBIDDEN:
            raise translate(error, self.about)
        else:
            log.debug("%s: %s", self.about, error.str())

    def _check_topic(self, topic: str) -> None:
        """Raise UnknownTopic for a topic that the broker does not have; under KIP-848 nobody else tells."""
        try:
            known = self._consumer.list_topics(topic, timeout=REQUEST).topics.get(topic)
        except KafkaException as problem:
            log.debug("%s: topic %s: %s", self.about, topic, cause(problem).str())
            return
        if known is None or (known.error is not None and known.error.code() in UNKNOWN_TOPIC):
            raise UnknownTopic(f"{self.about}: topic {topic!r} does not exist; create it with `agentic topics create`")

    def _fatal(self, error: Any) -> None:
        """Raise what ends a consumer."""
        raise BrokerError(f"{self.about}: {error.str()}")

    def _reset(self, tp: TopicPartition) -> None:
        """Go on where `offset_reset` says, because the wanted offset is not there, and say so."""
        if tp not in self._owned:
            return
        wanted = self._position(tp)
        try:
            start, end = self._consumer.get_watermark_offsets(self._owned[tp], timeout=REQUEST)
        except KafkaException as problem:
            log.debug("%s: %s: reset: %s", self.about, tp, cause(problem).str())
            self._resets.append(tp)
            return
        there = start if self._offset_reset == "earliest" else end
        self._begun(tp)
        self._restart(tp, there)
        log.warning(
            "%s: %s: offset %s is out of range (%d to %d are there: retention, or a new topic of this name);"
            " goes on at %d as offset_reset=%r says",
            self.about,
            tp,
            wanted,
            start,
            end,
            there,
            self._offset_reset,
        )

    def _position(self, tp: TopicPartition) -> int:
        """Return the next offset to be read of an owned partition."""
        if tp in self._sought:
            return self._sought[tp]
        partition = self._owned[tp]
        at: int = self._consumer.position([ck.TopicPartition(tp.topic, tp.partition)])[0].offset
        return at if at >= 0 else int(partition.offset)

    def _restart(self, tp: TopicPartition, offset: int) -> None:
        """Go on with a partition whose fetching has failed: there a seek does nothing."""
        starts = {other: self._position(other) for other in self._owned} | {tp: offset}
        self._owned = {at: ck.TopicPartition(at.topic, at.partition, start) for at, start in starts.items()}
        self._consumer.assign(list(self._owned.values()))
        if held := (self._paused | self._stalled) & self._owned.keys():
            self._consumer.pause(partitions_of(held))

    # -- waiting

    def _serve(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            self._poll_for = POLL
            if command is not None:
                command()

    def _serve_for(self, seconds: float) -> None:
        """Run the next command, if one comes within `seconds`."""
        try:
            command = self._commands.get(timeout=seconds)
        except queue.Empty:
            return
        if command is not None:
            command()

    def _wait_for_room(self) -> None:
        self._full = True
        since = time.monotonic()
        while not self._stopping and self._lots - self.taken >= AHEAD:
            self._serve_for(0.1)
            if time.monotonic() - since > STALLED:
                self._keep_polling()
        self._full = False

    def _keep_polling(self) -> None:
        """Poll without taking anything in, for the group's sake."""
        new = [tp for tp in self._owned if tp not in self._stalled and tp not in self._paused]
        if new:
            self._consumer.pause(partitions_of(new))
            self._stalled.update(new)
        message = self._consumer.poll(0)
        self._raise_stashed()
        if message is not None:
            # The pause was not in force yet, or it is an error: one lot too many does no harm.
            self._arrived([message])
            self._hand_over([message])

    def _unstall(self) -> None:
        back = [tp for tp in self._stalled if tp in self._owned and tp not in self._paused]
        self._stalled.clear()
        if back:
            self._consumer.resume(partitions_of(back))

    def _answer(self, done: asyncio.Future[Any], fn: Callable[..., object], args: tuple[object, ...]) -> None:
        try:
            result = fn(*args)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            post(self._loop, settle, done, None, error)
        else:
            post(self._loop, settle, done, result, None)

    # -- ends

    def _raise_stashed(self) -> None:
        if self._stash is not None:
            error, self._stash = self._stash, None
            raise error

    def _give_up(self, error: BaseException) -> None:
        """Tell the loop, and go on serving commands: somebody may still wait for an answer."""
        post(self._loop, self._fail, error)
        while not self._stopping:
            self._serve_for(1.0)

    def _open(self) -> None:
        raise NotImplementedError

    def _shut(self) -> None:
        if self._consumer is not None:
            try:
                self._consumer.close()
            except Exception as error:  # noqa: BLE001 - it is at its end either way
                log.debug("%s: close: %s", self.about, error)
        # Nobody comes after us: who still waits gets an answer.
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if command is not None:
                with suppress(KafkaException, RuntimeError):
                    command()

    # -- commands for all kinds of consumers, run in the thread

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions."""
        new = [tp for tp in tps if tp in self._owned and tp not in self._paused]
        self._paused.update(new)
        if fresh := [tp for tp in new if tp not in self._stalled]:
            self._consumer.pause(partitions_of(fresh))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        back = [tp for tp in tps if tp in self._paused]
        self._paused.difference_update(back)
        if fresh := [tp for tp in back if tp in self._owned and tp not in self._stalled]:
            self._consumer.resume(partitions_of(fresh))
