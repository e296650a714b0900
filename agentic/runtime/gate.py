"""What keeps an event and its children together.

A change of a table that an agent reads (`Table.changes`) is a *child* of the event that made it:
it lives in its task, on no broker, and the event's offset is finished when its last child is.
The event's own effects have gone out by then. Under exactly-once a commit between the two
would have the effects and not the offset, so before a checkpoint the gate closes: no further
event of a source begins, the children that are there are worked off, and then it opens again.

Children go before other events, so there are never many: that is also why they need no buffer
of a fixed size. An agent whose events have many children waits while there are `MOST`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

#: Children of one task at which no further event of a source begins.
MOST = 256


class Gate:
    """The gate of one task.

    Args:
        wake: called when those who wait before the gate should look again.

    Attributes:
        closed: no event of a source may begin.
        ended: nobody finishes the children that are left.
        children: how many are under way.
        passable: may an event of a source begin?
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.closed = False
        self.ended = False
        self.children = 0
        self.passable = True
        #: At so many children, or fewer, somebody waits to hear of it.
        self._heard = 0
        self._wake = wake
        self._more: deque[Callable[[], None]] = deque()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def born(self, n: int) -> None:
        """`n` children more are under way."""
        if not self.children:
            self._none_left.clear()
        self.children += n
        if self.children >= MOST:
            self.passable = False

    def done(self) -> None:
        """One less is."""
        left = self.children = self.children - 1
        if left == MOST - 1:
            self.passable = not self.closed
            self._wake()
        if left <= self._heard:
            if self._more and left == len(self._more):
                asyncio.get_running_loop().call_soon(self._go_on)
            if not left:
                self._none_left.set()

    def later(self, bear: Callable[[], None]) -> None:
        """Call this when the children that are there are done: it has more of them. Until then it counts as one."""
        self.born(1)
        self._more.append(bear)
        self._heard = len(self._more)
        if self.children == len(self._more):
            # No child is there whose end would call it.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._more and not self.ended:
            bear = self._more.popleft()
            self._heard = len(self._more)
            bear()
            self.done()

    def over(self) -> None:
        """The task has ended: nobody finishes what is under way."""
        self.ended = True
        self._none_left.set()

    async def quiet(self) -> None:
        """Return when no child is under way, or nobody is there to finish one."""
        await self._none_left.wait()

    def close(self) -> None:
        self.closed = True
        self.passable = False

    def open(self) -> None:
        self.closed = False
        self.passable = self.children < MOST
        self._wake()


class Inward:
    """What comes from within a task: goes before other events, and on no account is left undone by a commit."""

    #: It can't be put off.
    deferred = 0

    __slots__ = ()


class Emitted(Inward):
    """Where what a windowed table emits comes from: see `agentic.stream.Origin`.

    It has no offset that waits for it: the commit does, since it waits for all that the gate has counted.
    """

    __slots__ = ("_gate", "partition", "topic")

    def __init__(self, topic: Any, partition: int, gate: Gate) -> None:
        self.topic = topic
        self.partition = partition
        self._gate = gate

    def retire(self, offset: int) -> bool:
        self._gate.done()
        return True

    def adopt(self, offset: int, children: int) -> None:
        # Each is counted once more when it is finished: by itself, and for its parent.
        self._gate.born(children)

    def idempotency_key(self, event: Any) -> str:
        """The window's name: the same however often it comes out."""
        window = event.value
        return f"{self.topic.home.app}/{self.topic.name}/{event.key!r}/{window.start}-{window.end}"


class Descent(Inward):
    """Where a child comes from: see `agentic.stream.Origin`. It retires with its parent's offset."""

    __slots__ = ("_ancestor", "_gate", "partition", "topic")

    def __init__(self, topic: Any, parent: Any, gate: Gate) -> None:
        self.topic = topic
        self.partition = parent.partition
        #: The source's partition, however many generations lie between.
        self._ancestor: Any = parent._ancestor if isinstance(parent, Descent) else parent
        self._gate = gate

    def retire(self, offset: int) -> bool:
        """An agent is done with the child."""
        self._gate.done()
        last: bool = self._ancestor.retire(offset)
        return last

    def adopt(self, offset: int, children: int) -> None:
        """The child has children itself."""
        self._ancestor.adopt(offset, children)

    def idempotency_key(self, event: Any) -> str:
        """The ancestor's, and what of it the child is."""
        return f"{self._ancestor.idempotency_key(event)}/{self.topic.name}/{event.key!r}"
