"""``agentic tables``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
import msgspec

from agentic.brokers.base import Broker
from agentic.cli import base
from agentic.cli.choice import Choice, current
from agentic.cli.records import Form, clock_time, shown, typed
from agentic.core.partitioning import partition_of
from agentic.errors import AgenticError, CodecError, ConfigurationError, many
from agentic.table import Table

if TYPE_CHECKING:
    from agentic.windows import WindowedTable


def table_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """What a shell may propose: the app's tables."""
    try:
        app = ctx.find_root().ensure_object(Choice).app_if_named()
    except AgenticError:
        return []
    return [name for name in (app.tables if app else ()) if name.startswith(incomplete)]


#: Lines that are written together.
LOT = 1_000

_NAME = click.argument("name", shell_complete=table_names)


@click.group(cls=base.Group, invoke_without_command=True)
@click.pass_context
def tables(ctx: click.Context) -> None:
    """Look into tables; dump and load them. Alone it lists.

    A worker may run meanwhile, or none. What is shown is what was committed: it is read from this
    machine's local state and, where that has no copy or is behind, from the changelog; on standard
    error it says which.
    """
    if ctx.invoked_subcommand is None:
        _list()


@tables.command("list")
def list_tables() -> None:
    """List the tables.

    A line for each copy of a task's rows that this machine has. Behind is how many offsets the
    changelog is ahead of the copy; on Kafka the end of a transaction takes one. Bytes are those of
    the pages that the rows take on the disk. In use means that a worker has the copy; standby, that
    it keeps it for the case that the owner of the task dies.
    """
    _list()


def _list() -> None:
    from agentic.cli.listing import COLUMNS, NUMBERS, copies_of
    from agentic.cli.output import show_table

    app = current().app()
    if not app.tables:
        click.echo(f"app {app.name!r} declares no tables", err=True)
        return
    show_table(COLUMNS, current().with_broker(lambda broker: copies_of(app, broker, _say)), numbers=NUMBERS)


@tables.command()
@_NAME
@click.argument("key")
def get(name: str, key: str) -> None:
    """Show the value of one key, as JSON.

    A KEY of a table of str or bytes is typed as it stands, any other as JSON. Of a table with windows
    those of the key are shown, as 'tables ls' does, the newest first.
    """
    from agentic.cli.contents import keys_of
    from agentic.cli.places import table_of
    from agentic.windows import WindowedTable

    table = table_of(current().app(), name)
    wire = typed(table.key, key, "KEY")
    if isinstance(table, WindowedTable):
        _get_windows(table, wire)
        return
    stored = keys_of(table).from_wire(wire)
    found = _rows_of(table, stored, stored + b"\0", wire)
    for row in found:
        click.echo(shown(table.value, row.value))
    if not found:
        raise ConfigurationError(f"table {name!r} has no row of key {shown(table.key, wire).decode()}")


def _get_windows(table: WindowedTable[Any, Any], wire: bytes) -> None:
    from agentic.cli.windows import Reader

    reader = Reader(table)
    low, high = reader.range_of(wire)
    found = [row for row in _rows_of(table, low, high, wire) if reader.is_of(row, wire)]
    if not found:
        raise ConfigurationError(f"table {table.name!r} has no window of key {shown(table.key, wire).decode()}")
    for row in reversed(found):
        click.echo(reader.line(row), nl=False)


@tables.command()
@_NAME
@click.option("--prefix", metavar="P", help="Only keys that begin so: text, or the first parts of a tuple as JSON.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N rows.")
@click.option("--jsonl", is_flag=True, help="Lines of JSON, as 'tables load' reads them.")
def ls(name: str, prefix: str | None, limit: int | None, jsonl: bool) -> None:
    """Show rows in the order of their keys.

    A line has the time of the last update, the key and the value; of a table with windows the key,
    the window's start and end, and the value. An end in front of ')' is not in the window, one
    in front of ']' is.
    """
    from agentic.cli.places import table_of
    from agentic.state.keys import prefix_end

    table = table_of(current().app(), name)
    low, high = b"", None
    if prefix is not None:
        low = _beginning(table, prefix)
        high = prefix_end(low)
    _show(table, islice(_present(_rows(table, low, high, placed=jsonl)), limit), jsonl=jsonl)


