"""``agentic new``."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import click

import agentic
from agentic.cli import base
from agentic.errors import ConfigurationError

#: Stands in a template's files for the name of the project that is made of it.
PLACEHOLDER = "PROJECT"
#: How the name of a project's directory ends while it is being made.
_UNFINISHED = ".agentic-new"


def templates() -> Path:
    """Return the directory of templates: in the installed package, or beside it in a checkout."""
    package = Path(agentic.__file__).parent
    inside = package / "app_templates"
    return inside if inside.is_dir() else package.parent / "app_templates"


@click.command(cls=base.Command)
@click.argument("name")
@click.option(
    "--template", default="hello", metavar="hello|flights|slow-service", help="What to start from.  [default: hello]"
)
def new(name: str, template: str) -> None:
    """Start a project from a template.

    It is made in a new directory NAME. hello is ten lines and a test; flights is an example with data of its own;
    slow-service calls a service over HTTP, many times at once, with retries and dead letters.
    """
    target = Path(name)
    create(target, template)
    click.echo(f"made {target}{'/' if not name.endswith('/') else ''}: next, cd {target}, and read README.md")


def create(target: Path, template: str) -> None:
    """Make a project in `target`, whole or not at all.

    Raises:
        ConfigurationError: no such template, a name that no app may have, or `target` is there.
    """
    source = templates() / template
    known = sorted(path.name for path in templates().iterdir() if (path / "app.py").is_file())
    if template not in known:
        raise ConfigurationError(f"no template {template!r}; there are {', '.join(known)}")
    project = target.name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", project):
        raise ConfigurationError(f"project name {project!r}: use A-Z a-z 0-9 . _ -, as the app is named for it")
    if target.exists():
        raise ConfigurationError(f"{target} is there already, and nothing is overwritten; choose another name")
    _tidy(target)
    # Under a name of this process until it is whole: one that was orphaned may still be at work on the same project.
    unfinished = target.parent / f".{project}.{os.getpid()}{_UNFINISHED}"
    try:
        _copy(source, unfinished, project)
        unfinished.rename(target)
    except OSError as error:
        if target.exists():
            raise ConfigurationError(f"{target} was made by another process meanwhile; that one stays") from error
        raise ConfigurationError(f"can't make {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _tidy(target: Path) -> None:
    """Remove what processes that were killed have left of the same project."""
    for left in target.parent.glob(f".{target.name}.*{_UNFINISHED}"):
        pid = left.name.removesuffix(_UNFINISHED).rpartition(".")[2]
        if pid.isdecimal() and not _lives(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    # A process with our own pid was another one: we have only begun.
    return pid != os.getpid()


def _copy(source: Path, target: Path, project: str) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        if any(part in ("__pycache__", ".agentic", ".pytest_cache") for part in path.parts) or path.is_dir():
            continue
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            shutil.copyfile(path, to)
        else:
            to.write_text(path.read_text("utf-8").replace(PLACEHOLDER, project), "utf-8")
