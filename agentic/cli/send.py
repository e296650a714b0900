"""``agentic send``."""

from __future__ import annotations

import time

import click

from agentic.app import App
from agentic.brokers.base import Broker, Headers
from agentic.cli import base
from agentic.cli.choice import current
from agentic.cli.completion import topic_names
from agentic.cli.lookup import partitions_of
from agentic.cli.records import Form, clock_time, typed, when
from agentic.errors import BrokerError, ConfigurationError, many

#: Milliseconds from which on records are old enough to ask whether their topic keeps them: hardly any keeps less.
OLD = 3_600_000


@click.command(cls=base.Command)
@click.argument("topic", shell_complete=topic_names)
@click.argument("value", required=False)
@click.option("--key", metavar="KEY", help="Its key; none by default.")
@click.option("--timestamp", metavar="MS|TIME", help="Milliseconds, or ISO 8601 with its zone; now by default.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated.")
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="By the key by default.")
@click.option("--tombstone", is_flag=True, help="Send a null in place of VALUE.")
@click.option(
    "--jsonl",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE|-",
    help="Send the lines of a file; gzip is understood.",
)
@click.option("--resume", is_flag=True, help="With --jsonl: leave out what an interrupted send of this file has sent.")
def send(
    topic: str,
    value: str | None,
    key: str | None,
    timestamp: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    tombstone: bool,
    jsonl: str | None,
    resume: bool,
) -> None:
    """Send one record, or the lines of a file.

    With -A, key and value are checked against the app's declaration of the topic; a str or bytes
    is typed as it stands, anything else as JSON. Else keys are text and values JSON.

    Each line of a --jsonl FILE is a JSON object with "value", and as you like "key", "timestamp"
    (milliseconds), "headers" (an object, or pairs) and "partition".

    --resume counts the records that each partition has. It needs a topic that nothing else writes
    to, and a key or a partition in each line.
    """
    single = value is not None or tombstone
    if single == (jsonl is not None) or (value is not None and tombstone):
        raise click.UsageError("give one of VALUE, --tombstone and --jsonl FILE")
    if resume and jsonl is None:
        raise click.UsageError("--resume goes with --jsonl")
    choice = current()
    app = choice.app_if_named()
    form = Form.of(topic, app)
    if jsonl is not None:
        if key is not None or timestamp is not None or headers or partition is not None:
            raise click.UsageError("--key, --timestamp, --header and --partition stand in the lines of a --jsonl file")
        from agentic.cli.loading import load

        async def send_lines(broker: Broker) -> None:
            partitions = await present(topic, app, broker)
            result = await load(broker, form, partitions, jsonl, resume=resume)
            click.echo(f"sent {many(result.sent, 'record')} to {topic}" + result.remark)
            await _warn_of_retention(topic, result.oldest, broker)

        choice.with_broker(send_lines)
        return
    at = time.time_ns() // 1_000_000 if timestamp is None else _when(timestamp)
    pairs = _headers(headers)

    async def send_one(broker: Broker) -> None:
        partitions = await present(topic, app, broker)
        if partition is not None and partition >= partitions:
            raise ConfigurationError(f"topic {topic!r} has no partition {partition}, only 0 to {partitions - 1}")
        encoded_key = None if key is None else typed(form.key, key, "--key")
        encoded = None if value is None else typed(form.value, value, "value")
        producer = broker.producer()
        try:
            producer.send(topic, encoded_key, encoded, at, pairs, -1 if partition is None else partition)
            await producer.flush()
        finally:
            await producer.close()
        click.echo(f"sent 1 record to {topic}")
        await _warn_of_retention(topic, at, broker)

    choice.with_broker(send_one)


async def _warn_of_retention(topic: str, oldest: int | None, broker: Broker) -> None:
    """Say when records were sent that are older than their topic keeps any: they may be gone before they are read."""
    now = time.time_ns() // 1_000_000
    if oldest is None or now - oldest < OLD:
        return
    try:
        kept = (await broker.describe_topic(topic)).retention_ms
    except BrokerError as error:
        # Whoever may write to a topic need not have the right to see its properties.
        click.echo(f"warning: how long {topic} keeps records is not known: {error}", err=True)
        return
    if kept is not None and now - oldest > kept:
        from agentic.cli.topics import span

        click.echo(
            f"warning: what was sent is as old as {clock_time(oldest)}, and {topic} keeps records for {span(kept)} "
            "after their timestamps: they may be removed at any moment; a topic whose property retention.ms is -1 "
            "keeps all",
            err=True,
        )


async def present(topic: str, app: App | None, broker: Broker) -> int:
    """Return a topic's number of partitions; make it first if it is the app's and the broker makes topics.

    Raises:
        UnknownTopic: it is missing; names the command that makes it.
    """
    if app is not None and topic in app.topics and topic not in await broker.topics():
        from agentic.runtime.topics import ensure

        return (await ensure(app, broker))[topic]
    return await partitions_of(topic, broker)


def _when(text: str) -> int:
    try:
        return when(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--timestamp") from None


def _headers(given: tuple[str, ...]) -> Headers | None:
    pairs = []
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r}: write NAME=VALUE", param_hint="--header")
        pairs.append((name, text.encode()))
    return tuple(pairs) or None
