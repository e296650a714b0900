"""What every store promises, in memory or on disk."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_support import keys

from agentic.state.base import Store


def fill(store: Store, *keys: bytes, table: str = "t") -> None:
    store.write({table: [(key, b"value of " + key) for key in sorted(keys)]}, {})


def scanned(store: Store, start: bytes = b"", stop: bytes | None = None, reverse: bool = False) -> list[bytes]:
    return [key for key, _ in store.scan("t", start, stop, reverse=reverse)]


def test_a_row_is_there_after_it_was_written_and_until_it_is_deleted(store: Store) -> None:
    assert store.get("t", b"a") is None
    store.write({"t": [(b"a", b"1")]}, {})
    assert store.get("t", b"a") == b"1"
    store.write({"t": [(b"a", b"2")]}, {})
    assert store.get("t", b"a") == b"2"
    store.write({"t": [(b"a", None)]}, {})
    assert store.get("t", b"a") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(there=st.lists(keys, max_size=8), asked=st.lists(keys, max_size=8), data=st.data())
def test_many_rows_are_got_as_one_by_one(
    store: Store, there: list[bytes], asked: list[bytes], data: st.DataObject
) -> None:
    store.clear("t")
    fill(store, *{key for key in there if key})
    asked = data.draw(st.permutations([key for key in there + asked if key]))
    assert store.get_many("t", asked) == [store.get("t", key) for key in asked]
    assert store.get_many("x", asked) == [None] * len(asked)


def test_deleting_a_row_that_is_not_there_changes_nothing(store: Store) -> None:
    fill(store, b"a")
    store.write({"t": [(b"b", None)]}, {"m": None})
    assert scanned(store) == [b"a"]


def test_tables_have_rows_of_their_own(store: Store) -> None:
    store.write({"t": [(b"a", b"of t")], "u": [(b"a", b"of u")]}, {})
    store.clear("t")
    assert store.get("t", b"a") is None
    assert store.get("u", b"a") == b"of u"


def test_a_table_that_nobody_declared_has_no_rows(store: Store) -> None:
    assert store.get("x", b"a") is None
    assert list(store.scan("x")) == []
    assert store.count("x") == 0
    store.clear("x")


def test_an_empty_value_is_a_value(store: Store) -> None:
    store.write({"t": [(b"a", b"")]}, {"m": b""})
    assert store.get("t", b"a") == b""
    assert store.mark("m") == b""
    assert list(store.scan("t")) == [(b"a", b"")]


def test_marks_change_with_the_rows_and_none_removes_them(store: Store) -> None:
    store.write({}, {"a": b"1", "b": b"2"})
    store.write({"t": [(b"k", b"v")]}, {"a": None, "c": b"3"})
    assert store.marks() == {"b": b"2", "c": b"3"}
    assert store.mark("a") is None
    assert store.mark("c") == b"3"


def test_rows_that_end_in_an_error_change_nothing(store: Store) -> None:
    def rows() -> object:
        yield b"a", b"new"
        raise RuntimeError("no more rows")

    fill(store, b"a")
    with pytest.raises(RuntimeError):
        store.write({"u": [(b"b", b"1")], "t": rows()}, {"m": b"1"})  # type: ignore[dict-item]
    assert store.get("t", b"a") == b"value of a"
    assert store.get("u", b"b") is None
    assert store.marks() == {}


def test_a_scan_is_from_start_up_to_and_without_stop(store: Store) -> None:
    fill(store, b"a", b"b", b"c", b"d")
    assert scanned(store, b"b", b"d") == [b"b", b"c"]
    assert scanned(store, b"b", b"d", reverse=True) == [b"c", b"b"]
    assert scanned(store, b"aa", b"cc") == [b"b", b"c"]
    assert scanned(store, b"c") == [b"c", b"d"]
    assert scanned(store, b"d", b"b") == []
    assert scanned(store, b"", b"") == []


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_reads_on_where_its_chunks_end(store: Store, reverse: bool) -> None:
    numbers = [b"%06d" % number for number in range(5_000)]
    fill(store, *numbers)
    assert scanned(store, reverse=reverse) == (numbers[::-1] if reverse else numbers)
    assert scanned(store, b"000017", b"004321", reverse=reverse) == (
        numbers[17:4321][::-1] if reverse else numbers[17:4321]
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_large_values_are_scanned_whole(store: Store, reverse: bool) -> None:
    rows = [(b"%d" % number, bytes([number]) * 1_500_000) for number in range(6)]
    store.write({"t": rows}, {})
    assert list(store.scan("t", reverse=reverse)) == (rows[::-1] if reverse else rows)


def test_a_scan_does_not_see_what_is_written_after_it_began(store: Store) -> None:
    numbers = [b"%04d" % number for number in range(3_000)]
    fill(store, *numbers)
    rows = store.scan("t")
    assert next(rows) == (b"0000", b"value of 0000")
    store.write({"t": [(b"0001", None), (b"2500", b"new"), (b"2500a", b"new")]}, {})
    assert store.get("t", b"2500") == b"new"
    assert list(rows) == [(number, b"value of " + number) for number in numbers[1:]]


def test_scans_of_several_ages_each_see_their_own_rows(store: Store) -> None:
    scans = []
    for number in range(5):
        store.write({"t": [(b"k%d" % at, b"%d" % number) for at in range(100)]}, {})
        scan = store.scan("t")
        next(scan)
        scans.append(scan)
    assert [{value for _, value in scan} for scan in scans] == [{b"%d" % number} for number in range(5)]


def test_a_scan_that_is_given_up_leaves_the_store_usable(store: Store) -> None:
    fill(store, b"a", b"b")
    scan = store.scan("t")
    next(scan)
    scan.close()  # type: ignore[attr-defined]
    fill(store, b"c")
    assert scanned(store) == [b"a", b"b", b"c"]


def test_a_long_key_that_others_begin_with_stands_where_it_belongs(store: Store) -> None:
    stem = b"k" * 600
    long = [stem + bytes([number, other]) for number in range(20) for other in (7, 3)]
    fill(store, stem, stem[:495], stem[:496], b"j", b"l", *long)
    wanted = sorted([stem, stem[:495], stem[:496], b"j", b"l", *long])
    assert scanned(store) == wanted
    assert scanned(store, reverse=True) == wanted[::-1]
    assert scanned(store, long[5], long[9]) == [key for key in wanted if long[5] <= key < long[9]]
    assert [store.get("t", key) for key in wanted] == [b"value of " + key for key in wanted]
    store.write({"t": [(key, None) for key in sorted(long)]}, {})
    assert scanned(store, b"k", b"l") == [stem[:495], stem[:496], stem]


def test_keys_of_64_kib_and_values_of_20_mib_are_kept(store: Store) -> None:
    key, value = b"k" * (64 << 10), b"v" * (20 << 20)
    store.write({"t": [(key, value)]}, {})
    assert store.get("t", key) == value
    assert list(store.scan("t")) == [(key, value)]


def test_a_cleared_table_is_empty_and_can_be_filled_again(store: Store) -> None:
    fill(store, b"", b"a", b"b" * 1000)
    store.clear("t")
    assert store.count("t") == 0
    assert scanned(store) == []
    fill(store, b"c")
    assert scanned(store) == [b"c"]


def test_a_store_can_be_closed_twice(store: Store) -> None:
    store.close()
    store.close()


@given(
    st.lists(st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=3)), max_size=8), max_size=4),
    st.lists(st.tuples(keys, st.one_of(st.none(), keys), st.booleans()), max_size=4),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_are_as_a_sorted_dict_has_them(
    store: Store,
    writes: list[dict[bytes, bytes | None]],
    ranges: list[tuple[bytes, bytes | None, bool]],
) -> None:
    store.clear("t")
    model: dict[bytes, bytes] = {}
    for rows in writes:
        store.write({"t": sorted(rows.items())}, {})
        model.update({key: value for key, value in rows.items() if value is not None})
        for key in [key for key, value in rows.items() if value is None]:
            model.pop(key, None)
    assert store.count("t") == len(model)
    for key in [*model, *(start for start, _, _ in ranges)]:
        assert store.get("t", key) == model.get(key)
    for start, stop, reverse in [(b"", None, False), *ranges]:
        wanted = [row for row in sorted(model.items()) if row[0] >= start and (stop is None or row[0] < stop)]
        assert list(store.scan("t", start, stop, reverse=reverse)) == (wanted[::-1] if reverse else wanted)
