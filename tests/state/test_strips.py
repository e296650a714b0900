"""Windows beside each other on their key against a plain dict, under checkpoints, failed events and crashes."""

from __future__ import annotations

from bisect import bisect_left

from groups_support import CODECS, TABLE, Scene
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.codecs.raw import Raw
from agentic.core.windows import Row as Window
from agentic.core.windows import Step, end_of
from agentic.state.buffer import Row
from agentic.state.keys import key_format
from agentic.state.strips import Strip, StripedBuffer
from agentic.state.window_keys import WindowKeys

NAMES = WindowKeys(key_format(bytes, Raw()), lambda start: None)
KEYS = st.sampled_from([b"", b"\0", b"a", b"ab"])
#: One of them lies over others, as a session may over some that are closed.
BOUNDS = st.sampled_from([(4, 4), (3, 10), (0, 13), (256, 300), (1 << 40, (1 << 40) + 7)])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "work"]), KEYS, BOUNDS, st.integers(0, 9)),
    st.tuples(st.sampled_from(["remove", "work", "forget"]), KEYS, BOUNDS, st.none()),
    st.tuples(st.sampled_from(["complete", "fail", "take", "encode", "store", "crash"]), *[st.none()] * 3),
)


class Strips(Scene):
    """Windows with their ends in their names, so that some have one start and two ends."""

    buffer: StripedBuffer[int]

    def make(self) -> None:
        self.buffer = StripedBuffer(TABLE, self.store, keys=NAMES, **CODECS)

    def restore(self, name: bytes, row: Row) -> None:
        self.buffer.restore(name, row)

    def work(self, key: bytes, bounds: tuple[int, int], value: int | None) -> None:
        """Do what an event does to a window, which is at work until it is complete or fails; None removes it."""
        self.clock += 1
        strip = self.buffer.strip(key)
        at = bisect_left(strip.rows, bounds[1], key=end_of)
        before = strip.rows[at] if at < len(strip.rows) and strip.rows[at][:2] == bounds else None
        now = Window(*bounds, value, self.clock)
        strip.rows[at : at + (before is not None)] = [] if value is None else [now]
        steps: list[Step] = [] if value is None and before is None else [(now, before)]
        self.buffer.at_work.append((strip, steps))

    def complete(self) -> None:
        for strip, steps in self.buffer.at_work:
            self.buffer.complete(strip, steps)
            for row, _ in steps:
                name = NAMES.name(strip.key, row.start, row.end)
                if row.value is None:
                    self.rows.pop(name, None)
                else:
                    self.rows[name] = (row.value, row.timestamp)
        self.buffer.at_work.clear()

    def fail(self) -> None:
        self.buffer.fail()

    def forget(self, key: bytes, end: int) -> None:
        """Forget the windows that end by a time, all of which have been given out: none that the event at work has."""
        strip = self.buffer.strips.get(key)
        if strip is not None:
            at_work = [now.end for other, steps in self.buffer.at_work if other is strip for now, _ in steps]
            strip.out = bisect_left(strip.rows, min(at_work, default=1 << 64), key=end_of)
            gone = [row for row in strip.rows[: strip.out] if row.end <= end]
            assert self.buffer.leave(strip, end) == len(gone)
            for row in gone:
                del self.rows[NAMES.name(key, row.start, row.end)]

    def look(self) -> None:
        self.look_through_scan()
        if self.buffer.at_work:
            return
        there = {
            NAMES.name(key, row.start, row.end): (self.buffer.entry(key, row), row.timestamp)
            for key, strip in self.buffer.strips.items()
            for row in strip.rows
        }
        assert there == self.rows
        assert self.buffer.held == len(self.rows)
        for strip in self.buffer.strips.values():
            assert strip.rows == sorted(strip.rows, key=end_of)
            assert strip.rows or strip.saved or strip.flushing or strip.low is not None


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 1_000, 1 << 20]))
def test_windows_in_strips_are_those_of_a_dict(
    steps: list[tuple[str, bytes, tuple[int, int], int | None]], cache: int
) -> None:
    scene = Strips(cache)
    for what, key, bounds, value in steps:
        match what:
            case "write" | "remove":
                scene.work(key, bounds, value)
                scene.complete()
            case "work":
                scene.work(key, bounds, value)
            case "complete":
                scene.complete()
            case "fail":
                scene.fail()
            case "forget":
                scene.forget(key, bounds[1])
            case "take":
                scene.take()
            case "encode":
                scene.buffer.encode()
            case "store":
                scene.store_them()
            case _:
                scene.begin()
        scene.look()


