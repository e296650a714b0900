"""Tables of the live display beside those of agents and topics: events in flight, and windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rich.table import Table
from rich.text import Text

from agentic.app import App
from agentic.cli.records import clock_time
from agentic.metrics import Counter, Gauge, Metrics
from agentic.windows import WindowedTable

#: The states of events in flight, by the columns that show them.
STATES = {"working": "executing", "waiting": "queued", "ready": "ready", "backing off": "backing off", "done": "done"}
BREAKER = {0.0: "closed", 0.5: "half-open", 1.0: "open"}
#: Seconds for which a commit position waits before the event is worth a line: most wait for less.
WAITED = 1.0


def labelled(metrics: Metrics, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and values of the counters and gauges of a name that are known."""
    for metric in metrics:
        if metric.name == name and isinstance(metric, Counter | Gauge) and metric.value is not None:
            yield dict(metric.labels), metric.value


def in_flight(app: App) -> Table | None:
    """Return the agents that work on many events at once, and where these are; None while there are none."""
    metrics = app.metrics
    stations = {(labels["agent"], labels["state"]): value for labels, value in labelled(metrics, "stations")}
    agents = [name for name in app.agents if any(agent == name for agent, _ in stations)]
    if not agents:
        return None
    sums: dict[str, dict[str, float]] = {"retries": {}, "parked": {}, "concurrency": {}, "breaker": {}}
    for name, by_agent in sums.items():
        for labels, value in labelled(metrics, name):
            by_agent[labels["agent"]] = by_agent.get(labels["agent"], 0) + value
    breakers = bool(sums["breaker"])
    columns = [*STATES, "limit", "retries", "parked"]
    table = Table("in flight")
    for column in columns:
        table.add_column(column, justify="right")
    if breakers:
        table.add_column("breaker")
    for agent in agents:
        numbers = [stations.get((agent, state), 0) for state in STATES.values()]
        numbers += [sums[name].get(agent, 0) for name in ("concurrency", "retries", "parked")]
        circuit = sums["breaker"].get(agent)
        state = [] if not breakers else ["" if circuit is None else BREAKER[circuit]]
        table.add_row(agent, *(f"{number:,.0f}" for number in numbers), *state)
    return table


def oldest_unfinished(metrics: Metrics) -> Text | None:
    """Return the event for which a commit position has waited longest; None where none has for long."""
    found = max(labelled(metrics, "oldest_unfinished"), key=lambda each: each[1], default=None)
    if found is None or found[1] < WAITED:
        return None
    labels, seconds = found
    where = f"{labels['topic']}-{labels['partition']}@{labels['offset']} key {labels['key']}"
    return Text(f"oldest unfinished: {where}, agent {labels['agent']!r}, {labels['state']}, for {seconds:,.0f} s")


def windows(app: App) -> Table | None:
    """Return the tables with windows: what is open, what came out, what was late; None without such tables."""
    names = [name for name, table in app.tables.items() if isinstance(table, WindowedTable)]
    if not names:
        return None
    metrics = app.metrics
    counts: dict[str, dict[str, float]] = {}
    for name in ("windows_open", "emit_final_records_total", "windows_late"):
        counts[name] = {}
        for labels, value in labelled(metrics, name):
            counts[name][labels["table"]] = counts[name].get(labels["table"], 0) + value
    oldest: dict[str, tuple[float, str]] = {}
    for labels, end in labelled(metrics, "oldest_window_end"):
        place = (end, labels["task"])
        oldest[labels["table"]] = min(oldest.get(labels["table"], place), place)
    holders = {(each["table"], each["task"]): each["holder"] for each, _ in labelled(metrics, "oldest_window_left")}
    # A worker that has given its partitions back has no open windows.
    running = bool(counts["windows_open"])
    table = Table("windows")
    for column in ("open", "emitted", "late") if running else ("emitted", "late"):
        table.add_column(column, justify="right")
    if running:
        table.add_column("oldest ends")
        table.add_column("waits for")
    for name in names:
        shown = list(counts.values()) if running else list(islice(counts.values(), 1, None))
        row = [f"{by_table.get(name, 0):,.0f}" for by_table in shown]
        if running and name in oldest:
            end, task = oldest[name]
            row += [clock_time(int(end)), holders.get((name, task), "")]
        table.add_row(*map(Text, (name, *row)))
    return table
