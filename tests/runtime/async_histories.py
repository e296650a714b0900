"""Random histories of an agent that works on many events at once, and what must come out of each.

A history is made of a seed: an agent with random options, events each with a plan (how long each
attempt takes, and how it ends), and what happens meanwhile: time, crashes at any turn of the loop,
stops in order. It runs on the worker itself, on a log in memory and virtual time.

The model is small. However it went, at the end each event has its output or its dead letter:
one of them, once, under exactly-once, and under at-least-once too unless something was killed; at
least once in any case. Outputs, and the table that each event writes its name to, have the order that
was asked for. And at any time, what is committed as done has taken effect, or was put off.

Run as a program it tries any number of histories: ``python tests/runtime/async_histories.py 100000``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import msgspec
from async_plans import KEYS, Input, Options, random_plan

from agentic import App, Fatal, Poison, Retry, RetryLater, Stream
from agentic.brokers.base import TopicPartition
from agentic.brokers.memory import Log, MemoryStore
from agentic.core.metadata import MAX_LENGTH, decode
from agentic.errors import AgenticError
from agentic.runtime.pool import Pool
from agentic.table import Table
from agentic.testing import TestDriver
from agentic.topic import Outgoing, Topic

#: Virtual seconds after which all must be done, whatever the plans say.
ENOUGH = 4_000.0
#: Events of one key, more than stations take of it.
MANY = 90


class History:
    """One history, run by `run`.

    Attributes:
        killed: did anything die without having been stopped?
    """

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.options = options = Options.random(chance)
        self.killed = self.stopped = False
        self.inputs: list[Input] = []
        self.by_place: dict[tuple[int, int], Input] = {}
        self.bases: dict[int, int] = {}
        self.app = App(
            f"history-{seed}",
            topic_partitions=options.partitions,
            delivery=options.delivery,
            commit_interval=timedelta(seconds=options.commit_interval),
            stop_timeout=timedelta(seconds=5),
        )
        self.source: Topic[str, int] = self.app.topic("source", key=str, value=int)
        self.out: Topic[str, int] = self.app.topic("out", key=str, value=int)
        self.letters: Topic[str, int] = self.app.topic("letters", key=str, value=int)
        self.rows: Table[str, list[int]] | None = None
        if options.table:
            self.rows = self.app.table("rows", key=str, value=list[int], default=list)
        self._declare()

    def _declare(self) -> None:
        options = self.options
        further: dict[str, Any] = {} if options.pin_limit is None else {"pin_limit": options.pin_limit}
        declare = self.app.agent(
            self.source,
            to=self.out,
            concurrency=options.concurrency,
            order=options.order,
            emit=options.emit,
            retry=Retry(attempts=options.attempts, first=0.5, max=4, within=None) if options.attempts > 1 else None,
            timeout=options.timeout,
            dead_letter=self.letters,
            on_exhausted=options.on_exhausted,
            deferral=options.deferral,
            hot_key=options.hot_key,
            rate_limit=options.rate,
            max_in_flight_bytes=options.in_flight_bytes,
            **further,
        )
        rows = self.rows

        async def one(stream: Stream[int]) -> Any:
            async for name in stream:
                event = self.inputs[name]
                event.counted.append(stream.attempt)
                if await self._act(stream, [event]):
                    if rows is not None and event.key is not None:
                        rows[event.key] = [*rows[event.key], name]
                    yield name

        async def some(stream: Stream[int]) -> None:
            async for names in stream.take(options.take, within=0.5):
                events = [self.inputs[name] for name in names]
                if await self._act(stream, events):
                    for event in events:
                        if rows is not None and event.key is not None:
                            rows[event.key] = [*rows[event.key], event.name]
                        await self.out.send(event.name, key=event.key)

        declare(one if options.take == 1 else some)

    async def _act(self, stream: Stream[int], events: list[Input]) -> bool:
        """Do what the plans say; return whether the events are to have their effects."""
        acts = [event.next_act(self.options.timeout) for event in events]
        act = next((each for each in acts if each.how != "ok"), acts[-1])
        for event in events:
            event.met.add(act.how)
        if act.how == "stubborn":
            try:
                await asyncio.sleep(act.latency)
            except asyncio.CancelledError:
                await asyncio.sleep(0.25)
                return True
            raise ValueError("as planned")
        if act.latency:
            await asyncio.sleep(act.latency)
        if act.how in ("fail", "hang"):
            raise ValueError("as planned")
        if act.how == "poison":
            raise Poison("as planned")
        if act.how == "fatal":
            raise Fatal("as planned")
        if act.how == "later":
            raise RetryLater(act.after)
        if act.how == "reject":
            stream.reject("as planned")
            return False
        if act.how in ("defer", "pass by"):
            stream.defer(act.after, block_key=act.how == "defer")
            return False
        return True

    # -- what happens -------------------------------------------------------------------------

    def run(self) -> None:
        """Run it and compare.

        Raises:
            AssertionError: something came out that must not, or did not come out.
        """
        chance = self.chance
        with TestDriver(self.app) as self.driver:
            for _ in range(chance.randrange(2, 10)):
                what = chance.choice(("send", "send", "send", "advance", "let", "let", "turns", "crash", "restart"))
                self._meet(what)
                self._check_commit()
            self._meet("send")
            for _ in range(int(ENOUGH / 30)):
                if self._all_done():
                    break
                self._meet("advance", 30.0)
            self._meet("advance", 1.0)
            self._check_commit()
            self._check_end()

    def _meet(self, what: str, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = self.chance.choice((0.1, 0.5, 1.0, 3.0, 10.0))
        try:
            self._let_happen(what, seconds)
        except AgenticError as error:
            self._start_again_after(error)

    def _let_happen(self, what: str, seconds: float) -> None:
        chance, driver = self.chance, self.driver
        if what == "send":
            self._send(chance.choice((1, 2, 3, 6, 12)))
        elif what == "advance":
            driver.advance(seconds)
        elif what == "let":
            driver._loop.advance(seconds)
        elif what == "turns":
            self._turn(chance.randrange(60))
        elif what == "crash":
            self._turn(chance.randrange(30))
            self.killed = True
            driver.crash()
        elif what == "restart":
            self.stopped = True
            if (failure := driver._stop()) is not None:
                raise failure
            driver._begin()

    def _start_again_after(self, error: BaseException) -> None:
        """A Fatal has stopped the worker, in order: what it was not done with comes again. Nothing else may."""
        while True:
            if "as planned" not in str(error):
                raise error
            self.stopped = True
            self.driver._failure = None
            self.driver._end_stragglers()
            try:
                self.driver._begin()
            except AgenticError as another:
                error = another
            else:
                return

    def _send(self, count: int) -> None:
        """Write events to the log at once, for the worker to find."""
        chance, options = self.chance, self.options
        if options.hot_key == "park" and chance.random() < 0.3:
            count = MANY
        records = []
        for _ in range(count):
            key = None if chance.random() < 0.1 else chance.choice(KEYS[:1] if count == MANY else KEYS)
            # Times need not rise; a log takes none before 0.
            when = max(0, int(self.driver._now()) + chance.randrange(-3_000, 1_000))
            event = Input(len(self.inputs), key, when, random_plan(chance, options) if count < MANY else [])
            self.inputs.append(event)
            records.append(self.source.outgoing(self.source.encode_key(key), event.name, None, when, None))
        self.driver._complete(self._append(records))
        for partition in range(options.partitions):
            for offset, value in self._log("source", partition):
                event = self.inputs[value]
                event.partition, event.offset = partition, offset
                self.by_place[partition, offset] = event

    async def _append(self, records: Sequence[Outgoing]) -> None:
        producer = self.driver._keeper.producer()
        for record in records:
            producer.send(*record)
        await producer.flush()
        await producer.close()

    def _turn(self, turns: int) -> None:
        """Let the loop make some turns, and stop wherever it is then."""
        loop = self.driver._loop
        left = turns

        def turn() -> None:
            nonlocal left
            left -= 1
            if left > 0:
                loop.call_soon(turn)
            else:
                loop.stop()

        loop.call_soon(turn)
        loop.advance(0.0)

    # -- what has come out --------------------------------------------------------------------

    @property
    def _store(self) -> MemoryStore:
        return self.driver._keeper._memory

    def _log(self, topic: str, partition: int) -> Iterator[tuple[int, int]]:
        """Offsets and decoded values of a log; under exactly-once the log has committed ones only."""
        log: Log = self._store.logs[TopicPartition(topic, partition)]
        for i, value in enumerate(log.values):
            assert value is not None
            yield log.start + i, msgspec.json.decode(value)

    def _names(self, topic: str) -> list[list[int]]:
        """What is in each partition of a topic, in order."""
        return [[value for _, value in self._log(topic, n)] for n in range(self.options.partitions)]

    def _all_done(self) -> bool:
        if self.options.on_exhausted == "skip":
            positions = {tp.partition: each.offset for tp, each in self._positions().items()}
            ends = Counter(event.partition for event in self.inputs)
            return not self._parked() and all(positions.get(n, 0) == end for n, end in ends.items())
        came = {name for topic in ("out", "letters") for names in self._names(topic) for name in names}
        return len(came) == len(self.inputs)

    def _parked(self) -> int:
        """How many events are put off."""
        crews = [crew for task in self.driver._assignment().tasks.values() for crew in task.crews]
        return sum(crew.deferrals.parked for crew in crews if isinstance(crew, Pool) and crew.deferrals is not None)

    def _positions(self) -> dict[TopicPartition, Any]:
        return self._store.committed.get(self.app.name, {})

    def _check_commit(self) -> None:
        """What is committed as done has taken effect."""
        effects = {name for topic in ("out", "letters") for names in self._names(topic) for name in names}
        for tp, (base, metadata) in self._positions().items():
            assert len(metadata) <= MAX_LENGTH
            assert base >= self.bases.get(tp.partition, 0), "a commit position falls"
            self.bases[tp.partition] = base
            known = decode(base, metadata)
            for (partition, offset), event in self.by_place.items():
                if partition != tp.partition or offset >= known.known_to or offset in known.unfinished:
                    continue
                assert event.name in effects or self._may_have_none(event), f"{event} is committed and had no effect"

    def _may_have_none(self, event: Input) -> bool:
        """May an event be committed that has no output, and no dead letter? It was put off, or skipped."""
        return self.options.deferral or self._may_be_skipped(event)

    def _may_be_skipped(self, event: Input) -> bool:
        # Events that are taken together fail together.
        return self.options.on_exhausted == "skip" and (self.options.take > 1 or bool(set(event.acts) - {"ok"}))

    def _check_end(self) -> None:
        options = self.options
        out, letters = self._names("out"), self._names("letters")
        outputs, dead = Counter(chain(*out)), Counter(chain(*letters))
        for event in self.inputs:
            ways = (outputs[event.name], dead[event.name])
            once = options.delivery == "exactly_once" or not self.killed
            assert sum(ways) or self._may_be_skipped(event), f"{event} is lost"
            if once:
                assert sum(ways) <= 1, f"{event} has {ways} outputs and dead letters"
            if dead[event.name]:
                self._check_letter(event)
            if once and options.take == 1 and not self.killed and not self.stopped and options.pin_limit is None:
                self._check_fate(event, ways)
        self._check_order(out, letters)
        self._check_rows(out, set(chain(*letters)))

    def _check_letter(self, event: Input) -> None:
        if self.options.take == 1:
            assert set(event.acts) - {"ok", "defer", "pass by"}, f"{event} is dead-lettered for nothing"

    def _check_fate(self, event: Input, ways: tuple[int, int]) -> None:
        """Without crashes an event's fate is what its plan says, and it is begun no more often."""
        options = self.options
        failures = 0
        counted: list[int] = []
        while True:
            act = event.act(len(counted))
            counted.append(failures + 1)
            late = options.timeout is not None and act.latency >= options.timeout
            if late or act.how in ("fail", "hang", "stubborn", "later"):
                failures += 1
                if failures >= options.attempts and options.on_exhausted != "defer":
                    fate = (0, 1) if options.on_exhausted == "dead_letter" else (0, 0)
                    break
            elif act.how in ("poison", "reject"):
                fate = (0, 1)
                break
            elif act.how == "ok":
                fate = (1, 0)
                break
        assert ways == fate, f"{event} has {ways} outputs and dead letters, and its plan says {fate}"
        assert event.counted == counted, f"{event} was begun as {event.counted}, not as {counted}"

    def _check_order(self, out: list[list[int]], letters: list[list[int]]) -> None:
        options = self.options
        # What was given up, and came again after a crash, may succeed then: it has lost its place.
        dead = set(chain(*letters))
        if self.killed:
            dead.update(event.name for event in self.inputs if self._may_be_skipped(event))
        for names in out:
            first = [name for name in dict.fromkeys(names) if name not in dead]
            if options.order == "key":
                for key in KEYS:
                    of_key = [n for n in first if self.inputs[n].key == key and "pass by" not in self.inputs[n].met]
                    assert of_key == self._by_offset(of_key), f"key {key}: {of_key}"
            # Those that were taken together take effect together, at the last one's turn.
            if options.order == "partition" or (options.emit == "offset" and options.take == 1):
                self._check_offsets(first, "outputs")
        if options.emit == "offset" and options.take == 1:
            for names in letters:
                self._check_offsets(list(dict.fromkeys(names)), "dead letters")

    def _check_offsets(self, names: list[int], what: str) -> None:
        """What comes from one partition and was not put off is in the order of its offsets."""
        for partition in range(self.options.partitions):
            of_partition = [
                n for n in names if self.inputs[n].partition == partition and not self._was_put_off(self.inputs[n])
            ]
            assert of_partition == self._by_offset(of_partition), f"{what} of partition {partition}: {of_partition}"

    def _was_put_off(self, event: Input) -> bool:
        if not self.options.deferral:
            return False
        # Behind one of its key that is put off it waits as well.
        return any(
            {"defer", "pass by", "later"} & each.met
            or (self.options.on_exhausted == "defer" and each.met | set(each.acts) - {"ok"})
            or self.options.pin_limit is not None
            or self.options.hot_key == "park"
            for each in self.inputs
            if each is event or (each.key is not None and each.key == event.key)
        )

    def _by_offset(self, names: list[int]) -> list[int]:
        return sorted(names, key=lambda name: (self.inputs[name].partition, self.inputs[name].offset))

    def _check_rows(self, out: list[list[int]], dead: set[int]) -> None:
        if self.rows is None:
            return
        rows = dict(self.driver.table(self.rows))
        outputs: dict[str, list[int]] = {}
        for name in chain(*out):
            event = self.inputs[name]
            if event.key is not None:
                outputs.setdefault(event.key, []).append(name)
        if self.options.delivery == "exactly_once" or not self.killed:
            assert rows == outputs
        else:
            # An output that is out may be of an event whose row was not committed: then both come again,
            # or the event is given up this time.
            written, sent = set(chain(*rows.values())), set(chain(*outputs.values()))
            assert written <= sent
            for name in sent - written:
                event = self.inputs[name]
                assert name in dead or self._may_be_skipped(event), f"{event} has an output and no row"
            for key, names in rows.items():
                assert all(self.inputs[name].key == key for name in names)


def run(seed: int) -> History:
    """Run the history of a seed; what it raises names the seed and the options."""
    history = History(seed)
    # Delays are drawn from the module's own source.
    random.seed(seed)
    try:
        history.run()
    except BaseException as error:
        error.add_note(f"history of seed {seed}: {history.options}, killed={history.killed}, stopped={history.stopped}")
        raise
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description="Try random histories of agents that work on many events at once.")
    parser.add_argument("histories", type=int)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the others follow")
    parser.add_argument("--keep-going", action="store_true", help="tell of each failure in a line, and go on")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    failed = 0
    for seed in range(given.seed, given.seed + given.histories):
        try:
            run(seed)
        except Exception as error:
            if not given.keep_going:
                raise
            failed += 1
            print(
                f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:400]}\n    {error.__notes__[-1]}",
                flush=True,
            )
    seconds = time.monotonic() - began
    print(f"{given.histories} histories from seed {given.seed} on, {failed} failed, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
