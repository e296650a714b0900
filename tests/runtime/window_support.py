"""What tests of windows at run time share: an app whose agent adds each event, and all that comes out of its table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from agentic import App, Stream, Topic
from agentic.stream import Event
from agentic.testing import TestDriver
from agentic.windows import Late, Window, WindowedTable


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Scene(NamedTuple):
    """An app with one windowed table.

    Attributes:
        source: what the agent ``add`` reads.
        finals, updates, late: where these come out, each a list as `shown` and `shown_late` make it.
    """

    app: App
    source: Topic[Any, Any]
    views: WindowedTable[Any, Any]
    finals: Topic[Any, Any]
    updates: Topic[Any, Any]
    late: Topic[Any, Any]

    def send(self, driver: TestDriver, *steps: str) -> None:
        """Send records as "key value@time"; a value is an int or nothing."""
        for step in steps:
            key, _, rest = step.partition(" ")
            value, _, timestamp = rest.partition("@")
            driver.send(self.source, int(value) if value else None, key=key, timestamp=int(timestamp))

    def came(self, driver: TestDriver, topic: Topic[Any, Any]) -> list[Any]:
        """Return the values that came out since the last look."""
        return [output.value for output in driver.outputs(topic)]


def add_each(views: WindowedTable[Any, Any], event: Event) -> None:
    views.add(event.key, event.value)


def scene(
    windows: Callable[[Any], WindowedTable[Any, Any]],
    add: Callable[[WindowedTable[Any, Any], Event], object] = add_each,
    *,
    key: Any = str,
    value: Any = None,
    partitions: int = 1,
    check_keys: bool = True,
    agent: dict[str, Any] | None = None,
    pause: Callable[[Event], float] | None = None,
    updates: bool = True,
    **settings: Any,
) -> Scene:
    """Make an app whose agent calls ``add(views, event)`` for each event.

    Args:
        windows: gives the table its windows and aggregate.
        key, value: types of the table's; of the source the key alone.
        agent: options of the agent.
        pause: seconds that the agent sleeps before it adds an event.
        updates: does anybody read them? They cost.
    """
    app = App("windowed", topic_partitions=partitions, **settings)
    source = app.topic("in", key=key)
    finals, changes, late = (app.topic(name, key=key, value=list) for name in ("finals", "updates", "late"))
    views = windows(app.table("views", key=key, value=value, check_keys=check_keys))

    @app.agent(source, tables=[views], **(agent or {}))
    async def adding(stream: Stream[Any]) -> None:
        async for event in stream.events():
            if pause is not None:
                await asyncio.sleep(pause(event))
            add(views, event)

    @app.agent(views.emit_final(), to=finals)
    async def closed(stream: Stream[Window[Any, Any]]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    if updates:

        @app.agent(views.emit_update(), to=changes)
        async def changed(stream: Stream[Window[Any, Any]]) -> AsyncIterator[list[Any]]:
            async for window in stream:
                yield [*shown(window), window.old]

    @app.agent(views.late, to=late)
    async def refused(stream: Stream[Late[Any]]) -> AsyncIterator[list[Any]]:
        async for each in stream:
            yield [each.key, each.value, each.timestamp, each.start, each.end, each.by]

    return Scene(app, source, views, finals, changes, late)


def shown(window: Window[Any, Any]) -> list[Any]:
    """Return a window as a list; the last word is there of a correction alone."""
    plain = [window.key, window.start, window.end, window.value, window.timestamp]
    return [*plain, "correction"] if window.correction else plain
