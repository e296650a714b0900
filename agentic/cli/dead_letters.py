"""``agentic dead-letters``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from agentic.app import App
from agentic.brokers.base import Broker
from agentic.cli import base
from agentic.cli.choice import Choice, confirm, current
from agentic.cli.records import Form, clock_time, line_of, shown, when
from agentic.errors import AgenticError, ConfigurationError, many, named

if TYPE_CHECKING:
    from agentic.cli.replaying import Letter, Letters, Place, Plan

#: Units of an age, the largest first, in seconds.
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def _topics(app: App) -> list[str]:
    """The app's dead letter topics."""
    declared = [agent.execution.dead_letter for agent in app.agents.values()]
    names = [topic.name for topic in declared if topic is not None]
    return sorted({*names, *([app.settings.dead_letter] if app.settings.dead_letter else [])})


def _names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """What a shell may propose: the app's dead letter topics."""
    try:
        app = ctx.find_root().ensure_object(Choice).app_if_named()
    except AgenticError:
        return []
    return [name for name in (_topics(app) if app else ()) if name.startswith(incomplete)]


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return ms since the epoch for a time, or an age before now."""
    if value is None:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value):
        return round((time.time() - float(found[1]) * _UNITS[found[2]]) * 1000)
    try:
        return when(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}; or write an age, as 90s, 30m, 2h or 7d") from None


def _place(value: str) -> Place:
    found = re.fullmatch(r"(\d+)[@:](\d+)", value)
    if found is None:
        raise click.BadParameter(f"{value!r}: write PARTITION@OFFSET, such as 0@17")
    return int(found[1]), int(found[2])


def _filters(fn: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which letters are meant."""
    for option in (
        click.option(
            "--since", callback=_since, metavar="AGE|TIME", help="Only events since: 2h, 7d, ISO 8601, or ms."
        ),
        click.option("--error", metavar="TEXT", help="Only those whose error has TEXT in it, in any case of letters."),
        click.option("--agent", metavar="NAME", help="Only those that it gave up; '': what could not be decoded."),
    ):
        fn = option(fn)
    return fn


_TOPIC = click.argument("topic", shell_complete=_names)


@click.group("dead-letters", cls=base.Group)
def dead_letters() -> None:
    """Look into dead letter topics; send records back.

    A dead letter is an event that was given up: the record as it came, with headers that say where
    from, by which agent and why. No worker needs to run, and without -A any topic of them can be
    looked into.
    """


@dead_letters.command()
@click.argument("topic", required=False, shell_complete=_names)
@_filters
@click.option("--jsonl", is_flag=True, help="Lines of JSON, with keys and values.")
def ls(topic: str | None, agent: str | None, error: str | None, since: int | None, jsonl: bool) -> None:
    """List the letters of TOPIC; without it, the app's dead letter topics.

    A line is a letter: its place as partition@offset, where it came from, how long ago the event
    was, the agent, how often that tried it, and the error. Those that were sent back say so.
    """
    from agentic.cli.replaying import Letters, Wanted

    choice = current()
    if topic is None:
        if jsonl or since is not None or agent is not None or error is not None:
            raise click.UsageError("--agent, --error, --since and --jsonl go with a TOPIC")
        _list(choice.app())
        return
    wanted, app, now = Wanted(agent, error, since), choice.app_if_named(), time.time()

    async def read(broker: Broker) -> Letters:
        letters = await Letters.of(topic, broker)
        async for letter in letters.read():
            if wanted(letter):
                click.echo(_json(letter, app) if jsonl else _line(letter, now))
        return letters

    letters = choice.with_broker(read)
    letters.check()
    if letters.others:
        click.echo(f"{topic} has {many(letters.others, 'record')} beside, no dead letters", err=True)
    elif not letters.found:
        click.echo(f"{topic} has no dead letters", err=True)


def _list(app: App) -> None:
    from agentic.cli.output import show_table
    from agentic.cli.replaying import Letters

    names = _topics(app)
    if not names:
        raise ConfigurationError(
            f"app {app.name!r} declares no dead letter topic; name one, or write @app.agent(…, dead_letter=topic)"
        )

    async def read(broker: Broker) -> list[tuple[str, int | str, int | str, str]]:
        known = await broker.topics()
        rows: list[tuple[str, int | str, int | str, str]] = []
        for name in names:
            if name not in known:
                rows.append((name, "missing", "", ""))
                continue
            letters = await Letters.of(name, broker)
            replayed, last = 0, None
            async for letter in letters.read():
                replayed += letter.replayed
                last = max(letter.story.timestamp, last or 0)
            rows.append((name, letters.found, replayed, "" if last is None else _age(last, time.time())))
        return rows

    show_table(("topic", "letters", "sent back", "last"), current().with_broker(read), numbers=("letters", "sent back"))


def _line(letter: Letter, now: float) -> str:
    row, story = letter.row, letter.story
    parts = [
        f"{row.partition}@{row.offset}",
        f"{story.topic}-{story.partition}@{story.offset}",
        _age(story.timestamp, now),
        story.agent or "not decoded",
        many(story.attempts, "attempt"),
        *(["sent back"] if letter.replayed else []),
        " ".join(story.error.split()),
    ]
    return "  ".join(parts)


