"""What every command of ``ftstan-pipeline`` shares: its options, its Spark session, and Spark's
errors in one line.

A session is made only when the words are right, and ended with its JVM when the command is over.
What Spark logs goes to a file that is removed, unless it is asked for: an operator's terminal shows
what the command has to say.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.cli.terminal import progress
from ftstan.spark.installed import missing

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

EXIT_CLEAN = 0
EXIT_FOUND = 1
EXIT_FAILED = 3

_OF_CONNECT = ("grpc", "grpc_status", "pandas", "zstandard")
_OURS = re.compile(r"^(?:ftstan[\w.]*\.)?(\w*Error): (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] ")
_ENDING = re.compile(r" SQLSTATE: \w+$")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class SparkError(FtstanError):
    """Spark could not be started, or could not do what was asked."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that needs Spark."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        default="",
        metavar="URL",
        help="where to run, as Spark writes it (default: local[*])",
    )
    group.add_argument(
        "--remote", default="", metavar="URL", help="a Spark Connect server, sc://host:15002"
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    group.add_argument(
        "--idle",
        action="store_true",
        help="run only where no other process wants the processor; on this machine alone",
    )
    group.add_argument(
        "--spark-log", default="", metavar="FILE", help="keep what Spark logs in FILE"
    )
    add_output(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def add_output(parser: argparse.ArgumentParser) -> None:
    """The flag for scripts."""
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="default: table"
    )


@contextlib.contextmanager
def metered(arguments: argparse.Namespace, label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that the yielded function moves: how much is done, and of how much.

    Amounts are bytes. Nothing unless that is a terminal.
    """
    with contextlib.ExitStack() as stack:
        advance: Callable[[int], None] | None = None
        shown = 0

        def tell(done: int, total: int) -> None:
            nonlocal advance, shown
            if advance is None:
                advance = stack.enter_context(progress(label, total, shown=not arguments.quiet))
            advance(done - shown)
            shown = done

        yield tell


@contextlib.contextmanager
def sparking(arguments: argparse.Namespace, *looked_into: str) -> Iterator[SparkSession]:
    """The session of this command.

    Raises ``ConfigError`` where something is not installed, ``FtstanError``.

    ``looked_into``: places that the command itself reads, too; of a remote Spark they must be here
    as well. What Spark raises inside comes out as a ``SparkError``.
    """
    if arguments.remote and arguments.master:
        raise ConfigError("--master and --remote were given", hint="give one of them")
    if arguments.idle:
        _step_back(arguments)
    check_installed(remote=bool(arguments.remote))
    if arguments.remote:
        _require_here(looked_into)
    from pyspark.sql import SparkSession  # noqa: PLC0415  the words are read without pyspark

    there = SparkSession.getActiveSession() is not None
    spark = None
    try:
        with translating():
            spark = _session(arguments)
            yield spark
    finally:
        if spark is not None and not there:
            with contextlib.suppress(Exception):
                spark.stop()


def _step_back(arguments: argparse.Namespace) -> None:
    """What is started from now on, the JVM and its workers, takes what nobody else wants.

    Raises ``ConfigError``.

    Not merely a higher nice value: a processor that such a process has counts as free when a server
    wakes.
    """
    if (
        arguments.remote
        or os.environ.get(_SUBMITTED)
        or not (arguments.master or "local").startswith("local")
    ):
        raise ConfigError(
            "--idle is for Spark on this machine, whose processes this command starts",
            hint="leave it out, or leave out --remote, --master or spark-submit",
        )
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _require_here(places: Iterable[str]) -> None:
    for place in places:
        if not os.path.exists(place):
            raise ConfigError(
                f"{place} is not on this machine: this command looks into it from here, too, not "
                "only on the server",
                hint="mount it here at the same path, or run the command where it is; read and "
                "replay need it only "
                "on the server",
            )


def check_installed(*, remote: bool) -> None:
    """Raise ``ConfigError`` with the cure if Spark cannot run here."""
    for module in ("pyspark", "pyarrow", *(_OF_CONNECT if remote else ())):
        if importlib.util.find_spec(module) is None:
            raise missing(module, "connect" if module in _OF_CONNECT else "spark")
    if remote:
        return
    home = os.environ.get("JAVA_HOME", "")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ConfigError(
            f"Spark needs Java, and there is none {where}",
            hint="install Java 17 (Debian: apt install openjdk-17-jre-headless), or give "
            "--remote sc://HOST",
        )


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Turn what Spark raises into one line."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  as above
    from pyspark.errors import PySparkException  # noqa: PLC0415  as above

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkError(*_told(str(error))) from error


def _told(text: str) -> tuple[str]:
    """What a person needs of an error of Spark: our own words if they are in it, else its first
    line.
    """
    ours = [
        match
        for match in _OURS.finditer(text)
        if match[1] not in {"PySparkRuntimeError", "Py4JJavaError"}
    ]
    if ours:
        return (ours[-1][2].strip(),)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    line = causes[-1] if causes else lines[0] if lines else "Spark failed and did not say why"
    return (_ENDING.sub("", _CONDITION.sub("", line)),)


def _session(arguments: argparse.Namespace) -> SparkSession:
    from ftstan.spark.session import remote_session, session  # noqa: PLC0415  needs nothing yet, belongs to the others

    if arguments.remote:
        return remote_session(arguments.remote, "ftstan-pipeline", config=dict(arguments.conf))
    master = arguments.master or _submitted_master() or "local[*]"
    config = {"spark.log.level": "ERROR", **dict(arguments.conf)}
    if os.environ.get(_SUBMITTED):
        return session("ftstan-pipeline", master=master, config=config)
    with _spark_log(arguments.spark_log) as log:
        try:
            return session("ftstan-pipeline", master=master, config=config)
        except FtstanError:
            raise
        except Exception as error:
            # Whatever was raised, the JVM said it better.
            raise SparkError(
                f"Spark could not be started: {_last_words(log) or error}",
                hint="--spark-log FILE keeps all that Spark says",
            ) from error


def _submitted_master() -> str:
    """What ``spark-submit`` was told, if it started us."""
    if not os.environ.get(_SUBMITTED):
        return ""
    from pyspark import SparkConf  # noqa: PLC0415  as above

    return str(SparkConf().get("spark.master", ""))


@contextlib.contextmanager
def _spark_log(path: str) -> Iterator[str]:
    """Have a JVM that is started meanwhile write its standard error to a file; yields its name."""
    made = ""
    if not path:
        handle, made = tempfile.mkstemp(prefix="ftstan-pipeline.", suffix=".log")
        os.close(handle)
    try:
        with open(path or made, "ab") as log:
            sys.stderr.flush()
            kept = os.dup(2)
            os.dup2(log.fileno(), 2)
            try:
                yield path or made
            finally:
                os.dup2(kept, 2)
                os.close(kept)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="choose another --spark-log") from error
    finally:
        if made:
            # The JVM goes on writing to it; the room is given back when it ends.
            os.unlink(made)


def _last_words(log: str) -> str:
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("\tat ")]
        return lines[-1] if lines else ""
    return ""


def setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise ValueError
    return key, value


def size(text: str) -> int:
    """Bytes: ``64MiB``, ``64MB`` (the same), ``1G``, ``4096``."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip().upper().replace("IB", "B"))
    if found is None or not int(found[1]):
        raise ValueError
    return int(found[1]) * _UNITS[found[2]]


def rate(text: str) -> float:
    """A number a second, above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


rate.__name__ = "rate"
# What argparse calls a wrong value.
setting.__name__ = "setting KEY=VALUE"
size.__name__ = "size such as 64MiB"


def plain(value: Any) -> Any:
    """A value of a row for JSON."""
    if isinstance(value, bytes | bytearray):
        import base64  # noqa: PLC0415  rarely needed

        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
