"""Random histories of stations, ledger and clock together, beside a model that does nothing cleverly."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Hashable

import pytest

from agentic.core import stations as module
from agentic.core.clock import Clock, Hold
from agentic.core.ledger import OffsetLedger, Snapshot
from agentic.core.metadata import MAX_LENGTH, decode
from agentic.core.stations import State, Station, Stations

#: What happens, and two numbers that say to what and how.
Step = tuple[str, int, int]

STEPS = (
    *("arrive",) * 6,
    *("begin",) * 8,
    *("finish",) * 4,
    *("complete",) * 2,
    *("fail",) * 3,
    *("follow",) * 2,
    "begin some",
    "exhaust",
    "give up",
    "redo",
    "redo done",
    "stale",
    *("wait",) * 3,
    "withdraw",
    "abandon",
    "commit",
    "crash",
)
STATES = {state.name for state in State}
LEFT = ("RETIRED", "ABANDONED")


def transitions_of_the_table() -> set[tuple[str, str]]:
    """Read the table in the docstring."""
    lines = (module.__doc__ or "").splitlines()
    _, head, end = (i for i, line in enumerate(lines) if line.startswith("===="))
    found = set()
    for line in lines[head + 1 : end]:
        before, _, after = re.split(r" {2,}", line)
        if before == "any but the last two":
            found |= {(state, after) for state in STATES if state not in LEFT}
        else:
            found |= {(each, after) for each in before.split(", ")}
    return found


class Event:
    """An event in flight, as the model sees it."""

    def __init__(self, source: str, offset: int, lane: Hashable | None, timestamp: int, clock: int) -> None:
        self.source = source
        self.offset = offset
        self.lane = lane
        self.timestamp = timestamp
        #: What the clock may not pass while it is in flight.
        self.latest = max(timestamp - 1, clock)
        self.state = "(none)"
        self.attempt = 0
        #: Its attempts that have ended, and the ways in which.
        self.ended: list[tuple[int, str]] = []
        self.due_at = 0
        self.hold: Hold | None = None
        #: Those that are executed together with it, in order, if it is the first of them.
        self.together: list[Station[Event]] = []
        self.behind = False

    def __repr__(self) -> str:
        return f"{self.source}@{self.offset}"


class History:
    """One run of random steps, in which each thing is done to the real ones and to the model, and compared.

    Attributes:
        seen: all transitions so far.
        applied: what took effect since the last crash.
    """

    SOURCES = ("p", "q")

    def __init__(self, *, in_order: bool) -> None:
        self.in_order = in_order
        self.now = 0
        self.seen: set[tuple[str, str]] = set()
        #: All records of each source: offset -> lane and timestamp. Offsets have gaps.
        self.log: dict[str, dict[int, tuple[Hashable | None, int]]] = {source: {} for source in self.SOURCES}
        self.committed: dict[str, Snapshot | None] = dict.fromkeys(self.SOURCES)
        #: Offsets that were finished at the last commit.
        self.safe: dict[str, set[int]] = {source: set() for source in self.SOURCES}
        self.begin_life()

    def begin_life(self) -> None:
        self.stations: Stations[Event] = Stations(in_order=self.in_order)
        self.ledgers = {source: OffsetLedger(*(self.committed[source] or ())) for source in self.SOURCES}
        self.clock = Clock()
        self.live: list[Station[Event]] = []
        self.ready: list[Station[Event]] = []
        self.gone: list[Station[Event]] = []
        self.applied: set[Event] = set()
        self.last_applied: dict[str, int] = {}
        self.finished = {source: set(offsets) for source, offsets in self.safe.items()}
        #: The first offset that is not delivered yet.
        self.next = {source: each.offset if (each := self.committed[source]) else 0 for source in self.SOURCES}
        for source in self.SOURCES:
            self.deliver(source)

    # -- steps --------------------------------------------------------------------------------

    def run(self, steps: list[Step]) -> None:
        for name, a, b in steps:
            getattr(self, name.replace(" ", "_"))(a, b)
            self.check()
        self.work_off()

    def work_off(self) -> None:
        """Whatever happened, the rest can be worked off, and then nothing is unfinished."""
        if self.abandoned:
            self.crash(0, 0)
        while self.live:
            self.wait(10, 0)
            while self.ready:
                self.begin(0, 0)
            self.finish(0, 0)
        self.check()
        self.commit(0, 0)
        for source, records in self.log.items():
            assert self.finished[source] == set(records)
            assert self.ledgers[source].unfinished == 0
            assert self.ledgers[source].base == (max(records) + 1 if records else None)
        assert not self.stations._prefix and not self.stations._tails, "nothing is kept of what is over"

    @property
    def abandoned(self) -> bool:
        return any(station.event.state == "ABANDONED" for station in self.gone)

    def arrive(self, a: int, b: int) -> None:
        source = self.SOURCES[a % 2]
        offset = max(self.log[source], default=-1) + 1
        for i in range(1 + b % 3):
            offset += (a + i) % 3 == 0  # else a gap of one: a marker, or what compaction has left out
            lane = None if (a + b + i) % 5 == 0 else f"key {(a // 2 + b + i) % 4}"
            self.log[source][offset + i] = (lane, self.now + (a * 7 + b * 3 + i) % 20 - 10)
        self.deliver(source)

    def deliver(self, source: str) -> None:
        """Hand over all of a source that is there, as a task does, without what an earlier life has finished."""
        offsets = [offset for offset in self.log[source] if offset >= self.next[source]]
        if not offsets or self.abandoned:
            return
        self.next[source] = offsets[-1] + 1
        wanted = self.ledgers[source].deliver(offsets, offsets[-1] + 1)
        assert list(wanted) == [offset for offset in offsets if offset not in self.safe[source]]
        for offset in wanted:
            lane, timestamp = self.log[source][offset]
            event = Event(source, offset, lane, timestamp, self.clock.now)
            event.hold = self.clock.issue(timestamp)
            busy = lane is not None and any(station.event.lane == lane for station in self.live)
            at_once = not self.ready and offset % 3 == 0
            station = (self.stations.enter if at_once else self.stations.issue)(event, lane, source, self.now)
            self.live.append(station)
            if busy or not at_once:
                self.move(station, "QUEUED" if busy else "READY")
            else:
                self.begun(station)

    def begin(self, a: int, b: int) -> None:
        station = self.stations.begin(self.now)
        assert station is (self.ready[0] if self.ready else None)
        self.begun(station)

    def begin_some(self, a: int, b: int) -> None:
        def only(event: Event) -> bool:
            return event.offset % 2 == a % 2

        station = self.stations.begin(self.now, only)
        assert station is next((each for each in self.ready if only(each.event)), None)
        self.begun(station)

    def begun(self, station: Station[Event] | None) -> None:
        if station is None:
            return
        assert all(each.event.lane != station.event.lane for each in self.before(station) if station.lane is not None)
        self.move(station, "EXECUTING")
        station.event.attempt += 1
        station.event.together = [station]

    def follow(self, a: int, b: int) -> None:
        if not self.live:
            return
        last = self.live[a % len(self.live)]
        together = next((each.event.together for each in self.live if last in each.event.together), [])
        last = together[-1] if together else last
        behind = [each for each in self.live if each.event.lane == last.event.lane is not None]
        behind = behind[behind.index(last) + 1 :] if last in behind else []
        if self.in_order and behind and behind[0].event.source != last.event.source:
            return  # they could not take effect together
        station = self.stations.follow(last, self.now)
        if last.event.state != "EXECUTING" or not behind:
            assert station is None
            return
        assert station is behind[0]
        self.move(station, "EXECUTING")
        station.event.attempt += 1
        station.event.behind = True
        together.append(station)

    def group(self, a: int) -> list[Station[Event]]:
        """Some events that one attempt executes."""
        groups = [station.event.together for station in self.live if station.event.together]
        return groups[a % len(groups)] if groups else []

    def end(self, station: Station[Event], state: str, how: str) -> None:
        self.move(station, state)
        station.event.ended.append((station.event.attempt, how))
        station.event.together = []

    def send_back(self, stations: list[Station[Event]]) -> None:
        for station in reversed(stations):
            assert self.stations.again(station, station.event.attempt)
            self.end(station, "QUEUED" if station.event.behind else "READY", "again")
            station.event.behind = False
            if station.event.state == "READY":
                self.ready.remove(station)
                self.ready.insert(0, station)

    def finish(self, a: int, b: int) -> None:
        stations = self.group(a)
        for station in stations:
            assert self.stations.finish(station, station.event.attempt)
            self.end(station, "DONE", "finish")
        for station in stations:
            self.apply(station, b)

    def complete(self, a: int, b: int) -> None:
        """Finish and apply in one step, as can be done where effects go in no order."""
        stations = self.group(a)
        if len(stations) == 1 and not self.in_order:
            (station,) = stations
            self.stations.over(station, station.event.attempt)
            self.apply_effects(station.event)
            station.event.ended.append((station.event.attempt, "over"))
            station.event.together = []
            self.over(station)

    def fail(self, a: int, b: int) -> None:
        stations = self.group(a)
        if not stations:
            return
        first, *others = stations
        self.send_back(others)
        first.event.due_at = self.now + b % 6
        assert self.stations.back_off(first, first.event.attempt, first.event.due_at)
        self.end(first, "BACKOFF", "back off")

    def exhaust(self, a: int, b: int) -> None:
        """An attempt fails for good: there is something else to be done than what the event wanted."""
        stations = self.group(a)
        if not stations:
            return
        first, *others = stations
        self.send_back(others)
        assert self.stations.finish(first, first.event.attempt)
        self.end(first, "DONE", "finish")
        self.apply(first, b)

    def give_up(self, a: int, b: int) -> None:
        if not self.live:
            return
        station = self.live[a % len(self.live)]
        waits = station.event.state == "BACKOFF"
        assert self.stations.give_up(station) is waits
        if waits:
            self.move(station, "DONE")
            self.apply(station, b)

    def redo(self, a: int, b: int) -> None:
        self.send_back(self.group(a))

    def redo_done(self, a: int, b: int) -> None:
        """What waits for its turn is out of date."""
        done = [station for station in self.live if station.event.state == "DONE"]
        # Behind another of its lane it is that one's turn first.
        done = [station for station in done if not station.event.behind]
        if done:
            station = done[a % len(done)]
            assert self.stations.again(station, station.event.attempt)
            self.move(station, "READY")
            self.ready.remove(station)
            self.ready.insert(0, station)

    def apply(self, station: Station[Event], b: int) -> None:
        """Let effects come that may, up to all."""
        applicable = self.stations.applicable(station)
        if not self.in_order:
            assert applicable == ([station] if station.event.state == "DONE" else [])
        else:
            prefix = []
            for each in self.live:
                if each.event.source == station.event.source:
                    if each.event.state != "DONE":
                        break
                    prefix.append(each)
            assert applicable == prefix
        for each in applicable:
            self.retire(each)

    def retire(self, station: Station[Event]) -> None:
        event = station.event
        assert all(each.event.lane != event.lane for each in self.before(station) if event.lane is not None)
        self.apply_effects(event)
        freed = self.stations.retire(station)
        assert freed is self.over(station)

    def apply_effects(self, event: Event) -> None:
        """An event takes effect: once, and where that is asked for, in the order of its source."""
        assert event not in self.applied
        self.applied.add(event)
        if self.in_order:
            assert event.offset > self.last_applied.get(event.source, -1)
            self.last_applied[event.source] = event.offset

    def over(self, station: Station[Event]) -> Station[Event] | None:
        """A station is retired: its offset is finished, and its lane goes on with what is returned."""
        event = station.event
        self.move(station, "RETIRED")
        assert event.hold is not None
        self.clock.release(event.hold)
        assert self.ledgers[event.source].retire(event.offset)
        self.finished[event.source].add(event.offset)
        behind = next((each for each in self.live if each.event.lane == event.lane is not None), None)
        if behind is None:
            return None
        behind.event.behind = False
        if behind.event.state != "QUEUED":
            return None
        self.move(behind, "READY")
        return behind

    def withdraw(self, a: int, b: int) -> None:
        if self.live:
            station = self.live[a % len(self.live)]
            if station.event.state == "READY":
                freed = self.stations.withdraw(station)
                assert freed is self.over(station)
                self.apply(station, b)  # others may have waited for it only
            else:
                with pytest.raises(AssertionError, match="withdrawn"):
                    self.stations.withdraw(station)

    def wait(self, a: int, b: int) -> None:
        self.now += a % 4
        due = [station for station in self.live if station.event.state == "BACKOFF"]
        due = sorted((each for each in due if each.event.due_at <= self.now), key=lambda each: each.event.due_at)
        assert self.stations.wake(self.now) == len(due)
        for station in due:
            self.move(station, "READY")

    def stale(self, a: int, b: int) -> None:
        """Whoever reports of what is over, or was never begun, is told so and changes nothing."""
        everyone = self.live + self.gone
        if not everyone:
            return
        station = everyone[a % len(everyone)]
        event = station.event
        old = event.attempt - 1 - b % 2
        assert not self.stations.finish(station, old)
        assert not self.stations.back_off(station, old, self.now)
        assert not self.stations.again(station, old)
        with pytest.raises(AssertionError, match="was not executing"):
            self.stations.over(station, event.attempt if event.state != "EXECUTING" else old)
        if event.state != "EXECUTING":
            assert not self.stations.finish(station, event.attempt)
            assert not self.stations.back_off(station, event.attempt, self.now)
            if event.state != "DONE":
                assert not self.stations.again(station, event.attempt)
                with pytest.raises(AssertionError, match="before it is done"):
                    self.stations.retire(station)
        if event.state in LEFT:
            assert station.attempt == event.attempt and station.state.name == event.state
            assert self.stations.applicable(station) == [] or self.in_order
            assert not self.stations.give_up(station)
            assert self.stations.follow(station, self.now) is None

    def abandon(self, a: int, b: int) -> None:
        """A partition moves on, or all that is not under way is left, as at a stop."""
        only: Callable[[Station[Event]], bool]
        if b % 4 == 0:
            only = lambda station: station.event.source == self.SOURCES[a % 2]  # noqa: E731
        elif b % 4 == 1:
            only = lambda station: station.event.state != "EXECUTING"  # noqa: E731
        elif b % 4 == 2:
            only = lambda station: station.event.state in ("BACKOFF", "DONE") and station.event.offset % 2 == a % 2  # noqa: E731
        else:
            only = lambda station: station.event.lane == f"key {a % 4}"  # noqa: E731
        left: list[Station[Event]] = []
        for station in self.live:
            event = station.event
            if only(station) or any(
                (event.lane is not None and event.lane == each.event.lane)
                or (self.in_order and event.source == each.event.source)
                for each in left
            ):
                left.append(station)
        assert self.stations.abandon(only) == left
        for station in left:
            event = station.event
            if event.state == "EXECUTING":
                event.ended.append((event.attempt, "abandon"))
            self.move(station, "ABANDONED")
            assert event.hold is not None
            self.clock.release(event.hold)
        for station in self.live:
            # Those of an attempt that stay go on together; its first may be gone.
            station.event.together = [each for each in station.event.together if each not in left]
        heads = {id(each) for station in self.live for each in station.event.together}
        for station in self.live:
            if station.event.state == "EXECUTING" and id(station) not in heads:
                raise AssertionError("what follows one that is left is left as well")

    def commit(self, a: int, b: int) -> None:
        for source, ledger in self.ledgers.items():
            snapshot = ledger.snapshot()
            if snapshot is None:
                continue
            assert len(snapshot.metadata) <= MAX_LENGTH
            todo = [station.event.offset for station in self.all_of(source)]
            assert all(snapshot.offset <= offset for offset in todo)
            known = decode(*snapshot)
            done_beyond = [offset for offset in self.finished[source] if offset >= snapshot.offset]
            assert known.known_to == max(done_beyond, default=snapshot.offset - 1) + 1
            assert all(offset in known.unfinished for offset in todo if offset < known.known_to)
            assert not set(known.unfinished) & self.finished[source]
            ledger.acknowledged(snapshot)
            self.committed[source] = snapshot
            self.safe[source] = set(self.finished[source])

    def crash(self, a: int, b: int) -> None:
        self.begin_life()

    # -- what must hold after each ------------------------------------------------------------

    def all_of(self, source: str) -> list[Station[Event]]:
        """What is not finished of a source, here or by its next owner."""
        left = [each for each in self.gone if each.event.state == "ABANDONED"]
        return [station for station in self.live + left if station.event.source == source]

    def before(self, station: Station[Event]) -> list[Station[Event]]:
        """Those that were issued before one and are neither retired nor abandoned."""
        return self.live[: self.live.index(station)]

    def move(self, station: Station[Event], state: str) -> None:
        event = station.event
        self.seen.add((event.state, state))
        if event.state == "READY":
            self.ready.remove(station)
        event.state = state
        if state == "READY":
            self.ready.append(station)
        elif state in LEFT:
            self.check_attempts(event)
            self.gone.append(station)
            self.live = [each for each in self.live if each is not station]

    def check(self) -> None:
        stations, live = self.stations, self.live
        assert list(stations) == live and len(stations) == len(live)
        assert [each.state.name for each in live] == [each.event.state for each in live]
        assert [each.attempt for each in live] == [each.event.attempt for each in live]
        states = Counter(each.event.state for each in live)
        assert stations.counts() == {state.value: states[state.name] for state in State if state.name not in LEFT}
        assert (stations.ready, stations.waiting_again) == (states["READY"], states["BACKOFF"])
        assert set(stations.executing) == {each for each in live if each.event.state == "EXECUTING"}
        assert stations.oldest() is (live[0] if live else None)
        due = [each.event.due_at for each in live if each.event.state == "BACKOFF"]
        assert stations.due_at == min(due, default=None)
        for lane in (f"key {i}" for i in range(4)):
            of_lane = [each for each in live if each.event.lane == lane]
            assert stations.busy(lane) is bool(of_lane)
            assert stations.free(lane) is (not of_lane and not states["READY"])
            assert stations.tail(lane) is (of_lane[-1] if of_lane else None)
            under_way = [each for each in of_lane if each.event.state != "QUEUED"]
            assert under_way == of_lane[: len(under_way)], "only the first of a lane, and those that follow it"
            assert all(each.event.behind for each in under_way[1:])
        for each in live:
            self.check_attempts(each.event)
        assert all(self.clock.now <= each.event.latest for each in live)
        for source, ledger in self.ledgers.items():
            todo = [each.event.offset for each in self.all_of(source)]
            assert ledger.base is None or all(ledger.base <= offset for offset in todo)
            assert ledger.unfinished == len(todo)

    def check_attempts(self, event: Event) -> None:
        """Each attempt has ended once, but for the one that goes on."""
        attempts = [attempt for attempt, _ in event.ended]
        begun = range(1, event.attempt + (event.state != "EXECUTING"))
        assert attempts == list(begun), f"{event}: {event.ended}"


def random_steps(chance: random.Random) -> list[Step]:
    return [(chance.choice(STEPS), chance.randrange(100), chance.randrange(100)) for _ in range(chance.randrange(60))]
