"""One source partition of a task: from a broker's batch to decoded events, in one place.

A record that can't be decoded meets the declared policy here: it stops the worker once all
before it is done, is skipped and counted, or goes to the dead letter topic with the story of
where it came from; never silently.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from agentic import codecs
from agentic.brokers.base import Batch, Headers, LazyHeaders, Position, TopicPartition
from agentic.core.ledger import OffsetLedger
from agentic.core.readers import SharedLedger
from agentic.core.times import timestamp_ms
from agentic.errors import CodecError, DecodeFailed
from agentic.metrics import Metrics
from agentic.runtime.answers import refusal
from agentic.runtime.letters import letter
from agentic.runtime.outbox import Outbox
from agentic.settings import Settings
from agentic.stream import Event
from agentic.topic import Topic

log = logging.getLogger("agentic.worker")

Column = Sequence[bytes | None]

#: Types whose values can't be changed in place.
_LASTING = frozenset((str, bytes, int, float, bool))


class Reader:
    """A partition as one of several agents reads it: the origin of that agent's own events."""

    #: What was put off has another origin.
    deferred = 0

    __slots__ = ("_ledger", "_shared", "adopt", "partition", "retire", "topic")

    def __init__(self, topic: Topic[Any, Any], partition: int, ledger: SharedLedger, agent: str) -> None:
        self.topic = topic
        self.partition = partition
        self._shared = ledger
        self._ledger = ledger.of(agent)
        self.adopt = self._ledger.adopt
        self.retire = ledger.retiring(agent)

    def idempotency_key(self, event: Event) -> str:
        return name_of_event(self.topic, self.partition, event.offset)

    @property
    def ledger_base(self) -> int | None:
        """The lowest offset that some agent has not finished."""
        return self._shared.base

    def wanted(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return those events, delivered just now, that the agent has not finished in an earlier life."""
        if not self._ledger.skipped:
            return events
        awaits = self._ledger.awaits
        return [event for event in events if awaits(event.offset)]


class SourcePartition:
    """A partition that this worker owns, as the source of one task's events.

    Args:
        committed: where reading begins, with what was known of offsets beyond; None without a commit.
        readers: the names of the agents that read it.

    Attributes:
        buffer: decoded events that no agent has yet, in offset order.
        ledger: which offsets are unfinished.
        retire, adopt: the ledger's, for the hot path; of several readers, each `Reader` has its own.
        end: the partition's end offset, None while it is not known to be current.
        heard_end: the end offset as last heard, for the lag.
        first: where reading began, None while that is not known.
        reached: how far the reader has come, None before its first word.
        doubtful: a word of the end came where records were due; to be read once more from `ledger.position`.
        poison: set when a record stops the worker, once all before it is done.
    """

    #: What was put off has another origin.
    deferred = 0

    def __init__(
        self,
        topic: Topic[Any, Any],
        tp: TopicPartition,
        committed: Position | None,
        *,
        readers: Sequence[str],
        settings: Settings,
        outbox: Outbox,
        metrics: Metrics,
    ) -> None:
        self.topic = topic
        self.tp = tp
        self.partition = tp.partition
        offset, metadata = (None, "") if committed is None else committed
        self.ledger: OffsetLedger | SharedLedger
        self._ledgers: dict[str, OffsetLedger]
        self._readers: dict[str, Reader] = {}
        if len(readers) == 1:
            self.ledger = alone = OffsetLedger(offset, metadata, reader=readers[0])
            self._ledgers = {readers[0]: alone}
            self.retire: Callable[[int], bool] = alone.retire
            self.adopt: Callable[[int, int], None] = alone.adopt
        else:
            self.ledger = together = SharedLedger(offset, metadata, readers=readers)
            self._ledgers = {agent: together.of(agent) for agent in readers}
            self._readers = {agent: Reader(topic, tp.partition, together, agent) for agent in readers}
        self.buffer: deque[Event] = deque()
        self.end: int | None = None
        self.heard_end: int | None = None
        self.first: int | None = None
        self.reached: int | None = None
        self.doubtful = False
        self._doubts = 0
        self.poison: DecodeFailed | None = None
        self._settings = settings
        self._outbox = outbox
        self._metrics = metrics
        self._events_in = metrics.counter("events_in", topic=tp.topic, partition=tp.partition)
        # The key codec of a topic that declares none hands the bytes through: then there is nothing to do.
        self._decode_key = topic.key.decode if topic.key_declared else None

    @property
    def caught_up(self) -> bool:
        """Is the end known, and has the reader come to it?"""
        return self.end is not None and self.reached is not None and self.reached >= self.end

    def idempotency_key(self, event: Event) -> str:
        return name_of_event(self.topic, self.partition, event.offset)

    @property
    def ledger_base(self) -> int | None:
        """The lowest offset that is not finished."""
        return self.ledger.base

    @property
    def told_end(self) -> bool:
        """Has the reader come to the last end that was heard of?"""
        return self.heard_end is not None and self.reached is not None and self.reached >= self.heard_end

    def ledger_of(self, agent: str) -> OffsetLedger | None:
        """Return what one agent has finished; None for an agent that does not read this partition."""
        return self._ledgers.get(agent)

    def share_out(self, events: Sequence[Event]) -> dict[str, Sequence[Event]]:
        """Return events of the buffer as each agent gets them: objects of its own, without those it has finished.

        Their values are its own, too: what one agent changes in place is not the others' concern. The events given
        are of no use any more: an agent has them.
        """
        if not self._readers:
            return dict.fromkeys(self._ledgers, events)
        shares: dict[str, Sequence[Event]] = {}
        (first, its_own), *others = self._readers.items()
        for agent, reader in others:
            wanted = reader.wanted(events)
            shares[agent] = [
                Event(
                    event.key,
                    fresh_value(event),
                    event.timestamp,
                    event.offset,
                    reader,
                    event.raw_key,
                    event.raw_headers,
                    event.raw_value,
                )
                for event in wanted
            ]
        shares[first] = its_own.wanted(events)
        for event in shares[first]:
            event.origin = its_own
        return shares

    def add(self, batch: Batch) -> None:
        """Take a batch over: register its offsets, decode it, and append the events to the buffer."""
        if self.poison is not None:
            return
        self.end = batch.end
        if batch.end is not None:
            self.heard_end = batch.end
        offsets = batch.offsets
        if not offsets and not self.ledger.begun:
            self._hear_of_end(batch.position)
            return
        self.reached = batch.position
        if self.first is None:
            self.first = offsets[0]
        wanted = self.ledger.deliver(offsets, batch.position)
        if not offsets:
            return
        timestamps, keys, values, headers = batch.timestamps, batch.keys, batch.values, batch.headers
        skipped: dict[int, int] = {}
        if wanted is not offsets:
            chosen = set(wanted)
            skipped = {offset: when for offset, when in zip(offsets, timestamps) if offset not in chosen}
            at = [i for i, offset in enumerate(offsets) if offset in chosen]
            timestamps = [timestamps[i] for i in at]
            keys = [keys[i] for i in at]
            values = [values[i] for i in at]
            headers = [headers[i] for i in at]
        try:
            decoded = _column(self.topic.value.decode, values)
            decoded_keys = keys if self._decode_key is None else _column(self._decode_key, keys)
            if not len(decoded) == len(decoded_keys) == len(values):
                raise ValueError(
                    "a codec has ended the column early"
                )  # by StopIteration, which map() takes for its end
            if self.topic.timestamp is not None:
                timestamps = [self._event_time(value, timestamp) for value, timestamp in zip(decoded, timestamps)]
            events = list(map(Event, decoded_keys, decoded, timestamps, wanted, repeat(self), keys, headers, values))
        except Exception:  # noqa: BLE001 - which record it was, and what the policy says, is found one by one
            events = self._one_by_one(wanted, timestamps, keys, values, headers)
            timestamps = [event.timestamp for event in events]
            wanted = [event.offset for event in events]
        if skipped:
            times = skipped | dict(zip(wanted, timestamps))
            wanted = sorted(times)
            timestamps = [times[offset] for offset in wanted]
        self.ledger.time(wanted, timestamps)
        self._events_in.add(len(events))
        self.buffer.extend(events)

    def _hear_of_end(self, position: int) -> None:
        """Take a word of the end before any record.

        It moves no commit: only a record shows that all before it were there to be read. One that
        lies beyond the committed offset may be true (nothing but transaction markers between), or
        late, from before a seek: then taking it for true would pass over events. So it counts the
        second time, after another look.
        """
        start = self.ledger.position
        self.doubtful = start is not None and position > start and self._doubts == 0
        if self.doubtful:
            self._doubts += 1
        else:
            self.reached = position

    def _event_time(self, value: Any, timestamp: int) -> int:
        if value is None or self.topic.timestamp is None:
            return timestamp  # a tombstone has no value to ask
        return timestamp_ms(self.topic.timestamp(value))

    def _one_by_one(
        self,
        offsets: Sequence[int],
        timestamps: Sequence[int],
        keys: Column,
        values: Column,
        headers: Sequence[Headers | LazyHeaders | None],
    ) -> list[Event]:
        events = []
        for offset, timestamp, raw_key, raw_value, raw_headers in zip(offsets, timestamps, keys, values, headers):
            event = Event(None, None, timestamp, offset, self, raw_key, raw_headers, raw_value)
            try:
                event.key = self._decoded("key", raw_key)
                event.value = self._decoded("value", raw_value)
                event.timestamp = self._event_time(event.value, timestamp)
            except Exception as error:  # noqa: BLE001 - a user's timestamp function may raise anything
                if not self._give_up(event, error):
                    break
            else:
                events.append(event)
        return events

    def _decoded(self, part: str, data: bytes | None) -> Any:
        if data is None:
            return None
        codec = self.topic.key if part == "key" else self.topic.value
        try:
            return codec.decode(data)
        except Exception as error:
            raise CodecError(f"{part}: {codecs.explain(codec, data, error)}") from error

    def _give_up(self, event: Event, error: Exception) -> bool:
        """Apply the policy for a record that can't be decoded; return whether to go on."""
        reason = str(error) if isinstance(error, CodecError) else f"timestamp function: {type(error).__name__}: {error}"
        where = f"{self.topic.name}-{self.partition} offset {event.offset}"
        policy = self._settings.on_decode_error
        if policy == "stop":
            self.poison = DecodeFailed(
                f"{where} (key {event.raw_key!r}): {reason}; "
                "mend the producer or the declared type, or set on_decode_error to 'skip' or 'dead_letter'"
            )
            self.poison.__cause__ = error
            return False
        if policy == "dead_letter":
            assert self._settings.dead_letter is not None, "checked with the settings"
            self._outbox.send(*letter(self._settings.dead_letter, event, reason))
        for reply in refusal(event, self._ledgers, reason):
            self._outbox.send(*reply)
        self.ledger.finish(event.offset)
        self._metrics.counter("dropped", reason="undecodable").add()
        log.warning("%s: %s: %s", "dead-lettered" if policy == "dead_letter" else "skipped", where, reason)
        return True


def fresh_value(event: Event) -> Any:
    """Return an event's value as it came, whatever an agent has done to it in place.

    Of a change of a table there are no bytes to read it from again: it stays as it is.
    """
    if event.value.__class__ in _LASTING or event.raw_value is None:
        return event.value
    return event.origin.topic.value.decode(event.raw_value)


def name_of_event(topic: Topic[Any, Any], partition: int, offset: int) -> str:
    """Return what an event is called outside: see `Event.idempotency_key`."""
    return f"{topic.home.app}/{topic.name}-{partition}@{offset}"


def _column(decode: Callable[[bytes], Any], column: Column) -> list[Any]:
    """Decode a column; None stays None."""
    if None in column:
        return [None if data is None else decode(data) for data in column]
    return list(map(decode, column))  # type: ignore[arg-type]
