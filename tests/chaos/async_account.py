"""What becomes of each number in `async_app`, the diary that its workers keep, and what both must come to."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from table_account import key_of

from agentic.core.metadata import Progress, decode

TABLES = ("sums", "slow-deferred")
#: So many keys that one partition's part of the agent has 64 of them at work at once.
KEYS = 400
#: How many numbers, from 0 on, meet a deaf call where the worker makes such.
DEAF_TO = 32

#: What an output says of a number: how many its key had had by then, their sum, and the process that worked on it.
Said = tuple[int, int, int]


def failures(n: int) -> int:
    """Return how many attempts at a number fail before one succeeds."""
    return 2 if n % 13 == 0 else 1 if n % 5 == 0 else 0


def poison(n: int) -> bool:
    """Is a number one that can't be worked on?"""
    return n % 29 == 3


def put_off(n: int) -> bool:
    """Is a number put off, unless it has waited behind another already?"""
    return n % 41 == 40


def truth(numbers: Iterable[int], keys: int) -> dict[int, tuple[int, int]]:
    """Return for each number that can be worked on what a plain loop says of it: how many, and their sum."""
    rows: dict[str, tuple[int, int]] = {}
    said: dict[int, tuple[int, int]] = {}
    for n in sorted(numbers):
        if not poison(n):
            key = key_of(n, keys)
            times, total = rows.get(key, (0, 0))
            said[n] = rows[key] = times + 1, total + n
    return said


@dataclass
class Outputs:
    """What came out.

    Attributes:
        said: for each number what its outputs said, in order.
        letters: how often each number was dead-lettered.
        order: for each key its numbers, as they came out.
    """

    keys: int
    said: dict[int, list[Said]] = field(default_factory=dict)
    letters: Counter[int] = field(default_factory=Counter)
    order: dict[str, list[int]] = field(default_factory=dict)

    def hear_output(self, n: int, said: Said) -> None:
        self.said.setdefault(n, []).append(said)
        self.order.setdefault(key_of(n, self.keys), []).append(n)

    @property
    def accounted(self) -> set[int]:
        """The numbers that have come out, as outputs or as letters."""
        return {*self.said, *self.letters}

    def most(self) -> int:
        """How often the number came out that came out most often."""
        return max(self.letters[n] + len(self.said.get(n, ())) for n in self.accounted)

    def wrong(self, count: int, delivery: str) -> str | None:
        """Say which of the numbers below `count` did not come out as in a plain loop; None if none."""
        exactly_once = delivery == "exactly_once"
        wanted = truth(range(count), self.keys)
        wrong = []
        for n in range(count):
            letters, outputs = self.letters[n], self.said.get(n, [])
            if n not in wanted:
                right = not outputs and (letters == 1 if exactly_once else letters >= 1)
            elif exactly_once:
                right = not letters and [said[:2] for said in outputs] == [wanted[n]]
            else:
                right = not letters and bool(outputs)
                right = right and all(a >= b for said in outputs for a, b in zip(said, wanted[n]))
            if not right:
                wrong.append((n, key_of(n, self.keys), outputs, letters, wanted.get(n)))
        if wrong:
            return f"{len(wrong)} numbers are wrong; number, key, outputs, letters, true: {wrong[:10]}"
        for key, numbers in self.order.items():
            first = list(dict.fromkeys(numbers))
            if first != sorted(first):
                return f"key {key!r} is out of order: {numbers}"
        return None


def wrong_sums(found: Mapping[str, list[int]], count: int, keys: int, delivery: str) -> str | None:
    """Say which rows of the table are not what a plain loop makes; under at least once, which are less."""
    wanted = {key_of(n, keys): said for n, said in truth(range(count), keys).items()}
    off = {
        key: (has, should)
        for key in sorted(found.keys() | wanted.keys())
        if (has := tuple(found.get(key, (0, 0)))) != (should := wanted.get(key, (0, 0)))
        and (delivery == "exactly_once" or any(a < b for a, b in zip(has, should)))
    }
    return f"rows that the changelog has, and should have: {off}" if off else None


