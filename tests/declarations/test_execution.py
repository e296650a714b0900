"""Options of an agent: what each takes, and that a wrong one is refused with agent, option, value and way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Breaker, Retry, Stream
from agentic.agent import Agent
from agentic.errors import ConfigurationError
from agentic.execution import MOST_IN_FLIGHT, PIN_LIMIT, Execution


async def work(stream: Stream[Any]) -> None:
    async for _ in stream:
        pass


def blocking(stream: Any) -> None:
    for _ in stream:
        pass


def declare(fn: Callable[..., Any] = work, **options: Any) -> Agent:
    app = App("shop")
    return app.agent(app.topic("orders"), name="ship", **options)(fn)


LONG_TIME = timedelta(days=365 * 200)

WRONG: list[tuple[str, Any, str]] = [
    *[("concurrency", value, "give 1 to 500, or") for value in (0, -1, 501, 1.5, True, "4", "all", None)],
    *[("order", value, "it is one of 'key', 'partition', 'none'") for value in ("keys", "", 1, True, [])],
    *[("emit", value, "it is one of 'completion', 'offset'") for value in ("order", 0, False)],
    *[("retry", value, "write retry=Retry(…)") for value in (5, "3", True, Retry, {"attempts": 3})],
    *[("timeout", value, "give a timedelta or seconds above 0") for value in (0, 0.0, timedelta(0))],
    *[("timeout", value, "negative") for value in (-1, timedelta(seconds=-1))],
    *[("timeout", value, "give a timedelta, or seconds") for value in ("30", True, [])],
    *[("timeout", value, "no time to wait") for value in (float("inf"), float("nan"), LONG_TIME)],
    *[("dead_letter", value, "it is no topic; make one by app.topic(…)") for value in ("failed", 5, App)],
    *[
        ("on_exhausted", value, "it is one of 'dead_letter', 'stop', 'skip', 'defer'")
        for value in ("dlq", "ignore", "", False)
    ],
    *[("threads", value, "it is True or False") for value in (4, "yes", None)],
    *[("rate_limit", value, "is no rate; give") for value in ("fast", "100", "0/s", "-1/s", "1/d", 0, -5, True, [])],
    *[("max_in_flight_bytes", value, "give a number of bytes, at least 1") for value in (0, -1, 1.5, True, "1MB")],
    *[("breaker", value, "write breaker=Breaker(…)") for value in (0.5, True, Breaker)],
    *[("deferral", value, "it is True or False") for value in ("yes", 1, 0)],
    *[("pin_limit", value, "give a timedelta or seconds above 0") for value in (0, timedelta(0))],
    *[("pin_limit", value, "negative") for value in (-1,)],
    *[("hot_key", value, "it is one of 'wait', 'park'") for value in ("drop", 1, True)],
    *[("replies", value, "it is True or False") for value in ("yes", 1, None)],
]


@pytest.mark.parametrize(("option", "value", "way"), WRONG, ids=repr)
def test_a_wrong_option_names_the_agent_the_option_the_value_and_the_way_out(option: str, value: Any, way: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(**{option: value})
    message = str(caught.value)
    assert message.startswith(f"agent 'ship': {option}={value!r}: "), message
    assert way in message
    assert "\n" not in message


def test_every_option_of_an_agent_has_wrong_values_here() -> None:
    names = set(Execution.declare.__kwdefaults__)
    assert names == {option for option, _, _ in WRONG}


RIGHT: list[tuple[str, Any, str, Any]] = [
    ("concurrency", 1, "concurrency", 1),
    ("concurrency", MOST_IN_FLIGHT, "in_flight", MOST_IN_FLIGHT),
    ("concurrency", "auto", "in_flight", MOST_IN_FLIGHT),
    ("order", None, "order", "key"),
    ("emit", "offset", "emit", "offset"),
    ("timeout", 0.5, "timeout", 0.5),
    ("timeout", timedelta(minutes=1), "timeout", 60.0),
    ("timeout", None, "timeout", None),
    ("rate_limit", "100/s", "rate", 100.0),
    ("rate_limit", "6000/m", "rate", 100.0),
    ("rate_limit", 2.5, "rate", 2.5),
    ("max_in_flight_bytes", 1, "max_in_flight_bytes", 1),
    ("pin_limit", timedelta(minutes=10), "pin_limit", 600.0),
    ("pin_limit", None, "pin_limit", PIN_LIMIT),
    ("deferral", None, "deferral", None),
    ("on_exhausted", "defer", "deferral", True),
    ("hot_key", "park", "deferral", True),
    ("breaker", None, "breaker", None),
]


@pytest.mark.parametrize(("option", "value", "kept_as", "kept"), RIGHT, ids=repr)
def test_a_right_option_is_kept_in_one_form(option: str, value: Any, kept_as: str, kept: Any) -> None:
    assert getattr(declare(**{option: value}).execution, kept_as) == kept


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(attempts=0), "Retry(attempts=0) is no number of attempts"),
        (lambda: Retry(attempts=2.5), "Retry(attempts=2.5) is no number of attempts"),  # type: ignore[arg-type]
        (lambda: Retry(factor=0.5), "Retry(factor=0.5) would make waits shrink"),
        (lambda: Retry(first=-1), "Retry(first=-1): duration -1 is negative"),
        (lambda: Retry(first=60, max=30), "Retry(max=30.0) is less than first=60.0"),
        (lambda: Retry(within=0), "Retry(within=0) leaves no time"),
        (lambda: Retry(jitter="half"), "Retry(jitter='half') is unknown"),  # type: ignore[arg-type]
        (lambda: Breaker(share=0), "Breaker(share=0) is no share"),
        (lambda: Breaker(share=1.5), "Breaker(share=1.5) is no share"),
        (lambda: Breaker(least=0), "Breaker(least=0) is no number of attempts"),
        (lambda: Breaker(pause=0), "Breaker(pause=0) is no time at all"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_where_it_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("options", [{"on_exhausted": "defer"}, {"hot_key": "park"}])
def test_what_puts_events_off_does_not_go_with_no_deferral(options: dict[str, str]) -> None:
    ((option, value),) = options.items()
    message = f"agent 'ship': {option}={value!r} puts events off, and deferral=False forbids it"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        declare(deferral=False, **options)


def test_an_agents_dead_letter_topic_is_none_that_it_reads() -> None:
    app = App("shop")
    orders, returns = app.topic("orders"), app.topic("returns")
    for source in (orders, orders.filter(bool)):
        with pytest.raises(
            ConfigurationError, match=r"agent 'work': its dead letter topic 'orders' is what it reads: "
        ):
            app.agent(returns, source, dead_letter=orders)(work)


def test_a_function_that_blocks_is_declared_so_and_only_such_a_one() -> None:
    with pytest.raises(ConfigurationError, match=r"agent 'ship': write it as async def .* takes threads=True"):
        declare(blocking)
    with pytest.raises(
        ConfigurationError, match=r"agent 'ship': threads=True runs a plain function .* this one is async"
    ):
        declare(work, threads=True)
    assert declare(blocking, threads=True).execution.threads


@pytest.mark.parametrize(
    "options",
    [{}, {"order": "partition"}, {"emit": "offset"}, {"on_exhausted": "skip"}, {"deferral": False}, {"replies": True}],
)
def test_what_makes_no_difference_to_one_event_after_the_other_leaves_the_agent_serial(options: Any) -> None:
    assert declare(**options).serial


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 2},
        {"concurrency": "auto"},
        {"retry": Retry()},
        {"timeout": 1},
        {"rate_limit": 5},
        {"max_in_flight_bytes": 1},
        {"breaker": Breaker()},
        {"deferral": True},
        {"on_exhausted": "defer"},
        {"hot_key": "park"},
        {"pin_limit": 1},
    ],
)
def test_what_needs_more_than_that_does_not(options: Any) -> None:
    assert not declare(**options).serial


async def put_off(stream: Any) -> None:
    async for _ in stream:
        stream.defer(60)


async def put_off_by_another(stream: Any) -> None:
    await put_off(stream)


def test_an_agent_whose_code_puts_events_off_has_a_table_for_them() -> None:
    for fn in (put_off, put_off_by_another):
        agent = declare(fn)
        assert agent.deferred is not None
        assert agent.deferred.name == "ship-deferred"
    assert declare(work).deferred is None
    assert declare(put_off, deferral=False).deferred is None
    assert declare(work, retry=Retry(max=timedelta(hours=1))).deferred is not None
    assert declare(work, retry=Retry()).deferred is None
