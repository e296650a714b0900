"""A worker's log lines: for people by default, one JSON object a line with ``log="json"``.

Of several workers that write to one terminal each says in its lines which it is.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson

from agentic.settings import Settings

#: What a log record carries by itself; anything else was given as ``extra``.
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """``12:30:01.250 INFO    assigned orders[0,1]``; of one of several workers ``… worker 2: assigned orders[0,1]``."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._who = "" if worker is None else f"worker {worker}: "

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        line = f"{at}.{int(record.msecs):03d} {record.levelname:7} {self._who}{record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """``{"time": …, "level": …, "logger": …, "message": …}``, the worker's number, and ``extra`` fields beside them."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._who = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._who,
        }
        entry.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


#: Which of its supervisor's workers this process is; None for one without.
_number: int | None = None


def name_worker(number: int) -> None:
    """Let this process say in its lines which of several workers it is; takes effect with the next `setup`."""
    global _number
    _number = number


def setup(settings: Settings, stream: TextIO | None = None) -> None:
    """Send the log of agentic, and warnings of everyone else, to `stream` (by default standard error).

    A second call replaces the first. Handlers that the user's program has set up stay.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(_number) if settings.log == "json" else TextFormatter(_number))
    handler.set_name("agentic")
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == "agentic"]:
        root.removeHandler(old)
    root.addHandler(handler)
    if root.level == logging.WARNING or root.level == logging.NOTSET:
        root.setLevel(logging.WARNING)
    logging.getLogger("agentic").setLevel(settings.log_level.upper())
    # The service tree speaks of its own life cycle in detail that concerns nobody here.
    logging.getLogger("mode").setLevel(logging.ERROR)
