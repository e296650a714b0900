"""Workers as processes: alone, supervised, killed, failing, orphaned."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import Shell
from rich.console import Console, ConsoleDimensions

from agentic.app import App
from agentic.cli import reports, supervisor
from agentic.cli.reports import Numbers, final_line, folded, summary_line
from agentic.cli.supervisor import Supervisor, commands
from agentic.metrics import Metrics

Start = Callable[..., subprocess.Popen[str]]


def until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read a process's log up to a line that matches."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"no {pattern!r} in\n{''.join(seen)}")


def child(process: subprocess.Popen[str], number: int) -> int:
    """The process id of a supervised worker, once it is told."""
    return int(until(process, rf"worker {number} runs as process (\d+)")[1])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_well(words: Shell, started: Start, number: int) -> None:
    worker = started("-A", "app", "worker")
    until(worker, "worker of words ready")
    worker.send_signal(number)
    out, _ = worker.communicate()
    assert worker.returncode == 0
    assert out.startswith("0 events in, 0 out, in ")


def test_run_works_its_input_off_and_says_how_much_it_was(words: Shell, started: Start) -> None:
    for word in ("one", "two", "three"):
        words.ok("-A", "app", "send", "words", word)
    run = started("-A", "app", "run")
    out, _ = run.communicate()
    assert run.returncode == 0
    assert out.startswith("3 events in, 3 out, in ")
    assert words.ok("-A", "app", "tail", "lengths").count("length") == 3
    assert "words  " in words.ok("-A", "app", "groups")
    assert started("-A", "app", "run").communicate()[0].startswith("0 events in, 0 out, in ")


def test_run_shows_its_table_at_the_end_where_there_is_no_terminal(words: Shell, started: Start) -> None:
    words.ok("-A", "app", "send", "words", "one")
    out, _ = started("-A", "app", "run", "--live").communicate()
    assert re.search(r"measure\s+│\s+1 │\s+1 │", out)
    assert re.search(r"words\s+│\s+1 │", out)
    assert out.splitlines()[-1].startswith("1 event in, 1 out, in ")


FAILING = """
from agentic import App

app = App("failing", topic_partitions=2)
words = app.topic("words", value=str)

@app.agent(words)
async def fail(stream):
    async for word in stream:
        raise ValueError(f"I do not like {word}")
"""


@pytest.mark.parametrize("command", [("run",), ("worker",)])
def test_an_agent_that_raises_ends_a_worker_with_1_and_where_it_was(
    words: Shell, started: Start, command: tuple[str, ...]
) -> None:
    words.write("failing.py", FAILING)
    words.ok("-A", "failing", "send", "words", "mondays", "--partition", 1)
    worker = started("-A", "failing", *command)
    _, log = worker.communicate()
    assert worker.returncode == 1
    assert "agent 'fail' failed on words-1 offset 0" in log
    assert "ValueError: I do not like mondays" in log


def test_a_worker_that_can_not_start_says_so_on_one_line(words: Shell, started: Start) -> None:
    worker = started("-A", "app", "worker", "--broker", "kafka://127.0.0.1:1", "--set", "start_timeout=1s")
    _, log = worker.communicate()
    assert worker.returncode == 1
    assert "127.0.0.1:1" in log.splitlines()[-1]
    assert "Traceback" not in log


# -- several --------------------------------------------------------------------------------------


def test_several_processes_share_the_partitions_and_end_together(words: Shell, started: Start) -> None:
    parent = started("-A", "app", "worker", "--processes", 2)
    children = [child(parent, 0), child(parent, 1)]
    until(parent, "worker of words ready")
    until(parent, "worker of words ready")
    parent.terminate()
    _, log = parent.communicate()
    assert parent.returncode == 0
    assert log.count("stopped") >= 2
    assert not any(alive(pid) for pid in children)


def test_each_line_of_several_processes_says_whose_it_is(words: Shell, started: Start) -> None:
    parent = started("-A", "app", "worker", "--processes", 2)
    for _ in range(2):
        until(parent, "worker [01]: worker of words ready")
    parent.terminate()
    _, log = parent.communicate()
    for n in range(2):
        assert f"worker {n}: stopping" in log
    assert not [line for line in log.splitlines() if re.search(r"INFO {4}(?!worker [01]|stopping the workers)", line)]


def test_lines_of_json_have_the_number_of_their_process(words: Shell, started: Start) -> None:
    parent = started("-A", "app", "--log", "json", "worker", "--processes", 2)
    assert parent.stderr is not None
    ready = (
        entry for entry in map(json.loads, parent.stderr) if entry["message"].endswith("ready on local://.agentic/log")
    )
    assert {next(ready)["worker"] for _ in range(2)} == {0, 1}
    parent.terminate()
    parent.communicate()


def test_a_worker_alone_has_no_number(words: Shell, started: Start) -> None:
    worker = started("-A", "app", "worker")
    until(worker, "INFO +worker of words ready")
    worker.terminate()
    worker.communicate()


def test_a_killed_process_is_started_again(words: Shell, started: Start) -> None:
    parent = started("-A", "app", "worker", "--processes", 2)
    first = child(parent, 0)
    until(parent, "worker of words ready")
    until(parent, "worker of words ready")
    os.kill(first, signal.SIGKILL)
    until(parent, r"worker 0 was killed by SIGKILL; again in 0\.5 s")
    assert child(parent, 0) != first
    until(parent, "worker of words ready")
    parent.send_signal(signal.SIGINT)
    assert parent.wait() == 0


def test_one_that_fails_by_itself_stops_them_all(words: Shell, started: Start) -> None:
    words.write("failing.py", FAILING)
    parent = started("-A", "failing", "worker", "--processes", 2)
    children = [child(parent, 0), child(parent, 1)]
    until(parent, "worker of failing ready")
    until(parent, "worker of failing ready")
    words.ok("-A", "failing", "send", "words", "mondays")
    until(parent, "failed with exit code 1; stopping the others")
    assert parent.wait() == 1
    assert not any(alive(pid) for pid in children)


def test_the_children_of_a_killed_parent_end_by_themselves(words: Shell, started: Start) -> None:
    parent = started("-A", "app", "worker", "--processes", 2)
    until(parent, "worker of words ready")
    until(parent, "worker of words ready")
    parent.kill()
    # The children hold the writing end of the log, too: it ends when the last of them has gone.
    _, log = parent.communicate()
    assert log.count("stopped") == 2


STUCK = """
import time
from agentic import App

