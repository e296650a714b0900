"""What every command can be told: which app, which broker, which settings. Before or after its name."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import click
from click.core import ParameterSource

from agentic import brokers, settings
from agentic.app import App
from agentic.brokers.base import Broker
from agentic.cli import apps
from agentic.errors import ConfigurationError
from agentic.settings import Settings

T = TypeVar("T")

#: A command of ours as errors have it.
_COMMAND = re.compile(r"""(?P<quote>['`])agentic(?P<words> (?!-)[^'`]+)(?P=quote)""")


@dataclass
class Choice:
    """What the shared options said, over all places where they stood.

    Attributes:
        where: the app, as ``module[:app]``; None without one.
        overrides: settings by name, as they were typed.
        debug: show tracebacks.
    """

    where: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    debug: bool = False
    _app: App | None = None

    def app(self) -> App:
        """Return the app with its settings overridden. Raises `click.UsageError` where none was named."""
        if self.where is None:
            raise click.UsageError("which app? Say -A MODULE, or set AGENTIC_APP")
        if self._app is None:
            app = self._load(self.where)
            if self.overrides:
                app.configure(**self.overrides)
            self._app = app
        return self._app

    @staticmethod
    def _load(where: str) -> App:
        try:
            return apps.load(where)
        except ConfigurationError as error:
            if where != os.environ.get("AGENTIC_APP"):
                raise
            raise ConfigurationError(f"environment variable AGENTIC_APP: {error}") from error

    def app_if_named(self) -> App | None:
        """Return the app, None where none was named."""
        return None if self.where is None else self.app()

    def settings(self) -> Settings:
        """Return the app's settings; without an app, what environment and command line say.

        Raises:
            click.UsageError: neither an app nor a broker was named: we would have to guess a log.
        """
        app = self.app_if_named()
        if app is not None:
            return app.settings
        alone = settings.resolve({"name": "agentic"}, override=self.overrides)
        if alone.origins["broker"] == "default":
            raise click.UsageError("which broker? Say -A MODULE for an app's, or --broker URL")
        return alone

    def arguments(self) -> list[str]:
        """Return the command line that says the same to another process."""
        said = ["-A", self.where] if self.where is not None else []
        said += [arg for name, text in self.overrides.items() for arg in ("--set", f"{name}={text}")]
        return [*said, "--debug"] if self.debug else said

    def completed(self, message: str) -> str:
        """Return a message with the app and the broker of this command in each one that it names in quotes.

        So they can be copied, and work: what raises them knows neither.
        """
        named = f" -A {shlex.quote(self.where)}" if self.where is not None else ""
        broker = f" --broker {shlex.quote(self.overrides['broker'])}" if "broker" in self.overrides else ""
        return _COMMAND.sub(lambda found: f"'agentic{named}{found['words']}{broker}'", message)

    def with_broker(self, work: Callable[[Broker], Awaitable[T]]) -> T:
        """Run `work` with the chosen broker, opened and closed around it.

        Raises:
            BrokerUnavailable: it could not be reached within ``start_timeout``.
        """
        # Not at the top: to show its help, the command line needs no event loop.
        import asyncio

        chosen = self.settings()

        async def connected() -> T:
            broker = brokers.connect(chosen.broker, chosen.broker_options)
            await broker.open(chosen.start_timeout.total_seconds())
            try:
                return await work(broker)
            finally:
                await broker.close()

        return asyncio.run(connected())


def current() -> Choice:
    """Return the choice of the command that runs."""
    return click.get_current_context().find_root().ensure_object(Choice)


def confirm(question: str, doing: str = "delete") -> None:
    """Ask before something is deleted, or what `doing` says is done.

    Raises:
        ConfigurationError: nobody is there to ask.
        click.Abort: the answer is no.
    """
    if not sys.stdin.isatty():
        raise ConfigurationError(f"nobody is there to ask; say --yes to {doing}")
    click.confirm(question, abort=True)


def _keep(attribute: str) -> Callable[[click.Context, click.Parameter, object], None]:
    """Return a callback that keeps what was said; of several places where it may stand, the last one wins."""

    def keep(ctx: click.Context, _: click.Parameter, value: object) -> None:
        if value:
            setattr(ctx.find_root().ensure_object(Choice), attribute, value)

    return keep


def _keep_setting(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and param.name is not None:
        ctx.find_root().ensure_object(Choice).overrides[param.name] = value


def _keep_settings(ctx: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    for each in value:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r}: write NAME=VALUE")
        ctx.find_root().ensure_object(Choice).overrides[name.replace("-", "_")] = text


class _Option(click.Option):
    """An option whose errors name the environment variable, where it was that which said it."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = None if ctx is None or self.name is None else ctx.get_parameter_source(self.name)
        if source is ParameterSource.ENVIRONMENT:
            return f"environment variable {self.envvar}"
        return super().get_error_hint(ctx)


def options(*, root: bool) -> list[click.Option]:
    """Return the shared options.

    Args:
        root: they stand before the command's name; only there the environment is asked, since
            what is typed after the name must win over it.
    """
    choices = {"text": ["text", "json"], "level": ["debug", "info", "warning", "error"]}
    return [
        _Option(
            ["-A", "--app", "where"],
            metavar="MODULE[:APP]",
            envvar="AGENTIC_APP" if root else None,
            callback=_keep("where"),
            expose_value=False,
            # Before --help, so that the help can show the app's own commands.
            is_eager=True,
            help="The app. Also AGENTIC_APP.",
        ),
        click.Option(
            ["--broker"],
            metavar="URL",
            callback=_keep_setting,
            expose_value=False,
            help="local://DIR, kafka://HOST:PORT,… or memory://.",
        ),
        click.Option(
            ["--set", "assignments"],
            metavar="NAME=VALUE",
            multiple=True,
            callback=_keep_settings,
            expose_value=False,
            help="Override a setting; may be repeated.",
        ),
        click.Option(
            ["--log"],
            type=click.Choice(choices["text"]),
            callback=_keep_setting,
            expose_value=False,
            help="Form of the log lines.",
        ),
        click.Option(
            ["--log-level"],
            type=click.Choice(choices["level"]),
            callback=_keep_setting,
            expose_value=False,
            help="Least severe level that is logged.",
        ),
        _Option(
            ["--debug"],
            is_flag=True,
            envvar="AGENTIC_DEBUG" if root else None,
            callback=_keep("debug"),
            expose_value=False,
            help="Show the traceback of an error. Also AGENTIC_DEBUG=1.",
        ),
    ]
