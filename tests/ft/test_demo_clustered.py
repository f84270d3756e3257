"""The demo of a cluster, short: clean over its takeovers, with a node that lost its disk."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from demo.__main__ import EXIT_CLEAN
from demo.clustered import NAMES, TAKEOVERS
from tests.ft.programs import run_to_end
from tests.processes import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.node, pytest.mark.timeout(1600)]

USAGE = 2
#: Three nodes on a machine that is busy with other tests.
LIMIT_S = 1500.0


def test_a_short_demo_of_a_cluster_is_clean() -> None:
    words = ["--clustered", "--seconds", "12"]
    outcome = run_to_end([sys.executable, "-m", "demo", *words], limit=LIMIT_S)
    assert outcome.status == EXIT_CLEAN, outcome.shown()
    assert re.search(r"^violations +0$", outcome.text, re.MULTILINE)
    assert re.search(rf"^takeovers +{TAKEOVERS}$", outcome.text, re.MULTILINE)
    assert re.search(rf"^nodes +{', '.join(NAMES)}$", outcome.text, re.MULTILINE)
    assert "loses its disk" in outcome.text
    assert len(re.findall(r"leads since \d", outcome.text)) == 1
    place = re.search(r"datastore, ledger and logs in (\S+)", outcome.text)
    assert place is not None
    shutil.rmtree(ROOT / place[1])


def test_a_cluster_on_a_database_is_refused() -> None:
    words = ["--clustered", "--store", "postgres"]
    outcome = run_to_end([sys.executable, "-m", "demo", *words])
    assert outcome.status == USAGE
    assert "--clustered: each node has a directory of its own" in outcome.shown()
