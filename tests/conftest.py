"""What every test shares: the Hypothesis profile, the stage for server processes, and the tools
that must be there.

A missing tool fails the test that needs it, with the line that says what to install; nothing is
ever skipped.
"""

from __future__ import annotations

import gc
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

from ftstan.base import log
from ftstan.base.errors import NatsError
from ftstan.base.log.repeats import Repeats
from ftstan.nats.binary import binary_path
from tests.certificates import Certificates
from tests.lateness import pytest_runtest_makereport  # noqa: F401  # a hook
from tests.processes import ROOT, Stage
from tests.sqlservers import sql_servers, sql_source, sql_text  # noqa: F401  # fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


@pytest.fixture(autouse=True)
def _the_log_remembers_no_other_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log._outlet, "repeats", Repeats())


# A shell that starts something in the background has it ignore SIGINT, and so would the commands
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a deadline: a busy machine must not turn a slow example into a failure. The blob repeats a
# failure exactly.
settings.register_profile("ftstan", deadline=None, print_blob=True)
settings.load_profile("ftstan")

_CLIENT = ROOT / "node_modules" / "node-nats-streaming"


#: Tests of one group are run by one worker: they share what is costly to set up, or take their
#: ports from one range without knowing of each other.
_TOGETHER = {
    # Those before the pair's boot hosts of their own; one of them takes as long as all of the pair.
    "tests/ansible/test_hosts.py::test_roles_": "roles on one host",
    "tests/ansible/test_hosts.py::test_a_configuration_": "refusals on one host",
    "tests/ansible/test_hosts.py": "pair of hosts",
    "tests/ft/test_demo.py": "demo and drills",
    "tests/ft/test_drill.py": "demo and drills",
    "tests/ft/test_sql_drill.py": "demo and drills",
    "tests/ft/test_readme.py": "readme",
    "tests/ft/test_demo_pipeline.py": "demo and drills",
    # Before the directory: it needs no JVM of its worker, but one of its own.
    "tests/spark/test_connect.py": "spark connect",
    "tests/spark/": "spark",
}


class Together(LoadGroupScheduling):  # type: ignore[misc]  # xdist is not typed
    """Tests that belong together go to one worker, every other one to whoever is free.

    By their paths: the marks that xdist has for it reach no worker with pytest 9.2, whose node ids
    cannot be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next(
            (group for place, group in _TOGETHER.items() if nodeid.startswith(place)), nodeid
        )

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next tests: from the front, where most wait for servers, but for the
        last of at least three workers, which begins at the back, where most compute.

        So neither core rests at the beginning for want of what fills both of them at the end.
        """
        workers = self.nodes
        if len(workers) > 2 and node is workers[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Note that a test is over, and forget its group when that is.

        xdist looks at all that a worker was ever given whenever a test is over.
        """
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together | None:
    """Share out the tests among the workers of a run."""
    return Together(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    """Set aside the half a million objects that collected tests are.

    The collector would look at them again and again, for a fifth of a second each time.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail at once, and clearly, where a test's tools are missing."""
    if item.get_closest_marker("processes") is not None:
        _require_servers()
    if item.get_closest_marker("node") is not None:
        _require_node()


def _require_servers() -> None:
    if shutil.which("setpriv") is None:
        pytest.fail("setpriv was not found in PATH: install the package util-linux", pytrace=False)
    try:
        binary_path()
    except NatsError as error:
        pytest.fail(f"{error.text}; {error.hint}", pytrace=False)


def _require_node() -> None:
    if shutil.which("node") is None:
        pytest.fail("node was not found in PATH: install Node.js 16 or newer", pytrace=False)
    if not _CLIENT.is_dir():
        pytest.fail("node_modules/node-nats-streaming is missing: run `npm ci`", pytrace=False)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates that no test may change; one that needs others makes its own."""
    if shutil.which("openssl") is None:
        pytest.fail("openssl was not found in PATH: install the package openssl", pytrace=False)
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """The child processes of one test; all are ended when it is over."""
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        stage.end()
