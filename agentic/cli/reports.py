"""What a worker says of its work: a line every ten seconds, a live table, a word at the end.

How far it is with its tables while it restores them: see `agentic.cli.restoring`.

Reporters run beside the worker and read `App.metrics`; they are cancelled when it stops.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentic.app import App
from agentic.cli import panels, restoring
from agentic.cli.restoring import Restoring
from agentic.metrics import Counter, Gauge, Metrics
from agentic.runtime.logging import setup

log = logging.getLogger("agentic.worker")

#: Seconds between two summary lines.
SUMMARY_EVERY = 10.0
#: Seconds between two looks of the live table: quick enough to seem alive, and nothing to a worker.
LIVE_EVERY = 0.5


@dataclass(frozen=True)
class Numbers:
    """A worker's totals at one moment."""

    at: float
    events_in: float
    events_out: float
    dropped: dict[str, float]
    lag: float | None
    commit_p99: float | None

    @classmethod
    def of(cls, metrics: Metrics) -> Numbers:
        """Read them off the registry."""
        lags = [metric.value for metric in metrics if isinstance(metric, Gauge) and metric.name == "lag"]
        known = [lag for lag in lags if lag is not None]
        return cls(
            at=time.monotonic(),
            events_in=metrics.total("events_in"),
            events_out=metrics.total("events_out"),
            dropped=_dropped(metrics),
            lag=sum(known) if known else None,
            commit_p99=metrics.latency("commit_seconds").quantile(0.99),
        )


def by_label(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """Return the sums of a counter or gauge by one of its labels, in the labels' order."""
    sums: dict[str, float] = {}
    for metric in metrics:
        if metric.name == name and isinstance(metric, Counter | Gauge) and metric.value is not None:
            key = dict(metric.labels).get(label, "")
            sums[key] = sums.get(key, 0) + metric.value
    return dict(sorted(sums.items()))


def summary_line(now: Numbers, before: Numbers) -> str:
    """Return what happened between two moments, on one line."""
    seconds = max(now.at - before.at, 1e-9)
    parts = [
        f"in {now.events_in:,.0f} ({(now.events_in - before.events_in) / seconds:,.0f}/s)",
        f"out {now.events_out:,.0f} ({(now.events_out - before.events_out) / seconds:,.0f}/s)",
    ]
    if now.lag is not None:
        parts.append(f"lag {now.lag:,.0f}")
    if now.commit_p99 is not None:
        parts.append(f"commit p99 {now.commit_p99 * 1000:,.0f} ms")
    if now.dropped:
        parts.append("dropped " + _reasons(now.dropped))
    return ", ".join(parts)


def _dropped(metrics: Metrics) -> dict[str, float]:
    return {reason: count for reason, count in by_label(metrics, "dropped", "reason").items() if count}


def _reasons(dropped: dict[str, float]) -> str:
    return ", ".join(f"{reason} {count:,.0f}" for reason, count in dropped.items())


async def summary(app: App) -> None:
    """Log a line every ten seconds."""
    before = Numbers.of(app.metrics)
    while True:
        await asyncio.sleep(SUMMARY_EVERY)
        now = Numbers.of(app.metrics)
        log.info("%s", summary_line(now, before))
        before = now


async def live(app: App) -> None:
    """Draw a table that changes while the worker works. Without a terminal: summary lines, and those of restoring."""
    console = Console()
    if console.is_terminal:
        await _draw(app, console)
    else:
        async with asyncio.TaskGroup() as group:
            group.create_task(summary(app))
            group.create_task(restoring.lines(app))


async def _draw(app: App, console: Console) -> None:
    before = Numbers.of(app.metrics)
    watch = restoring.Watch(app.metrics)
    try:
        while True:
            size = console.size
            with Live(console=console, auto_refresh=False, transient=True) as screen:
                # While it is drawn, the display stands in for standard error: log lines pass above it, not through.
                setup(app.settings, sys.stderr)
                while True:
                    await asyncio.sleep(LIVE_EVERY)
                    if console.size != size:
                        break
                    now = Numbers.of(app.metrics)
                    footer = folded(summary_line(now, before), console.width)
                    screen.update(tables(app, footer, watch.look(now.at)), refresh=True)
                    before = now
            # The terminal has broken the lines of the old table anew, and nobody knows where it begins now.
            console.clear()
    finally:
        setup(app.settings, sys.__stderr__)


def tables(app: App, footer: str, restored: Sequence[Restoring] = ()) -> Group:
    """Return the live display: what is being restored, agents, topics, windows, and what `footer` says of the whole."""
    agents = Table("agent")
    for column in ("done", "sent"):
        agents.add_column(column, justify="right")
    done, sent = by_label(app.metrics, "events_done", "agent"), by_label(app.metrics, "events_out", "agent")
    for name in app.agents:
        agents.add_row(name, f"{done.get(name, 0):,.0f}", f"{sent.get(name, 0):,.0f}")
    read, lag = by_label(app.metrics, "events_in", "topic"), by_label(app.metrics, "lag", "topic")
    topics = Table("topic")
    # A worker that has given its partitions back knows of no lag.
    for column in ("in", "lag") if lag else ("in",):
        topics.add_column(column, justify="right")
    for topic in app.sources():
        row = [topic.name, f"{read.get(topic.name, 0):,.0f}"]
        if lag:
            row.append(f"{lag[topic.name]:,.0f}" if topic.name in lag else "?")
        topics.add_row(*row)
    title = Text(f"{app.name} on {app.settings.broker}", "bold")
    parts = (
        title,
        restoring.bars(restored) if restored else None,
        agents,
        panels.in_flight(app),
        topics,
        panels.windows(app),
        panels.oldest_unfinished(app.metrics),
        Text(footer),
    )
    return Group(*(part for part in parts if part is not None))


def folded(line: str, width: int) -> str:
    """Break a line behind the commas and semicolons between its parts: a name and its number stay together."""
    # textwrap breaks at no no-break space.
    whole = line.replace(" ", "\N{NO-BREAK SPACE}")
    for between in (",", ";"):
        whole = whole.replace(f"{between}\N{NO-BREAK SPACE}", f"{between} ")
    return textwrap.fill(whole, width, break_on_hyphens=False).replace("\N{NO-BREAK SPACE}", " ")


def closing(app: App, seconds: float, *, table: bool) -> None:
    """Print what a worker has done, when it has stopped: its totals, and with `table` what they are made of."""
    line = final_line(app.metrics, seconds)
    if table:
        console = Console()
        console.print(tables(app, folded(line, console.width)))
    else:
        click.echo(line)


def final_line(metrics: Metrics, seconds: float) -> str:
    """Return what a worker has done, on one line."""
    events_in, events_out = metrics.total("events_in"), metrics.total("events_out")
    line = f"{events_in:,.0f} event{'' if events_in == 1 else 's'} in, {events_out:,.0f} out, in {seconds:.1f} s"
    if seconds > 0 and events_in:
        rate = events_in / seconds
        line += f" ({rate:,.{0 if rate >= 10 else 1}f} events/s)"
    dropped = _dropped(metrics)
    return line + (f"; dropped: {_reasons(dropped)}" if dropped else "")
