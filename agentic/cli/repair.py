"""The option ``--repair`` of the commands that run an app."""

from __future__ import annotations

import click

from agentic import settings
from agentic.cli.choice import Choice


def _keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().ensure_object(Choice).overrides["repair"] = "true"


#: Sets the setting of the same name, so that the processes of a supervisor have it too.
repair = click.option("--repair", is_flag=True, expose_value=False, callback=_keep, help=settings.about("repair"))
