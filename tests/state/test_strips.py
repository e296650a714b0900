"""Windows beside each other on their key against a plain dict, under checkpoints, failed events and crashes."""

from __future__ import annotations

from bisect import insort

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core.windows import Row as Window
from agentic.state.buffer import Row
from agentic.state.envelope import unwrap, wrap_all
from agentic.state.memory import MemoryStore
from agentic.state.strips import Strip, StripedBuffer

TABLE = "windows"
KEYS = st.sampled_from([b"", b"\0", b"a", b"ab"])
BOUNDS = st.sampled_from([(0, 0), (0, 10), (3, 13), (256, 300), (1 << 40, (1 << 40) + 7)])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "fail"]), KEYS, BOUNDS, st.integers(0, 9)),
    st.tuples(st.sampled_from(["remove", "forget"]), KEYS, BOUNDS, st.none()),
    st.tuples(st.sampled_from(["take", "encode", "store", "crash"]), st.none(), st.none(), st.none()),
)


def name_of(key: bytes, start: int, end: int) -> bytes:
    return key + end.to_bytes(8, "big") + start.to_bytes(8, "big")


def parts_of(name: bytes) -> tuple[bytes, int, int]:
    return name[:-16], int.from_bytes(name[-8:], "big"), int.from_bytes(name[-16:-8], "big")


class Scene:
    """A buffer as an operator and a view use it, and what it should have."""

    def __init__(self, cache_bytes: int) -> None:
        self.store = MemoryStore()
        self.cache_bytes = cache_bytes
        #: What a checkpoint has taken; what the store has.
        self.taken: dict[bytes, Row] = {}
        self.stored: dict[bytes, Row] = {}
        self.clock = 0
        self.begin()

    def begin(self) -> None:
        """Begin with what the store has, as after a crash."""
        self.buffer = StripedBuffer(
            TABLE,
            self.store,
            load=int,
            dump=lambda entry: b"%d" % entry,
            dump_value=lambda entry: b"%d" % entry,
            name_of=name_of,
            parts_of=parts_of,
        )
        self.buffer.cache_bytes = self.cache_bytes
        self.rows, self.under_way = dict(self.stored), False
        for name, entry, timestamp in list(self.buffer.scan({})):
            self.buffer.restore(name, (entry, timestamp))

    def find(self, key: bytes, bounds: tuple[int, int]) -> tuple[Strip | None, Window | None]:
        strip = self.buffer.strips.get(key)
        return strip, None if strip is None else strip.find(*bounds)

    def write(self, key: bytes, bounds: tuple[int, int], value: int, *, fail: bool = False) -> None:
        """Do what an event does; complete it, or look and undo it."""
        self.clock += 1
        strip, before = self.buffer.strip(key), self.find(key, bounds)[1]
        row = Window(*bounds, value, self.clock)
        at = strip.place(*bounds)
        if before is None:
            strip.rows.insert(at, row)
        else:
            strip.rows[at] = row
        if fail:
            self.look_through_scan()
            del strip.rows[at]
            if before is not None:
                insort(strip.rows, before, key=lambda each: each[:2])
            self.buffer.tidy(strip)
            return
        self.buffer.held += before is None
        self.buffer.complete(strip, row)
        self.rows[name_of(key, *bounds)] = (value, self.clock)

    def remove(self, key: bytes, bounds: tuple[int, int]) -> None:
        """Do what an event does that merges a session into another."""
        strip, before = self.find(key, bounds)
        if strip is not None and before is not None:
            del strip.rows[strip.place(*bounds)]
            self.buffer.held -= 1
            self.buffer.gone(strip, *bounds, self.clock)
            self.buffer.tidy(strip)
            del self.rows[name_of(key, *bounds)]

    def forget(self, key: bytes, bounds: tuple[int, int]) -> None:
        if self.find(key, bounds)[1] is not None:
            self.buffer.forget_window(key, *bounds, self.clock)
            del self.rows[name_of(key, *bounds)]

    def take(self) -> None:
        self.buffer.take()
        self.taken, self.under_way = dict(self.rows), True

    def store_them(self) -> None:
        """Write what was taken, as a checkpoint does once it is committed."""
        if self.under_way:
            self.store.write({TABLE: wrap_all(self.buffer.encode())}, {})
            self.buffer.stored()
            self.stored, self.under_way = self.taken, False
            found = {name: unwrap(blob) for name, blob in self.store.scan(TABLE)}
            assert {name: (int(value), time) for name, (value, time) in found.items()} == self.stored

    def look(self) -> None:
        there = {
            name_of(key, row.start, row.end): self.buffer.loaded(key, row)[2:]
            for key, strip in self.buffer.strips.items()
            for row in strip.rows
        }
        assert there == self.rows
        assert self.buffer.held == len(self.rows)
        assert all(strip.rows == sorted(strip.rows) for strip in self.buffer.strips.values() if not self.buffer.trimmed)
        self.look_through_scan()

    def look_through_scan(self) -> None:
        found = {name: (entry, time) for name, entry, time in self.buffer.scan({}) if entry is not None}
        assert found == self.rows
        assert all(self.buffer.peek(name) == row for name, row in self.rows.items())


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 1_000, 1 << 20]))
def test_windows_in_strips_are_those_of_a_dict(
    steps: list[tuple[str, bytes, tuple[int, int], int]], cache: int
) -> None:
    scene = Scene(cache)
    for what, key, bounds, value in steps:
        match what:
            case "write" | "fail":
                scene.write(key, bounds, value, fail=what == "fail")
            case "remove":
                scene.remove(key, bounds)
            case "forget":
                scene.forget(key, bounds)
            case "take":
                scene.take()
            case "encode":
                scene.buffer.encode()
            case "store":
                scene.store_them()
            case _:
                scene.begin()
        scene.look()


def test_what_has_come_and_gone_between_two_checkpoints_leaves_no_trace() -> None:
    scene = Scene(1 << 20)
    scene.write(b"a", (0, 10), 1)
    scene.remove(b"a", (0, 10))
    assert not scene.buffer.strips
    assert scene.buffer.take() == 0
    assert scene.buffer.encode() == []


def test_a_key_without_windows_is_let_go_of_once_the_store_knows() -> None:
    scene = Scene(1 << 20)
    scene.write(b"a", (0, 10), 1)
    scene.take()
    scene.store_them()
    scene.forget(b"a", (0, 10))
    assert list(scene.buffer.strips) == [b"a"]
    scene.take()
    scene.store_them()
    assert not scene.buffer.strips
