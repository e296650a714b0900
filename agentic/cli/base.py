"""Commands and groups that take the shared options, and show them apart from their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from agentic.cli import choice


class _Shared(click.Command):
    """Adds the shared options, except where the command has one of the same name."""

    root = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {name for param in self.params for name in param.opts}
        self.shared = [option for option in choice.options(root=self.root) if not taken & set(option.opts)]
        self.params = [*self.params, *self.shared]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name[1:2].isdigit():
                raise
            raise click.UsageError(
                f"{error.option_name!r} is read as an option: write '--' in front of a negative number, and options "
                "before that",
                ctx,
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [param for param in self.get_params(ctx) if param not in self.shared]
        _section(ctx, formatter, "Options", own)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        _section(ctx, formatter, "Options of every command", self.shared)


def _section(ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Sequence[click.Parameter]) -> None:
    rows = [row for param in params if (row := param.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


class Command(_Shared):
    """A command with the shared options."""


class Group(_Shared, click.Group):
    """A group with the shared options; its commands have them too."""

    command_class = Command
