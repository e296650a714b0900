"""``agentic tail``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import click

from agentic.brokers.base import Batch, Broker, TopicInfo, TopicPartition
from agentic.cli import base
from agentic.cli.choice import current
from agentic.cli.completion import topic_names
from agentic.cli.lookup import partitions_of
from agentic.cli.reading import between
from agentic.cli.records import Form, clock_time, line_of, shown

#: Records shown without -n.
FEW = 10


class Row(NamedTuple):
    """One record as it was read."""

    timestamp: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@click.command(cls=base.Command)
@click.argument("topic", shell_complete=topic_names)
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help=f"How many records.  [default: {FEW}]")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--jsonl", is_flag=True, help="Lines of JSON, as 'send --jsonl' reads them.")
@click.option("--from-beginning", is_flag=True, help="All records from the first on, or the first N.")
def tail(topic: str, count: int | None, follow: bool, jsonl: bool, from_beginning: bool) -> None:
    """Show a topic's records.

    The last ones of its partitions, merged by their timestamps; only committed ones. A line is
    a record: its time, its place as partition@offset, its key and its value.

    With --from-beginning and --follow they come in the order of reading: that of the offsets
    within a partition, and none between partitions.
    """
    if from_beginning and follow and count is not None:
        raise click.UsageError(
            "-n does not go with --from-beginning and --follow together: the one ends, the other not"
        )
    choice = current()
    form = Form.of(topic, choice.app_if_named())

    def show(row: Row) -> None:
        click.echo(_jsonl(form, row) if jsonl else _text(form, row))

    async def read(broker: Broker) -> None:
        await partitions_of(topic, broker)
        info = await broker.describe_topic(topic)
        starts = {TopicPartition(topic, n): start for n, (start, _) in info.offsets.items()}
        ends = {TopicPartition(topic, n): end for n, (_, end) in info.offsets.items()}
        if not from_beginning:
            for row in await _last(broker, info, FEW if count is None else count):
                show(row)
        elif not follow:
            shown_rows = 0
            async for row in _between(broker, starts, ends):
                if shown_rows == count:
                    return
                show(row)
                shown_rows += 1
        if follow:
            async for row in _from(broker, starts if from_beginning else ends):
                show(row)

    choice.with_broker(read)


def _text(form: Form, row: Row) -> bytes:
    key, value = shown(form.key, row.key).decode(), shown(form.value, row.value).decode()
    return f"{clock_time(row.timestamp)}  {row.partition}@{row.offset}  {key}  {value}".encode()


def _jsonl(form: Form, row: Row) -> bytes:
    return line_of(form, row.key, row.value, row.timestamp, row.headers, row.partition)


async def _last(broker: Broker, info: TopicInfo, count: int) -> list[Row]:
    """Return the last `count` records of the partitions' last ones, merged by timestamp.

    A partition's last offsets may hold fewer records than their number: compaction, aborted
    transactions and Kafka's own markers leave gaps. So look twice as far back until it is enough.
    """
    found: dict[int, list[Row]] = {}
    back = count
    lacking = [n for n, (start, end) in info.offsets.items() if start < end and count]
    while lacking:
        starts = {n: max(info.offsets[n][0], info.offsets[n][1] - back) for n in lacking}
        found.update({n: [] for n in lacking})
        tps = {TopicPartition(info.name, n): start for n, start in starts.items()}
        async for row in _between(broker, tps, {tp: info.offsets[tp.partition][1] for tp in tps}):
            found[row.partition].append(row)
        lacking = [n for n in lacking if len(found[n]) < count and starts[n] > info.offsets[n][0]]
        back *= 2
    rows = sorted((row for rows in found.values() for row in rows), key=lambda row: row[:3])
    return rows[-count:] if count else []


async def _between(
    broker: Broker, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> AsyncIterator[Row]:
    """Yield the records of partitions between two offsets each."""
    async for batch in between(broker, starts, ends):
        for row in rows_of(batch):
            yield row


async def _from(broker: Broker, starts: Mapping[TopicPartition, int]) -> AsyncIterator[Row]:
    """Yield records from these offsets on, for ever."""
    reader = broker.reader(starts)
    try:
        while True:
            for batch in await reader.poll(1.0):
                for row in rows_of(batch):
                    yield row
    finally:
        await reader.close()


def rows_of(batch: Batch) -> list[Row]:
    """Return the records of a batch."""
    rows = []
    for n, offset in enumerate(batch.offsets):
        headers = batch.headers[n]
        pairs = headers if headers is None or isinstance(headers, tuple) else headers.headers()
        rows.append(
            Row(batch.timestamps[n], batch.tp.partition, offset, batch.keys[n], batch.values[n], tuple(pairs or ()))
        )
    return rows
