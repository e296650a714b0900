"""The blocks of code in a page of Markdown, and how they are run.

The word after the language says how, and is there for readers of the source to see:

```` ```python ````            run, in one namespace a page
```` ```python app.py ````     written to that file, for the blocks below it
```` ```console ````           each ``$`` line is run in a shell; its standard output is compared
                               with the lines below it, where an ellipsis stands for anything;
                               ``cd`` holds for the blocks that follow
```` ```console kafka ````     the same with a real Kafka in place of localhost:9092
```` ```console until-ready ```` the command runs until it says that it is ready, and is then stopped
```` ```console ci ````        run by .ci/run, since it would start this very suite
```` ```text ````              nothing to run
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\S+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, how it is to be run, its text and first line."""

    language: str
    how: str
    text: str
    where: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            m[1],
            m[2],
            m[3],
            f"{page.relative_to(ROOT)}, line {text.count(chr(10), 0, m.start()) + 1}",
            text.count("\n", 0, m.start(3)),
        )
        for m in _FENCE.finditer(text)
    ]


class Session:
    """A reader who follows one page, in a directory of their own."""

    def __init__(self, directory: Path, kafka: str | None) -> None:
        self.directory = directory
        self.kafka = kafka
        self.namespace: dict[str, Any] = {"__name__": "page"}
        commands = directory / "commands"
        commands.mkdir()
        for module in ("agentic", "pytest"):
            command = commands / module
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTIC_")}
        self.environment = {**kept, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}

    def follow(self, block: Block) -> None:
        """Do what a block says.

        Raises:
            AssertionError: it went otherwise than the page says; names the page and the line.
        """
        match (block.language, block.how):
            case ("python", ""):
                exec(compile("\n" * block.line + block.text, block.where, "exec"), self.namespace)
            case ("python", file):
                (self.directory / file).write_text(block.text, "utf-8")
            case ("console", ""):
                self._console(block)
            case ("console", "kafka"):
                assert self.kafka is not None
                self._console(block, self.kafka)
            case ("console", "until-ready"):
                self._until_ready(block)
            case ("console", "ci"):
                script = (ROOT / ".ci" / "run").read_text("utf-8")
                for command, _ in _commands(block):
                    assert command in script, f"{block.where}: .ci/run does not run {command!r}"
            case ("text", ""):
                pass
            case _:
                raise AssertionError(f"{block.where}: nobody runs ```{block.language} {block.how}")

    def _console(self, block: Block, kafka: str = "") -> None:
        for command, expected in _commands(block):
            if command.startswith("cd "):
                self._enter(command.removeprefix("cd "))
                continue
            ran = subprocess.run(
                ["bash", "-c", command.replace("localhost:9092", kafka)],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            assert ran.returncode == 0, (
                f"{block.where}: {command!r} ended with {ran.returncode}: {ran.stderr}{ran.stdout}"
            )
            pattern = re.escape(expected).replace("…", ".*")
            assert not expected or re.fullmatch(pattern, ran.stdout.strip(), re.DOTALL), (
                f"{block.where}: {command!r} prints\n{ran.stdout}\nand the page says\n{expected}\n{ran.stderr}"
            )

    def _enter(self, directory: str) -> None:
        """Change the directory, for Python blocks and what they import too."""
        self.directory = self.directory / directory
        os.chdir(self.directory)
        sys.path.insert(0, str(self.directory))
        importlib.invalidate_caches()

    def _until_ready(self, block: Block) -> None:
        ((command, _),) = _commands(block)
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = ""
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                said += line
                if " ready " in line:
                    process.send_signal(signal.SIGINT)
        assert process.returncode == 0, f"{block.where}: {command!r} ended with {process.returncode}: {said}"
        assert " ready " in said, f"{block.where}: {command!r} was never ready: {said}"


def _commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            assert found, f"{block.where}: a console block begins with a command"
            found[-1][1].append(line)
    return [(command, "\n".join(output).strip()) for command, output in found]
