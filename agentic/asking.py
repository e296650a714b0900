"""Asking agents: what requests and answers are on the wire, and who asks without a worker.

A request is a record of the agent's first topic. Its headers, beside the asker's own:

=======================  ==============================================================
``agentic-ask``          the agent that is asked; others that read the topic take the
                         record like any other
``agentic-reply-to``     the key of the answers, which brings them to the partition of the
                         app's topic ``<app>-replies`` that the asker reads
``agentic-correlation``  which of the asker's requests it is
=======================  ==============================================================

A header never names the topic that an answer goes to: who may write to the source could
otherwise have the worker write anywhere. The headers of an answer:

=======================  ==============================================================
``agentic-correlation``  that of the request
``agentic-answer``       ``value``; ``none``: the agent was done without a yield;
                         ``failed``: the event was given up, the value says why
``agentic-index``        of a value: which of the event's yields it is, from 0
``agentic-count``        of the first value: how many there are
=======================  ==============================================================
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from agentic import codecs
from agentic.brokers.base import Headers, TopicSpec
from agentic.codecs import Codec
from agentic.core.times import seconds
from agentic.errors import ConfigurationError, NoAnswer
from agentic.settings import Settings
from agentic.stream import WAIT, Event, HeadersLike, Outlet, Stream, current_outlet
from agentic.topic import Home, Topic, wire_headers

if TYPE_CHECKING:
    from agentic.agent import Agent

ASK, REPLY_TO, CORRELATION = "agentic-ask", "agentic-reply-to", "agentic-correlation"
ANSWER, INDEX, COUNT = "agentic-answer", "agentic-index", "agentic-count"

#: How long answers are kept; an asker that waits has them long before. In milliseconds.
RETENTION = 3_600_000
#: Bytes that an address or a correlation id has at most: they go into each answer, whoever wrote the request.
LONGEST_ID = 64


class Replies(Topic[bytes, bytes]):
    """The topic that an app's answers go to."""

    def __init__(self, home: Home) -> None:
        # By the broker's clock: an answer is as old as it is, whatever the clocks of workers say.
        config = {"message.timestamp.type": "LogAppendTime"}
        super().__init__(home, replies_name(home.app), key=bytes, value=bytes, internal=True, config=config)

    def spec(self, settings: Settings) -> TopicSpec:
        partitions = self.partitions or settings.topic_partitions
        return TopicSpec(self.name, partitions, retention_ms=RETENTION, config=self.config)


def replies_name(app: str) -> str:
    """Return the name of the topic that an app's answers go to."""
    return f"{app}-replies"


def declare_replies(home: Home) -> None:
    """Have an app own a topic for answers.

    Raises:
        ConfigurationError: it has another one of that name.
    """
    name = replies_name(home.app)
    if not isinstance(home.topics.setdefault(name, Replies(home)), Replies):
        raise ConfigurationError(
            f"topic {name!r} is declared, and is where answers of agents with replies=True go; give it another name"
        )


# -- on the wire ------------------------------------------------------------------------------


class Request(NamedTuple):
    """Whom to answer, and what the asker calls the request."""

    address: bytes
    correlation: bytes


Kind = Literal["value", "none", "failed"]


@dataclass(frozen=True)
class Answer:
    """What an asker is told.

    Attributes:
        index: which of the event's answers it is.
        count: of the first: how many there are; None of the others.
    """

    correlation: bytes
    kind: Kind
    value: bytes | None
    index: int = 0
    count: int | None = None


def request_headers(agent: str, request: Request, headers: HeadersLike | None) -> Headers:
    """Return the headers of a request; those of another one that the asker passes on are left out.

    Raises:
        TypeError: a name is no str, or a value neither bytes nor str.
    """
    ours = ((ASK, agent.encode()), (REPLY_TO, request.address), (CORRELATION, request.correlation))
    own = wire_headers(headers) or ()
    return (*ours, *(header for header in own if header[0] not in (ASK, REPLY_TO, CORRELATION)))


def asked_agent(event: Event) -> str | None:
    """Return the name of the agent that an event is a request to; None for one that is none."""
    if event.raw_headers is None:
        return None
    for name, value in event.headers:
        if name == ASK:
            return value.decode("utf-8", "replace")
    return None


def request_of(event: Event, agent: str) -> Request | None:
    """Return what an event asks of an agent; None where it asks nothing, or asks another one."""
    if asked_agent(event) != agent:
        return None
    found = dict(reversed(event.headers))
    request = Request(found.get(REPLY_TO, b""), found.get(CORRELATION, b""))
    return request if all(0 < len(part) <= LONGEST_ID for part in request) else None


