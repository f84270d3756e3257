"""What the tests of Spark share: one session, made once, and the machine's manners.

Starting a JVM takes long, so all tests of this directory run in one worker of the test run
(``tests/conftest.py``). The session is ended with its JVM at the end.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent

#: A JVM that shares two cores with the rest of a test run takes minutes for what else takes
#: seconds.
_PATIENCE_S = 900

#: pyspark leaves sockets of the past to the garbage collector, and speaks of functions that Python
#: has renamed.
_NOT_OURS = (
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning:pyspark",
    "ignore::DeprecationWarning:py4j",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Wait patiently, and leave the warnings of pyspark to its makers."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(_PATIENCE_S))
            for line in _NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this test run: two cores, a small heap, ``stan`` registered."""
    if shutil.which("java") is None:
        pytest.fail("java was not found in PATH: install Java 17", pytrace=False)
    place = tmp_path_factory.mktemp("spark")
    config = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        # Without the second compiler, which costs more than it brings within minutes.
        "spark.driver.extraJavaOptions": (
            f"-XX:TieredStopAtLevel=1 -Dderby.system.home={place} -Djava.io.tmpdir={place}"
        ),
    }
    made = session("ftstan-tests", master="local[2]", config=config)
    made.sparkContext.setLogLevel("ERROR")
    try:
        yield made
    finally:
        _end(made)


def _end(made: SparkSession) -> None:
    """Stop the session and its JVM: the process outlives the context otherwise."""
    gateway = made.sparkContext._gateway
    made.stop()
    assert gateway is not None
    process = gateway.proc
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process.stdin.close()
    process.wait(60)


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[None]:
    """Settings for plans with many steps over few rows: compiling and planning again would take
    most of the time.
    """
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    former = {key: str(spark.conf.get(key)) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key, value in former.items():
        spark.conf.set(key, value)
