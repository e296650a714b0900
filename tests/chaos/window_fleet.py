"""A fleet whose workers keep windows, and what a plain loop over the same records makes of them."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from fleet import PARTITIONS, Fleet

from agentic.core.partitioning import partition_of

#: In ms.
SIZE, GAP, GRACE = 400, 90, 150
#: Of so many numbers one takes a while, so that work is under way whenever a checkpoint begins.
PAUSE_EVERY = 25

#: "span" or "visit", key, start, end, and the numbers that it took, or the one that it did not.
Outcome = tuple[str, str, int, int, str]


def time_of(n: int) -> int:
    """Return the time by which a number is counted, in ms: most lie a little behind the last ones, some far behind."""
    return max(0, 4 * n - n * 7919 % (700 if n % 10 else 1500) // 2)


def outcome(kind: str, key: str, start: int, end: int, value: Any) -> Outcome:
    return kind, key, start, end, json.dumps(value)


def truth(numbers: Iterable[int], keys: int) -> tuple[Counter[Outcome], Counter[Outcome]]:
    """Return the final results of what is closed after these numbers, and what came too late for them."""
    finals: Counter[Outcome] = Counter()
    late: Counter[Outcome] = Counter()
    lots: dict[int, list[tuple[str, int]]] = {}
    for n in sorted(numbers):
        key = f"key-{n % keys}"
        lots.setdefault(partition_of(key.encode(), PARTITIONS), []).append((key, n))
    for lot in lots.values():
        for came, lost in (_spans(lot), _visits(lot)):
            finals.update(came)
            late.update(lost)
    return finals, late


def _timed(lot: list[tuple[str, int]]) -> Iterator[tuple[str, int, int, int]]:
    """Each number with its key, its time, and the greatest time so far."""
    now = -1
    for key, n in lot:
        now = max(now, time_of(n))
        yield key, n, time_of(n), now


def _spans(lot: list[tuple[str, int]]) -> tuple[list[Outcome], list[Outcome]]:
    windows: dict[tuple[str, int], list[int]] = {}
    late, now = [], -1
    for key, n, at, now in _timed(lot):
        start = at - at % SIZE
        if now >= start + SIZE + GRACE:
            late.append(outcome("span", key, start, start + SIZE, n))
        else:
            windows.setdefault((key, start), []).append(n)
    closed = [
        outcome("span", key, start, start + SIZE, took)
        for (key, start), took in windows.items()
        if now >= start + SIZE + GRACE
    ]
    return closed, late


def _visits(lot: list[tuple[str, int]]) -> tuple[list[Outcome], list[Outcome]]:
    closed, late = [], []
    running: list[tuple[str, int, int, list[int]]] = []
    for key, n, at, now in _timed(lot):
        close = now - GRACE - GAP
        closed += [visit for visit in running if visit[2] < close]
        running = [visit for visit in running if visit[2] >= close]
        near = sorted(
            (visit for visit in running if visit[0] == key and visit[1] - GAP <= at <= visit[2] + GAP),
            key=lambda visit: visit[2],
        )
        if not near and at < close:
            late.append(outcome("visit", key, at, at, n))
            continue
        running = [visit for visit in running if visit not in near]
        start, end = min([at, *(v[1] for v in near)]), max([at, *(v[2] for v in near)])
        running.append((key, start, end, [*(m for visit in near for m in visit[3]), n]))
    return [outcome("visit", *visit) for visit in closed], late


class WindowFleet(Fleet):
    """Workers of `windows_app`.

    Attributes:
        finals, late: what has come out of the windows.
    """

    app = "windows_app.py"
    outputs = ("out", "finals", "late")
    patience = 120.0

    def __init__(self, url: str, directory: pathlib.Path, **how: Any) -> None:
        super().__init__(url, directory, delivery="exactly_once", extra={"AGENTIC_COMMIT_INTERVAL": "100ms"}, **how)
        self.finals: Counter[Outcome] = Counter()
        self.late: Counter[Outcome] = Counter()
        self.order: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.passed: Counter[int] = Counter()

    def number(self, topic: str, key: bytes | None, value: bytes) -> int:
        said = json.loads(value)
        if topic.endswith("-out"):
            self.passed[said] += 1
            return int(said)
        kind, name, start, end, took = said
        if topic.endswith("-finals"):
            self.finals[outcome(*said)] += 1
            self.order.setdefault((kind, name), []).append((end, start))
            return int(took[0])
        self.late[outcome(*said)] += 1
        return int(took)


def verify(fleet: WindowFleet) -> None:
    """Each number has passed once, and finals and late ones are those of a plain loop, in order for each key."""
    assert fleet.killed >= fleet.kills
    assert fleet.passed == Counter(range(fleet.count)), fleet.logs()
    finals, late = truth(range(fleet.count), fleet.keys)
    assert finals and late
    for what, came, wanted in (("finals", fleet.finals, finals), ("late ones", fleet.late, late)):
        missing, surplus = wanted - came, came - wanted
        assert came == wanted, (
            f"{what}: {missing.total()} are missing, such as {[*missing][:3]}; "
            f"{surplus.total()} should not be, such as {[*surplus][:3]}\n{fleet.logs()}"
        )
    for (kind, name), windows in fleet.order.items():
        assert windows == sorted(windows), f"{kind}s of {name} are out of order"
