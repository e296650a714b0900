"""``agentic groups``."""

from __future__ import annotations

import click

from agentic.brokers.base import Broker, GroupInfo, Position, TopicPartition
from agentic.cli import base
from agentic.cli.choice import confirm, current
from agentic.errors import ConfigurationError


@click.group(cls=base.Group, invoke_without_command=True)
@click.pass_context
def groups(ctx: click.Context) -> None:
    """List, describe, set and delete consumer groups. Alone it lists."""
    if ctx.invoked_subcommand is None:
        _list()


@groups.command("list")
def list_groups() -> None:
    """List the groups with their members and lag."""
    _list()


def _list() -> None:
    from agentic.cli.output import show_table

    async def read(broker: Broker) -> list[tuple[str, int, int]]:
        rows = []
        for name in sorted(await broker.groups()):
            group = await broker.describe_group(name)
            ends = await _ends(broker, group)
            rows.append((name, len(group.members), sum(lag for _, _, _, lag in _lags(group, ends))))
        return rows

    choice = current()
    rows = choice.with_broker(read)
    if not rows:
        click.echo(f"{choice.settings().broker} knows no groups", err=True)
        return
    show_table(("group", "members", "lag"), rows, numbers=("members", "lag"))


@groups.command()
@click.argument("name", required=False)
def describe(name: str | None) -> None:
    """Show what a group has committed, how far behind it is, and who owns what. By default the app's."""
    from agentic.cli.output import show_table

    choice = current()
    group_name = name or choice.app().name

    async def read(broker: Broker) -> tuple[GroupInfo, dict[TopicPartition, int]]:
        group = await broker.describe_group(group_name)
        if not group.members and not group.positions:
            await _check_known(broker, group_name)
        return group, await _ends(broker, group)

    group, ends = choice.with_broker(read)
    owner = {tp: member for member, owned in group.members.items() for tp in owned}
    rows = [
        (tp.topic, tp.partition, "none" if committed is None else committed, end, lag, owner.get(tp, "nobody"))
        for tp, committed, end, lag in _lags(group, ends)
    ]
    columns = ("topic", "partition", "committed", "end", "lag", "member")
    show_table(columns, rows, numbers=("partition", "committed", "end", "lag"))
    for member in sorted(set(group.members) - set(owner.values())):
        click.echo(f"{member} owns nothing")


@groups.command("set")
@click.argument("positions", nargs=-1, required=True, metavar="TOPIC-PARTITION=OFFSET...")
@click.option("--group", metavar="NAME", help="Which group; by default the app's.")
def set_positions(positions: tuple[str, ...], group: str | None) -> None:
    """Set what a group has committed; its workers must have stopped.

    For one partition or several: clicks-0=1200 has the group go on with offset 1200 of partition 0
    of the topic clicks. What is committed of other partitions stays. The rows of tables stay as
    they are: events that are read again are counted again.
    """
    choice = current()
    name = group or choice.app().name
    wanted = dict(map(_position, positions))

    async def commit(broker: Broker) -> None:
        known = await broker.topics()
        for tp, position in wanted.items():
            if tp.partition >= known.get(tp.topic, 0):
                raise ConfigurationError(f"{broker.url} has no partition {tp}; see 'agentic topics list'")
            start, end = (await broker.describe_topic(tp.topic)).offsets[tp.partition]
            if not start <= position.offset <= end:
                raise ConfigurationError(f"{tp} has offsets {start} to {end}: {position.offset} is not among them")
        await broker.set_positions(name, wanted)

    choice.with_broker(commit)
    for tp, position in sorted(wanted.items()):
        click.echo(f"group {name} goes on with offset {position.offset} of {tp}")


def _position(text: str) -> tuple[TopicPartition, Position]:
    where, _, offset = text.rpartition("=")
    topic, _, number = where.rpartition("-")
    if not (topic and number.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is not TOPIC-PARTITION=OFFSET, as in clicks-0=1200")
    return TopicPartition(topic, int(number)), Position(int(offset))


@groups.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
def delete(name: str, yes: bool) -> None:
    """Delete a group with all that it has committed; its workers must have stopped.

    An app of this name begins where its setting offset_reset says, when it is started again. One
    whose tables have counted what it would read does not start: see 'agentic reset'.
    """
    if not yes:
        confirm(f"Delete group {name} with all that it has committed?")

    async def forget(broker: Broker) -> None:
        await _check_known(broker, name)
        await broker.delete_group(name)

    current().with_broker(forget)
    click.echo(f"deleted group {name}")


async def _check_known(broker: Broker, name: str) -> None:
    known = await broker.groups()
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(f"{broker.url} knows no group {name!r}; there are: {there}")


async def _ends(broker: Broker, group: GroupInfo) -> dict[TopicPartition, int]:
    """Return the ends of the group's partitions that are still there."""
    known = await broker.topics()
    every = {*group.positions, *(tp for owned in group.members.values() for tp in owned)}
    return await broker.end_offsets(sorted(tp for tp in every if tp.partition < known.get(tp.topic, 0)))


def _lags(group: GroupInfo, ends: dict[TopicPartition, int]) -> list[tuple[TopicPartition, int | None, int, int]]:
    """Return partition, committed offset, end and lag; what was never committed lags by all there is."""
    rows: list[tuple[TopicPartition, int | None, int, int]] = []
    for tp, end in sorted(ends.items()):
        position = group.positions.get(tp)
        committed = None if position is None else position.offset
        rows.append((tp, committed, end, max(0, end - (committed or 0))))
    return rows
