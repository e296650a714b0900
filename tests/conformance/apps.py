"""The app that a scenario is about, built as its `spec` says, with the public API alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from agentic import App, Stream, Topic

Spec = Mapping[str, Any]


class Scene(NamedTuple):
    """An app, and what its scenario knows of it.

    Attributes:
        inputs: the topics that records are sent to, by the name that steps give them.
        output: where rows come out, each as the value of a record: a dict.
        now: where the wall clock starts, in ms.
    """

    app: App
    inputs: Mapping[str, Topic[Any, Any]]
    output: Topic[Any, Any]
    now: int = 0


def window(spec: Spec, app: App) -> Scene:
    """A windowed table that takes each record of ``in``, and what it emits."""
    source = app.topic("in", key=str, partitions=1)
    output = app.topic("out", key=str, value=dict, partitions=1)
    table = aggregated(spec, windowed(spec, app))

    @app.agent(source)
    async def add(stream: Stream[Any]) -> None:
        async for event in stream.events():
            table.add(event.key, event.value)

    @app.agent(table.emit_final() if spec["emit"] == "final" else table.emit_update(), to=output)
    async def emit(windows: Stream[Any]) -> AsyncIterator[dict[str, Any]]:
        async for w in windows:
            yield {"key": w.key, "start": w.start, "end": w.end, "value": w.value, "ts": w.timestamp}

    return Scene(app, {"in": source}, output)


def windowed(spec: Spec, app: App) -> Any:
    """A table with the windows that a spec names, and no aggregate yet."""
    table: Any = app.table("table", key=str, value=str if spec["aggregate"] in ("concat", "erasable") else int)
    grace = ms(spec["grace"])
    match spec["window"]:
        case "tumbling":
            return table.tumbling(ms(spec["size"]), grace=grace)
        case "hopping":
            return table.hopping(ms(spec["size"]), every=ms(spec["advance"]), grace=grace)
        case "sliding":
            return table.sliding(ms(spec["size"]), grace=grace)
        case "session":
            return table.session(ms(spec["gap"]), grace=grace)
        case other:
            raise ValueError(f"window {other!r}: tumbling, hopping, sliding and session are known")


def aggregated(spec: Spec, windows: Any) -> Any:
    """The table whose windows hold what a spec says is made of their values."""
    # Only sessions are joined, and only for them may a table ask how.
    merge = {"merge": joined} if spec["window"] == "session" else {}
    match spec["aggregate"]:
        case "concat":
            return windows.aggregate(str, appended, **merge)
        case "erasable":
            return windows.aggregate(str, appended_or_erased, **merge)
        case "count":
            return windows.count()
        case "sum":
            return windows.sum(itself)
        case "max":
            return windows.max(itself)
        case other:
            raise ValueError(f"aggregate {other!r}: concat, erasable, count, sum and max are known")


def appended(total: str, value: str | None) -> str:
    return total + ("null" if value is None else value)


def appended_or_erased(total: str, value: str | None) -> str | None:
    return None if value == "!" else appended(total, value)


def joined(older: str, newer: str) -> str:
    return older + newer


def itself(value: int) -> int:
    return value


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


#: How the app of a scenario is built, by the `kind` of its spec.
KINDS: dict[str, Callable[[Spec, App], Scene]] = {"window": window}
