"""Final results when an event adds several values, of times of their own, awaits between them, and may fail after.

The model has the engine's own algorithm, over windows in a dict. What is tried here is what lies between: rows that
an event at work has changed, checkpoints under way meanwhile, rows that are not in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_model import Model
from window_support import ms, shown

from agentic import App, Stream, Topic
from agentic.runtime.state import TaskState
from agentic.testing import TestDriver
from agentic.windows import WindowedTable

KEYS = ["a", "b", "a\0", ""]
#: Values: the first erases a window, the second makes the aggregate raise.
ERASES, RAISES = 0, 1
#: A timestamp behind all others, of an event that closes what is open.
END = 100_000

KINDS = ["tumbling", "hopping", "sliding", "session", "calendar"]
#: What a kind of windows is measured in, in ms.
SCALES = {"calendar": 3_600_000}

#: A key, a value, a timestamp; None: await.
Step = tuple[str, int, int] | None


class Program(NamedTuple):
    """What an event does."""

    steps: list[Step]
    fails: bool


def collect(total: list[int], value: int) -> list[int] | None:
    if value == RAISES:
        raise ValueError("as asked")
    # In place, as it should not be done: what is kept must not suffer from it.
    total.append(value)
    return None if value == ERASES else total


def declare(kind: str, table: Any, grace: int, kept: int) -> WindowedTable[Any, Any]:
    options: dict[str, Any] = {"grace": ms(grace)}
    if kept:
        options["retention"] = ms(20 + grace + kept)
    match kind:
        case "tumbling":
            windows = table.tumbling(ms(10), **options)
        case "hopping":
            windows = table.hopping(ms(10), every=ms(4), **options)
        case "sliding":
            windows = table.sliding(ms(10), **options)
        case "session":
            windows = table.session(ms(5), **options)
        case _:
            windows = table.calendar("day", grace=ms(grace * SCALES[kind]))
    made: WindowedTable[Any, Any] = windows.aggregate(list, collect, merge=lambda older, newer: [*older, *newer])
    return made


class Scene(NamedTuple):
    app: App
    source: Topic[Any, Any]
    finals: Topic[Any, Any]
    views: WindowedTable[Any, Any]


def build(kind: str, grace: int, kept: int) -> Scene:
    app = App("programs", topic_partitions=1, delivery="exactly_once", on_error="skip")
    source, finals = app.topic("in", key=str, value=Program), app.topic("finals", key=str, value=list)
    views = declare(kind, app.table("views", key=str, value=list[int]), grace, kept)

    @app.agent(source)
    async def add(stream: Stream[Program]) -> None:
        async for program in stream:
            for step in program.steps:
                if step is None:
                    await asyncio.sleep(1)
                else:
                    views.add(*step)
            if program.fails:
                raise ValueError("as asked")

    @app.agent(views.emit_final(), to=finals)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    return Scene(app, source, finals, views)


@st.composite
def histories(draw: st.DrawFn) -> list[Program]:
    """Draw programs about a time that moves on."""
    time, programs = 0, []
    steps = st.tuples(st.sampled_from(KEYS), st.integers(0, 5), st.sampled_from([0, 0, 1, 2, 5, -1, -3, -8, -15, -30]))
    for ahead in draw(st.lists(st.sampled_from([0, 1, 1, 3, 11, 40]), min_size=1, max_size=12)):
        time += ahead
        drawn = draw(st.lists(st.one_of(steps, steps, st.none()), max_size=5))
        program = [None if step is None else (step[0], step[1], max(0, time + step[2])) for step in drawn]
        programs.append(Program(program, draw(st.integers(0, 5)) == 0))
    return programs


def scaled(program: Program, scale: int) -> Program:
    return Program([step and (step[0], step[1], step[2] * scale) for step in program.steps], program.fails)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_finals_of_events_that_add_await_and_fail_are_those_of_the_model(kind: str, data: st.DataObject) -> None:
    scale = SCALES.get(kind, 1)
    given = [scaled(program, scale) for program in data.draw(histories())]
    given.append(Program([("z", 5, END * scale)], fails=False))
    grace, kept = data.draw(st.sampled_from([0, 3, 20])), data.draw(st.sampled_from([0, 0, 7, 100]))
    cache_bytes = data.draw(st.sampled_from([0, 1_000, 1 << 20]))
    after = data.draw(st.lists(st.sampled_from(["", "", "wait", "look", "crash"]), min_size=1, max_size=6))
    here = build(kind, grace, kept)
    with pytest.MonkeyPatch.context() as patch, TestDriver(here.app) as driver:
        # Less than the settings allow: the rows of a few keys are to be too many.
        patch.setattr(TaskState, "cache", lambda state, _: shrink(state, cache_bytes))
        driver.crash()
        for number, program in enumerate(given):
            driver.send(here.source, program, key=KEYS[number % 2])
            match after[number % len(after)]:
                case "wait":
                    driver.advance(3)
                case "look":
                    here.app.metrics.total("windows_open")
                case "crash":
                    driver.crash()
        driver.advance(100)
        came = [output.value for output in driver.outputs(here.finals)]
        model = Model(here.views)
        wanted = [model.event(filter(None, program.steps), fails=program.fails) for program in given]
        assert came == [window for windows in wanted for window in windows]
        if "crash" not in after:
            # What is counted is not undone by a crash, and counted again after it.
            assert driver.dropped.get("late", 0) == model.late


def shrink(state: TaskState, cache_bytes: int) -> None:
    for buffer in state.buffers.values():
        buffer.cache_bytes = cache_bytes


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "calendar"])
@pytest.mark.parametrize("first", [Program([("a", ERASES, 1)], fails=False), Program([("a", 5, 1)], fails=True)])
def test_a_window_comes_out_in_time_though_its_first_value_left_nothing(kind: str, first: Program) -> None:
    scale = SCALES.get(kind, 1) * 3
    here = build(kind, 0, 0)
    with TestDriver(here.app) as driver:
        # The second looks what is to come out next, while there is nothing.
        later = [Program([("b", ERASES, 1)], fails=False), Program([("b", 5, 2)], fails=False)]
        for program in [first, *later]:
            driver.send(here.source, scaled(program, scale), key="a")
        assert driver.outputs(here.finals) == []
        driver.send(here.source, scaled(Program([("c", 5, 10)], fails=False), scale), key="a")
        assert driver.outputs(here.finals)[0].value[:2] == ["b", 0]
