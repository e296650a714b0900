"""Numbers for which there is no JSON: refused wherever a float is declared."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from agentic import App, Stream, codecs
from agentic.codecs import value_codec
from agentic.errors import AgentFailed, CodecError
from agentic.testing import TestDriver


class Reading(msgspec.Struct):
    celsius: float
    note: str | None = None


class Series(msgspec.Struct):
    readings: list[Reading]
    next: Series | None = None


class Bare(msgspec.Struct, array_like=True, tag=True):
    celsius: float | None


class Other(msgspec.Struct, array_like=True, tag=True):
    note: str | None


@dataclasses.dataclass
class Row:
    celsius: float
    note: str | None = None


class Pair(NamedTuple):
    note: str | None
    celsius: float


class Named(TypedDict):
    celsius: float


class Model(pydantic.BaseModel):
    celsius: float
    note: str | None = None


class Models(pydantic.BaseModel):
    by_name: dict[str, tuple[Model, ...]]


def made(number: float) -> list[tuple[Any, Any]]:
    """A value of each kind of type, with a number somewhere in it."""
    return [
        (float, number),
        (float | None, number),
        (list[float], [1.0, number]),
        (dict[str, float], {"a": number}),
        (tuple[str, float], ("a", number)),
        (Reading, Reading(number)),
        (Series, Series([], Series([Reading(1.0), Reading(number)]))),
        (Bare | Other, Bare(number)),
        (Row, Row(number)),
        (Pair, Pair(None, number)),
        (Named, {"celsius": number}),
        (Model, Model(celsius=number)),
        (Models, Models(by_name={"a": (Model(celsius=1), Model(celsius=number))})),
    ]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", range(len(made(0))))
def test_a_number_without_json_is_refused_where_a_float_is_declared(at: int, number: float) -> None:
    declared, value = made(number)[at]
    with pytest.raises(CodecError, match=f"value: .* it has {number}, for which there is no JSON"):
        codecs.encode(value_codec(declared), value, "value")


@pytest.mark.parametrize("at", range(len(made(0))))
def test_any_other_number_comes_back_and_so_does_a_null_beside_it(at: int) -> None:
    declared, value = made(1.5)[at]
    codec = value_codec(declared)
    assert codec.decode(codec.encode(value)) == value


def test_a_text_that_says_null_is_no_number() -> None:
    codec = value_codec(Reading)
    assert codec.decode(codec.encode(Reading(1.0, "null and nan"))) == Reading(1.0, "null and nan")


def test_a_table_refuses_it_at_the_assignment() -> None:
    app = App("weather", topic_partitions=1)
    ticks = app.topic("ticks", key=str, value=int)
    last = app.table("last", key=str, value=Reading)

    @app.agent(ticks)
    async def keep(stream: Stream[int]) -> None:
        async for _ in stream:
            last[stream.event.key] = Reading(math.nan)

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match=r"value of table 'last': .* it has nan"):
        driver.send(ticks, 1, key="oven")