def answer_headers(answer: Answer) -> Headers:
    """Return the headers of an answer."""
    headers = [(CORRELATION, answer.correlation), (ANSWER, answer.kind.encode())]
    if answer.kind == "value":
        headers.append((INDEX, b"%d" % answer.index))
        if answer.count is not None:
            headers.append((COUNT, b"%d" % answer.count))
    return tuple(headers)


def read_answer(headers: Headers, value: bytes | None) -> Answer:
    """Return what a record of the replies topic says.

    Raises:
        ValueError: it is no answer.
    """
    found = dict(headers)
    kind = found.get(ANSWER, b"").decode("ascii", "replace")
    if kind not in ("value", "none", "failed") or CORRELATION not in found:
        raise ValueError(f"its headers are not those of an answer: {headers!r}")
    count = found.get(COUNT)
    return Answer(
        found[CORRELATION],
        cast("Kind", kind),
        value,
        int(found.get(INDEX, b"0")),
        None if count is None else int(count),
    )


def answer_codec(agent: Agent) -> Codec[Any]:
    """Return the codec of an agent's answers: that of the topic that its yields go to, or JSON."""
    return codecs.value_codec(None) if agent.to is None else agent.to.value


# -- asking -----------------------------------------------------------------------------------


class Asker(Protocol):
    """Puts requests and waits for their answers."""

    async def ask(
        self,
        agent: Agent,
        value: Any,
        *,
        key: Any,
        timeout: float,
        headers: HeadersLike | None,
        timestamp: int | None,
        every: bool,
    ) -> list[Any]:
        """Return the answers: the first, or with `every` all of them; none where the agent gave none."""


async def ask(
    asker: Asker | None,
    agent: Agent,
    value: Any,
    key: Any,
    timeout: timedelta | float,
    headers: HeadersLike | None,
    *,
    every: bool,
) -> list[Any]:
    """See `Agent.ask` and `Agent.ask_all`."""
    name = agent.name
    within = seconds(timeout)
    if not within:
        raise ValueError(f"agent {name!r}: ask(timeout={timeout!r}): give a timedelta or seconds above 0")
    if not agent.execution.replies:
        raise ConfigurationError(f"agent {name!r} answers nobody; declare it by @app.agent(…, replies=True)")
    topic = inlet(agent)
    outlet = current_outlet.get(None)
    timestamp = None
    if isinstance(outlet, Stream):
        if getattr(outlet, "agent", None) is agent and not _overlaps(agent):
            raise ConfigurationError(
                f"agent {name!r} asks itself, and works on one event after the other: the answer would wait for who "
                "waits for it; call a function that both use, or declare concurrency="
            )
        with suppress(LookupError):  # it asks before its loop, or after
            timestamp = outlet.event.timestamp
    if asker is None:
        raise RuntimeError(
            f"agent {name!r}: ask() needs a running worker of app {topic.home.app!r}, or a client: "
            "async with app.client() as client"
        )
    answers = await asker.ask(agent, value, key=key, timeout=within, headers=headers, timestamp=timestamp, every=every)
    if not answers and not every:
        raise NoAnswer(f"agent {name!r} was done with the request and yielded nothing for it")
    return answers


def inlet(agent: Agent) -> Topic[Any, Any]:
    """Return the topic by which an agent is asked and told things.

    Raises:
        ConfigurationError: it reads none.
    """
    if not agent.topics:
        raise ConfigurationError(
            f"agent {agent.name!r} reads changes of tables, and no topic that something could be sent to"
        )
    return agent.topics[0]


def _overlaps(agent: Agent) -> bool:
    """May an agent work on one event of a partition while another waits?"""
    return agent.execution.concurrent and agent.execution.order != "partition"


class Client:
    """Asks an app's agents from where no worker of it runs. Made by `App.client`."""

    def __init__(self, home: Home, outlet: Outlet, asker: Asker) -> None:
        self._home = home
        self._outlet = outlet
        self._asker = asker

    async def ask(
        self,
        agent: Agent,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> Any:
        """Ask an agent and return its answer: see `Agent.ask`."""
        self._check(agent)
        return (await ask(self._asker, agent, value, key, timeout, headers, every=False))[0]

    async def ask_all(
        self,
        agent: Agent,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> list[Any]:
        """Ask an agent and return all its answers: see `Agent.ask_all`."""
        self._check(agent)
        return await ask(self._asker, agent, value, key, timeout, headers, every=True)

    async def cast(
        self, agent: Agent, value: Any = None, *, key: Any = None, headers: HeadersLike | None = None
    ) -> None:
        """Tell an agent something, without an answer: see `Agent.cast`."""
        self._check(agent)
        await self._outlet.send(inlet(agent), key, value, headers, None, None)

    def _check(self, agent: Agent) -> None:
        if not any(topic.home is self._home for topic in agent.inputs):
            raise ConfigurationError(f"{agent!r} is no agent of app {self._home.app!r}, whose client is asked")
