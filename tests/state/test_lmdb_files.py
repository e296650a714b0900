"""The store on disk and its file: opened again, another's, damaged, without space, in a map that is too small."""

from __future__ import annotations

import logging
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_support import IDENTITY, TABLES, open_store, run

from agentic import machine
from agentic.errors import BrokerError, StateMismatch, StorageCorrupt, StorageFull
from agentic.state.lmdb import LmdbStore, meta, resident, trust
from agentic.state.lmdb import store as store_module

ROWS = [(b"%05d" % number, b"value %d" % number) for number in range(20_000)]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """The directory of a closed store with rows and a mark."""
    store = open_store(tmp_path / "store")
    store.write({"t": ROWS}, {"changelog": b"17"})
    store.close()
    return tmp_path / "store"


def check_filled(directory: Path) -> None:
    store = open_store(directory)
    assert list(store.scan("t")) == ROWS
    assert store.marks() == {"changelog": b"17"}
    store.close()


def test_what_was_written_is_there_when_it_is_opened_again(filled: Path) -> None:
    check_filled(filled)


def test_a_table_is_added_by_declaring_it_and_kept_when_it_is_not_declared(filled: Path) -> None:
    store = open_store(filled, tables={"new": "key int, value int"})
    assert store.count("new") == 0
    assert store.get("t", b"00001") is None
    store.write({"new": [(b"k", b"v")]}, {})
    store.close()
    check_filled(filled)


def test_long_keys_are_in_order_when_it_is_opened_again(tmp_path: Path) -> None:
    rows = [(b"k" * 600 + bytes([number]), b"v") for number in range(50)]
    store = open_store(tmp_path / "store")
    store.write({"t": rows}, {})
    store.close()
    store = open_store(tmp_path / "store")
    assert list(store.scan("t")) == rows
    store.close()


