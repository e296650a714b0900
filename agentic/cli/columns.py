"""Tables on standard output: for people on a terminal, whole lines for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: A pipe has no width: nothing is to be folded or cut there.
_NO_WIDTH = 10_000


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print rows under column names; those named in `right` are set to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # As text: a value in square brackets is no markup.
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else _NO_WIDTH, highlight=False).print(table)
