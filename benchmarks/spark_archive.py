"""The archive job beside Spark's own Parquet rewrite of the same rows, in one session: seconds,
messages/s, ratio.

``python -m benchmarks.spark_archive --count 2000000``. A spool is filled with slices of 64 MiB and
archived; then Spark reads the files that came of it and writes them again, zstd and partitioned in
the same way. The archive job does more: it checks slices, merges, reads back and syncs. Each is run
once before its time is taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.base.sizes import size_of
from ftstan.spark import archive
from ftstan.spark.archive import spool
from ftstan.spark.session import session
from ftstan.stores.file.log import records
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLICE_BYTES = 64 << 20
_CHANNELS = 4
_START_NS = 1_795_334_400_000_000_000


def fill(place: Path, count: int, size: int) -> int:
    """A spool with ``count`` messages of ``size`` bytes over some channels.

    Returns the bytes of its slices.
    """
    spool.create(str(place))
    crc = records.Crc()
    total = 0
    for k in range(_CHANNELS):
        channel = f"bench.{k}"
        first = 1
        number = 1
        last = count // _CHANNELS
        while first <= last:
            block = MsgBlock()
            while first <= last and block.nbytes < _SLICE_BYTES:
                # Half of a payload is as good as random: as JSON with ids in it would be.
                data = os.urandom(size // 2) + b"x" * (size - size // 2)
                block.append(first, channel.encode(), b"", data, _START_NS + first * 1_000_000)
                first += 1
            records.seal(block, crc)
            folder = place.parent / "store" / channel
            folder.mkdir(parents=True, exist_ok=True)
            dat = folder / f"msgs.{number}.dat.bak"
            idx = folder / f"msgs.{number}.idx.bak"
            dat.write_bytes(records.VERSION + bytes(memoryview(block)))
            idx.write_bytes(records.VERSION + records.index_entries(block, 0, len(block), 4, crc))
            total += dat.stat().st_size
            spool.take(str(place), channel, str(dat), str(idx))
            number += 1
    return total


def rewrite(spark: SparkSession, table: Path, target: Path) -> None:
    """Spark's own way with the same rows."""
    rows = spark.read.parquet(str(table))
    rows.write.option("compression", "zstd").partitionBy("channel", "date").parquet(str(target))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--format", choices=("delta", "parquet"), default="delta")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        spark = session("ftstan-bench", master="local[2]", config={"spark.driver.memory": "1g"})
        spark.sparkContext.setLogLevel("ERROR")
        options = archive.ArchiveOptions(format=arguments.format)
        # The first query of a session pays for it.
        fill(place / "warm", 20_000, arguments.size)
        archive.run(spark, str(place / "warm"), str(place / "warmed"), options)
        rewrite(spark, place / "warmed", place / "warmed-again")
        total = fill(place / "spool", arguments.count, arguments.size)

        started = time.perf_counter()
        report = archive.run(spark, str(place / "spool"), str(place / "table"), options)
        archived = time.perf_counter() - started
        started = time.perf_counter()
        rewrite(spark, place / "table", place / "again")
        rewritten = time.perf_counter() - started
        written = sum(p.stat().st_size for p in (place / "again").rglob("*.parquet"))
        spark.stop()
        shutil.rmtree(place / "store")
    print(
        f"{report.messages} messages of {arguments.size} bytes, {size_of(total)} of slices, "
        f"{report.format}"
    )
    for name, seconds, size in (
        ("archive", archived, report.bytes),
        ("rewrite", rewritten, written),
    ):
        print(
            f"  {name}: {seconds:6.1f} s  {report.messages / seconds:12,.0f} messages/s  "
            f"{size_of(size)} written"
        )
    print(f"  the archive takes {archived / rewritten:.2f} times as long as Spark's own rewrite")


if __name__ == "__main__":
    main()
