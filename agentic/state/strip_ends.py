"""Which windows in strips come out when: an index of the strips by the ends of their windows.

A strip is in it once for what is open, by its first window that has not been given out, and once for what is to be
forgotten. A strip's place may be out of date, since its windows grow and go: it is put right when its turn comes,
and only a window that comes before the place is told of at once. Source: spec, C.2.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from agentic.core.emission import Places
from agentic.state.grouped import Due
from agentic.state.strips import NOWHERE, Place, Strip, StripedBuffer


class EndsOfStrips:
    """The windows of one table in one task: see `agentic.core.emission.Ends`."""

    def __init__(self, buffer: StripedBuffer[Any]) -> None:
        self._buffer = buffer
        self._strips = buffer.strips
        self._open: Places[Place] = Places()
        #: Strips with windows that are out, by the time up to which all that were out then had ended.
        self._kept: deque[tuple[int, Strip]] = deque()
        self._given = -1
        #: How many windows have been given out, and are still there.
        self._out = 0

    def begin_at(self, given: int) -> None:
        """All windows that there are have been restored; those that end at `given` or earlier have been given out."""
        self._given = given
        for strip in self._strips.values():
            strip.out = sum(1 for row in strip.rows if row[1] <= given)
            self._out += strip.out
            self.arm(strip)
            if strip.out:
                self._let_go_later(strip)

    def arm(self, strip: Strip) -> None:
        """The windows of a strip have changed: one may come before its place."""
        rows, out = strip.rows, strip.out
        if out < len(rows):
            row = rows[out]
            place = (row[1], row[0], strip.key)
            if place < strip.armed:
                strip.armed = place
                self._open.push(place)

    def next_due(self) -> int | None:
        """Return the least end that is open."""
        while (place := self._open.first()) is not None:
            strip = self._strips.get(place[2])
            if strip is None or strip.armed is not place:
                self._open.pop(place[0])
                continue
            rows, out = strip.rows, strip.out
            if out < len(rows) and rows[out][1] == place[0]:
                return place[0]
            self._open.pop(place[0])
            strip.armed = NOWHERE
            self.arm(strip)
        return None

    def next_kept(self) -> int | None:
        """Return a time at which there are windows to be forgotten, if there are any."""
        return self._kept[0][0] if self._kept else None

    def ahead(self) -> tuple[int | None, int | None]:
        """Return the least end that is open, and a time at which there are windows to be forgotten."""
        return self.next_due(), self.next_kept()

    def due(self, upto: int, limit: int) -> list[Due]:
        """Give out open windows with ends up to one, by end, start and key; at most `limit`."""
        opened, strips = self._open, self._strips
        found: list[Due] = []
        self._given = upto
        while len(found) < limit and (place := opened.pop(upto)) is not None:
            strip = strips.get(place[2])
            if strip is None or strip.armed is not place:
                continue
            rows, out = strip.rows, strip.out
            if out < len(rows):
                row = rows[out]
                if row[0] == place[1] and row[1] == place[0]:
                    found.append((place[2], *row))
                    out += 1
                    strip.out = out
                    if not strip.leaving:
                        self._let_go_later(strip)
            if out < len(rows):
                row = rows[out]
                strip.armed = (row[1], row[0], place[2])
                opened.push(strip.armed)
            else:
                strip.armed = NOWHERE
        self._out += len(found)
        return found

    def _let_go_later(self, strip: Strip) -> None:
        strip.leaving = True
        self._kept.append((self._given, strip))

    def forget(self, strip: Strip, upto: int) -> None:
        """Remove the windows of a strip that end by a time and have been given out."""
        self._out -= self._buffer.leave(strip, upto)

    def sweep(self, upto: int, limit: int) -> None:
        """Forget windows with ends up to one, of `limit` strips at most.

        Some stay for longer: a strip's turn comes when all may go that were out when it was put in.
        """
        kept = self._kept
        while kept and kept[0][0] <= upto and limit:
            _, strip = kept.popleft()
            strip.leaving = False
            self.forget(strip, upto)
            if strip.out:
                self._let_go_later(strip)
            limit -= 1

    def open_windows(self) -> int:
        """How many windows are open."""
        return self._buffer.held - self._out
