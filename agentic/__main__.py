"""``python -m agentic`` is ``agentic``."""

from agentic.cli import main

main()
