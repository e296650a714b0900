"""What a shell may propose for an argument, without asking any broker."""

from __future__ import annotations

import click

from agentic.cli.choice import Choice
from agentic.errors import AgenticError


def topic_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The app's topics; none where there is no app, or one that can't be imported."""
    try:
        app = ctx.find_root().ensure_object(Choice).app_if_named()
    except AgenticError:
        return []
    return [name for name in (app.topics if app else ()) if name.startswith(incomplete)]
