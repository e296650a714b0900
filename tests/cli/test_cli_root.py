"""The root command: help, the user's commands, settings from the command line, completion, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module

import click
import pytest
from cli_support import Shell

import agentic
from agentic.cli.names import COMMANDS, module_of
from agentic.cli.root import cli

OWN = """
import click
from agentic import App

app = App("mine")
topic = app.topic("topic", value=str)

@app.command()
def plain():
    "Say something.\\n\\nAnd more."
    click.echo("something")

@app.command(click.Argument(["what"]), name="say-it")
async def say(what):
    await topic.send(what)

@app.command()
@click.option("--times", default=2)
@click.argument("word")
def repeat(word, times):
    click.echo(word * times)

@app.command()
def answer():
    return 42

@app.command()
def fail():
    raise ValueError("mine")
"""


@pytest.fixture
def own(shell: Shell) -> Shell:
    shell.write("app.py", OWN)
    return shell


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_one_module_and_the_list_says_what_its_help_says(name: str) -> None:
    module = module_of(name)
    command = getattr(import_module(f"agentic.cli.{module}"), module)
    assert isinstance(command, click.Command)
    assert (command.help or "").startswith(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_the_shared_options(shell: Shell, name: str) -> None:
    text = shell.ok(name, "--help")
    assert text == shell.ok(name, "-h")
    assert "-A, --app MODULE[:APP]" in text
    assert "--broker URL" in text


def test_help_imports_no_client_and_no_command() -> None:
    code = (
        "import sys\nfrom agentic.cli.root import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "heavy = {'asyncio', 'rich', 'confluent_kafka', 'lmdb', 'mode', 'agentic.cli.worker', 'agentic.runtime'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_the_packages(shell: Shell) -> None:
    assert shell.ok("--version").split()[-1] == agentic.__version__


def test_python_m_agentic_is_agentic() -> None:
    shown = subprocess.run([sys.executable, "-m", "agentic", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[-1] == agentic.__version__


def test_an_unknown_command_is_refused_with_those_there_are(shell: Shell) -> None:
    assert shell.error("wroker", code=2) == "no command 'wroker'; did you mean 'worker'?"
    line = shell.error("frobnicate", code=2)
    assert line.startswith("no command 'frobnicate'; there are worker, run, ")
    assert line.endswith(", and with -A MODULE the app's own")


# -- the user's own -------------------------------------------------------------------------------


def test_a_command_of_the_users_own_runs(own: Shell) -> None:
    assert own.ok("-A", "app", "plain") == "something\n"
    assert own.ok("plain", "-A", "app") == "something\n"
    assert own.ok("plain", "-Aapp") == "something\n"
    assert own.ok("plain", "--app=app") == "something\n"


def test_a_command_that_the_app_has_not_is_refused_with_the_nearest_that_there_is(own: Shell) -> None:
    assert own.error("-A", "app", "plane", code=2) == "no command 'plane'; did you mean 'plain'?"
    line = own.error("frobnicate", "-A", "app", code=2)
    assert line.startswith("no command 'frobnicate'; there are worker, run, ")
    assert "plain" in line


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("name='run'", "command 'run' of app 'x': agentic has one of this name; give yours another"),
        ("name='--x'", "command '--x' of app 'x': a name has letters, digits and . _ -"),
        ("name='a b'", "command 'a b' of app 'x': a name has letters, digits and . _ -"),
        ("'--day'", "command 'go' of app 'x': '--day' is no click parameter; write click.Option"),
    ],
)
def test_a_command_that_nobody_could_call_is_refused(shell: Shell, declared: str, why: str) -> None:
    shell.write("app.py", f"from agentic import App\napp = App('x')\n@app.command({declared})\ndef go(): pass\n")
    assert why in shell.error("-A", "app", "topics")


def test_decorated_parameters_work(own: Shell) -> None:
    assert own.ok("-A", "app", "repeat", "ab", "--times", 3) == "ababab\n"


def test_an_async_command_can_send(own: Shell) -> None:
    own.ok("-A", "app", "topics", "create")
    own.ok("-A", "app", "say-it", "hello")
    assert '"hello"' in own.ok("-A", "app", "tail", "topic")


def test_a_command_whose_task_swallows_its_cancellation_ends_all_the_same(shell: Shell) -> None:
    shell.write(
        "app.py",
        """
        import asyncio
        from agentic import App
        from agentic.runtime import runner

        runner.LAST_WAIT = 0.1
        app = App("x")

        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

        @app.command()
        async def go():
            app.kept = asyncio.create_task(stubborn(), name="stubborn")
            await asyncio.sleep(0)
            print("done")
        """,
    )
    process = shell.start("-A", "app", "go")
    out, log = process.communicate()
    assert (process.returncode, out) == (1, "done\n")
    assert "does not end although all else has: stubborn; ending the process" in log


def test_what_a_command_returns_is_no_exit_code(own: Shell) -> None:
    assert own.ok("-A", "app", "answer") == ""


def test_an_error_of_a_users_command_is_the_users_to_see(own: Shell) -> None:
    result = own("-A", "app", "fail")
    assert isinstance(result.exception, ValueError)


def test_help_lists_the_users_commands_beside_ours(own: Shell) -> None:
    text = own.ok("-A", "app", "--help")
    assert "Commands of the app:" in text
    assert "Say something." in text
    assert "And more." not in text
    assert "And more." in own.ok("-A", "app", "plain", "--help")


def test_help_comes_even_where_the_app_can_not_be_imported(shell: Shell) -> None:
    shell.write("app.py", "1 / 0")
    text = shell.ok("-A", "app", "--help")
    assert "worker" in text
    assert "not known: module 'app' can't be imported" in " ".join(text.split())


def test_a_command_that_the_app_has_not_is_refused(own: Shell) -> None:
    assert "plein" in own.error("-A", "app", "plein", code=2)


# -- settings -------------------------------------------------------------------------------------


def test_settings_are_overridden_together(own: Shell) -> None:
    report = own.ok("-A", "app", "--set", "max_buffered=7", "doctor", "--set", "commit-interval=2s", "--log", "json")
    lines = {line.split()[0]: line.split() for line in report.splitlines() if line}
    assert lines["max_buffered"][1] == "7"
    assert lines["commit_interval"][1] == "2s"
    assert lines["log"][1] == "json"


def test_two_settings_that_need_each_other_may_come_in_any_order(own: Shell) -> None:
    for first, second in (("on_decode_error", "dead_letter"), ("dead_letter", "on_decode_error")):
        given = {"on_decode_error": "dead_letter", "dead_letter": "graveyard"}
        own.ok("-A", "app", "topics", "--set", f"{first}={given[first]}", "--set", f"{second}={given[second]}")


def test_the_later_of_two_wins(own: Shell) -> None:
    report = own.ok("-A", "app", "--set", "max_buffered=7", "doctor", "--set", "max_buffered=8")
    assert re.search(r"^max_buffered +8 ", report, re.MULTILINE)


def test_an_unknown_setting_is_refused_with_the_nearest(own: Shell) -> None:
    line = own.error("-A", "app", "topics", "--set", "max_bufered=7")
    assert line == "setting 'max_bufered' is unknown; did you mean setting 'max_buffered'?"


@pytest.mark.parametrize("text", ["max_buffered", "=7"])
def test_half_a_setting_is_refused(own: Shell, text: str) -> None:
    assert f"'{text}': write NAME=VALUE" in own.error("-A", "app", "topics", "--set", text, code=2)


def test_an_unknown_broker_scheme_is_refused(own: Shell) -> None:
    line = own.error("-A", "app", "topics", "--broker", "redis://x")
    assert (
        line == "setting 'broker': 'redis://x': no such scheme; write local://DIRECTORY, kafka://HOST:PORT or memory://"
    )


def test_a_log_directory_that_is_a_file_is_an_error_on_one_line(own: Shell) -> None:
    own.write("taken", "mine")
    assert "taken" in own.error("-A", "app", "topics", "--broker", "local://taken")
    assert (own.directory / "taken").read_text() == "mine"


def test_a_command_that_an_error_names_can_be_copied(own: Shell) -> None:
    """What raises the error knows neither the app nor the broker; the command line does."""
    broker = ("--broker", "local://log here")
    line = own.error("-A", "app", "run", *broker, "--set", "create_topics=false")
    command = "'agentic -A app topics create --broker 'local://log here''"
    assert line == f"local://log here has no topic 'topic'; make it with {command}, or set create_topics=True"
    assert "see 'agentic topics list --broker local://l'" in own.error(
        "topics", "delete", "x", "--yes", "--broker", "local://l"
    )
    assert "see 'agentic -A app groups list'" not in own.error("-A", "app", "groups", "delete", "x", "--yes")


def test_a_command_that_the_log_names_can_be_copied(own: Shell) -> None:
    """A topic that goes away under a worker is told in its log."""
    own.write(
        "gone.py",
        """
        from agentic import App, brokers

        app = App("gone", create_topics=False)
        app.topic("declared")

        @app.task
        async def sends():
            await app.topic("missing").send(1)
        """,
    )
    own.ok("-A", "gone", "topics", "create")
    result = own("-A", "gone", "worker")
    assert result.exit_code == 1
    assert "create it first: 'agentic -A gone topics create missing'" in result.stderr


# -- completion -----------------------------------------------------------------------------------


def completed(shell: Shell, words: str) -> list[str]:
    environ = {**os.environ, "_AGENTIC_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environ["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    code = "from agentic.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_topics_and_the_users_commands_are_completed(own: Shell) -> None:
    assert completed(own, "agentic do") == ["doctor"]
    assert completed(own, "agentic -A app rep") == ["repeat"]
    assert completed(own, "agentic -A app tail to") == ["topic"]
    assert "--jsonl" in completed(own, "agentic tail --j")


def test_completion_of_a_broken_app_is_silent(shell: Shell) -> None:
    shell.write("app.py", "1 / 0")
    assert completed(shell, "agentic -A app tail to") == []
    assert completed(shell, "agentic -A app do") == ["doctor"]


def test_the_command_works_inside_another_click_program() -> None:
    with pytest.raises(click.UsageError):
        cli.main(["run"], standalone_mode=False)


def test_kafkas_properties_do_not_hinder_the_embedded_log(own: Shell) -> None:
    kafka = '{"linger.ms": 5}'
    own.ok("-A", "app", "topics", "create", "--set", f"kafka={kafka}")
    own.ok("-A", "app", "say-it", "hello", "--set", f"kafka={kafka}")
