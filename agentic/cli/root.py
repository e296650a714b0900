"""The root command: finds the others, ours by name and the user's in the app, and says errors on one line."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from agentic import __version__
from agentic.cli import base, choice
from agentic.cli.choice import Choice
from agentic.cli.names import COMMANDS, module_of
from agentic.errors import AgenticError

#: What a shell reports of a program that SIGPIPE or SIGINT ended.
BROKEN_PIPE, INTERRUPTED = 141, 130


class Root(base.Group):
    """``agentic``."""

    root = True

    def list_commands(self, ctx: click.Context) -> list[str]:
        try:
            return [*COMMANDS, *self._own(ctx)]
        except AgenticError:
            # Asked by a shell that completes; who runs a command is told what is wrong with the app.
            return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            module = module_of(name)
            command: click.Command = getattr(import_module(f"agentic.cli.{module}"), module)
            return command
        app = ctx.find_root().ensure_object(Choice).app_if_named()
        if app is None or name not in app.commands:
            return None
        from agentic.cli.own import own_command

        return own_command(app, app.commands[name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            # The app tells whether there is such a command, so its name is needed before the options are read.
            chosen = ctx.find_root().ensure_object(Choice)
            chosen.where = _named_after(args[1:]) or chosen.where
            own = self._own(ctx)
            if args[0] not in own and not args[0].startswith("-"):
                raise click.UsageError(_unknown(args[0], own, named=chosen.where is not None), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        try:
            own = self._own(ctx)
        except AgenticError as error:
            own = {"": f"(not known: {error})"}
        if own:
            with formatter.section("Commands of the app"):
                formatter.write_dl(list(own.items()))

    def _own(self, ctx: click.Context) -> dict[str, str]:
        """The app's commands with the first lines of their help; none without an app."""
        app = ctx.find_root().ensure_object(Choice).app_if_named()
        if app is None:
            return {}
        return {name: command.help.partition("\n")[0] for name, command in app.commands.items()}

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_pipe()
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; with `standalone_mode` end the process with the exit code, errors said on one line."""
        extra.setdefault("obj", Choice())
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except AgenticError as error:
            _say(error, extra["obj"])
            code = 1
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _unknown(name: str, own: Iterable[str], *, named: bool) -> str:
    """Say that there is no command of a name; `named` says whether the app's `own` are known."""
    known = [*COMMANDS, *own]
    near = difflib.get_close_matches(name, known, 1)
    there = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"no command {name!r}; {there}" + ("" if named or near else ", and with -A MODULE the app's own")


def _named_after(args: Sequence[str]) -> str | None:
    """Return the app that stands among the arguments of a command whose options are not known yet."""
    for place, arg in enumerate(args):
        if arg == "--":
            return None
        if arg in ("-A", "--app"):
            return args[place + 1] if place + 1 < len(args) else None
        if arg.startswith("--app="):
            return arg.removeprefix("--app=")
        if arg.startswith("-A") and not arg.startswith("--"):
            return arg.removeprefix("-A").removeprefix("=")
    return None


def _say(error: AgenticError, choice: Choice) -> None:
    if choice.debug:
        traceback.print_exception(error)
    else:
        click.echo(f"Error: {choice.completed(' '.join(str(error).split()))}", err=True)


def _leave_pipe() -> NoReturn:
    """Whoever read our output has gone: that is no error of ours, and nothing more can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(BROKEN_PIPE)


@click.command(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentic")
def cli() -> None:
    """Stateful stream processing: agents over an embedded durable log or Kafka."""


__all__ = ["COMMANDS", "Root", "choice", "cli"]
