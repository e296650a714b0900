"""Dead letters that would go round are refused at start; what agents yield may."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.errors import ConfigurationError


async def work(stream: Stream[Any]) -> None:
    async for _ in stream:
        pass


async def passing(stream: Stream[Any]) -> Any:
    async for value in stream:
        yield value


def shop(**options: Any) -> tuple[App, Any, Any, Any]:
    app = App("shop", **options)
    return app, app.topic("a", key=str, value=dict), app.topic("b", key=str, value=dict), app.topic("c")


def refused(app: App, circle: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"dead letters go round: {circle}: an event")):
        app.check()


def test_two_agents_that_give_up_to_each_other_are_refused_by_name() -> None:
    app, a, b, c = shop()
    app.agent(a, dead_letter=b, name="first")(work)
    app.agent(c, b, dead_letter=a, name="second")(work)
    refused(app, "agent 'first' brings it from 'a' to 'b', agent 'second' brings it from 'b' to 'a'")


def test_of_a_longer_way_only_the_circle_is_named() -> None:
    app, a, b, c = shop()
    app.agent(a, dead_letter=b, name="first")(work)
    app.agent(b, dead_letter=c, name="second")(work)
    app.agent(c, dead_letter=b, name="third")(work)
    refused(app, "agent 'second' brings it from 'b' to 'c', agent 'third' brings it from 'c' to 'b'")


def test_a_circle_through_a_group_by_is_one() -> None:
    app, a, _, _ = shop()
    grouped = a.group_by(lambda value: str(value["user"]), key=str, name="by-user")
    app.agent(grouped, dead_letter=a, name="first")(work)
    name = grouped.topic.name
    refused(app, f"agent 'first' brings it from {name!r} to 'a', group_by brings it from 'a' to {name!r}")


def test_the_apps_own_dead_letter_topic_is_in_the_circle_of_agents_that_declare_none() -> None:
    app, _, _, c = shop(dead_letter="c")
    grouped = c.group_by(lambda value: str(value["user"]), key=str, name="by-user")
    app.agent(grouped, name="first")(work)
    name = grouped.topic.name
    refused(app, f"agent 'first' brings it from {name!r} to 'c', group_by brings it from 'c' to {name!r}")


def test_a_way_that_yields_lead_back_to_is_none() -> None:
    app, a, b, c = shop()
    app.agent(a, to=b, dead_letter=c, name="first")(passing)
    app.agent(b, dead_letter=a, name="second")(work)
    app.check()


def test_two_ways_to_one_end_are_no_circle() -> None:
    app, a, b, c = shop()
    app.agent(a, dead_letter=b, name="first")(work)
    app.agent(a, dead_letter=c, name="second")(work)
    app.agent(b, dead_letter=c, name="third")(work)
    app.check()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), max_size=8))
def test_what_is_refused_is_what_comes_back_to_where_it_was(pairs: list[tuple[int, int]]) -> None:
    app = App("shop")
    topics = [app.topic(f"topic-{n}") for n in range(6)]
    for n, (source, target) in enumerate(pairs):
        app.agent(topics[source], dead_letter=topics[target], name=f"agent-{n}")(work)
    reached = {n: {target for source, target in pairs if source == n} for n in range(6)}
    for _ in range(6):
        for known in reached.values():
            known |= {further for each in known for further in reached[each]}
    if any(n in known for n, known in reached.items()):
        with pytest.raises(ConfigurationError, match="dead letters go round"):
            app.check()
    else:
        app.check()
