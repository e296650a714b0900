"""The ledger under random histories: a log, a worker that finishes in any order, crashes, commits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core.ledger import MAX_SPAN, MAX_UNFINISHED, OffsetLedger, Snapshot


def test_the_base_is_the_lowest_unfinished_offset() -> None:
    ledger = OffsetLedger()
    ledger.deliver([3, 4, 7], 8)
    ledger.retire(4)
    assert ledger.snapshot() is not None
    assert ledger.snapshot().offset == 3  # type: ignore[union-attr]


def test_with_nothing_unfinished_the_position_is_committed_and_not_the_last_offset() -> None:
    ledger = OffsetLedger()
    ledger.deliver([3, 4], 9)  # 5 to 8 were transaction markers
    ledger.retire(3)
    ledger.retire(4)
    assert ledger.snapshot() == Snapshot(9, "")


def test_an_empty_partition_commits_its_position_past_a_marker() -> None:
    ledger = OffsetLedger(4)
    ledger.deliver([], 5)
    assert ledger.snapshot() == Snapshot(5, "")


def test_nothing_known_gives_nothing_to_commit() -> None:
    assert OffsetLedger().snapshot() is None


def test_an_offset_with_children_is_finished_with_the_last_of_them() -> None:
    ledger = OffsetLedger()
    ledger.deliver([0], 1)
    ledger.adopt(0, 1)
    assert not ledger.retire(0)
    assert ledger.base == 0
    assert ledger.retire(0)
    assert ledger.base == 1


def test_finishing_what_is_not_unfinished_is_an_error() -> None:
    ledger = OffsetLedger()
    ledger.deliver([0], 1)
    ledger.retire(0)
    with pytest.raises(LookupError):
        ledger.retire(0)


def test_the_next_owner_skips_what_was_finished_beyond_the_base() -> None:
    first = OffsetLedger()
    first.deliver([0, 1, 2, 3], 4)
    first.retire(1)
    first.retire(3)
    snapshot = first.snapshot()
    assert snapshot is not None
    second = OffsetLedger(*snapshot)
    assert second.deliver([0, 1, 2, 3, 4], 5) == [0, 2, 4]
    assert second.skipped == 2


def test_a_record_that_is_never_delivered_again_does_not_hold_the_base() -> None:
    first = OffsetLedger()
    first.deliver([0, 1, 2], 3)
    first.retire(2)
    snapshot = first.snapshot()
    assert snapshot is not None
    second = OffsetLedger(*snapshot)
    second.deliver([1], 3)  # 0 was compacted away meanwhile
    second.retire(1)
    assert second.base == 3


def test_an_offset_below_the_base_throws_away_what_was_known() -> None:
    first = OffsetLedger()
    first.deliver([0, 1, 2], 3)
    first.retire(0)
    first.retire(2)
    snapshot = first.snapshot()
    assert snapshot is not None and snapshot.offset == 1
    second = OffsetLedger(*snapshot)
    assert second.deliver([0, 1, 2], 3) == [0, 1, 2]


def test_a_failed_commit_leaves_the_ledger_dirty() -> None:
    ledger = OffsetLedger()
    ledger.deliver([0], 1)
    ledger.retire(0)
    snapshot = ledger.snapshot()
    assert not ledger.is_clean(snapshot)
    ledger.acknowledged(snapshot)  # type: ignore[arg-type]
    assert ledger.is_clean(ledger.snapshot())


def test_work_finished_while_a_commit_was_under_way_leaves_the_ledger_dirty() -> None:
    ledger = OffsetLedger()
    ledger.deliver([0, 1], 2)
    ledger.retire(0)
    snapshot = ledger.snapshot()
    ledger.retire(1)
    ledger.acknowledged(snapshot)  # type: ignore[arg-type]
    assert not ledger.is_clean(ledger.snapshot())


def test_stream_time_is_the_greatest_timestamp_below_the_base() -> None:
    ledger = OffsetLedger()
    ledger.deliver([0, 1, 2], 3)
    ledger.time([0, 1, 2], [50, 90, 70])
    assert ledger.stream_time is None
    ledger.retire(0)
    assert ledger.stream_time == 50
    ledger.retire(1)
    ledger.retire(2)
    assert ledger.stream_time == 90


def test_stream_time_survives_a_restart() -> None:
    first = OffsetLedger()
    first.deliver([0], 1)
    first.time([0], [77])
    first.retire(0)
    second = OffsetLedger(*first.snapshot())  # type: ignore[misc]
    assert second.stream_time == 77


def test_offsets_must_rise() -> None:
    ledger = OffsetLedger()
    ledger.deliver([0, 1], 2)
    with pytest.raises(ValueError, match="after position 2"):
        ledger.deliver([1, 2], 3)


def test_with_no_more_unfinished_and_no_wider_span_than_may_be_a_snapshot_always_fits() -> None:
    draw = random.Random(1)
    ledger = OffsetLedger()
    waiting: list[int] = []
    offset = 0
    for _ in range(3_000):
        gap = draw.choice([1, 1, 1, 4_000])
        if len(waiting) < MAX_UNFINISHED and offset + gap - (ledger.base or 0) < MAX_SPAN:
            offset += gap
            ledger.deliver([offset], offset + 1)
            waiting.append(offset)
        elif waiting:
            ledger.retire(waiting.pop(draw.choice([-1, -1, len(waiting) // 2, 0])))
        snapshot = ledger.snapshot()
        assert snapshot is not None and len(snapshot.metadata) <= 4095


def test_a_snapshot_that_no_commit_can_carry_is_refused() -> None:
    ledger = OffsetLedger()
    ledger.deliver(range(60_000), 60_000)
    for offset in range(1, 60_000, 2):
        ledger.retire(offset)
    with pytest.raises(ValueError, match="unfinished"):
        ledger.snapshot()


class World:
    """A partition's log, what a group committed of it, and how often each record's effect became visible."""

    def __init__(self, draw: random.Random, exactly_once: bool) -> None:
        self.draw = draw
        self.exactly_once = exactly_once
        self.log: list[int] = []
        self.end = 0
        self.committed: Snapshot | None = None
        self.effects: dict[int, int] = {}

    def append(self) -> None:
        for _ in range(self.draw.randrange(8)):
            self.end += self.draw.choice([0, 0, 0, 1, 3])  # now and then a gap: a marker, an aborted record
            self.log.append(self.end)
            self.end += 1

    def live(self, steps: int) -> None:
        """One owner's life, from assignment to crash."""
        ledger = OffsetLedger(*self.committed) if self.committed else OffsetLedger()
        position = self.committed.offset if self.committed else 0
        open_: list[int] = []
        uncommitted: list[int] = []
        base = -1
        for _ in range(steps):
            step = self.draw.randrange(5)
            if step == 0:
                self.append()
            elif step == 1:
                batch = [offset for offset in self.log if offset >= position][: self.draw.randrange(1, 6)]
                position = batch[-1] + 1 if batch else max(position, self.end)
                open_ += ledger.deliver(batch, position)
            elif step in (2, 3) and open_:
                offset = open_.pop(self.draw.randrange(len(open_)))
                ledger.retire(offset)
                uncommitted.append(offset)
            elif step == 4:
                snapshot = ledger.snapshot()
                if snapshot is None:
                    continue
                assert snapshot.offset >= base
                base = snapshot.offset
                assert all(offset >= base for offset in open_)
                if self.draw.random() < 0.3:
                    continue  # the commit was lost on its way
                self.committed = snapshot
                ledger.acknowledged(snapshot)
                if self.exactly_once:
                    for offset in uncommitted:
                        self.effects[offset] = self.effects.get(offset, 0) + 1
                    uncommitted = []
        if not self.exactly_once:
            for offset in uncommitted:
                self.effects[offset] = self.effects.get(offset, 0) + 1

    def drain(self) -> None:
        ledger = OffsetLedger(*self.committed) if self.committed else OffsetLedger()
        start = self.committed.offset if self.committed else 0
        for offset in ledger.deliver([offset for offset in self.log if offset >= start], max(start, self.end)):
            ledger.retire(offset)
            self.effects[offset] = self.effects.get(offset, 0) + 1


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 60))
def test_exactly_once_no_crash_loses_or_repeats_an_effect(seed: int, lives: int, steps: int) -> None:
    world = World(random.Random(seed), exactly_once=True)
    world.append()
    for _ in range(lives):
        world.live(steps)
    world.drain()
    assert world.effects == dict.fromkeys(world.log, 1)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 60))
def test_at_least_once_no_crash_loses_an_effect(seed: int, lives: int, steps: int) -> None:
    world = World(random.Random(seed), exactly_once=False)
    world.append()
    for _ in range(lives):
        world.live(steps)
    world.drain()
    assert set(world.effects) == set(world.log)
