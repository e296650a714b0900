"""Finding the user's app: ``-A module`` or ``-A module:app``."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
import traceback
from types import ModuleType

import click

from agentic.app import App
from agentic.cli.names import COMMANDS
from agentic.errors import AgenticError, ConfigurationError
from agentic.topic import nearest


def load(where: str) -> App:
    """Import a module, the current directory first, and return its app.

    Args:
        where: ``module`` or ``module:attribute``; without an attribute the module must have one `App`.

    Raises:
        ConfigurationError: no such module or attribute, an error inside the module (with the place
            in the user's file), no app in it, or two.
    """
    name, colon, attribute = where.partition(":")
    if not name or (colon and not attribute):
        raise ConfigurationError(f"app {where!r}: write -A MODULE or -A MODULE:APP")
    if _is_path(name):
        raise ConfigurationError(f"app {where!r}: give a module, not a path: {_module_of(name, colon + attribute)}")
    module = _import(name)
    app = _named(module, name, attribute) if attribute else _only_app(module)
    _check_commands(app)
    return app


def _is_path(name: str) -> bool:
    return os.sep in name or name.startswith(".") or (name.endswith(".py") and os.path.isfile(name))


def _module_of(path: str, attribute: str) -> str:
    """Say how the module of a file or directory is named, from here or from where it is."""
    whole = os.path.abspath(path.removesuffix(".py"))
    inside = os.path.relpath(whole)
    if inside.startswith(os.curdir):
        directory, module = os.path.split(whole)
        return f"cd {shlex.quote(directory)}, and say -A {module}{attribute}"
    return f"-A {inside.replace(os.sep, '.')}{attribute}"


def _named(module: ModuleType, name: str, attribute: str) -> App:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = ", ".join(f"{name}:{each}" for each in _apps(module)) or "none"
            raise ConfigurationError(f"module {name!r} has no {attribute!r}; apps in it: {apps}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigurationError(f"{name}:{attribute} is a {type(found).__name__}, not an App")
    return found


def _check_commands(app: App) -> None:
    """Raise `ConfigurationError` for commands of the app's own that nobody could call."""
    for name, command in app.commands.items():
        if name in COMMANDS:
            raise ConfigurationError(
                f"command {name!r} of app {app.name!r}: agentic has one of this name; "
                "give yours another, as in @app.command(name=…)"
            )
        if not isinstance(name, str) or not re.fullmatch(r"[^\W_][\w.-]*", name):
            raise ConfigurationError(
                f"command {name!r} of app {app.name!r}: a name has letters, digits and . _ -, and begins with a letter"
                " or a digit"
            )
        if wrong := [param for param in command.params if not isinstance(param, click.Parameter)]:
            raise ConfigurationError(
                f"command {name!r} of app {app.name!r}: {wrong[0]!r} is no click parameter; "
                'write click.Option(["--day"]), or @click.option("--day") below @app.command()'
            )


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _broken(name, error) from error
        raise ConfigurationError(_missing(name, error.name, here)) from None
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _missing(name: str, part: str, here: str) -> str:
    beside = [entry.removesuffix(".py") for entry in os.listdir(here) if entry.endswith(".py")]
    hint = f" ({nearest(name, beside)})" if beside else ""
    return f"no module {part!r} in {here} or on the Python path{hint}; run agentic where the module is"


def _broken(name: str, error: BaseException) -> ConfigurationError:
    """Say what went wrong inside a module and where, as near to the user's own code as can be."""
    # The text of a SyntaxError has the place in it; it is said below for all.
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    what = said if isinstance(error, AgenticError) else f"{type(error).__name__}: {said}"
    return ConfigurationError(f"module {name!r} can't be imported: {what} ({_place(error)})")


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", ours))
        and os.path.basename(os.path.dirname(frame.filename)) != "importlib"
    ]
    here = os.getcwd()
    own = [
        frame for frame in frames if frame.filename.startswith(here + os.sep) and "site-packages" not in frame.filename
    ]
    frame = (own or frames)[-1] if frames else None
    return f"{_short(frame.filename)}, line {frame.lineno}" if frame else "no line known"


def _short(filename: str) -> str:
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative


def _apps(module: ModuleType) -> dict[str, App]:
    """The apps of a module by name; an app with two names counts once."""
    found: dict[str, App] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and not any(value is other for other in found.values()):
            found[name] = value
    return found


def _only_app(module: ModuleType) -> App:
    apps = _apps(module)
    if not apps:
        raise ConfigurationError(f'module {module.__name__!r} has no App; write app = App("name") in it')
    if len(apps) > 1:
        choices = " or ".join(f"-A {module.__name__}:{name}" for name in apps)
        raise ConfigurationError(f"module {module.__name__!r} has {len(apps)} apps: say which, {choices}")
    return next(iter(apps.values()))
