"""Many windows of one end in their order, without anybody having to wait while they are put into it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

#: Windows that are handed out at once; the next ones when the agents are done with these.
BURST = 500
#: Windows of one end that are put in order at once: some milliseconds' worth.
PIECE = 20_000
#: How many places of a piece decide where all pieces are cut: none of what is between two cuts is much larger then.
CUTS = 50

#: What is compared of a name; None: the name itself.
Order = Callable[[bytes], Any] | None


def in_order(names: list[bytes], order: Order) -> Iterator[list[bytes] | None]:
    """Iterate over names in order, a burst at a time; None where others should get a turn.

    The list given is the iterator's to change.
    """
    if len(names) <= PIECE:
        names.sort(key=order)
        yield from _cut(names)
        return
    pieces = []
    for begin in range(0, len(names), PIECE):
        pieces.append(sorted(names[begin : begin + PIECE], key=order))
        yield None
    # All pieces are cut at the same places, so that what lies between two of them is in order by itself.
    sample = sorted((name for piece in pieces for name in piece[:: PIECE // CUTS]), key=order)
    begins = [0] * len(pieces)
    for cut in [*sample[CUTS::CUTS], None]:
        between: list[bytes] = []
        for at, piece in enumerate(pieces):
            end = len(piece) if cut is None else _place(piece, cut, order)
            between += piece[begins[at] : end]
            begins[at] = end
        between.sort(key=order)
        yield None
        yield from _cut(between)


def _place(names: list[bytes], name: bytes, order: Order) -> int:
    return bisect_left(names, name) if order is None else bisect_left(names, order(name), key=order)


def _cut(names: list[bytes]) -> Iterator[list[bytes]]:
    return (names[begin : begin + BURST] for begin in range(0, len(names), BURST))
