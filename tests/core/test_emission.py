"""The index of windows by their ends, against a plain set of them under random histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentic.core.emission import Ends, Places

ENDS = st.integers(0, 8)
NAMES = st.sampled_from([b"a", b"b", b"c"])
STEPS = st.one_of(
    st.tuples(st.just("add"), ENDS, NAMES),
    st.tuples(st.just("remove"), ENDS, NAMES),
    st.tuples(st.just("due"), ENDS, st.none()),
    st.tuples(st.just("expired"), ENDS, st.none()),
)


class Model:
    """All windows by name and end."""

    def __init__(self) -> None:
        self.there: set[tuple[int, bytes]] = set()
        self.given = -1

    def open(self) -> list[tuple[int, bytes]]:
        return sorted(each for each in self.there if each[0] > self.given)

    def due(self, upto: int) -> list[tuple[int, bytes]]:
        found = [each for each in self.open() if each[0] <= upto]
        self.given = max(self.given, upto)
        return found

    def expired(self, upto: int) -> list[tuple[int, bytes]]:
        found = sorted(each for each in self.there if each[0] <= min(upto, self.given))
        self.there -= set(found)
        return found


@given(st.lists(STEPS, max_size=40))
def test_what_is_open_due_and_expired_is_what_a_plain_set_says(steps: list[tuple[str, int, bytes | None]]) -> None:
    ends, model = Ends(), Model()
    for what, end, name in steps:
        if name is None and what == "due":
            given_out = [(each, one) for each, names in ends.due(end) for one in sorted(names)]
            assert given_out == model.due(end)
        elif name is None:
            forgotten = [list(names) for _, names in ends.expired(end)]
            assert [one for names in forgotten for one in sorted(names)] == [one for _, one in model.expired(end)]
        elif what == "add":
            ends.add(end, name)
            model.there.add((end, name))
        else:
            ends.removed(end, name)
            model.there.discard((end, name))
        assert ends.open_windows() == len(model.open())
        assert ends.next_due() == min((each for each, _ in model.open()), default=None)
        assert len(ends) == len(model.there)
        assert all(ends.has(each, one) == ((each, one) in model.there) for each in range(9) for one in (b"a", b"b"))


def test_windows_of_one_end_come_in_the_order_in_which_they_came_into_being() -> None:
    ends = Ends()
    for name in (b"c", b"a", b"b"):
        ends.add(10, name)
    assert list(ends.due(10)) == [(10, [b"c", b"a", b"b"])]


def test_what_was_given_out_before_a_restart_is_kept_and_not_due() -> None:
    ends = Ends()
    ends.begin_at(10)
    ends.add(10, b"a")
    ends.add(11, b"a")
    assert (ends.next_kept(), ends.next_due(), ends.open_windows()) == (10, 11, 1)


def test_a_window_may_come_while_windows_are_given_out() -> None:
    ends = Ends()
    ends.add(10, b"a")
    ends.add(20, b"a")
    due = ends.due(20)
    assert next(due) == (10, [b"a"])
    ends.add(15, b"b")
    assert list(due) == [(15, [b"b"]), (20, [b"a"])]
    assert ends.open_windows() == 0


def test_an_end_whose_windows_have_all_been_taken_out_is_forgotten_with_the_others() -> None:
    # Whoever put them in keeps something of its own for each end, and is told when it is over.
    ends = Ends()
    ends.named(10)[b"a"] = None
    ends.named(10).clear()
    assert list(ends.due(10)) == []
    assert list(ends.expired(10)) == [(10, {})]


def test_an_end_whose_windows_have_all_been_taken_out_is_still_ahead_as_others_may_come() -> None:
    ends = Ends()
    ends.named(10)[b"a"] = None
    ends.add(20, b"a")
    windows = ends.named(10)
    windows.clear()
    assert (ends.next_due(), ends.ahead()) == (20, (10, None))
    windows[b"b"] = None
    assert list(ends.due(10)) == [(10, [b"b"])]
    assert ends.ahead() == (20, 10)


@given(
    st.lists(
        st.one_of(st.tuples(st.just("push"), st.integers(0, 3_000)), st.tuples(st.just("pop"), st.integers(0, 3_000)))
    )
)
def test_places_come_in_their_order_whenever_they_were_put_in(steps: list[tuple[str, int]]) -> None:
    places: Places[tuple[int, int]] = Places()
    there: list[tuple[int, int]] = []
    for number, (what, time) in enumerate(steps):
        if what == "push":
            places.push((time, number))
            there.append((time, number))
        else:
            due = [place for place in sorted(there) if place[0] <= time]
            assert places.pop(time) == (due[0] if due else None)
            there = [place for place in there if place not in due[:1]]
        assert places.first() == min(there, default=None)
