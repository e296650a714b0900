"""What becomes of an event that fails: each way to fail, under each policy, delivery and kind of agent.

Three events come at once, the second of which fails. In the end each of them has left its effects
once, or is dead-lettered once as it came, or was skipped and counted, or has stopped the worker, whose next
life does it. A crash at the end changes nothing of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import pytest

from agentic import App, Fatal, Poison, Retry, RetryLater, Stream
from agentic.brokers import memory
from agentic.errors import AgentFailed, AgenticError, ConfigurationError, DecodeFailed
from agentic.runtime.letters import REPLAYED, STORY
from agentic.testing import Output, TestDriver

Fate = Literal["stop", "skip", "dead_letter", "defer"]

TIMEOUT = 10.0
#: Longer than all retries of an event take together, with their time-outs.
LONG = 200.0
RETRY = Retry(attempts=3, first=1, jitter="none")

#: Serial or with several events at once, effects in the one order or the other, at least once or exactly once.
RUNS: list[tuple[int, Any, Any]] = [
    (1, "completion", "at_least_once"),
    (1, "completion", "exactly_once"),
    (4, "completion", "at_least_once"),
    (4, "completion", "exactly_once"),
    (4, "offset", "exactly_once"),
]
EACH_RUN = pytest.mark.parametrize(("concurrency", "emit", "delivery"), RUNS)


# -- ways to fail ---------------------------------------------------------------------------------


async def raises(stream: Stream[int]) -> None:
    raise ValueError("thirteen")


async def raises_poison(stream: Stream[int]) -> None:
    raise Poison("thirteen")


async def raises_poison_in_a_group(stream: Stream[int]) -> None:
    raise ExceptionGroup("both", [ValueError("other"), Poison("thirteen")])


async def raises_fatal(stream: Stream[int]) -> None:
    raise Fatal("thirteen")


async def asks_for_later(stream: Stream[int]) -> None:
    raise RetryLater(5, "thirteen")


async def hangs(stream: Stream[int]) -> None:
    await asyncio.sleep(10_000)


async def rejects(stream: Stream[int]) -> None:
    stream.reject("thirteen")


@dataclass(frozen=True)
class Failure:
    """A way to fail.

    Attributes:
        fail: does it.
        error: what the letter says.
        kind: how it is judged.
        attempts: how many there are without a declared retry.
    """

    fail: Callable[[Stream[int]], Awaitable[None]]
    error: str
    kind: Literal["failure", "poison", "fatal", "rejected"] = "failure"
    attempts: int = 1
    options: dict[str, Any] = field(default_factory=dict)


FAILURES = [
    Failure(raises, "ValueError: thirteen"),
    Failure(raises_poison, "Poison: thirteen", "poison"),
    Failure(
        raises_poison_in_a_group,
        "ExceptionGroup: both (2 sub-exceptions): ValueError: other; Poison: thirteen",
        "poison",
    ),
    Failure(raises_fatal, "Fatal: thirteen", "fatal"),
    Failure(asks_for_later, "RetryLater: thirteen (after 5 s)", attempts=Retry().attempts),
    Failure(hangs, "AttemptTimeout: not done within 10 s", options={"timeout": TIMEOUT}),
    Failure(rejects, "thirteen", "rejected"),
]


# -- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declared:
    """What an app declares.

    Attributes:
        fate: of an event that has failed for good.
        options: the agent's.
        settings: the app's.
        letters: is there a dead letter topic: the agent's own, or the app's?
    """

    fate: Fate
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    letters: Literal["agent", "app"] | None = None

    def fate_of(self, failure: Failure) -> Fate:
        if failure.kind == "fatal":
            return "stop"
        if failure.kind == "rejected":
            return "dead_letter" if self.letters else "stop"
        if failure.kind == "poison" and self.letters:
            return "dead_letter"
        return self.fate


POLICIES = {
    "nothing": Declared("stop"),
    "on_error=skip": Declared("skip", settings={"on_error": "skip"}),
    "on_error=dead_letter": Declared("dead_letter", settings={"on_error": "dead_letter"}, letters="app"),
    "the app's topic alone": Declared("stop", letters="app"),
    "the agent's topic": Declared("dead_letter", letters="agent"),
    "the agent's topic over on_error=skip": Declared("dead_letter", settings={"on_error": "skip"}, letters="agent"),
    "on_exhausted=dead_letter, the app's topic": Declared(
        "dead_letter", {"on_exhausted": "dead_letter"}, letters="app"
    ),
    "on_exhausted=stop, the agent's topic": Declared("stop", {"on_exhausted": "stop"}, letters="agent"),
    "on_exhausted=stop over on_error=skip": Declared("stop", {"on_exhausted": "stop"}, {"on_error": "skip"}),
    "on_exhausted=skip": Declared("skip", {"on_exhausted": "skip"}),
    "on_exhausted=skip over on_error=dead_letter": Declared(
        "skip", {"on_exhausted": "skip"}, {"on_error": "dead_letter"}, letters="app"
    ),
    "on_exhausted=defer": Declared("defer", {"on_exhausted": "defer"}),
}


class Scene:
    """An app that gets 1, 13 and 2 at once, and fails on 13 until it is mended."""

    def __init__(self, declared: Declared, failure: Failure, concurrency: int, delivery: Any, **options: Any) -> None:
        settings = dict(declared.settings)
        if declared.letters == "app":
            settings["dead_letter"] = "dead"
        app = self.app = App("scene", topic_partitions=1, delivery=delivery, **settings)
        feed = app.topic("feed", value=list[int])
        src = app.topic("src", key=str, value=int)
        self.feed, self.src = feed, src
        self.out = app.topic("out", key=str, value=int)
        self.dead = app.topic("dead", key=str, value=bytes)
        totals = self.totals = app.table("totals", key=str, value=int, default=int)
        self.mended = False
        self.attempts = 0
        scene, fail = self, failure.fail
        if declared.letters == "agent":
            options["dead_letter"] = self.dead

        @app.agent(feed)
        async def spread(stream: Stream[list[int]]) -> None:
            async for values in stream:
                for n in values:
                    await src.send(n, key=f"k{n}", timestamp=1_000 + n, headers={"by": "me", REPLAYED: "1 dead-0@9"})

        @app.agent(src, to=self.out, concurrency=concurrency, **declared.options, **failure.options, **options)
        async def work(stream: Stream[int]) -> AsyncIterator[int]:
            async for n in stream:
                totals[stream.event.key] += n
                yield n * 10
                if n == 13 and not scene.mended:
                    scene.attempts += 1
                    await fail(stream)

    def drive(self) -> TestDriver:
        return TestDriver(self.app, now=1_000_000)


def values(driver: TestDriver, scene: Scene) -> list[int]:
    return sorted(output.value for output in driver.outputs(scene.out))


def check_letter(letter: Output, failure: Failure, attempts: int) -> None:
    """It is the record as it came, and its story."""
    assert (letter.key, letter.value, letter.timestamp) == ("k13", b"13", 1_013)
    assert letter.headers[:2] == (("by", b"me"), (REPLAYED, b"1 dead-0@9"))
    story = letter.headers[2:]
    assert tuple(name for name, _ in story) == STORY
    told = [text.decode() for _, text in story]
    assert told == ["src", "0", "1", "1013", failure.error, str(attempts), "work"]


def play(scene: Scene, declared: Declared, failure: Failure, retry: Retry | None, *, exactly: bool) -> None:
    fate = declared.fate_of(failure)
    attempts = 1
    if failure.kind == "failure":
        attempts = failure.attempts if retry is None else retry.attempts
    with scene.drive() as driver:
        if fate == "stop":
            with pytest.raises(AgenticError, match=r"agent 'work' failed on src-0 offset 1 key 'k13'"):
                driver.send(scene.feed, [1, 13, 2])
                driver.advance(LONG)
            assert scene.attempts == attempts
            before = values(driver, scene)
            assert set(before) <= {10, 20}
            assert driver.outputs(scene.dead) == []
            assert driver.dropped == {}
            scene.mended = True
            driver.crash()
            both = before + values(driver, scene)
            assert set(both) == {10, 20, 130}
            if exactly:
                assert sorted(both) == [10, 20, 130]
                assert driver.table(scene.totals) == {"k1": 1, "k2": 2, "k13": 13}
            return
        driver.send(scene.feed, [1, 13, 2])
        driver.advance(LONG)
        assert values(driver, scene) == [10, 20]
        letters = driver.outputs(scene.dead)
        if fate == "dead_letter":
            (letter,) = letters
            check_letter(letter, failure, attempts)
        else:
            assert letters == []
        reason = {"rejected": "rejected"}.get(failure.kind, "agent_error")
        assert driver.dropped == ({} if fate == "defer" else {reason: 1})
        assert scene.app.metrics.total("dead_letters") == len(letters)
        if fate != "defer":
            assert scene.attempts == attempts
        assert driver.table(scene.totals) == {"k1": 1, "k2": 2}
        driver.crash()
        driver.advance(LONG)
        assert values(driver, scene) == []
        assert driver.outputs(scene.dead) == []
        scene.mended = True
        driver.send(scene.feed, [3])
        driver.advance(LONG)
        late = {"k13": 13} if fate == "defer" else {}
        assert values(driver, scene) == [30, *(10 * n for n in late.values())]
        assert driver.table(scene.totals) == {"k1": 1, "k2": 2, "k3": 3, **late}


@pytest.mark.parametrize("retry", [None, RETRY], ids=["no retry", "retry"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.fail.__name__)
def test_an_event_that_fails_meets_what_is_declared(failure: Failure, policy: str, retry: Retry | None) -> None:
    declared = POLICIES[policy]
    for concurrency, emit, delivery in RUNS:
        scene = Scene(declared, failure, concurrency, delivery, retry=retry, emit=emit)
        play(scene, declared, failure, retry, exactly=delivery == "exactly_once")


# -- failing for a while --------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_event_that_is_tried_again_comes_as_it_came(concurrency: int) -> None:
    app = App("again", topic_partitions=1)
    orders = app.topic("orders", key=str, value=dict)
    seen: list[int] = []

    @app.agent(orders, concurrency=concurrency, retry=RETRY)
    async def take(stream: Stream[dict[str, int]]) -> None:
        async for order in stream:
            seen.append(order.pop("amount"))
            if stream.attempt < 3:
                raise ValueError("not yet")

    with TestDriver(app) as driver:
        driver.send(orders, {"amount": 7}, key="a")
        driver.advance(LONG)
        assert seen == [7, 7, 7]


@EACH_RUN
def test_an_event_that_succeeds_at_last_has_its_effects_once(concurrency: int, emit: Any, delivery: Any) -> None:
    declared, failure = POLICIES["the agent's topic"], FAILURES[0]
    scene = Scene(declared, failure, concurrency, delivery, retry=RETRY, emit=emit)
    with scene.drive() as driver:
        driver.send(scene.feed, [1, 13, 2])
        driver.advance(1)
        assert scene.attempts == 2
        scene.mended = True
        driver.advance(2)
        assert values(driver, scene) == [10, 20, 130]
        assert driver.outputs(scene.dead) == []
        assert driver.dropped == {}
        driver.crash()
        driver.advance(LONG)
        assert values(driver, scene) == []
        assert driver.table(scene.totals) == {"k1": 1, "k2": 2, "k13": 13}


@EACH_RUN
def test_attempts_begin_when_the_policy_says_and_again_in_a_new_life(
    concurrency: int, emit: Any, delivery: Any
) -> None:
    app = App("times", topic_partitions=1, delivery=delivery)
    src, dead = app.topic("src", value=int), app.topic("dead", value=int)
    begun: list[tuple[float, int]] = []

    @app.agent(
        src, concurrency=concurrency, emit=emit, dead_letter=dead, retry=Retry(attempts=4, first=2, jitter="none")
    )
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            begun.append((asyncio.get_running_loop().time(), stream.attempt))
            raise ValueError("always")

    with TestDriver(app) as driver:
        driver.send(src, 1)
        driver.advance(3)
        start = begun[0][0]
        assert [(at - start, attempt) for at, attempt in begun] == [(0, 1), (2, 2)]
        begun.clear()
        driver.crash()
        driver.advance(LONG)
        start = begun[0][0]
        assert [(at - start, attempt) for at, attempt in begun] == [(0, 1), (2, 2), (6, 3), (14, 4)]
        (letter,) = driver.outputs(dead)
        assert dict(letter.headers)["agentic-attempts"] == b"4"


@pytest.mark.parametrize(("concurrency", "delivery"), [(1, "at_least_once"), (4, "exactly_once")])
def test_later_events_of_a_key_wait_for_the_one_that_is_tried_again(concurrency: int, delivery: Any) -> None:
    app = App("keys", topic_partitions=1, delivery=delivery)
    src, out = app.topic("src", key=str, value=int), app.topic("out", key=str, value=int)
    failures = iter([True, True])

    @app.agent(src, to=out, concurrency=concurrency, retry=RETRY)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n == 1 and next(failures, False):
                raise ValueError("not yet")
            yield n

    with TestDriver(app) as driver:
        driver.send(src, 1, key="a")
        driver.send(src, 2, key="a")
        driver.send(src, 3, key="b")
        driver.advance(10)
        outputs = [(out.key, out.value) for out in driver.outputs(out)]
        assert [value for key, value in outputs if key == "a"] == [1, 2]
        assert ("b", 3) in outputs


# -- putting off ----------------------------------------------------------------------------------


@EACH_RUN
def test_an_event_that_is_put_off_comes_once_when_it_is_due_before_the_later_ones_of_its_key(
    concurrency: int, emit: Any, delivery: Any
) -> None:
    app = App("later", topic_partitions=1, delivery=delivery)
    src, out = app.topic("src", key=str, value=int), app.topic("out", key=str, value=int)
    seen: set[int] = set()

    @app.agent(src, to=out, concurrency=concurrency, emit=emit)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n == 1 and n not in seen:
                seen.add(n)
                stream.defer(timedelta(hours=1), reason="not today")
            yield n

    with TestDriver(app) as driver:
        for n, key in ((1, "a"), (2, "a"), (3, "b")):
            driver.send(src, n, key=key)
        assert [o.value for o in driver.outputs(out)] == [3]
        driver.crash()
        driver.send(src, 4, key="a")
        driver.advance(3_598)
        assert driver.outputs(out) == []
        driver.advance(2)
        assert [o.value for o in driver.outputs(out)] == [1, 2, 4]
        driver.crash()
        driver.advance(timedelta(hours=2))
        assert driver.outputs(out) == []
        assert driver.dropped == {}


@EACH_RUN
def test_a_long_wait_for_the_next_attempt_is_put_off_and_keeps_the_count(
    concurrency: int, emit: Any, delivery: Any
) -> None:
    app = App("patience", topic_partitions=1, delivery=delivery)
    src, dead = app.topic("src", key=str, value=int), app.topic("dead", key=str, value=int)
    attempts: list[int] = []

    @app.agent(src, concurrency=concurrency, emit=emit, dead_letter=dead, retry=Retry(attempts=3, within=None))
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            attempts.append(stream.attempt)
            raise RetryLater(timedelta(hours=1), "closed")

    with TestDriver(app) as driver:
        driver.send(src, 1, key="a", timestamp=5)
        driver.crash()
        driver.advance(3_600)
        driver.crash()
        assert driver.outputs(dead) == []
        driver.advance(3_600)
        assert attempts == [1, 2, 3]
        (letter,) = driver.outputs(dead)
        story = dict(letter.headers)
        assert (letter.key, letter.value, letter.timestamp) == ("a", 1, 5)
        assert story["agentic-attempts"] == b"3"
        assert (story["agentic-topic"], story["agentic-offset"]) == (b"src", b"0")
        driver.crash()
        driver.advance(7_200)
        assert driver.outputs(dead) == []
        assert driver.dropped == {"agent_error": 1}


# -- what can't be decoded ------------------------------------------------------------------------


@EACH_RUN
@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
def test_a_record_that_can_not_be_decoded_meets_the_apps_policy_whatever_its_agents_say(
    policy: Any, concurrency: int, emit: Any, delivery: Any
) -> None:
    app = App("garbled", topic_partitions=1, delivery=delivery, on_decode_error=policy, dead_letter="dead")
    src, out = app.topic("src", key=str, value=int), app.topic("out", key=str, value=int)
    dead, own = app.topic("dead", key=str, value=bytes), app.topic("own", value=bytes)

    @app.agent(src, to=out, concurrency=concurrency, emit=emit, retry=RETRY, dead_letter=own, on_exhausted="skip")
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    with TestDriver(app) as driver:
        driver.send(src, 1, key="a")
        if policy == "stop":
            with pytest.raises(DecodeFailed, match=r"src-0 offset 1 .* set on_decode_error to 'skip' or 'dead_letter'"):
                driver.send_raw(src, b"many", key=b"a")
            with pytest.raises(DecodeFailed):
                driver.crash()
            assert [o.value for o in driver.outputs(out)] == [1]
            assert driver.outputs(dead) == []
            return
        driver.send_raw(src, b"many", key=b"a", timestamp=7)
        driver.send(src, 2, key="a")
        driver.crash()
        assert [o.value for o in driver.outputs(out)] == [1, 2]
        assert driver.dropped == {"undecodable": 1}
        assert driver.outputs(own) == []
        letters = driver.outputs(dead)
        assert len(letters) == (policy == "dead_letter")
        for letter in letters:
            story = dict(letter.headers)
            assert (letter.key, letter.value, letter.timestamp) == ("a", b"many", 7)
            assert (story["agentic-topic"], story["agentic-offset"]) == (b"src", b"1")
            assert story["agentic-attempts"] == b"0"
            assert "agentic-agent" not in story


# -- the letters ----------------------------------------------------------------------------------


def failing(concurrency: int, **options: Any) -> tuple[App, Any, Any]:
    """An app whose agent fails on each event."""
    app = App("failing", topic_partitions=1)
    src, dead = app.topic("src", key=str, value=str), app.topic("dead", key=str, value=bytes)

    @app.agent(src, dead_letter=dead, concurrency=concurrency, **options)
    async def work(stream: Stream[str]) -> None:
        async for text in stream:
            raise ValueError(text)

    return app, src, dead


@pytest.mark.parametrize("concurrency", [1, 4])
def test_nulls_stay_nulls_and_a_long_error_is_cut(concurrency: int) -> None:
    app, src, dead = failing(concurrency)
    with TestDriver(app) as driver:
        driver.send(src, None)
        driver.send(src, "é" * 3_000, key="k")
        one, two = driver.outputs(dead)
        assert (one.key, one.value) == (None, None)
        error = dict(two.headers)["agentic-error"].decode()
        assert error.startswith("ValueError: éé")
        assert (len(error), error[-1]) == (1_001, "…")
        assert two.value == ("é" * 3_000).encode()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_letter_that_is_given_up_again_keeps_its_own_headers_and_has_its_last_story(concurrency: int) -> None:
    app, src, dead = failing(concurrency)
    last = app.topic("last", key=str, value=bytes)

    @app.agent(dead, dead_letter=last, concurrency=concurrency)
    async def mend(stream: Stream[bytes]) -> None:
        async for _ in stream:
            stream.reject("hopeless")

    with TestDriver(app) as driver:
        driver.send(src, "x", key="k", headers=[("by", "me"), ("by", "you")])
        (letter,) = driver.outputs(last)
        assert letter.headers[:2] == (("by", b"me"), ("by", b"you"))
        names = [name for name, _ in letter.headers[2:]]
        assert names == list(STORY)
        story = dict(letter.headers)
        assert (story["agentic-topic"], story["agentic-agent"]) == (b"dead", b"mend")


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("how", [raises, rejects])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_events_that_are_taken_together_are_given_up_together(
    concurrency: int, how: Callable[[Stream[int]], Awaitable[None]], delivery: Any
) -> None:
    app = App("lists", topic_partitions=1, delivery=delivery)
    src, out = app.topic("src", key=str, value=int), app.topic("out", key=str, value=int)
    dead = app.topic("dead", key=str, value=int)

    @app.agent(src, to=out, dead_letter=dead, concurrency=concurrency)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for some in stream.take(2, within=60):
            yield sum(some)
            if 13 in some:
                await how(stream)

    with TestDriver(app) as driver:
        for n in (1, 13, 2, 3):
            driver.send(src, n, key="k")
        driver.advance(60)
        driver.crash()
        letters = driver.outputs(dead)
        assert [(letter.value, dict(letter.headers)["agentic-offset"]) for letter in letters] == [(1, b"0"), (13, b"1")]
        assert [o.value for o in driver.outputs(out)] == [5]
        assert sum(driver.dropped.values()) == 2


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_change_of_a_table_is_dead_lettered_by_what_it_says(concurrency: int) -> None:
    app = App("changes", topic_partitions=1)
    src, dead = app.topic("src", key=str, value=int), app.topic("dead", key=str, value=list)
    totals = app.table("totals", key=str, value=int)

    @app.agent(src)
    async def count(stream: Stream[int]) -> None:
        async for n in stream:
            totals[stream.event.key] = n

    @app.agent(totals.changes(), dead_letter=dead, concurrency=concurrency)
    async def watch(stream: Stream[Any]) -> None:
        async for _ in stream:
            raise ValueError("no")

    with TestDriver(app) as driver:
        driver.send(src, 5, key="a", timestamp=3)
        driver.crash()
        (letter,) = driver.outputs(dead)
        assert (letter.key, letter.value, letter.timestamp) == ("a", ["a", None, 5], 3)
        assert driver.table(totals) == {"a": 5}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_of_two_agents_on_a_topic_each_gives_up_for_itself(concurrency: int, delivery: Any) -> None:
    app = App("two", topic_partitions=1, delivery=delivery)
    src, out = app.topic("src", key=str, value=int), app.topic("out", key=str, value=int)
    dead = app.topic("dead", key=str, value=int)

    @app.agent(src, dead_letter=dead, concurrency=concurrency)
    async def strict(stream: Stream[int]) -> None:
        async for n in stream:
            if n % 2:
                raise ValueError("odd")

    @app.agent(src, to=out)
    async def lenient(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    with TestDriver(app) as driver:
        for n in range(6):
            driver.send(src, n, key=f"k{n}")
        driver.crash()
        assert [o.value for o in driver.outputs(out)] == [0, 1, 2, 3, 4, 5]
        letters = driver.outputs(dead)
        assert [letter.value for letter in letters] == [1, 3, 5]
        assert {dict(letter.headers)["agentic-agent"] for letter in letters} == {b"strict"}
        assert driver.dropped == {"agent_error": 3}


@EACH_RUN
def test_what_is_rejected_is_counted_once_it_is_and_not_each_time_it_is_said(
    concurrency: int, emit: Any, delivery: Any
) -> None:
    app = App("twice", topic_partitions=1, delivery=delivery)
    src, dead = app.topic("src", value=int), app.topic("dead", value=int)

    @app.agent(src, concurrency=concurrency, emit=emit, retry=RETRY, dead_letter=dead)
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            stream.reject("first")
            if stream.attempt < 3:
                raise ValueError("not yet")
            stream.reject("second")

    with TestDriver(app) as driver:
        driver.send(src, 1)
        driver.advance(LONG)
        (letter,) = driver.outputs(dead)
        story = dict(letter.headers)
        assert (story["agentic-error"], story["agentic-attempts"]) == (b"second", b"3")
        assert driver.dropped == {"rejected": 1}
        assert app.metrics.total("dead_letters") == 1


@pytest.mark.parametrize(("error", "traced"), [(ValueError("x"), True), (Poison("x"), False)])
def test_the_log_has_a_traceback_of_what_was_not_meant(
    error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("logs", topic_partitions=1)
    src, dead = app.topic("src", value=int), app.topic("dead", value=int)

    @app.agent(src, dead_letter=dead)
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            raise error

    with TestDriver(app) as driver:
        driver.send(src, 1)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().endswith("x; dead-lettered")
    assert (record.exc_info is not None) == traced


def test_a_time_out_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = App("logs", topic_partitions=1)
    src, dead = app.topic("src", value=int), app.topic("dead", value=int)

    @app.agent(src, dead_letter=dead, timeout=TIMEOUT)
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            await hangs(stream)

    with TestDriver(app) as driver:
        driver.send(src, 1)
        driver.advance(TIMEOUT)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().endswith("not done within 10 s; dead-lettered")
    assert record.exc_info is None


# -- a letter that can't be written ---------------------------------------------------------------

#: Bytes that a record may have where it is to be too large; the event itself is not, its letter is.
LIMIT = 1_000


def large(
    how: str, concurrency: int, emit: Any, delivery: Any, **options: Any
) -> tuple[App, Any, Any, dict[str, bool]]:
    app = App(
        "large",
        topic_partitions=1,
        delivery=delivery,
        dead_letter="dead",
        on_decode_error="dead_letter" if how == "garbled" else "stop",
    )
    src, out = app.topic("src", key=str, value=str), app.topic("out", key=str, value=int)
    app.topic("dead", key=str, value=bytes)
    mended = {"yes": False}

    @app.agent(src, to=out, concurrency=concurrency, emit=emit, **options)
    async def work(stream: Stream[str]) -> AsyncIterator[int]:
        async for text in stream:
            if len(text) > 900 and not mended["yes"]:
                if how == "rejected":
                    stream.reject("too long")
                else:
                    raise Poison("too long")
            yield len(text)

    return app, src, out, mended


@EACH_RUN
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("raised", {}),
        ("raised", {"retry": RETRY}),
        ("raised", {"on_exhausted": "skip"}),
        ("rejected", {}),
        ("rejected", {"retry": RETRY}),
        ("rejected", {"on_exhausted": "skip"}),
    ],
)
def test_an_event_whose_letter_can_not_be_written_is_not_complete(
    how: str, options: dict[str, Any], concurrency: int, emit: Any, delivery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "RECORD_LIMIT", LIMIT)
    app, src, out, mended = large(how, concurrency, emit, delivery, **options)
    with TestDriver(app) as driver:
        driver.send(src, "one", key="a")
        with pytest.raises(
            AgenticError, match=r"agent 'work'.*topic 'dead': a record of \d+ bytes; at most 1000 are taken"
        ):
            driver.send(src, "x" * 950, key="a")
            driver.advance(LONG)
        with pytest.raises(AgenticError):
            driver.crash()
            driver.advance(LONG)
        mended["yes"] = True
        driver.crash()
        assert [o.value for o in driver.outputs(out)] == [3, 950]
        assert driver.outputs(app.topics["dead"]) == []


@EACH_RUN
def test_a_garbled_record_whose_letter_can_not_be_written_is_not_complete(
    concurrency: int, emit: Any, delivery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "RECORD_LIMIT", LIMIT)
    app, src, out, _ = large("garbled", concurrency, emit, delivery)
    with TestDriver(app) as driver:
        driver.send(src, "one", key="a")
        with pytest.raises(AgenticError, match="topic 'dead': a record of"):
            driver.send_raw(src, b"\xff" * 950)
        with pytest.raises(AgenticError, match="topic 'dead': a record of"):
            driver.crash()
        assert [o.value for o in driver.outputs(out)] == [3]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_reject_without_any_topic_names_the_way_out_and_is_never_skipped(concurrency: int) -> None:
    app = App("none", on_error="skip")
    src = app.topic("src", value=int)

    @app.agent(src, concurrency=concurrency, retry=RETRY)
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            stream.reject("bad")

    with TestDriver(app) as driver:
        with pytest.raises(
            AgentFailed, match=r"rejects an event, and there is no dead letter topic: declare dead_letter=topic for the"
        ):
            driver.send(src, 1)
        assert driver.dropped == {}


def test_a_serial_agent_that_asks_to_be_tried_again_unknown_to_us_stops_with_the_way_out() -> None:
    app = App("unknown", on_error="skip")
    src = app.topic("src", value=int)
    errors: list[Exception] = [RetryLater(1, "busy")]

    @app.agent(src)
    async def work(stream: Stream[int]) -> None:
        async for _ in stream:
            raise errors[0]

    with (
        TestDriver(app) as driver,
        pytest.raises(AgentFailed, match=r"busy .*declare @app.agent\(…, retry=Retry\(…\)\)"),
    ):
        driver.send(src, 1)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_giving_up_to_a_dead_letter_topic_that_there_is_not_is_refused_at_start(concurrency: int) -> None:
    app = App("nowhere")

    @app.agent(app.topic("src"), concurrency=concurrency, on_exhausted="dead_letter")
    async def work(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    with (
        pytest.raises(ConfigurationError, match=r"agent 'work': .* and there is none: declare dead_letter=topic"),
        TestDriver(app),
    ):
        pass
