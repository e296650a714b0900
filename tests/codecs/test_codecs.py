"""Codecs: what goes in comes out, of the declared type, and what does not fit is refused in words."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import codecs
from agentic.codecs import Codec, explain, key_codec, value_codec
from agentic.errors import CodecError, ConfigurationError


class Click(msgspec.Struct, frozen=True):
    page: str
    ms: int


class Longer(Click, frozen=True):
    extra: str = ""


@dataclass
class Point:
    x: int
    at: datetime


class Row(TypedDict):
    name: str
    price: Decimal


@attrs.define
class Pair:
    left: int
    right: int


class Named(NamedTuple):
    a: int
    b: str


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    name: str
    n: int


BIG = 2**200 + 1
NOON = datetime(2013, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (None, {"a": [1, 2.5, None, True, "é"], "big": BIG}),
    (None, [1]),
    (None, "text"),
    (None, 7),
    (bytes, b"\x00\xff"),
    (bytes, b""),
    (str, "naïve ☃"),
    (str, ""),
    (int, BIG),
    (int, -BIG),
    (float, 0.1),
    (bool, True),
    (dict, {"n": BIG}),
    (list, [{"n": -BIG}, "x"]),
    (dict[str, int], {"n": BIG}),
    (list[Click], [Click("/", 1)]),
    (Click, Click("/", BIG)),
    (Point, Point(1, NOON)),
    (Row, {"name": "tea", "price": Decimal("0.10000000000000000000001")}),
    (Pair, Pair(1, 2)),
    (Named, Named(1, "b")),
    (Colour, Colour.RED),
    (Decimal, Decimal("1e-30")),
    (datetime, NOON),
    (datetime, datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=-5)))),
    (date, date(2013, 1, 1)),
    (UUID, UUID(int=5)),
    (timedelta, timedelta(days=1, milliseconds=3)),
    (Click | None, Click("/", 1)),
    (int | str, "x"),
    (Literal["a", "b"], "b"),
    (set[int], {1, 2}),
    (Model, Model(name="a", n=1)),
]


@pytest.mark.parametrize("get", [key_codec, value_codec])
@pytest.mark.parametrize(("declared", "value"), ROUND_TRIPS)
def test_a_value_comes_back_as_it_was(get: Any, declared: Any, value: Any) -> None:
    if declared is None and get is key_codec:
        value = b"\xff"
    codec = get(declared)
    data = codec.encode(value)
    assert type(data) is bytes
    decoded = codec.decode(data)
    assert decoded == value
    assert type(decoded) is type(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    codec = value_codec(None)
    assert codec.decode(codec.encode(value)) == value


@given(st.dictionaries(st.text(), json_values))
def test_any_dict_comes_back_as_it_was(value: dict[str, Any]) -> None:
    codec = value_codec(dict)
    assert codec.decode(codec.encode(value)) == value


@given(st.binary())
def test_bytes_that_are_no_value_are_a_value_error_or_decode(data: bytes) -> None:
    for declared in (None, str, int, dict, Click, Model, datetime):
        codec = value_codec(declared)
        try:
            codec.decode(data)
        except ValueError as error:
            message = str(explain(codec, data, error))
            assert message.startswith("not ")


WRONG: list[tuple[Any, Any]] = [
    (bytes, "text"),
    (bytes, bytearray(b"x")),
    (str, b"bytes"),
    (str, 1),
    (int, "1"),
    (int, True),
    (int, 1.0),
    (int | None, True),
    (float, "1.0"),
    (float, True),
    (bool, 1),
    (dict, [1]),
    (list, {"a": 1}),
    (list, (1,)),
    (dict[str, int], {"a": "x"}),
    (Click, Point(1, NOON)),
    (Click, {"page": "/", "ms": 1}),
    (Point, Click("/", 1)),
    (Row, {"name": "tea"}),
    (Pair, Named(1, "b")),
    (Colour, "blue"),
    (datetime, "2013-01-01T12:00:00Z"),
    (Decimal, 1.0),
    (Model, {"name": "a", "n": 1}),
    (dict, {"a": object()}),
    (None, object()),
]


@pytest.mark.parametrize(("declared", "value"), WRONG)
def test_a_value_of_another_type_is_refused_with_both_types(declared: Any, value: Any) -> None:
    with pytest.raises(CodecError) as caught:
        codecs.encode(value_codec(declared), value, "value of topic 'clicks'")
    message = str(caught.value)
    wanted = "JSON" if declared is None else declared.__name__ if isinstance(declared, type) else str(declared)
    assert message.startswith("value of topic 'clicks': ")
    assert f"is a {type(value).__name__}, wanted {wanted}" in message


def test_a_subclass_is_taken_for_its_base() -> None:
    assert value_codec(Click).encode(Longer("/", 1, "x")) == b'{"page":"/","ms":1,"extra":"x"}'


def test_an_int_is_taken_for_a_float() -> None:
    codec = value_codec(float)
    assert codec.decode(codec.encode(3)) == 3.0


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for declared in (None, list):
        with pytest.raises(CodecError, match="contains itself"):
            codecs.encode(value_codec(declared), loop, "value")


@pytest.mark.parametrize("declared", [None, dict])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_written_as_null(declared: Any, number: float) -> None:
    assert value_codec(declared).encode({"x": number}) == b'{"x":null}'


def test_keys_of_a_dict_that_are_no_text_become_text() -> None:
    assert value_codec(dict).encode({1: "a"}) == b'{"1":"a"}'


def test_the_explanation_names_type_path_and_bytes() -> None:
    codec = value_codec(Click)
    data = b'{"page": "/", "ms": "soon"}'
    with pytest.raises(ValueError) as caught:
        codec.decode(data)
    message = str(explain(codec, data, caught.value))
    assert message.startswith("not Click: ")
    assert "$.ms" in message
    assert "soon" in message


def test_the_explanation_shows_only_the_beginning_of_long_bytes() -> None:
    codec = value_codec(int)
    data = b"x" * 10_000
    with pytest.raises(ValueError) as caught:
        codec.decode(data)
    assert len(str(explain(codec, data, caught.value))) < 300


def test_text_that_is_no_utf8_is_explained() -> None:
    codec = value_codec(str)
    with pytest.raises(ValueError) as caught:
        codec.decode(b"\xff")
    assert "not str" in str(explain(codec, b"\xff", caught.value))


class Reversed:
    """A codec as a user writes one."""

    def decode(self, data: bytes, /) -> str:
        return data.decode()[::-1]

    def encode(self, value: str, /) -> bytes:
        return value[::-1].encode()


def test_a_codec_object_is_taken_as_it_is() -> None:
    codec = Reversed()
    assert isinstance(codec, Codec)
    assert value_codec(codec) is codec
    assert key_codec(codec) is codec


@pytest.mark.parametrize("declared", [object(), 5, "Click", [1]])
def test_what_is_no_type_is_refused_when_it_is_declared(declared: Any) -> None:
    with pytest.raises(ConfigurationError, match="no codec for"):
        value_codec(declared)


def test_a_type_that_nobody_can_decode_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match="codec="):
        value_codec(int | Click | Point | dict)


def test_the_hot_path_calls_straight_into_c() -> None:
    for declared in (None, dict, int, Click, str):
        assert not hasattr(value_codec(declared).decode, "__code__")


def test_importing_agentic_imports_no_pydantic_and_no_loop() -> None:
    heavy = ("pydantic", "asyncio", "confluent_kafka", "lmdb", "click", "rich")
    program = f"import sys, agentic; print([name for name in {heavy!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


class Plain:
    """A class of which nothing says how it is written."""


@dataclass
class Holder:
    plain: Plain


@dataclass
class MayHold:
    plain: Plain | None = None
    n: int = 0


class Tree(msgspec.Struct):
    left: Tree | None
    n: int


@pytest.mark.parametrize("declared", [Plain, list[Plain], dict[str, Plain], Plain | None, tuple[int, Plain], Holder])
def test_a_class_that_no_record_could_ever_be_decoded_to_is_refused_at_its_declaration(declared: Any) -> None:
    with pytest.raises(ConfigurationError, match="nothing says how a Plain is written as JSON"):
        value_codec(declared)


def test_a_foreign_class_in_a_field_with_a_default_and_a_type_that_holds_itself_are_taken() -> None:
    assert value_codec(MayHold).decode(b'{"n": 1}') == MayHold(None, 1)
    assert value_codec(Tree).decode(b'{"left": {"left": null, "n": 1}, "n": 2}').left.n == 1
