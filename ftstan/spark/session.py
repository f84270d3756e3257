"""A Spark session with the settings that ``stan`` likes: our interpreter, pushed filters, UTC, no
web page.

Never changes a session that exists already, but for the registration of ``stan``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ftstan.base.errors import ConfigError
from ftstan.spark import register
from ftstan.spark.installed import missing
from ftstan.spark.workers import python_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

#: What a session of a running server can be told, too.
_OF_EVERY_SESSION = {
    # A reader that takes filters is refused by Spark while this is off.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_DEFAULTS = _OF_EVERY_SESSION | {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

#: Only an address that the machines of a cluster reach will do there.
_LOCAL_ONLY = ("spark.driver.bindAddress", "spark.driver.host")

_CONNECT_PORT = 15002
_REACHED_WITHIN_S = 10.0


def session(
    app: str = "ftstan", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none, with ``stan`` registered.

    ``master``: where to run, as Spark writes it; ``config``: settings that win over ours. Workers
    run this interpreter unless PYSPARK_PYTHON says another, and find this very package. Raises
    ``ConfigError`` where pyspark is missing.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  the package is importable without pyspark
    except ModuleNotFoundError as error:
        raise missing(error.name or "a module") from error
    # Without it workers take python3 from PATH, which has neither pyarrow nor us.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _DEFAULTS | {"spark.executorEnv.PYTHONPATH": _python_path()}
    if not master.startswith("local"):
        settings = {key: value for key, value in settings.items() if key not in _LOCAL_ONLY}
    return _made(SparkSession.builder.appName(app).master(master), settings | dict(config or {}))


def remote_session(
    url: str, app: str = "ftstan", *, config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on the Spark Connect server at ``url`` (``sc://host:15002``), with ``stan``
    registered.

    ``config``: settings of the session, which win over ours. The server's workers must find this
    package. Raises ``ConfigError`` for a wrong address, where packages are missing, and where
    nobody answers.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  as above
    except ModuleNotFoundError as error:
        raise missing(error.name or "a module", "connect") from error
    _require_answer(url)
    return _made(
        SparkSession.builder.appName(app).remote(url), _OF_EVERY_SESSION | dict(config or {})
    )


def _made(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


@contextlib.contextmanager
def set_for(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for the time of a block."""
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _require_answer(url: str) -> None:
    """Its client tries a server that is not there for ten minutes, without a word.

    Raises ``ConfigError``.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port or _CONNECT_PORT
    except ValueError:
        host = None
    if host is None or parts.scheme != "sc":
        raise ConfigError(
            f"{url} is no address of a Spark Connect server", hint="write it as sc://host:15002"
        )
    try:
        socket.create_connection((host, port), _REACHED_WITHIN_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Spark Connect server answers at {host}:{port}: {error.strerror or error}",
            hint="start one with sbin/start-connect-server.sh, or see docs/pipeline.md",
        ) from error


def _python_path() -> str:
    """Where workers find this package first, also in a checkout beside an installed one."""
    here = python_path()
    given = os.environ.get("PYTHONPATH", "")
    return f"{here}{os.pathsep}{given}" if given else here
