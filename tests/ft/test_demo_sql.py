"""The demo on a private database server, short: clean, and nothing of the server is left."""

from __future__ import annotations

import glob
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from demo import database
from demo.__main__ import EXIT_CLEAN
from demo.database import Database
from demo.processes import DemoError
from demo.scenario import FAULTS
from tests.ft.programs import run_to_end
from tests.processes import ROOT
from tests.sqlservers import DRIVERS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.node, pytest.mark.timeout(1300)]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_short_demo_on_a_database_is_clean(driver: str) -> None:
    words = ["--store", driver, "--seconds", "12"]
    outcome = run_to_end([sys.executable, "-m", "demo", *words])
    assert outcome.status == EXIT_CLEAN, outcome.shown()
    assert re.search(r"^violations +0$", outcome.text, re.MULTILINE)
    assert re.search(rf"^takeovers +{len(FAULTS)}$", outcome.text, re.MULTILINE)
    assert f"one {driver} database" in outcome.text
    assert not glob.glob(f"/tmp/ftdemo-{outcome.pid}-*")
    place = re.search(r"datastore, ledger and logs in (\S+)", outcome.text)
    assert place is not None
    shutil.rmtree(ROOT / place[1])


def test_without_the_database_server_there_is_one_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "sql_servers.sh"
    script.write_text(
        "#!/bin/sh\n[ $1 = stop ] && exit 0\n"
        "echo 'sql_servers.sh: MariaDB is missing: install the package mariadb-server' >&2\n"
        "exit 1\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    monkeypatch.setattr(database, "_SCRIPT", str(script))
    made = Database("mysql")
    with pytest.raises(DemoError) as raised:
        made.start()
    assert str(raised.value).startswith("no database: MariaDB is missing")
    assert raised.value.hint == "tools/system_packages.sh installs the packages"
    made.stop()
    made.remove()
