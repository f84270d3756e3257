"""``make bench-sql``: patterns of clients, a recovery and takeovers on the SQL store, each on a
private database server.

Beside the patterns stands a bare insert: the rows of that run, in as many commits, by the
database's quickest way (``COPY``, an ``INSERT`` of many rows), from one process that does nothing
else. Nothing is asserted (``docs/benchmarks.md``, databases).
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import ft
from benchmarks.ftpair import Pair
from benchmarks.load import GROUP_CLUSTER
from benchmarks.patterns import PATTERNS, streaming
from benchmarks.processes import ftstan, resident_mb
from benchmarks.recovery import stamp
from demo.database import Database
from ftstan.base.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.patterns import Figures, Pattern

DRIVERS = ("postgres", "mysql")
_NAMES = (
    "publish",
    "publish, one at a time",
    "1 publisher, 1 subscriber",
    "4 publishers, 4 subscribers",
)
_PARTS = ("patterns", "small", "large")
_READY = "Streaming Server is ready"
#: What a stored message has beside its payload: field numbers, lengths, sequence, channel, stamp.
_RECORD = 32
_FILL_ROWS = 5000
_MIB = 1 << 20


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql", description=__doc__)
    parser.add_argument("--driver", choices=DRIVERS, help="one of the two databases")
    parser.add_argument(
        "--count",
        type=int,
        default=100_000,
        help="messages a round (default 100000); some patterns less",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds, of which the median is shown (default 3)"
    )
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="to be recovered (default 1000000)"
    )
    parser.add_argument(
        "--channels", type=int, default=1000, help="that they are in (default 1000)"
    )
    parser.add_argument(
        "--failovers", type=int, default=20, help="kills of a pair's active (default 20)"
    )
    parser.add_argument(
        "--every", type=float, default=5.0, help="milliseconds between its publishes (default 5)"
    )
    parser.add_argument("--size", type=int, default=128, help="their payload bytes (default 128)")
    parser.add_argument(
        "--settle", type=float, default=2.0, help="seconds between kills (default 2)"
    )
    parser.add_argument(
        "--only", choices=_PARTS, help="patterns, kills on one channel, or the large database"
    )
    options = parser.parse_args()
    parts = (options.only,) if options.only else _PARTS
    for driver in (options.driver,) if options.driver else DRIVERS:
        print(f"{driver}, median of {options.rounds} rounds")
        if "patterns" in parts:
            _patterns(driver, options)
        # What the patterns have left would be recovered, too.
        if "small" in parts:
            with _database(driver) as base:
                _takeovers(base, "1 channel", options)
        if "large" in parts:
            with _database(driver) as base:
                name = _recovery(base, options)
                _takeovers(base, name, options)


@contextmanager
def _database(driver: str) -> Iterator[Database]:
    base = Database(driver)
    try:
        base.start()
        yield base
    finally:
        base.stop()
        base.remove()


def _words(base: Database) -> list[str]:
    return ["-sql_driver", base.driver, "-sql_source", base.source]


# ---- patterns
# --------------------------------------------------------------------------------------------------


def _patterns(driver: str, options: argparse.Namespace) -> None:
    print(
        f"  {'':30}{'msgs/s':>10}{'server us':>11}{'nats us':>9}{'p50 us':>9}{'p99 us':>9}"
        f"{'rows a commit':>15}{'to a bare insert':>18}"
    )
    with _database(driver) as base:
        for pattern in PATTERNS:
            if pattern.name in _NAMES:
                _pattern(base, pattern, options)


def _pattern(base: Database, pattern: Pattern, options: argparse.Namespace) -> None:
    count = max(int(options.count * pattern.share), 1)
    found: list[Figures] = []
    ratios = []
    sizes = []
    with ftstan("sql", "", *_words(base)) as server:
        server.wait_for(_READY)
        for _ in range(options.rounds):
            before = _commits(base)
            found.append(streaming(server, pattern, count))
            rows = count // max(_commits(base) - before, 1) or 1
            sizes.append(rows)
            ratios.append(found[-1].per_second / _bare(base, count, rows, pattern.size))

    def middle(of: Callable[[Figures], float]) -> float:
        return statistics.median(of(one) for one in found)

    print(
        f"  {pattern.name:30}{middle(lambda f: f.per_second):10,.0f}"
        f"{middle(lambda f: f.server_cpu):11.2f}{middle(lambda f: f.nats_cpu):9.2f}"
        f"{middle(lambda f: f.delays[0]):9,.0f}{middle(lambda f: f.delays[-1]):9,.0f}"
        f"{statistics.median(sizes):15,.0f}{statistics.median(ratios):18.2f}",
        flush=True,
    )


def _commits(base: Database) -> int:
    """How many transactions owners have committed."""
    with _connection(base) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT done FROM ftstan_epoch")
        return int(cursor.fetchone()[0])


def _bare(base: Database, count: int, rows: int, size: int) -> float:
    """Rows a second of an insert of ``count`` messages, so many ``rows`` a commit."""
    data = b"x" * (size + _RECORD)
    with _connection(base) as connection:
        cursor = connection.cursor()
        cursor.execute("DROP TABLE IF EXISTS bare")
        cursor.execute(
            "CREATE TABLE bare (id INTEGER, seq BIGINT, timestamp BIGINT, size INTEGER, data "
            f"{'BYTEA' if base.driver == 'postgres' else 'BLOB'}, PRIMARY KEY (id, seq))"
        )
        cursor.execute("CREATE INDEX bare_timestamp ON bare (timestamp)")
        connection.commit()
        began = time.perf_counter()
        for first in range(1, count + 1, rows):
            batch = [(1, seq, seq, len(data), data) for seq in range(first, first + rows)]
            _insert(base.driver, cursor, "bare", batch)
            connection.commit()
        return count / (time.perf_counter() - began)


def _insert(
    driver: str, cursor: Any, table: str, batch: list[tuple[int, int, int, int, bytes]]
) -> None:
    if driver == "postgres":
        with cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "int8", "int8", "int4", "bytea"])
            for row in batch:
                copy.write_row(row)
    else:
        rows = ",".join(f"({a},{b},{c},{d},0x{data.hex()})" for a, b, c, d, data in batch)
        cursor.execute(f"INSERT INTO {table} VALUES {rows}")


def _connection(base: Database) -> Any:
    """A session of the client library itself; a block ends it."""
    from ftstan.stores.sql.source import parse  # noqa: PLC0415

    source = parse(base.driver, base.source, {})
    if base.driver == "postgres":
        import psycopg  # noqa: PLC0415

        return psycopg.connect(**source.connect_arguments())
    import pymysql  # noqa: PLC0415

    return pymysql.connect(**source.connect_arguments("pymysql"))


# ---- recovery
# --------------------------------------------------------------------------------------------------


def _recovery(base: Database, options: argparse.Namespace) -> str:
    """Starts on a database whose server was killed; returns what is in it, in words."""
    each = max(options.messages // options.channels, 1)
    # The pair comes behind it.
    words = [*_words(base), "-cid", GROUP_CLUSTER]
    with ftstan("sql", "", *words) as server:
        server.wait_for(_READY)
        _fill(base, options.channels, each)
        server.kill()
    seconds = []
    memory = 0.0
    for _ in range(options.rounds):
        with ftstan("sql", "", *words) as server:
            text = server.wait_for(_READY)
            began, ready = (stamp(text, words) for words in ("Recovering the state", _READY))
            seconds.append((ready - began).total_seconds())
            memory = max(memory, resident_mb(server.pid))
            server.kill()
    name = f"{each * options.channels:,} messages in {options.channels:,} channels"
    print(
        f"  recovery of {name}: {statistics.median(seconds):.2f} s, RSS {size_of(memory * _MIB)}",
        flush=True,
    )
    return name


def _fill(base: Database, channels: int, each: int) -> None:
    """Messages as servers write them, by rows of a plain insert."""
    from ftstan.wire.pb.stan_pb2 import MsgProto  # noqa: PLC0415

    with _connection(base) as connection:
        cursor = connection.cursor()
        now = time.time_ns()
        batch: list[tuple[int, int, int, int, bytes]] = []
        for number in range(1, channels + 1):
            name = f"channel.{number - 1}"
            cursor.execute(
                "INSERT INTO Channels (id, name, maxseq, maxmsgs, maxbytes, maxage) "
                "VALUES (%s, %s, %s, 0, 0, 0)",
                (number, name, each),
            )
            for seq in range(1, each + 1):
                message = MsgProto(
                    sequence=seq, subject=name.encode(), data=b"x" * 128, timestamp=now
                )
                data = message.SerializeToString()
                batch.append((number, seq, now, len(data), data))
                if len(batch) == _FILL_ROWS:
                    _insert(base.driver, cursor, "Messages", batch)
                    batch = []
        if batch:
            _insert(base.driver, cursor, "Messages", batch)
        connection.commit()


# ---- takeovers
# --------------------------------------------------------------------------------------------------


def _takeovers(base: Database, name: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="ftstan-bench-") as made:
        pair = Pair(Path(made), ["-store", "sql", *_words(base)], [])
        ft.ends(f"  {name}, kill -9", pair, signal.SIGKILL, [b"channel.0"], options)


if __name__ == "__main__":
    main()
