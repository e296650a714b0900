"""``agentic deferred``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import click

from agentic.agent import Agent
from agentic.app import App
from agentic.brokers.base import Broker
from agentic.cli import base
from agentic.cli.choice import Choice, current
from agentic.cli.records import Form, clock_time, shown
from agentic.errors import AgenticError, ConfigurationError
from agentic.topic import nearest

if TYPE_CHECKING:
    from agentic.runtime.deferrals import Row


def _agents(app: App) -> dict[str, Agent]:
    """Those that may put events off."""
    return {name: agent for name, agent in app.agents.items() if agent.deferred is not None}


def _names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """What a shell may propose: the agents that may put events off."""
    try:
        app = ctx.find_root().ensure_object(Choice).app_if_named()
    except AgenticError:
        return []
    return [name for name in (_agents(app) if app else ()) if name.startswith(incomplete)]


@click.group(cls=base.Group)
def deferred() -> None:
    """Show the events that agents have put off."""


@deferred.command()
@click.argument("agent", required=False, shell_complete=_names)
def ls(agent: str | None) -> None:
    """List the events that AGENT has put off; without it, those of all agents.

    A line is an event: when it is due, where it is from, its key, and why it was put off. Those
    that wait behind an earlier one of their key are due after it. What is shown is what was
    committed, as 'tables ls' does; a worker may run meanwhile.
    """
    app = current().app()
    there = _agents(app)
    if agent is not None and agent not in there:
        raise ConfigurationError(
            f"app {app.name!r} has no agent {agent!r} that puts events off; {nearest(agent, list(there))}"
        )
    if not there:
        click.echo(f"no agent of app {app.name!r} puts events off", err=True)
        return
    found = False
    for each in [there[agent]] if agent is not None else there.values():
        for row in _rows(app, each):
            click.echo(_line(app, row))
            found = True
    if not found:
        click.echo("nothing is put off", err=True)


def _rows(app: App, agent: Agent) -> Iterator[Row]:
    """Yield what an agent has put off, in order of arrival within a partition."""
    from agentic.cli.contents import Reading
    from agentic.cli.contents import Row as Stored
    from agentic.runtime.deferrals import decode_row

    table = agent.deferred
    assert table is not None, "it is one that puts off"

    def say(line: str) -> None:
        # Where the rows come from is said for tables; here it is of interest on a terminal alone.
        if sys.stderr.isatty():
            click.echo(line, err=True)

    async def read(broker: Broker) -> tuple[Reading, Iterator[Stored]]:
        reading = Reading(app, table, await broker.topics(), broker, say)
        return reading, await reading.rows(b"", None, range(reading.partitions))

    reading, rows = current().with_broker(read)
    with closing(reading):
        for row in rows:
            assert row.value is not None, "only versions may be deleted ones"
            yield decode_row(row.value)


def _line(app: App, row: Row) -> str:
    key = shown(Form.of(row.topic, app).key, row.key).decode()
    due = clock_time(row.due_at) if row.due_at else "after those of its key"
    reason = " ".join(row.reason.split())
    return "  ".join([due, f"{row.topic}-{row.partition}@{row.offset}", key, *([reason] if reason else [])])
