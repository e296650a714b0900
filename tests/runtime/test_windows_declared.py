"""What is wrong with the declaration of a window is said there: table, option, value, way out, on one line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from window_support import ms

from agentic import App, Stream
from agentic.errors import ConfigurationError

US = timedelta(microseconds=1)


async def later(*values: Any) -> Any: ...


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda t: t.tumbling(10), r"size=10 must be a timedelta"),
        (lambda t: t.tumbling(ms(0)), r"size=.*at least a millisecond"),
        (lambda t: t.tumbling(-ms(5)), r"size=.*at least a millisecond"),
        (lambda t: t.tumbling(500 * US), r"size=.*at least a millisecond"),
        (lambda t: t.tumbling(1500 * US), r"size=0:00:00.001500.*whole milliseconds"),
        (lambda t: t.hopping(ms(10), every=ms(11)), r"every=0:00:00.011.*size=0:00:00.01"),
        (lambda t: t.hopping(ms(10), every=ms(0)), r"every=.*at least a millisecond"),
        (lambda t: t.hopping(ms(10), every=-ms(1)), r"every=.*at least a millisecond"),
        (lambda t: t.sliding(ms(0)), r"size=.*at least a millisecond"),
        (lambda t: t.session(-ms(1)), r"gap=.*0 or more"),
        (lambda t: t.session(1500 * US), r"gap=.*whole milliseconds"),
        (lambda t: t.calendar("year"), r"'year'.*'day', 'week' or 'month'"),
        (lambda t: t.calendar("day", zone="Europe/Nowhere"), r"zone='Europe/Nowhere'.*'Europe/Berlin'"),
        (lambda t: t.calendar("day", zone=None), r"zone=None.*'Europe/Berlin'"),
        (lambda t: t.tumbling(ms(10), grace=-ms(1)), r"grace=.*0 or more"),
        (lambda t: t.tumbling(ms(10), grace=5), r"grace=5 must be a timedelta"),
        (lambda t: t.tumbling(ms(10), grace=0), r"grace=0 must be a timedelta"),
        (lambda t: t.tumbling(ms(10), grace=1500 * US), r"grace=.*whole milliseconds"),
        (
            lambda t: t.tumbling(ms(10), grace=ms(5), retention=ms(14)),
            r"retention=0:00:00.014.*0:00:00.015.*leave it out",
        ),
        (lambda t: t.tumbling(ms(10), retention=-ms(1)), r"retention=.*0 or more"),
        (lambda t: t.sliding(ms(10), grace=ms(5), retention=ms(24)), r"retention=.*0:00:00.025"),
        (lambda t: t.session(ms(10), grace=ms(5), retention=ms(14)), r"retention=.*0:00:00.015"),
        (lambda t: t.tumbling(ms(10), retention=60), r"retention=60 must be a timedelta"),
        (lambda t: t.tumbling(ms(10), idle_after=-ms(1)), r"idle_after=.*0 or more"),
        (lambda t: t.tumbling(ms(10), idle_after=5), r"idle_after=5 must be a timedelta"),
        (lambda t: t.tumbling(ms(10), late="ignore"), r"late='ignore'.*'drop' or 'reopen'"),
        (lambda t: t.tumbling(ms(10), every=ms(5)), r"\['every'\]"),
        (lambda t: t.tumbling(ms(10)).sum(3), r"sum\(\): 3 is no plain function"),
        (lambda t: t.tumbling(ms(10)).min(later), r"min\(\): later is no plain function"),
        (lambda t: t.tumbling(ms(10)).collect(0), r"collect\(\): limit=0.*at least 1"),
        (lambda t: t.tumbling(ms(10)).collect("5"), r"collect\(\): limit='5'.*at least 1"),
        (lambda t: t.tumbling(ms(10)).top(0), r"top\(\): n=0.*at least 1"),
        (lambda t: t.tumbling(ms(10)).top(2, key="name"), r"top\(\): .*no plain function"),
        (lambda t: t.tumbling(ms(10)).reduce(None), r"reduce\(\): None is no plain function"),
        (lambda t: t.tumbling(ms(10)).reduce(later), r"reduce\(\): later is no plain function"),
        (lambda t: t.tumbling(ms(10)).aggregate(int, later), r"aggregate\(\): fn=later is no plain function"),
        (lambda t: t.tumbling(ms(10)).aggregate(0, max), r"aggregate\(\): initial=0 is no plain function"),
        (lambda t: t.tumbling(ms(10)).aggregate(int, None), r"aggregate\(\): fn=None is no plain function"),
        (
            lambda t: t.session(ms(10)).aggregate(int, max, merge=later),
            r"aggregate\(\): merge=later is no plain function",
        ),
        (lambda t: t.session(ms(10)).aggregate(int, max), r"merge="),
        (lambda t: t.tumbling(ms(10)).count().emit_final(on_close=later), r"on_close=later is no plain function"),
        (lambda t: t.tumbling(ms(10)).count().emit_final(on_close=1), r"on_close=1 is no plain function"),
        (lambda t: t.tumbling(ms(10)).count().emit_update(within=5), r"within=5 must be a timedelta"),
        (lambda t: t.tumbling(ms(10)).count().emit_update(within=ms(0)), r"within=.*at least a millisecond"),
        (lambda t: t.tumbling(ms(10)).count().changes(), r"emit_update\(\), emit_final\(\) or late"),
        (lambda t: t.tumbling(ms(10)).count().group_by(max, key=str), r"send what emit_update\(\)"),
    ],
)
def test_a_wrong_declaration_names_table_option_value_and_way_out(declare: Callable[[Any], object], words: str) -> None:
    table = App("wrong").table("views", key=str, value=int)
    with pytest.raises(ConfigurationError, match=f"^table 'views'.*{words}") as error:
        declare(table)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options", [{"ttl": timedelta(hours=1)}, {"versioned": timedelta(hours=1)}, {"default": int}], ids=str
)
def test_a_table_of_another_kind_has_no_windows(options: dict[str, Any]) -> None:
    table = App("wrong").table("views", key=str, value=int, **options)
    with pytest.raises(ConfigurationError, match=r"table 'views' has windows: .*add\(\).*retention="):
        table.tumbling(ms(10))


def test_a_table_that_a_topic_fills_has_no_windows() -> None:
    app = App("wrong")
    table = app.table("views", source=app.topic("rows", key=str, value=int))
    with pytest.raises(ConfigurationError, match=r"table 'views' has windows: source="):
        table.tumbling(ms(10))


@pytest.mark.parametrize(
    "declare",
    [
        lambda t: t.tumbling(ms(1)),
        lambda t: t.hopping(ms(10), every=ms(10)),
        lambda t: t.sliding(ms(1), grace=ms(0)),
        lambda t: t.session(ms(0)),
        lambda t: t.session(ms(10), grace=ms(5), retention=ms(15)),
        lambda t: t.tumbling(ms(10), grace=ms(5), retention=ms(15), idle_after=ms(0), late="reopen"),
        lambda t: t.calendar("month", zone="Europe/Berlin", grace=timedelta(days=1)),
    ],
)
def test_what_is_just_allowed_is_taken(declare: Callable[[Any], Any]) -> None:
    views = declare(App("right").table("views", key=str, value=int)).count()
    assert "views" in repr(views)


def test_a_table_with_windows_stands_in_the_apps_list_in_place_of_the_one_without() -> None:
    app = App("right")
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()
    assert app.tables["views"] is views


@pytest.mark.parametrize("use", ["add", "emit_final", "emit_update", "late", "fetch"])
def test_windows_without_an_aggregate_say_what_is_missing(use: str) -> None:
    windows = App("wrong").table("views", key=str, value=int).tumbling(ms(10))
    with pytest.raises(AttributeError, match=rf"^table 'views': no '{use}' before .*count\(\), sum\(fn\), "):
        getattr(windows, use)


def test_a_source_that_is_none_is_refused_with_those_that_there_are() -> None:
    app = App("wrong")
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()
    for source in (views, views.emit_final):
        with pytest.raises(ConfigurationError, match=r"^agent 'read': it can't read .*changes\(\).*emit_final\(\)"):

            @app.agent(source)  # type: ignore[arg-type]
            async def read(stream: Stream[Any]) -> None: ...