def _age(timestamp: int, now: float) -> str:
    """Return how long ago something was, in its largest unit."""
    age = max(0, int(now - timestamp / 1000))
    unit, size = next(((unit, size) for unit, size in _UNITS.items() if age >= size), ("s", 1))
    return f"{age // size:,} {unit} ago"


def _json(letter: Letter, app: App | None) -> bytes:
    import msgspec

    row, story = letter.row, letter.story
    record = line_of(Form.of(story.topic, app), row.key, row.value, story.timestamp, story.headers, row.partition)
    head = {
        "place": f"{row.partition}@{row.offset}",
        "topic": story.topic,
        "partition": story.partition,
        "offset": story.offset,
        "agent": story.agent or None,
        "attempts": story.attempts,
        "error": story.error,
        "replays": story.replays,
        "sent_back": letter.replayed,
    }
    own = msgspec.json.decode(record, type=dict[str, msgspec.Raw])
    del own["partition"]
    return msgspec.json.encode(head | own)


@dead_letters.command()
@_TOPIC
@click.argument("place", callback=lambda _ctx, _param, value: _place(value), metavar="PARTITION@OFFSET")
def show(topic: str, place: Place) -> None:
    """Show all of one letter.

    With -A, key and value are shown by the app's declaration of the topic that the record came
    from; else, and where they don't fit it, as text, JSON or bytes.
    """
    from agentic import codecs
    from agentic.cli.replaying import Letters

    choice = current()
    app = choice.app_if_named()

    async def read(broker: Broker) -> Letter:
        return await (await Letters.of(topic, broker)).at(place)

    row, story, replayed = choice.with_broker(read)
    form = Form.of(story.topic, app)
    lines = [
        ("letter", f"{topic}-{row.partition}@{row.offset}" + (", sent back" if replayed else "")),
        ("from", f"{story.topic}-{story.partition}@{story.offset}"),
        ("time", f"{clock_time(story.timestamp)}, {_age(story.timestamp, time.time())}"),
        ("agent", story.agent or "none: it could not be decoded"),
        ("attempts", str(story.attempts)),
        ("error", story.error),
        ("key", shown(form.key, row.key).decode()),
        ("value", shown(form.value, row.value).decode()),
        *((f"header {name}", shown(codecs.key_codec(None), text).decode()) for name, text in story.headers),
    ]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{name:<{width}}  {text}")


@dead_letters.command()
@_TOPIC
@_filters
@click.option(
    "--offset",
    "places",
    callback=lambda _ctx, _param, values: tuple(map(_place, values)),
    metavar="PARTITION@OFFSET",
    multiple=True,
    help="Only this one; may be repeated.",
)
@click.option("--to", metavar="TOPIC", help="Send them there, and not to the topics that they came from.")
@click.option("--again", is_flag=True, help="Those too that were sent back before.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def replay(
    topic: str,
    agent: str | None,
    error: str | None,
    since: int | None,
    places: tuple[Place, ...],
    to: str | None,
    again: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send records back to where they came from.

    A record goes to its topic and partition with its key, value, own headers and timestamp as they
    were, and the header agentic-replayed: how often it was sent back by now, and from which
    letter. With --to, or where its partition is gone, its key says which partition.

    Each letter is sent back once: a consumer group, TOPIC-replayed, remembers which were. They stay
    in their topic until its retention takes them.
    """
    from agentic.cli.lookup import partitions_of
    from agentic.cli.replaying import Letters, Wanted

    choice = current()
    wanted = Wanted(agent, error, since, frozenset(places))

    async def look(broker: Broker) -> Plan:
        if to is not None:
            await partitions_of(to, broker)
        letters = await Letters.of(topic, broker)
        for place in places:
            await letters.at(place)
        return await letters.plan(wanted, to=to, again=again)

    plan = choice.with_broker(look)
    total = plan.targets.total()
    targets = ", ".join(f"{count:,} to {name}" for name, count in sorted(plan.targets.items()))
    if plan.before:
        click.echo(f"left out, as sent back before: {many(plan.before, 'letter')}; --again sends them again")
    if not total:
        click.echo("nothing to send back")
    elif dry_run:
        click.echo(f"would send back {many(total, 'letter')}: {targets}")
    else:
        if not yes:
            confirm(f"Send back {many(total, 'letter')}: {targets}?", "send")

        async def send(broker: Broker) -> int:
            return await (await Letters.of(topic, broker)).send(plan, to=to)

        sent = choice.with_broker(send)
        gone = f"; {many(total - sent, 'letter')} are gone by now, by retention" if sent < total else ""
        click.echo(f"sent back {many(sent, 'letter')}: {targets}{gone}")
    if plan.missing:
        raise ConfigurationError(
            f"left {many(plan.missing.total(), 'letter')}: there is no {named('topic', sorted(plan.missing))} to send "
            f"to; make it with 'agentic topics create {min(plan.missing)}', or say --to TOPIC"
        )
