"""The marks of a task's store: small values beside the rows, which say what the rows are of."""

from __future__ import annotations

import time
from collections.abc import Iterable

from agentic.state.base import Store

#: The mark that says how far a store has come, all tables together: of two copies the greater is ahead.
ADVANCE = "advance"
#: The mark with the wall clock, in ms, at which the store last had all that its changelogs had; in one that was
#: never so far, of its first write.
WRITTEN = "written"
#: The mark of a store that is kept as a standby; its next owner takes it away.
STANDBY = "standby"


def upto(table: str) -> str:
    """Return the name of the mark with the changelog offset up to which the store has a table's rows."""
    return f"upto/{table}"


def log_of(table: str) -> str:
    """Return the name of the mark with the id of the changelog that a table's rows are of."""
    return f"log/{table}"


def observed(table: str) -> str:
    """Return the name of the mark with the stream time of a table with versions."""
    return f"observed/{table}"


def position(topic: str) -> str:
    """Return the name of the mark with what was committed of a source topic together with the rows, and its id."""
    return f"position/{topic}"


def number(mark: bytes | None) -> int | None:
    """Return the integer of a mark."""
    return None if mark is None else int.from_bytes(mark, "big", signed=True)


def as_mark(value: int) -> bytes:
    """Return an integer as a mark; its bytes sort as non-negative numbers do."""
    return value.to_bytes(8, "big", signed=True)


def restored(
    table: str,
    position: int,
    log: str,
    upto_all: Iterable[int],
    store: Store,
    *,
    time_of: int | None = None,
    complete: bool = False,
) -> dict[str, bytes | None]:
    """Return the marks of a write that restores a table.

    Args:
        position: the changelog offset up to which the rows go.
        log: the changelog's id.
        upto_all: how far each table of the store is then.
        time_of: the stream time of a table with versions, by these rows; None for another table.
        complete: whether the store then has all that the changelogs of its tables have.
    """
    marks: dict[str, bytes | None] = {
        upto(table): as_mark(position),
        log_of(table): log.encode(),
        ADVANCE: as_mark(sum(upto_all)),
    }
    if time_of is not None:
        # What an earlier run has noted may come from a record that is no longer in the changelog.
        known = number(store.mark(observed(table)))
        marks[observed(table)] = as_mark(time_of if known is None else max(known, time_of))
    # A store that is behind has not seen all deletions: its age counts from when it last had.
    if complete or store.mark(WRITTEN) is None:
        marks[WRITTEN] = as_mark(time.time_ns() // 1_000_000)
    return marks
