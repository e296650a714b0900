"""Events that are done and wait for a test to let them be complete: so a test says in which order they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentic.stream import Event


class Holding:
    """The events of one agent that wait, in the order in which they were done."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Sequence[Event]] = {}

    async def wait(self, events: Sequence[Event]) -> None:
        """Return when these events, which are complete together, are let go."""
        let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[let_go] = events
        try:
            await let_go
        finally:
            del self._waiting[let_go]

    @property
    def events(self) -> list[Event]:
        """Those that wait."""
        return [event for events in self._waiting.values() for event in events]

    def let_go(self, wanted: Callable[[Event], bool]) -> int:
        """Let go of those that are wanted, with what was taken together with them; return how many."""
        found = [(let_go, events) for let_go, events in self._waiting.items() if any(map(wanted, events))]
        for let_go, _ in found:
            if not let_go.done():
                let_go.set_result(None)
        return sum(len(events) for _, events in found)
