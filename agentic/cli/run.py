"""``agentic run``."""

from __future__ import annotations

import time

import click

from agentic.cli import base
from agentic.cli.choice import current
from agentic.cli.repair import repair


@click.command(cls=base.Command)
@click.option("--live", is_flag=True, help="Show a live table.")
@repair
@click.pass_context
def run(ctx: click.Context, live: bool) -> None:
    """Run the app until its input is used up.

    It is a worker for demos and batches: it ends when all that stood in the source topics is worked
    off and committed, by whichever member of the group. A member that has died keeps its partitions
    until its session ends, and is waited for. Events that agents have put off are not.
    """
    choice = current()
    app = choice.app()
    from agentic.cli import reports, restoring
    from agentic.runtime import run_worker

    shown = [reports.live] if live else [reports.summary, restoring.progress]
    began = time.monotonic()
    code = run_worker(app, ends=True, reporters=shown, worded=choice.completed)
    reports.closing(app, time.monotonic() - began, table=live)
    ctx.exit(code)
