"""Which app the command line finds, and what it says where there is none."""

from __future__ import annotations

import sys

import pytest
from cli_support import Shell


def test_the_one_app_of_a_module_needs_no_name(words: Shell) -> None:
    assert words.ok("-A", "app", "send", "words", "hello") == "sent 1 record to words\n"


def test_the_app_may_stand_before_the_command_after_it_or_in_the_environment(
    words: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = words.ok("-A", "app", "topics", "list")
    assert words.ok("topics", "-A", "app", "list") == before
    assert words.ok("topics", "list", "-A", "app") == before
    assert words.ok("topics", "--app=app", "list") == before
    monkeypatch.setenv("AGENTIC_APP", "app")
    assert words.ok("topics", "list") == before


def test_the_command_line_wins_over_the_environment(words: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_APP", "nothing.here")
    assert words.ok("topics", "list", "-A", "app")


def test_an_app_may_be_named(words: Shell) -> None:
    assert words.ok("topics", "-A", "app:app")


def test_two_apps_in_a_module_are_both_named(shell: Shell) -> None:
    shell.write("two.py", 'from agentic import App\none = App("one")\nother = App("other")\nsame = one\n')
    assert shell.error("run", "-A", "two") == "module 'two' has 2 apps: say which, -A two:one or -A two:other"


def test_a_module_without_an_app_says_how_to_write_one(shell: Shell) -> None:
    shell.write("none.py", "x = 1\n")
    assert "has no App; write app = App(" in shell.error("run", "-A", "none")


def test_a_name_that_the_module_has_not_is_refused_with_those_it_has(words: Shell) -> None:
    assert words.error("run", "-A", "app:ap") == "module 'app' has no 'ap'; apps in it: app:app"


def test_a_name_that_is_no_app_is_refused(words: Shell) -> None:
    assert words.error("run", "-A", "app:words") == "app:words is a Topic, not an App"


def test_a_missing_module_is_named_with_the_nearest_one(words: Shell) -> None:
    assert "no module 'ap' in" in (line := words.error("run", "-A", "ap"))
    assert "did you mean 'app'?" in line


@pytest.mark.parametrize(
    ("path", "proper"),
    [
        ("app.py", "-A app"),
        ("./app", "-A app"),
        ("./app.py:app", "-A app:app"),
        ("inner/app.py", "-A inner.app"),
        ("inner/", "-A inner"),
        ("inner/../app.py", "-A app"),
        ("nowhere/app", "-A nowhere.app"),
    ],
)
def test_a_path_in_place_of_a_module_is_put_right(words: Shell, path: str, proper: str) -> None:
    (words.directory / "inner").mkdir()
    assert words.error("run", "-A", path) == f"app '{path}': give a module, not a path: {proper}"


def test_a_path_to_elsewhere_is_answered_with_the_way_there(words: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = words.directory / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    for path in ("../app.py", "..//app", words.directory / "app.py"):
        assert words.error("run", "-A", path).endswith(f": cd {words.directory}, and say -A app")


def test_an_app_that_the_environment_names_in_vain_is_refused_with_the_variable(
    words: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_APP", "ap")
    assert words.error("run").startswith("environment variable AGENTIC_APP: no module 'ap' in ")
    assert words.error("run", "-A", "app.py").startswith("app 'app.py': ")


@pytest.mark.parametrize("where", ["", ":app", "app:"])
def test_half_a_name_is_refused(words: Shell, where: str) -> None:
    result = words("run", "-A", where)
    assert result.exit_code in (1, 2)
    assert "-A MODULE" in result.stderr


def test_an_error_inside_the_module_is_shown_with_its_place_in_the_users_file(shell: Shell) -> None:
    shell.write("broken.py", "\n\nvalue = 1 / 0\n")
    line = shell.error("run", "-A", "broken")
    assert line == "module 'broken' can't be imported: ZeroDivisionError: division by zero (broken.py, line 3)"


def test_an_error_deep_inside_is_shown_where_the_user_called(shell: Shell) -> None:
    shell.write("deep.py", 'import json\n\njson.loads("{")\n')
    assert shell.error("run", "-A", "deep").endswith("(deep.py, line 3)")


def test_a_syntax_error_is_shown_with_its_line(shell: Shell) -> None:
    shell.write("typo.py", "x = 1\ndef f(:\n")
    line = shell.error("run", "-A", "typo")
    assert line.endswith(" (typo.py, line 2)")
    assert line.count("line 2") == 1


def test_a_missing_import_inside_the_module_is_not_taken_for_a_missing_module(shell: Shell) -> None:
    shell.write("needy.py", "import nowhere_to_be_found\n")
    line = shell.error("run", "-A", "needy")
    assert "module 'needy' can't be imported: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in line
    assert "(needy.py, line 1)" in line


def test_a_wrong_declaration_keeps_its_own_words(shell: Shell) -> None:
    shell.write("wrong.py", 'from agentic import App\n\napp = App("x", comit_interval=1)\n')
    line = shell.error("run", "-A", "wrong")
    assert "setting 'comit_interval' is unknown; did you mean setting 'commit_interval'?" in line
    assert line.endswith("(wrong.py, line 3)")


def test_debug_shows_the_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.write("broken.py", "value = 1 / 0\n")
    assert "Traceback (most recent call last)" in shell("run", "-A", "broken", "--debug").stderr
    assert "broken" not in sys.modules
    monkeypatch.setenv("AGENTIC_DEBUG", "1")
    assert "Traceback (most recent call last)" in shell("run", "-A", "broken").stderr
    monkeypatch.setenv("AGENTIC_DEBUG", "0")
    assert shell.error("run", "-A", "broken")
    monkeypatch.setenv("AGENTIC_DEBUG", "perhaps")
    line = shell.error("run", "-A", "broken", code=2)
    assert line.startswith("Invalid value for environment variable AGENTIC_DEBUG: 'perhaps' is not a valid boolean")


def test_no_app_at_all_says_how_to_name_one(shell: Shell) -> None:
    assert shell.error("run", code=2) == "which app? Say -A MODULE, or set AGENTIC_APP"


def test_neither_app_nor_broker_is_not_guessed(shell: Shell) -> None:
    assert "which broker?" in shell.error("topics", code=2)
    assert list(shell.directory.iterdir()) == []