app = App("stuck", topic_partitions=2)
words = app.topic("words", value=str)

@app.agent(words)
async def hang(stream):
    async for word in stream:
        print("stuck", flush=True)
        time.sleep(600)
"""


def test_a_second_signal_kills(words: Shell, started: Start) -> None:
    words.write("stuck.py", STUCK)
    words.ok("-A", "stuck", "send", "words", "x")
    parent = started("-A", "stuck", "worker", "--processes", 2)
    children = [child(parent, 0), child(parent, 1)]
    assert parent.stdout is not None
    assert parent.stdout.readline() == "stuck\n"
    parent.terminate()
    until(parent, "stopping the workers")
    parent.terminate()
    assert parent.wait() == 1
    assert not any(alive(pid) for pid in children)


def test_a_wrong_app_is_told_once_and_starts_nothing(words: Shell) -> None:
    words.write(
        "lost.py", 'from agentic import App\napp = App("x")\n@app.agent(app.topic("t"))\nasync def f(s):\n    yield 1\n'
    )
    assert "agent 'f' yields, and has no topic" in words.error("-A", "lost", "worker", "--processes", 2)


def test_a_live_table_of_several_processes_is_refused(words: Shell) -> None:
    line = words.error("-A", "app", "worker", "--processes", 2, "--live", code=2)
    assert line == "--live shows one process; leave out --processes, or --live"


def test_each_process_has_an_instance_of_its_own() -> None:
    first, second = commands(["-A", "app"], 2, "shop")
    assert first == [sys.executable, "-m", "agentic", "worker", "-A", "app", "--set", "instance=shop-0"]
    assert second[-1] == "instance=shop-1"
    assert commands(["-A", "app"], 1, None) == [[sys.executable, "-m", "agentic", "worker", "-A", "app"]]


# -- the supervisor alone -------------------------------------------------------------------------


def supervised(*programs: str) -> int:
    return asyncio.run(Supervisor([[sys.executable, "-c", program] for program in programs]).run())


def test_all_that_end_well_make_a_good_end() -> None:
    assert supervised("", "") == 0


def test_a_process_that_keeps_being_killed_waits_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(supervisor, "LAST_WAIT", 0.03)
    count = f"import os, pathlib\np = pathlib.Path({str(tmp_path / 'lives')!r})\np.open('a').write('x')\n"
    assert supervised(count + "len(p.read_text()) > 4 or os.kill(os.getpid(), 9)") == 0
    waits = re.findall(r"again in ([\d.]+) s", caplog.text)
    assert waits == ["0.01", "0.02", "0.03", "0.03"]


def test_one_that_lived_long_waits_little_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(supervisor, "WELL_AFTER", 0.0)
    count = f"import os, pathlib\np = pathlib.Path({str(tmp_path / 'lives')!r})\np.open('a').write('x')\n"
    assert supervised(count + "len(p.read_text()) > 3 or os.kill(os.getpid(), 9)") == 0
    assert re.findall(r"again in ([\d.]+) s", caplog.text) == ["0.01"] * 3


# -- numbers --------------------------------------------------------------------------------------


def test_the_summary_line_says_totals_and_rates_and_leaves_out_what_is_not_known() -> None:
    metrics = Metrics()
    before = Numbers.of(metrics)
    assert "lag" not in summary_line(before, before)
    metrics.counter("events_in", topic="t", partition=0).add(1500)
    metrics.counter("events_in", topic="t", partition=1).add(500)
    metrics.counter("events_out", agent="a").add(10)
    metrics.counter("dropped", reason="filtered").add(3)
    metrics.counter("dropped", reason="undecodable")
    metrics.gauge("lag", topic="t", partition=0).set(40)
    metrics.gauge("lag", topic="t", partition=1).set(None)
    metrics.latency("commit_seconds").observe(0.012)
    after = Numbers.of(metrics)
    after = Numbers(before.at + 10, after.events_in, after.events_out, after.dropped, after.lag, after.commit_p99)
    line = summary_line(after, before)
    assert line == "in 2,000 (200/s), out 10 (1/s), lag 40, commit p99 12 ms, dropped filtered 3"
    assert folded(line, 40).splitlines() == [
        "in 2,000 (200/s), out 10 (1/s), lag 40,",
        "commit p99 12 ms, dropped filtered 3",
    ]


def test_the_final_line_says_what_a_run_has_done() -> None:
    metrics = Metrics()
    metrics.counter("events_in", topic="t", partition=0).add(2000)
    metrics.counter("events_out", agent="a").add(10)
    assert final_line(metrics, 2.0) == "2,000 events in, 10 out, in 2.0 s (1,000 events/s)"
    metrics.counter("dropped", reason="filtered").add(1)
    assert final_line(metrics, 0.0) == "2,000 events in, 10 out, in 0.0 s; dropped: filtered 1"
    assert folded(final_line(metrics, 2.0), 60).splitlines() == [
        "2,000 events in, 10 out, in 2.0 s (1,000 events/s);",
        "dropped: filtered 1",
    ]
    one = Metrics()
    one.counter("events_in", topic="t", partition=0).add(1)
    assert final_line(one, 0.0) == "1 event in, 0 out, in 0.0 s"
    assert final_line(one, 4.0) == "1 event in, 0 out, in 4.0 s (0.2 events/s)"


def test_the_summary_is_logged_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("numbers")
    app.metrics.counter("events_in", topic="t", partition=0).add(7)
    monkeypatch.setattr(reports, "SUMMARY_EVERY", 0.001)
    lines: list[str] = []

    async def two_lines() -> None:
        summary = asyncio.create_task(reports.summary(app))

        def note(form: str, line: str) -> None:
            lines.append(form % line)
            if len(lines) == 2:
                summary.cancel()

        monkeypatch.setattr(reports.log, "info", note)
        await asyncio.wait([summary])

    asyncio.run(two_lines())
    assert all(line.startswith("in 7 (0/s)") for line in lines)


class Screen(io.StringIO):
    """A terminal that tells when something is drawn on it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = asyncio.Event()

    def flush(self) -> None:
        self.drawn.set()

    async def next(self, text: str) -> str:
        """Return what is drawn from now on, up to this text."""
        self.seek(0)
        self.truncate()
        while text not in self.getvalue():
            self.drawn.clear()
            await self.drawn.wait()
        return self.getvalue()