def test_one_that_a_dead_process_left_has_all_that_it_wrote(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from store_support import open_store
store = open_store(Path(sys.argv[1]))
store.write({"t": [(b"a", b"1")]}, {"m": b"2"})
os._exit(9)
"""
    prefix = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    run(prefix + program, tmp_path / "store", failing=True)
    store = open_store(tmp_path / "store")
    assert not store.discarded
    assert store.get("t", b"a") == b"1"
    assert store.mark("m") == b"2"
    store.close()


def test_a_closed_store_says_so(filled: Path) -> None:
    store = open_store(filled)
    rows = store.scan("t")
    next(rows)
    store.close()
    with pytest.raises(BrokerError, match="closed"):
        store.get("t", b"00001")
    with pytest.raises(BrokerError, match="iterate anew"):
        list(rows)
    with pytest.raises(BrokerError, match="closed"):
        store.write({}, {"m": b"1"})


# Whose it is.


@pytest.mark.parametrize(
    ("identity", "tables", "words", "way_out"),
    [
        # Not a reset, which would delete what is right, too.
        ({"app": "other", "task": "0-3"}, TABLES, "app 'shop', not of 'other'", "move its directory away"),
        ({"app": "shop", "task": "0-4"}, TABLES, "task '0-3', not of '0-4'", "move its directory away"),
        ({"app": "shop"}, TABLES, "task '0-3', not of None", "move its directory away"),
        (
            IDENTITY,
            {"t": "key int"},
            "table 't' was declared as key str, value int, and is now key int",
            "agentic reset",
        ),
    ],
)
def test_state_of_something_else_is_refused_by_name(
    filled: Path, identity: dict[str, str], tables: dict[str, str], words: str, way_out: str
) -> None:
    with pytest.raises(StateMismatch) as caught:
        open_store(filled, identity=identity, tables=tables)
    message = str(caught.value)
    assert words in message
    assert str(filled) in message
    assert way_out in message and "state_dir" in message and "\n" not in message
    check_filled(filled)


def test_a_refused_declaration_leaves_no_new_table(filled: Path) -> None:
    with pytest.raises(StateMismatch):
        open_store(filled, tables={"new": "x", "t": "otherwise"})
    store = LmdbStore.open_readonly(filled)
    assert store.tables == TABLES
    store.close()


def set_format(directory: Path, version: int) -> None:
    with lmdb.open(str(directory), max_dbs=1) as env, env.begin(write=True) as txn:
        txn.put(b"format", struct.pack(">I", version), db=env.open_db(meta.META, txn=txn))


def test_a_newer_format_is_refused_and_not_touched(filled: Path) -> None:
    set_format(filled, meta.FORMAT + 1)
    for opened in (open_store, LmdbStore.open_readonly):
        with pytest.raises(StateMismatch, match="written by a newer agentic") as caught:
            opened(filled)
        assert str(filled) in str(caught.value)
    set_format(filled, meta.FORMAT)
    check_filled(filled)


def test_an_older_format_is_brought_up_to_date(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(env: Any, txn: Any, db: Any) -> None:
        txn.put(b"migrated", b"1", db=env.open_db(meta.MARKS, txn=txn))

    set_format(filled, 0)
    with pytest.raises(StorageCorrupt, match="no longer reads"):
        open_store(filled)
    monkeypatch.setitem(meta.MIGRATIONS, 0, migrate)
    store = open_store(filled)
    assert store.marks() == {"changelog": b"17", "migrated": b"1"}
    assert list(store.scan("t")) == ROWS
    store.close()
    monkeypatch.undo()
    open_store(filled).close()


def test_a_migration_that_fails_changes_nothing(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(env: Any, txn: Any, db: Any) -> None:
        txn.put(b"migrated", b"1", db=env.open_db(meta.MARKS, txn=txn))
        raise RuntimeError("half-way")

    set_format(filled, 0)
    monkeypatch.setitem(meta.MIGRATIONS, 0, migrate)
    with pytest.raises(RuntimeError):
        open_store(filled)
    set_format(filled, meta.FORMAT)
    check_filled(filled)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"k", b"v")
    with pytest.raises(StorageCorrupt, match="another program"):
        open_store(tmp_path)


def test_a_file_whose_maker_died_before_it_was_filled_is_empty_and_not_damaged(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path)).close()
    with pytest.raises(BrokerError, match="no state here yet") as told:
        LmdbStore.open_readonly(tmp_path)
    assert not isinstance(told.value, StorageCorrupt)
    open_store(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerError, match="can't be opened") as caught:
        open_store(tmp_path / "file" / "store")
    assert str(tmp_path / "file") in str(caught.value)


# Read beside a writer.


def test_a_reader_beside_the_writer_sees_what_is_written(filled: Path) -> None:
    program = """
import sys
from agentic.errors import BrokerError
from agentic.state.lmdb import LmdbStore
store = LmdbStore.open_readonly(sys.argv[1])
assert store.identity == {"app": "shop", "task": "0-3"}, store.identity
assert set(store.tables) == {"t", "u"}, store.tables
for line in sys.stdin:
    print(store.get("t", b"new"), store.mark("changelog"), sum(1 for _ in store.scan("t")), flush=True)
try:
    store.write({}, {"m": b"1"})
except BrokerError as error:
    print(error)
store.close()
"""
    store = open_store(filled)
    with subprocess.Popen(
        [sys.executable, "-c", program, filled], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None and reader.stdout is not None

        def ask() -> str:
            print(file=reader.stdin, flush=True)
            return reader.stdout.readline().strip()

        assert ask() == "None b'17' 20000"
        store.write({"t": [(b"new", b"row")]}, {"changelog": b"18"})
        assert ask() == "b'row' b'18' 20001"
        store.write({"t": [(b"new", None)]}, {"changelog": None})
        assert ask() == "None None 20000"
        reader.stdin.close()
        assert "opened to be read" in reader.stdout.read()
    assert reader.returncode == 0
    store.close()


def test_a_reader_follows_when_the_map_grows(tmp_path: Path) -> None:
    program = """
import sys
from agentic.state.lmdb import LmdbStore
store = LmdbStore.open_readonly(sys.argv[1])
for line in sys.stdin:
    print(store.count("t"), flush=True)
"""
    store = open_store(tmp_path / "store", map_size=1 << 20)
    command = [sys.executable, "-c", program.replace("LmdbStore.open_readonly", SMALL), tmp_path / "store"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        for number in range(1, 6):
            store.write({"t": [(b"%d" % number, bytes(1 << 20))]}, {})
            print(file=reader.stdin, flush=True)
            assert reader.stdout.readline().strip() == str(number)
        reader.stdin.close()
    assert reader.returncode == 0
    store.close()


#: Opens to read, with a map no larger than the file.
SMALL = "__import__('agentic.lmdbfile').lmdbfile.__dict__.update(MAP_SIZES=(1 << 20,)) or LmdbStore.open_readonly"


def test_a_reader_that_died_does_not_let_the_file_grow(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import sys
from agentic.state.lmdb import LmdbStore
rows = LmdbStore.open_readonly(sys.argv[1]).scan("t")
next(rows)
print("reading", flush=True)
sys.stdin.read()
"""
    store = open_store(filled)
    with subprocess.Popen(
        [sys.executable, "-c", program, filled], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
        reader.kill()
    monkeypatch.setattr(store_module, "READERS_EVERY", 0.0)
    sizes = []
    for _ in range(6):
        for _ in range(20):
            store.write({"t": ROWS[:2_000]}, {})
        sizes.append((filled / "data.mdb").stat().st_size)
    assert sizes[1] == sizes[-1]
    store.close()


def test_where_there_is_no_store_a_reader_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="no state here"):
        LmdbStore.open_readonly(tmp_path)
    assert list(tmp_path.iterdir()) == []


# The machine went down.


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def set_boot(name: str) -> None:
        monkeypatch.setattr(trust, "boot_id", lambda: name)

    return set_boot


def crash(directory: Path, keep: Path) -> None:
    """Leave a store as a crash would: its files as they are while it is open."""
    store = open_store(directory)
    store.write({"t": [(b"00000", b"changed")]}, {})
    shutil.copytree(directory, keep)
    store.close()


def test_one_that_was_open_when_the_machine_went_down_is_emptied_and_says_so(
    filled: Path, tmp_path: Path, another_boot: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    another_boot("one")
    crash(filled, tmp_path / "left")
    another_boot("two")
    with pytest.raises(StorageCorrupt, match="machine went down"):
        LmdbStore.open_readonly(tmp_path / "left")
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path / "left")
    assert store.discarded
    assert "machine went down" in caplog.text and str(tmp_path / "left") in caplog.text
    assert store.count("t") == 0
    assert store.marks() == {}
    store.close()


def test_one_that_was_closed_before_the_machine_went_down_is_kept(
    filled: Path, another_boot: Callable[[str], None]
) -> None:
    another_boot("two")
    check_filled(filled)
    another_boot("three")
    check_filled(filled)


def test_one_whose_process_died_is_kept_while_the_machine_lives(
    filled: Path, tmp_path: Path, another_boot: Callable[[str], None]
) -> None:
    another_boot("one")
    crash(filled, tmp_path / "left")
    store = open_store(tmp_path / "left")
    assert store.get("t", b"00000") == b"changed"
    assert not store.discarded
    store.close()


def test_where_the_boot_is_not_known_one_that_was_left_open_is_emptied(
    filled: Path, tmp_path: Path, another_boot: Callable[[str], None]
) -> None:
    another_boot("")
    crash(filled, tmp_path / "left")
    store = open_store(tmp_path / "left")
    assert store.discarded
    store.close()
    check_filled_but_first(filled)


def check_filled_but_first(directory: Path) -> None:
    store = open_store(directory)
    assert not store.discarded
    assert store.get("t", b"00000") == b"changed"
    assert store.count("t") == len(ROWS)
    store.close()


def test_the_boot_of_this_machine_is_known() -> None:
    assert machine.boot_id()


def test_the_boot_is_asked_of_the_system_where_there_is_no_proc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = machine.boot_id.__wrapped__
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "none")
    monkeypatch.setattr(machine, "SYSCTL", "/bin/echo")
    assert asked() == "kern.bootsessionuuid"
    monkeypatch.setattr(machine, "SYSCTL", str(tmp_path / "none"))
    assert asked() == ""


