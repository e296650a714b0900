"""Stored keys sort as the keys do, and become the same keys and the same bytes on the wire again."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.codecs import key_codec
from agentic.errors import CodecError
from agentic.state import keys
from agentic.state.keys import KeyFormat, key_format

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
#: Bytes in which what marks an end occurs often.
BYTES = st.lists(st.sampled_from([0, 1, 97, 254, 255]), max_size=6).map(bytes)
INTS = st.one_of(
    st.integers(),
    st.integers(-(1 << 1100), 1 << 1100),
    st.builds(
        lambda sign, size, more: sign * ((1 << size) + more),
        st.sampled_from([-1, 1]),
        st.integers(0, 1100),
        st.integers(-1, 1),
    ),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
FURTHEST = timedelta(hours=23, minutes=59)
EDGES = st.sampled_from([datetime.min, datetime.max]).flatmap(
    lambda edge: st.sampled_from([timezone(FURTHEST), timezone(-FURTHEST), UTC]).map(
        lambda zone: edge.replace(tzinfo=zone)
    )
)
AWARE = st.datetimes(timezones=st.sampled_from([UTC, timezone(FURTHEST), timezone(-FURTHEST)])) | EDGES

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "nothing declared": (None, BYTES),
    "str": (str, TEXT),
    "bytes": (bytes, BYTES),
    "int": (int, INTS),
    "float": (float, FLOATS),
    "bool": (bool, st.booleans()),
    "naive datetime": (datetime, st.datetimes()),
    "aware datetime": (datetime, AWARE),
    "date": (date, st.dates()),
    "uuid": (uuid.UUID, st.uuids()),
    "pair": (tuple[str, int], st.tuples(TEXT, INTS)),
    "nested": (tuple[int, tuple[float, str], bool], st.tuples(INTS, st.tuples(FLOATS, TEXT), st.booleans())),
    "many": (tuple[str, ...], st.lists(TEXT, max_size=4).map(tuple)),
    "many of pairs": (
        tuple[tuple[int, str], ...],
        st.lists(st.tuples(st.integers(-2, 2), TEXT), max_size=3).map(tuple),
    ),
    "no parts": (tuple[()], st.just(())),
}


def made(declared: Any) -> KeyFormat:
    return key_format(declared, key_codec(declared))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_stored_keys_sort_as_the_keys_do(kind: str, data: st.DataObject) -> None:
    declared, strategy = KINDS[kind]
    form = made(declared)
    one, other = data.draw(strategy), data.draw(strategy)
    assert (form.encode(one) < form.encode(other)) == (one < other)
    assert (form.encode(one) == form.encode(other)) == (one == other)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_key_comes_back_from_the_store_and_from_the_wire(kind: str, data: st.DataObject) -> None:
    declared, strategy = KINDS[kind]
    form, codec = made(declared), key_codec(declared)
    key = data.draw(strategy)
    stored, wire = form.encode(key), codec.encode(key)
    assert form.decode(stored) == key
    assert type(form.decode(stored)) is type(key)
    assert form.from_wire(wire) == stored
    assert codec.decode(form.to_wire(stored)) == key


@pytest.mark.parametrize("kind", ["nothing declared", "str", "bytes", "int", "bool", "date", "uuid", "pair", "many"])
@given(data=st.data())
def test_the_wire_has_what_the_codec_makes_of_the_key(kind: str, data: st.DataObject) -> None:
    declared, strategy = KINDS[kind]
    key = data.draw(strategy)
    form = made(declared)
    assert form.to_wire(form.encode(key)) == key_codec(declared).encode(key)


@pytest.mark.parametrize("declared", [None, str, bytes])
def test_text_and_bytes_are_stored_as_they_are_on_the_wire(declared: Any) -> None:
    assert made(declared).identity


def test_what_has_no_order_of_its_own_is_stored_as_its_codec_writes_it() -> None:
    class Place(msgspec.Struct, frozen=True):
        city: str

    form = made(Place)
    assert form.identity
    assert form.encode(Place("Ulm")) == b'{"city":"Ulm"}'
    assert form.decode(b'{"city":"Ulm"}') == Place("Ulm")
    assert made(dict).identity
    assert made(tuple[str, Place]).identity


def test_zero_is_one_key_whatever_its_sign() -> None:
    assert made(float).encode(-0.0) == made(float).encode(0.0)
    assert math.copysign(1, made(float).decode(made(float).encode(-0.0))) == 1


def test_the_same_moment_is_one_key_whatever_its_zone() -> None:
    moment = datetime(2024, 3, 1, 12, tzinfo=UTC)
    there = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert made(datetime).encode(there) == made(datetime).encode(moment)


def test_a_moment_that_no_zone_of_json_can_be_written_in_is_refused() -> None:
    with pytest.raises(CodecError, match="in whole minutes"):
        made(datetime).encode(datetime.min.replace(tzinfo=timezone(FURTHEST + timedelta(seconds=59))))


def test_a_subclass_of_a_part_is_a_key_too() -> None:
    class Name(str):
        pass

    class Pair(tuple[str, int]):
        pass

    form = made(tuple[str, int])
    assert form.encode(Pair((Name("a"), 1))) == form.encode(("a", 1))


@pytest.mark.parametrize(
    ("declared", "key", "got", "wanted"),
    [
        (str, 1, "int", "str"),
        (str, b"a", "bytes", "str"),
        (str, "\ud800", "str", "str"),
        (bytes, "a", "str", "bytes"),
        (None, "a", "str", "bytes"),
        (int, "1", "str", "int"),
        (int, 1.0, "float", "int"),
        (int, True, "bool", "int"),
        (int, None, "NoneType", "int"),
        (float, "1", "str", "float"),
        (float, True, "bool", "float"),
        (float, math.nan, "float", "float"),
        (float, math.inf, "float", "float"),
        (float, 10**400, "int", "float"),
        (bool, 1, "int", "bool"),
        (datetime, date(2024, 1, 1), "date", "datetime"),
        (date, datetime(2024, 1, 1), "datetime", "date"),
        (uuid.UUID, "a", "str", "UUID"),
        (tuple[str, int], ("a", "b"), "tuple", "tuple[str, int]"),
        (tuple[str, int], ("a",), "tuple", "tuple[str, int]"),
        (tuple[str, int], ["a", 1], "list", "tuple[str, int]"),
        (tuple[str, ...], ("a", 1), "tuple", "tuple[str, ...]"),
        (tuple[str, int], ("\ud800", 1), "tuple", "tuple[str, int]"),
    ],
)
def test_a_key_of_another_type_is_refused_by_name(declared: Any, key: Any, got: str, wanted: str) -> None:
    with pytest.raises(CodecError) as caught:
        made(declared).encode(key)
    message = str(caught.value)
    assert f"is a {got}, wanted {wanted}" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "declared", [str, int, float, bool, datetime, date, uuid.UUID, tuple[str, int], tuple[int, ...]]
)
@given(stored=st.binary(max_size=12))
def test_bytes_that_are_no_key_are_refused_in_words_or_are_a_key(declared: Any, stored: bytes) -> None:
    form = made(declared)
    try:
        key = form.decode(stored)
    except CodecError as error:
        assert "not " in str(error)
    else:
        assert isinstance(
            key, tuple if declared not in (str, int, float, bool, datetime, date, uuid.UUID) else declared
        )


@pytest.mark.parametrize("declared", [int, tuple[str, int], uuid.UUID])
def test_wire_bytes_that_are_no_key_are_refused_in_words(declared: Any) -> None:
    with pytest.raises(CodecError, match="bytes begin"):
        made(declared).from_wire(b"{nonsense")


@given(st.tuples(BYTES, st.integers(0, 9)), st.tuples(BYTES, st.integers(0, 9)))
def test_composites_sort_by_key_and_then_by_suffix(one: tuple[bytes, int], other: tuple[bytes, int]) -> None:
    first, second = (keys.composite(key, bytes([suffix])) for key, suffix in (one, other))
    assert (first < second) == (one < other)
    assert keys.split(first) == (one[0], bytes([one[1]]))
    assert first.startswith(keys.composite_prefix(other[0])) == (one[0] == other[0])


def test_what_is_no_composite_is_refused() -> None:
    with pytest.raises(ValueError):
        keys.split(b"abc")


@given(BYTES, BYTES)
def test_the_end_of_a_prefix_parts_what_begins_with_it_from_what_comes_after(prefix: bytes, key: bytes) -> None:
    end = keys.prefix_end(prefix)
    inside = prefix <= key and (end is None or key < end)
    assert inside == key.startswith(prefix)