def test_a_live_table_is_drawn_anew_on_a_terminal_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines were broken anew by the terminal: what is overwritten from where it began would leave some of it."""
    monkeypatch.setattr(reports, "LIVE_EVERY", 0.001)
    app = App("numbers")

    async def scenario() -> None:
        screen = Screen()
        console = Console(file=screen, force_terminal=True, width=80, height=20)
        drawing = asyncio.create_task(reports._draw(app, console))
        async with asyncio.timeout(30):
            assert "\x1b[2J" not in await screen.next("numbers on local://")
            console.size = ConsoleDimensions(40, 20)
            await screen.next("\x1b[2J")
            await screen.next("numbers on local://")
        drawing.cancel()
        await asyncio.wait([drawing])
        assert "\x1b[?25h" in screen.getvalue(), "the cursor is shown again"

    asyncio.run(scenario())


def test_run_says_that_events_are_put_off_and_not_waited_for(words: Shell, started: Start) -> None:
    words.write(
        "later.py",
        """
        from agentic import App

        app = App("later", topic_partitions=1)
        letters = app.topic("letters", key=str, value=str)

        @app.agent(letters, concurrency=2)
        async def post(stream):
            async for letter in stream:
                stream.defer(3600)
        """,
    )
    words.ok("-A", "later", "topics", "create")
    for key in "ab":
        words.ok("-A", "later", "send", "letters", "hello", "--key", key)
    process = started("-A", "later", "run")
    until(process, r"2 events put off or behind one, and not waited for: see 'agentic deferred ls'")
    assert process.wait(60) == 0
