"""Whether a process lives: certain answers only, since who is taken for dead loses its partitions."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from agentic.brokers.embedded.membership import Process
from agentic.machine import boot_id


def this_process() -> Process:
    return _process(os.getpid())


@cache
def _process(pid: int) -> Process:
    return Process(pid, _stat(pid)[1], _space())


def dead(process: Process) -> bool:
    """Is that process dead for certain? False also means: not to be known from here."""
    if process.space != _space():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # There is a process, of another user.
        return False
    state, started = _stat(process.pid)
    if not started or not process.started:
        # Without /proc a reused pid looks alive; its lease will tell.
        return False
    return state in "ZX" or started != process.started


def _stat(pid: int) -> tuple[str, str]:
    """State and start time (ticks since boot) from /proc; empty where there is none."""
    try:
        # The name before the last parenthesis may hold anything, blanks and parentheses too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


@cache
def _space() -> str:
    """Where a pid means the same process: this machine since its boot, and this pid namespace."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return f"host {platform.node()}"
    boot = boot_id()
    return f"{boot}/{namespace}" if boot else f"host {platform.node()}"
