"""Versions of a key against a sorted map that forgets nothing: what is discarded must not be missed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.core import versioned
from agentic.core.versioned import EMPTY, LATEST, NOTHING_OBSERVED, Versions


class Store:
    """The keys of a store, each with its versions."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.observed = NOTHING_OBSERVED
        self.rows: dict[str, Versions] = {}

    def put(self, key: str, value: str | None, timestamp: int) -> tuple[int, str | None] | None:
        """Return (valid to, old value), None where it was refused."""
        made = versioned.put(
            self.rows.get(key, EMPTY),
            timestamp,
            None if value is None else value.encode(),
            observed=self.observed,
            history=self.history,
        )
        if made is None:
            return None
        self.observed = made.observed
        self.rows[key] = versioned.decode(versioned.encode(made.versions))
        assert self.rows[key] == made.versions
        assert made.is_latest == (made.valid_to == LATEST)
        return made.valid_to, text(made.old)

    def get(self, key: str) -> str | None:
        return text(versioned.latest(self.rows.get(key, EMPTY)))

    def at(self, key: str, timestamp: int) -> str | None:
        row = self.rows.get(key, EMPTY)
        return text(versioned.at(row, timestamp, observed=self.observed, history=self.history))

    def discard(self) -> None:
        for key, row in self.rows.items():
            self.rows[key] = versioned.discard(row, observed=self.observed, history=self.history)


class Model(Store):
    """The same by the letter of the rule: a map from timestamp to value, of which nothing is discarded."""

    def __init__(self, history: int) -> None:
        super().__init__(history)
        self.maps: dict[str, dict[int, str | None]] = {}

    def put(self, key: str, value: str | None, timestamp: int) -> tuple[int, str | None] | None:
        if timestamp < self.observed - self.history:
            return None
        old = self.get(key)
        self.observed = max(self.observed, timestamp)
        self.maps.setdefault(key, {})[timestamp] = value
        return min((t for t in self.maps[key] if t > timestamp), default=LATEST), old

    def get(self, key: str) -> str | None:
        versions = self.maps.get(key)
        return versions[max(versions)] if versions else None

    def at(self, key: str, timestamp: int) -> str | None:
        versions = self.maps.get(key)
        if not versions:
            return None
        if timestamp < self.observed - self.history:
            return versions[max(versions)] if max(versions) <= timestamp else None
        found = max((t for t in versions if t <= timestamp), default=None)
        return None if found is None else versions[found]

    def discard(self) -> None:
        """Nothing."""


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def store(*puts: tuple[str | None, int], history: int = 10) -> Store:
    """A store with these versions of the key A."""
    made = Store(history)
    for value, timestamp in puts:
        made.put("A", value, timestamp)
    return made


# -- puts -------------------------------------------------------------------------------------


def test_a_put_older_than_the_history_is_refused() -> None:
    there = store(("a20", 20))
    assert there.put("A", "a9", 9) is None
    assert there.put("A", "a10", 10) == (20, "a20")


def test_a_refused_put_changes_nothing_and_moves_no_time() -> None:
    there = store(("a20", 20))
    before = dict(there.rows), there.observed
    there.put("A", "a9", 9)
    assert (there.rows, there.observed) == before


def test_an_accepted_put_moves_the_observed_time_forward_and_never_back() -> None:
    there = store(("a20", 20))
    there.put("A", "a15", 15)
    assert there.observed == 20
    there.put("A", "a21", 21)
    assert there.observed == 21


def test_a_put_of_another_key_moves_the_time_of_all() -> None:
    there = store(("a1", 1))
    there.put("B", "b20", 20)
    assert there.put("A", "a9", 9) is None


def test_the_first_put_is_accepted_whatever_its_time() -> None:
    assert store(history=0).put("A", "a0", 0) == (LATEST, None)


def test_the_same_timestamp_replaces() -> None:
    there = store(("first", 5), ("next", 7), ("second", 5))
    assert there.at("A", 5) == "second"
    assert there.rows["A"].timestamps == (7, 5)


def test_a_put_returns_the_time_of_the_version_that_follows() -> None:
    there = store(("a5", 5), ("a9", 9))
    assert there.put("A", "a7", 7) == (9, "a9")
    assert there.put("A", "a5 again", 5) == (7, "a9")


def test_a_put_that_is_the_latest_has_no_end() -> None:
    there = store(("a5", 5))
    assert there.put("A", "a9", 9) == (LATEST, "a5")
    assert there.put("A", "a9 again", 9) == (LATEST, "a9")


