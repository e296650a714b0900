"""The list of an app's tables: a line for each copy of a task's rows on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentic.app import App
from agentic.brokers.base import Broker
from agentic.cli.places import Bounds, bounds_of, copies_by_task, global_task, is_in_use, opened, place_of
from agentic.errors import AgenticError
from agentic.runtime.marks import STANDBY, number, upto
from agentic.state.lmdb import Copy
from agentic.table import GlobalTable, Table
from agentic.windows import WindowedTable

Line = tuple[object, ...]

COLUMNS = ("table", "task", "rows", "bytes", "behind", "copy", "in use")
NUMBERS = ("rows", "bytes", "behind")
#: What stands in place of a copy where there is none.
NONE = "none"


async def copies_of(app: App, broker: Broker, say: Callable[[str], None]) -> list[Line]:
    """Return the lines of all tables; `say` takes why one can't be looked into."""
    known = await broker.topics()
    by_task = copies_by_task(app.settings)
    lines: list[Line] = []
    for table in app.tables.values():
        try:
            place = place_of(app, table, known)
            bounds = await bounds_of(app, table, place, known, broker)
        except AgenticError as error:
            say(str(error))
            lines.append((table.name, "", "", "", "", NONE, ""))
            continue
        if isinstance(table, GlobalTable):
            # One copy has all partitions, with a mark for each.
            marks = {str(n): each for n, each in enumerate(bounds or ())}
            task = global_task(table)
            lines += _lines(table, task, by_task.get(task, ()), marks, say)
            continue
        for n in range(place.partitions):
            task = place.task(n)
            lines += _lines(table, task, by_task.get(task, ()), {upto(table.name): bounds[n]} if bounds else {}, say)
    return lines


def _lines(
    table: Table[Any, Any], task: str, found: Sequence[Copy], bounds: Mapping[str, Bounds], say: Callable[[str], None]
) -> Iterator[Line]:
    """Yield a line for each copy of a task's rows, or one that says that there is none.

    Args:
        bounds: what there is of the changelog, by the mark that says how far a copy has it; nothing
            where the table has no changelog.
    """
    missing = True
    with opened(found, say) as stores:
        for copy, store in stores:
            if table.name not in store.tables:
                continue
            missing = False
            counts = store.stat(table.name)
            size = counts["psize"] * sum(counts[f"{kind}_pages"] for kind in ("branch", "leaf", "overflow"))
            behind = [_behind(number(store.mark(mark)), each) for mark, each in bounds.items()]
            used = "no" if not is_in_use(copy) else "yes" if store.mark(STANDBY) is None else "standby"
            # A table with windows has its times in a row of their own, from its first window on.
            rows = max(0, counts["entries"] - isinstance(table, WindowedTable))
            yield table.name, task, rows, size, sum(behind) if bounds else "", copy.directory, used
    if missing:
        yield table.name, task, "", "", sum(_behind(None, each) for each in bounds.values()) if bounds else "", NONE, ""


def _behind(at: int | None, bounds: Bounds) -> int:
    return max(0, bounds.end - (bounds.start if at is None else at))
