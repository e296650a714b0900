"""The circuit that stops starting work, against a list of all that happened."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core.breaker import Breaker, Circuit
from agentic.errors import ConfigurationError

QUICK = Breaker(share=0.5, least=4, window=10, pause=5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"share": 0}, "share=0"),
        ({"share": 1.1}, "share=1.1"),
        ({"share": math.nan}, "share=nan"),
        ({"share": True}, "share=True"),
        ({"share": "half"}, "share='half'"),
        ({"least": 0}, "least=0"),
        ({"least": 1.5}, "least=1.5"),
        ({"window": 0}, "window=0"),
        ({"window": -1}, "window=-1"),
        ({"pause": math.inf}, "pause=inf"),
        ({"pause": None}, "pause=None"),
        ({"pause": timedelta(0)}, "pause=0"),
    ],
)
def test_a_breaker_of_nonsense_is_refused_by_field_and_value(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Breaker(**given)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_durations_are_kept_as_seconds() -> None:
    breaker = Breaker(window=timedelta(minutes=1), pause=timedelta(seconds=2))
    assert (breaker.window, breaker.pause) == (60.0, 2.0)


def opened(now: float = 100.0, breaker: Breaker = QUICK) -> Circuit:
    circuit = Circuit(breaker)
    for _ in range(breaker.least):
        circuit.failed(now)
    assert circuit.state == "open"
    return circuit


def probing(now: float = 105.0) -> Circuit:
    circuit = opened(now - 5)
    assert circuit.may_start(now)
    assert circuit.state == "half-open"
    return circuit


# -- closed ---------------------------------------------------------------------------------------


def test_attempts_start_while_fewer_than_the_share_fail() -> None:
    circuit = Circuit(QUICK)
    for second in range(100):
        circuit.succeeded(second)
        circuit.succeeded(second)
        circuit.failed(second)
        assert circuit.may_start(second)
        assert circuit.starts_at() is None


def test_too_few_attempts_say_nothing() -> None:
    circuit = Circuit(QUICK)
    for _ in range(3):
        circuit.failed(1.0)
    assert circuit.may_start(1.0)
    circuit.failed(1.0)
    assert not circuit.may_start(1.0)


def test_failures_out_of_the_window_are_forgotten() -> None:
    circuit = Circuit(QUICK)
    for second in (0, 3, 6):
        circuit.failed(second)
    circuit.failed(10)
    assert circuit.state == "closed"
    circuit.failed(12)
    assert circuit.state == "open"


def test_a_success_never_opens() -> None:
    circuit = Circuit(QUICK)
    for _ in range(3):
        circuit.failed(1.0)
    circuit.succeeded(1.0)
    assert circuit.state == "closed"


# -- open -----------------------------------------------------------------------------------------


def test_an_open_circuit_starts_nothing_for_its_pause() -> None:
    circuit = opened(100.0)
    assert not circuit.may_start(104.9)
    assert circuit.starts_at() == 105.0
    assert circuit.may_start(105.0)


def test_what_ends_while_it_is_open_changes_nothing() -> None:
    circuit = opened(100.0)
    circuit.succeeded(101.0)
    circuit.failed(104.0)
    circuit.abandoned()
    assert circuit.state == "open"
    assert circuit.starts_at() == 105.0


# -- half-open ------------------------------------------------------------------------------------


def test_one_probe_starts_at_a_time() -> None:
    circuit = probing(105.0)
    assert not circuit.may_start(105.0)
    assert not circuit.may_start(1e6)
    assert circuit.starts_at() is None


def test_a_probe_that_succeeds_closes_with_nothing_counted() -> None:
    circuit = probing(105.0)
    circuit.succeeded(106.0)
    assert circuit.state == "closed"
    for _ in range(3):
        circuit.failed(106.0)
    assert circuit.may_start(106.0)


def test_a_probe_that_fails_opens_for_another_pause() -> None:
    circuit = probing(105.0)
    circuit.failed(107.0)
    assert circuit.state == "open"
    assert circuit.starts_at() == 112.0


def test_after_a_probe_without_verdict_another_one_starts() -> None:
    circuit = probing(105.0)
    circuit.abandoned()
    assert circuit.may_start(105.0)
    assert not circuit.may_start(105.0)


def test_what_started_before_it_opened_says_nothing_of_the_probe() -> None:
    circuit = probing(105.0)
    circuit.succeeded(106.0, started=99.0)
    circuit.failed(106.0, started=99.0)
    circuit.abandoned(started=99.0)
    assert circuit.state == "half-open"
    assert not circuit.may_start(106.0)
    circuit.succeeded(107.0, started=105.0)
    assert circuit.state == "closed"


def test_what_started_before_the_probe_is_not_counted_after_it_either() -> None:
    circuit = probing(105.0)
    circuit.succeeded(106.0, started=105.0)
    for _ in range(100):
        circuit.failed(107.0, started=99.0)
    assert circuit.state == "closed"


# -- against the list -----------------------------------------------------------------------------


class Listed:
    """A circuit that keeps every attempt, and counts them all again at each failure, by whole seconds."""

    def __init__(self) -> None:
        self.state = "closed"
        self.attempts: list[tuple[float, bool]] = []
        self.until = 0.0
        self.probe = False

    def may_start(self, now: float) -> bool:
        if self.state == "open" and now >= self.until:
            self.state = "half-open"
        if self.state == "closed":
            return True
        if self.state == "open" or self.probe:
            return False
        self.probe = True
        return True

    def ended(self, now: float, failed: bool) -> None:
        if self.state == "closed":
            self.attempts.append((now, failed))
            recent = [bad for at, bad in self.attempts if math.floor(at) > math.floor(now) - 10]
            if failed and len(recent) >= 4 and sum(recent) >= 0.5 * len(recent):
                self.state, self.until = "open", now + 5
        elif self.probe:
            self.probe = False
            if failed:
                self.state, self.until = "open", now + 5
            else:
                self.state, self.attempts = "closed", []


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 1.0, 4.75, 30.0]), st.sampled_from(["start", "good", "bad", "none"])),
        max_size=150,
    )
)
@settings(max_examples=300)
def test_any_history_goes_as_a_list_of_all_attempts_says(story: list[tuple[float, str]]) -> None:
    circuit, listed, now = Circuit(QUICK), Listed(), 0.0
    for gap, happens in story:
        now += gap
        if happens == "start":
            assert circuit.may_start(now) == listed.may_start(now)
        elif happens == "good":
            circuit.succeeded(now)
            listed.ended(now, failed=False)
        elif happens == "bad":
            circuit.failed(now)
            listed.ended(now, failed=True)
        else:
            circuit.abandoned()
            listed.probe = False
        assert circuit.state == listed.state
        assert circuit.starts_at() == (listed.until if listed.state == "open" else None)


def test_a_service_that_is_down_costs_few_attempts_and_is_found_again() -> None:
    """Ten attempts in a second, of an event each; the service is down from the 60th to the 120th second."""
    circuit = Circuit(Breaker(share=0.5, least=20, window=30, pause=5))
    failed = 0
    first_after = math.inf
    for tick in range(2_000):
        now = tick / 10
        if not circuit.may_start(now):
            continue
        if 60 <= now < 120:
            failed += 1
            circuit.failed(now)
        else:
            circuit.succeeded(now)
            if now >= 120:
                first_after = min(first_after, now)
    assert failed < 320, "half of a window, and then a probe each pause"
    assert first_after <= 125
    assert circuit.state == "closed"
