"""Dead letters: an event that is given up, as it came, with the story of where it came from and why.

The headers of a letter, beside the record's own:

====================  ==================================================
``agentic-topic``     where it came from
``agentic-partition`` likewise
``agentic-offset``    likewise
``agentic-timestamp`` of the event, in ms
``agentic-error``     why it was given up
``agentic-attempts``  how often it was tried; 0 where it could not be decoded
``agentic-agent``     who gave it up; absent where it could not be decoded
====================  ==================================================

A letter that is given up again (its topic was read by an agent that failed, too) keeps the
record's own headers and has these anew.

A record that was sent back to its topic is a record like any other, with a mark among its own
headers: ``agentic-replayed``, as ``2 failed-0@17``: how often it was sent back by now, and the
letter that it was last. The mark stays if it is given up once more. Attempts are counted anew in
each life: they say how often the agent has tried *this* record, the mark how many lives it has had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentic.agent import Agent
from agentic.brokers.base import Headers
from agentic.errors import ConfigurationError
from agentic.settings import Settings
from agentic.stream import Event
from agentic.topic import Outgoing

#: Characters of an error that a letter carries at most: a message may quote a whole record.
LONGEST_ERROR = 1_000
#: What all names of our headers begin with.
PREFIX = "agentic-"
#: Headers of the story; a record that comes with them has been given up before.
STORY = tuple(PREFIX + name for name in ("topic", "partition", "offset", "timestamp", "error", "attempts", "agent"))
#: The header of a record that was sent back.
REPLAYED = PREFIX + "replayed"


class Story(NamedTuple):
    """What the headers of a dead letter say.

    Attributes:
        topic, partition, offset: where it came from.
        timestamp: of the event, in ms.
        error: why it was given up.
        attempts: how often it was tried.
        agent: who gave it up; empty where it could not be decoded.
        replays: how often it had been sent back before.
        headers: the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    error: str
    attempts: int
    agent: str
    replays: int
    headers: Headers

    @classmethod
    def of(cls, headers: Sequence[tuple[str, bytes | None]]) -> Story | None:
        """Read a record's headers; None where it is no dead letter of ours."""
        said = {name: (text or b"").decode("utf-8", "replace") for name, text in headers}
        topic, partition, offset, timestamp, error, attempts, agent = (said.get(name, "") for name in STORY)
        numbers = [partition, offset, timestamp, attempts]
        if not topic or not all(text.isascii() and text.isdigit() for text in numbers):
            return None
        mark = said.get(REPLAYED, "").partition(" ")[0]
        return cls(
            topic,
            int(partition),
            int(offset),
            int(timestamp),
            error,
            int(attempts),
            agent,
            int(mark) if mark.isascii() and mark.isdigit() else 0,
            tuple((name, text or b"") for name, text in headers if name not in STORY),
        )

    def marked(self, letter: str) -> Headers:
        """Return the headers with which the record is sent back.

        Args:
            letter: the dead letter's own topic, partition and offset, as ``failed-0@17``.
        """
        own = tuple(header for header in self.headers if header[0] != REPLAYED)
        return (*own, (REPLAYED, f"{self.replays + 1} {letter}".encode()))


def letter(topic: str, event: Event, reason: str, *, attempts: int = 0, agent: str = "") -> Outgoing:
    """Return the record that goes to a dead letter topic for an event.

    Args:
        topic: the dead letter topic's name.
        reason: why it is given up.
        attempts: how often it was tried.
        agent: who gave it up.
    """
    error = reason if len(reason) <= LONGEST_ERROR else reason[:LONGEST_ERROR] + "…"
    story = [
        ("topic", event.topic),
        ("partition", str(event.partition)),
        ("offset", str(event.offset)),
        ("timestamp", str(event.timestamp)),
        ("error", error),
        ("attempts", str(attempts)),
        *([("agent", agent)] if agent else []),
    ]
    own = tuple(header for header in event.headers if header[0] not in STORY)
    headers = own + tuple((PREFIX + name, text.encode("utf-8", "replace")) for name, text in story)
    return (topic, event.raw_key, event.raw_value, event.timestamp, headers, -1)


class Policy:
    """What becomes of one agent's events that have failed for good.

    Attributes:
        topic: the name of the dead letter topic, None without one.
        on_exhausted: "dead_letter", "stop", "skip" or "defer".
    """

    def __init__(self, agent: Agent, settings: Settings) -> None:
        execution = agent.execution
        self._agent = agent.name
        self.topic = settings.dead_letter if execution.dead_letter is None else execution.dead_letter.name
        declared = execution.on_exhausted or ("dead_letter" if execution.dead_letter is not None else None)
        self.on_exhausted: str = declared or settings.on_error
        if self.on_exhausted == "dead_letter" and self.topic is None:
            raise ConfigurationError(
                f"agent {agent.name!r}: what it gives up goes to a dead letter topic, and there is none: "
                "declare dead_letter=topic for the agent, or dead_letter= for the app"
            )

    def letter(self, event: Event, reason: str, attempts: int) -> Outgoing:
        """Return the dead letter of an event.

        Raises:
            ConfigurationError: there is no topic for it.
        """
        if self.topic is None:
            raise ConfigurationError(
                f"agent {self._agent!r} rejects an event, and there is no dead letter topic: "
                "declare dead_letter=topic for the agent, or dead_letter= for the app"
            )
        if event.raw_value is None and event.value is not None:
            # A change of a table was never a record: what it says goes on as JSON.
            topic, key, _, timestamp, headers, partition = letter(
                self.topic, event, reason, attempts=attempts, agent=self._agent
            )
            return (topic, key, event.origin.topic.encode_value(event.value), timestamp, headers, partition)
        return letter(self.topic, event, reason, attempts=attempts, agent=self._agent)
