"""What the machine says of itself."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: What to ask on macOS.
SYSCTL = "/usr/sbin/sysctl"


@cache
def boot_id() -> str:
    """Return what is the same until the machine starts again; empty where it can't be known."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        pass
    try:
        command = [SYSCTL, "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
