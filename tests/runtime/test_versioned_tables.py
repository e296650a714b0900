"""Tables with versions: rows as of earlier times, kept by agents or filled by a topic. Source: spec, D.2."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.errors import AgentFailed, ConfigurationError
from agentic.table import Change, Table
from agentic.testing import TestDriver

HISTORY = 10
Update = tuple[str, str | None, int]

updates = st.lists(
    st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.sampled_from("xyz")), st.integers(0, 40)), max_size=12
)


class Model:
    """Nothing is ever forgotten; what lies behind the history is refused, and not looked at."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, str | None]] = {}
        self.observed = -1
        self.expired = 0

    def put(self, key: str, value: str | None, timestamp: int) -> None:
        if timestamp < self.observed - HISTORY:
            self.expired += 1
            return
        self.observed = max(self.observed, timestamp)
        self.rows.setdefault(key, {})[timestamp] = value

    def latest(self, key: str) -> str | None:
        versions = self.rows.get(key, {})
        return versions[max(versions)] if versions else None

    def at(self, key: str, timestamp: int) -> str | None:
        versions = self.rows.get(key, {})
        if timestamp < self.observed - HISTORY:
            return versions[max(versions)] if versions and max(versions) <= timestamp else None
        known = [each for each in versions if each <= timestamp]
        return versions[max(known)] if known else None


def app_of(fed: bool, **options: Any) -> tuple[App, Any, Any, Table[str, str], list[Any]]:
    app = App("history", topic_partitions=1, **options)
    names = app.topic("names", key=str, value=str)
    questions = app.topic("questions", key=str, value=int)
    history = timedelta(milliseconds=HISTORY)
    if fed:
        table = app.table("rows", source=names, versioned=history)
    else:
        table = app.table("rows", key=str, value=str, versioned=history)

        @app.agent(names)
        async def write(stream: Stream[Any]) -> None:
            async for value in stream:
                key = stream.event.key
                if value is not None:
                    table[key] = value
                elif key in table:
                    del table[key]
                else:
                    table._view()._put(key.encode(), None, stream.event)  # type: ignore[attr-defined]

    answers: list[Any] = []

    @app.agent(questions)
    async def answer(stream: Stream[int]) -> None:
        async for _ in stream:
            answers.append(
                [(table.get(key), *(table.at(key, when) for when in range(45))) for key in "ab"]
                + [sorted(table.items()), len(table)]
            )

    return app, names, questions, table, answers


@pytest.mark.parametrize("fed", [False, True], ids=["written", "fed"])
@pytest.mark.parametrize("crash", [False, True], ids=["running", "crashing"])
@settings(deadline=None, max_examples=25)
@given(updates)
def test_a_table_with_versions_is_what_a_sorted_list_says(fed: bool, crash: bool, given: list[Update]) -> None:
    app, names, questions, _, answers = app_of(fed)
    model = Model()
    with TestDriver(app) as driver:
        for key, value, timestamp in given:
            model.put(key, value, timestamp)
            driver.send(names, value, key=key, timestamp=timestamp)
            if crash:
                driver.crash()
        driver.send(questions, 1, key="a", timestamp=1_000)
        now = {key: model.latest(key) for key in "ab"}
        rows = sorted((key, value) for key, value in now.items() if value is not None)
        assert answers[-1] == [
            *((now[key], *(model.at(key, when) for when in range(45))) for key in "ab"),
            rows,
            len(rows),
        ]
        assert driver.dropped == ({"expired": model.expired} if model.expired else {})


def test_an_update_older_than_the_history_is_dropped_and_counted() -> None:
    app, names, _, table, _ = app_of(fed=True)
    with TestDriver(app) as driver:
        driver.send(names, "new", key="a", timestamp=100)
        driver.send(names, "at the edge", key="b", timestamp=90)
        driver.send(names, "too old", key="b", timestamp=89)
        assert driver.table(table) == {"a": "new", "b": "at the edge"}
        assert driver.dropped == {"expired": 1}


def test_a_version_out_of_order_changes_the_past_only() -> None:
    app = App("past", topic_partitions=1)
    names = app.topic("names", key=str, value=str)
    rows = app.table("rows", source=names, versioned=timedelta(seconds=1))
    seen: list[Change] = []

    @app.agent(rows.changes())
    async def report(changes: Stream[Change]) -> None:
        async for change in changes:
            seen.append(change)

    with TestDriver(app) as driver:
        for value, timestamp in [("one", 10), ("zero", 5), ("two", 20)]:
            driver.send(names, value, key="a", timestamp=timestamp)
        assert seen == [("a", None, "one"), ("a", "one", "two")]


def test_a_table_without_versions_knows_no_earlier_time() -> None:
    app = App("plain", topic_partitions=1)
    names = app.topic("names", key=str, value=str)
    rows = app.table("rows", source=names)

    @app.agent(names)
    async def ask(stream: Stream[str]) -> None:
        async for _ in stream:
            rows.at("a", 5)

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match=r"keeps no history; declare it: .*versioned="):
        driver.send(names, "x", key="a")


def test_a_time_to_live_and_versions_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="ttl= and versioned= exclude each other"):
        App("both").table("rows", ttl=timedelta(1), versioned=timedelta(1))


@pytest.mark.parametrize("how", ["del", "pop"])
def test_a_late_event_deletes_what_the_key_had_at_its_time_though_it_was_deleted_since(how: str) -> None:
    app = App("past", topic_partitions=1)
    names = app.topic("names", key=str, value=str)
    rows = app.table("rows", key=str, value=str, versioned=timedelta(seconds=1))
    seen: list[Any] = []

    @app.agent(names)
    async def keep(stream: Stream[Any]) -> None:
        async for value in stream:
            key = stream.event.key
            if value == "show":
                seen.append([rows.at(key, when) for when in (9, 10, 14, 15, 19, 20)])
            elif value is not None:
                rows[key] = value
            elif how == "del":
                del rows[key]
            else:
                rows.pop(key, None)

    with TestDriver(app) as driver:
        for value, timestamp in [("one", 10), (None, 20), (None, 15), ("show", 30)]:
            driver.send(names, value, key="a", timestamp=timestamp)
    assert seen == [[None, "one", "one", None, None, None]]


def test_a_late_deletion_of_what_was_never_there_is_a_key_error() -> None:
    app = App("past", topic_partitions=1)
    names = app.topic("names", key=str, value=str)
    rows = app.table("rows", key=str, value=str, versioned=timedelta(seconds=1))

    @app.agent(names)
    async def keep(stream: Stream[Any]) -> None:
        async for value in stream:
            if value is None:
                del rows[stream.event.key]
            else:
                rows[stream.event.key] = value

    with pytest.raises(AgentFailed, match="KeyError: 'a'"), TestDriver(app) as driver:
        for value, timestamp in [("one", 10), (None, 20), (None, 9)]:
            driver.send(names, value, key="a", timestamp=timestamp)
