"""Runs scenarios: builds the app, takes the steps, and says the first thing that differs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from agentic import App
from agentic.testing import Output, TestDriver

from .apps import KINDS, Scene, Spec

Scenario = Mapping[str, Any]
Kinds = Mapping[str, Callable[[Spec, App], Scene]]


class Difference(Exception):
    """Something other came out than the scenario says; the text says what."""


class Tally(NamedTuple):
    """How many scenarios passed and failed."""

    passed: int
    failed: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed"

    @property
    def status(self) -> int:
        """The exit status: 0 if all passed, and there were any."""
        return 0 if self.passed and not self.failed else 1


def lines(path: str) -> Iterator[bytes]:
    """Yield the scenarios of a file as they are written, one a line; the name of a compressed one ends in ``.gz``.

    Raises:
        OSError: the file can't be read, or is not what its name says.
        EOFError: a compressed file is cut short.
    """
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        for line in file:
            if line.strip():
                yield line


def run_files(paths: list[str], *, crash: bool, tell: Callable[[str], None], kinds: Kinds = KINDS) -> Tally:
    """Run all scenarios of some files, and `tell` of each one that fails.

    Args:
        crash: after every step lose all that was not committed, under exactly-once.
    """
    passed = failed = 0
    for path in paths:
        number = 0
        try:
            for number, line in enumerate(lines(path), 1):
                name = f"{path}, scenario {number}"
                try:
                    scenario = json.loads(line)
                    name = scenario["name"]
                    if crash and is_left_out(scenario["spec"]):
                        continue
                    failure = run(scenario, crash=crash, kinds=kinds)
                except (ValueError, KeyError, TypeError) as error:
                    failure = f"{name}: no scenario: {type(error).__name__}: {error}"
                if failure is None:
                    passed += 1
                else:
                    failed += 1
                    tell(failure)
        except (OSError, EOFError) as error:
            failed += 1
            tell(f"{path}: can't be read after scenario {number}: {error}")
    return Tally(passed, failed)


def is_left_out(spec: Spec) -> bool:
    """Does a crash change what comes out? Timers of the wall clock begin anew with the worker."""
    return bool(spec["kind"] == "timer" and spec["clock"] == "wall")


def run(scenario: Scenario, *, crash: bool = False, kinds: Kinds = KINDS) -> str | None:
    """Run one scenario; return in what it differs, None if in nothing."""
    name, spec = scenario["name"], scenario["spec"]
    build = kinds.get(spec["kind"])
    if build is None:
        return f"{name}: kind {spec['kind']!r} can't be run: there is no app for it"
    where = "building the app"
    try:
        scene = build(spec, App("conformance", delivery="exactly_once" if crash else "at_least_once"))
        with TestDriver(scene.app, now=scene.now) as driver:
            for number, step in enumerate(scenario["steps"], 1):
                where = f"step {number}, {taken(step)}"
                compare(step["out"], take(step, driver, scene, crash=crash))
            where = "drops"
            compare(scenario["dropped"], driver.dropped)
            where = "the end"
    except Difference as difference:
        return f"{name}: {where}\n{difference}"
    except Exception as error:  # noqa: BLE001 - whatever an engine raises, the scenario has failed, and the next one runs
        return f"{name}: {where}: raised {type(error).__name__}: {error}"
    return None


def take(step: Mapping[str, Any], driver: TestDriver, scene: Scene, *, crash: bool) -> list[Any]:
    """Take a step; return the rows that came out."""
    if "advance_wall" in step:
        driver.advance(timedelta(milliseconds=step["advance_wall"]))
    else:
        driver.send(scene.inputs[step["topic"]], step["value"], key=step["key"], timestamp=step["ts"])
    if crash:
        driver.crash()
    # After the crash, so that what a restart sends again is among them.
    return [row(output) for output in driver.outputs(scene.output)]


def row(output: Output) -> Any:
    """Return the row that a record holds, having looked at whether the record is of its key and time."""
    held = output.value
    if "ts" in held:
        compare({"key": held["key"], "ts": held["ts"]}, {"key": output.key, "ts": output.timestamp})
    return held


def compare(expected: Any, actual: Any) -> None:
    """Raise `Difference` unless both are the same JSON: 1 is neither 1.0 nor true."""
    if exact(expected) != exact(actual):
        raise Difference(f"  expected: {shown(expected)}\n  actual:   {shown(actual)}")


def exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def taken(step: Mapping[str, Any]) -> str:
    return shown({name: value for name, value in step.items() if name != "out"})


def shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