# Damage.


def damage(file: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(file.read_bytes())
    change(content)
    file.write_bytes(content)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_named_with_the_way_out(filled: Path, left: float) -> None:
    file = filled / "data.mdb"
    os.truncate(file, int(file.stat().st_size * left))
    for opened in (open_store, LmdbStore.open_readonly):
        with pytest.raises(StorageCorrupt, match=r"--repair") as caught:
            opened(filled)
        assert str(file) in str(caught.value)


def test_a_file_of_random_bytes_is_named_with_the_way_out(filled: Path) -> None:
    file = filled / "data.mdb"
    file.write_bytes(os.urandom(file.stat().st_size))
    with pytest.raises(StorageCorrupt, match=r"--repair") as caught:
        open_store(filled)
    assert str(file) in str(caught.value)


def test_damage_that_is_met_is_named_and_remembered(filled: Path) -> None:
    """The next to open the store would else find nothing wrong, and have nothing to repair."""

    def zero_rows(content: bytearray) -> None:
        page = 4096
        for at in range(0, len(content), page):
            if b"value 1" in content[at : at + page]:
                content[at : at + page] = bytes(page)

    damage(filled / "data.mdb", zero_rows)
    store = open_store(filled)
    with pytest.raises(StorageCorrupt) as caught:
        for key, _ in ROWS:
            store.get("t", key)
        list(store.scan("t"))
    words = str(caught.value)
    assert "damaged" in words and "--repair" in words and str(filled / "data.mdb") in words
    store.close()
    for opened in (open_store, LmdbStore.open_readonly):
        with pytest.raises(StorageCorrupt) as caught:
            opened(filled)
        assert str(caught.value) == words


# Without space.

FULL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from store_support import open_store
from agentic.errors import StorageFull

store = open_store(Path(sys.argv[2]))
store.write({"t": [(b"a", b"1")]}, {"m": b"1"})
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
written = 0
try:
    while True:
        rows = [(b"%d-%d" % (written, part), bytes(50_000)) for part in range(10)]
        store.write({"t": rows}, {"m": b"%d" % written})
        written += 1
except StorageFull as error:
    print(error)
assert store.mark("m") == b"%d" % (written - 1), store.mark("m")
assert store.count("t") == 1 + 10 * written, store.count("t")
assert store.get("t", b"%d-0" % written) is None
try:
    store.write({"t": rows}, {"m": b"again"})
except StorageFull as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
store.write({"t": rows}, {"m": b"last"})
assert store.count("t") == 11 + 10 * written
store.close()
store = open_store(Path(sys.argv[2]))
assert store.mark("m") == b"last"
assert store.count("t") == 11 + 10 * written == sum(1 for _ in store.scan("t"))
"""


def test_without_space_a_write_fails_whole_and_succeeds_when_there_is_some(tmp_path: Path) -> None:
    lines = run(FULL, Path(__file__).parent, tmp_path / "store").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert str(tmp_path / "store") in line and "no space left" in line and "nothing was half-written" in line


def test_the_map_grows_with_what_is_written(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", map_size=1 << 20)
    rows = [(b"%03d" % number, bytes([number]) * (1 << 20)) for number in range(40)]
    store.write({"t": rows}, {"m": b"1"})
    assert list(store.scan("t")) == rows
    assert store.mark("m") == b"1"
    store.clear("t")
    store.write({"t": rows[:1], "u": rows[1:2]}, {"m": b"2"})
    store.close()
    store = open_store(tmp_path / "store", map_size=1 << 20)
    assert list(store.scan("u")) == rows[1:2]
    store.close()


def test_a_scan_goes_on_while_the_map_grows(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", map_size=1 << 20)
    rows = [(b"%04d" % number, b"old") for number in range(2_000)]
    store.write({"t": rows}, {})
    forward, backward = store.scan("t"), store.scan("t", reverse=True)
    found = [next(forward)], [next(backward)]
    store.write({"t": [(b"1000", bytes(4 << 20))]}, {})
    assert store.get("t", b"1000") == bytes(4 << 20)
    assert [*found[0], *forward] == rows
    assert [*found[1], *backward] == rows[::-1]
    store.close()


def test_a_scan_from_before_an_earlier_write_ends_in_words_when_the_map_grows(tmp_path: Path) -> None:
    """It can't go on among the old rows, and must not go on among the new ones."""
    store = open_store(tmp_path / "store", map_size=1 << 20)
    store.write({"t": [(b"%04d" % number, b"old") for number in range(2_000)]}, {})
    rows = store.scan("t")
    next(rows)
    store.write({"t": [(b"1000", b"new")]}, {})
    store.write({"t": [(b"1000", bytes(4 << 20))]}, {})
    with pytest.raises(BrokerError, match="iterate anew"):
        list(rows)
    assert store.count("t") == 2_000
    store.close()


def test_a_map_that_cannot_grow_is_a_full_store_and_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store", map_size=1 << 20)
    store.write({"t": [(b"a", b"1")]}, {})
    rows = store.scan("t")
    real = lmdb.open

    def refusing(path: str, *, map_size: int, **options: Any) -> Any:
        if map_size > 1 << 20:
            raise lmdb.MemoryError("no address space")
        return real(path, map_size=map_size, **options)

    monkeypatch.setattr(lmdb, "open", refusing)
    with pytest.raises(StorageFull, match="nothing was written"):
        store.write({"t": [(b"b", bytes(4 << 20))]}, {"m": b"1"})
    assert list(rows) == [(b"a", b"1")]
    assert store.get("t", b"b") is None
    assert store.mark("m") is None
    store.write({"t": [(b"b", b"2")]}, {"m": b"2"})
    assert store.get("t", b"b") == b"2"
    store.close()


# Threads and memory.


def test_reads_go_on_while_another_thread_writes_and_see_each_write_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", map_size=1 << 20)
    names = [b"%04d" % number for number in range(1_000)]
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(60):
                store.write({"t": [(name, b"%d" % number * 50) for name in names]}, {"m": b"%d" % number})
        finally:
            done.set()

    store.write({"t": [(name, b"first") for name in names]}, {})
    writer = threading.Thread(target=write)
    writer.start()
    scans = 0
    while not done.is_set() or scans == 0:
        try:
            values = {value for _, value in store.scan("t")}
        except BrokerError as error:
            # The map grew, and the scan was behind a write.
            assert "iterate anew" in str(error)
            continue
        assert len(values) == 1
        assert store.get("t", names[5]) is not None
        scans += 1
    writer.join()
    assert store.get("t", names[0]) == b"59" * 50
    store.close()


@pytest.fixture
def a_store_of_50_mib(tmp_path: Path) -> Iterator[LmdbStore]:
    store = open_store(tmp_path / "store", resident_limit=0)
    for first in range(0, 50_000, 10_000):
        store.write({"t": [(b"%06d" % number, bytes(1_000)) for number in range(first, first + 10_000)]}, {})
    yield store
    store.close()


@pytest.mark.skipif(not Path(resident.MAPS).exists(), reason="this kernel does not say what is resident")
def test_pages_read_are_given_back_above_the_limit(a_store_of_50_mib: LmdbStore) -> None:
    before = resident.file_pages()
    most = 0
    for number, row in enumerate(a_store_of_50_mib.scan("t")):
        assert row == (b"%06d" % number, bytes(1_000))
        if number % 1_000 == 0:
            most = max(most, resident.file_pages() - before)
    assert most < 25 << 20
    for number in range(0, 50_000, 7):
        assert a_store_of_50_mib.get("t", b"%06d" % number) == bytes(1_000)
        if number % 1_000 == 0:
            most = max(most, resident.file_pages() - before)
    assert most < 25 << 20


def test_without_a_kernel_that_says_what_is_resident_nothing_is_given_back(
    a_store_of_50_mib: LmdbStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resident, "STATM", str(tmp_path / "none"))
    monkeypatch.setattr(resident, "MAPS", str(tmp_path / "none"))
    assert sum(1 for _ in a_store_of_50_mib.scan("t")) == 50_000


def test_the_file_does_not_grow_while_the_same_rows_are_written_again(tmp_path: Path) -> None:
    """No reader is left behind that would keep old pages from being used again."""
    store = open_store(tmp_path / "store")
    rows = [(b"%04d" % number, bytes(100)) for number in range(2_000)]
    for _ in range(20):
        store.write({"t": rows}, {})
        store.get("t", b"0001")
        next(store.scan("t"))
    size = (tmp_path / "store" / "data.mdb").stat().st_size
    for _ in range(200):
        store.write({"t": rows}, {})
        assert store.get("t", b"0001") == bytes(100)
    assert (tmp_path / "store" / "data.mdb").stat().st_size <= size
    store.close()
