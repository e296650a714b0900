"""Copies of a task's state on one machine: who gets which, and what becomes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from store_support import TABLES

from agentic.errors import BrokerError, StateMismatch, StorageCorrupt
from agentic.state.lmdb import ADVANCE, LmdbStore, claim, claims, copies, in_use, move_aside

HOLDER = """
import sys
from agentic.state.lmdb import claim
store = claim(sys.argv[1], "shop", "0-3", {"t": "key str, value int", "u": "key str, value dict"})
print(store.directory.name, flush=True)
sys.stdin.read()
store.close()
"""


#: Writes the same rows again for each line, and says how large the file is.
BORROWER = """
import sys
from pathlib import Path
from agentic.state.lmdb import LmdbStore
tables = {"t": "key str, value int", "u": "key str, value dict"}
store = LmdbStore.borrow(sys.argv[1], identity={"app": "shop", "task": "0-3"}, tables=tables)
for line in sys.stdin:
    store.write({"t": [(b"%06d" % n, bytes(100)) for n in range(1_000)]}, {})
    print((Path(sys.argv[1]) / "data.mdb").stat().st_size, flush=True)
store.close()
"""


@contextmanager
def holder(state_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has claimed a copy, and the copy's number; it frees it when its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, state_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def take(state_dir: Path, task: str = "0-3") -> LmdbStore:
    return claim(state_dir, "shop", task, TABLES)


def advance(store: LmdbStore, far: int) -> None:
    store.write({"t": [(b"far", b"%d" % far)]}, {ADVANCE: far.to_bytes(8, "big")})


def make_copies(state_dir: Path, *far: int) -> None:
    """Make free copies that are so far."""
    with ExitStack() as stack:
        for number in far:
            store = take(state_dir)
            stack.callback(store.close)
            advance(store, number)


def test_the_first_copy_stands_where_the_layout_says(tmp_path: Path) -> None:
    store = take(tmp_path)
    assert store.directory == tmp_path / "shop" / "state" / "0-3" / "0"
    assert store.identity == {"app": "shop", "task": "0-3"}
    store.close()


def test_a_copy_is_taken_again_with_what_is_in_it(tmp_path: Path) -> None:
    make_copies(tmp_path, 7)
    store = take(tmp_path)
    assert store.get("t", b"far") == b"7"
    store.close()


def test_who_comes_second_gets_a_copy_of_its_own(tmp_path: Path) -> None:
    first, second, other = take(tmp_path), take(tmp_path), take(tmp_path, "0-4")
    assert [store.directory.name for store in (first, second, other)] == ["0", "1", "0"]
    for store in (first, second, other):
        store.close()


@pytest.mark.parametrize("far", [(3, 9, 5), (9, 3, 5), (255, 256, 1), (1 << 40, 1 << 33, 0)])
def test_the_free_copy_that_is_furthest_is_taken(tmp_path: Path, far: tuple[int, ...]) -> None:
    make_copies(tmp_path, *far)
    store = take(tmp_path)
    assert store.get("t", b"far") == b"%d" % max(far)
    store.close()


def test_a_copy_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    make_copies(tmp_path, 9, 3)
    with holder(tmp_path) as (_, number):
        assert number == "0"
        store = take(tmp_path)
        assert store.get("t", b"far") == b"3"
        store.close()


def test_a_stopped_process_keeps_its_copy_and_a_dead_one_does_not(tmp_path: Path) -> None:
    make_copies(tmp_path, 9)
    with holder(tmp_path) as (process, number):
        assert number == "0"
        process.send_signal(signal.SIGSTOP)
        store = take(tmp_path)
        assert store.directory.name == "1"
        store.close()
        process.kill()
        process.wait()
        store = take(tmp_path)
        assert store.directory.name == "0"
        store.close()


def test_many_processes_at_once_each_get_another(tmp_path: Path) -> None:
    make_copies(tmp_path, 1, 2)
    with ExitStack() as stack:
        taken = [stack.enter_context(holder(tmp_path))[1] for _ in range(4)]
    assert sorted(taken) == ["0", "1", "2", "3"]


def test_a_process_that_hangs_while_it_chooses_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_copies(tmp_path, 1)
    directory = tmp_path / "shop" / "state" / "0-3"
    lock = claims._try_lock(directory / "choosing.lock")
    assert lock is not None
    monkeypatch.setattr(claims, "CHOOSING", 0.05)
    store = take(tmp_path)
    assert store.directory == directory / "0"
    store.close()
    os.close(lock)


def test_a_copy_is_freed_when_it_can_not_be_opened(tmp_path: Path) -> None:
    make_copies(tmp_path, 1)
    with pytest.raises(StateMismatch):
        claim(tmp_path, "shop", "0-3", {"t": "otherwise"})
    store = take(tmp_path)
    assert store.directory.name == "0"
    store.close()


def age(state_dir: Path, seconds: float) -> None:
    then = time.time() - seconds
    for lock in (state_dir / "shop" / "state" / "0-3").glob("*.lock"):
        os.utime(lock, (then, then))


def test_a_copy_that_nobody_wanted_for_long_is_removed_and_a_new_one_is_kept(tmp_path: Path) -> None:
    make_copies(tmp_path, 1, 5, 3)
    take(tmp_path).close()
    assert [copy.number for copy in copies(tmp_path, "shop")] == [0, 1, 2]
    age(tmp_path, claims.KEPT + 60)
    with holder(tmp_path):
        assert [copy.number for copy in copies(tmp_path, "shop")] == [1]


def test_a_copy_in_use_is_not_removed_however_old(tmp_path: Path) -> None:
    make_copies(tmp_path, 5, 3)
    with holder(tmp_path) as (_, number):
        assert number == "0"
        age(tmp_path, claims.KEPT + 60)
        take(tmp_path).close()
    assert [copy.number for copy in copies(tmp_path, "shop")] == [0, 1]


def test_copies_are_listed_with_their_tasks_and_who_has_them(tmp_path: Path) -> None:
    assert copies(tmp_path, "shop") == []
    store = take(tmp_path)
    take(tmp_path, "clicks, orders/1").close()
    take(tmp_path, "..").close()
    found = {copy.task: copy for copy in copies(tmp_path, "shop")}
    assert set(found) == {"0-3", "clicks, orders/1", ".."}
    assert all(copy.directory.parent.parent == tmp_path / "shop" / "state" for copy in found.values())
    assert in_use(found["0-3"])
    assert not in_use(found[".."])
    store.close()
    assert not in_use(found["0-3"])


def test_a_damaged_copy_is_named_until_it_is_moved_aside(tmp_path: Path) -> None:
    make_copies(tmp_path, 1)
    (copy,) = copies(tmp_path, "shop")
    file = copy.directory / "data.mdb"
    file.write_bytes(b"x" * file.stat().st_size)
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match="--repair"):
            take(tmp_path)
    aside = move_aside(copy)
    assert (aside / "data.mdb").read_bytes() == b"x" * (aside / "data.mdb").stat().st_size
    assert copies(tmp_path, "shop") == []
    store = take(tmp_path)
    assert store.count("t") == 0
    store.close()


def test_a_whole_copy_is_taken_before_a_damaged_one(tmp_path: Path) -> None:
    make_copies(tmp_path, 5, 3)
    file = tmp_path / "shop" / "state" / "0-3" / "0" / "data.mdb"
    os.truncate(file, 8_192)
    store = take(tmp_path)
    assert store.get("t", b"far") == b"3"
    store.close()


def test_a_copy_in_use_is_not_moved_aside(tmp_path: Path) -> None:
    store = take(tmp_path)
    (copy,) = copies(tmp_path, "shop")
    with pytest.raises(BrokerError, match="stop that worker first"):
        move_aside(copy)
    store.close()


def test_who_looks_whether_a_copy_is_in_use_takes_it_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim at that moment would make a new copy, and have all of it restored."""
    make_copies(tmp_path, 7)
    (copy,) = copies(tmp_path, "shop")
    claimed: list[LmdbStore] = []
    claimer = threading.Thread(target=lambda: claimed.append(take(tmp_path)))
    with claims._taken(copy) as taken:
        assert taken
        looked = threading.Event()
        monkeypatch.setattr(claims.time, "sleep", lambda _: looked.set())
        claimer.start()
        assert looked.wait(30)
    claimer.join()
    assert claimed[0].directory == copy.directory
    claimed[0].close()


def test_a_copy_that_is_gone_is_an_error_in_words(tmp_path: Path) -> None:
    gone = claims.Copy("0-3", 0, tmp_path / "shop" / "state" / "0-3" / "0")
    for asked in (in_use, move_aside):
        with pytest.raises(BrokerError, match="no access to it") as caught:
            asked(gone)
        assert str(gone.directory) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BrokerError, match="set state_dir"):
        take(tmp_path)


def test_a_state_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerError, match="set state_dir") as caught:
        take(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


def test_looking_at_a_store_that_is_lent_does_not_make_its_file_grow(tmp_path: Path) -> None:
    store = take(tmp_path)
    store.lend()
    with subprocess.Popen(
        [sys.executable, "-c", BORROWER, store.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as borrower:
        assert borrower.stdin is not None
        assert borrower.stdout is not None
        sizes = []
        for _ in range(30):
            borrower.stdin.write("\n")
            borrower.stdin.flush()
            sizes.append(int(borrower.stdout.readline()))
            assert store.count("t") == 1_000
            assert store.get("t", b"000001") == bytes(100)
    store.take_back()
    assert sizes[-1] < 2 * sizes[3]
    assert store.count("t") == 1_000
    store.close()
