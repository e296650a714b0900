"""Windows of a key that are found by those beside them: sliding windows and sessions."""

from __future__ import annotations

from typing import Any

import pytest
from window_support import ms, scene

from agentic.stream import Event
from agentic.testing import TestDriver
from agentic.windows import WindowedTable


@pytest.mark.parametrize("crashes", [False, True])
def test_a_session_that_has_grown_over_one_that_is_closed_goes_on(crashes: bool) -> None:
    here = scene(lambda table: table.session(ms(20), retention=ms(1000)).count())
    with TestDriver(here.app) as driver:
        # The one at 54 is closed by 93; those behind come late, and each is in reach of what is still open.
        for step in ["a 1@54", "a 1@93", "a 1@74", "a 1@65", "a 1@48", "a 1@80", "b 1@500"]:
            here.send(driver, step)
            if crashes:
                driver.crash()
        assert here.came(driver, here.finals) == [["a", 54, 54, 1, 54], ["a", 48, 93, 5, 93]]


@pytest.mark.parametrize("kind", ["sliding", "session"])
def test_windows_are_not_to_be_read_when_their_time_is_over_though_no_value_of_their_key_has_come(kind: str) -> None:
    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add(event.key, event.value)
        read.append([(w.start, w.end) for w in views["a"]])
        assert read[-1] == [(w.start, w.end) for w in reversed(views.all()) if w.key == "a"]

    read: list[list[tuple[int, int]]] = []
    here = scene(
        lambda table: (table.sliding(ms(10)) if kind == "sliding" else table.session(ms(10))).count(),
        add,
        updates=False,
    )
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@100", "b 1@110", "b 1@112", "b 1@132", "b 1@133")
    # What an event has closed is there until it is over.
    assert (
        read
        == {
            "sliding": [[(90, 100)]] * 4 + [[]],
            "session": [[(100, 100)]] * 3 + [[], []],
        }[kind]
    )
