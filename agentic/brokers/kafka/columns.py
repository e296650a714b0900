"""From lists of librdkafka's messages to batches: one pass of C code for each column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, cast

from confluent_kafka import Message

from agentic.brokers.base import Batch, TopicPartition

# A record has all of these; the client's types say "or None" for the sake of errors.
_topic: Callable[[Any], str] = cast(Any, Message.topic)
_partition: Callable[[Any], int] = cast(Any, Message.partition)
_offset: Callable[[Any], int] = cast(Any, Message.offset)
_timestamp = Message.timestamp
_key = Message.key
_value = Message.value


def runs(messages: list[Any]) -> Iterator[tuple[TopicPartition, list[Any]]]:
    """Cut a list of messages, none of them an error, where the partition changes."""
    topics = list(map(_topic, messages))
    partitions = list(map(_partition, messages))
    size = len(messages)
    # A fetch answers partition by partition, so a list is often one run.
    if partitions.count(partitions[0]) == size and topics.count(topics[0]) == size:
        yield TopicPartition(topics[0], partitions[0]), messages
        return
    start = 0
    for (topic, partition), group in groupby(zip(topics, partitions, strict=True)):
        end = start + len(list(group))
        yield TopicPartition(topic, partition), messages[start:end]
        start = end


def batch(tp: TopicPartition, messages: Sequence[Any]) -> Batch:
    """Return a batch of messages that are all of partition `tp`; the messages themselves are the late headers."""
    offsets = list(map(_offset, messages))
    return Batch(
        tp,
        offsets,
        [at for _, at in map(_timestamp, messages)],
        list(map(_key, messages)),
        list(map(_value, messages)),
        messages,
        offsets[-1] + 1,
    )
