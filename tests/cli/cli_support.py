"""A directory with an app in it, and the command line within: what the tests of the command line share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from click.testing import CliRunner, Result

from agentic.cli.root import cli

#: Two topics and an agent between them; what most tests need.
APP = """
from agentic import App

app = App("words", topic_partitions=2)
words = app.topic("words", key=str, value=str)
lengths = app.topic("lengths", key=str, value=dict)
numbers = app.topic("numbers", key=int, value=int, partitions=3)


@app.agent(words, to=lengths)
async def measure(stream):
    async for word in stream:
        yield {"word": word, "length": len(word)}
"""


class Shell:
    """Runs commands in a directory of its own, without settings from outside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, name: str, text: str) -> Path:
        """Write a file, its text set flush left."""
        path = self.directory / name
        path.write_text(textwrap.dedent(text))
        return path

    def __call__(self, *args: object, stdin: str | bytes = "") -> Result:
        """Run ``agentic ARGS`` in this process."""
        return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="agentic", input=stdin)

    def ok(self, *args: object, stdin: str | bytes = "") -> str:
        """Run a command that must succeed; return what it wrote to standard output."""
        result = self(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def error(self, *args: object, code: int = 1, stdin: str | bytes = "") -> str:
        """Run a command that must fail with one line; return that line."""
        result = self(*args, stdin=stdin)
        assert result.exit_code == code, result.output
        line = result.stderr.strip().splitlines()[-1]
        if code == 1:
            assert result.stderr.strip() == line, "an error is one line"
        assert line.startswith("Error: ")
        return line.removeprefix("Error: ")

    def start(self, *args: object) -> subprocess.Popen[str]:
        """Start ``agentic ARGS`` as a process; its log comes through standard error."""
        return subprocess.Popen(
            [sys.executable, "-m", "agentic", *(str(arg) for arg in args)],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
