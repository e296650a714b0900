"""``agentic worker``."""

from __future__ import annotations

import time

import click

from agentic.cli import base
from agentic.cli.choice import Choice, current
from agentic.cli.repair import repair


@click.command(cls=base.Command)
@click.option("--processes", type=click.IntRange(min=1), default=1, metavar="N", help="Start and supervise N of them.")
@click.option("--live", is_flag=True, help="Show a live table in place of summary lines; for one process only.")
@click.option("--parent", type=int, hidden=True)
@click.option("--number", type=int, hidden=True)
@repair
@click.pass_context
def worker(ctx: click.Context, processes: int, live: bool, parent: int | None, number: int | None) -> None:
    """Run the app until a signal stops it.

    The first SIGTERM or SIGINT (Ctrl-C) lets the events that are under way finish and commits
    them; the worker says what it has done, and ends. A second one ends it at once. Exit code 1
    means that an agent, a task or the broker failed.

    With --processes N, a process that was killed is started again; one that fails by itself
    stops them all. Each says in its log lines which it is.
    """
    choice = current()
    app = choice.app()
    if processes > 1:
        if live:
            raise click.UsageError("--live shows one process; leave out --processes, or --live")
        ctx.exit(_supervise(choice, processes))
    from agentic.cli import reports, restoring
    from agentic.cli.supervisor import end_with_parent
    from agentic.runtime import run_worker
    from agentic.runtime.logging import name_worker

    if number is not None:
        name_worker(number)
    if parent is not None:
        end_with_parent(parent, app.settings.stop_timeout.total_seconds())
    # Several processes would draw over each other.
    shown = [reports.live] if live else [reports.summary, restoring.progress if parent is None else restoring.lines]
    began = time.monotonic()
    code = run_worker(app, reporters=shown, worded=choice.completed)
    seconds = time.monotonic() - began
    if parent is None:
        reports.closing(app, seconds, table=live)
    else:
        # One of several says it in the log, where lines can be told apart.
        reports.log.info("%s", reports.final_line(app.metrics, seconds))
    ctx.exit(code)


def _supervise(choice: Choice, processes: int) -> int:
    import asyncio

    from agentic.cli.supervisor import Supervisor, commands
    from agentic.runtime.logging import setup

    app = choice.app()
    # What can be seen to be wrong is said once, not by each process.
    app.check()
    setup(app.settings)

    async def supervise() -> int:
        return await Supervisor(commands(choice.arguments(), processes, app.settings.instance)).run()

    return asyncio.run(supervise())
