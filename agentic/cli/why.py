"""``agentic why``: what a windowed table's open windows wait for."""

from __future__ import annotations

import click

from agentic.brokers.base import Broker
from agentic.cli import base
from agentic.cli.choice import current
from agentic.cli.records import typed
from agentic.cli.tables import table_names
from agentic.errors import ConfigurationError
from agentic.windows import WindowedTable


@click.command(cls=base.Command)
@click.argument("table", shell_complete=table_names)
@click.argument("key", required=False)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="Open windows shown of a task.",
)
def why(table: str, key: str | None, limit: int) -> None:
    """Say what the open windows of TABLE wait for, task by task.

    With a KEY those of its windows. Shown are stream time, up to where windows are closed, the
    oldest open ones with the stream time that is left until each is closed, and what keeps it from
    coming: events still to be read, an event in flight or put off, or that the stream is quiet. What
    is shown is what was committed; a worker may run meanwhile, or none.
    """
    from agentic.cli.places import table_of
    from agentic.cli.waiting import look, told

    app = current().app()
    found = table_of(app, table)
    if not isinstance(found, WindowedTable):
        names = [name for name, each in app.tables.items() if isinstance(each, WindowedTable)]
        raise ConfigurationError(
            f"table {table!r} has no windows; with windows there are: {', '.join(names) or 'none'}"
        )
    wire = None if key is None else typed(found.key, key, "KEY")

    async def read(broker: Broker) -> list[str]:
        return told(app, found, await look(app, found, wire, limit, broker, lambda line: click.echo(line, err=True)))

    for line in current().with_broker(read):
        click.echo(line)
