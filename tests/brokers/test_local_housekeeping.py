"""Retention and compaction of the embedded log, against a plain model."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from broker_support import Log, Member, read_all, until
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.brokers.base import Position, Producer, TopicPartition, TopicSpec
from agentic.brokers.embedded.store import Rows
from agentic.brokers.local import housekeeping
from agentic.brokers.local.environment import Environment
from agentic.brokers.local.housekeeping import Housekeeper
from agentic.brokers.local.layout import LOG_KEY
from agentic.brokers.local.store import LocalStore
from agentic.errors import Fenced

TP = TopicPartition("t", 0)
TOMBSTONE_MS = 1_000


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class House:
    """One partition, with a clock in hand."""

    def __init__(self, store: LocalStore, spec: TopicSpec) -> None:
        self.store = store
        self.now = 1_000_000
        self.keeper = Housekeeper(store, tombstone_ms=TOMBSTONE_MS, clock=lambda: self.now)
        with store.change() as change:
            change.create(spec)

    def append(self, records: list[tuple[bytes | None, bytes | None]], timestamp: int | None = None) -> None:
        rows = Rows()
        for key, value in records:
            rows.timestamps.append(self.now if timestamp is None else timestamp)
            rows.keys.append(key)
            rows.values.append(value)
            rows.headers.append(None)
            rows.size += len(key or b"") + len(value or b"")
        if records:
            with self.store.change() as change:
                change.append(TP, rows)

    def retain(self) -> None:
        for _ in self.keeper.retain(TP, self._topic()):
            pass

    def compact(self, steps: int | None = None) -> None:
        """Compact, wholly or as far as so many steps go."""
        work = self.keeper.compact(TP, self._topic())
        for n, _ in enumerate(work):
            if n == steps:
                work.close()
                return

    def _topic(self) -> housekeeping.TopicRow:
        with self.store.view() as view:
            return view.topic_rows()["t"]

    def bounds(self) -> tuple[int, int]:
        with self.store.view() as view:
            return view.bounds(TP)

    def read(self) -> list[Record]:
        found: list[Record] = []
        with self.store.view() as view:
            at, end = view.bounds(TP)
            while at < end:
                batch = view.read(TP, at, 100)
                assert batch.position > at
                found += map(Record, batch.offsets, batch.timestamps, batch.keys, batch.values)
                at = batch.position
        return found

    def size(self) -> tuple[int, int]:
        """What the partition's row says of its bytes, and what there is."""
        with self.store.view() as view:
            topic_id, row = view.locate(TP)
            return row.size, sum(len(data) for _, data in view.chunks(topic_id, 0, 0))


@contextmanager
def house(**spec: object) -> Iterator[House]:
    with tempfile.TemporaryDirectory() as directory:
        environment = Environment.acquire(Path(directory))
        try:
            yield House(LocalStore(environment, f"local://{directory}", 1 << 20), TopicSpec("t", **spec))
        finally:
            environment.release()


KEYS = st.sampled_from([None, b"", b"a", b"b", b"c"])
VALUES = st.one_of(st.none(), st.binary(max_size=3))
APPENDS = st.tuples(st.just("append"), st.lists(st.tuples(KEYS, VALUES), max_size=8))
MOVES = st.one_of(
    APPENDS,
    APPENDS,
    st.tuples(st.just("compact"), st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.just("wait"), st.integers(0, 2 * TOMBSTONE_MS)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MOVES, max_size=20))
def test_compaction_removes_nothing_but_what_a_later_record_replaces(moves: list[tuple[str, object]]) -> None:
    with pytest.MonkeyPatch.context() as patch, house(compacted=True) as it:
        # Small steps, so that some end in the middle.
        patch.setattr(housekeeping, "STEP_ROWS", 2)
        patch.setattr(housekeeping, "KEYS_AT_ONCE", 2)
        written: list[Record] = []
        last_written: dict[bytes | None, int] = {}
        for move, what in moves:
            if move == "append":
                for key, value in what:
                    last_written[key] = it.now
                    written.append(Record(len(written), it.now, key, value))
                it.append(what)
            elif move == "wait":
                it.now += what
            else:
                it.compact(what)
            found = it.read()
            assert set(found) <= set(written)
            assert [record.offset for record in found] == sorted(record.offset for record in found)
            assert it.bounds()[1] == len(written)
            last = {record.key: record for record in written}
            kept = set(found)
            for key, record in last.items():
                young = it.now < last_written[key] + TOMBSTONE_MS
                if key is not None and (record.value is not None or young):
                    assert record in kept, "the last record of a key was removed"
                if key is not None and record not in kept:
                    assert not any(other.key == key for other in kept), "a deleted key came back"
            assert {record for record in written if record.key is None} <= kept
            assert it.size()[0] == it.size()[1]