def test_a_tombstone_is_a_version_that_others_end_at() -> None:
    assert store((None, 9)).put("A", "a5", 5) == (9, None)


def test_the_old_value_is_the_latest_and_not_the_predecessor() -> None:
    there = store(("a5", 5), ("a9", 9))
    assert there.put("A", "a7", 7) == (9, "a9")


# -- the latest -------------------------------------------------------------------------------


def test_the_latest_is_that_of_the_greatest_timestamp_and_not_of_the_last_put() -> None:
    assert store(("a9", 9), ("a5", 5)).get("A") == "a9"


def test_a_key_without_versions_has_no_latest() -> None:
    assert store().get("A") is None


def test_a_tombstone_as_latest_reads_as_none() -> None:
    assert store(("a5", 5), (None, 9)).get("A") is None


def test_the_latest_never_expires() -> None:
    there = store(("a5", 5))
    there.put("B", "b", 1_000_000)
    there.discard()
    assert there.get("A") == "a5"


# -- as of ------------------------------------------------------------------------------------


def test_as_of_a_time_is_the_version_with_the_greatest_timestamp_up_to_it() -> None:
    there = store(("a5", 5), ("a9", 9))
    assert [there.at("A", t) for t in (4, 5, 8, 9, 99)] == [None, "a5", "a5", "a9", "a9"]


def test_as_of_a_time_when_it_was_deleted_is_none() -> None:
    there = store(("a5", 5), (None, 7), ("a9", 9))
    assert [there.at("A", t) for t in (6, 7, 8, 9)] == ["a5", None, None, "a9"]


def test_before_the_history_nothing_but_the_latest_is_known() -> None:
    there = store(("a5", 5), ("a8", 8))
    there.put("B", "b", 30)
    assert [there.at("A", t) for t in (5, 7, 8, 19)] == [None, None, "a8", "a8"]


def test_as_of_the_edge_of_the_history_is_within_it() -> None:
    there = store(("a5", 5), ("a20", 20))
    assert [there.at("A", t) for t in (9, 10, 19, 20)] == [None, "a5", "a5", "a20"]


def test_reading_ahead_of_the_time_moves_nothing() -> None:
    there = store(("a5", 5))
    assert there.at("A", 1000) == "a5"
    assert there.observed == 5


def test_without_any_history_only_what_is_valid_now_is_known() -> None:
    there = store(("a5", 5), ("a6", 6), history=0)
    assert [there.at("A", t) for t in (5, 6)] == [None, "a6"]
    assert there.put("A", "again", 6) == (LATEST, "a6")
    assert there.put("A", "late", 5) is None


# -- discarding -------------------------------------------------------------------------------


def test_what_ended_before_the_history_is_discarded() -> None:
    there = store(("a1", 1), ("a5", 5), ("a9", 9), ("a20", 20))
    assert there.rows["A"].timestamps == (20, 9)


def test_what_ends_at_the_edge_of_the_history_is_kept() -> None:
    assert store(("a1", 1), ("a10", 10), ("a20", 20)).rows["A"].timestamps == (20, 10, 1)


def test_what_is_valid_at_the_edge_of_the_history_is_kept() -> None:
    assert store(("a1", 1), ("a20", 20)).rows["A"].timestamps == (20, 1)


def test_a_deleted_key_is_forgotten_when_its_tombstone_is_older_than_the_history() -> None:
    there = store(("a5", 5), (None, 7))
    there.put("B", "b17", 17)
    there.discard()
    assert there.rows["A"].timestamps == (7, 5)
    there.put("B", "b18", 18)
    there.discard()
    assert there.rows["A"] == EMPTY


def test_a_tombstone_is_kept_while_an_older_version_may_still_come() -> None:
    there = store((None, 7))
    there.put("B", "b17", 17)
    there.discard()
    assert there.put("A", "a7", 7) == (LATEST, None)
    there = store((None, 8))
    there.put("B", "b17", 17)
    there.discard()
    assert there.put("A", "a7", 7) == (8, None)
    assert there.get("A") is None


# -- against Kafka ----------------------------------------------------------------------------


def test_tombstone_tie() -> None:
    """A tombstone at the timestamp of the latest version is a version like any other (deviation 6)."""
    there = store(("v1", 38), (None, 38))
    assert there.put("A", "v0", 37) == (38, None)
    assert there.get("A") is None
    assert [there.at("A", t) for t in (36, 37, 38, 39)] == [None, "v0", None, None]


def test_a_value_at_the_timestamp_of_a_tombstone_takes_its_place() -> None:
    there = store(("v0", 37), (None, 38), ("v1", 38))
    assert [there.at("A", t) for t in (37, 38)] == ["v0", "v1"]


