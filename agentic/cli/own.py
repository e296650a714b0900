"""Commands of the user's own: ``agentic -A app NAME``."""

from __future__ import annotations

import inspect
from typing import Any

import click

from agentic.app import App
from agentic.app import Command as Declared
from agentic.cli import base


def own_command(app: App, declared: Declared) -> click.Command:
    """Return the click command for one that the app declares; an async one runs within a session of the app."""
    fn = declared.fn
    # click notes decorated parameters from the last to the first.
    decorated: list[click.Parameter] = list(reversed(getattr(fn, "__click_params__", [])))

    def call(**params: Any) -> None:
        from agentic.runtime.logging import setup

        setup(app.settings)
        if inspect.iscoroutinefunction(fn):
            from agentic.runtime import run_bounded

            run_bounded(_within_session(app, fn, params))
        else:
            fn(**params)

    return base.Command(declared.name, params=[*declared.params, *decorated], callback=call, help=declared.help or None)


async def _within_session(app: App, fn: Any, params: dict[str, Any]) -> None:
    from agentic.runtime import session

    async with session(app):
        await fn(**params)