@tables.command()
@_NAME
@click.option("--local", is_flag=True, help="Only what this machine's copies have, whatever the changelog says.")
def dump(name: str, local: bool) -> None:
    """Write all rows as lines of JSON.

    They are {"key": …, "value": …, "timestamp": …}, as 'tables load' reads them; where its key does
    not say in which partition a row is, "partition" does. Of a table with versions each has a line,
    the oldest of a key first, null where it was deleted. Of one with windows each has a line, with
    "start" and "end" in ms. With --local the rows of a table can be saved whose changelog was lost.
    """
    from agentic.cli.places import table_of

    table = table_of(current().app(), name)
    _show(table, _versions(_rows(table, b"", None, local=local, placed=True)), jsonl=True)


@tables.command()
@_NAME
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="FILE|-")
def load(name: str, file: str) -> None:
    """Put rows into a table.

    They are lines of JSON as 'tables dump' writes them; gzip is understood. They go to the table's
    changelog, from which every worker restores them when it starts; so none may be running. A row
    of a key that is there is replaced, one whose value is null deleted, and all others stay.
    Without a timestamp a row has the time of the loading. Of a table with versions the lines of a
    key are its versions.
    """
    from agentic.cli.loading import load as send_lines
    from agentic.cli.places import filled_by, table_of
    from agentic.cli.reset import check_stopped
    from agentic.cli.versions import Gathering
    from agentic.runtime import changelogs, topics
    from agentic.windows import WindowedTable

    app = current().app()
    table = table_of(app, name)
    changelog = table.changelog_topic
    if (source := filled_by(table)) is not None:
        raise ConfigurationError(
            f"table {name!r} is filled by topic {source!r}: send to that one, 'agentic send {source} --jsonl FILE'"
        )
    if isinstance(table, WindowedTable):
        raise ConfigurationError(
            f"table {name!r} has windows, whose rows go with the times up to which events were counted: "
            "send the events instead"
        )
    if changelog is None:
        raise ConfigurationError(f"table {name!r} is declared with changelog=False: nothing could restore its rows")
    form = Form(changelog, table.key, table.value, needs_key=True)

    async def into_changelog(broker: Broker) -> None:
        await check_stopped(app, broker, "loading")
        counts = await topics.ensure(app, broker)
        await changelogs.ensure(app.processors(), counts, broker)
        partitions = (await broker.topics())[changelog]
        sink = None if table.versioned is None else Gathering(broker.producer())
        loaded = await send_lines(broker, form, partitions, file, resume=False, sink=sink)
        # One that came meanwhile may have restored a part, and taken it for the whole.
        await check_stopped(app, broker, "loading, which is to be done again")
        click.echo(f"loaded {many(loaded.sent, 'row')} into {name}")

    current().with_broker(into_changelog)


def _rows_of(table: Table[Any, Any], low: bytes, high: bytes | None, wire: bytes) -> list[Any]:
    """Return the rows between two stored keys that a key has.

    They are in the partition that the key belongs to, or in any other: an event's own key is taken where its event is,
    and who sent that may have had another partitioner, or have written the key otherwise.
    """
    from agentic.cli.places import filled_by

    if table.check_keys and filled_by(table) is None and (found := list(_present(_rows(table, low, high, wire)))):
        return found
    return list(_present(_rows(table, low, high)))