# -- the diary --------------------------------------------------------------------------------


class Diary:
    """One file to which all workers append what they do, each line in one step; it survives their death."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def entries(self) -> list[list[str]]:
        """Return the lines so far, by words."""
        return [line.split(" ") for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def _begun(self, origin: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for what, _, *words in self.entries():
            if what == "begins" and words[3] == origin:
                found.setdefault(int(words[5]), []).append(int(words[4]))
        return found

    def begun(self) -> dict[int, list[int]]:
        """Return for each number that was read when its attempts began, in ms of the wall clock."""
        return self._begun("read")

    def begun_again(self) -> dict[int, list[int]]:
        """Return the same for those that have waited in the table of deferred ones."""
        return self._begun("deferred")

    def returned(self) -> set[int]:
        """Return the numbers whose deaf calls have ended."""
        return {int(words[0]) for what, _, *words in self.entries() if what == "returns"}

    def taken_by(self, pid: int) -> set[int]:
        """Return the partitions that a process has ever had."""
        return {int(words[0]) for what, by, *words in self.entries() if what == "takes" and int(by) == pid}

    def committed_upto(self) -> int:
        """Return how many records, over all partitions, lie below what is committed."""
        last = {int(words[0]): int(words[1]) for what, _, *words in self.entries() if what == "commits"}
        return sum(last.values())


@dataclass
class Stint:
    """A worker's time with a partition.

    Attributes:
        done: what is committed of the partition, as far as that worker can know.
        attempts: those that it has begun, by offset.
    """

    done: Progress
    base: int
    attempts: dict[int, set[int]] = field(default_factory=dict)

    def finished(self, offset: int) -> bool:
        return offset < self.base or (offset < self.done.known_to and offset not in self.done.unfinished)


@dataclass
class Replays:
    """What the diary comes to.

    Attributes:
        begun: first attempts at events, repetitions among them.
        repeated: how many of these were at events that an earlier stint had begun.
        owed: how many events the commits had left to be begun again, over all stints: begun and not finished.
        wrong: what should not have begun.
    """

    begun: int = 0
    repeated: int = 0
    owed: int = 0
    wrong: list[str] = field(default_factory=list)


def replays(diary: Diary) -> Replays:
    """Hold each beginning of an event against what was committed when its worker took the partition, and since.

    An event that was put off is another matter: its offset is finished, and it is a row of a table.
    """
    result = Replays()
    stints: dict[tuple[str, int], Stint] = {}
    noted: dict[int, int] = {}
    ever: dict[int, set[int]] = {}
    for what, pid, *words in diary.entries():
        partition = int(words[0])
        if what == "takes":
            base = int(words[1])
            if base < noted.get(partition, 0):
                result.wrong.append(f"partition {partition} taken at {base}, committed was {noted[partition]}")
            stint = stints[pid, partition] = Stint(_progress(words), base)
            result.owed += sum(not stint.finished(offset) for offset in ever.get(partition, ()))
        elif what == "commits":
            stint = stints[pid, partition]
            stint.base, stint.done = int(words[1]), _progress(words)
            noted[partition] = max(stint.base, noted.get(partition, 0))
        elif what == "begins" and words[3] == "read":
            offset, attempt = int(words[1]), int(words[2])
            stint = stints[pid, partition]
            attempts = stint.attempts.setdefault(offset, set())
            if stint.finished(offset):
                result.wrong.append(f"{partition}@{offset} began in {pid} though it was committed as finished")
            if attempt in attempts:
                result.wrong.append(f"{partition}@{offset} began twice as attempt {attempt} in {pid}")
            attempts.add(attempt)
            if attempt == 1:
                seen = ever.setdefault(partition, set())
                result.begun += 1
                result.repeated += offset in seen
                seen.add(offset)
    return result


def _progress(words: list[str]) -> Progress:
    return decode(int(words[1]), words[2])
