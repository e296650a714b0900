"""A listing that would be empty says so in words, on standard error: programs that read it get no lines."""

from __future__ import annotations

import pytest
from cli_support import Shell


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("topics", "local://.agentic/log has no topics"),
        ("groups", "local://.agentic/log knows no groups"),
    ],
)
def test_a_log_without_anything_says_so(shell: Shell, command: str, said: str) -> None:
    result = shell("--broker", "local://.agentic/log", command)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{said}\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["tables"], "app 'words' declares no tables"),
        (["deferred", "ls"], "no agent of app 'words' puts events off"),
        (["dead-letters", "ls", "words"], "words has no dead letters"),
    ],
)
def test_an_app_that_has_none_of_it_says_so(words: Shell, command: list[str], said: str) -> None:
    words.ok("-A", "app", "topics", "create")
    result = words("-A", "app", *command)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{said}\n")


def test_an_app_that_has_put_nothing_off_says_so(words: Shell) -> None:
    words.write(
        "app.py",
        """
        from agentic import App

        app = App("patient")
        letters = app.topic("letters", value=str)


        @app.agent(letters)
        async def read(stream):
            async for letter in stream:
                if letter == "later":
                    stream.defer(3_600)
        """,
    )
    words.ok("-A", "app", "topics", "create")
    result = words("-A", "app", "deferred", "ls")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing is put off\n")