def _rows(
    table: Table[Any, Any],
    low: bytes,
    high: bytes | None,
    key: bytes | None = None,
    *,
    local: bool = False,
    placed: bool = False,
) -> Iterator[Any]:
    """Yield the rows between two stored keys; with the wire bytes of a key only from the partition it belongs to.

    Args:
        local: leave the changelog alone.
        placed: note which rows are not where their key belongs, if it is not for a topic to say.
    """
    from agentic.cli.contents import Reading, Row
    from agentic.cli.places import filled_by

    app = current().app()

    async def read(broker: Broker) -> tuple[Reading, Iterator[Row]]:
        reading = Reading(app, table, await broker.topics(), broker, _say, local=local)
        # What a table keeps beside its rows is below them.
        low_row = max(low, reading.first)
        partitions = range(reading.partitions)
        if key is not None:
            partitions = range(at := partition_of(key, reading.partitions), at + 1)
        return reading, await reading.rows(low_row, high, partitions)

    # The broker is not needed for longer: what comes of it is on the disk or in memory.
    reading, rows = current().with_broker(read)
    with closing(reading):
        yield from _there(table, reading.placed(rows) if placed and filled_by(table) is None else rows)


def _there(table: Table[Any, Any], rows: Iterator[Any]) -> Iterator[Any]:
    """Leave out the marks of windows that came out early."""
    from agentic.windows import WindowedTable

    if not isinstance(table, WindowedTable):
        return rows
    from agentic.cli.windows import Reader

    return filter(Reader(table).is_there, rows)


def _present(rows: Iterator[Any]) -> Iterator[Any]:
    """Leave out the rows of a table with versions that are deleted now."""
    return (row for row in rows if row.value is not None)


def _versions(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield a row for each version, the oldest of a key first."""
    for row in rows:
        if row.versions is None:
            yield row
            continue
        for timestamp, value in zip(*map(reversed, row.versions)):
            yield row._replace(timestamp=timestamp, value=value)


def _show(table: Table[Any, Any], rows: Iterator[Any], *, jsonl: bool) -> None:
    out = sys.stdout.buffer
    lines = _lines(table, rows, jsonl)
    # By the lot: there may be millions.
    while lot := b"".join(islice(lines, LOT)):
        out.write(lot)
    out.flush()


def _lines(table: Table[Any, Any], rows: Iterator[Any], jsonl: bool) -> Iterator[bytes]:
    from agentic.cli.contents import keys_of
    from agentic.windows import WindowedTable

    if isinstance(table, WindowedTable):
        from agentic.cli.windows import Reader

        reader = Reader(table)
        yield from map(reader.json if jsonl else reader.line, rows)
        return
    keys = keys_of(table)
    for row in rows:
        key, value = shown(table.key, keys.to_wire(row.stored_key)), shown(table.value, row.value)
        if not jsonl:
            yield b"%s  %s  %s\n" % (clock_time(row.timestamp).encode(), key, value)
        elif table.check_keys and not row.strays:
            yield b'{"key":%s,"value":%s,"timestamp":%d}\n' % (key, value, row.timestamp)
        else:
            # From such a key its partition does not follow.
            line = b'{"key":%s,"value":%s,"timestamp":%d,"partition":%d}\n'
            yield line % (key, value, row.timestamp, row.partition)


def _beginning(table: Table[Any, Any], text: str) -> bytes:
    """Return the bytes with which the stored keys begin that begin with what was typed."""
    from agentic.cli.contents import keys_of

    declared = getattr(table.key, "declared", None)
    prefix: object = text
    try:
        if declared in (None, bytes):
            prefix = text.encode(errors="surrogateescape")
        elif get_origin(declared) is tuple:
            parts = msgspec.json.decode(text, type=list[msgspec.Raw])
            # One part more than there are types is a wrong prefix, too.
            types = chain(get_args(declared), repeat(Any))
            prefix = tuple(msgspec.json.decode(part, type=type_) for part, type_ in zip(parts, types))
        return keys_of(table).encode_prefix(prefix)
    except (TypeError, ValueError, CodecError) as error:
        raise click.BadParameter(f"{text!r} for table {table.name!r}: {error}", param_hint="--prefix") from None


def _say(line: str) -> None:
    click.echo(current().completed(line), err=True)
