"""What the open windows of a table wait for, as seen from outside: by what is committed, and where topics end.

A worker knows more: what it has done since its last commit, and in which state an event in flight
is. That is in its metrics and its live table; nothing of it is guessed at here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import nsmallest
from typing import Any, NamedTuple

from agentic.agent import Agent
from agentic.app import App
from agentic.brokers.base import Broker, GroupInfo, TopicPartition
from agentic.cli.contents import Reading, Row
from agentic.cli.places import Place, place_of
from agentic.cli.reading import between
from agentic.cli.records import Form, clock_time, shown
from agentic.cli.topics import span
from agentic.cli.windows import Reader
from agentic.core.metadata import decode
from agentic.core.partitioning import partition_of
from agentic.errors import many
from agentic.runtime.deferrals import decode_row
from agentic.runtime.tables import Times
from agentic.state.window_keys import FIRST, TIMES
from agentic.windows import WindowedTable

Say = Callable[[str], None]


class Open(NamedTuple):
    """An open window; by the ends of these, the oldest is the least."""

    end: int
    start: int
    key: bytes


class Held(NamedTuple):
    """An event that keeps a task's clock back.

    Attributes:
        key: as JSON.
        agent: who has not finished it.
        due: when it comes again, of one that was put off; None of one in flight.
    """

    timestamp: int
    tp: TopicPartition
    offset: int
    key: bytes
    agent: str
    due: int | None = None


class Source(NamedTuple):
    """A partition that a task reads; `base` is its commit position."""

    tp: TopicPartition
    base: int
    end: int


@dataclass
class Waiting:
    """A task's part of a table.

    Attributes:
        times: as they were committed; None before the first event.
        owner: the member of the group that has the task; None: nobody.
        open: how many windows are.
        oldest: the first of them to be closed.
        held: the events known to keep the clock back.
    """

    task: str
    owner: str | None
    times: Times | None = None
    open: int = 0
    oldest: list[Open] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)


async def look(
    app: App, table: WindowedTable[Any, Any], wire: bytes | None, limit: int, broker: Broker, say: Say
) -> list[Waiting]:
    """Look at each task of a table.

    Args:
        wire: a key's bytes, of whose windows alone is asked.
        limit: how many open windows are wanted of a task.
        say: takes a line on where the rows come from.
    """
    known = await broker.topics()
    place = place_of(app, table, known)
    partitions: Iterable[int] = range(place.partitions)
    if wire is not None and table.check_keys:
        partitions = [partition_of(wire, place.partitions)]
    group = await broker.describe_group(app.name)
    owners = {tp: member for member, owned in group.members.items() for tp in owned}
    found = {n: Waiting(place.task(n), owners.get(TopicPartition(place.topic, n))) for n in partitions}
    await _read_windows(app, table, wire, limit, known, broker, say, found)
    await _read_sources(place, group, broker, found)
    for agent in _writers(app, table):
        if not agent.serial:
            await _read_in_flight(app, agent, group, broker, found)
        if agent.deferred is not None:
            await _read_put_off(app, agent, known, broker, found)
    return list(found.values())


def _writers(app: App, table: WindowedTable[Any, Any]) -> Iterator[Agent]:
    return (agent for agent in app.processors() if table in agent.used)


async def _read_windows(
    app: App,
    table: WindowedTable[Any, Any],
    wire: bytes | None,
    limit: int,
    known: Mapping[str, int],
    broker: Broker,
    say: Say,
    found: Mapping[int, Waiting],
) -> None:
    reader = Reader(table)
    low, high = (FIRST, None) if wire is None else reader.range_of(wire)

    async def rows(low: bytes, high: bytes | None, say: Say) -> list[Row] | Iterator[Row]:
        reading = Reading(app, table, known, broker, say)
        return _until_done(reading, await reading.rows(low, high, list(found)))

    for row in await rows(TIMES, FIRST, say):
        assert row.value is not None, "it is never deleted"
        found[row.partition].times = Times.decode(row.value)
    given = {n: -1 if each.times is None else each.times.given for n, each in found.items()}

    def opened() -> Iterator[tuple[int, Open]]:
        for row in windows:
            start, end = reader.bounds(row)
            wanted = reader.is_there(row) and (wire is None or reader.is_of(row, wire))
            if wanted and end > given[row.partition]:
                found[row.partition].open += 1
                yield row.partition, Open(end, start, reader.key(row))

    windows = await rows(low, high, lambda line: None)
    least: dict[int, list[Open]] = {n: [] for n in found}
    for n, each in opened():
        mine = least[n]
        mine.append(each)
        if len(mine) > 1_000 + limit:
            mine[:] = nsmallest(limit, mine)
    for n, each_open in least.items():
        found[n].oldest = nsmallest(limit, each_open)


def _until_done(reading: Reading, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    finally:
        reading.close()


async def _read_sources(place: Place, group: GroupInfo, broker: Broker, found: Mapping[int, Waiting]) -> None:
    tps = [TopicPartition(topic, n) for topic in place.topics for n in found]
    ends = await broker.end_offsets(tps)
    starts = {topic: (await broker.describe_topic(topic)).offsets for topic in place.topics}
    for tp in tps:
        committed = group.positions.get(tp)
        base = starts[tp.topic][tp.partition][0] if committed is None else committed.offset
        found[tp.partition].sources.append(Source(tp, base, ends[tp]))


async def _read_in_flight(
    app: App, agent: Agent, group: GroupInfo, broker: Broker, found: Mapping[int, Waiting]
) -> None:
    """Read the events that an agent had not finished at the last commit, while others behind them were done."""
    unfinished: dict[TopicPartition, tuple[int, ...]] = {}
    names = {topic.name for topic in agent.topics}
    for tp, position in group.positions.items():
        if tp.topic in names and tp.partition in found:
            progress = decode(position.offset, position.metadata, agent.name)
            if progress.unfinished:
                unfinished[tp] = progress.unfinished
    starts = {tp: offsets[0] for tp, offsets in unfinished.items()}
    async for batch in between(broker, starts, {tp: offsets[-1] + 1 for tp, offsets in unfinished.items()}):
        wanted, form = set(unfinished[batch.tp]), Form.of(batch.tp.topic, app)
        for offset, timestamp, key in zip(batch.offsets, batch.timestamps, batch.keys):
            if offset in wanted:
                held = Held(timestamp, batch.tp, offset, shown(form.key, key), agent.name)
                found[batch.tp.partition].held.append(held)


async def _read_put_off(
    app: App, agent: Agent, known: Mapping[str, int], broker: Broker, found: Mapping[int, Waiting]
) -> None:
    assert agent.deferred is not None, "asked only then"
    reading = Reading(app, agent.deferred, known, broker, lambda line: None)
    for row in _until_done(reading, await reading.rows(b"", None, list(found))):
        assert row.value is not None, "only versions may be deleted ones"
        event = decode_row(row.value)
        if event.holds:
            key = shown(Form.of(event.topic, app).key, event.key)
            tp = TopicPartition(event.topic, event.partition)
            found[row.partition].held.append(Held(event.timestamp, tp, event.offset, key, agent.name, event.due_at))


# -- in words ------------------------------------------------------------------------------------


def told(app: App, table: WindowedTable[Any, Any], tasks: Iterable[Waiting]) -> list[str]:
    """Return it in lines."""
    reader, lines, owned = Reader(table), [], False
    idle_after = table.idle_after
    if idle_after is None and app.settings.idle_after is not None:
        idle_after = app.settings.idle_after // timedelta(milliseconds=1)
    for task in tasks:
        owned = owned or task.owner is not None
        lines.append(f"{task.task}, {'which no worker has' if task.owner is None else f'which {task.owner} has'}")
        lines += [f"  {name:<13} {text}" for name, text in _parts(table, reader, task, idle_after)]
    if owned:
        lines.append(
            "What a worker has done since its last commit, and in which state an event in flight is, it alone knows: "
            "'agentic worker --live' and the metrics oldest_window_left and oldest_unfinished tell."
        )
    return lines


def _parts(
    table: WindowedTable[Any, Any], reader: Reader, task: Waiting, idle_after: int | None
) -> Iterator[tuple[str, str]]:
    behind = [source for source in task.sources if source.base < source.end]
    times, windowing = task.times, table.windowing
    if times is None:
        yield "stream time", "none: no event has come to the table"
    else:
        held_back = f", held back at {clock_time(times.held)}" if -1 < times.held < times.time else ""
        yield "stream time", clock_time(times.time) + held_back
        yield "closed", f"what ends {clock_time(times.given)} or before" if times.given >= 0 else "nothing so far"
        # By how much stream time has to be beyond an end.
        beyond = times.time - windowing.last_closed(windowing.close(times.time))
        for i, (end, start, key) in enumerate(task.oldest):
            left = end + beyond - times.held
            when = f"closes in {span(left)} of stream time" if left > 0 else "comes out with the next event"
            yield "" if i else f"{task.open:,} open", f"{key.decode()}  {reader.told(start, end)}  {when}"
        if not task.oldest:
            yield "0 open", "nothing waits"
    for source in behind:
        yield "behind", f"{source.tp} by {many(source.end - source.base, 'record')}, from offset {source.base:,} on"
    if task.held:
        yield "held by", _held(min(task.held, key=lambda held: held.offset), len(task.held))
    yield from _quiet(task, bool(behind), idle_after)


def _held(held: Held, number: int) -> str:
    where = f"{held.tp}@{held.offset}, key {held.key.decode()}, of {clock_time(held.timestamp)}"
    if held.due is None:
        what = f"in flight at the last commit: agent {held.agent!r} has not finished it"
    elif held.due:
        what = f"put off by agent {held.agent!r} until {clock_time(held.due)}"
    else:
        what = f"behind an event that agent {held.agent!r} has put off"
    return f"{where}, {what}" + (f"; and {number - 1:,} more" if number > 1 else "")


def _quiet(task: Waiting, behind: bool, idle_after: int | None) -> Iterator[tuple[str, str]]:
    if not task.open:
        return
    rule = (
        "without idle_after= open windows wait for an event after them, however long"
        if idle_after is None
        else f"when nothing has come for {span(idle_after)}, stream time follows the wall clock (idle_after=)"
    )
    if behind or task.held:
        yield "quiet", "no: there is something to do" + ("" if task.owner else ", for a worker")
    elif task.owner is None:
        yield "quiet", f"all is read, and no worker is there to let time pass; {rule}"
    else:
        yield "quiet", f"all is read; {rule}"
