"""Agents that block: plain functions, each instance in a thread of its own.

The thread runs the user's function and nothing else. Whatever it asks of the stream or of a table is
done by the loop, which owns all of it, while the thread waits; so a thread costs some tens of
microseconds for each such step, which is little beside a call that blocks.

A thread can't be cancelled. When its attempt is ended from outside, its lane is void: the thread may
come back late, finds the stream at its end, and nothing of what it did counts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, cast

from agentic.agent import Agent
from agentic.errors import AgenticError
from agentic.runtime.lane import Lane
from agentic.stream import WAIT, BlockingEvents, BlockingStream, Event, Events, HeadersLike, current_outlet
from agentic.table import View, current_views, looked_at_in_loop
from agentic.topic import Topic
from agentic.windows import Window, WindowView

T = TypeVar("T")
R = TypeVar("R")


#: What a thread asks of the loop.
Request = Callable[[], Awaitable[Any]]
#: What it is told: returns the result, or raises the error.
Answer = Callable[[], Any]


class Gone(AgenticError):
    """The event that the thread works on was taken from it."""


class Turn(concurrent.futures.Executor):
    """A thread that runs one function, and by turns with the loop: it goes on while the loop waits for it.

    To the loop it is an executor: each job lets the thread go on until it asks for something, which is the
    job's result; None when the function has returned.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._jobs: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Answer]] = queue.SimpleQueue()
        self._job: concurrent.futures.Future[Any] | None = None
        self._begun = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Let the thread go on. `fn` names it for whoever looks; the argument is the answer to what it asked."""
        job: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._jobs.put((job, args[0]))
        if not self._begun:
            self._begun = True
            # Not a thread of a pool, which the interpreter would wait for at its end.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return job

    def _run(self) -> None:
        self._job, _ = self._jobs.get()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told in the loop
            # No future takes this one.
            told = RuntimeError("the function raised StopIteration") if isinstance(error, StopIteration) else error
            self._job.set_exception(told)
        else:
            self._job.set_result(None)

    def ask(self, request: Request) -> Any:
        """From within the thread: have something done by the loop; return or raise what comes of it."""
        assert self._job is not None, "the thread runs"
        self._job.set_result(request)
        self._job, answer = self._jobs.get()
        return answer()

    def call(self, fn: Callable[..., R], *arguments: Any) -> R:
        """From within the thread: return what a function returns, or raise what it raises, in the loop."""

        async def within() -> R:
            return fn(*arguments)

        result: R = self.ask(within)
        return result


class LoopView:
    """A table's view, looked at by a thread: see `agentic.table.View`."""

    def __init__(self, view: View, turn: Turn) -> None:
        self._view = view
        self._turn = turn

    def get(self, key: Any) -> Any:
        return self._turn.call(self._view.get, key)

    def set(self, key: Any, value: Any) -> None:
        self._turn.call(self._view.set, key, value)

    def remove(self, key: Any) -> bool:
        return self._turn.call(self._view.remove, key)

    def scan(self, start: Any, stop: Any, prefix: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
        return iter(self._turn.call(lambda: list(self._view.scan(start, stop, prefix, reverse))))

    def count(self) -> int:
        return self._turn.call(self._view.count)

    def at(self, key: Any, timestamp: int) -> Any:
        return self._turn.call(self._view.at, key, timestamp)

    def feed(self, event: Event) -> None:
        self._turn.call(self._view.feed, event)

    def add(self, key: Any, value: Any, timestamp: int | None) -> None:
        self._turn.call(self._windows.add, key, value, timestamp)

    def add_many(self, events: Iterable[Event]) -> None:
        self._turn.call(self._windows.add_many, list(events))

    def windows(self, key: Any, start: int, end: int) -> list[Window[Any, Any]]:
        return self._turn.call(self._windows.windows, key, start, end)

    def all_windows(self, start: int, end: int) -> list[Window[Any, Any]]:
        return self._turn.call(self._windows.all_windows, start, end)

    def sessions(self, earliest_end: int, latest_end: int) -> list[Window[Any, Any]]:
        return self._turn.call(self._windows.sessions, earliest_end, latest_end)

    @property
    def _windows(self) -> WindowView:
        """The view of a windowed table: the others are asked for none of these."""
        return cast(WindowView, self._view)


class ThreadStream(BlockingStream[T]):
    """What the user's function gets."""

    def __init__(self, lane: ThreadLane[T], turn: Turn) -> None:
        self._lane = lane
        self._turn = turn

    @property
    def event(self) -> Event:
        return self._lane.event

    @property
    def attempt(self) -> int:
        return self._lane.attempt

    def __iter__(self) -> Iterator[T]:
        return self.iterate(self._lane)

    def events(self) -> BlockingEvents:
        return _ThreadEvents(self, self._lane.events())

    def take(self, n: int, *, within: timedelta | float) -> Iterator[list[T]]:
        return self.iterate(self._lane.take(n, within=within))

    def iterate(self, over: AsyncIterator[R]) -> Iterator[R]:
        async def step() -> tuple[R] | None:
            try:
                return (await over.__anext__(),)
            except StopAsyncIteration:
                return None

        try:
            while (one := self._turn.ask(step)) is not None:
                yield one[0]
        except Gone:
            return

    def send(
        self,
        topic: Topic[Any, Any],
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        self._turn.ask(lambda: self._lane.send(topic, key, value, headers, timestamp, partition))

    def ask(
        self,
        agent: Agent,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> Any:
        return self._turn.ask(lambda: agent.ask(value, key=key, timeout=timeout, headers=headers))

    def ask_all(
        self,
        agent: Agent,
        value: Any = None,
        *,
        key: Any = None,
        timeout: timedelta | float = WAIT,
        headers: HeadersLike | None = None,
    ) -> list[Any]:
        answers: list[Any] = self._turn.ask(lambda: agent.ask_all(value, key=key, timeout=timeout, headers=headers))
        return answers

    def reject(self, reason: str) -> None:
        self._turn.call(self._lane.reject, reason)

    def defer(
        self,
        after: timedelta | float,
        *,
        reason: str = "",
        block_key: bool = True,
        hold: Literal["event"] | None = "event",
    ) -> None:
        self._turn.call(lambda: self._lane.defer(after, reason=reason, block_key=block_key, hold=hold))

    def commit(self) -> None:
        self._turn.ask(self._lane.commit)


class ThreadLane(Lane[T]):
    """An instance in a thread."""

    __slots__ = ()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        # What the loop does for the thread it does as the agent: it asks others, and not itself.
        current_outlet.set(self)
        context = contextvars.copy_context()
        turn = Turn(f"agent {self.agent.name}", lambda: context.run(self._work, turn))
        context.run(current_views.set, {table: LoopView(view, turn) for table, view in self.views.items()})
        context.run(current_outlet.set, _Nowhere(self.agent.name))
        context.run(looked_at_in_loop.set, lambda view: LoopView(view, turn))
        answer: Answer = _nothing
        while True:
            going_on = loop.run_in_executor(turn, self.agent.fn, answer)
            request = await self._until(going_on)
            if request is None:
                return
            answer = await self._answer(request)

    async def _until(self, going_on: asyncio.Future[Request | None]) -> Request | None:
        """Return what the thread asks next, however long it takes: cancelling does not end a thread."""
        while not going_on.done():
            try:
                await asyncio.shield(going_on)
            except asyncio.CancelledError:
                self._bear_cancellation()
            except BaseException:  # noqa: BLE001 - it is raised below, by the future itself
                break
        return going_on.result()

    async def _answer(self, request: Request) -> Answer:
        try:
            result = await request()
        except asyncio.CancelledError:
            self._bear_cancellation()
            return _gone
        except Exception as error:  # noqa: BLE001 - it is the thread's to see
            return _raising(error)
        return lambda: result

    def _bear_cancellation(self) -> None:
        """Go on, where it is the lane that has ended: the thread is there until it comes back."""
        if not self.closing:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None, "a lane runs in one"
        task.uncancel()

    def _work(self, turn: Turn) -> None:
        result = self.agent.fn(ThreadStream(self, turn))
        if not self.agent.yields:
            return
        for value in result:
            turn.call(self.note, value)


class _ThreadEvents(BlockingEvents):
    """See `ThreadStream.events`."""

    def __init__(self, stream: ThreadStream[Any], events: Events) -> None:
        self._stream = stream
        self._events = events
        self._one_by_one = stream.iterate(events)

    def __next__(self) -> Event:
        return next(self._one_by_one)

    def take(self, n: int, *, within: timedelta | float) -> Iterator[list[Event]]:
        return self._stream.iterate(self._events.take(n, within=within))


class _Nowhere:
    """What `Topic.send` finds in a thread: nobody there could await it."""

    def __init__(self, agent: str) -> None:
        self._agent = agent

    def send(self, topic: Topic[Any, Any], *arguments: Any) -> Coroutine[Any, Any, None]:
        raise RuntimeError(
            f"agent {self._agent!r} runs in threads, where {topic!r} can't be awaited: write stream.send(topic, …)"
        )


def _nothing() -> None:
    return None


def _gone() -> None:
    raise Gone("the event was taken from the agent: its time was over, or its partition moved on")


def _raising(error: BaseException) -> Answer:
    def answer() -> None:
        raise error

    return answer
