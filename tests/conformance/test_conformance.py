"""Every scenario gives its rows, record for record, and a crash after each step changes none of them."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from agentic import App, Reply, Stream

from . import __main__ as command
from .apps import KINDS, Scene, Spec
from .runner import is_left_out, lines, run

DATA = Path(__file__).parent / "data"
#: Scenarios of one test: with a crash after each step they take about two seconds.
PIECE = 30


def pieces() -> list[Any]:
    found = []
    for path in sorted(DATA.iterdir()):
        scenarios = [json.loads(line) for line in lines(str(path))]
        scenarios = [scenario for scenario in scenarios if scenario["spec"]["kind"] in KINDS]
        for start in range(0, len(scenarios), PIECE):
            piece = scenarios[start : start + PIECE]
            found.append(pytest.param(piece, id=f"{path.name.partition('.')[0]}-{start}"))
    return found


def failures(scenarios: Iterable[dict[str, Any]], *, crash: bool = False) -> list[str]:
    return [failure for scenario in scenarios if (failure := run(scenario, crash=crash)) is not None]


PIECES = pieces()


@pytest.mark.parametrize("scenarios", PIECES)
def test_what_comes_out_is_what_the_scenarios_say(scenarios: list[dict[str, Any]]) -> None:
    assert not (found := failures(scenarios)), "\n".join(found)


@pytest.mark.parametrize("scenarios", PIECES)
def test_a_crash_after_every_step_changes_nothing(scenarios: list[dict[str, Any]]) -> None:
    kept = [scenario for scenario in scenarios if not is_left_out(scenario["spec"])]
    assert not (found := failures(kept, crash=True)), "\n".join(found)


# -- the runner itself, with an app that passes on what it gets ---------------------------------

Runs = Callable[..., tuple[int, list[str]]]


def passing_on(spec: Spec, app: App) -> Scene:
    """Passes each value on, but for some words: it obeys those."""
    source = app.topic("in", key=str, partitions=1)
    output = app.topic("out", key=str, value=dict, partitions=1)

    @app.agent(source.filter(lambda value: value != "be dropped"), to=output)
    async def pass_on(stream: Stream[Any]) -> AsyncIterator[Any]:
        seen = 0
        async for event in stream.events():
            seen += 1
            answer = {"key": event.key, "value": event.value, "ts": event.timestamp}
            match event.value:
                case "raise":
                    raise RuntimeError("as it was told to")
                case "count":
                    yield {**answer, "value": seen}
                case "come later":
                    yield Reply(answer, timestamp=event.timestamp + 1)
                case "come twice":
                    yield answer
                    yield answer
                case _:
                    yield answer

    return Scene(app, {"in": source}, output)


def step(value: Any, *rows: Any, key: str | None = "a") -> dict[str, Any]:
    """Send a value; the rows that come of it have these values."""
    out = [{"key": key, "value": row, "ts": 5} for row in rows]
    return {"topic": "in", "key": key, "value": value, "ts": 5, "out": out}


def scenario(name: str, *steps: dict[str, Any], dropped: dict[str, int] | None = None, **spec: Any) -> dict[str, Any]:
    return {"name": name, "spec": {"kind": "pass", **spec}, "steps": steps, "dropped": dropped or {}, "kafka": True}


GOOD = scenario("good", step("x", "x"))
BAD = scenario("bad", step("x", "y"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """Runs scenarios as the command does; gives the exit status and the lines that it printed."""
    monkeypatch.setitem(KINDS, "pass", passing_on)

    def run_them(*scenarios: Any, crash: bool = False) -> tuple[int, list[str]]:
        path = tmp_path / "scenarios.jsonl"
        path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in scenarios))
        status = command.main([str(path), *(["--crash"] if crash else [])])
        return status, capsys.readouterr().out.splitlines()

    return run_them


def test_nothing_but_the_last_line_is_printed_when_all_pass(runs: Runs) -> None:
    assert runs(GOOD, scenario("null key, null and empty values", step(None, None, key=None), step("", ""))) == (
        0,
        ["2 passed, 0 failed"],
    )


def test_the_first_step_that_differs_is_shown_with_both_sides(runs: Runs) -> None:
    status, printed = runs(scenario("second", step("x", "x"), step("é", "y"), step("z", "zz")), GOOD)
    assert status == 1
    assert printed == [
        'second: step 2, {"topic": "in", "key": "a", "value": "é", "ts": 5}',
        '  expected: [{"key": "a", "value": "y", "ts": 5}]',
        '  actual:   [{"key": "a", "value": "é", "ts": 5}]',
        "1 passed, 1 failed",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(step("x"), id="a row that nobody expects"),
        pytest.param(step("x", "x", "x"), id="a row that is missing"),
        pytest.param(step("come twice", "come twice"), id="a row that comes twice"),
        pytest.param(step(1, True), id="true for 1"),
        pytest.param(step(1, 1.0), id="1.0 for 1"),
        pytest.param(step("", None), id="null for the empty string"),
        pytest.param(step("come later", "come later"), id="a record that is not of its row's time"),
        pytest.param({**step("x"), "out": [{"key": "a", "value": "x"}]}, id="a field that is not in the row"),
        pytest.param({"advance_wall": 10, "out": step("x", "x")["out"]}, id="a row that the wall clock is to bring"),
    ],
)
def test_rows_are_compared_exactly(bad: dict[str, Any], runs: Runs) -> None:
    status, printed = runs(scenario("bad", bad))
    assert (status, printed[-1]) == (1, "0 passed, 1 failed")
    assert printed[0].startswith("bad: step 1")


def test_drops_are_compared_too(runs: Runs) -> None:
    dropping = [step("be dropped"), step("x", "x")]
    assert runs(scenario("counted", *dropping, dropped={"filtered": 1})) == (0, ["1 passed, 0 failed"])
    assert runs(scenario("not counted", *dropping)) == (
        1,
        ["not counted: drops", "  expected: {}", '  actual:   {"filtered": 1}', "0 passed, 1 failed"],
    )


def test_a_scenario_that_raises_has_failed_and_the_next_one_is_run(runs: Runs) -> None:
    status, printed = runs(scenario("raising", step("x", "x"), step("raise", "raise")), GOOD)
    assert status == 1
    assert printed[0].startswith('raising: step 2, {"topic": "in", "key": "a", "value": "raise", "ts": 5}: raised ')
    assert "as it was told to" in printed[0]
    assert printed[1:] == ["1 passed, 1 failed"]


@pytest.mark.parametrize("line", ["{", "[]", '{"name": "no spec"}', '{"name": "n", "spec": {"kind": []}}'])
def test_a_line_that_is_no_scenario_has_failed(line: str, runs: Runs) -> None:
    status, printed = runs(GOOD, line, GOOD)
    assert (status, printed[-1]) == (1, "2 passed, 1 failed")
    assert "no scenario" in printed[0]


def test_a_kind_that_no_app_is_known_for_has_failed(runs: Runs) -> None:
    status, printed = runs(scenario("odd", kind="riddle"), GOOD)
    assert status == 1
    assert printed == ["odd: kind 'riddle' can't be run: there is no app for it", "1 passed, 1 failed"]


def test_none_run_is_no_success(runs: Runs) -> None:
    assert runs() == (1, ["0 passed, 0 failed"])


def test_a_crash_follows_every_step(runs: Runs) -> None:
    counting = scenario("counts in a variable", step("count", 1), step("count", 2))
    assert runs(counting) == (0, ["1 passed, 0 failed"])
    status, printed = runs(GOOD, counting, crash=True)
    assert status == 1
    assert printed[0].startswith("counts in a variable: step 2")
    assert printed[-1] == "1 passed, 1 failed"


def test_wall_timers_are_left_out_of_crashes(runs: Runs) -> None:
    assert runs(scenario("wall", kind="timer", clock="wall"), GOOD, crash=True) == (0, ["1 passed, 0 failed"])
    status, printed = runs(scenario("stream", kind="timer", clock="stream"), crash=True)
    assert (status, printed[-1]) == (1, "0 passed, 1 failed")


def test_files_may_be_compressed_and_one_that_cannot_be_read_has_failed(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut, missing = (str(tmp_path / name) for name in ("whole.jsonl.gz", "cut.jsonl.gz", "missing.jsonl"))
    data = gzip.compress(json.dumps(GOOD).encode())
    Path(whole).write_bytes(data)
    Path(cut).write_bytes(data[:-4])
    assert command.main([whole]) == 0
    assert capsys.readouterr().out.splitlines() == ["1 passed, 0 failed"]
    for unreadable in (cut, missing):
        assert command.main([unreadable, whole]) == 1
        printed = capsys.readouterr().out.splitlines()
        assert printed[0].startswith(f"{unreadable}: can't be read")
        assert printed[-1] == "1 passed, 1 failed"


def test_the_command_is_run_as_a_module() -> None:
    readable = DATA / "readable.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", str(readable)],
        cwd=DATA.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    last = re.fullmatch(r"(\d+) passed, (\d+) failed", done.stdout.splitlines()[-1])
    assert last is not None, done.stdout + done.stderr
    passed, failed = map(int, last.groups())
    assert passed + failed == len(readable.read_text("utf-8").splitlines())
    assert done.returncode == (1 if failed else 0)