def test_a_whole_compaction_leaves_one_record_a_key() -> None:
    with house(compacted=True) as it:
        for n in range(50):
            it.append([(b"key-%d" % (i % 10), b"%d" % n) for i in range(30)])
        it.compact()
        found = it.read()
        assert [(record.offset, record.value) for record in found] == [(1490 + i, b"49") for i in range(10)]
        assert it.bounds() == (0, 1500)


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    with house(compacted=True) as it:
        it.append([(b"a", b"1"), (b"b", b"1"), (b"a", None)])
        it.compact()
        assert [(record.key, record.value) for record in it.read()] == [(b"b", b"1"), (b"a", None)]
        it.now += TOMBSTONE_MS - 1
        it.compact()
        assert len(it.read()) == 2
        it.now += 1
        it.compact()
        assert [(record.key, record.value) for record in it.read()] == [(b"b", b"1")]
        it.append([(b"c", b"1")])
        assert [record.offset for record in it.read()] == [1, 3]


def test_crumbs_become_chunks() -> None:
    with house(compacted=True) as it:
        for n in range(300):
            it.append([(b"%d" % n, b"value")])
        before = it.read()
        it.compact()
        assert it.read() == before
        with it.store.view() as view:
            assert len(list(view.chunks(view.locate(TP)[0], 0, 0))) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=5), max_size=20),
    st.one_of(st.none(), st.integers(0, 100)),
    st.one_of(st.none(), st.integers(0, 2_000)),
    st.integers(0, 120),
)
def test_retention_removes_the_head_and_nothing_behind_the_first_that_stays(
    appends: list[list[int]], retention_ms: int | None, retention_bytes: int | None, now: int
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        house(retention_ms=retention_ms, retention_bytes=retention_bytes) as it,
    ):
        patch.setattr(housekeeping, "STEP_ROWS", 3)
        for timestamps in appends:
            for timestamp in timestamps:
                it.append([(b"key", b"v" * 20)], timestamp)
        before, (size, _) = it.read(), it.size()
        it.now = now
        it.retain()
        start, end = it.bounds()
        assert end == len(before)
        assert it.read() == before[start:]
        assert it.size()[0] == it.size()[1]
        one = size // len(before) if before else 0

        def too_old(record: Record) -> bool:
            return retention_ms is not None and record.timestamp < now - retention_ms

        def too_much(record: Record) -> bool:
            return retention_bytes is not None and (end - record.offset - 1) * one >= retention_bytes

        # Each record is a chunk of its own here, all of one size.
        expected = next((r.offset for r in before if not (too_old(r) or too_much(r))), end)
        assert start == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.tuples(st.just("remove"), st.integers(0, 100)),
            st.tuples(st.just("tidy"), st.just(0)),
        ),
        max_size=20,
    )
)
def test_what_was_removed_from_the_head_can_not_be_read_and_leaves_no_bytes(moves: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch, house() as it:
        patch.setattr(housekeeping, "STEP_ROWS", 2)
        written: list[Record] = []
        chunks: list[range] = []
        start = 0
        for move, n in moves:
            if move == "append":
                chunks.append(range(len(written), len(written) + n))
                written += [Record(offset, it.now, b"key", b"value") for offset in chunks[-1]]
                it.append([(b"key", b"value")] * n)
            elif move == "remove":
                start = max(start, min(n, len(written)))
                with it.store.change() as change:
                    change.move_start(TP, start)
            else:
                it.retain()
                with it.store.view() as view:
                    left = [LOG_KEY.unpack(key)[2] for key, _ in view.chunks(view.locate(TP)[0], 0, 0)]
                assert left == [chunk[-1] for chunk in chunks if chunk[-1] >= start]
            assert it.bounds() == (start, len(written))
            assert it.read() == written[start:]
            assert it.size()[0] == it.size()[1]


async def test_removed_records_go_with_the_next_round(local_log: Log) -> None:
    async with local_log.open() as broker:
        tp = TopicPartition(await local_log.topic(broker), 0)
        producer = broker.producer()
        for _ in range(5):
            producer.send(tp.topic, None, b"value", 1, partition=0)
            await producer.flush()
        await broker.delete_records({tp: 3})
        for _ in Housekeeper(broker._store).round():
            await asyncio.sleep(0)
        with broker._store.view() as view:
            topic_id, row = view.locate(tp)
            left = [len(data) for _, data in view.chunks(topic_id, 0, 0)]
        assert (len(left), sum(left)) == (2, row.size)
        assert [row[0] for row in (await read_all(broker, tp.topic))[0]] == [3, 4]
        await producer.close()


def test_retention_goes_before_compaction_and_both_may_be_asked_for() -> None:
    with house(compacted=True, retention_ms=1_000) as it:
        it.append([(b"a", b"old"), (b"b", b"old")])
        it.now += 2_000
        it.append([(b"a", b"new")])
        it.retain()
        it.compact()
        assert [record.value for record in it.read()] == [b"new"]
        assert it.bounds() == (2, 3)


def test_a_round_tidies_only_what_is_worth_it_and_ends() -> None:
    with house(compacted=True) as it:
        it.append([(b"a", b"1")] * 10)
        list(it.keeper.round())
        assert len(it.read()) == 10
        it.append([(b"a", b"1" * 1_000)] * 100)
        list(it.keeper.round())
        assert len(it.read()) == 1
        assert len(list(it.keeper.round())) == 0


def test_one_housekeeper_at_a_time(tmp_path: Path) -> None:
    with house() as it:
        other = Housekeeper(it.store)
        assert it.keeper.claim() and it.keeper.claim()
        assert not other.claim()


def test_a_topic_that_is_deleted_and_made_anew_during_a_compaction_is_left_alone() -> None:
    with pytest.MonkeyPatch.context() as patch, house(compacted=True) as it:
        patch.setattr(housekeeping, "STEP_ROWS", 1)
        for _ in range(5):
            it.append([(b"a", b"1")])
        work = it.keeper.compact(TP, it._topic())
        for _ in range(3):
            next(work)
        with it.store.change() as change:
            change.delete("t")
            change.create(TopicSpec("t", compacted=True))
        it.append([(b"a", b"1"), (b"a", b"2")])
        with pytest.raises(housekeeping.UnknownTopic):
            list(work)
        assert len(it.read()) == 2


def test_nothing_of_a_deleted_topic_stays() -> None:
    with pytest.MonkeyPatch.context() as patch, house() as it:
        patch.setattr(housekeeping, "STEP_ROWS", 2)
        for _ in range(7):
            it.append([(b"a", b"1")])
        with it.store.change() as change:
            change.create(TopicSpec("other"))
            for topic in ("t", "other"):
                change.set_position("group", TopicPartition(topic, 0), Position(1))
        with it.store.change() as change:
            change.delete("t")
        list(it.keeper.round())
        with it.store.environment.read() as txn:
            rows = {name: txn.stat(db=db)["entries"] for name, db in it.store.environment.db.items()}
        assert (rows[b"log"], rows[b"positions"], rows[b"garbage"]) == (0, 1, 0)


def test_a_transactional_id_is_forgotten_when_nobody_took_it_for_long() -> None:
    with house() as it:
        with it.store.change() as change:
            change.set_epoch("id", 3)
        it.now = housekeeping.wall_clock()
        list(it.keeper.round())
        with it.store.view() as view:
            assert view.epoch("id") == 3
        it.now += housekeeping.EPOCH_MS + 60_000
        list(it.keeper.round())
        with it.store.view() as view:
            assert view.epoch("id") == 0


async def test_a_position_that_retention_has_passed_goes_on_at_the_start_with_a_warning(
    local_log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async with local_log.open() as broker:
        topic = await local_log.topic(broker, retention_ms=1_000)
        producer = broker.producer()
        for timestamp in (1, 2, 2**41):
            producer.send(topic, None, b"%d" % timestamp, timestamp, partition=0)
            await producer.flush()
        tp = TopicPartition(topic, 0)
        await broker.set_positions("group", {tp: Position(1)})
        keeper = Housekeeper(broker._store)
        for _ in keeper.round():
            await asyncio.sleep(0)
        with caplog.at_level(logging.WARNING):
            member = await Member(broker, "group", [topic]).start()
            await until(lambda: member.count == 1, member)
        assert member.values[tp] == [b"%d" % 2**41]
        (warning,) = [record.getMessage() for record in caplog.records if "agentic" in record.name]
        assert str(tp) in warning and "offset 1 " in warning and "2 to 3" in warning
        assert (await read_all(broker, topic))[0][0][0] == 2
        await member.consumer.close()


async def test_a_producer_whose_id_was_forgotten_goes_on_unless_another_took_it(local_log: Log) -> None:
    async with local_log.open() as broker:
        topic = await local_log.topic(broker)
        consumer = broker.consumer("group", [topic])

        def forget() -> None:
            with broker._store.change() as change:
                change.forget_epochs(2**62)

        async def commit(producer: Producer, value: bytes) -> None:
            producer.send(topic, None, value, 1)
            await producer.commit_transaction({}, consumer)

        first = broker.producer(transactional_id="id")
        forget()
        await commit(first, b"1")
        forget()
        second = broker.producer(transactional_id="id")
        with pytest.raises(Fenced):
            await commit(first, b"2")
        await commit(second, b"3")
        assert [row[3] for row in (await read_all(broker, topic))[0]] == [b"1", b"3"]
