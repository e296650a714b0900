"""``agentic topics``."""

from __future__ import annotations

import click

from agentic.app import App
from agentic.brokers.base import Broker, TopicInfo, TopicSpec
from agentic.cli import base
from agentic.cli.choice import confirm, current
from agentic.cli.completion import topic_names
from agentic.cli.lookup import INTERNAL, partitions_of
from agentic.errors import many

#: Units of time with their plurals, and how many ms they are.
_UNITS = (
    ("day", "days", 86_400_000),
    ("hour", "hours", 3_600_000),
    ("min", "min", 60_000),
    ("s", "s", 1_000),
    ("ms", "ms", 1),
)


_ALL = click.option("--all", "every", is_flag=True, help=f"With those whose names begin with {INTERNAL}.")


@click.group(cls=base.Group, invoke_without_command=True)
@_ALL
@click.pass_context
def topics(ctx: click.Context, every: bool) -> None:
    """List, describe, create and delete topics. Alone it lists."""
    if ctx.invoked_subcommand is None:
        _list(every)


@topics.command("list")
@_ALL
def list_topics(every: bool) -> None:
    """List the topics with their partitions and offsets.

    The column offsets counts those between start and end of each partition. They are as many as
    the records, except where compaction left gaps, and on Kafka where transactions did: each
    takes an offset for its end.
    """
    _list(every)


def _list(every: bool) -> None:
    from agentic.cli.output import show_table

    choice = current()
    app = choice.app_if_named()

    async def read(broker: Broker) -> list[tuple[str, int | str, int | str]]:
        known = await broker.topics()
        names = sorted(name for name in known if every or not name.startswith(INTERNAL))
        rows: list[tuple[str, int | str, int | str]] = []
        for name in names:
            info = await broker.describe_topic(name)
            rows.append((name, info.partitions, sum(end - start for start, end in info.offsets.values())))
        return rows + [(name, "missing", "") for name in (app.topics if app else ()) if name not in known]

    rows = choice.with_broker(read)
    if not rows:
        click.echo(f"{choice.settings().broker} has no topics", err=True)
        return
    show_table(("topic", "partitions", "offsets"), rows, numbers=("partitions", "offsets"))


@topics.command()
@click.argument("name", shell_complete=topic_names)
def describe(name: str) -> None:
    """Show a topic's partitions: first offset, end, and how many offsets lie between.

    The end is the offset of the next record. Gaps left by compaction count as offsets, and on
    Kafka the ends of transactions do.
    """
    from agentic.cli.output import show_table

    async def read(broker: Broker) -> TopicInfo:
        await partitions_of(name, broker)
        return await broker.describe_topic(name)

    info = current().with_broker(read)
    properties = ["compacted"] if info.compacted else []
    if info.retention_ms is not None:
        properties.append(f"records kept for {span(info.retention_ms)}")
    if info.retention_bytes is not None:
        properties.append(f"{info.retention_bytes:,} bytes a partition kept")
    click.echo(f"{info.name}: {', '.join(properties) or 'all records kept'}")
    rows = [(n, start, end, end - start) for n, (start, end) in sorted(info.offsets.items())]
    show_table(("partition", "start", "end", "offsets"), rows, numbers=("partition", "start", "end", "offsets"))


def span(ms: int) -> str:
    """Return a duration in its largest units, the others left out where they are 0: ``7 days``, ``1 hour 30 min``."""
    parts = []
    for unit, units, size in _UNITS:
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count:,} {unit if count == 1 else units}")
    return " ".join(parts) or "0 ms"


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
        made = choice.with_broker(lambda broker: _make_missing(choice.app(), broker))
    else:
        declared = app.topics.get(name) if app is not None else None
        default = declared.spec(choice.settings()) if declared is not None else None
        if partitions is None:
            partitions = default.partitions if default else choice.settings().topic_partitions
        spec = TopicSpec(name, partitions, compacted=compacted, config=default.config if default else {})
        made = choice.with_broker(lambda broker: _make(broker, [spec]))
    for spec in made:
        click.echo(f"created {spec.name} with {many(spec.partitions, 'partition')}")
    if not made:
        click.echo("nothing to create: the app's topics are all there")


async def _make(broker: Broker, specs: list[TopicSpec]) -> list[TopicSpec]:
    """Make topics; return them."""
    if specs:
        await broker.create_topics(specs)
    return specs


async def _make_missing(app: App, broker: Broker) -> list[TopicSpec]:
    """Make those of an app's topics that are missing; return these."""
    from agentic.runtime.topics import needed

    existing = await broker.topics()
    return await _make(broker, [spec for name, spec in needed(app, existing).items() if name not in existing])


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@click.option("--yes", is_flag=True, help="Don't ask.")
def delete(names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their records."""
    if not yes:
        confirm(f"Delete {', '.join(names)} with all records?")
    current().with_broker(lambda broker: broker.delete_topics(names))
    click.echo(f"deleted {', '.join(names)}")
