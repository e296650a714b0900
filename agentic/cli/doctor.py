"""``agentic doctor``."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version

import click

import agentic
from agentic import brokers, settings
from agentic.app import App
from agentic.brokers.base import Broker
from agentic.cli import base
from agentic.cli.choice import current
from agentic.cli.output import show_table
from agentic.errors import AgenticError, many, named
from agentic.settings import Settings

_PACKAGES = ("confluent-kafka", "lmdb", "mode-streaming", "msgspec", "orjson", "click", "rich", "uvloop")
#: A doctor does not let anyone wait as long as a worker does.
_PATIENCE = 10.0
#: Parts of the names of librdkafka properties whose values are nobody's business.
_SECRET = ("password", "secret", "jaas", "key.pem", "token")


@click.command(cls=base.Command)
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Check settings, versions, broker and topics.

    The exit code is 1 if something is wrong. With -A the app's topics and changelogs are checked as well.
    """
    choice = current()
    app = choice.app_if_named()
    chosen = app.settings if app is not None else settings.resolve({"name": "agentic"}, override=choice.overrides)
    problems: list[str] = []

    click.echo("Versions")
    own = [("agentic-streams", agentic.__version__), ("python", platform.python_version())]
    show_table(["package", "version"], own + [(package, _version(package)) for package in _PACKAGES])
    click.echo("\nSettings")
    show_table(["setting", "value", "default", "from"], [_setting(chosen, name) for name in settings.names()])
    if app is not None:
        try:
            app.check()
        except AgenticError as error:
            problems.append(str(error))
    if app is not None or chosen.origins["broker"] != "default":
        click.echo(f"\nBroker {chosen.broker}")
        asyncio.run(_look(chosen, app, problems))
    else:
        click.echo("\nNo app and no broker named: say -A MODULE, or --broker URL, to have those checked")
    click.echo("")
    for problem in problems:
        # The way out on a line of its own: most would not fit on one.
        click.echo("wrong: " + choice.completed(problem).replace("; ", ";\n       "))
    if not problems:
        click.echo("all is well")
    ctx.exit(1 if problems else 0)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _setting(chosen: Settings, name: str) -> tuple[str, str, str, str]:
    return name, show_value(getattr(chosen, name)), show_value(settings.default(name)), chosen.origins[name]


def show_value(value: object) -> str:
    """Return a setting as the environment would have it, without secrets."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, Mapping):
        hidden = {
            name: "***" if any(part in str(name) for part in _SECRET) else content for name, content in value.items()
        }
        return str(hidden) if hidden else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


async def _look(chosen: Settings, app: App | None, problems: list[str]) -> None:
    try:
        broker = brokers.connect(chosen.broker, chosen.broker_options)
        await broker.open(min(_PATIENCE, chosen.start_timeout.total_seconds()))
    except AgenticError as error:
        problems.append(str(error))
        return
    try:
        known = await broker.topics()
        click.echo(f"reached; it has {many(len(known), 'topic')}")
        if app is not None:
            await _check_topics(app, broker, known, problems)
    except AgenticError as error:
        problems.append(str(error))
    finally:
        await broker.close()


async def _check_topics(app: App, broker: Broker, known: Mapping[str, int], problems: list[str]) -> None:
    """Show the app's topics, and note for what a worker would not start."""
    from agentic.runtime import changelogs
    from agentic.runtime.topics import needed

    wanted = app.settings.create_topics
    makes = broker.creates_topics if wanted is None else wanted
    rows = []
    missing = []
    specs = needed(app, known)
    for name in specs:
        declared = app.topics[name].partitions if name in app.topics else None
        made = makes or (name in app.topics and app.topics[name].internal)
        actual = known.get(name)
        if actual is None:
            state = "made at start" if made else "missing"
            if not made:
                missing.append(name)
        elif declared is not None and declared != actual:
            state = "differs"
            problems.append(
                f"topic {name!r} has {actual} partitions, not {declared} as declared; "
                "change the declaration, or make a new topic"
            )
        else:
            state = "there"
        rows.append((name, actual if actual is not None else "-", declared or "-", state))
    agents = app.processors()
    for name in changelogs.names(agents):
        rows.append((name, known.get(name, "-"), "-", "there" if name in known else "made at start"))
    show_table(["topic", "partitions", "declared", "state"], rows, numbers=["partitions", "declared"])
    if missing:
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        problems.append(f"{named('topic', missing)} {are} missing; make {them} with 'agentic topics create'")
        # Nobody knows what numbers of partitions they will have.
        return
    counts = {name: known.get(name, spec.partitions) for name, spec in specs.items()}
    async for problem in changelogs.mismatches(changelogs.wanted(agents, counts), known, broker):
        problems.append(problem)
