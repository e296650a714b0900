"""Everything that agentic raises on purpose.

Each message names the thing, the value and the way out: the command line prints it on one line,
and a traceback only with ``--debug``. A command of ours stands in quotes in it, as 'agentic topics
list': the command line fills in the app and the broker that it was told, so that it can be copied.
"""

from __future__ import annotations

from collections.abc import Iterable


def named(what: str, names: Iterable[str]) -> str:
    """Return what a message calls one thing or several: ``topic 'a'``, ``topics 'a', 'b' and 'c'``."""
    *others, last = map(repr, names)
    return f"{what}s {', '.join(others)} and {last}" if others else f"{what} {last}"


def many(number: int, what: str) -> str:
    """Return a number of things: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class AgenticError(Exception):
    """Base of all errors that agentic raises itself."""


class ConfigurationError(AgenticError):
    """A declaration or a setting can't work as it stands; raised before the first event."""


class CoPartitionError(ConfigurationError):
    """Topics that must share their partitioning have different numbers of partitions."""


class CodecError(AgenticError):
    """A value can't be turned into bytes, or bytes into a value of the declared type."""


class BrokerError(AgenticError):
    """The broker refused, or something that it keeps is not as it must be."""


class BrokerUnavailable(BrokerError):
    """The broker can't be reached for now. Who waits and tries again may succeed."""


class UnknownTopic(BrokerError):
    """A topic, or a partition of it, does not exist."""


class TopicExists(BrokerError):
    """A topic of this name is there already."""


class RecordTooLarge(BrokerError):
    """A record is larger than the broker takes. Sending it again can't succeed."""


class DeliveryFailed(BrokerError):
    """A record that was sent could not be written, for good."""


class StorageFull(BrokerError):
    """No space is left where the broker keeps its records. Nothing was half-written."""


class StorageCorrupt(BrokerError):
    """A file of the embedded log or of a task's state is damaged, foreign, or of a newer format."""


class NotOwner(BrokerError):
    """The group moved on: these partitions belong to another member now. Nothing was committed."""


class Fenced(BrokerError):
    """Another process uses the same static member id or transactional id, and has the right to it."""


class TransactionAborted(BrokerError):
    """The transaction was undone whole, its records and its offsets; the work must be read again."""


class AgentFailed(AgenticError):
    """An agent raised, or ended before its stream did. Nothing is committed past the event."""


class NoAnswer(AgenticError):
    """An agent was done with a request, and yielded nothing for it."""


class AskFailed(AgenticError):
    """A request was given up: dead-lettered, rejected or skipped. Or its answer can't be read."""


class AskTimeout(AgenticError, TimeoutError):
    """No answer came in time. The request may still be worked on."""


class AttemptTimeout(AgenticError, TimeoutError):
    """An attempt on an event was ended from outside: it took longer than its agent allows."""


class DecodeFailed(CodecError):
    """A record of a source can't be decoded, and the policy is to stop. Nothing is committed past it."""


class TaskFailed(AgenticError):
    """A coroutine declared by ``@app.task``, or the app's lifespan, raised."""


class TableUnavailable(AgenticError):
    """A table was used where there is no partition of it: outside of an agent's loop, or after the task left."""


class WrongPartition(AgenticError):
    """A key is not one that the task, or the current event, may write. `Topic.group_by` brings events to a key."""


class StateMismatch(BrokerError):
    """A local store, or a changelog, belongs to something else than the table that is declared."""


def words(error: BaseException) -> str:
    """What a message says of an error in a user's code."""
    if isinstance(error, SystemExit):
        # Let through, it would end the process at once: no commit, and no word of who it was.
        return f"it called sys.exit({'' if error.code is None else repr(error.code)}); to stop a worker send it SIGTERM"
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as unsaid:  # noqa: BLE001 - a user's class may raise anything there; the message is told all the same
        return f"{name} (its __str__ raised {type(unsaid).__name__})"
    said = f"{name}: {text}" if text else name
    if isinstance(error, BaseExceptionGroup):
        # Its own text only counts them.
        return f"{said}: {'; '.join(map(words, error.exceptions))}"
    return said
