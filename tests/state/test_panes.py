"""Rows in panes against a plain dict, under checkpoints, failed events, closings and crashes at any step."""

from __future__ import annotations

from groups_support import CODECS, TABLE, Scene
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.state.buffer import Row
from agentic.state.panes import Pane, PanedBuffer

SIZE = 10
KEYS = st.sampled_from([b"", b"\0", b"a", b"ab", b"b"])
STARTS = st.sampled_from([0, 10, 256, 1 << 40])
STEPS = st.one_of(
    st.tuples(st.just("write"), STARTS, KEYS, st.integers(0, 9)),
    st.tuples(st.just("erase"), STARTS, KEYS, st.none()),
    st.tuples(st.just("fail"), STARTS, KEYS, st.integers(0, 9)),
    st.tuples(st.just("close"), STARTS, st.none(), st.none()),
    st.tuples(st.sampled_from(["take", "encode", "store", "look", "crash"]), st.none(), st.none(), st.none()),
)


class Panes(Scene):
    """See `Scene`."""

    buffer: PanedBuffer[int]

    def make(self) -> None:
        self.buffer = PanedBuffer(TABLE, self.store, **CODECS)
        #: Windows that are closed stay so.
        self.closed: set[int] = set()

    def restore(self, name: bytes, row: Row) -> None:
        self.buffer.restore(self.pane(int.from_bytes(name[-8:], "big")), name[:-8], row)

    def pane(self, start: int) -> Pane:
        return self.buffer.panes.get(start) or self.buffer.open(start, start + SIZE, {})

    def write(self, start: int, key: bytes, value: int | None) -> None:
        """Do what an event does, and complete it."""
        self.clock += 1
        pane = self.pane(start)
        row = (value, self.clock)
        if value is not None:
            pane.rows[key] = row
            self.rows[key + pane.suffix] = row
        elif pane.rows.pop(key, None) is None:
            return
        else:
            del self.rows[key + pane.suffix]
        self.buffer.complete(pane, key, row)

    def fail(self, start: int, key: bytes, value: int) -> None:
        """Do what an event does, look, and undo it."""
        pane = self.pane(start)
        before = pane.rows.get(key)
        pane.rows[key] = (value, 1 << 40)
        self.look_through_scan()
        if before is None:
            del pane.rows[key]
        else:
            pane.rows[key] = before

    def close(self, start: int) -> None:
        """Forget a window; the rows that were written are dropped."""
        if start in self.buffer.panes:
            pane = self.buffer.panes[start]
            for key in pane.rows:
                del self.rows[key + pane.suffix]
            self.buffer.drop(self.buffer.close(start), self.clock)
            self.closed.add(start)

    def look(self) -> None:
        for start, pane in self.buffer.panes.items():
            for key in pane.rows:
                assert self.buffer.row(pane, key) == self.rows[key + start.to_bytes(8, "big")]
        self.look_through_scan()


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 1_000, 1 << 20]))
def test_rows_in_panes_are_those_of_a_dict(steps: list[tuple[str, int, bytes, int]], cache_bytes: int) -> None:
    scene = Panes(cache_bytes)
    for what, start, key, value in steps:
        if start in scene.closed:
            continue
        if what in ("write", "erase"):
            scene.write(start, key, value)
        elif what == "fail":
            scene.fail(start, key, value)
        elif what == "close":
            scene.close(start)
        elif what == "take":
            scene.take()
        elif what == "encode" and scene.under_way:
            scene.buffer.encode()
        elif what == "store":
            scene.store_them()
        elif what == "crash":
            scene.begin()
        scene.look()
