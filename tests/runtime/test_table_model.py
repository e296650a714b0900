"""A table against a plain dict: random writes, deletes, failures, crashes, and rows that expire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.table import Table
from agentic.testing import TestDriver

TTL = 10
KEYS = ["", "a", "ab", "b", "k" * 600, "k" * 599 + "l"]

operations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(-5, 2**70)),
        st.tuples(st.just("add"), st.sampled_from(KEYS), st.integers(1, 9)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just(0)),
        st.tuples(st.just("fail"), st.sampled_from(KEYS), st.integers(1, 9)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 15)),
        st.tuples(st.just("crash"), st.just(""), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("ttl", [None, timedelta(milliseconds=TTL)], ids=["lasting", "expiring"])
@settings(deadline=None, max_examples=40)
@given(given=operations)
def test_a_table_is_what_a_dict_would_be(
    delivery: str, ttl: timedelta | None, given: list[tuple[str, str, int]]
) -> None:
    app = App("model", topic_partitions=1, delivery=delivery, on_error="skip")
    calls = app.topic("calls", key=str, value=list)
    rows: Table[str, int] = app.table("rows", key=str, value=int, default=int, ttl=ttl, check_keys=False)
    seen: list[Any] = []

    @app.agent(calls)
    async def act(stream: Stream[list[Any]]) -> None:
        async for what, key, n in stream:
            if what == "set":
                rows[key] = n
            elif what == "delete":
                rows.pop(key, None)
            else:
                rows[key] += n
            if what == "fail":
                rows["never"] = 1
                raise ValueError("as asked")
            seen.append((list(rows.items()), len(rows), list(reversed(rows)), list(rows.prefix("a")), rows.get("b")))

    now = 0
    model: dict[str, tuple[int, int]] = {}
    with TestDriver(app) as driver:
        for what, key, n in given:
            if what == "wait":
                now += n
                continue
            if what == "crash":
                driver.crash()
                continue
            driver.send(calls, [what, key, n], key=key, timestamp=now)
            if ttl is not None:
                model = {k: row for k, row in model.items() if row[1] + TTL > now}
            if what == "fail":
                continue
            if what == "delete":
                model.pop(key, None)
            else:
                model[key] = (n if what == "set" else model.get(key, (0, 0))[0] + n, now)
            items = [(k, model[k][0]) for k in sorted(model)]
            assert seen[-1] == (
                items,
                len(items),
                [k for k, _ in reversed(items)],
                [(k, v) for k, v in items if k.startswith("a")],
                model.get("b", (None, 0))[0],
            )
