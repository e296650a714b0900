"""What those who ask an agent are told: records that belong to the effects of the event that they asked by.

While an event that is a request is worked on, one of its noted effects always answers it: that
there is no answer, until the first yield takes its place. So an event that is complete has
answered, and one that failed or was put off has said nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from agentic.agent import Agent
from agentic.asking import Answer, Request, answer_codec, answer_headers, asked_agent, replies_name, request_of
from agentic.codecs import encode
from agentic.errors import CodecError
from agentic.runtime.letters import LONGEST_ERROR
from agentic.stream import Event, Reply
from agentic.topic import Outgoing


class Asked:
    """A request that is being worked on."""

    __slots__ = ("first", "request", "values")

    def __init__(self, request: Request, pending: Outgoing) -> None:
        self.request = request
        #: The effect that answers by now.
        self.first = pending
        #: The answers so far.
        self.values: list[bytes | None] = []


class Answers:
    """Answers for one agent.

    Args:
        now: the wall clock, in ms.
        hurry: is an answer only visible with the commit?
    """

    def __init__(self, agent: Agent, now: Callable[[], int], *, hurry: bool) -> None:
        self._hurry = hurry
        self._topic = replies_name(agent.inputs[0].home.app)
        self._agent = agent.name
        self._codec = answer_codec(agent)
        self._now = now

    def meet(self, event: Event, effects: list[Outgoing]) -> Asked | None:
        """An event begins: note that it is not answered, where it asks; return what it asks."""
        request = request_of(event, self._agent)
        if request is None:
            return None
        asked = Asked(request, self._none(request))
        effects.append(asked.first)
        return asked

    def answer(self, asked: list[Asked], effects: list[Outgoing], value: Any) -> None:
        """Note a yield as an answer.

        Raises:
            CodecError: the value is not of the type of the agent's answers.
        """
        if isinstance(value, Reply):
            value = value.value
        try:
            data = None if value is None else encode(self._codec, value, "answer")
        except (CodecError, TypeError, ValueError) as error:
            raise CodecError(f"agent {self._agent!r} yielded what can't be an answer: {error}") from error
        for each in asked:
            each.values.append(data)
            count = len(each.values)
            # The first says how many there are. It stands where "no answer" stood, before other effects:
            # if it is refused, nothing of the event has left.
            first = Answer(each.request.correlation, "value", each.values[0], 0, count)
            at = next(n for n, effect in enumerate(effects) if effect is each.first)
            effects[at] = each.first = self._record(each.request, first)
            if count > 1:
                more = Answer(each.request.correlation, "value", data, count - 1)
                effects.append(self._record(each.request, more))

    def pressing(self, effects: list[Outgoing]) -> bool:
        """Does somebody wait for a commit that shows one of these effects?"""
        return self._hurry and any(effect[0] == self._topic for effect in effects)

    def unanswered(self, event: Event) -> list[Outgoing]:
        """Return what an event's asker is told when the agent has not seen the event; nothing if it asks nothing."""
        request = request_of(event, self._agent)
        return [] if request is None else [self._none(request)]

    def failed(self, event: Event, reason: str) -> list[Outgoing]:
        """Return what an event's asker is told when the event is given up; nothing if it asks nothing."""
        request = request_of(event, self._agent)
        return [] if request is None else [self._record(request, _failure(request, reason))]

    def _none(self, request: Request) -> Outgoing:
        return self._record(request, Answer(request.correlation, "none", None))

    def _record(self, request: Request, answer: Answer) -> Outgoing:
        return record(self._topic, request, answer, self._now())


def record(topic: str, request: Request, answer: Answer, timestamp: int) -> Outgoing:
    """Return the record of an answer."""
    return (topic, request.address, answer.value, timestamp, answer_headers(answer), -1)


def refusal(event: Event, agents: Collection[str], reason: str) -> list[Outgoing]:
    """Return what an event's asker is told when no agent gets the event; nothing if it asks none of them."""
    agent, home = asked_agent(event), event.origin.topic.home
    topic = replies_name(home.app)
    if agent is None or agent not in agents or topic not in home.topics:
        return []
    request = request_of(event, agent)
    return [] if request is None else [record(topic, request, _failure(request, reason), event.timestamp)]


def _failure(request: Request, reason: str) -> Answer:
    cut = reason if len(reason) <= LONGEST_ERROR else reason[:LONGEST_ERROR] + "…"
    return Answer(request.correlation, "failed", cut.encode("utf-8", "replace"))
