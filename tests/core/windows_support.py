"""What the tests of windows share: rows in memory, and what a task does with them, as short as it can be said."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.core.windows import Aggregate, Change, Row, TimeWindows, Windowing

CONFORMANCE = pathlib.Path(__file__).parent.parent / "conformance" / "data"


class MemoryRows:
    """The windows of an operator, in a dict."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, int, int], Row] = {}

    def get(self, key: bytes, start: int, end: int) -> Row | None:
        return self.rows.get((key, start, end))

    def starting(self, key: bytes, earliest: int, latest: int) -> Sequence[Row]:
        return sorted((row for row in self.of(key) if earliest <= row.start <= latest), reverse=True)

    def ending(self, key: bytes, earliest: int, latest_start: int) -> Sequence[Row]:
        found = [row for row in self.of(key) if row.end >= earliest and row.start <= latest_start]
        return sorted(found, key=lambda row: (row.end, row.start))

    def put(self, key: bytes, row: Row, fresh: bool) -> None:
        assert row.value is not None
        assert fresh == ((key, row.start, row.end) not in self.rows)
        self.rows[key, row.start, row.end] = row

    def remove(self, key: bytes, start: int, end: int) -> None:
        self.rows.pop((key, start, end), None)

    def of(self, key: bytes) -> list[Row]:
        return [row for (owner, _, _), row in self.rows.items() if owner == key]


class Operator:
    """A windowed table of one task: it drops, adds, emits and forgets as the rules say (spec: A.5, B, C.2).

    Args:
        forgets: whether windows are removed as soon as they may be.
    """

    def __init__(self, windowing: Windowing, aggregate: Aggregate, *, final: bool, forgets: bool = False) -> None:
        self.windowing = windowing
        self.aggregate = aggregate
        self.final = final
        self.forgets = forgets
        self.rows = MemoryRows()
        self.time = -1
        self.closed_up_to = -1
        self.dropped: Counter[str] = Counter()
        self.emitted: set[tuple[bytes, int, int]] = set()
        self.changes: list[Change] = []

    def send(self, key: str | None, value: Any, timestamp: int) -> list[dict[str, Any]]:
        """Return the rows that come out because of a record."""
        if key is None:
            self.dropped["null_key"] += 1
            return []
        if value is None and not self.windowing.takes_null:
            self.dropped["null_value"] += 1
            return []
        self.time = max(self.time, timestamp)
        close = self.windowing.close(self.time)
        name = key.encode()
        change = self.windowing.add(self.rows, name, value, timestamp, self.time, close, self.aggregate)
        self.changes.append(change)
        if change.refused:
            self.dropped["late"] += len(change.refused)
        if not self.final:
            out = [result(name, update) for update in change.updates]
        else:
            out = self.finals(close) if change.finals else []
        if self.forgets:
            self.forget(close)
        return out

    def finals(self, close: int) -> list[dict[str, Any]]:
        upto = self.windowing.last_closed(close)
        due = [
            (row.end, row.start, key)
            for (key, _, _), row in self.rows.rows.items()
            if self.closed_up_to < row.end <= upto
        ]
        out = []
        for end, start, key in sorted(due):
            assert self.windowing.closed(end, close)
            assert (key, start, end) not in self.emitted, "a window has come out twice"
            self.emitted.add((key, start, end))
            out.append(result(key, self.rows.rows[key, start, end]))
        self.closed_up_to = max(self.closed_up_to, upto)
        return out

    def forget(self, close: int) -> None:
        """Remove what is closed, is out if anything comes out, and is not needed."""
        needed = self.windowing.needed_until(close)
        for place, row in list(self.rows.rows.items()):
            is_out = row.end <= self.closed_up_to if self.final else self.windowing.closed(row.end, close)
            if is_out and row.start < needed:
                del self.rows.rows[place]


def result(key: bytes, row: Any) -> dict[str, Any]:
    return {"key": key.decode(), "start": row.start, "end": row.end, "value": row.value, "ts": row.timestamp}


def windowing_of(spec: dict[str, Any]) -> Windowing:
    match spec["window"]:
        case "tumbling":
            return TimeWindows(spec["size"], spec["size"], spec["grace"])
        case "hopping":
            return TimeWindows(spec["size"], spec["advance"], spec["grace"])
        case "sliding":
            return SlidingWindows(spec["size"], spec["grace"])
        case "session":
            return SessionWindows(spec["gap"], spec["grace"])
    raise AssertionError(spec)


def concat(old: str, value: str | None) -> str:
    return old + ("null" if value is None else value)


def erasable(old: str, value: str | None) -> str | None:
    return None if value == "!" else concat(old, value)


def add(left: Any, right: Any) -> Any:
    return left + right


AGGREGATES = {
    "concat": Aggregate(str, concat, merge=add),
    "erasable": Aggregate(str, erasable, merge=add),
    "count": Aggregate(int, lambda old, value: old + 1, merge=add),
    "sum": Aggregate(lambda: None, add, merge=add, first=int),
    "max": Aggregate(lambda: None, max, merge=max, first=int),
}


def scenarios(*kinds: str) -> list[dict[str, Any]]:
    """Return the scenarios of these kinds of window, with what Kafka Streams, but for its faults, makes of them."""
    lines = (CONFORMANCE / "readable.jsonl").read_text().splitlines()
    lines += gzip.decompress((CONFORMANCE / "windows.jsonl.gz").read_bytes()).decode().splitlines()
    read = [json.loads(line) for line in lines]
    return [one for one in read if one["spec"]["kind"] == "window" and one["spec"]["window"] in kinds]


def play(scenario: dict[str, Any], *, forgets: bool) -> None:
    """Send what a scenario sends, and compare."""
    spec = scenario["spec"]
    operator = Operator(
        windowing_of(spec), AGGREGATES[spec["aggregate"]], final=spec["emit"] == "final", forgets=forgets
    )
    for number, step in enumerate(scenario["steps"]):
        out = [] if "advance_wall" in step else operator.send(step["key"], step["value"], step["ts"])
        assert out == step["out"], f"{scenario['name']}, step {number}: {step}"
    assert operator.dropped == scenario["dropped"], scenario["name"]


@st.composite
def records(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draw keys and timestamps: steps of stream time, some of them long, and records behind it."""
    time = 0
    drawn = []
    steps = st.tuples(st.sampled_from("ab"), st.one_of(st.integers(-30, 6), st.sampled_from([0, 0, 1, 11, 40])))
    for key, step in draw(st.lists(steps, max_size=30)):
        timestamp = max(0, time + step)
        time = max(time, timestamp)
        drawn.append((key, timestamp))
    return drawn


def trace(operator: Operator, *steps: str) -> list[str]:
    """Send records as "key value@time", null for None; return what each makes come, as "key[start,end]=value@time"."""
    came = []
    for step in steps:
        key, _, rest = step.partition(" ")
        value, _, timestamp = rest.partition("@")
        out = operator.send(None if key == "null" else key, None if value == "null" else value, int(timestamp))
        came.append(", ".join(shown(row) for row in out))
    return came


def shown(row: dict[str, Any]) -> str:
    value = "null" if row["value"] is None else row["value"]
    return f"{row['key']}[{row['start']},{row['end']}]={value}@{row['ts']}"
