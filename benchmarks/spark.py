"""``make bench-spark``: how fast the log becomes rows, beside a reader that does nothing in the
same run.

The store is filled by our own file store. Each scan runs twice in one session; the second time
counts. ``--only`` chooses cases: decode, scan, memory, plan, beside.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.processes import ftstan
from benchmarks.zero import Zero
from ftstan.base.sizes import size_of
from ftstan.spark.columns import SCHEMA
from ftstan.spark.log import Store, read
from ftstan.spark.report import collected
from ftstan.spark.session import session
from tests.slicefiles import Message, put_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_CHANNELS = 4
_CASES = ("decode", "scan", "memory", "plan", "beside")
_ALL = tuple(column.split()[0] for column in SCHEMA.split(", "))
_PRUNED = "channel string, size int"
_READY = "Streaming Server is ready"


def main() -> None:
    """Run the cases and print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark")
    parser.add_argument(
        "--count", type=int, default=20_000_000, help="messages of 128 B (default 20000000)"
    )
    parser.add_argument(
        "--only", default=",".join(_CASES), help=f"cases (default {','.join(_CASES)})"
    )
    parser.add_argument("--channels", type=int, default=10_000, help="of the plan (default 10000)")
    parser.add_argument(
        "--slices", type=int, default=100, help="of each channel of the plan (default 100)"
    )
    options = parser.parse_args()
    only = options.only.split(",")
    with tempfile.TemporaryDirectory(prefix="bench-spark.") as place:
        if {"decode", "scan", "memory", "beside"} & set(only):
            fill = [sys.executable, "-m", "benchmarks.fill", f"{place}/store"]
            Path(place, "store").mkdir()
            fill += ["--channels", str(_CHANNELS), "--each", str(options.count // _CHANNELS)]
            _, seconds = timed(lambda: subprocess.run(fill, check=True))
            print(
                f"{options.count:,} messages of 128 B in {_CHANNELS} channels, written in "
                f"{seconds:.0f} s"
            )
        if "decode" in only:
            decode(f"{place}/store")
        if {"scan", "memory"} & set(only):
            on_spark(place, options.count, only)
        if "plan" in only:
            plan(f"{place}/plan", options.channels, options.slices)
        if "beside" in only:
            beside(place)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work gives, and the seconds it takes."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def decode(store: str) -> None:
    """The reader alone, in this process."""
    parts = Store(store).plan()
    for name, columns in (
        ("channel, size", ("channel", "size")),
        ("all columns", _ALL),
        ("index only", ("channel",)),
    ):

        def scan(columns: tuple[str, ...] = columns) -> int:
            return sum(batch.num_rows for part in parts for batch in read(part, columns))

        scan()
        before = time.process_time()
        rows, seconds = timed(scan)
        cpu = time.process_time() - before
        print(
            f"decoder alone, one core, {name:<14} {rows / seconds / 1e6:6.2f} million messages/s"
            f"   ({rows / cpu / 1e6:.2f} a second of CPU)"
        )


def on_spark(place: str, count: int, only: list[str]) -> None:
    """Scans on two cores, and the memory of the workers."""
    spark = session(
        "bench",
        master="local[2]",
        config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Zero)
    try:
        if "scan" in only:
            scans(spark, f"{place}/store", count)
        if "memory" in only:
            memory(spark, place)
    finally:
        spark.stop()


def scans(spark: SparkSession, store: str, count: int) -> None:
    """Full scans, beside the ceiling."""
    for name, schema, query in (
        ("channel, size", _PRUNED, summed),
        ("all columns", SCHEMA, written),
    ):
        stan = spark.read.format("stan").schema(schema).option("path", store)
        zero = (
            spark.read.format("zero").schema(schema).option("count", count).option("partitions", 8)
        )
        rates = {}
        for kind, reader in (("stan", stan), ("zero", zero)):
            query(reader.load())
            _, seconds = timed(
                functools.partial(lambda query, reader: query(reader.load()), query, reader)
            )
            rates[kind] = count / seconds / 1e6
        print(
            f"scan, local[2], {name:<14} {rates['stan']:6.2f} million messages/s"
            f"   (a reader that does nothing: {rates['zero']:.2f})"
        )


def summed(frame: DataFrame) -> None:
    """Count and sum of sizes per channel."""
    frame.groupBy("channel").agg({"*": "count", "size": "sum"}).collect()


def written(frame: DataFrame) -> None:
    """Every column of every row, to nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def memory(spark: SparkSession, place: str) -> None:
    """The most memory of a worker, with payloads of 128 B, of 1 MiB and of 64 MiB."""
    for name, size, count in (("128 B", 128, 0), ("1 MiB", 1 << 20, 300), ("64 MiB", 64 << 20, 6)):
        store = f"{place}/store" if not count else f"{place}/{size}"
        if count:
            put_slice(Path(store), "big", 1, [Message(n, b"x" * size) for n in range(1, count + 1)])
        stats = f"{place}/stats.{size}"
        written(spark.read.format("stan").option("readStats", stats).load(store))
        print(f"worker, payloads of {name}: {size_of(collected(stats).peak_memory)} at most so far")


def plan(root: str, channels: int, slices: int) -> None:
    """Planning of many small slices: listing and stat alone, so that their files may be empty."""
    for c in range(channels):
        directory = Path(root, f"channel.{c}")
        directory.mkdir(parents=True)
        (directory / "subs.dat").touch()
        for number in range(1, slices + 1):
            for kind in ("dat", "idx"):
                (directory / f"msgs.{number}.{kind}").touch()
    parts, seconds = timed(lambda: Store(root).plan())
    print(f"plan of {channels:,} channels x {slices} slices: {seconds:.1f} s, {len(parts)} parts")


def beside(place: str) -> None:
    """How fast a server stores while one core reads another store in the same place."""
    with ftstan("file", f"{place}/served") as server:
        server.wait_for(_READY)
        rates = []
        for reading in (False, True, False):
            stop = threading.Event()
            scanner = (
                threading.Thread(target=_scan, args=(f"{place}/store", stop)) if reading else None
            )
            if scanner is not None:
                scanner.start()
            rates.append(_published(server.url))
            stop.set()
            if scanner is not None:
                scanner.join()
    alone = (rates[0] + rates[2]) / 2
    print(
        f"publish beside a scan on one core: {rates[1]:,.0f}/s of {alone:,.0f}/s alone "
        f"({rates[1] / alone:.0%})"
    )


def _scan(store: str, stop: threading.Event) -> None:
    """Read all of it, over and over, in a process on one core."""
    words = (
        "from ftstan.spark.log import Store, read\nwhile True:\n for p in "
        f"Store({store!r}).plan():\n"
    )
    words += "  for b in read(p, ('channel', 'size', 'data')): pass\n"
    process = subprocess.Popen([sys.executable, "-c", words], preexec_fn=_one_core)  # noqa: PLW1509  no threads in it
    stop.wait()
    process.kill()
    process.wait()


def _one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _published(url: str) -> float:
    words = [
        sys.executable,
        "-m",
        "ftstan.cli.ctl",
        "bench",
        "--count",
        "400000",
        "--output",
        "json",
        "--server",
        url,
    ]
    done = subprocess.run(words, check=True, capture_output=True)
    return float(json.loads(done.stdout)["publishers"]["per_second"])


if __name__ == "__main__":
    main()
