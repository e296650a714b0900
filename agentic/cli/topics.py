"""``agentic topics``."""

from __future__ import annotations

import sys
from datetime import timedelta

import click

from agentic.brokers.base import Broker, TopicInfo, TopicSpec
from agentic.cli import base
from agentic.cli.choice import current
from agentic.cli.completion import topic_names
from agentic.errors import ConfigurationError


@click.group(cls=base.Group, invoke_without_command=True)
@click.pass_context
def topics(ctx: click.Context) -> None:
    """List, describe, create and delete topics. Alone it lists."""
    if ctx.invoked_subcommand is None:
        _list()


@topics.command("list")
def list_topics() -> None:
    """List the topics with their partitions and records."""
    _list()


def _list() -> None:
    from agentic.cli.output import show_table

    async def read(broker: Broker) -> list[TopicInfo]:
        return [await broker.describe_topic(name) for name in sorted(await broker.topics())]

    choice = current()
    found = choice.with_broker(read)
    app = choice.app_if_named()
    rows: list[tuple[str, int | str, int | str]] = [(info.name, info.partitions, _records(info)) for info in found]
    if app is not None:
        there = {info.name for info in found}
        rows += [(name, "missing", "") for name in app.topics if name not in there]
    show_table(("topic", "partitions", "records"), rows, numbers=("partitions", "records"))


def _records(info: TopicInfo) -> int:
    return sum(end - start for start, end in info.offsets.values())


@topics.command()
@click.argument("name", shell_complete=topic_names)
def describe(name: str) -> None:
    """Show a topic's partitions: first offset, end, and what lies between."""
    from agentic.cli.output import show_table

    info = current().with_broker(lambda broker: broker.describe_topic(name))
    properties = ["compacted"] if info.compacted else []
    if info.retention_ms is not None:
        properties.append(f"records kept for {timedelta(milliseconds=info.retention_ms)}")
    if info.retention_bytes is not None:
        properties.append(f"{info.retention_bytes:,} bytes a partition kept")
    click.echo(f"{info.name}: {', '.join(properties) or 'all records kept'}")
    rows = [(n, start, end, end - start) for n, (start, end) in sorted(info.offsets.items())]
    show_table(("partition", "start", "end", "records"), rows, numbers=("partition", "start", "end", "records"))


@topics.command()
@click.argument("name", required=False, shell_complete=topic_names)
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="By the app's declaration by default.")
@click.option("--compacted", is_flag=True, help="Keep only the last record of each key.")
def create(name: str | None, partitions: int | None, compacted: bool) -> None:
    """Create the topic NAME; without a name, all that the app needs and that are missing."""
    choice = current()
    app = choice.app_if_named()
    if name is None:
        if partitions is not None or compacted:
            raise click.UsageError("--partitions and --compacted go with a NAME")
        from agentic.runtime.topics import needed

        wanted = needed(choice.app())
    else:
        declared = app.topics.get(name) if app is not None else None
        default = declared.spec(choice.settings()) if declared is not None else None
        if partitions is None:
            partitions = default.partitions if default else choice.settings().topic_partitions
        wanted = {name: TopicSpec(name, partitions, compacted=compacted, config=default.config if default else {})}

    async def make(broker: Broker) -> list[TopicSpec]:
        # One that is named must not be there: the broker refuses it.
        existing = await broker.topics() if name is None else {}
        missing = [spec for spec in wanted.values() if spec.name not in existing]
        if missing:
            await broker.create_topics(missing)
        return missing

    made = choice.with_broker(make)
    for spec in made:
        click.echo(f"created {spec.name} with {spec.partitions} partition{'s' if spec.partitions > 1 else ''}")
    if not made:
        click.echo("nothing to create: the app's topics are all there")


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@click.option("--yes", is_flag=True, help="Don't ask.")
def delete(names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their records."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("nobody is there to ask; say --yes to delete")
        click.confirm(f"Delete {', '.join(names)} with all records?", abort=True)
    current().with_broker(lambda broker: broker.delete_topics(names))
    click.echo(f"deleted {', '.join(names)}")
