"""A name for this worker that its restart has again: for transactions that a crash left open.

The broker ends a dead producer's transaction when its transactional id comes back, and
otherwise only after a time-out, during which readers of committed records wait. So a worker
takes the first free *slot* of its state directory: a file with a random name in it, locked
as long as the process lives, whatever ends it.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

from agentic.errors import ConfigurationError


class Slotfile:
    """A slot of a state directory, held by this process.

    Args:
        state_dir: made if it is missing.
        app: the app's name; each has slots of its own.

    Attributes:
        name: the same for whoever holds the slot next.

    Raises:
        ConfigurationError: the directory can't be made or written.
    """

    def __init__(self, state_dir: str, app: str) -> None:
        directory = Path(state_dir) / app
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file, self.name = self._claim(directory)
        except OSError as error:
            raise ConfigurationError(
                f"state directory {str(directory)!r}: {error.strerror}; set state_dir to one that can be written"
            ) from None

    @staticmethod
    def _claim(directory: Path) -> tuple[int, str]:
        number = 0
        while True:
            file = os.open(directory / f"slot-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                number += 1
                continue
            name = os.read(file, 32).decode("ascii", "replace")
            if len(name) != 32 or not name.isalnum():
                # New, or written halfway by a process that was killed at it: nobody has used it yet.
                name = uuid.uuid4().hex
                os.ftruncate(file, 0)
                os.pwrite(file, name.encode(), 0)
            return file, name

    def close(self) -> None:
        """Let another process have the slot."""
        os.close(self._file)
