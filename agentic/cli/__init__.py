"""The command line: ``agentic``. Each command is one module, imported when it is called."""

from __future__ import annotations


def main() -> None:
    """The entry point of the ``agentic`` command."""
    from agentic.cli.root import cli

    cli.main(prog_name="agentic")


__all__ = ["main"]