def test_the_golden_trace_of_kafka_streams() -> None:
    there = Store(history=10)
    puts = [("a0", 0), ("a5", 5), (None, 7), ("a9", 9), ("a8", 8), ("a20", 20)]
    for value, timestamp in puts:
        assert there.put("A", value, timestamp) is not None
    assert there.put("B", "b1", 1) is None
    assert there.put("B", "b9", 9) is None
    assert there.put("B", "b10", 10) == (LATEST, None)
    assert there.put("C", None, 19) == (LATEST, None)
    assert there.put("C", "c12", 12) == (19, None)
    assert there.get("A") == "a20"
    assert [there.at("A", t) for t in range(21)] == [None] * 10 + ["a9"] * 10 + ["a20"]
    assert (there.get("B"), there.at("B", 9), there.at("B", 10)) == ("b10", None, "b10")
    assert there.get("C") is None
    assert [there.at("C", t) for t in range(12, 20)] == ["c12"] * 7 + [None]


# -- the model --------------------------------------------------------------------------------

times = st.integers(0, 25)
puts = st.lists(st.tuples(st.sampled_from("AB"), st.none() | st.sampled_from("xyz"), times, st.booleans()), max_size=40)


@given(puts, st.integers(0, 12))
def test_nobody_can_tell_it_from_a_map_that_forgets_nothing(
    puts: list[tuple[str, str | None, int, bool]], history: int
) -> None:
    ours, model = Store(history), Model(history)
    for key, value, timestamp, sweep in puts:
        assert ours.put(key, value, timestamp) == model.put(key, value, timestamp)
        assert ours.observed == model.observed
        if sweep:
            ours.discard()
        for each in "AB":
            assert ours.get(each) == model.get(each)
            assert [ours.at(each, t) for t in range(27)] == [model.at(each, t) for t in range(27)]


@given(puts, st.integers(0, 12))
def test_what_is_kept_is_what_the_rule_lets_nobody_forget(
    puts: list[tuple[str, str | None, int, bool]], history: int
) -> None:
    ours, model = Store(history), Model(history)
    for key, value, timestamp, _ in puts:
        ours.put(key, value, timestamp)
        model.put(key, value, timestamp)
    ours.discard()
    horizon = ours.observed - history
    for key, row in ours.rows.items():
        within = [t for t in model.maps[key] if t >= horizon]
        assert [t for t in row.timestamps if t >= horizon] == sorted(within, reverse=True)
        assert len(row.timestamps) <= len(within) + 1


@given(
    st.lists(st.tuples(times, st.none() | st.sampled_from("xyz")), min_size=1, max_size=12).flatmap(
        lambda puts: st.tuples(st.just(puts), st.permutations(puts))
    )
)
def test_within_the_history_the_order_of_arrival_does_not_matter_except_for_ties(
    orders: tuple[list[tuple[int, str | None]], list[tuple[int, str | None]]],
) -> None:
    given_once, shuffled = (list(dict(order).items()) for order in orders)
    values = dict(given_once)
    one, other = Store(100), Store(100)
    for timestamp, value in given_once:
        one.put("A", value, timestamp)
    for timestamp, _ in shuffled:
        other.put("A", values[timestamp], timestamp)
    assert one.rows == other.rows


# -- the bytes --------------------------------------------------------------------------------

rows = st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.none() | st.binary(max_size=20), max_size=8).map(
    lambda found: Versions(tuple(sorted(found, reverse=True)), tuple(found[t] for t in sorted(found, reverse=True)))
)


@given(rows)
def test_versions_come_back_from_their_bytes(row: Versions) -> None:
    assert versioned.decode(versioned.encode(row)) == row


@given(rows.filter(lambda row: row != EMPTY), st.data())
def test_a_row_that_is_cut_off_or_too_long_is_refused(row: Versions, data: st.DataObject) -> None:
    whole = versioned.encode(row)
    with pytest.raises(ValueError, match="versions of a key"):
        versioned.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="torn"):
        versioned.decode(whole + b"x")


def test_an_empty_value_is_no_tombstone() -> None:
    row = Versions((2, 1), (b"", None))
    assert versioned.decode(versioned.encode(row)) == row


def test_a_row_of_another_format_is_refused_by_number() -> None:
    row = bytearray(versioned.encode(Versions((1,), (b"x",))))
    row[0] = 7
    with pytest.raises(ValueError, match="format 7, and this release reads format 1"):
        versioned.decode(bytes(row))
