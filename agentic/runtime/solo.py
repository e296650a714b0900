"""A crew of one: an agent that works on one event after the other, and does not try again what fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from agentic.agent import Agent
from agentic.brokers.base import TopicPartition
from agentic.core.retry import Verdict, judge
from agentic.errors import AgentFailed, words
from agentic.runtime.crew import Crew, Place, at
from agentic.runtime.gate import Gate
from agentic.runtime.instance import ApplyFailed, Outdated
from agentic.runtime.letters import Policy
from agentic.runtime.partition import fresh_value
from agentic.runtime.slot import Slot, WatchingSlot
from agentic.runtime.watch import Hindrance
from agentic.stream import Event
from agentic.table import Table

log = logging.getLogger("agentic.worker")


class Solo(Crew):
    """See `agentic.runtime.crew.Crew`. It has one instance, which is begun anew after an event that failed."""

    def __init__(self, agent: Agent, place: Place) -> None:
        super().__init__(agent, place)
        self._policy = Policy(agent, place.settings)
        shares = bool(place.shared.intersection(agent.used))
        parts = (agent, self._drained, place.outbox, place.metrics, place.ask_commit, self._policy)
        self.slot: Slot[Any]
        if place.gate is not None or shares or WatchingSlot.needed(agent):
            self.slot = WatchingSlot(*parts, place.gate or Gate(self.wake))
        else:
            self.slot = Slot(*parts)
        self.slot.shares_tables = shares
        self.slot.answers = self.answers
        self._run: asyncio.Task[None] | None = None

    def _drained(self) -> None:
        self.place.drained(self)

    def start(self, time: int) -> None:
        self.slot.clock = max(self.slot.clock, time)
        self.slot.views = self.place.views(self.slot)
        if isinstance(self.slot, WatchingSlot):
            self.slot.timed = self.timed
            self.slot.begin()
        self._run = asyncio.create_task(self._work(), name=f"agent {self.agent.name} of task {self.place.task}")
        self._run.add_done_callback(self._ended)

    def _ended(self, run: asyncio.Task[None]) -> None:
        failure = self.broken(run, self.slot.current())
        if failure is not None:
            self.place.fail(failure)

    @property
    def runs(self) -> list[asyncio.Task[None]]:
        return [] if self._run is None else [self._run]

    def put(self, events: Iterable[Event]) -> None:
        self.handed += self.slot.put(events)

    def put_child(self, event: Event) -> None:
        self.handed += 1
        self.slot.put_child(event)

    def put_children(self, events: Sequence[Event]) -> None:
        assert isinstance(self.slot, WatchingSlot), "others read nothing that has a parent"
        self.handed += len(events)
        self.slot.put_children(events)

    def wake(self) -> None:
        self.slot.wake()

    def drop_roots(self) -> None:
        if isinstance(self.slot, WatchingSlot):
            self.leave(self.slot.drop_roots)

    def close(self) -> None:
        self.closing = True
        self.leave(self.slot.close)

    def abandon(self) -> None:
        self.leave(self.slot.abandon)

    @property
    def pending(self) -> int:
        return self.slot.pending

    @property
    def sent(self) -> int:
        return self.slot.sent

    @property
    def clock(self) -> int:
        return self.slot.clock

    @property
    def views(self) -> Iterable[Table[Any, Any]]:
        return self.slot.views

    def hindrance(self, tp: TopicPartition, offset: int) -> Hindrance | None:
        for event in self.slot.current():
            if (event.topic, event.partition, event.offset) == (*tp, offset):
                return Hindrance(self.agent.name, event.key, "executing", 1)
        return None

    async def _work(self) -> None:
        """Run the agent's instance, again after each event that the policy gives up."""
        slot, place, name = self.slot, self.place, self.agent.name
        while True:
            try:
                await slot.run()
                if not slot.closing:
                    place.fail(self.ended_early(at(slot.current())))
                return
            except asyncio.CancelledError:
                if self.closing:
                    raise
                place.fail(AgentFailed(f"agent {name!r} was cancelled from within{at(slot.current())}"))
                return
            except Outdated as error:
                # As if it had not been begun; a new instance begins it, so that what the agent has read is new.
                log.debug("done again, what it had read was written meanwhile: %s", error)
                for event in slot.current():
                    event.value = fresh_value(event)
                slot.begin_again()
                place.metrics.counter("redone", agent=name).add()
            except ApplyFailed as error:
                place.fail(error)
                return
            except (Exception, SystemExit) as error:
                if self.closing and not slot.current():
                    log.info("agent %r: came back after its event was taken from it: %s", name, words(error))
                    return
                failure = AgentFailed(f"agent {name!r} failed{at(slot.current())}: {words(error)}")
                failure.__cause__ = error
                verdict, _ = judge(error, attempt=1, elapsed=0.0, retry=None, uniform=float)
                if verdict is Verdict.RETRY:
                    failure = AgentFailed(
                        f"{failure}: it asks to be tried again, and is not known to do so: "
                        "declare @app.agent(…, retry=Retry(…))"
                    )
                    failure.__cause__ = error
                fate = self._fate(verdict)
                if fate == "stop" or not slot.current():
                    place.fail(failure)
                    return
                try:
                    given_up = self._give_up(fate, error)
                except ApplyFailed as refused:
                    place.fail(refused)
                    return
                place.metrics.counter("dropped", reason="agent_error").add(given_up)
                if fate == "dead_letter":
                    place.metrics.counter("dead_letters", agent=name).add(given_up)
                # Poison is what the user says of the event: where in the code that was, helps nobody.
                trace = None if verdict is Verdict.POISON else error
                log.error("%s; %s", failure, "dead-lettered" if fate == "dead_letter" else "skipped", exc_info=trace)

    def _fate(self, verdict: Verdict) -> str:
        if verdict in (Verdict.FATAL, Verdict.RETRY):
            return "stop"
        if verdict is Verdict.POISON and self._policy.topic is not None:
            return "dead_letter"
        return self._policy.on_exhausted

    def _give_up(self, fate: str, error: BaseException) -> int:
        """Be done with the current events without their effects; return how many they are."""
        slot = self.slot
        events = slot.current()
        letters = [self._policy.letter(event, words(error), 1) for event in events] if fate == "dead_letter" else []
        if self.answers is not None:
            letters += [reply for event in events for reply in self.answers.failed(event, words(error))]
        slot.give_up(letters)
        return len(events)
