"""The index of strips by the ends of their windows, against a plain set of windows under random histories."""

from __future__ import annotations

from groups_support import CODECS, TABLE
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.codecs.raw import Raw
from agentic.core.windows import Row, Step, end_of
from agentic.state.keys import key_format
from agentic.state.memory import MemoryStore
from agentic.state.strip_ends import EndsOfStrips
from agentic.state.strips import StripedBuffer
from agentic.state.window_keys import WindowKeys

TIMES = st.integers(0, 30)
KEYS = st.sampled_from([b"a", b"b", b"c"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["add", "fail"]), TIMES, st.integers(0, 8), KEYS),
    st.tuples(st.just("erase"), TIMES, st.none(), KEYS),
    st.tuples(st.just("due"), TIMES, st.sampled_from([1, 2, 100]), st.none()),
    st.tuples(st.just("forget"), TIMES, st.none(), st.none()),
)


class Sessions:
    """Windows that grow into each other, in strips; and what there should be of them: end, start and key of each."""

    def __init__(self) -> None:
        keys = WindowKeys(key_format(bytes, Raw()), lambda start: None)
        self.buffer = StripedBuffer[int](TABLE, MemoryStore(), keys=keys, **CODECS)
        self.ends = EndsOfStrips(self.buffer)
        self.given = -1
        self.open: set[tuple[int, int, bytes]] = set()
        self.kept: set[tuple[int, int, bytes]] = set()

    def change(self, key: bytes, found: set[tuple[int, int, bytes]], whole: tuple[int, int] | None) -> list[Step]:
        """Put a window in place of others that overlap it."""
        strip = self.buffer.strip(key)
        steps: list[Step] = []
        for end, start, _ in sorted(found):
            before = next(row for row in strip.rows if row[:2] == (start, end))
            strip.rows.remove(before)
            steps.append((Row(start, end, None, end), before))
        if whole is not None:
            now = Row(*whole, 1, whole[1])
            strip.rows.append(now)
            strip.rows.sort(key=end_of)
            steps.append((now, None))
        return steps

    def complete(self, key: bytes, steps: list[Step]) -> None:
        strip = self.buffer.strip(key)
        self.buffer.complete(strip, steps)
        self.ends.arm(strip)

    def add(self, start: int, end: int, key: bytes, *, fails: bool) -> None:
        found = {each for each in self.open if each[2] == key and each[0] >= start and each[1] <= end}
        start, end = min([start, *(s for _, s, _ in found)]), max([end, *(e for e, _, _ in found)])
        if end <= self.given:
            return  # it would be closed
        steps = self.change(key, found, (start, end))
        if not fails:
            self.complete(key, steps)
            self.open = self.open - found | {(end, start, key)}
            return
        # The index may be asked while an event is at work.
        self.ends.next_due()
        strip = self.buffer.strip(key)
        strip.undo(steps, strip.rows)
        self.ends.arm(strip)
        self.buffer.tidy(strip)

    def erase(self, time: int, key: bytes) -> None:
        found = {each for each in self.open if each[2] == key and each[1] <= time <= each[0]}
        if found:
            self.complete(key, self.change(key, found, None))
            self.open -= found

    def due(self, upto: int, limit: int) -> None:
        self.given = max(self.given, upto)
        wanted = sorted(each for each in self.open if each[0] <= self.given)
        found: list[tuple[int, int, bytes]] = []
        while len(burst := self.ends.due(self.given, limit)) == limit:
            found += [(end, start, key) for key, start, end, _, _ in burst]
        found += [(end, start, key) for key, start, end, _, _ in burst]
        assert found == wanted
        self.open -= set(wanted)
        self.kept |= set(wanted)

    def forget(self, upto: int) -> None:
        """Forget all that may be: strips are passed over until the last window that was out by then may go."""
        self.ends.sweep(min(upto, self.given), 100)
        there = {(row.end, row.start, key) for key, strip in self.buffer.strips.items() for row in strip.rows}
        assert self.open <= there <= self.open | self.kept
        if upto >= self.given:
            assert there == self.open
        self.kept &= there


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_windows_come_out_and_are_forgotten_as_those_of_a_plain_set(
    steps: list[tuple[str, int, int | None, bytes | None]],
) -> None:
    scene = Sessions()
    for what, time, number, key in steps:
        match what:
            case "due":
                assert number is not None
                scene.due(time, number)
            case "forget":
                scene.forget(time)
            case "erase":
                assert key is not None
                scene.erase(time, key)
            case _:
                assert number is not None and key is not None
                scene.add(time, time + number, key, fails=what == "fail")
        assert scene.ends.open_windows() == len(scene.open)
        assert scene.ends.next_due() == min((end for end, _, _ in scene.open), default=None)
        assert (scene.ends.next_kept() is not None) >= bool(scene.kept)


@given(st.lists(st.tuples(TIMES, KEYS), max_size=12, unique=True), TIMES)
def test_after_a_restart_what_was_given_out_is_kept_and_the_rest_is_due(
    windows: list[tuple[int, bytes]], given: int
) -> None:
    scene = Sessions()
    for end, key in sorted(windows):
        scene.buffer.restore(key + end.to_bytes(8, "big") * 2, (1, end))
    scene.ends.begin_at(given)
    assert scene.ends.open_windows() == sum(end > given for end, _ in windows)
    assert scene.ends.due(100, 100) == [(key, end, end, 1, end) for end, key in sorted(windows) if end > given]
    scene.ends.sweep(100, 100)
    assert not any(strip.rows for strip in scene.buffer.strips.values())
