"""A worker's name for its transactions."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from agentic.errors import ConfigurationError
from agentic.runtime.identity import Slotfile


def test_two_workers_of_one_directory_have_different_names(tmp_path: pathlib.Path) -> None:
    first, second = Slotfile(str(tmp_path), "app"), Slotfile(str(tmp_path), "app")
    assert first.name != second.name
    first.close()
    second.close()


def test_a_restart_has_the_name_again(tmp_path: pathlib.Path) -> None:
    first = Slotfile(str(tmp_path), "app")
    first.close()
    again = Slotfile(str(tmp_path), "app")
    assert again.name == first.name
    again.close()


def test_the_name_is_free_again_when_its_holder_was_killed(tmp_path: pathlib.Path) -> None:
    code = (
        "import os, sys; from agentic.runtime.identity import Slotfile\n"
        f"print(Slotfile({str(tmp_path)!r}, 'app').name, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    again = Slotfile(str(tmp_path), "app")
    assert again.name == killed.stdout.strip()
    again.close()


def test_a_name_that_was_written_halfway_is_made_anew(tmp_path: pathlib.Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "slot-0").write_text("abc")
    slot = Slotfile(str(tmp_path), "app")
    assert len(slot.name) == 32
    slot.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"state directory .*file/app.*set state_dir"):
        Slotfile(str(tmp_path / "file"), "app")
