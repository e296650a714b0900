"""The event time of a task to which nothing comes any more.

A window is closed by events after it. When the stream goes quiet, its last windows would stay
open for ever; with ``idle_after=`` the task's event time moves on by itself: to the wall clock's,
less that duration, as long as the task is *quiet*. The move is an emission like any other, committed with
what it gives out, and what comes behind it afterwards is late. Source: DESIGN, 7, "Quiet streams".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from agentic.runtime.operators import Operator

log = logging.getLogger("agentic.worker")

#: Seconds of quiet after which a worker says that windows wait for an event which may never come.
TELL_AFTER = 30.0
#: Seconds between two looks at a task that is not quiet although nothing comes: a call under way, an end not known.
AGAIN = 1.0
#: Seconds until tables are looked at that may be fed by what has just come out.
SOON = 0.01
#: The longest wait for one look, in seconds: the wall clock may be set meanwhile.
LONGEST = 3_600.0


class Quiet:
    """Watches over one task.

    Args:
        task: its name.
        operators: its windowed tables.
        idle_after: for tables that say nothing of their own, in ms; None: their time does not move.
        is_quiet: is every source read to its end, and nothing under way?
        now: the wall clock, in ms.
        moved: called with the time, in ms, to which the event time has moved.
    """

    def __init__(
        self,
        task: str,
        operators: Collection[Operator],
        idle_after: int | None,
        is_quiet: Callable[[], bool],
        now: Callable[[], int],
        moved: Callable[[int], None],
    ) -> None:
        self._task = task
        self._operators = in_order(operators)
        self._default = idle_after
        self._is_quiet = is_quiet
        self._now = now
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._alarm: asyncio.TimerHandle | None = None
        self._told: set[Operator] = set()

    def heard(self) -> None:
        """A record has come, or the task has begun: it is not quiet now."""
        self._since = self._loop.time()
        if self._alarm is None:
            self._arm(self._since + self._first_wait())

    def end(self) -> None:
        """The task has ended."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._operators = []

    def close_now(self) -> bool:
        """The input has been used up for good: move on as if the quiet had lasted; return whether that closed any."""
        if not self._is_quiet():
            return False
        now = self._now()
        # One that gives something out may feed the next: that is looked at when it has been worked off.
        return any(self._idle_after(each) is not None and self._move(each, now) for each in self._operators)

    def _idle_after(self, operator: Operator) -> int | None:
        own = operator.table.idle_after
        return self._default if own is None else own

    def _first_wait(self) -> float:
        waits = [TELL_AFTER if (idle := self._idle_after(each)) is None else idle / 1000 for each in self._operators]
        return min(waits, default=LONGEST)

    def _arm(self, when: float) -> None:
        self._alarm = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._alarm = None
        if not self._operators:
            return
        now = self._loop.time()
        if not self._is_quiet():
            self._arm(max(now + AGAIN, self._since + self._first_wait()))
            return
        waits: list[float] = []
        for operator in self._operators:
            idle_after = self._idle_after(operator)
            # A hair more, since what is a whole number of milliseconds here may not be one in seconds.
            quiet_for = now - self._since + 0.000_5
            if idle_after is None:
                self._tell(operator, quiet_for)
                if operator not in self._told and (end := operator.ends.next_due()) is not None:
                    waits.append(max(TELL_AFTER - quiet_for, operator.closed_from(end) / 1000 - self._now() / 1000))
                continue
            if quiet_for * 1000 < idle_after:
                waits.append(idle_after / 1000 - quiet_for)
                continue
            if self._move(operator, self._now() - idle_after):
                # What it gives out may be written to the next one, whose time must not be ahead of it.
                waits.append(SOON)
                break
            if (behind := operator.behind()) is not None:
                waits.append(behind / 1000)
        due = [wait for wait in waits if wait > 0]
        if due:
            self._arm(now + min(max(0.001, min(due)), LONGEST))

    def _move(self, operator: Operator, time: int) -> bool:
        """Move a table's time on, if that is ahead of it; return whether that closes a window."""
        if time <= operator.time:
            return False
        end = operator.ends.next_due()
        if end is None:
            return False
        closes = operator.windowing.closed(end, operator.windowing.close(time))
        operator.move_to(time)
        self._moved(time)
        operator.emit()
        return closes

    def _tell(self, operator: Operator, quiet_for: float) -> None:
        """Say once that windows wait which would be closed by now, if anything came."""
        if quiet_for < TELL_AFTER or operator in self._told:
            return
        end = operator.ends.next_due()
        if end is not None and operator.windowing.closed(end, operator.windowing.close(self._now())):
            self._told.add(operator)
            log.warning(
                "task %s: nothing comes any more, and %d windows of table %r wait for an event after them; "
                "with idle_after= (for the table or the app) they come out by themselves",
                self._task,
                operator.ends.open_windows(),
                operator.table.name,
            )


def in_order(operators: Collection[Operator]) -> list[Operator]:
    """Return windowed tables so that each comes before those which agents feed by what it gives out."""
    found: list[Operator] = []
    left = list(operators)
    while left:
        fed = {table for each in left for table in each.feeds if table is not each.table}
        # In a circle none is first: any will do.
        first = next((each for each in left if each.table not in fed), left[0])
        left.remove(first)
        found.append(first)
    return found
