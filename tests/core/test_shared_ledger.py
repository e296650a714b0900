"""Several readers of one partition under random histories: each finishes in its own time, crashes come between."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core.ledger import OffsetLedger, Snapshot
from agentic.core.metadata import MAX_LENGTH
from agentic.core.readers import MAX_READERS, SharedLedger, most_in_flight

PAIR = ("fast", "slow")


def shared(committed: Snapshot | None = None, readers: Sequence[str] = PAIR) -> SharedLedger:
    return SharedLedger(readers=readers) if committed is None else SharedLedger(*committed, readers=readers)


def committed(ledger: SharedLedger | OffsetLedger) -> Snapshot:
    snapshot = ledger.snapshot()
    assert snapshot is not None
    return snapshot


def retire(ledger: SharedLedger | OffsetLedger, reader: str, *offsets: int) -> None:
    one = ledger.retire if isinstance(ledger, OffsetLedger) else ledger.retiring(reader)
    for offset in offsets:
        one(offset)


def wanted(ledger: SharedLedger | OffsetLedger, reader: str, offsets: Sequence[int]) -> list[int]:
    """Which of the offsets, delivered already, one reader is to process."""
    own = ledger if isinstance(ledger, OffsetLedger) else ledger.of(reader)
    return [offset for offset in offsets if own.awaits(offset)]


def half_done() -> Snapshot:
    """Offsets 0 to 9; the fast reader has finished 0 to 7, the slow one 0 and 1."""
    ledger = shared()
    ledger.deliver(range(10), 10)
    retire(ledger, "fast", *range(8))
    retire(ledger, "slow", 0, 1)
    return committed(ledger)


# -- who does what after a restart ----------------------------------------------------------------


def test_the_position_is_the_lowest_of_the_readers_bases() -> None:
    assert half_done().offset == 2


def test_each_reader_goes_on_where_it_was() -> None:
    ledger = shared(half_done())
    assert ledger.deliver(range(2, 10), 10) == range(2, 10)
    assert wanted(ledger, "fast", range(10)) == [8, 9]
    assert wanted(ledger, "slow", range(10)) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_all_had_finished_is_not_to_be_processed_again() -> None:
    ledger = shared()
    ledger.deliver(range(6), 6)
    retire(ledger, "fast", 0, 1, 3)
    retire(ledger, "slow", 3, 5)
    ledger = shared(committed(ledger))
    assert ledger.deliver(range(6), 6) == [0, 1, 2, 4, 5]
    assert ledger.skipped == 1


def test_a_reader_that_was_not_there_begins_at_the_committed_position() -> None:
    ledger = shared(half_done(), ["fast", "slow", "new"])
    ledger.deliver(range(2, 10), 10)
    assert wanted(ledger, "new", range(10)) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert wanted(ledger, "fast", range(10)) == [8, 9]


def test_a_reader_that_is_gone_holds_nobody_back() -> None:
    ledger = shared(half_done(), ["fast", "new"])
    ledger.deliver(range(2, 10), 10)
    retire(ledger, "new", *range(2, 10))
    assert ledger.base == 8


def test_a_reader_that_is_left_alone_goes_on_where_it_was() -> None:
    alone = OffsetLedger(*half_done(), reader="fast")
    assert alone.base == 8
    assert alone.deliver(range(2, 10), 10) == [8, 9]


def test_a_commit_before_the_first_delivery_forgets_nothing_of_a_reader_that_is_left_alone() -> None:
    ledger = shared()
    ledger.deliver(range(6), 6)
    retire(ledger, "fast", 0, 1, 3)
    alone = OffsetLedger(*committed(ledger), reader="fast")
    assert committed(alone).offset == 2
    assert alone.deliver(range(6), 6) == [2, 4, 5]


def test_the_commit_of_a_single_reader_holds_for_all() -> None:
    alone = OffsetLedger()
    alone.deliver(range(5), 5)
    retire(alone, "", 0, 2, 3)
    ledger = shared(committed(alone))
    assert ledger.deliver(range(1, 5), 5) == [1, 4]
    assert wanted(ledger, "fast", range(5)) == wanted(ledger, "slow", range(5)) == [1, 4]


def test_a_record_that_was_given_up_is_finished_for_all_even_for_a_new_reader() -> None:
    ledger = shared()
    ledger.deliver(range(5), 5)
    ledger.finish(3)
    retire(ledger, "fast", 0, 1, 2)
    ledger = shared(committed(ledger), ["fast", "slow", "new"])
    assert ledger.deliver(range(5), 5) == [0, 1, 2, 4]


def test_a_record_can_be_given_up_that_some_readers_have_finished_before() -> None:
    ledger = shared(half_done())
    ledger.deliver(range(2, 10), 10)
    ledger.finish(2)
    assert ledger.base == 3
    assert wanted(ledger, "fast", range(10)) == [8, 9]


def test_a_position_that_was_moved_back_throws_away_what_was_known() -> None:
    ledger = shared(half_done())
    assert ledger.deliver(range(10), 10) == range(10)
    assert wanted(ledger, "fast", range(10)) == list(range(10))
    assert ledger.base == 0


# -- what it says of itself -----------------------------------------------------------------------


def test_an_offset_is_finished_with_the_last_of_its_readers() -> None:
    ledger = shared()
    ledger.deliver([0], 1)
    assert not ledger.retiring("slow")(0)
    assert (ledger.unfinished, ledger.base) == (1, 0)
    assert ledger.retiring("fast")(0)
    assert (ledger.unfinished, ledger.base) == (0, 1)


def test_a_reader_finishes_an_offset_once() -> None:
    ledger = shared()
    ledger.deliver([0], 1)
    retire(ledger, "fast", 0)
    with pytest.raises(LookupError):
        retire(ledger, "fast", 0)


def test_an_offset_with_children_is_finished_with_the_last_of_them() -> None:
    ledger = shared()
    ledger.deliver([0], 1)
    retire(ledger, "slow", 0)
    ledger.of("fast").adopt(0, 1)
    assert not ledger.retiring("fast")(0)
    assert ledger.unfinished == 1
    assert ledger.retiring("fast")(0)


def test_unfinished_after_a_restart_are_those_that_some_reader_lacks() -> None:
    ledger = shared(half_done())
    ledger.deliver(range(2, 10), 10)
    assert ledger.unfinished == 8
    retire(ledger, "slow", 2, 3)
    assert ledger.unfinished == 6


def test_progress_beyond_the_position_is_something_to_commit() -> None:
    ledger = shared()
    ledger.deliver([0, 1], 2)
    ledger.acknowledged(committed(ledger))
    retire(ledger, "fast", 0)
    assert not ledger.is_clean(ledger.snapshot())
    ledger.acknowledged(committed(ledger))
    assert ledger.is_clean(ledger.snapshot())


def test_nothing_known_gives_nothing_to_commit() -> None:
    assert shared().snapshot() is None


def test_with_nothing_unfinished_the_position_is_committed_and_not_the_last_offset() -> None:
    ledger = shared()
    ledger.deliver([3, 4], 9)  # 5 to 8 were transaction markers
    for reader in PAIR:
        retire(ledger, reader, 3, 4)
    assert committed(ledger) == Snapshot(9, "")


def test_each_reader_has_its_stream_time_and_the_partition_that_of_the_least() -> None:
    ledger = shared()
    ledger.deliver([0, 1, 2], 3)
    ledger.time([0, 1, 2], [50, 90, 70])
    retire(ledger, "fast", 0, 1)
    assert ledger.stream_time is None
    retire(ledger, "slow", 0)
    assert ledger.stream_time == 50
    assert ledger.of("fast").stream_time == 90
    again = shared(committed(ledger), ["fast", "slow", "new"])
    assert [again.of(reader).stream_time for reader in ("fast", "slow", "new")] == [90, 50, 50]


@pytest.mark.parametrize("readers", [["alone"], ["twin", "twin"], [str(n) for n in range(MAX_READERS + 1)]])
def test_readers_are_several_and_differ_and_are_not_too_many(readers: list[str]) -> None:
    with pytest.raises(ValueError, match=f"from 2 to {MAX_READERS} readers"):
        SharedLedger(readers=readers)


# -- what a commit carries ------------------------------------------------------------------------


def test_readers_that_are_a_hundred_thousand_offsets_apart_cost_a_few_bytes() -> None:
    ledger = shared()
    ledger.deliver(range(100_000), 100_000)
    retire(ledger, "fast", *range(99_999))
    snapshot = committed(ledger)
    assert len(snapshot.metadata) < 40
    ledger = shared(snapshot)
    ledger.deliver(range(100_000), 100_000)
    assert wanted(ledger, "fast", range(100_000)) == [99_999]


def test_readers_that_work_in_order_fit_however_many_and_far_apart_they_are() -> None:
    draw = random.Random(1)
    names = [f"agent number {n}" for n in range(MAX_READERS)]
    ledger = shared(readers=names)
    offsets = sorted(draw.sample(range(2**40), 2_000))
    ledger.deliver(offsets, offsets[-1] + 1)
    ledger.time(offsets, [draw.randrange(2**41) for _ in offsets])
    done = {name: offsets[: draw.randrange(len(offsets))] for name in names}
    for name in names:
        retire(ledger, name, *done[name])
    snapshot = committed(ledger)
    assert len(snapshot.metadata) <= MAX_LENGTH
    again = shared(snapshot, names)
    rest = [offset for offset in offsets if offset >= snapshot.offset]
    again.deliver(rest, offsets[-1] + 1)
    for name in names:
        assert wanted(again, name, rest) == offsets[len(done[name]) :]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, MAX_READERS), st.sampled_from([1, 2, 50, 4_000]))
def test_with_no_more_in_flight_than_may_be_a_snapshot_fits_and_is_read_as_it_was(seed: int, n: int, gap: int) -> None:
    draw = random.Random(seed)
    names = [str(i) for i in range(n)]
    ledger = shared(readers=names)
    # Of too many readers each may still go in order.
    most = max(1, most_in_flight(n, n))
    waiting: dict[str, list[int]] = {name: [] for name in names}
    log: list[int] = []
    end = 0
    for _ in range(150):
        if not any(waiting.values()) or (draw.random() < 0.5 and len(log) < 500):
            batch = []
            for _ in range(draw.randrange(1, 40)):
                batch.append(end)
                end += draw.randrange(1, gap + 1)
            ledger.deliver(batch, end)
            log += batch
            for name in names:
                waiting[name] += batch
        for _ in range(10):
            name = draw.choice([name for name in names if waiting[name]] or names)
            if waiting[name]:
                place = draw.randrange(min(len(waiting[name]), most))
                retire(ledger, name, waiting[name].pop(place))
        snapshot = committed(ledger)
        assert len(snapshot.metadata) <= MAX_LENGTH
    again = shared(snapshot, names)
    again.deliver([offset for offset in log if offset >= snapshot.offset], end)
    assert {name: wanted(again, name, log) for name in names} == waiting


# -- random histories -----------------------------------------------------------------------------


class World:
    """A partition's log, what a group committed of it, and how often each record's effect by each reader is visible.

    Args:
        serial: readers work in the order of the offsets.
    """

    def __init__(self, seed: int, serial: bool) -> None:
        self.draw = random.Random(seed)
        self.serial = serial
        self.log: list[int] = []
        self.end = 0
        self.given_up: set[int] = set()
        self.committed: Snapshot | None = None
        self.effects: dict[tuple[str, int], int] = {}

    def append(self) -> None:
        for _ in range(self.draw.randrange(8)):
            self.end += self.draw.choice([0, 0, 0, 1, 3])  # now and then a gap: a marker, an aborted record
            self.log.append(self.end)
            self.end += 1

    def ledger(self, readers: Sequence[str]) -> SharedLedger | OffsetLedger:
        if len(readers) > 1:
            return shared(self.committed, readers)
        return OffsetLedger(*self.committed, reader=readers[0]) if self.committed else OffsetLedger(reader=readers[0])

    def live(self, readers: Sequence[str], steps: int) -> None:
        """One owner's life, from assignment to crash."""
        ledger = self.ledger(readers)
        position = self.committed.offset if self.committed else 0
        open_: dict[str, list[int]] = {reader: [] for reader in readers}
        uncommitted: list[tuple[str, int]] = []
        base = -1
        for _ in range(steps):
            step = self.draw.randrange(6)
            if step == 0:
                self.append()
            elif step == 1:
                batch = [offset for offset in self.log if offset >= position][: self.draw.randrange(1, 6)]
                position = batch[-1] + 1 if batch else max(position, self.end)
                some = ledger.deliver(batch, position)
                for offset in some:
                    if offset % 7 == 3:  # a record that can't be decoded
                        ledger.finish(offset)
                        uncommitted.append(("decoder", offset))
                for reader in readers:
                    open_[reader] += wanted(ledger, reader, some)
            elif step in (2, 3, 4):
                reader = self.draw.choice(readers)
                if open_[reader]:
                    offset = open_[reader].pop(0 if self.serial else self.draw.randrange(len(open_[reader])))
                    retire(ledger, reader, offset)
                    uncommitted.append((reader, offset))
            else:
                snapshot = ledger.snapshot()
                assert ledger.unfinished == len({offset for offsets in open_.values() for offset in offsets})
                if snapshot is None:
                    continue
                assert snapshot.offset >= base
                base = snapshot.offset
                assert all(offset >= base for offsets in open_.values() for offset in offsets)
                if self.draw.random() < 0.3:
                    continue  # the commit was lost on its way
                self.committed = snapshot
                ledger.acknowledged(snapshot)
                for effect in uncommitted:
                    self.effects[effect] = self.effects.get(effect, 0) + 1
                uncommitted = []

    def drain(self, readers: Sequence[str]) -> None:
        ledger = self.ledger(readers)
        start = self.committed.offset if self.committed else 0
        for offset in ledger.deliver([offset for offset in self.log if offset >= start], max(start, self.end)):
            if offset % 7 == 3:
                ledger.finish(offset)
                self.effects["decoder", offset] = self.effects.get(("decoder", offset), 0) + 1
        for reader in readers:
            for offset in wanted(ledger, reader, self.log):
                retire(ledger, reader, offset)
                self.effects[reader, offset] = self.effects.get((reader, offset), 0) + 1
        self.committed = committed(ledger)
        assert self.committed.offset == max(start, self.end)

    def once(self, readers: Collection[str]) -> dict[tuple[str, int], int]:
        good = [offset for offset in self.log if offset % 7 != 3]
        bad = [offset for offset in self.log if offset % 7 == 3]
        return {(reader, offset): 1 for reader in readers for offset in good} | {("decoder", o): 1 for o in bad}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_no_crash_loses_or_repeats_an_effect_of_any_reader(seed: int, n: int, lives: list[int], serial: bool) -> None:
    readers = [f"reader {i}" for i in range(n)]
    world = World(seed, serial)
    world.append()
    for steps in lives:
        world.live(readers, steps)
    world.drain(readers)
    assert world.effects == world.once(readers)


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_after_any_step_of_a_history_loses_and_repeats_nothing(seed: int, serial: bool) -> None:
    for steps in range(150):
        world = World(seed, serial)
        world.append()
        world.live(PAIR, steps)
        world.drain(PAIR)
        assert world.effects == world.once(PAIR)


OTHERS = st.lists(st.sampled_from(["b", "c", "d"]), unique=True, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(OTHERS, st.integers(0, 40)), max_size=6), st.booleans())
def test_readers_that_come_and_go_change_nothing_for_one_that_stays(
    seed: int, lives: list[tuple[list[str], int]], serial: bool
) -> None:
    world = World(seed, serial)
    world.append()
    for others, steps in lives:
        world.live(["a", *others], steps)
    world.drain(["a"])
    effects = {effect: times for effect, times in world.effects.items() if effect[0] in ("a", "decoder")}
    assert effects == world.once(["a"])
