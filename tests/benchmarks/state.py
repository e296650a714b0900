"""The store of a task on disk, by itself: random read-modify-writes, scans, and what it takes of memory.

    python tests/benchmarks/state.py --rows 5000000 DIRECTORY

Rows have keys of 16 bytes and values of 100. A read-modify-write reads a row at random; each
`--batch` of them are written at once, sorted, as a checkpoint does. Memory is the process's own,
of which the store's cache in the kernel is no part; the peak is over the whole run. Where others
use the machine too, look at the processor time.
"""

from __future__ import annotations

import argparse
import random
import shutil
import struct
import time
from pathlib import Path

from agentic.state.lmdb import LmdbStore

VALUE = 100
LOAD = 100_000

_key = struct.Struct(">QQ")


def memory(field: str) -> float:
    """MiB of this process by the kernel's account: VmRSS, VmHWM, RssAnon, RssFile; NaN where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


Began = tuple[float, float]


def begin() -> Began:
    """When something began, by the clock and by the processor time used."""
    return time.perf_counter(), time.process_time()


def report(what: str, rows: int, began: Began) -> None:
    took, used = (now - then for now, then in zip(begin(), began))
    print(
        f"{what:28} {rows:>11,} rows {took:8.1f} s ({used:6.1f} cpu) {rows / took:>12,.0f}/s"
        f"   rss {memory('VmRSS'):6.0f} (files {memory('RssFile'):4.0f}) peak {memory('VmHWM'):6.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="for the store; made, and removed at the end")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=30_000)
    parser.add_argument("--updates", type=int, default=900_000)
    parser.add_argument("--keep", action="store_true", help="leave the store, and use one that is there")
    options = parser.parse_args()
    rows = options.rows
    step = (1 << 64) // rows

    def key(number: int) -> bytes:
        return _key.pack(number * step, number)

    store = LmdbStore.open(options.directory, identity={"benchmark": "state"}, tables={"t": "bytes"})
    began = begin()
    if store.count("t") != rows:
        for first in range(0, rows, LOAD):
            numbers = range(first, min(first + LOAD, rows))
            store.write({"t": [(key(number), bytes(VALUE)) for number in numbers]}, {})
        report("load, in order", rows, began)

    choose = random.Random(1)
    longest = 0.0
    began = begin()
    for _ in range(max(1, options.updates // options.batch)):
        changed = {}
        for _ in range(options.batch):
            row = key(choose.randrange(rows))
            value = store.get("t", row)
            assert value is not None
            changed[row] = value[1:] + b"x"
        write_began = time.perf_counter()
        store.write({"t": sorted(changed.items())}, {"changelog": b"1"})
        longest = max(longest, time.perf_counter() - write_began)
    report("read-modify-write, random", max(1, options.updates // options.batch) * options.batch, began)
    print(f"{'':28} longest write of {options.batch:,} rows {longest * 1000:.0f} ms")

    began = begin()
    count = sum(1 for _ in store.scan("t", b"", key(min(rows - 1, 5_000_000))))
    report("scan", count, began)

    began = begin()
    found = 0
    for _ in range(20_000):
        start = choose.randrange(rows)
        found += sum(1 for _ in store.scan("t", key(start), key(min(start + 20, rows - 1))))
    report("20,000 scans of 20 rows", found, began)

    began = begin()
    store.close()
    print(f"{'close, synced':28} {time.perf_counter() - began[0]:30.1f} s")
    size = (options.directory / "data.mdb").stat().st_size
    print(f"{'file':28} {size >> 20:,} MiB, {size / rows:.0f} bytes a row")
    if not options.keep:
        shutil.rmtree(options.directory)


if __name__ == "__main__":
    main()
