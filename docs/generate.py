"""Writes what is made from the code: settings.md, cli.md, and the pictures.

``python docs/generate.py`` writes them; with ``--check`` it only says which are out of date, and
ends with exit code 1 if one is.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import click

from agentic import settings
from agentic.cli.root import COMMANDS, cli

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from pictures import PICTURES  # noqa: E402 - it stands beside this file

#: Columns of a help text: what fits beside a page's margin.
WIDTH = 100

SETTINGS = """\
# Settings

<!-- Written by docs/generate.py from agentic/settings.py: change it there. -->

Each setting may stand in three places, the later ones win:

1. in the module, `App("shop", commit_interval=timedelta(seconds=5))`;
2. in the environment, `AGENTIC_COMMIT_INTERVAL=5`;
3. on the command line, `--set commit_interval=5`; `--broker`, `--log` and `--log-level` are short for theirs.

Durations are timedeltas in Python; as text they are seconds (`1.5`), or have a unit: `500ms`, `2m`, `1h`. An empty
text is `None`. A setting that does not exist, in any of the three, is an error that names the nearest one.
`agentic doctor` shows every setting with its value and where that came from.

| setting | type | default | environment | what it is for |
|---|---|---|---|---|
{rows}

The command line itself reads `AGENTIC_APP`, which names the app as `-A` does, and `AGENTIC_DEBUG=1`, which shows the
traceback of an error.
"""

CLI = """\
# Command line

<!-- Written by docs/generate.py from agentic/cli: change it there. -->

The app is named by `-A MODULE` or `-A MODULE:APP`, before or after the command, or by `AGENTIC_APP`; without `:APP` it
is the one app in the module. The module is looked for in the current directory first. An app's own commands
(`@app.command()`) stand beside these.

An error is one line on standard error that says what to do; `--debug` shows its traceback. A command line that can't be
understood is answered with the command's usage and the reason. Exit codes: 0 all went well, 1 it did not, 2 the command
line can't be understood.

## Completion in the shell

Once per shell, in its start-up file:

| shell | line |
|---|---|
| bash | `eval "$(_AGENTIC_COMPLETE=bash_source agentic)"` |
| zsh | `eval "$(_AGENTIC_COMPLETE=zsh_source agentic)"` |
| fish | `_AGENTIC_COMPLETE=fish_source agentic \\| source` |

With `AGENTIC_APP` set, topics and tables are completed too.

{sections}
"""


def settings_page() -> str:
    """Return settings.md."""
    return SETTINGS.format(rows="\n".join(_setting(name) for name in settings.names()))


def _setting(name: str) -> str:
    hint = typing.get_type_hints(settings.Settings)[name]
    default = "must be given" if name == "name" else f"`{_value(settings.default(name))}`"
    about = settings.about(name).replace("|", "\\|")
    return f"| `{name}` | {_type(hint)} | {default} | `{settings.PREFIX}{name.upper()}` | {about} |"


def _type(hint: object) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f'`"{choice}"`' for choice in typing.get_args(hint))
    parts = typing.get_args(hint) if typing.get_origin(hint) not in (Mapping, None) else ()
    if parts:
        return " or ".join(_type(part) for part in parts)
    if hint is type(None):
        return "`None`"
    origin = typing.get_origin(hint) or hint
    return "mapping" if getattr(origin, "__name__", "") == "Mapping" else f"`{getattr(origin, '__name__', hint)}`"


def _value(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    return f'"{value}"' if isinstance(value, str) else str(value)


def cli_page() -> str:
    """Return cli.md."""
    root = click.Context(cli, info_name="agentic", terminal_width=WIDTH, **cli.context_settings)
    sections = [_section(root, 2)]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None, "it is in the list"
        sections += [
            _section(context, 2 + context.command_path.count(" ") - 1) for context in _contexts(root, name, command)
        ]
    return CLI.format(sections="\n".join(sections).rstrip("\n"))


def _contexts(parent: click.Context, name: str, command: click.Command) -> Iterator[click.Context]:
    """Yield the context of a command, and of those below it."""
    context = click.Context(command, parent=parent, info_name=name, terminal_width=WIDTH)
    yield context
    if isinstance(command, click.Group):
        for below in command.commands:
            yield from _contexts(context, below, command.commands[below])


def _section(context: click.Context, level: int) -> str:
    return f"{'#' * level} `{context.command_path}`\n\n```text\n{context.get_help()}\n```\n"


PAGES = {"settings.md": settings_page, "cli.md": cli_page, **PICTURES}


def main() -> int:
    """Write or check the pages; return the exit code."""
    check = sys.argv[1:] == ["--check"]
    stale = [
        name
        for name, page in PAGES.items()
        if not (HERE / name).is_file() or (HERE / name).read_text("utf-8") != page()
    ]
    for name in stale:
        if check:
            print(f"docs/{name} is out of date: run 'make docs'", file=sys.stderr)
        else:
            (HERE / name).write_text(PAGES[name](), "utf-8")
            print(f"wrote docs/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