def written(bounds: tuple[int, int] = (3, 10)) -> tuple[Strips, Strip]:
    scene = Strips(1 << 20)
    scene.work(b"a", bounds, 1)
    scene.complete()
    return scene, scene.buffer.strips[b"a"]


def test_what_has_come_and_gone_between_two_checkpoints_leaves_no_trace() -> None:
    scene, _ = written()
    scene.forget(b"a", 10)
    assert not scene.buffer.strips
    assert scene.buffer.take() == 0
    assert scene.buffer.encode() == []


def test_a_key_without_windows_is_let_go_of_once_the_store_knows() -> None:
    scene, _ = written()
    scene.take()
    scene.store_them()
    scene.forget(b"a", 10)
    assert list(scene.buffer.strips) == [b"a"]
    scene.take()
    assert list(scene.buffer.strips) == [b"a"]
    scene.store_them()
    assert not scene.buffer.strips


def test_a_checkpoint_writes_what_has_changed_and_nothing_beside_it() -> None:
    scene, _ = written((3, 10))
    for bounds in [(0, 13), (256, 300)]:
        scene.work(b"a", bounds, 1)
    scene.complete()
    scene.take()
    scene.store_them()
    scene.work(b"a", (0, 13), 2)
    scene.complete()
    scene.take()
    assert [name for name, _, _ in scene.buffer.encode()] == [NAMES.name(b"a", 0, 13)]


def test_an_event_that_empties_a_key_and_fails_leaves_it_as_it_was() -> None:
    scene, strip = written()
    scene.work(b"a", (3, 10), None)
    scene.work(b"a", (3, 10), 2)
    scene.fail()
    assert scene.buffer.strips == {b"a": strip}
    scene.look()


def test_an_event_fails_that_had_emptied_a_key_when_the_rest_was_forgotten() -> None:
    scene, strip = written((3, 10))
    scene.work(b"a", (256, 300), 1)
    scene.complete()
    scene.work(b"a", (256, 300), None)
    scene.forget(b"a", 10)
    scene.fail()
    assert scene.buffer.strips == {b"a": strip}
    scene.look()


def test_an_event_fails_that_had_emptied_a_key_when_a_checkpoint_was_stored() -> None:
    scene, strip = written()
    scene.take()
    scene.store_them()
    scene.work(b"a", (3, 10), None)
    scene.complete()
    scene.take()
    scene.work(b"a", (256, 300), 1)
    scene.complete()
    scene.work(b"a", (256, 300), None)
    scene.store_them()
    scene.fail()
    assert scene.buffer.strips == {b"a": strip}
    scene.look()


def test_a_key_that_is_empty_while_an_event_is_at_work_is_let_go_of_by_the_next_checkpoint() -> None:
    scene, _ = written()
    scene.work(b"b", (3, 10), 1)
    scene.forget(b"a", 10)
    scene.complete()
    scene.take()
    assert list(scene.buffer.strips) == [b"b"]


def test_what_a_failed_checkpoint_has_sent_is_deleted_by_the_next() -> None:
    # The changelog may have it, though no commit has.
    scene, _ = written()
    scene.take()
    scene.buffer.encode()
    scene.forget(b"a", 10)
    scene.take()
    assert [(name, value) for name, value, _ in scene.buffer.encode()] == [(NAMES.name(b"a", 3, 10), None)]
