"""``agentic reset``."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from agentic.app import App
from agentic.brokers.base import Broker
from agentic.cli import base
from agentic.cli.choice import confirm, current
from agentic.errors import ConfigurationError, many, named


@click.command(cls=base.Command)
@click.option("--yes", is_flag=True, help="Don't ask.")
def reset(yes: bool) -> None:
    """Delete all that the app remembers.

    It begins anew then. What is deleted are the committed offsets of its group, the changelogs of
    its tables, the topics that are made for it alone, and this machine's local state. The topics
    that it reads and writes stay as they are. Its workers must have stopped.

    Local state on other machines is out of reach: delete the directory of the setting state_dir there.
    """
    choice = current()
    app = choice.app()
    found = choice.with_broker(lambda broker: _look(app, broker))
    if not found:
        click.echo(f"nothing to delete: app {app.name} remembers nothing")
        return
    for line in found.lines():
        click.echo(line)
    if not yes:
        confirm("Delete all this?")
    choice.with_broker(lambda broker: found.delete(app, broker))
    click.echo(f"app {app.name} begins anew")


@dataclass(frozen=True)
class Memory:
    """What an app remembers, as far as it is there.

    Attributes:
        group: with what it has committed, None where there is none.
        offsets: in how many partitions it has committed.
        changelogs, internal: topics with the number of offsets that each has.
        local: the directory with this machine's copies of the tables, None where there is none.
    """

    group: str | None
    offsets: int
    changelogs: dict[str, int]
    internal: dict[str, int]
    local: Path | None

    def __bool__(self) -> bool:
        return bool(self.group or self.changelogs or self.internal or self.local)

    def lines(self) -> list[str]:
        """Say what there is, a line each."""
        lines = []
        if self.group:
            lines.append(f"group {self.group}: committed in {many(self.offsets, 'partition')}")
        lines += [f"changelog {name}: {many(offsets, 'offset')}" for name, offsets in self.changelogs.items()]
        lines += [f"internal topic {name}: {many(offsets, 'offset')}" for name, offsets in self.internal.items()]
        if self.local:
            lines.append(f"local state {self.local}: {_size(self.local):,} bytes")
        return lines

    async def delete(self, app: App, broker: Broker) -> None:
        """Delete it. The group goes first: a broker refuses that while a worker lives, and the rest is untouched."""
        await check_stopped(app, broker, "reset")
        if self.group:
            await broker.delete_group(self.group)
        if topics := [*self.changelogs, *self.internal]:
            await broker.delete_topics(topics)
        if self.local:
            try:
                shutil.rmtree(self.local)
            except OSError as error:
                raise ConfigurationError(
                    f"local state {str(error.filename or self.local)!r}: {error.strerror}; delete it by hand"
                ) from None


async def _look(app: App, broker: Broker) -> Memory:
    """Return what is there to delete.

    Raises:
        ConfigurationError: a worker of the app is alive.
    """
    from agentic.cli.places import state_home

    await check_stopped(app, broker, "reset")
    known = await broker.topics()
    # Not those of the tables that a topic fills: it is others who write that.
    changelogs = [spec.name for table in app.tables.values() if (spec := table.spec(1)) is not None]
    internal = [topic.name for topic in app.topics.values() if topic.internal]
    group = app.name if app.name in await broker.groups() else None
    positions = (await broker.describe_group(app.name)).positions if group else {}
    home = state_home(app.settings)
    return Memory(
        group,
        len(positions),
        {name: await _offsets(broker, name) for name in changelogs if name in known},
        {name: await _offsets(broker, name) for name in internal if name in known},
        home if home.is_dir() else None,
    )


async def check_stopped(app: App, broker: Broker, what: str) -> None:
    """Raise `ConfigurationError` while a worker of the app is alive, on this machine or another."""
    from agentic.cli.places import copies_by_task, is_in_use

    if members := (await broker.describe_group(app.name)).members:
        timeout = app.settings.session_timeout.total_seconds()
        raise ConfigurationError(
            f"app {app.name!r} has {named('live worker', sorted(members))}: stop them before the {what}; one that was "
            f"killed counts as alive until its session_timeout has passed, {timeout:g} s"
        )
    for copy in (copy for found in copies_by_task(app.settings).values() for copy in found):
        if is_in_use(copy):
            raise ConfigurationError(
                f"{copy.directory}: a process that has left the group still has it open; stop it before the {what}"
            )


async def _offsets(broker: Broker, topic: str) -> int:
    return sum(end - start for start, end in (await broker.describe_topic(topic)).offsets.values())


def _size(directory: Path) -> int:
    """Return what a directory's files take on the disk; LMDB's are larger by name than by their blocks."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            # Something that goes by itself, such as a reader's lock.
            continue
    return total
