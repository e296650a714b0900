"""``python -m tests.conformance FILE…``: run the scenarios of files; README.md says what is printed."""

from __future__ import annotations

import argparse
import logging
import sys

from .runner import run_files


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.conformance", description="Run scenarios on the TestDriver.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="scenarios, one a line: .jsonl, or .jsonl.gz")
    parser.add_argument(
        "--crash", action="store_true", help="crash after every step, under exactly-once: nothing may change"
    )
    options = parser.parse_args(arguments)
    tally = run_files(options.files, crash=options.crash, tell=print)
    print(tally)
    return tally.status


if __name__ == "__main__":
    # What a worker logs at each of its starts would bury what differs.
    logging.disable(logging.WARNING)
    sys.exit(main(sys.argv[1:]))
