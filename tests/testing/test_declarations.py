"""Declaring: what is taken, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from agentic import App
from agentic.errors import ConfigurationError


def test_a_command_needs_no_parentheses() -> None:
    app = App("shop")

    @app.command
    def open_shop() -> str:
        return "open"

    assert open_shop() == "open"
    assert list(app.commands) == ["open-shop"]
    assert app.commands["open-shop"].params == ()


@pytest.mark.parametrize("internal", [False, True])
def test_a_topics_name_is_a_str(internal: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"topic name (5|\[\]) is a (int|list), and must be a str"):
        App("shop").topic(5 if internal else [], internal=internal)  # type: ignore[arg-type]
