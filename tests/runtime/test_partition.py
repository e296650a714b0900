"""A source partition takes batches over."""

from __future__ import annotations

from typing import Any

from agentic import App
from agentic.brokers.base import Batch, Position, TopicPartition
from agentic.core.ledger import OffsetLedger
from agentic.metrics import Metrics
from agentic.runtime.partition import SourcePartition

TP = TopicPartition("numbers", 0)


def source_at(committed: Position | None) -> SourcePartition:
    """A source partition without a worker."""
    app = App("partition")
    topic = app.topic("numbers", value=int)
    outbox: Any = None  # nothing is sent here
    return SourcePartition(
        topic, TP, committed, readers=["reader"], settings=app.settings, outbox=outbox, metrics=Metrics()
    )


def end(position: int) -> Batch:
    return Batch(TP, [], [], [], [], (), position, position)


def records(first: int, last: int) -> Batch:
    offsets = list(range(first, last))
    values: list[bytes | None] = [b"%d" % n for n in offsets]
    return Batch(TP, offsets, [1] * len(offsets), [None] * len(offsets), values, [None] * len(offsets), last, last)


def test_a_word_of_the_end_before_any_record_moves_no_commit() -> None:
    source = source_at(Position(10))
    source.add(end(50))
    assert source.doubtful
    assert not source.caught_up
    assert source.ledger.snapshot().offset == 10  # type: ignore[union-attr]


def test_it_is_believed_when_it_is_said_again_and_still_moves_no_commit() -> None:
    source = source_at(Position(10))
    source.add(end(12))
    source.add(end(12))
    assert source.caught_up
    assert source.ledger.snapshot().offset == 10  # type: ignore[union-attr]


def test_the_end_where_the_commit_is_needs_no_second_word() -> None:
    source = source_at(Position(10))
    source.add(end(10))
    assert source.caught_up and not source.doubtful


def test_without_a_commit_an_empty_partition_is_at_its_end() -> None:
    source = source_at(None)
    source.add(end(0))
    assert source.caught_up
    assert source.ledger.snapshot() is None


def test_records_after_a_doubtful_word_are_taken_as_they_come() -> None:
    source = source_at(Position(10))
    source.add(end(50))
    source.add(records(10, 50))
    assert [event.value for event in source.buffer] == list(range(10, 50))


def test_after_a_record_a_word_of_the_end_moves_the_position_past_markers() -> None:
    source = source_at(Position(10))
    source.add(records(10, 12))
    source.retire(10)
    source.retire(11)
    source.add(end(13))
    assert source.caught_up
    assert source.ledger.snapshot().offset == 13  # type: ignore[union-attr]


def test_what_is_skipped_counts_for_the_stream_time_with_the_records_timestamp() -> None:
    """And what is not skipped with the event's, also while the base lies between them."""
    app = App("times")
    topic = app.topic("numbers", value=int, timestamp=lambda n: 1_000 * n)
    outbox: Any = None  # nothing is sent here
    ledger = OffsetLedger()
    ledger.deliver(range(4), 4)
    ledger.retire(0)
    ledger.retire(2)
    committed = ledger.snapshot()
    assert committed is not None
    source = SourcePartition(
        topic, TP, Position(*committed), readers=["reader"], settings=app.settings, outbox=outbox, metrics=Metrics()
    )
    batch = records(1, 4)
    batch.timestamps = [9_000, 2_500, 9_000]
    source.add(batch)
    assert [event.offset for event in source.buffer] == [1, 3]
    source.retire(1)
    assert source.ledger.stream_time == 2_500
    source.retire(3)
    assert source.ledger.stream_time == 3_000


def test_each_of_several_agents_gets_events_of_its_own() -> None:
    app = App("partition")
    topic = app.topic("numbers", value=int)
    outbox: Any = None  # nothing is sent here
    agents = ["a", "b", "c"]
    source = SourcePartition(topic, TP, None, readers=agents, settings=app.settings, outbox=outbox, metrics=Metrics())
    source.add(records(0, 2))
    shares = source.share_out(list(source.buffer))
    assert {agent: [(event.offset, event.value) for event in events] for agent, events in shares.items()} == {
        agent: [(0, 0), (1, 1)] for agent in agents
    }
    for agent in agents:
        assert source.ledger.base == 0
        for event in shares[agent]:
            event.origin.retire(event.offset)
        own = source.ledger_of(agent)
        assert own is not None and own.base == 2
    assert source.ledger.base == 2
    assert source.ledger_of("a stranger") is None
