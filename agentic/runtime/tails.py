"""What a store lacks of a task's changelogs: from which offset on, up to where, or all of it.

A store that is behind needs the tail of the changelog. It gets all of it where the tail would
not do: it has nothing yet, the changelog does not reach back to where it stands, ends before
it, or has had time to forget deletions that it has not seen. But rows of a changelog that is
gone may be the last there are: a store is not emptied of them before somebody has agreed.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic.agent import feeder
from agentic.brokers.base import Batch, Broker, Position, TopicPartition
from agentic.core.ledger import OffsetLedger
from agentic.errors import StateMismatch, many
from agentic.runtime.marks import WRITTEN, number
from agentic.runtime.state import TaskState
from agentic.table import Table

log = logging.getLogger("agentic.worker")

#: Milliseconds after which a log may have forgotten a tombstone: Kafka's default ``delete.retention.ms``.
TOMBSTONES_KEPT = 24 * 3600 * 1000

#: Tells what the group has committed.
Committed = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, Position | None]]]


@dataclass(frozen=True)
class Changelog:
    """The changelog of one table in one task: its partition, where that starts, and where the table is complete.

    The topic's `id` tells it from one of the same name that was there before.
    """

    table: Table[Any, Any]
    tp: TopicPartition
    start: int
    end: int
    id: str


async def changelogs(
    broker: Broker, tables: Sequence[Table[Any, Any]], partition: int, committed: Committed
) -> list[Changelog]:
    """Return the changelogs of a task's tables.

    Raises:
        BrokerUnavailable: try again.
        StateMismatch: a changelog has no partition of this number.
    """
    found = []
    own = {
        table: TopicPartition(topic, partition)
        for table in tables
        if table.source is None and (topic := table.changelog_topic) is not None
    }
    infos = {table: await broker.describe_topic(tp.topic) for table, tp in own.items()}
    for table, info in infos.items():
        if partition not in info.offsets:
            raise StateMismatch(
                f"changelog {info.name!r} has {many(info.partitions, 'partition')}, and table {table.name!r} is used "
                f"in task {partition}: the topics that its agents read were given more partitions, and their keys go "
                "to others than those that have their rows; 'agentic reset' begins anew with empty tables"
            )
    ends = await broker.end_offsets(own.values(), with_open=True) if own else {}
    for table, tp in own.items():
        found.append(Changelog(table, tp, infos[table].offsets[partition][0], ends[tp], infos[table].id))
    for table in tables:
        if table.source is not None:
            tp = TopicPartition(table.source.name, partition)
            end = end_of_source(table, (await committed([tp])).get(tp))
            info = await broker.describe_topic(tp.topic)
            start = info.offsets[partition][0]
            # Of what is not committed nothing is due yet; but a store of another topic shows at once.
            found.append(Changelog(table, tp, start, start if end is None else end, info.id))
    return found


def end_of_source(table: Table[Any, Any], committed: Position | None) -> int | None:
    """Return up to where the topic that fills a table counts as its changelog; None where nothing is committed.

    Records beyond what was committed of the table's own reading are yet to come to the task, which puts
    them into the table itself. That may be more than the partition's committed offset says.
    """
    return None if committed is None else OffsetLedger(*committed, reader=feeder(table).name).base or 0


async def begin(state: TaskState, changelog: Changelog) -> int:
    """Return the offset from which on a store needs a changelog; it is emptied where it needs all of it.

    Raises:
        StateMismatch: the store has rows of a changelog that is gone, and nobody else may have them.
    """
    table = changelog.table
    at = state.upto.get(table)
    if at is not None and table.source is None and _of_another(state, changelog) and state.store.count(table.name):
        raise StateMismatch(
            f"table {table.name!r} of task {state.name!r}: its local store is of another changelog than "
            f"{changelog.tp.topic!r} is now: if this is another broker than before, give it another state_dir; if that "
            "topic was deleted and made again, or the app was reset from another machine, "
            f"'agentic tables dump {table.name} --local' saves the store's rows and 'agentic tables load' writes them "
            "to the changelog; then --repair moves the store aside"
        )
    if at is not None and (why := _why_whole(state, at, changelog)):
        log.warning("table %s of task %s is restored whole: %s", table.name, state.name, why)
        at = None
    if at is None:
        await state.clear(table)
        at = changelog.start
    state.logs[table] = changelog.id
    return at


def _why_whole(state: TaskState, at: int, changelog: Changelog) -> str | None:
    table = changelog.table
    if _of_another(state, changelog):
        return f"topic {changelog.tp.topic!r} was deleted and made again, or is another broker's"
    if at < changelog.start:
        return f"its changelog begins at {changelog.start} by now, and the local store stands at {at}"
    # A source goes on beyond what was committed of it, and at least once a store may be ahead of that.
    if at > changelog.end and table.source is None:
        return f"its changelog ends at {changelog.end}, and the local store stands at {at}: it was of another one"
    written = number(state.store.mark(WRITTEN))
    if at < changelog.end and written is not None and time.time_ns() // 1_000_000 - written > TOMBSTONES_KEPT:
        return "the local store is so old that deletions may be missing from the changelog"
    return None


def _of_another(state: TaskState, changelog: Changelog) -> bool:
    return state.logs.get(changelog.table, changelog.id) != changelog.id


def part(batch: Batch, start: int, stop: int) -> tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[int]]:
    """Return keys, values and timestamps of a batch's records with ``start <= offset < stop``."""
    offsets = batch.offsets
    if not offsets or (offsets[0] >= start and offsets[-1] < stop):
        return batch.keys, batch.values, batch.timestamps
    within = slice(bisect_left(offsets, start), bisect_left(offsets, stop))
    return batch.keys[within], batch.values[within], batch.timestamps[within]
